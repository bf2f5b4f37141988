"""What goes to the terminal: plain text, colour where it is wanted, the time."""

from __future__ import annotations

import os
import sys
from datetime import datetime, timezone
from typing import Literal, TextIO

Colour = Literal["red", "green", "yellow", "dim", "bold"]

_CODES: dict[Colour, str] = {"red": "31", "green": "32", "yellow": "33", "dim": "2", "bold": "1"}


def print_text(text: str) -> None:
    """Write to the standard output, at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


def is_terminal(stream: TextIO | None = None) -> bool:
    """Say whether a person sees the stream; the standard output if none is given."""
    return (stream or sys.stdout).isatty()


def paint(text: str, colour: Colour | None, stream: TextIO | None = None) -> str:
    """Return the text in a colour, on a terminal and unless ``NO_COLOR`` is set."""
    if colour is None or not text or os.environ.get("NO_COLOR") or not is_terminal(stream):
        return text
    if os.environ.get("TERM") == "dumb":
        return text
    return f"\x1b[{_CODES[colour]}m{text}\x1b[0m"


def format_age(moment: str | None, now: datetime | None = None) -> str:
    """Return how long ago an ISO 8601 moment was: ``5s``, ``3m``, ``2h``, ``4d``; ``-`` if unknown.

    Args:
        moment: in UTC, as resources carry it.
        now: None for the present.
    """
    if not moment:
        return "-"
    try:
        return format_duration(seconds_since(moment, now))
    except ValueError:
        return "-"


def seconds_since(moment: str, now: datetime | None = None) -> float:
    """Return how long ago an ISO 8601 moment was.

    Args:
        moment: in UTC, as resources carry it.
        now: None for the present.

    Raises:
        ValueError: it is no moment.
    """
    then = datetime.fromisoformat(moment.replace("Z", "+00:00"))
    return ((now or datetime.now(timezone.utc)) - then).total_seconds()


def format_duration(seconds: float) -> str:
    """Return a time in its largest whole unit, as in ``90 -> 1m``."""
    whole = max(0, int(seconds))
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if whole >= size:
            return f"{whole // size}{unit}"
    return f"{whole}s"


def one_line(text: str) -> str:
    """Return a text on one line, without what would steer a terminal."""
    return sanitise(" ".join(text.split("\n")))


def sanitise(text: str) -> str:
    """Return a text without what would steer a terminal; line ends stay."""
    return "".join(c if c.isprintable() or c == "\n" else "�" for c in text)
