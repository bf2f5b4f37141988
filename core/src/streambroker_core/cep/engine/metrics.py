"""Metrics of the rules of a bucket in a window: for display only, never part of the state."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleMetrics:
    """Metrics of a rule in a bucket.

    Attributes:
        since: first window in which the bucket has it.
        tested: events that its automaton has processed.
        timeouts: number of timed-out partial matches, reported or not.
        dropped: runs dropped because of its limits.
        alive: current number of runs.
        nanoseconds: time spent on matching.
    """

    rule: str
    version: int
    since: int = 0
    tested: int = 0
    matches: int = 0
    timeouts: int = 0
    dropped: int = 0
    alive: int = 0
    nanoseconds: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleFailure:
    """A rule that failed, and is off in its bucket: which part failed, and why."""

    rule: str
    version: int
    where: str
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowMetrics:
    """Metrics of one window of a bucket.

    Attributes:
        rules: rules in force, ordered by id and version: all, or those with activity.
        complete: `rules` has all rules, because the set changed.
        stopped: rules that failed in it.
        waiting: rows after the watermark, which wait for it.
        first: earliest time of these rows, in microseconds.
        watermark: watermark of the window; None in processing time.
        due: in processing time, the pinned time at which time next ends a run; None for never.
        query: id of the query, for a driver with several.
    """

    bucket: int
    window: int
    rules: tuple[RuleMetrics, ...]
    complete: bool = True
    stopped: tuple[RuleFailure, ...] = ()
    waiting: int = 0
    first: int | None = None
    watermark: int | None = None
    due: int | None = None
    query: str = ""
