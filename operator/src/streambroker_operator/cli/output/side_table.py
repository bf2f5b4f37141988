"""Table of ``top`` for side inputs: waiting rows and sizes."""

from __future__ import annotations

from collections.abc import Sequence

from streambroker_core.wire.encoding.fields import Fields
from streambroker_core.wire.reports.side_status import SideStatus, describe_side_stall, read_sides
from streambroker_operator.cli.io.targets import Item
from streambroker_operator.cli.io.terminal import Colour, format_duration, one_line, paint, sanitise
from streambroker_operator.cli.output.table import column_widths

COLUMNS = [
    "WAITING",
    "SINCE",
    "PE",
    "OPERATOR",
    "SIDE INPUT",
    "ENTRIES",
    "BYTES",
    "STAGED",
    "LATE",
    "REFUSED",
    "VERSION",
    "SET",
    "AGE",
]
_RIGHT_ALIGNED = (0, 1, 5, 6, 7, 8, 9, 11, 12)
_MICROS = 1_000_000


def side_lines(sides: Sequence[Item], now: float, columns: int | None = None) -> list[str]:
    """Return a table of side inputs with a header, then a line for each stall.

    `now` is in seconds since 1970. Lines are cut at `columns`, unless it is None.
    """
    if not sides:
        return []
    parsed = read_sides(Fields({"sides": list(sides)}), "sides")
    sides_sorted = sorted(
        zip(sides, parsed, strict=True),
        key=lambda one: (-one[1].waiting_rows, one[0]["pe"], one[1].operator, one[1].input),
    )
    rows = [COLUMNS, *(_row(item, side, now) for item, side in sides_sorted)]
    widths = column_widths(rows)
    lines = []
    for row, side in zip(rows, [None, *(side for _, side in sides_sorted)], strict=True):
        cells = [
            cell.rjust(width) if column in _RIGHT_ALIGNED else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        colour: Colour | None = "yellow" if side is not None and side.waiting_rows else None
        lines.append(paint("  ".join(cells).rstrip()[:columns], colour))
    stalls = [
        f"{item['pe']} {side.operator}: {describe_side_stall(stall, int(now * _MICROS))}"
        for item, side in sides_sorted
        for stall in side.stalls
    ]
    return [*lines, *(one_line(line)[:columns] for line in stalls)]


def _row(item: Item, side: SideStatus, now: float) -> list[str]:
    return [
        f"{side.waiting_rows:,}",
        _format_since(side.waiting_since, now),
        sanitise(item["pe"]),
        sanitise(side.operator),
        sanitise(side.input),
        f"{side.entries:,}",
        format_size(side.size),
        f"{side.staged:,}",
        f"{side.late:,}",
        f"{side.refused:,}",
        sanitise(side.version or "-"),
        _format_since(side.version_since, now),
        format_duration(item["age"]),
    ]


def _format_since(micros: int | None, now: float) -> str:
    return "-" if micros is None else format_duration(now - micros / _MICROS)


def format_size(value: float) -> str:
    """Return a number of bytes in its largest unit."""
    for unit, size in (("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)):
        if value >= size:
            return f"{value / size:.1f}{unit}"
    return f"{value:.0f}"
