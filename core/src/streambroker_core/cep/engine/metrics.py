"""What the rules of a bucket did in a window, for people: it changes nothing and is in no state."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleMetrics:
    """What a rule did.

    Attributes:
        rule: its id.
        version: its version.
        since: the window from which on the bucket has it.
        tested: events that its automaton has seen.
        matches: matches told.
        timeouts: timed-out partial matches told.
        dropped: runs given up because of its limits.
        alive: runs that the bucket has now.
        nanoseconds: time that matching took.
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
    """A rule that failed, and is off in its bucket.

    Attributes:
        rule: its id.
        version: its version.
        where: which part of it.
        problem: what happened.
    """

    rule: str
    version: int
    where: str
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowMetrics:
    """What a window of a bucket came to.

    Attributes:
        bucket: the bucket.
        window: number of the window.
        rules: rules in force, in the order of ids and versions; those that did something, or all.
        complete: it is all, because they have changed.
        stopped: rules that failed in it.
        waiting: rows that wait for the watermark behind it.
        first: the earliest time among them, in microseconds.
        watermark: of the window.
        due: in processing time, the pinned time at which time next ends a run of the bucket.
        query: id of the query, for a driver that has several.
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
