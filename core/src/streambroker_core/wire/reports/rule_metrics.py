"""Metrics of running rules: a query reports them to its agent, the agent to the broker.

They are for people only. They have the counts of each rule, and the waiting rows of its operator,
which no rule has seen because the watermark has not passed their time. Functions that read raise
`ManifestError`, which names the wrong field.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime, timedelta

from streambroker_core.wire.encoding.canonical import JsonObject
from streambroker_core.wire.encoding.fields import Fields

MAX_REPORTED_RULES = 1_000
"""Maximum of one operator, and of one report."""
MAX_OPERATORS = 1_000
COUNTS = ("tested", "matches", "timeouts", "dropped", "errors", "alive", "nanoseconds")
_LARGEST = (1 << 63) - 1
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - event times have no time zone


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleMetricsReport:
    """Counts of one version of a rule since its query was started.

    Attributes:
        log: id of the operator's rules log, which identifies the query.
        rule: id of the rule.
        tested: events that it has seen.
        timeouts: partial matches that timed out.
        dropped: partial matches dropped because of the rule's limits.
        alive: current partial matches.
        nanoseconds: time spent on it.
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
    """Rows of an operator that wait for the watermark; times are in microseconds since 1970.

    Attributes:
        log: id of the operator's rules log.
        first: event time of the first waiting row; None if none waits.
        watermark: watermark of the last window; None if there is none yet.
    """

    operator: str
    log: str
    rows: int = 0
    first: int | None = None
    watermark: int | None = None


def write_metrics(report: RuleMetricsReport | WatermarkWait) -> JsonObject:
    """Return all members as JSON-like data."""
    return asdict(report)


def read_metrics(source: Fields, operator: str, log: str) -> RuleMetricsReport:
    """Read the metrics of a rule; ignore unknown members."""
    return RuleMetricsReport(
        operator=operator,
        log=log,
        rule=source.text("rule", longest=1_024),
        version=source.integer("version", high=_LARGEST),
        **{name: source.integer(name, 0, high=_LARGEST) for name in COUNTS},
    )


def read_watermark_wait(source: Fields, operator: str, log: str) -> WatermarkWait:
    """Read the waiting rows of an operator."""
    return WatermarkWait(
        operator=operator,
        log=log,
        rows=source.integer("rows", 0, high=_LARGEST),
        first=source.optional_integer("first", low=-_LARGEST, high=_LARGEST),
        watermark=source.optional_integer("watermark", low=-_LARGEST, high=_LARGEST),
    )


def read_all_metrics(source: Fields, key: str) -> tuple[RuleMetricsReport, ...]:
    """Read a list of metrics, each with operator and log."""
    entries = source.entries(key, max_items=MAX_REPORTED_RULES)
    return tuple(read_metrics(one, one.text("operator"), one.text("log")) for one in entries)


def read_all_watermark_waits(source: Fields, key: str) -> tuple[WatermarkWait, ...]:
    """Read a list of waiting rows, each with operator and log."""
    entries = source.entries(key, max_items=MAX_OPERATORS)
    return tuple(read_watermark_wait(one, one.text("operator"), one.text("log")) for one in entries)


def describe_wait(waiting: WatermarkWait) -> str:
    """Return a sentence on what an operator's rows wait for."""
    if not waiting.rows or waiting.first is None:
        return "no rows wait for the watermark."
    rows = "1 row waits" if waiting.rows == 1 else f"{waiting.rows:,} rows wait"
    now = "there is none yet"
    if waiting.watermark is not None:
        now = f"it is at {_format_time(waiting.watermark)}"
    return f"{rows} for the watermark to pass {_format_time(waiting.first)}; {now}."


def _format_time(micros: int) -> str:
    try:
        return (_EPOCH + timedelta(microseconds=micros)).isoformat(sep=" ")
    except OverflowError:
        return "the end of time" if micros > 0 else f"{micros} µs"
