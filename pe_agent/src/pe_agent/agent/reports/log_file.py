"""Rotation of the agent's log file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

LOG_NAME = "agent.log"
MAX_BYTES = 10 << 20
STANDARD_STREAMS = (1, 2)
"""Output and errors of the process, including those of native libraries."""


class ProcessLog:
    """``agent.log`` of a data directory, rotated at ``max_bytes``; one previous file is kept.

    It does nothing if the agent's output goes elsewhere, as in a container.
    """

    def __init__(
        self,
        home: Path,
        *,
        max_bytes: int = MAX_BYTES,
        descriptors: Sequence[int] = STANDARD_STREAMS,
    ) -> None:
        self._path = home / LOG_NAME
        self._max_bytes = max_bytes
        self._descriptors = descriptors

    def rotate_if_full(self) -> None:
        """Start a new file if the current one is full.

        Raises:
            OSError: not possible; the process continues with the full file.
        """
        written = [fd for fd in self._descriptors if self._is_written(fd)]
        if not written or os.fstat(written[0]).st_size < self._max_bytes:
            return
        self._path.replace(self._path.with_name(f"{LOG_NAME}.1"))
        fresh = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        for fd in written:
            os.dup2(fresh, fd)
        os.close(fresh)

    def _is_written(self, fd: int) -> bool:
        try:
            return os.path.samestat(os.fstat(fd), self._path.stat())
        except OSError:
            return False
