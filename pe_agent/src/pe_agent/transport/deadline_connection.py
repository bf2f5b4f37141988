"""Socket with a deadline for the whole exchange."""

from __future__ import annotations

import io
import socket
import ssl
import time
from typing import IO, Any


class DeadlineSocket:
    """A socket for `http.client` with one monotonic ``deadline``, which may be reset.

    A socket's own timeout applies to each operation, so a slow response could last forever.
    """

    def __init__(self, plain: socket.socket, deadline: float) -> None:
        self._plain = plain
        self.deadline = deadline

    @property
    def is_expired(self) -> bool:
        """Whether the deadline has passed."""
        return time.monotonic() >= self.deadline

    def apply_deadline(self) -> None:
        """Set the timeout of the next operation to the remaining time.

        Raises:
            TimeoutError: the deadline has passed.
        """
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the answer was not complete in time")
        self._plain.settimeout(left)

    def shake_hands(self) -> None:
        """Perform the TLS handshake, if TLS is used."""
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
        """Return a reader; the socket closes after both are closed."""
        return io.BufferedReader(_Reader(self, self._plain.makefile("rb", buffering=0)))

    def close(self) -> None:
        """Close the socket; an open reader delays it."""
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
