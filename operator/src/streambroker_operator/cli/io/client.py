"""Call a broker over HTTP from the command line."""

from __future__ import annotations

import http.client
import json
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from streambroker_core.model import PeKey, PortKey
from streambroker_core.wire.broker import problem as problems
from streambroker_operator.cli.io.errors import UsageError
from streambroker_operator.errors import RequestError
from streambroker_operator.kubernetes.client.kubeconfig import Access, Credentials
from streambroker_operator.rest.http.paths import API

TIMEOUT_S = 30.0
PAGE_SIZE = 500
"""Items asked for at once."""
MAX_RETRY_S = 60.0
"""How long a call that is told to come later (429) is tried again, in seconds."""
LIST_TRIES = 3
REQUEST_ID = "Request-Id"

_HOSTNAME_MISMATCH = (62, 64)
"""What OpenSSL says of a certificate that is good, and for another name or address."""
_NOT_SENT_ERRORS = (ConnectionRefusedError, ValueError, http.client.InvalidURL)


class BrokerClient:
    """A broker's address and who calls.

    Args:
        url: such as ``http://127.0.0.1:8470``.
        token: sent as bearer, None for none.
        timeout_s: how long the broker may be silent, in seconds.
        ca: file of the certificates to trust, PEM; None for those of the system.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        timeout_s: float = TIMEOUT_S,
        ca: Path | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self._token = token
        self._timeout_s = timeout_s
        self._ca = ca
        self._credentials = Credentials(
            Access(server=self.url, ca_file=None if ca is None else str(ca))
        )
        if not self.url.startswith(("http://", "https://")):
            raise RequestError(
                0, "UrlInvalid", f"{url!r} is not an http:// address; write --url http://host:port."
            )
        if urllib.parse.urlsplit(self.url)[2:] != ("", "", ""):
            raise RequestError(
                0,
                "UrlInvalid",
                f"{url!r} has more than host and port; write --url http://host:port.",
            )

    def call(self, method: str, path: str, body: object = None, **query: str) -> Any:
        """Return the answer's JSON; None where it has none. 429 is waited out.

        Raises:
            RequestError: the broker refuses or cannot be reached (status 0).
        """
        return self._call_with_retry(method, path, body, {}, query)

    def change(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        match: str = "",
        request_id: str = "",
        **query: str,
    ) -> Any:
        """Make a change under a name of its own, so that it is made once, if asked for twice.

        Args:
            method: of HTTP.
            path: as of `open`.
            body: sent as JSON.
            match: the ETag that the resource has to have; empty for any.
            request_id: its name; empty for a new one.
            query: after the path.

        Returns:
            As `call`.

        Raises:
            RequestError: as of `call`; where the answer is lost twice, it is not known
                whether the change was made, and the error says so.
        """
        headers = {REQUEST_ID: request_id or uuid.uuid4().hex}
        if match:
            headers["If-Match"] = match
        try:
            return self._call_with_retry(method, path, body, headers, query)
        except RequestError as error:
            if not error.facts.get("lost"):
                raise
        try:
            return self._call_with_retry(method, path, body, headers, query)
        except RequestError as error:
            if error.status not in (0, 503):
                raise
            raise RequestError(
                0,
                "BrokerUnavailable",
                f"The broker at {self.url} took the request and gave no answer: "
                f"{error.facts.get('reason', error)}. It is not known whether the change was "
                f"made; ask with `streambroker get`. {error.facts.get('tls', '')}".rstrip(),
            ) from error

    def _call_with_retry(
        self, method: str, path: str, body: object, headers: dict[str, str], query: dict[str, str]
    ) -> Any:
        deadline = time.monotonic() + MAX_RETRY_S
        while True:
            try:
                with self.open(method, path, body, headers=headers, **query) as answer:
                    text = _read_all(answer)
                return json.loads(text) if text else None
            except RequestError as error:
                pause = float(error.facts.get("retryAfter", 1.0))
                if error.status != 429 or time.monotonic() + pause > deadline:
                    raise
                time.sleep(pause)
            except ValueError as error:
                raise RequestError(
                    0, "Http200", f"What answers at {self.url} is no broker: {error}."
                ) from error

    def open(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        last: str = "",
        headers: Mapping[str, str] | None = None,
        **query: str,
    ) -> Any:
        """Return the open answer of one request.

        Args:
            method: of HTTP.
            path: below the base, or from ``/api/`` on.
            body: sent as JSON.
            last: the last event that was seen, for a stream that is resumed.
            headers: more of them.
            query: after the path.

        Raises:
            RequestError: the broker refuses or cannot be reached (status 0).
            UsageError: the file of certificates to trust cannot be used.
        """
        sent = {"Content-Type": "application/json", **(headers or {})}
        if last:
            sent["Last-Event-ID"] = last
        if self._token is not None:
            sent["Authorization"] = f"Bearer {self._token}"
        address = self.url + (path if path.startswith("/api/") else API + path)
        if query:
            address += "?" + urllib.parse.urlencode(query)
        data = None if method in ("GET", "DELETE") else json.dumps(body).encode()
        request = urllib.request.Request(  # noqa: S310 - the scheme was checked
            address, data=data, method=method, headers=sent
        )
        opener = urllib.request.build_opener(*self._handlers())
        try:
            return opener.open(request, timeout=self._timeout_s)
        except urllib.error.HTTPError as error:
            raise _parse_error(error, self.url) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self.unavailable_error(error) from error

    def _handlers(self) -> list[urllib.request.BaseHandler]:
        """Return what a request is made with: no proxy, no redirection, the CA as it is now."""
        found: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({}), _NoRedirect()]
        if self.url.startswith("https://"):
            try:
                found.append(urllib.request.HTTPSHandler(context=self._credentials.tls()))
            except OSError as error:  # that of ssl is one, too
                reason = "it is no PEM" if isinstance(error, ssl.SSLError) else error.strerror
                raise UsageError(
                    f"The file {self._ca} of certificates to trust cannot be used: {reason}."
                    " Correct --ca or STREAMBROKER_CA."
                ) from error
        return found

    def unavailable_error(self, error: Exception) -> RequestError:
        """Return the error that says what to do when the broker does not answer."""
        reason = getattr(error, "reason", error)
        sent = not isinstance(error, urllib.error.URLError) or isinstance(reason, ConnectionError)
        lost = sent and not isinstance(reason, _NOT_SENT_ERRORS)
        what = str(reason) or type(error).__name__
        remedy = "Start one with `streambroker up`, or set STREAMBROKER_URL or --url."
        if isinstance(reason, TimeoutError):
            remedy = "Is it busy or stopped? --request-timeout waits longer."
        told = self._tls_hint(reason)
        return RequestError(
            0,
            "BrokerUnavailable",
            f"No broker answers at {self.url}: {what}. {told or remedy}",
            facts={"lost": lost, "reason": what, "tls": told},
        )

    def _tls_hint(self, reason: object) -> str:
        """Return what to do where TLS may be the reason; else nothing."""
        scheme, _, rest = self.url.partition("://")
        if isinstance(reason, ssl.SSLCertVerificationError):
            if reason.verify_code in _HOSTNAME_MISMATCH:
                return "Its certificate is for another name: use one of those that it is for."
            return (
                "Its certificate comes from nobody who is trusted here: give the CA's file with"
                " --ca or STREAMBROKER_CA."
            )
        if isinstance(reason, ssl.SSLError):
            return f"If it speaks no TLS, use http://{rest}."
        # Closed without a word, or with an alert: so ends HTTP at a port where TLS is spoken.
        if scheme == "http" and isinstance(
            reason, ConnectionResetError | http.client.BadStatusLine
        ):
            return f"If it speaks TLS, use https://{rest}."
        return ""

    def items(self, path: str, **query: str) -> list[dict[str, Any]]:
        """Return all items of a list, page by page, all of one version.

        Raises:
            RequestError: the broker refuses, cannot be reached, or changes too fast.
        """
        for left in reversed(range(LIST_TRIES)):
            try:
                return self._fetch_pages(path, query)
            except RequestError as error:
                if error.code != "ListExpired" or not left:
                    raise
        raise AssertionError("the last try returns or raises")

    def _fetch_pages(self, path: str, query: dict[str, str]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        more: dict[str, str] = {}
        while True:
            answer = self.call("GET", path, **{**query, "limit": str(PAGE_SIZE), **more})
            found += answer["items"]
            if not answer.get("continue"):
                return found
            more = {"continue": str(answer["continue"])}


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirection: the token is for the broker alone."""

    def redirect_request(self, *_args: object, **_more: object) -> None:
        """Refuse."""


