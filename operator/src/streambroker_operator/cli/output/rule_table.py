"""What ``top`` shows of rules of patterns: what they have done, and rows that wait for time."""

from __future__ import annotations

from collections.abc import Sequence

from streambroker_core.wire.encoding.fields import Fields
from streambroker_core.wire.reports.rule_metrics import (
    ToldFigures,
    read_all_figures,
    read_all_waiting,
    sentence,
)
from streambroker_operator.cli.io.targets import Item
from streambroker_operator.cli.io.terminal import Colour, flat, lasted, paint, plain
from streambroker_operator.cli.output.table import widths_of

HEAD = [
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
_RIGHT = (0, 1, 2, 3, 4, 5, 6, 10, 11)


def rule_lines(
    rules: Sequence[Item], waiting: Sequence[Item], columns: int | None = None
) -> list[str]:
    """Return a table of rules, its head first, and then a line for each operator that waits.

    Args:
        rules: as the broker answers them.
        waiting: likewise, operators for which rows wait.
        columns: where lines are cut; None for nowhere.
    """
    read = read_all_figures(Fields({"rules": list(rules)}), "rules")
    told = sorted(
        zip(rules, read, strict=True),
        key=lambda one: (-one[1].errors, -one[1].nanoseconds, one[0]["pe"], one[1].rule),
    )
    rows = [HEAD, *(_row(item, one) for item, one in told)]
    widths = widths_of(rows)
    lines = []
    for row, rule in zip(rows, [None, *(one for _, one in told)], strict=True):
        cells = [
            cell.rjust(width) if place in _RIGHT else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        colour: Colour | None = "yellow" if rule is not None and rule.errors else None
        lines.append(paint("  ".join(cells).rstrip()[:columns], colour))
    waits = zip(waiting, read_all_waiting(Fields({"of": list(waiting)}), "of"), strict=True)
    below = [flat(f"{at['pe']} {one.operator}: {sentence(one)}")[:columns] for at, one in waits]
    return [*(lines if rules else []), *below]


def _row(item: Item, one: ToldFigures) -> list[str]:
    return [
        f"{one.matches:,}",
        f"{one.tested:,}",
        f"{one.alive:,}",
        f"{one.timeouts:,}",
        f"{one.dropped:,}",
        f"{one.errors:,}",
        f"{one.nanoseconds / 1e9:,.1f}",
        plain(item["pe"]),
        plain(one.operator),
        plain(one.rule),
        f"{one.version}",
        lasted(item["age"]),
    ]
