"""A process that stands still: its connections stay open, and nothing is answered."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.processes.waiting import until


def freeze(pid: int) -> None:
    """Let a process stand still; all its threads do, when this returns.

    A stop begins when the thread that has to take the signal runs again; until then the others
    go on and answer.
    """
    os.kill(pid, signal.SIGSTOP)
    until(lambda: _states(pid) == {"T"}, 30, f"process {pid} stands still")


def thaw(pid: int) -> None:
    os.kill(pid, signal.SIGCONT)


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    freeze(pid)
    try:
        yield
    finally:
        thaw(pid)


def _states(pid: int) -> set[str]:
    """Return the states of its threads, as the kernel names them."""
    return {
        path.read_text().rpartition(")")[2].split()[0]
        for path in Path(f"/proc/{pid}/task").glob("*/stat")
    }
