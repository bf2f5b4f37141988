"""Terminal output: plain text, colours, and formatted times."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from typing import Literal, TextIO

Colour = Literal["red", "green", "yellow", "dim", "bold"]

_CODES: dict[Colour, str] = {"red": "31", "green": "32", "yellow": "33", "dim": "2", "bold": "1"}


def print_text(text: str) -> None:
    """Write to standard output and flush."""
    sys.stdout.write(text)
    sys.stdout.flush()


def is_terminal(stream: TextIO | None = None) -> bool:
    """Return whether a stream is a terminal; standard output by default."""
    return (stream or sys.stdout).isatty()


def paint(text: str, colour: Colour | None, stream: TextIO | None = None) -> str:
    """Return the text in a colour; unchanged without a capable terminal or with ``NO_COLOR``."""
    if colour is None or not text or os.environ.get("NO_COLOR") or not is_terminal(stream):
        return text
    if os.environ.get("TERM") == "dumb":
        return text
    return f"\x1b[{_CODES[colour]}m{text}\x1b[0m"


def format_age(moment: str | None, now: datetime | None = None) -> str:
    """Return the age of an ISO 8601 time: ``5s``, ``3m``, ``2h``, ``4d``; ``-`` if unknown."""
    if not moment:
        return "-"
    try:
        return format_duration(seconds_since(moment, now))
    except ValueError:
        return "-"


def seconds_since(moment: str, now: datetime | None = None) -> float:
    """Return the seconds since an ISO 8601 time in UTC.

    Raises:
        ValueError: invalid time.
    """
    then = datetime.fromisoformat(moment.replace("Z", "+00:00"))
    return ((now or datetime.now(UTC)) - then).total_seconds()


def format_duration(seconds: float) -> str:
    """Return a duration in its largest whole unit, as in ``90 -> 1m``."""
    total = max(0, int(seconds))
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if total >= size:
            return f"{total // size}{unit}"
    return f"{total}s"


def format_size(value: float) -> str:
    """Return a number of bytes in its largest unit."""
    for unit, size in (("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)):
        if value >= size:
            return f"{value / size:.1f}{unit}"
    return f"{value:.0f}"


def one_line(text: str) -> str:
    """Return a text on one line, without terminal control characters."""
    return sanitise(" ".join(text.split("\n")))


def is_printable(text: str) -> bool:
    """Return whether a text has no terminal control characters; line ends are none."""
    return text.replace("\n", "").isprintable()


def sanitise(text: str) -> str:
    """Return a text without terminal control characters; line ends stay."""
    return "".join(c if c.isprintable() or c == "\n" else "�" for c in text)