def _read_all(answer: Any) -> bytes:
    try:
        return bytes(answer.read())
    except (OSError, http.client.HTTPException) as error:
        what = str(error) or type(error).__name__
        raise RequestError(
            0,
            "BrokerUnavailable",
            f"The broker's answer broke off: {what}. Try again.",
            facts={"lost": True, "reason": what},
        ) from error


def _parse_error(error: urllib.error.HTTPError, url: str) -> RequestError:
    with error:
        try:
            body: object = json.loads(error.read())
        except (OSError, http.client.HTTPException, ValueError):
            body = None
    if not isinstance(body, Mapping) or not isinstance(body.get("code"), str):
        return RequestError(
            error.code, f"Http{error.code}", f"What answers at {url} is no broker ({error.code})."
        )
    found = problems.decode(body, status=error.code)
    facts = dict(found.facts)
    later = error.headers.get("Retry-After", "")
    if later.isascii() and later.isdigit():
        facts["retryAfter"] = int(later)
    return RequestError(found.status, found.code, found.detail, facts=facts)


def port_path(kind: str, key: PortKey) -> str:
    """Return the path of a port below the base."""
    return f"{pe_path(key.owner)}/{kind.lower()}/{key.port}"


def pe_path(pe: PeKey) -> str:
    """Return the path of a PE below the base."""
    return f"/job/{pe.job}/pe/{pe.pe}"
