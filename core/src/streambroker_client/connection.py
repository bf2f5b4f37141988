"""HTTP for a broker's REST interface: retries, pages, and what to do about a failure."""

from __future__ import annotations

import http.client
import json
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from streambroker_client.errors import BrokerError, BrokerUnavailableError, broker_error
from streambroker_client.tls_remedy import tls_remedy
from streambroker_core.wire.broker import problem as problems
from streambroker_core.wire.broker.paths import API
from streambroker_core.wire.encoding.status import Status

PAGE_SIZE = 500
"""Items per page."""
MAX_RETRY_S = 60.0
"""How long a rate-limited call (429) is retried, in seconds."""
LIST_TRIES = 3
REQUEST_ID = "Request-Id"

_NOT_SENT_ERRORS = (ConnectionRefusedError, ValueError, http.client.InvalidURL)


_S = TypeVar("_S", bound=Status)


class SettingNames(NamedTuple):
    """How a caller sets address, trust and timeout; errors name these."""

    url: str = "`broker`"
    ca: str = "`BrokerAuth.ca`"
    timeout: str = "`timeout`"


_NAMES = SettingNames()


class Connection:
    """Requests to one broker; each has a TCP connection of its own.

    Args:
        url: such as ``http://127.0.0.1:8470``.
        token: returns the bearer token to send, None for none.
        tls: returns the TLS context for the next connection.
        timeout_s: how long the broker may be silent, in seconds.
        names: names of these settings, for errors.
    """

    def __init__(
        self,
        url: str,
        token: Callable[[], str | None] = lambda: None,
        tls: Callable[[], ssl.SSLContext] = ssl.create_default_context,
        timeout_s: float = 30.0,
        names: SettingNames = _NAMES,
    ) -> None:
        self.url = url.rstrip("/")
        self._token = token
        self._tls = tls
        self._timeout_s = timeout_s
        self._names = names
        problem = ""
        if not self.url.startswith(("http://", "https://")):
            problem = "is not an http:// address"
        elif urllib.parse.urlsplit(self.url)[2:] != ("", "", ""):
            problem = "has more than host and port"
        if problem:
            raise broker_error(
                0, "UrlInvalid", f"{url!r} {problem}; write {names.url} http://host:port."
            )

    def call(self, method: str, path: str, body: object = None, **query: str) -> Any:
        """Return the JSON of the response; None without a body. Waits and retries on 429.

        Raises:
            BrokerError: the broker refuses or cannot be reached (status 0).
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
            BrokerError: see `call`. If the response is lost twice, it is unknown whether the
                change was made, and the error states it.
        """
        headers = {REQUEST_ID: request_id or uuid.uuid4().hex}
        if match:
            headers["If-Match"] = match
        try:
            return self._call_with_retry(method, path, body, headers, query)
        except BrokerUnavailableError as error:
            if not error.sent:
                raise
        try:
            return self._call_with_retry(method, path, body, headers, query)
        except BrokerUnavailableError as error:
            if error.busy:
                raise
            raise BrokerUnavailableError(
                f"The broker at {self.url} received the request and did not answer:"
                f" {error.problem.get('reason', error)}. It is not known whether the change was"
                f" made; check with `streambroker get`. {error.problem.get('tls', '')}".rstrip(),
                sent=True,
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
            except BrokerUnavailableError as error:
                pause = float(error.problem.get("retryAfter", 1.0))
                if not error.busy or time.monotonic() + pause > deadline:
                    raise
                time.sleep(pause)
            except ValueError as error:
                raise broker_error(
                    200, "Http200", f"The server at {self.url} is not a broker: {error}."
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
            BrokerError: the broker refuses or cannot be reached (status 0).
            StreambrokerError: token or certificates cannot be used.
        """
        request_headers = {"Content-Type": "application/json", **(headers or {})}
        if last:
            request_headers["Last-Event-ID"] = last
        token = self._token()
        if token is not None:
            request_headers["Authorization"] = f"Bearer {token}"
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
            raise self._unavailable_error(error) from error

    def _handlers(self) -> list[urllib.request.BaseHandler]:
        """Return the handlers: no proxy, no redirects, and the current CA file."""
        handlers: list[urllib.request.BaseHandler] = [
            urllib.request.ProxyHandler({}),
            _NoRedirect(),
        ]
        if self.url.startswith("https://"):
            handlers.append(urllib.request.HTTPSHandler(context=self._tls()))
        return handlers

    def _unavailable_error(self, error: Exception) -> BrokerUnavailableError:
        """Return the error for a broker that does not answer, with a remedy."""
        reason = getattr(error, "reason", error)
        sent = not isinstance(error, urllib.error.URLError) or isinstance(reason, ConnectionError)
        lost = sent and not isinstance(reason, _NOT_SENT_ERRORS)
        text = str(reason) or type(error).__name__
        remedy = (
            "Start it with `streambroker up`, with the same --db as before, or set STREAMBROKER_URL"
            f" or {self._names.url}."
        )
        if isinstance(reason, TimeoutError):
            remedy = f"Is it busy or stopped? {self._names.timeout} waits longer."
        tls_hint = tls_remedy(reason, self.url, self._names.ca)
        return BrokerUnavailableError(
            f"No broker answers at {self.url}: {text}. {tls_hint or remedy}",
            sent=lost,
            problem={"reason": text, "tls": tls_hint},
        )

    def items(self, path: str, **query: str) -> list[dict[str, Any]]:
        """Return all items of a list, page by page, from one snapshot.

        Raises:
            BrokerError: the broker refuses, cannot be reached, or the snapshot expires each time.
        """
        for remaining_tries in reversed(range(LIST_TRIES)):
            try:
                return self._fetch_pages(path, query)
            except BrokerError as error:
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

    # ---- typed answers -------------------------------------------------------------------------

    def get(
        self, form: type[_S], path: str, namespace: str, body: object = None, **query: str
    ) -> _S:
        """Return an answer; a question with a body is a POST that changes nothing.

        Raises:
            BrokerError: see `call`; the answer has another form.
        """
        method = "GET" if body is None else "POST"
        return self._read(form, self.call(method, path, body, namespace=namespace, **query))

    def all(self, form: type[_S], path: str, namespace: str) -> list[_S]:
        """Return all items of a list; see `items`."""
        return [self._read(form, item) for item in self.items(path, namespace=namespace)]

    def made(
        self,
        form: type[_S],
        method: str,
        path: str,
        namespace: str,
        body: object = None,
        **query: str,
    ) -> _S:
        """Make a change and return its answer, of an empty one if only it was confirmed."""
        answer = self.change(method, path, body, namespace=namespace, **query)
        return self._read(form, answer or {})

    def _read(self, form: type[_S], answer: Any) -> _S:
        try:
            return form.from_json(answer)
        except (LookupError, TypeError, AttributeError) as error:
            raise broker_error(
                200,
                "Http200",
                f"The server at {self.url} is not a broker, or of another release: its answer has"
                f" no {error}.",
            ) from error


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: the token must be sent to the broker only."""

    def redirect_request(self, *_args: object, **_more: object) -> None:
        """Refuse."""


def _read_all(answer: Any) -> bytes:
    try:
        return bytes(answer.read())
    except (OSError, http.client.HTTPException) as error:
        reason = str(error) or type(error).__name__
        raise BrokerUnavailableError(
            f"The broker's answer was cut off: {reason}. Try again.",
            sent=True,
            problem={"reason": reason},
        ) from error


def _parse_error(error: urllib.error.HTTPError, url: str) -> BrokerError:
    with error:
        try:
            body: object = json.loads(error.read())
        except (OSError, http.client.HTTPException, ValueError):
            body = None
    if not isinstance(body, Mapping) or not isinstance(body.get("code"), str):
        return broker_error(
            error.code, f"Http{error.code}", f"The server at {url} is not a broker ({error.code})."
        )
    problem = problems.decode(body, status=error.code)
    facts = dict(problem.facts)
    retry_after = error.headers.get("Retry-After", "")
    if retry_after.isascii() and retry_after.isdigit():
        facts["retryAfter"] = int(retry_after)
    return broker_error(problem.status, problem.code, problem.detail, **facts)
