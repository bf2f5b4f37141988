"""Reports of tasks to the driver by Spark's accumulators: metrics of rules, and failed rules.

They arrive with the end of a task, before its window ends. So a rule that failed in a window can be
off everywhere from the next one on. A task that runs again counts again.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from pyspark.accumulators import AccumulatorParam

from pe_agent.cep.rule_progress import Progress
from streambroker_core.cep.engine.metrics import RuleFailure, RuleMetrics, WindowMetrics
from streambroker_core.wire.reports.rule_metrics import WatermarkWait

if TYPE_CHECKING:
    from pe_agent.aligned.timeout_ticks import TickFile

log = logging.getLogger("pe_agent.cep")

RuleVersion: TypeAlias = "tuple[str, int]"
"""A rule's id and version."""
_SUMMED_FIELDS = ("tested", "matches", "timeouts", "dropped", "nanoseconds")


@dataclass
class Tally:
    """Totals over the windows of a query.

    Attributes:
        sums: by rule, the sum of each metric but ``run_counts``.
        since: by rule, the latest window in which a bucket received it.
        active_since: by bucket, the rules with metrics so far, and since when each is active.
        run_counts: by bucket, the runs of each rule after its last window.
        stopped: rules that failed.
        waiting: by bucket, the rows that wait for the watermark after its last window, and the
            earliest time among them.
        watermark: the highest watermark of a window.
        next_timeouts: by query and bucket, the pinned time of the next timeout of a run.
        window: the highest number of a reported window.
    """

    sums: dict[RuleVersion, dict[str, int]] = field(default_factory=dict)
    since: dict[RuleVersion, int] = field(default_factory=dict)
    active_since: dict[int, dict[RuleVersion, int]] = field(default_factory=dict)
    run_counts: dict[int, dict[RuleVersion, int]] = field(default_factory=dict)
    stopped: list[RuleFailure] = field(default_factory=list)
    waiting: dict[int, tuple[int, int]] = field(default_factory=dict)
    watermark: int | None = None
    next_timeouts: dict[tuple[str, int], int] = field(default_factory=dict)
    window: int | None = None

    def add(self, window: WindowMetrics) -> None:
        """Add the metrics of a window."""
        self.window = max(window.window, self.window or window.window)
        active = self.active_since.setdefault(window.bucket, {})
        run_counts = self.run_counts.setdefault(window.bucket, {})
        if window.complete:
            active.clear()
            run_counts.clear()
        for one in window.rules:
            name = one.rule, one.version
            sums = self.sums.setdefault(name, dict.fromkeys(_SUMMED_FIELDS, 0))
            for what in _SUMMED_FIELDS:
                sums[what] += getattr(one, what)
            active[name], run_counts[name] = one.since, one.alive
            self.since[name] = max(one.since, self.since.get(name, 0))
        for failure in window.stopped:  # also one that has no metrics: it failed at once
            self.sums.setdefault((failure.rule, failure.version), dict.fromkeys(_SUMMED_FIELDS, 0))
        self.stopped += window.stopped
        self.waiting.pop(window.bucket, None)
        if window.first is not None:
            self.waiting[window.bucket] = window.waiting, window.first
        if window.watermark is not None:
            self.watermark = max(window.watermark, self.watermark or window.watermark)
        self.next_timeouts.pop((window.query, window.bucket), None)
        if window.due is not None:
            self.next_timeouts[window.query, window.bucket] = window.due

    def waiting_rows(self, operator: str, log: str) -> WatermarkWait:
        """Return the rows that wait for the watermark, over all buckets."""
        return WatermarkWait(
            operator=operator,
            log=log,
            rows=sum(rows for rows, _ in self.waiting.values()),
            first=min((first for _, first in self.waiting.values()), default=None),
            watermark=self.watermark,
        )

    def metrics(self) -> list[RuleMetrics]:
        """Return the metrics of each version of a rule, over all buckets."""
        return [
            RuleMetrics(
                rule=name[0],
                version=name[1],
                since=self.since.get(name, 0),
                alive=sum(runs.get(name, 0) for runs in self.run_counts.values()),
                **self.sums[name],
            )
            for name in sorted(self.sums)
        ]

    def progress(self, buckets: int) -> list[Progress]:
        """Return the progress of a query with each of its rules."""
        failed = Counter((one.rule, one.version) for one in self.stopped)
        rules = {name for active in self.active_since.values() for name in active} | set(failed)
        reports = []
        for name in sorted(rules):
            since = [active[name] for active in self.active_since.values() if name in active]
            reports.append(
                Progress(
                    rule=name[0],
                    version=name[1],
                    since=max(since, default=None),
                    buckets=len(since),
                    of=buckets,
                    matches=self.sums.get(name, {}).get("matches", 0),
                    errors=failed[name],
                )
            )
        return reports


class DriverTally(Tally):
    """The driver's tally; it reports failed rules to a callback, and keeps a plan of ticks."""

    def __init__(
        self, on_stopped: Callable[[RuleFailure], None], ticks: TickFile | None = None
    ) -> None:
        super().__init__()
        self._on_stopped, self._ticks = on_stopped, ticks
        self._lock = threading.Lock()

    def add_all(self, windows: Iterable[WindowMetrics]) -> None:
        """Add the metrics of a task; must not raise, or Spark stops receiving from all tasks."""
        for window in windows:
            with self._lock:
                self.add(window)
            for one in window.stopped:
                try:
                    self._on_stopped(one)
                except Exception:
                    log.exception("cannot disable rule %s in all buckets", one.rule)
        if self._ticks is not None:
            with self._lock:
                due = min(self.next_timeouts.values(), default=None)
                try:
                    self._ticks.update(due=due)
                except OSError:
                    log.exception("cannot schedule the end of pattern windows")

    def waiting_rows(self, operator: str, log: str) -> WatermarkWait:
        """Return the rows that wait for the watermark, over all buckets."""
        with self._lock:
            return super().waiting_rows(operator, log)

    def metrics(self) -> list[RuleMetrics]:
        """Return the metrics of each rule, over all buckets."""
        with self._lock:
            return super().metrics()

    def progress(self, buckets: int) -> list[Progress]:
        """Return the progress of a query with each of its rules."""
        with self._lock:
            return super().progress(buckets)


AccumulatorValue: TypeAlias = "DriverTally | list[WindowMetrics]"


class MetricsAccumulator(AccumulatorParam[AccumulatorValue]):
    """Merges window metrics: a task's value is a list of them, the driver's is the tally."""

    def zero(self, value: AccumulatorValue) -> AccumulatorValue:
        """Return the initial value of a task."""
        del value
        return []

    def addInPlace(self, value1: AccumulatorValue, value2: AccumulatorValue) -> AccumulatorValue:  # noqa: N802 - Spark's name
        """Add the value of a task to that of another one, or of the driver."""
        windows = value2 if isinstance(value2, list) else []
        if isinstance(value1, list):
            return [*value1, *windows]
        value1.add_all(windows)
        return value1
