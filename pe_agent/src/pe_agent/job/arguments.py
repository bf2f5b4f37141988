"""Arguments of the job's API: errors, durations, and choices."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from datetime import datetime
from difflib import get_close_matches
from enum import StrEnum
from typing import TypeVar

from streambroker_core.errors import StreambrokerError
from streambroker_core.model.durations import FORMS, Duration, in_microseconds
from streambroker_core.wire.encoding.start import START_FORMS, is_start


class ArgumentError(StreambrokerError):
    """Arguments that exclude each other, or one that is wrong; nothing was declared."""

    code = "ArgumentInvalid"


class Choice(StrEnum):
    """Values of a setting; each is also its text."""


class Congestion(Choice):
    """What an export does while a reader holds all of its buffer."""

    WAIT = "wait"
    DROP = "drop"


class OnCongestion(Choice):
    """Policy of an import: that of the export, or to lose rows rather than hold it up."""

    INHERIT = "inherit"
    DROP = "drop"


class StartAt(Choice):
    """Where an import starts in an export that it has never read, if at no certain time."""

    LATEST = "latest"
    EARLIEST = "earliest"


class Missing(Choice):
    """What a main row gets for a key without a value."""

    NULL = "null"
    ERROR = "error"
    WAIT = "wait"


_LONGEST = 1e300
"""Seconds from which a duration is for ever; larger integers are no floating-point numbers."""
_MOVED_KEYWORDS = {
    "buckets": "options=OperatorOptions(buckets=…)",
    "control": "control_file=…",
    "counts": "options=OperatorOptions(counts=True)",
    "figures": "options=OperatorOptions(metrics=True)",
    "report": "options=OperatorOptions(report=True)",
    "tell": "on_outcomes=…",
    "watermark": "stream.with_watermark(column, delay)",
}
_C = TypeVar("_C", bound=Choice)


def seconds(duration: Duration, name: str) -> float:
    """Return a duration in seconds; a number is returned as it is.

    Raises:
        ArgumentError: the argument ``name`` is no duration.
    """
    if isinstance(duration, int | float) and not isinstance(duration, bool):
        if duration > _LONGEST:
            return math.inf
        if duration <= _LONGEST:  # false for NaN
            return float(max(-_LONGEST, duration))
    microseconds = in_microseconds(duration)
    if microseconds is None:
        raise ArgumentError(f"{name} is {duration!r}, which is no duration: {FORMS}.")
    return microseconds / 1_000_000


def check_choice(kind: type[_C], value: str, name: str) -> str:
    """Return the text of a choice.

    Raises:
        ArgumentError: the argument ``name`` has none of the values.
    """
    try:
        return str(kind(value).value)
    except ValueError:
        known = " or ".join(repr(one.value) for one in kind)
        raise ArgumentError(f"{name} is {value!r}; it has to be {known}.") from None


def check_keywords(function: str, given: Mapping[str, object], known: Collection[str]) -> None:
    """Raise a TypeError, as Python does, for a keyword argument that a function does not have."""
    for name in given:
        if name not in known:
            near = get_close_matches(name, list(known), n=1)
            hint = f". Did you mean {near[0]!r}?" if near else ""
            if name in _MOVED_KEYWORDS:
                hint = f". Use {_MOVED_KEYWORDS[name]}."
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}{hint}")


def check_start(start: StartAt | datetime | str, name: str) -> str:
    """Return a start, or an end, as text; raise ArgumentError if it is none."""
    text = start.isoformat() if isinstance(start, datetime) else str(start)
    if not is_start(text):
        raise ArgumentError(f"{name} is {start!r}; it has to be {START_FORMS}.")
    return text
