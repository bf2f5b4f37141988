"""HTTP client for a broker's REST interface."""

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
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streambroker_core.wire.broker import problem as problems
from streambroker_operator.cli.io.errors import UsageError
from streambroker_operator.errors import RequestError
from streambroker_operator.rest.http.paths import API

if TYPE_CHECKING:
    from streambroker_operator.kubernetes.client.kubeconfig import Credentials

PAGE_SIZE = 500
"""Items per page."""
MAX_RETRY_S = 60.0
"""How long a rate-limited call (429) is retried, in seconds."""
LIST_TRIES = 3
REQUEST_ID = "Request-Id"

_HOSTNAME_MISMATCH = (62, 64)
"""OpenSSL verify codes for a valid certificate with another name or address."""
_NOT_SENT_ERRORS = (ConnectionRefusedError, ValueError, http.client.InvalidURL)


class BrokerClient:
    """Client of one broker.

    Args:
        url: such as ``http://127.0.0.1:8470``.
        token: bearer token; None for none.
        timeout_s: how long the broker may be silent, in seconds.
        ca: PEM file of trusted certificates; None for those of the system.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        timeout_s: float = 30.0,
        ca: Path | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self._token = token
        self._timeout_s = timeout_s
        self._ca = ca
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
        """Return the JSON of the response; None without a body. Waits and retries on 429.

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
        """Make a change with a request id, so that a retry does not make it twice.

        Args:
            method: HTTP method.
            path: see `open`.
            body: sent as JSON.
            match: required ETag of the resource; empty for any.
            request_id: empty for a new one.
            query: query parameters.

        Raises:
            RequestError: see `call`. If the response is lost twice, it is unknown whether the
                change was made, and the error states it.
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
                f"The broker at {self.url} received the request and did not answer:"
                f" {error.facts.get('reason', error)}. It is not known whether the change was"
                f" made; check with `streambroker get`. {error.facts.get('tls', '')}".rstrip(),
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
                    0, "Http200", f"The server at {self.url} is not a broker: {error}."
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
        """Send one request; return the open response.

        Args:
            method: HTTP method.
            path: below the API prefix, or absolute from ``/api/``.
            body: sent as JSON.
            last: id of the last event received, to resume a stream.
            headers: additional headers.
            query: query parameters.

        Raises:
            RequestError: the broker refuses or cannot be reached (status 0).
            UsageError: the file of trusted certificates cannot be used.
        """
        request_headers = {"Content-Type": "application/json", **(headers or {})}
        if last:
            request_headers["Last-Event-ID"] = last
        if self._token is not None:
            request_headers["Authorization"] = f"Bearer {self._token}"
        address = self.url + (path if path.startswith("/api/") else API + path)
        if query:
            address += "?" + urllib.parse.urlencode(query)
        data = None if method in ("GET", "DELETE") else json.dumps(body).encode()
        request = urllib.request.Request(  # noqa: S310 - the scheme was checked
            address, data=data, method=method, headers=request_headers
        )
        opener = urllib.request.build_opener(*self._handlers())
        try:
            return opener.open(request, timeout=self._timeout_s)
        except urllib.error.HTTPError as error:
            raise _parse_error(error, self.url) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self.unavailable_error(error) from error

    def _handlers(self) -> list[urllib.request.BaseHandler]:
        """Return the handlers: no proxy, no redirects, and the current CA file."""
        handlers: list[urllib.request.BaseHandler] = [
            urllib.request.ProxyHandler({}),
            _NoRedirect(),
        ]
        if self.url.startswith("https://"):
            try:
                handlers.append(urllib.request.HTTPSHandler(context=self._credentials.tls()))
            except OSError as error:  # ssl errors are OSErrors
                reason = "it is not PEM" if isinstance(error, ssl.SSLError) else error.strerror
                raise UsageError(
                    f"The file {self._ca} of certificates to trust cannot be used: {reason}."
                    " Correct --ca or STREAMBROKER_CA."
                ) from error
        return handlers

    @cached_property
    def _credentials(self) -> Credentials:
        from streambroker_operator.kubernetes.client.kubeconfig import Access, Credentials

        return Credentials(
            Access(server=self.url, ca_file=None if self._ca is None else str(self._ca))
        )

    def unavailable_error(self, error: Exception) -> RequestError:
        """Return the error for a broker that does not answer, with a remedy."""
        reason = getattr(error, "reason", error)
        sent = not isinstance(error, urllib.error.URLError) or isinstance(reason, ConnectionError)
        lost = sent and not isinstance(reason, _NOT_SENT_ERRORS)
        text = str(reason) or type(error).__name__
        remedy = "Start one with `streambroker up`, or set STREAMBROKER_URL or --url."
        if isinstance(reason, TimeoutError):
            remedy = "Is it busy or stopped? --request-timeout waits longer."
        tls_hint = self._tls_hint(reason)
        return RequestError(
            0,
            "BrokerUnavailable",
            f"No broker answers at {self.url}: {text}. {tls_hint or remedy}",
            facts={"lost": lost, "reason": text, "tls": tls_hint},
        )

    def _tls_hint(self, reason: object) -> str:
        """Return a remedy if TLS is the probable cause; else empty."""
        scheme, _, rest = self.url.partition("://")
        if isinstance(reason, ssl.SSLCertVerificationError):
            if reason.verify_code in _HOSTNAME_MISMATCH:
                return "Its certificate is for another name: use one of the names in it."
            return (
                "Its certificate is not signed by a trusted CA: give the CA's file with --ca or"
                " STREAMBROKER_CA."
            )
        if isinstance(reason, ssl.SSLError):
            return f"If it does not use TLS, use http://{rest}."
        # A TLS port closes an HTTP connection, without a response or after a TLS alert.
        if scheme == "http" and isinstance(
            reason, ConnectionResetError | http.client.BadStatusLine
        ):
            return f"If it uses TLS, use https://{rest}."
        return ""

    def items(self, path: str, **query: str) -> list[dict[str, Any]]:
        """Return all items of a list, page by page, from one snapshot.

        Raises:
            RequestError: the broker refuses, cannot be reached, or the snapshot expires each time.
        """
        for remaining_tries in reversed(range(LIST_TRIES)):
            try:
                return self._fetch_pages(path, query)
            except RequestError as error:
                if error.code != "ListExpired" or not remaining_tries:
                    raise
        raise AssertionError("the last try returns or raises")

    def _fetch_pages(self, path: str, query: dict[str, str]) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = []
        continuation: dict[str, str] = {}
        while True:
            answer = self.call("GET", path, **{**query, "limit": str(PAGE_SIZE), **continuation})
            items += answer["items"]
            if not answer.get("continue"):
                return items
            continuation = {"continue": str(answer["continue"])}


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: the token must be sent to the broker only."""

    def redirect_request(self, *_args: object, **_more: object) -> None:
        """Refuse."""


def _read_all(answer: Any) -> bytes:
    try:
        return bytes(answer.read())
    except (OSError, http.client.HTTPException) as error:
        reason = str(error) or type(error).__name__
        raise RequestError(
            0,
            "BrokerUnavailable",
            f"The broker's answer was cut off: {reason}. Try again.",
            facts={"lost": True, "reason": reason},
        ) from error


def _parse_error(error: urllib.error.HTTPError, url: str) -> RequestError:
    with error:
        try:
            body: object = json.loads(error.read())
        except (OSError, http.client.HTTPException, ValueError):
            body = None
    if not isinstance(body, Mapping) or not isinstance(body.get("code"), str):
        return RequestError(
            error.code, f"Http{error.code}", f"The server at {url} is not a broker ({error.code})."
        )
    problem = problems.decode(body, status=error.code)
    facts = dict(problem.facts)
    retry_after = error.headers.get("Retry-After", "")
    if retry_after.isascii() and retry_after.isdigit():
        facts["retryAfter"] = int(retry_after)
    return RequestError(problem.status, problem.code, problem.detail, facts=facts)
