"""Metrics of side inputs: each bucket reports them to its agent, the agent to the broker.

They are for people only. A bucket reports after a window. `merge_buckets` combines all buckets:

- Waiting rows are added up, and so are the values of a keyed input (each is in one bucket).
- Broadcast values are in every bucket and count once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace

from streambroker_core.wire.encoding.canonical import JsonObject
from streambroker_core.wire.encoding.fields import Fields

MAX_SIDES = 1_000
"""Maximum side inputs in one report."""
MAX_STALLS = 5
"""Maximum stalls per side input: those with most rows."""
MAX_CAUSE = 400
"""Maximum characters of a cause."""
_LARGEST = (1 << 63) - 1
_MICROS = 1_000_000
_WHOLE_FROM = 10
"""Seconds from which on an age is shown in whole seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SideStall:
    """Rows that wait for the same cause.

    Attributes:
        cause: the side input and window that they wait for, and why.
        since: pinned time at which the first began to wait, in microseconds; None if unknown.
    """

    cause: str
    rows: int
    since: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SideStatus:
    """Metrics of a side input of one operator; times are pinned, in microseconds.

    Attributes:
        input: name of the side input; ``main`` for main rows that wait for the end of their window
            or for their event time.
        keyed: each of its values is in one bucket only.
        waiting_rows: rows that wait for it; ``waiting_bytes`` is their size in Arrow.
        waiting_since: when the first of them began to wait.
        entries: visible values; ``size`` is their bytes in Arrow.
        windows: windows for which it has values.
        staged: rows of an incomplete load.
        rows: rows accepted since the state began.
        late: rows that arrived after their window.
        refused: rows that the policy rejected.
        version: version of the values; None if they have none.
        version_since: when that version arrived.
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
    """Merge the reports of one side input from its buckets, at least one."""
    combine = sum if buckets[0].keyed else max
    newest = max(buckets, key=lambda one: -1 if one.version_since is None else one.version_since)
    return replace(
        newest,
        **{name: sum(getattr(bucket, name) for bucket in buckets) for name in _WAIT_COUNTS},
        **{name: combine(getattr(bucket, name) for bucket in buckets) for name in _VALUE_COUNTS},
        windows=max(bucket.windows for bucket in buckets),
        waiting_since=_earliest(bucket.waiting_since for bucket in buckets),
        stalls=_merge_stalls(stall for bucket in buckets for stall in bucket.stalls),
    )


def _merge_stalls(several: Iterable[SideStall]) -> tuple[SideStall, ...]:
    by_cause: dict[str, list[SideStall]] = {}
    for stall in several:
        by_cause.setdefault(stall.cause, []).append(stall)
    merged = [
        SideStall(
            cause=cause,
            rows=sum(stall.rows for stall in group),
            since=_earliest(stall.since for stall in group),
        )
        for cause, group in by_cause.items()
    ]
    return tuple(sorted(merged, key=lambda one: (-one.rows, one.cause))[:MAX_STALLS])


def _earliest(times: Iterable[int | None]) -> int | None:
    return min((time for time in times if time is not None), default=None)


def describe_side_stall(stall: SideStall, now: int) -> str:
    """Return what rows wait for; ``now`` is in microseconds, on the clock of ``since``."""
    rows = "1 row waits" if stall.rows == 1 else f"{stall.rows:,} rows wait"
    if stall.since is None:
        return f"{rows} {stall.cause}."
    seconds = (now - stall.since) / _MICROS
    age = f"{seconds:.1f}" if seconds < _WHOLE_FROM else f"{seconds:,.0f}"
    return f"{rows} {stall.cause}; the first for {age} s."


def write_side(side: SideStatus) -> JsonObject:
    """Return all members as JSON-like data."""
    return {
        **{_key(field.name): getattr(side, field.name) for field in fields(SideStatus)},
        "stalls": [
            {"cause": stall.cause[:MAX_CAUSE], "rows": stall.rows, "since": stall.since}
            for stall in side.stalls[:MAX_STALLS]
        ],
    }


def _key(name: str) -> str:
    first, *more = name.split("_")
    return first + "".join(word.capitalize() for word in more)


def read_sides(source: Fields, key: str) -> tuple[SideStatus, ...]:
    """Read the side inputs in ``source[key]``; ignore unknown members.

    Raises:
        ManifestError: a field is wrong; the error names it.
    """
    return tuple(map(_read_side, source.entries(key, max_items=MAX_SIDES)))


def _read_side(source: Fields) -> SideStatus:
    return SideStatus(
        operator=source.text("operator"),
        input=source.text("input"),
        keyed=source.boolean("keyed", False),
        version=source.optional_text("version"),
        stalls=tuple(
            SideStall(
                cause=entry.text("cause", longest=4 * MAX_CAUSE),
                rows=_read_count(entry, "rows"),
                since=_read_time(entry, "since"),
            )
            for entry in source.entries("stalls", max_items=MAX_STALLS)
        ),
        waiting_since=_read_time(source, "waiting_since"),
        version_since=_read_time(source, "version_since"),
        **{name: _read_count(source, name) for name in _COUNTS},
    )


def _read_count(source: Fields, key: str) -> int:
    return source.integer(_key(key), 0, high=_LARGEST)


def _read_time(source: Fields, key: str) -> int | None:
    return source.optional_integer(_key(key), high=_LARGEST)
