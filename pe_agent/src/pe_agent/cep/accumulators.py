"""What tasks tell the driver of rules: figures, and rules that stopped, by Spark's accumulators.

They come with the end of a task, before its window ends. So a rule that stopped in a window can be
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
from streambroker_core.cep.engine.metrics import RuleFigures, Stopped, WindowFigures
from streambroker_core.wire.reports.rule_metrics import ToldWaiting

if TYPE_CHECKING:
    from pe_agent.aligned.timeout_ticks import TickFile

log = logging.getLogger("pe_agent.cep")

Name: TypeAlias = "tuple[str, int]"
"""A rule's id and version."""
_SUMS = ("tested", "matches", "timeouts", "dropped", "nanoseconds")


@dataclass
class Tally:
    """What windows came to, added up.

    Attributes:
        sums: by rule, the sum of each figure but ``alive``.
        held: by bucket, rule and since when it is there; of those of which anything was told.
        alive: by bucket, the runs of each rule after its last window.
        stopped: rules that failed.
        waiting: by bucket, the rows that wait for the watermark after its last window, and the
            earliest time among them.
        watermark: of the last window that had one.
        due: by query and bucket, the pinned time at which time next ends a run.
        window: the last window of which anything is known.
    """

    sums: dict[Name, dict[str, int]] = field(default_factory=dict)
    held: dict[int, dict[Name, int]] = field(default_factory=dict)
    alive: dict[int, dict[Name, int]] = field(default_factory=dict)
    stopped: list[Stopped] = field(default_factory=list)
    waiting: dict[int, tuple[int, int]] = field(default_factory=dict)
    watermark: int | None = None
    due: dict[tuple[str, int], int] = field(default_factory=dict)
    window: int | None = None

    def take(self, window: WindowFigures) -> None:
        """Add a window."""
        self.window = max(window.window, self.window or window.window)
        held = self.held.setdefault(window.bucket, {})
        alive = self.alive.setdefault(window.bucket, {})
        if window.complete:
            held.clear()
            alive.clear()
        for one in window.rules:
            name = one.rule, one.version
            mine = self.sums.setdefault(name, dict.fromkeys(_SUMS, 0))
            for what in _SUMS:
                mine[what] += getattr(one, what)
            held[name], alive[name] = one.since, one.alive
        self.stopped += window.stopped
        self.waiting.pop(window.bucket, None)
        if window.first is not None:
            self.waiting[window.bucket] = window.waiting, window.first
        if window.watermark is not None:
            self.watermark = max(window.watermark, self.watermark or window.watermark)
        self.due.pop((window.query, window.bucket), None)
        if window.due is not None:
            self.due[window.query, window.bucket] = window.due

    def held_up(self, operator: str, log: str) -> ToldWaiting:
        """Return what waits for the watermark, in all buckets.

        Args:
            operator: whose tally it is.
            log: of its sets of rules.
        """
        return ToldWaiting(
            operator=operator,
            log=log,
            rows=sum(rows for rows, _ in self.waiting.values()),
            first=min((first for _, first in self.waiting.values()), default=None),
            watermark=self.watermark,
        )

    def figures(self) -> list[RuleFigures]:
        """Return the figures of each rule, over all buckets."""
        return [
            RuleFigures(
                rule=name[0],
                version=name[1],
                since=max((held[name] for held in self.held.values() if name in held), default=0),
                alive=sum(runs.get(name, 0) for runs in self.alive.values()),
                **self.sums[name],
            )
            for name in sorted(self.sums)
        ]

    def progress(self, buckets: int) -> list[Progress]:
        """Return how far a query is with the rules that it has.

        Args:
            buckets: how many there are.
        """
        failed = Counter((one.rule, one.version) for one in self.stopped)
        there = {name for held in self.held.values() for name in held} | set(failed)
        found = []
        for name in sorted(there):
            since = [held[name] for held in self.held.values() if name in held]
            found.append(
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
        return found


class Listening(Tally):
    """The driver's tally; it calls when a rule has stopped, and keeps a plan of ticks."""

    def __init__(self, stopped: Callable[[Stopped], None], ticks: TickFile | None = None) -> None:
        super().__init__()
        self._call, self._ticks = stopped, ticks
        self._lock = threading.Lock()

    def hear(self, windows: Iterable[WindowFigures]) -> None:
        """Add what a task tells; nothing may be raised here, or Spark hears no task any more."""
        for window in windows:
            with self._lock:
                self.take(window)
            for one in window.stopped:
                try:
                    self._call(one)
                except Exception:
                    log.exception("rule %s cannot be turned off in all buckets", one.rule)
        if self._ticks is not None:
            with self._lock:
                due = min(self.due.values(), default=None)
                try:
                    self._ticks.update(due=due)
                except OSError:
                    log.exception("windows of patterns cannot end by themselves")

    def held_up(self, operator: str, log: str) -> ToldWaiting:
        """Return what waits for the watermark, in all buckets."""
        with self._lock:
            return super().held_up(operator, log)

    def figures(self) -> list[RuleFigures]:
        """Return the figures of each rule, over all buckets."""
        with self._lock:
            return super().figures()

    def progress(self, buckets: int) -> list[Progress]:
        """Return how far a query is with the rules that it has."""
        with self._lock:
            return super().progress(buckets)


Told: TypeAlias = "Listening | list[WindowFigures]"


class Windows(AccumulatorParam[Told]):
    """Says how Spark brings what windows tell to the driver: a task has a list of them."""

    def zero(self, value: Told) -> Told:
        """Return what a task begins with."""
        del value
        return []

    def addInPlace(self, value1: Told, value2: Told) -> Told:  # noqa: N802 - Spark's name
        """Add what a task tells to what it, or the driver, has."""
        told = value2 if isinstance(value2, list) else []
        if isinstance(value1, list):
            return [*value1, *told]
        value1.hear(told)
        return value1
