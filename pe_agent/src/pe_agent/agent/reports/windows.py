"""Windows of pattern operators, on their way from Spark's tasks to the program, in memory.

A classic session brings them with the ends of its tasks. With Spark Connect the program has no such
channel, and asks the agent.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from streambroker_core.wire.agent_rpc.job import ReportedWindows, WindowsReport, WindowsReported

MAX_WINDOWS = 10_000
"""Maximum of one operator; older ones are dropped."""
MAX_OPERATORS = 1_000
"""The operator whose first report is the oldest is dropped."""


@dataclass(slots=True)
class _Windows:
    end: int = 0
    kept: deque[Any] = field(default_factory=lambda: deque(maxlen=MAX_WINDOWS))


class WindowReports:
    """Keeps the reported windows of each operator; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._operators: dict[str, _Windows] = {}

    def record(self, request: WindowsReport) -> None:
        """Keep windows until the program asks for later ones."""
        with self._lock:
            for operator, windows in request.operators.items():
                found = self._operators.setdefault(operator, _Windows())
                found.kept.extend(windows)
                found.end += len(windows)
            while len(self._operators) > MAX_OPERATORS:
                del self._operators[next(iter(self._operators))]

    def windows(self, request: WindowsReported) -> ReportedWindows:
        """Return the kept windows from a number on, and drop those before it."""
        with self._lock:
            found = self._operators.get(request.operator, _Windows())
            while found.kept and found.end - len(found.kept) < request.first:
                found.kept.popleft()
            return ReportedWindows(next_=found.end, windows=list(found.kept))
