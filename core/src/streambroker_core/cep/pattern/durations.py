"""Durations: microseconds inside, texts as ``10s`` in documents."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from streambroker_core.cep.pattern.errors import PatternArgumentError
from streambroker_core.model.durations import FORMS, Duration, in_microseconds

__all__ = ["Duration", "format_instant", "format_micros", "to_instant", "to_microseconds"]

_UNITS = {"us": 1, "ms": 10**3, "s": 10**6, "m": 60_000_000, "h": 3600 * 10**6, "d": 86400 * 10**6}
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def to_microseconds(value: Duration, *, stage: str | None = None) -> int:
    """Return a duration as whole microseconds, 0 or more.

    Raises:
        PatternArgumentError: it is negative, or is no duration.
    """
    whole = in_microseconds(value)
    if whole is None:
        raise PatternArgumentError(f"{value!r} is not a duration", stage=stage, remedy=FORMS)
    return whole


def to_instant(value: object) -> int | None:
    """Return a time as microseconds since 1970; None for always.

    Args:
        value: a datetime or a text in ISO 8601 with a zone, or microseconds since 1970; the least
            number of 64 bits, or None, for always.

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
    """Return microseconds since 1970 as ISO 8601; as they are where no calendar has them."""
    try:
        time = _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        return micros
    return time.isoformat().replace("+00:00", "Z")


def format_micros(duration: int) -> str:
    """Return microseconds as text, in the largest unit that leaves a whole number."""
    for unit in ("d", "h", "m", "s", "ms"):
        if duration and duration % _UNITS[unit] == 0:
            return f"{duration // _UNITS[unit]}{unit}"
    return f"{duration}us" if duration else "0s"
