"""What the queries of the job tell of their rules: figures of the moment, in memory, for people."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from streambroker_core.wire.encoding.fields import Fields
from streambroker_core.wire.reports.rule_metrics import (
    MAX_REPORTED_RULES,
    RuleMetricsReport,
    WatermarkWait,
    read_metrics,
    read_watermark_wait,
    write_metrics,
)

MAX_AGE_SECONDS = 60.0
"""A query that is silent for longer is taken to have gone."""


@dataclass(slots=True)
class _OperatorReport:
    """What one operator told, and when (monotonic)."""

    at: float
    rules: list[RuleMetricsReport]
    waiting: WatermarkWait | None


class RuleMetricsStore:
    """Keeps the last figures of each operator with rules; safe to call from any thread.

    Args:
        clock: a monotonic clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._reports: dict[tuple[str, str], _OperatorReport] = {}

    def record(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Take the figures of all rules of an operator; none for one that has ended.

        Args:
            body: ``operator``, ``log`` (of its sets of rules), ``rules`` as ``read_metrics`` reads
                each of them, and ``waiting`` as ``read_watermark_wait`` does.

        Raises:
            ManifestError: a field is wrong.
        """
        given = Fields(body)
        name = given.text("operator"), given.text("log")
        rules = [
            read_metrics(given.entry("rules", number, one), *name)
            for number, one in enumerate(given.items("rules", max_items=MAX_REPORTED_RULES))
        ]
        waiting = (
            read_watermark_wait(given.child("waiting"), *name) if given.has("waiting") else None
        )
        with self._lock:
            if rules:
                self._reports[name] = _OperatorReport(self._clock(), rules, waiting)
            else:
                self._reports.pop(name, None)
        return {}

    def status(self) -> list[dict[str, Any]]:
        """Return the figures of each rule; ``format_age`` is the seconds since they came."""
        return [
            {"age": age, **write_metrics(each)}
            for age, one in self._current_reports()
            for each in one.rules
        ]

    def waiting(self) -> list[dict[str, Any]]:
        """Return what each operator waits for; ``format_age`` as of `status`."""
        return [
            {"age": age, **write_metrics(one.waiting)}
            for age, one in self._current_reports()
            if one.waiting is not None
        ]

    def _current_reports(self) -> list[tuple[float, _OperatorReport]]:
        """Return operators whose figures are not too old, and how old they are."""
        with self._lock:
            now = self._clock()
            self._reports = {
                n: one for n, one in self._reports.items() if now - one.at <= MAX_AGE_SECONDS
            }
            return [(round(now - one.at, 1), one) for _, one in sorted(self._reports.items())]
