"""What the queries of the job tell of their rules: figures of the moment, in memory, for people."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from streambroker_core.wire.encoding.fields import Fields
from streambroker_core.wire.reports.rule_metrics import (
    MOST_RULES,
    ToldFigures,
    ToldWaiting,
    read_figures,
    read_waiting,
    write_figures,
)

LIVE_SECONDS = 60.0
"""A query that is silent for longer is taken to have gone."""


@dataclass(slots=True)
class _Operator:
    """What one operator told, and when (monotonic)."""

    at: float
    rules: list[ToldFigures]
    waiting: ToldWaiting | None


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
            body: ``operator``, ``log`` (of its sets of rules), ``rules`` as ``read_figures`` reads
                each of them, and ``waiting`` as ``read_waiting`` does.

        Raises:
            ManifestError: a field is wrong.
        """
        given = Fields(body)
        name = given.text("operator"), given.text("log")
        rules = [
            read_figures(given.entry("rules", number, one), *name)
            for number, one in enumerate(given.items("rules", most=MOST_RULES))
        ]
        waiting = read_waiting(given.child("waiting"), *name) if given.has("waiting") else None
        with self._lock:
            if rules:
                self._told[name] = _Operator(self._clock(), rules, waiting)
            else:
                self._told.pop(name, None)
        return {}

    def status(self) -> list[dict[str, Any]]:
        """Return the figures of each rule; ``age`` is the seconds since they came."""
        return [
            {"age": age, **write_figures(each)} for age, one in self._live() for each in one.rules
        ]

    def waiting(self) -> list[dict[str, Any]]:
        """Return what each operator waits for; ``age`` as of `status`."""
        return [
            {"age": age, **write_figures(one.waiting)}
            for age, one in self._live()
            if one.waiting is not None
        ]

    def _live(self) -> list[tuple[float, _Operator]]:
        """Return operators whose figures are not too old, and how old they are."""
        with self._lock:
            now = self._clock()
            self._told = {n: one for n, one in self._told.items() if now - one.at <= LIVE_SECONDS}
            return [(round(now - one.at, 1), one) for _, one in sorted(self._told.items())]
