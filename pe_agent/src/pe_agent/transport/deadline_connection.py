"""A connection whose answers end in time, however slowly they come."""

from __future__ import annotations

import io
import socket
import ssl
import time
from typing import IO, Any


class Timely:
    """A socket, as `http.client` uses one, with one time limit for all that is done with it.

    A socket's own timeout is for each piece: an answer that comes drop by drop never ends.

    Args:
        plain: the socket.
        until: when all has to be done (monotonic); may be set anew for the next exchange.
    """

    def __init__(self, plain: socket.socket, until: float) -> None:
        self._plain = plain
        self.until = until

    @property
    def late(self) -> bool:
        """Whether time is up."""
        return time.monotonic() >= self.until

    def limit(self) -> None:
        """Let what is done next take no longer than there is time.

        Raises:
            TimeoutError: there is none.
        """
        left = self.until - time.monotonic()
        if left <= 0:
            raise TimeoutError("the answer did not end")
        self._plain.settimeout(left)

    def shake_hands(self) -> None:
        """Agree on the encryption, where there is one."""
        if isinstance(self._plain, ssl.SSLSocket):
            self.limit()
            self._plain.do_handshake()

    def sendall(self, data: bytes) -> None:
        """Send everything."""
        rest = memoryview(data)
        while rest:
            self.limit()
            rest = rest[self._plain.send(rest) :]

    def makefile(self, *_: Any) -> IO[bytes]:
        """Return a reader; the socket is closed once both are."""
        return io.BufferedReader(_Reader(self, self._plain.makefile("rb", buffering=0)))

    def close(self) -> None:
        """Close the socket, or have its reader do so."""
        self._plain.close()


class _Reader(io.RawIOBase):
    def __init__(self, timely: Timely, plain: io.RawIOBase) -> None:
        self._timely = timely
        self._plain = plain

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._timely.limit()
        return self._plain.readinto(buffer)

    def close(self) -> None:
        self._plain.close()
        super().close()
