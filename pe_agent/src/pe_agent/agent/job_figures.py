"""What the queries of the job tell of their rules: figures of the moment, in memory, for people."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from streambroker_core.wire.fields import Fields

LIVE_SECONDS = 60.0
"""A query that is silent for longer is taken to have gone."""
MOST_RULES = 1_000
"""Of one operator."""
COUNTS = ("tested", "matches", "timeouts", "dropped", "errors", "alive", "nanoseconds")
_LARGEST = (1 << 63) - 1


@dataclass(slots=True)
class _Operator:
    """What one operator told, and when (monotonic)."""

    at: float
    rules: list[dict[str, Any]] = field(default_factory=list)


class JobFigures:
    """Keeps the last figures of each operator with rules; safe to call from any thread.

    Args:
        clock: a monotonic clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._told: dict[tuple[str, str], _Operator] = {}

    def take(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Take the figures of all rules of an operator; none for one that has ended.

        Args:
            body: ``operator``, ``log`` (of its sets of rules) and ``rules``: of each ``rule``,
                ``version`` and the numbers in `COUNTS`, since the query was started.

        Raises:
            ManifestError: a field is wrong.
        """
        given = Fields(body)
        name = given.text("operator"), given.text("log")
        rules = [
            _read(given.entry("rules", number, one))
            for number, one in enumerate(given.items("rules", most=MOST_RULES))
        ]
        with self._lock:
            if rules:
                self._told[name] = _Operator(self._clock(), rules)
            else:
                self._told.pop(name, None)
        return {}

    def status(self) -> list[dict[str, Any]]:
        """Return the figures of each rule; ``age`` is the seconds since they came."""
        with self._lock:
            now = self._clock()
            self._told = {n: one for n, one in self._told.items() if now - one.at <= LIVE_SECONDS}
            return [
                {"operator": operator, "log": log, "age": round(now - one.at, 1), **rule}
                for (operator, log), one in sorted(self._told.items())
                for rule in one.rules
            ]


def _read(given: Fields) -> dict[str, Any]:
    return {
        "rule": given.text("rule", longest=1_024),
        "version": given.integer("version", high=_LARGEST),
        **{name: given.integer(name, 0, high=_LARGEST) for name in COUNTS},
    }
