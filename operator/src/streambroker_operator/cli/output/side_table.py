"""What ``top`` shows of side inputs: what waits for them, and how large they are."""

from __future__ import annotations

from collections.abc import Sequence

from streambroker_core.wire.encoding.fields import Fields
from streambroker_core.wire.reports.side_status import ToldSide, read_sides, sentence
from streambroker_operator.cli.io.targets import Item
from streambroker_operator.cli.io.terminal import Colour, flat, lasted, paint, plain
from streambroker_operator.cli.output.table import widths_of

HEAD = [
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
_RIGHT = (0, 1, 5, 6, 7, 8, 9, 11, 12)
_MICROS = 1_000_000


def side_lines(sides: Sequence[Item], now: float, columns: int | None = None) -> list[str]:
    """Return a table of side inputs, its head first, and then a line for each thing waited for.

    Args:
        sides: as the broker answers them.
        now: seconds since 1970.
        columns: where lines are cut; None for nowhere.
    """
    if not sides:
        return []
    read = read_sides(Fields({"sides": list(sides)}), "sides")
    told = sorted(
        zip(sides, read, strict=True),
        key=lambda one: (-one[1].waiting_rows, one[0]["pe"], one[1].operator, one[1].input),
    )
    rows = [HEAD, *(_row(item, side, now) for item, side in told)]
    widths = widths_of(rows)
    lines = []
    for row, side in zip(rows, [None, *(side for _, side in told)], strict=True):
        cells = [
            cell.rjust(width) if place in _RIGHT else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        colour: Colour | None = "yellow" if side is not None and side.waiting_rows else None
        lines.append(paint("  ".join(cells).rstrip()[:columns], colour))
    stalls = [
        f"{item['pe']} {side.operator}: {sentence(stall, int(now * _MICROS))}"
        for item, side in told
        for stall in side.stalls
    ]
    return [*lines, *(flat(line)[:columns] for line in stalls)]


def _row(item: Item, side: ToldSide, now: float) -> list[str]:
    return [
        f"{side.waiting_rows:,}",
        _since(side.waiting_since, now),
        plain(item["pe"]),
        plain(side.operator),
        plain(side.input),
        f"{side.entries:,}",
        size_text(side.size),
        f"{side.staged:,}",
        f"{side.late:,}",
        f"{side.refused:,}",
        plain(side.version or "-"),
        _since(side.version_since, now),
        lasted(item["age"]),
    ]


def _since(micros: int | None, now: float) -> str:
    return "-" if micros is None else lasted(now - micros / _MICROS)


def size_text(value: float) -> str:
    """Return bytes in their largest unit."""
    for unit, size in (("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)):
        if value >= size:
            return f"{value / size:.1f}{unit}"
    return f"{value:.0f}"
