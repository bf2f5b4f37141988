"""Tables of ``top`` for pattern rules: metrics, and operators that wait for the watermark."""

from __future__ import annotations

from collections.abc import Sequence

from streambroker_core.wire.encoding.fields import Fields
from streambroker_core.wire.reports.rule_metrics import (
    RuleMetricsReport,
    describe_wait,
    read_all_metrics,
    read_all_watermark_waits,
)
from streambroker_operator.cli.io.targets import Item
from streambroker_operator.cli.io.terminal import Colour, format_duration, one_line, paint, sanitise
from streambroker_operator.cli.output.table import column_widths

COLUMNS = [
    "MATCHES",
    "TESTED",
    "RUNS",
    "TIMEOUTS",
    "DROPPED",
    "ERRORS",
    "SECONDS",
    "PE",
    "OPERATOR",
    "RULE",
    "VERSION",
    "AGE",
]
_RIGHT_ALIGNED = (0, 1, 2, 3, 4, 5, 6, 10, 11)


def rule_lines(
    rules: Sequence[Item], waiting: Sequence[Item], columns: int | None = None
) -> list[str]:
    """Return a table of rules with a header, then a line for each waiting operator.

    Lines are cut at `columns`, unless it is None.
    """
    parsed = read_all_metrics(Fields({"rules": list(rules)}), "rules")
    rules_sorted = sorted(
        zip(rules, parsed, strict=True),
        key=lambda one: (-one[1].errors, -one[1].nanoseconds, one[0]["pe"], one[1].rule),
    )
    rows = [COLUMNS, *(_row(item, one) for item, one in rules_sorted)]
    widths = column_widths(rows)
    lines = []
    for row, rule in zip(rows, [None, *(one for _, one in rules_sorted)], strict=True):
        cells = [
            cell.rjust(width) if column in _RIGHT_ALIGNED else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        colour: Colour | None = "yellow" if rule is not None and rule.errors else None
        lines.append(paint("  ".join(cells).rstrip()[:columns], colour))
    waits = zip(waiting, read_all_watermark_waits(Fields({"of": list(waiting)}), "of"), strict=True)
    wait_lines = [
        one_line(f"{at['pe']} {one.operator}: {describe_wait(one)}")[:columns] for at, one in waits
    ]
    return [*(lines if rules else []), *wait_lines]


def _row(item: Item, metrics: RuleMetricsReport) -> list[str]:
    return [
        f"{metrics.matches:,}",
        f"{metrics.tested:,}",
        f"{metrics.alive:,}",
        f"{metrics.timeouts:,}",
        f"{metrics.dropped:,}",
        f"{metrics.errors:,}",
        f"{metrics.nanoseconds / 1e9:,.1f}",
        sanitise(item["pe"]),
        sanitise(metrics.operator),
        sanitise(metrics.rule),
        f"{metrics.version}",
        format_duration(item["age"]),
    ]
