"""What is told of side inputs: by each bucket of an operator, by its agent, to the broker.

Figures for people. A bucket tells what it has after a window; what is shown of a side input is what
all buckets have: what waits is added up, and so is what a keyed one holds, which lies in one bucket
each; what is broadcast is in every bucket, and counts once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from streambroker_core.wire.encoding.fields import Fields

MAX_SIDES = 1_000
"""Side inputs in one report."""
MAX_STALLS = 5
"""Of a side input, those that hold back most rows."""
MAX_CAUSE = 400
"""Characters of what rows wait for."""
_LARGEST = (1 << 63) - 1
_MICROS = 1_000_000
_WHOLE_FROM = 10
"""From how many seconds on an age is told in whole seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SideStall:
    """Rows that wait for one thing.

    Attributes:
        cause: for which side input and window, and why.
        rows: how many.
        since: pinned time at which the first began to wait, in microseconds; None if not known.
    """

    cause: str
    rows: int
    since: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SideStatus:
    """Figures of a side input of one operator.

    Attributes:
        operator: the operator's name.
        input: the side input's; ``main`` for main rows that wait for the end of their window or for
            their event time.
        keyed: each of its values lies in one bucket.
        waiting_rows: rows that wait for it.
        waiting_bytes: their bytes in Arrow.
        waiting_since: pinned time at which the first began to wait, in microseconds.
        entries: values that are seen.
        size: their bytes in Arrow.
        windows: windows that it has values of.
        staged: rows of a load that is not complete.
        rows: rows taken, since the state began.
        late: those that came after their window.
        refused: those that the policy did not take.
        version: of what is there; None if it has none.
        version_since: pinned time at which that version came, in microseconds.
        stalls: what the rows wait for.
    """

    operator: str
    input: str
    keyed: bool = False
    waiting_rows: int = 0
    waiting_bytes: int = 0
    waiting_since: int | None = None
    entries: int = 0
    size: int = 0
    windows: int = 0
    staged: int = 0
    rows: int = 0
    late: int = 0
    refused: int = 0
    version: str | None = None
    version_since: int | None = None
    stalls: tuple[SideStall, ...] = ()


_WAIT_COUNTS = ("waiting_rows", "waiting_bytes")
_VALUE_COUNTS = ("entries", "size", "staged", "rows", "late", "refused")
_COUNTS = (*_WAIT_COUNTS, *_VALUE_COUNTS, "windows")


def merge_buckets(buckets: Sequence[SideStatus]) -> SideStatus:
    """Return what several buckets tell of one side input as one.

    Args:
        buckets: what each tells, at least one.
    """
    held = sum if buckets[0].keyed else max
    newest = max(buckets, key=lambda one: -1 if one.version_since is None else one.version_since)
    return replace(
        newest,
        **{name: sum(getattr(one, name) for one in buckets) for name in _WAIT_COUNTS},
        **{name: held(getattr(one, name) for one in buckets) for name in _VALUE_COUNTS},
        windows=max(one.windows for one in buckets),
        waiting_since=_earliest(one.waiting_since for one in buckets),
        stalls=_merge_stalls(stall for one in buckets for stall in one.stalls),
    )


def _merge_stalls(several: Iterable[SideStall]) -> tuple[SideStall, ...]:
    found: dict[str, list[SideStall]] = {}
    for one in several:
        found.setdefault(one.cause, []).append(one)
    made = [
        SideStall(
            cause=cause,
            rows=sum(one.rows for one in alike),
            since=_earliest(one.since for one in alike),
        )
        for cause, alike in found.items()
    ]
    return tuple(sorted(made, key=lambda one: (-one.rows, one.cause))[:MAX_STALLS])


def _earliest(times: Iterable[int | None]) -> int | None:
    return min((time for time in times if time is not None), default=None)


def describe_side_stall(stall: SideStall, now: int) -> str:
    """Return what some rows wait for.

    Args:
        stall: how many, and for what.
        now: in microseconds, by the clock that ``since`` was read from.
    """
    rows = "1 row waits" if stall.rows == 1 else f"{stall.rows:,} rows wait"
    if stall.since is None:
        return f"{rows} {stall.cause}."
    seconds = (now - stall.since) / _MICROS
    age = f"{seconds:.1f}" if seconds < _WHOLE_FROM else f"{seconds:,.0f}"
    return f"{rows} {stall.cause}; the first for {age} s."


def write_side(side: SideStatus) -> dict[str, Any]:
    """Return all members as JSON-like data."""
    return {
        **{_key(field.name): getattr(side, field.name) for field in fields(SideStatus)},
        "stalls": [
            {"cause": one.cause[:MAX_CAUSE], "rows": one.rows, "since": one.since}
            for one in side.stalls[:MAX_STALLS]
        ],
    }


def _key(name: str) -> str:
    first, *more = name.split("_")
    return first + "".join(word.capitalize() for word in more)


def read_sides(source: Fields, key: str) -> tuple[SideStatus, ...]:
    """Read what is told of side inputs; members that are not known are passed over.

    Args:
        source: the object that has it.
        key: where it has it.

    Raises:
        ManifestError: a field is wrong; the error names it.
    """
    found = source.items(key, max_items=MAX_SIDES)
    return tuple(_read_side(source.entry(key, number, one)) for number, one in enumerate(found))


def _read_side(source: Fields) -> SideStatus:
    stalls = [
        source.entry("stalls", number, one)
        for number, one in enumerate(source.items("stalls", max_items=MAX_STALLS))
    ]
    return SideStatus(
        operator=source.text("operator"),
        input=source.text("input"),
        keyed=source.boolean("keyed", False),
        version=source.optional_text("version"),
        stalls=tuple(
            SideStall(
                cause=one.text("cause", longest=4 * MAX_CAUSE),
                rows=_read_count(one, "rows"),
                since=_read_time(one, "since"),
            )
            for one in stalls
        ),
        waiting_since=_read_time(source, "waiting_since"),
        version_since=_read_time(source, "version_since"),
        **{name: _read_count(source, name) for name in _COUNTS},
    )


def _read_count(source: Fields, key: str) -> int:
    return source.integer(_key(key), 0, high=_LARGEST)


def _read_time(source: Fields, key: str) -> int | None:
    return source.integer(_key(key), high=_LARGEST) if source.has(_key(key)) else None
