"""Tables of ``top`` for the jobs of routes: side inputs and pattern rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from streambroker_core.wire.encoding.fields import Fields
from streambroker_core.wire.reports.rule_metrics import (
    RuleMetricsReport,
    describe_wait,
    read_all_metrics,
    read_all_watermark_waits,
)
from streambroker_core.wire.reports.side_status import SideStatus, describe_side_stall, read_sides
from streambroker_operator.cli.io.targets import Item
from streambroker_operator.cli.io.terminal import format_duration, format_size, one_line
from streambroker_operator.cli.output.table import Columns, Table

_Side: TypeAlias = tuple[Item, SideStatus, float]
"""A side input as reported and parsed, and the current time in seconds since 1970."""
_Rule: TypeAlias = tuple[Item, RuleMetricsReport]

_MICROS = 1_000_000

_SIDE_COLUMNS: Columns[_Side] = {
    "WAITING": lambda row: f"{row[1].waiting_rows:,}",
    "SINCE": lambda row: _format_since(row[1].waiting_since, row[2]),
    "PE": lambda row: row[0]["pe"],
    "OPERATOR": lambda row: row[1].operator,
    "SIDE INPUT": lambda row: row[1].input,
    "ENTRIES": lambda row: f"{row[1].entries:,}",
    "BYTES": lambda row: format_size(row[1].size),
    "STAGED": lambda row: f"{row[1].staged:,}",
    "LATE": lambda row: f"{row[1].late:,}",
    "REFUSED": lambda row: f"{row[1].refused:,}",
    "VERSION": lambda row: row[1].version or "-",
    "SET": lambda row: _format_since(row[1].version_since, row[2]),
    "AGE": lambda row: format_duration(row[0]["age"]),
}
_RULE_COLUMNS: Columns[_Rule] = {
    "MATCHES": lambda row: f"{row[1].matches:,}",
    "TESTED": lambda row: f"{row[1].tested:,}",
    "RUNS": lambda row: f"{row[1].alive:,}",
    "TIMEOUTS": lambda row: f"{row[1].timeouts:,}",
    "DROPPED": lambda row: f"{row[1].dropped:,}",
    "ERRORS": lambda row: f"{row[1].errors:,}",
    "SECONDS": lambda row: f"{row[1].nanoseconds / 1e9:,.1f}",
    "PE": lambda row: row[0]["pe"],
    "OPERATOR": lambda row: row[1].operator,
    "RULE": lambda row: row[1].rule,
    "VERSION": lambda row: f"{row[1].version}",
    "AGE": lambda row: format_duration(row[0]["age"]),
}
_SIDES_RIGHT = _SIDE_COLUMNS.keys() - {"PE", "OPERATOR", "SIDE INPUT", "VERSION"}
_RULES_RIGHT = _RULE_COLUMNS.keys() - {"PE", "OPERATOR", "RULE"}


def side_lines(sides: Sequence[Item], now: float, columns: int | None = None) -> list[str]:
    """Return a table of side inputs with a header, then a line for each stall.

    `now` is in seconds since 1970. Lines are cut at `columns`, unless it is None.
    """
    if not sides:
        return []
    parsed = read_sides(Fields({"sides": list(sides)}), "sides")
    rows = sorted(
        ((item, side, now) for item, side in zip(sides, parsed, strict=True)),
        key=lambda row: (-row[1].waiting_rows, row[0]["pe"], row[1].operator, row[1].input),
    )
    lines = Table(_SIDE_COLUMNS, right=_SIDES_RIGHT).lines(
        rows, colour=lambda row: "yellow" if row[1].waiting_rows else None, cut=columns
    )
    stalls = [
        f"{item['pe']} {side.operator}: {describe_side_stall(stall, int(now * _MICROS))}"
        for item, side, _ in rows
        for stall in side.stalls
    ]
    return [*lines, *(one_line(line)[:columns] for line in stalls)]


def rule_lines(
    rules: Sequence[Item], waiting: Sequence[Item], columns: int | None = None
) -> list[str]:
    """Return a table of rules with a header, then a line for each waiting operator.

    Lines are cut at `columns`, unless it is None.
    """
    parsed = read_all_metrics(Fields({"rules": list(rules)}), "rules")
    rows = sorted(
        zip(rules, parsed, strict=True),
        key=lambda row: (-row[1].errors, -row[1].nanoseconds, row[0]["pe"], row[1].rule),
    )
    lines = Table(_RULE_COLUMNS, right=_RULES_RIGHT).lines(
        rows, colour=lambda row: "yellow" if row[1].errors else None, cut=columns
    )
    waits = zip(waiting, read_all_watermark_waits(Fields({"of": list(waiting)}), "of"), strict=True)
    wait_lines = [
        one_line(f"{at['pe']} {one.operator}: {describe_wait(one)}")[:columns] for at, one in waits
    ]
    return [*(lines if rules else []), *wait_lines]


def _format_since(micros: int | None, now: float) -> str:
    return "-" if micros is None else format_duration(now - micros / _MICROS)
