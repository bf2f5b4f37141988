"""What is told of rules of patterns at work: by a query to its agent, by the agent to the broker.

Figures for people. Beside what each rule has done stands what its operator waits for: rows that no
rule has seen, because the watermark has not passed their time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from streambroker_core.wire.encoding.fields import Fields

MAX_REPORTED_RULES = 1_000
"""Of one operator, and in one report."""
MAX_OPERATORS = 1_000
COUNTS = ("tested", "matches", "timeouts", "dropped", "errors", "alive", "nanoseconds")
_LARGEST = (1 << 63) - 1
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - times of events have no zone of their own


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleMetricsReport:
    """What a version of a rule has done since its query was started.

    Attributes:
        operator: name of the operator.
        log: of its sets of rules; tells queries apart.
        rule: its id.
        version: its version.
        tested: events that it has seen.
        matches: matches found.
        timeouts: partial matches that timed out.
        dropped: runs given up because of its limits.
        errors: how often it failed.
        alive: partial matches.
        nanoseconds: spent on it.
    """

    operator: str
    log: str
    rule: str
    version: int
    tested: int = 0
    matches: int = 0
    timeouts: int = 0
    dropped: int = 0
    errors: int = 0
    alive: int = 0
    nanoseconds: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WatermarkWait:
    """What an operator waits for.

    Attributes:
        operator: name of the operator.
        log: of its sets of rules.
        rows: how many wait until the watermark has passed them.
        first: event time of the first of them, in microseconds since 1970; None if none waits.
        watermark: of the last window, likewise; None if there is none yet.
    """

    operator: str
    log: str
    rows: int = 0
    first: int | None = None
    watermark: int | None = None


def write_metrics(report: RuleMetricsReport | WatermarkWait) -> dict[str, Any]:
    """Return all members as JSON-like data."""
    return asdict(report)


def read_metrics(source: Fields, operator: str, log: str) -> RuleMetricsReport:
    """Read what a rule has done; members that are not known are passed over.

    Raises:
        ManifestError: a field is wrong; the error names it.
    """
    return RuleMetricsReport(
        operator=operator,
        log=log,
        rule=source.text("rule", longest=1_024),
        version=source.integer("version", high=_LARGEST),
        **{name: source.integer(name, 0, high=_LARGEST) for name in COUNTS},
    )


def read_watermark_wait(source: Fields, operator: str, log: str) -> WatermarkWait:
    """Read what an operator waits for.

    Raises:
        ManifestError: a field is wrong; the error names it.
    """
    return WatermarkWait(
        operator=operator,
        log=log,
        rows=source.integer("rows", 0, high=_LARGEST),
        first=_read_time(source, "first"),
        watermark=_read_time(source, "watermark"),
    )


def read_all_metrics(source: Fields, key: str) -> tuple[RuleMetricsReport, ...]:
    """Read a list of what rules have done, each with its operator.

    Raises:
        ManifestError: a field is wrong; the error names it.
    """
    each = _list_entries(source, key, MAX_REPORTED_RULES)
    return tuple(read_metrics(one, one.text("operator"), one.text("log")) for one in each)


def read_all_watermark_waits(source: Fields, key: str) -> tuple[WatermarkWait, ...]:
    """Read a list of what operators wait for.

    Raises:
        ManifestError: a field is wrong; the error names it.
    """
    each = _list_entries(source, key, MAX_OPERATORS)
    return tuple(read_watermark_wait(one, one.text("operator"), one.text("log")) for one in each)


def describe_wait(waiting: WatermarkWait) -> str:
    """Return what an operator waits for, or that it does not."""
    if not waiting.rows or waiting.first is None:
        return "no rows wait for the watermark."
    rows = "1 row waits" if waiting.rows == 1 else f"{waiting.rows:,} rows wait"
    now = "there is none yet"
    if waiting.watermark is not None:
        now = f"it is at {_format_time(waiting.watermark)}"
    return f"{rows} for the watermark to pass {_format_time(waiting.first)}; {now}."


def _list_entries(source: Fields, key: str, max_items: int) -> Sequence[Fields]:
    return [
        source.entry(key, n, one) for n, one in enumerate(source.items(key, max_items=max_items))
    ]


def _read_time(source: Fields, key: str) -> int | None:
    return source.integer(key, low=-_LARGEST, high=_LARGEST) if source.has(key) else None


def _format_time(micros: int) -> str:
    try:
        return (_EPOCH + timedelta(microseconds=micros)).isoformat(sep=" ")
    except OverflowError:
        return "the end of time" if micros > 0 else f"{micros} µs"
