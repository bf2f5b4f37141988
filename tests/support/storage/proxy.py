"""A proxy in front of an S3 server, which counts requests and makes some of them fail.

It passes the Host header on, so that the client's signature stays valid.
"""

from __future__ import annotations

import contextlib
import http.client
import http.server
import re
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple
from urllib.parse import unquote, urlsplit

Fault = Literal["slow", "500", "503", "cut", "lost", "stale"]
FAULTS: dict[Fault, str] = {
    "slow": "each answer is late, and its body comes in small pieces",
    "500": "InternalError",
    "503": "SlowDown",
    "cut": "the connection ends in the middle of a body, of the request or of the answer",
    "lost": "the connection ends after a write succeeded, before its answer",
    "stale": "lists are those from before the fault",
}
CODES = {"500": "InternalError", "503": "SlowDown"}
DELAY_SECONDS = 3.0
PIECES = 10
_HOP = {"connection", "transfer-encoding", "content-length", "keep-alive"}


class Request(NamedTuple):
    """What a client sent.

    Attributes:
        kind: PUT, GET, HEAD, LIST or DELETE; the last also for many objects.
        target: path and query.
        headers: in their order.
        body: complete.
    """

    kind: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes


class Answer(NamedTuple):
    """What the server answered."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


class S3Proxy(http.server.ThreadingHTTPServer):
    """The proxy; use `proxy`.

    Attributes:
        requests: number of requests by kind.
        sent: bytes of their bodies, by kind.
        hits: number of requests that met a fault.
    """

    daemon_threads = True

    def __init__(self, server: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.server_at = urlsplit(server).netloc
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.requests: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        self.hits = 0
        self.ended = threading.Event()
        """Set while there is no fault; slow answers wait for it."""
        self.ended.set()
        self._lock = threading.Lock()
        self._fault: Fault | None = None
        self._applies: Callable[[Request], bool] = lambda _: True
        self._lists: dict[str, Answer] = {}
        self._put_since: set[str] = set()

    def begin(self, fault: Fault, applies: Callable[[Request], bool] = lambda _: True) -> None:
        """Have requests meet a fault from now on."""
        with self._lock:
            self._fault, self._applies, self.hits = fault, applies, 0
            self._put_since.clear()
            self.ended.clear()

    def end(self) -> None:
        """Have no request meet a fault any more."""
        with self._lock:
            self._fault = None
            self.ended.set()

    def take(self, request: Request) -> Fault | None:
        """Count a request; return the fault that it meets."""
        with self._lock:
            self.requests[request.kind] += 1
            self.sent[request.kind] += len(request.body)
            fault = self._fault
            if fault is None or not self._applies(request) or not _concerns(fault, request.kind):
                return None
            self.hits += 1
            return fault

    def note(self, request: Request, answer: Answer) -> None:
        """Remember what a list answers, and what was put."""
        with self._lock:
            if request.kind == "LIST" and self._fault != "stale":
                self._lists[request.target] = answer
            elif request.kind == "PUT":
                self._put_since.add(unquote(urlsplit(request.target).path))

    def old_list(self, request: Request, now: Answer) -> Answer:
        """Return what a list answered before the fault; without that, leave out newer objects."""
        with self._lock:
            if request.target in self._lists:
                return self._lists[request.target]
            new = {path.split("/", 2)[2] for path in self._put_since}

        def keep(found: re.Match[bytes]) -> bytes:
            return b"" if found[1].decode() in new else found[0]

        pattern = rb"<Contents>(?:(?!</Contents>).)*<Key>([^<]*)</Key>.*?</Contents>"
        return now._replace(body=re.sub(pattern, keep, now.body, flags=re.DOTALL))

    def forward(self, request: Request, method: str) -> Answer:
        """Have the server do a request."""
        connection = self._send(request, method, request.body)
        with contextlib.closing(connection):
            found = connection.getresponse()
            headers = [(k, v) for k, v in found.getheaders() if k.lower() not in _HOP]
            return Answer(found.status, headers, found.read())

    def forward_half(self, request: Request, method: str) -> None:
        """Send the server half a body, and end the connection."""
        self._send(request, method, request.body[: len(request.body) // 2]).close()

    def _send(self, request: Request, method: str, body: bytes) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(self.server_at, timeout=60)
        connection.putrequest(method, request.target, skip_host=True, skip_accept_encoding=True)
        for name, value in request.headers:
            connection.putheader(name, value)
        connection.endheaders(body)
        return connection

    def handle_error(self, *_: object) -> None:
        """Ignore clients that were killed."""


def _concerns(fault: Fault, kind: str) -> bool:
    if fault == "stale":
        return kind == "LIST"
    return fault != "lost" or kind in ("PUT", "DELETE")


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: S3Proxy

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        request = Request(self._kind(), self.path, self.headers.items(), body)
        fault = self.server.take(request)
        if fault in CODES:
            text = f"<Error><Code>{CODES[fault]}</Code><Message>a fault</Message></Error>"
            self._answer(Answer(int(fault), [("Content-Type", "application/xml")], text.encode()))
        elif fault == "cut" and body:
            self.server.forward_half(request, self.command)
            self._cut()
        else:
            self._pass(request, fault)

    do_PUT = do_POST = do_DELETE = do_HEAD = do_GET  # noqa: N815 - names of the base class

    def _pass(self, request: Request, fault: Fault | None) -> None:
        if fault == "slow":
            self.server.ended.wait(DELAY_SECONDS)
        answer = self.server.forward(request, self.command)
        self.server.note(request, answer)
        if fault == "lost":
            self._cut()
            return
        if fault == "stale":
            answer = self.server.old_list(request, answer)
        self._answer(answer, fault)

    def _kind(self) -> str:
        query = urlsplit(self.path).query
        if self.command == "GET" and "list-type=" in query:
            return "LIST"
        return "DELETE" if self.command == "POST" and "delete" in query else self.command

    def _answer(self, answer: Answer, fault: Fault | None = None) -> None:
        self.send_response_only(answer.status)
        length = len(answer.body)
        for name, value in answer.headers:
            self.send_header(name, value)
        if answer.status not in (204, 304):
            self.send_header("Content-Length", str(length))
        self.end_headers()
        if fault == "cut":
            self.wfile.write(answer.body[: length // 2])
            self._cut()
        elif fault == "slow":
            step = max(1, length // PIECES)
            for first in range(0, length, step):
                self.wfile.write(answer.body[first : first + step])
                self.server.ended.wait(DELAY_SECONDS / PIECES)
        else:
            self.wfile.write(answer.body)

    def _cut(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, *_: object) -> None:
        """Write nothing."""


@contextlib.contextmanager
def proxy(server: str) -> Iterator[S3Proxy]:
    """Run a proxy in front of the server at a URL."""
    made = S3Proxy(server)
    thread = threading.Thread(target=made.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield made
    finally:
        made.end()
        made.shutdown()
        thread.join()
        made.server_close()
