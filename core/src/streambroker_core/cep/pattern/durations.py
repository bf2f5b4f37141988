"""Durations: microseconds in code, and texts such as ``10s`` in documents."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from streambroker_core.cep.pattern.errors import PatternArgumentError
from streambroker_core.model.durations import FORMS, Duration, in_microseconds

__all__ = ["Duration", "format_instant", "format_micros", "to_instant", "to_microseconds"]

_UNITS = {"us": 1, "ms": 10**3, "s": 10**6, "m": 60_000_000, "h": 3600 * 10**6, "d": 86400 * 10**6}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_microseconds(value: Duration, *, stage: str | None = None) -> int:
    """Convert a duration to whole microseconds, 0 or more.

    Raises:
        PatternArgumentError: it is negative, or not a duration.
    """
    micros = in_microseconds(value)
    if micros is None:
        raise PatternArgumentError(f"{value!r} is not a duration", stage=stage, remedy=FORMS)
    return micros


def to_instant(value: object) -> int | None:
    """Convert a time to microseconds since 1970; None for always.

    A time is a datetime or ISO 8601 text with a zone, or microseconds since 1970. None and -2^63
    mean always.

    Raises:
        PatternArgumentError: it is none of these.
    """
    if value is None or (type(value) is int and value == -(2**63)):
        return None
    if type(value) is int and -(2**63) < value < 2**63:
        return value
    time = value
    if isinstance(value, str):
        try:
            time = datetime.fromisoformat(value.replace("Z", "+00:00"))
        except ValueError:
            time = None
    if not isinstance(time, datetime) or time.tzinfo is None:
        raise PatternArgumentError(
            f"{value!r} is not a time",
            remedy="write it with its zone, as 2026-01-31T12:00:00Z, or as microseconds since 1970",
        )
    return (time - _EPOCH) // timedelta(microseconds=1)


def format_instant(micros: int) -> str | int:
    """Return microseconds since 1970 as ISO 8601; unchanged if outside of the calendar."""
    try:
        time = _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        return micros
    return time.isoformat().replace("+00:00", "Z")


def format_micros(duration: int) -> str:
    """Return microseconds as text, in the largest unit that yields a whole number."""
    for unit in ("d", "h", "m", "s", "ms"):
        if duration and duration % _UNITS[unit] == 0:
            return f"{duration // _UNITS[unit]}{unit}"
    return f"{duration}us" if duration else "0s"
