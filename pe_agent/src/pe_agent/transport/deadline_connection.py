"""A connection whose answers end in time, however slowly they come."""

from __future__ import annotations

import io
import socket
import ssl
import time
from typing import IO, Any


class DeadlineSocket:
    """A socket, as `http.client` uses one, with one time limit for all that is done with it.

    A socket's own timeout is for each piece: an answer that comes drop by drop never ends.

    Args:
        plain: the socket.
        deadline: when all has to be done (monotonic); may be set anew for the next exchange.
    """

    def __init__(self, plain: socket.socket, deadline: float) -> None:
        self._plain = plain
        self.deadline = deadline

    @property
    def is_expired(self) -> bool:
        """Whether time is up."""
        return time.monotonic() >= self.deadline

    def apply_deadline(self) -> None:
        """Let what is done next take no longer than there is time.

        Raises:
            TimeoutError: there is none.
        """
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the answer did not end")
        self._plain.settimeout(left)

    def shake_hands(self) -> None:
        """Agree on the encryption, where there is one."""
        if isinstance(self._plain, ssl.SSLSocket):
            self.apply_deadline()
            self._plain.do_handshake()

    def sendall(self, data: bytes) -> None:
        """Send everything."""
        rest = memoryview(data)
        while rest:
            self.apply_deadline()
            rest = rest[self._plain.send(rest) :]

    def makefile(self, *_: Any) -> IO[bytes]:
        """Return a reader; the socket is closed once both are."""
        return io.BufferedReader(_Reader(self, self._plain.makefile("rb", buffering=0)))

    def close(self) -> None:
        """Close the socket, or have its reader do so."""
        self._plain.close()


class _Reader(io.RawIOBase):
    def __init__(self, deadline_socket: DeadlineSocket, plain: io.RawIOBase) -> None:
        self._deadline_socket = deadline_socket
        self._plain = plain

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._deadline_socket.apply_deadline()
        return self._plain.readinto(buffer)

    def close(self) -> None:
        self._plain.close()
        super().close()
