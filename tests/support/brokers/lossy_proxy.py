"""A network that loses answers: a proxy before a broker, over real sockets."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from urllib.parse import urlsplit

MOST = 1 << 20


class Cutter:
    """Forwards each request to the broker, and then loses the answers it is told to lose.

    Attributes:
        cuts: how many answers to changes are lost from now on.
        lost: how many were.
        on_cut: called after the broker has answered, before the connection is cut.
        hung: whether answers are kept back for ever.
    """

    def __init__(self, broker: str) -> None:
        self.cuts, self.lost = 0, 0
        self.on_cut: Callable[[], object] = lambda: None
        self.hung = False
        self.requests: list[bytes] = []
        parts = urlsplit(broker)
        self._broker = (str(parts.hostname), int(parts.port or 0))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._held: list[socket.socket] = []
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True, name="cutter").start()

    def close(self) -> None:
        """Refuse connections from now on."""
        # Without this a thread that stands in accept() would take one more.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for held in self._held:
            held.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client:
            try:
                request = _message(client)
            except OSError:
                return
            self.requests.append(request)
            if self.hung:
                self._held.append(client.dup())
                return
            try:
                answer = self._ask(request)
            except OSError:
                return
            if self.cuts and not request.startswith(b"GET"):
                self.cuts -= 1
                self.lost += 1
                self.on_cut()
                return
            client.sendall(answer)

    def _ask(self, request: bytes) -> bytes:
        with socket.create_connection(self._broker, timeout=10) as broker:
            broker.sendall(request)
            return _message(broker)


def _message(source: socket.socket) -> bytes:
    """Return one HTTP message with the body that its Content-Length says."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = source.recv(MOST)
        if not piece:
            return data
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    lengths = [
        int(line.partition(b":")[2])
        for line in head.split(b"\r\n")
        if line.lower().startswith(b"content-length:")
    ]
    while lengths and len(body) < lengths[0]:
        piece = source.recv(MOST)
        if not piece:
            raise ConnectionError(f"{len(body)} of {lengths[0]} bytes came")
        body += piece
    return head + b"\r\n\r\n" + body
