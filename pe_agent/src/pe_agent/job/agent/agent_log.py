"""Forward the log of an agent to the driver's standard error, where ``kubectl logs`` shows it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import BinaryIO, TextIO

from pe_agent.agent.reports import log_file as own_log

FORWARD_VARIABLE = "STREAMBROKER_AGENT_LOG"
MAX_BYTES = 1 << 20
"""Maximum bytes that are forwarded at once."""


def is_forwarding() -> bool:
    """Return whether lines are forwarded: by default in a pod, or by the environment variable."""
    chosen = os.environ.get(FORWARD_VARIABLE)
    return chosen == "forward" if chosen else "KUBERNETES_SERVICE_HOST" in os.environ


class AgentLogForwarder:
    """Copies complete lines of ``agent.log`` to a stream, by default standard error, with a prefix.

    Only lines that are written after this object was made are copied. When the agent starts a new
    file, the rest of the former one is copied first.
    """

    def __init__(self, home: Path, prefix: str, stream: TextIO | None = None) -> None:
        self._path, self._prefix, self._stream = home / own_log.LOG_NAME, prefix, stream
        self._file: BinaryIO | None = None
        self._partial_line = b""
        if self._open() and self._file is not None:
            self._file.seek(0, os.SEEK_END)

    def copy(self) -> None:
        """Copy the lines written since the last call."""
        self._write(self._read())
        if self._is_replaced() and self._open():
            self._write(self._read())

    def close(self) -> None:
        """Copy the remaining lines and close the file."""
        self.copy()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> bool:
        try:
            opened = self._path.open("rb")
        except OSError:
            return False
        if self._file is not None:
            self._file.close()
        self._file = opened
        return True

    def _is_replaced(self) -> bool:
        if self._file is None:
            return True
        try:
            return not os.path.samestat(os.fstat(self._file.fileno()), self._path.stat())
        except OSError:
            return False

    def _read(self) -> bytes:
        return b"" if self._file is None else self._file.read(MAX_BYTES)

    def _write(self, data: bytes) -> None:
        if not data:
            return
        *lines, self._partial_line = (self._partial_line + data).split(b"\n")
        stream = self._stream or sys.stderr
        for line in lines:
            stream.write(f"{self._prefix}{line.decode(errors='replace')}\n")
        stream.flush()
