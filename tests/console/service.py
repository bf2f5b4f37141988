"""A Service of a cluster: one address before several replicas."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType
from urllib.parse import urlsplit

CHUNK = 65_536


class Service:
    """Forwards each TCP connection to the first replica that accepts it.

    Attributes:
        connections: number of connections that each replica received, in the order of `replicas`.
    """

    def __init__(self, *replicas: str) -> None:
        parts = [urlsplit(url) for url in replicas]
        self._addresses = [(str(part.hostname), int(part.port or 0)) for part in parts]
        self.connections = [0 for _ in replicas]
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Service:
        threading.Thread(target=self._accept, daemon=True, name="service").start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Without this a thread that waits in accept() would take one more.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._forward, args=(client,), daemon=True).start()

    def _forward(self, client: socket.socket) -> None:
        with client:
            replica = self._connect()
            if replica is None:
                return
            with replica:
                back = threading.Thread(target=_copy, args=(replica, client), daemon=True)
                back.start()
                _copy(client, replica)
                back.join()

    def _connect(self) -> socket.socket | None:
        for number, address in enumerate(self._addresses):
            with suppress(OSError):
                replica = socket.create_connection(address)
                self.connections[number] += 1
                return replica
        return None


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Copy until one side ends, then end both: a killed replica leaves no half-open connection."""
    with suppress(OSError):
        while piece := source.recv(CHUNK):
            target.sendall(piece)
    for one in (source, target):
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
