"""HTTP client of the broker, for the agent and the job's program; standard library only."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

from pe_agent.transport.broker_trust import BrokerTrust, TrustError
from pe_agent.transport.deadline_connection import DeadlineSocket
from pe_agent.transport.tokens import Token
from streambroker_client.errors import BrokerUnavailableError, refusal_error
from streambroker_client.tls_remedy import tls_remedy

MAX_ANSWER = 64 << 20
"""Maximum bytes of a response."""

Sign = Callable[[str, str, bytes], str | None]
_RequestParts = tuple[str, str, "bytes | None", dict[str, str]]
_MIN_TIMEOUT_S = 0.001

_PORTS = {"http": 80, "https": 443}


class BrokerAnswer(NamedTuple):
    """Status, headers (lower case) and JSON body of a response."""

    status: int
    headers: dict[str, str]
    body: Any


class _Connection(http.client.HTTPConnection):
    auto_open = 0

    def __init__(self, host: str, port: int, seconds: float) -> None:
        super().__init__(host, port, timeout=seconds)
        self._deadline = time.monotonic() + seconds
        self._deadline_socket: DeadlineSocket | None = None

    def open(self, wrap: Callable[[socket.socket], socket.socket]) -> None:
        """Connect, with the TLS handshake if required."""
        self.connect()
        self._deadline_socket = DeadlineSocket(wrap(self.sock), self._deadline)
        self.sock = self._deadline_socket
        self._deadline_socket.shake_hands()

    def reset_deadline(self, seconds: float) -> None:
        """Set the time limit of the next exchange, in seconds."""
        if self._deadline_socket is not None:
            self._deadline_socket.deadline = time.monotonic() + seconds

    @property
    def is_expired(self) -> bool:
        """Whether it was connected and its deadline has passed."""
        return self._deadline_socket is not None and self._deadline_socket.is_expired

    def exchange(
        self, method: str, target: str, data: bytes | None, sent: dict[str, str]
    ) -> tuple[http.client.HTTPResponse, bytes]:
        self.request(method, target, body=data, headers=sent)
        with self.getresponse() as response:
            text = response.read(MAX_ANSWER)
            if response.read(1):
                raise TimeoutError("the answer is too long")
        return response, text


class BrokerClient:
    """Requests about one PE.

    Args:
        url: base address of the broker, ``http://host:port`` or ``https://host:port``.
        namespace: namespace of the PE.
        token: None for no token.
        trust: None for the system's CAs.
        sign: returns the ``Authorization`` header of a request (method, target, body); None to
            send the token.
    """

    def __init__(
        self,
        url: str,
        namespace: str,
        token: Token | None = None,
        trust: BrokerTrust | None = None,
        sign: Sign = lambda *_: None,
    ) -> None:
        parts = urlsplit(url)
        try:
            port = parts.port or _PORTS.get(parts.scheme, 0)
        except ValueError:
            port = 0
        if parts.scheme not in _PORTS or not parts.hostname or not port:
            raise BrokerUnavailableError(
                f"the broker's address {url!r} is not http://host:port or https://host:port;"
                " correct `broker=`."
            )
        self.url = url.rstrip("/")
        self.namespace = namespace
        self._host, self._port = parts.hostname, port
        self._token = token or Token()
        self._sign = sign
        self._trust = (trust or BrokerTrust()) if parts.scheme == "https" else None
        self._lock = threading.Lock()
        self._idle_connection: _Connection | None = None

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: dict[str, str] | None = None,
        timeout: float = 5.0,
        query: dict[str, str] | None = None,
        keep_alive: bool = False,
    ) -> BrokerAnswer:
        """Perform one request to a path below ``/api/subscriptions``.

        The whole response must arrive within ``timeout`` seconds. With ``keep_alive`` such requests
        share a connection until `close_idle`; only for requests that may be repeated.

        Raises:
            BrokerUnavailableError: no complete response in time, 503 or 429.
            BrokerRefusedError: any other status from 400 on.
        """
        target = f"/api/subscriptions{path}?" + urlencode(
            {"namespace": self.namespace, **(query or {})}
        )
        data = None if body is None else json.dumps(body).encode()

        def asked() -> _RequestParts:
            # Each attempt needs a new signature: the broker accepts a signature once.
            sent = {"Accept": "application/json", **(headers or {})}
            if data is not None:
                sent["Content-Type"] = "application/json"
            authorization = self._sign(method, target, data or b"") or self._bearer()
            if authorization is not None:
                sent["Authorization"] = authorization
            return method, target, data, sent

        return self._answer(*self._exchange(timeout, asked, keep_alive=keep_alive))

    def _exchange(
        self, timeout: float, build_request: Callable[[], _RequestParts], *, keep_alive: bool
    ) -> tuple[http.client.HTTPResponse, bytes]:
        until = time.monotonic() + timeout
        result = None
        connection = self._take_idle() if keep_alive else None
        if connection is not None:
            result = self._exchange_on_idle(connection, timeout, build_request())
        if connection is None or result is None:
            left = max(_MIN_TIMEOUT_S, until - time.monotonic())
            connection = _Connection(self._host, self._port, left)
            result = self._exchange_on_new(connection, build_request())
        if keep_alive and not result[0].will_close:
            self._put_idle(connection)
        else:
            connection.close()
        return result

    def _exchange_on_idle(
        self, connection: _Connection, timeout: float, request: _RequestParts
    ) -> tuple[http.client.HTTPResponse, bytes] | None:
        """Send the request over the idle connection; None if that is not usable any more."""
        connection.reset_deadline(timeout)
        try:
            return connection.exchange(*request)
        except (OSError, ValueError, http.client.HTTPException) as error:
            connection.close()
            if connection.is_expired:
                raise self._unavailable_error(error, "", sent=True) from error
            # The broker closed it, for instance at its shutdown. Such requests may be repeated.
            return None

    def _exchange_on_new(
        self, connection: _Connection, request: _RequestParts
    ) -> tuple[http.client.HTTPResponse, bytes]:
        reached = False
        try:
            connection.open(self._wrap_socket)
            reached = True
            return connection.exchange(*request)
        except (OSError, ValueError, http.client.HTTPException) as error:
            connection.close()
            begun = connection.is_expired or (reached and self._trust is not None)
            remedy = "" if begun else tls_remedy(error, self.url, "`BrokerAuth.ca`")
            raise self._unavailable_error(error, remedy, sent=reached) from error

    def _unavailable_error(
        self, error: Exception, remedy: str, *, sent: bool
    ) -> BrokerUnavailableError:
        return BrokerUnavailableError(
            f"the broker at {self.url} does not answer ({type(error).__name__}: {error})."
            f" Routes stay as they are. {remedy or 'Try again when it is back.'}",
            sent=sent,
        )

    def _wrap_socket(self, plain: socket.socket) -> socket.socket:
        """Return the socket to use; the TLS handshake is still to be done."""
        if self._trust is None:
            return plain
        try:
            context = self._trust.context()
        except TrustError as error:
            plain.close()
            raise BrokerUnavailableError(str(error)) from error
        return context.wrap_socket(plain, server_hostname=self._host, do_handshake_on_connect=False)

    # ---- idle connection ---------------------------------------------------

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the broker."""
        return self._host, self._port

    @property
    def has_idle_connection(self) -> bool:
        """Whether an idle connection is kept."""
        return self._idle_connection is not None

    def close_idle(self) -> None:
        """Close the idle connection, if any."""
        idle = self._take_idle()
        if idle is not None:
            idle.close()

    def _take_idle(self) -> _Connection | None:
        with self._lock:
            idle, self._idle_connection = self._idle_connection, None
        return idle

    def _put_idle(self, connection: _Connection) -> None:
        with self._lock:
            previous, self._idle_connection = self._idle_connection, connection
        if previous is not None:
            previous.close()

    def _bearer(self) -> str | None:
        token = self._token.current()
        return None if token is None else f"Bearer {token}"

    def _answer(self, response: http.client.HTTPResponse, text: bytes) -> BrokerAnswer:
        try:
            parsed = json.loads(text) if text else None
        except (ValueError, RecursionError):  # RecursionError: nested too deeply
            parsed = {"title": text[:200].decode(errors="replace")}
        if response.status in (429, 503):
            detail = parsed.get("detail") if isinstance(parsed, dict) else None
            raise BrokerUnavailableError(
                f"the broker at {self.url} requests a pause: {detail or parsed}",
                busy=response.status == 429,
            )
        if response.status >= 400:
            refusal = refusal_error(response.status, parsed if isinstance(parsed, dict) else {})
            refusal.challenge = response.getheader("WWW-Authenticate", "")
            raise refusal
        headers = {k.lower(): v for k, v in response.getheaders()}
        return BrokerAnswer(response.status, headers, parsed)


def pe_path(job: str, pe: int) -> str:
    """Return the path of a PE."""
    return f"/job/{quote(job, safe='')}/pe/{pe}"


def __getattr__(name: str) -> Any:
    """Return an error that was defined here before, with a warning."""
    from streambroker_core.deprecation import deprecated_name

    moved = ("BrokerRefusedError", "ChangeRefusedError", "UnknownPortError", "WrongKindError")
    modules = dict.fromkeys(moved, "streambroker_client.errors")
    return deprecated_name(__name__, name, modules, "streambroker.errors")
