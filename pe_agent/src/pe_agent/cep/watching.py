"""What tasks tell the driver of rules: figures, and rules that stopped, by Spark's accumulators.

They come with the end of a task, before its window ends. So a rule that stopped in a window can be
off everywhere from the next one on. A task that runs again counts again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import TypeAlias

from pyspark.accumulators import AccumulatorParam

from streambroker_core.cep.figures import RuleFigures, Stopped, WindowFigures

log = logging.getLogger(__name__)

Name: TypeAlias = "tuple[str, int]"
"""A rule's id and version."""
_SUMS = tuple(
    one.name for one in fields(RuleFigures) if one.name not in ("rule", "version", "alive")
)


@dataclass
class Tally:
    """What windows came to, added up.

    Attributes:
        sums: by rule, the sum of each figure but ``alive``.
        alive: by bucket, the runs of each rule after its last window.
        stopped: rules that failed.
    """

    sums: dict[Name, dict[str, int]] = field(default_factory=dict)
    alive: dict[int, dict[Name, int]] = field(default_factory=dict)
    stopped: list[Stopped] = field(default_factory=list)

    def add(self, other: Tally) -> Tally:
        """Add what came later."""
        for name, given in other.sums.items():
            mine = self.sums.setdefault(name, dict.fromkeys(_SUMS, 0))
            for what in _SUMS:
                mine[what] += given[what]
        self.alive.update(other.alive)
        self.stopped += other.stopped
        return self

    def figures(self) -> list[RuleFigures]:
        """Return the figures of each rule, over all buckets."""
        alive: dict[Name, int] = {}
        for runs in self.alive.values():
            for name, count in runs.items():
                alive[name] = alive.get(name, 0) + count
        return [
            RuleFigures(rule=name[0], version=name[1], alive=alive.get(name, 0), **self.sums[name])
            for name in sorted(self.sums)
        ]


def tally_of(window: WindowFigures) -> Tally:
    """Return what one window came to."""
    tally = Tally(stopped=list(window.stopped))
    runs = tally.alive[window.bucket] = {}
    for one in window.rules:
        tally.sums[one.rule, one.version] = {what: getattr(one, what) for what in _SUMS}
        if one.alive:
            runs[one.rule, one.version] = one.alive
    return tally


class Listening(Tally):
    """The driver's tally; it calls when a rule has stopped."""

    def __init__(self, stopped: Callable[[Stopped], None]) -> None:
        super().__init__()
        self._call = stopped
        self._lock = threading.Lock()

    def add(self, other: Tally) -> Tally:
        """Add what a task tells; nothing may be raised here, or Spark hears no task any more."""
        with self._lock:
            super().add(other)
        for one in other.stopped:
            try:
                self._call(one)
            except Exception:
                log.exception("rule %s cannot be turned off in all buckets", one.rule)
        return self

    def figures(self) -> list[RuleFigures]:
        """Return the figures of each rule, over all buckets."""
        with self._lock:
            return super().figures()


class Tallies(AccumulatorParam[Tally]):
    """Says how Spark adds tallies."""

    def zero(self, value: Tally) -> Tally:
        """Return what a task begins with."""
        del value
        return Tally()

    def addInPlace(self, value1: Tally, value2: Tally) -> Tally:  # noqa: N802 - Spark's name
        """Add the second to the first."""
        return value1.add(value2)
