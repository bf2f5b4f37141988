"""Latest rule metrics from the job's queries, in memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from streambroker_core.wire.agent_rpc.codec import to_json
from streambroker_core.wire.agent_rpc.job import RulesMetrics
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
"""Age from which a query's reports are dropped."""


@dataclass(slots=True)
class _OperatorReport:
    """Last report of one operator, and its receive time (monotonic)."""

    at: float
    rules: list[RuleMetricsReport]
    waiting: WatermarkWait | None
    failed: Sequence[str]


class RuleMetricsStore:
    """Keeps the last report of each operator with rules; thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._reports: dict[tuple[str, str], _OperatorReport] = {}

    def record(self, request: RulesMetrics) -> None:
        """Record the metrics of all rules of an operator; no rules for one that has ended.

        Raises:
            ManifestError: a field is invalid.
        """
        fields = Fields(to_json(request))
        name = fields.text("operator"), fields.text("log")
        entries = fields.entries("rules", max_items=MAX_REPORTED_RULES)
        rules = [read_metrics(entry, *name) for entry in entries]
        waiting = (
            read_watermark_wait(fields.child("waiting"), *name) if fields.has("waiting") else None
        )
        with self._lock:
            if rules:
                self._reports[name] = _OperatorReport(self._clock(), rules, waiting, request.failed)
            else:
                self._reports.pop(name, None)

    def status(self) -> list[dict[str, Any]]:
        """Return the metrics of each rule; ``age`` is the seconds since their report."""
        return [
            {"age": age, **write_metrics(each)}
            for age, one in self._current_reports()
            for each in one.rules
        ]

    def waiting(self) -> list[dict[str, Any]]:
        """Return the watermark wait of each operator; ``age`` as in `status`."""
        return [
            {"age": age, **write_metrics(one.waiting)}
            for age, one in self._current_reports()
            if one.waiting is not None
        ]

    def failed(self) -> dict[str, set[str]]:
        """Return the failed rules of each operator that has any."""
        found: dict[str, set[str]] = {}
        for _, one in self._current_reports():
            if one.failed:
                found.setdefault(one.rules[0].operator, set()).update(one.failed)
        return found

    def _current_reports(self) -> list[tuple[float, _OperatorReport]]:
        with self._lock:
            now = self._clock()
            self._reports = {
                n: one for n, one in self._reports.items() if now - one.at <= MAX_AGE_SECONDS
            }
            return [(round(now - one.at, 1), one) for _, one in sorted(self._reports.items())]
