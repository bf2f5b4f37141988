"""Parse durations: ``10s``, ``10 seconds``, ``1h30m``, ``PT10S``."""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import Decimal
from typing import TypeAlias

Duration: TypeAlias = "timedelta | float | str"
"""A timedelta, a number of seconds, or a text: ``10s``, ``1h30m``, ``10 seconds``, ``PT10S``."""

FORMS = "write a timedelta, seconds, or text: `250ms`, `10s`, `1h30m`, `10 seconds` or `PT10S`"
LONGEST = 2**62

_UNITS = {
    **dict.fromkeys(("us", "microsecond", "microseconds"), 1),
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 10**3),
    **dict.fromkeys(("s", "sec", "second", "seconds"), 10**6),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60 * 10**6),
    **dict.fromkeys(("h", "hour", "hours"), 3600 * 10**6),
    **dict.fromkeys(("d", "day", "days"), 86400 * 10**6),
    **dict.fromkeys(("w", "week", "weeks"), 7 * 86400 * 10**6),
}
_NUMBER = r"\d{1,18}(?:\.\d{1,18})?"
_PART = re.compile(rf"({_NUMBER})\s*([a-z]+)")
_TEXT = re.compile(rf"(?:interval\s+)?({_NUMBER}\s*[a-z]+(?:\s*{_NUMBER}\s*[a-z]+)*)")
_ISO = re.compile(
    rf"p(?:(?P<w>{_NUMBER})w)?(?:(?P<d>{_NUMBER})d)?"
    rf"(?:t(?:(?P<h>{_NUMBER})h)?(?:(?P<m>{_NUMBER})m)?(?:(?P<s>{_NUMBER})s)?)?"
)


def in_microseconds(value: object) -> int | None:
    """Return a duration in whole microseconds, 0 or more; None if the value is invalid.

    >>> in_microseconds("10s"), in_microseconds("1 minute 30 seconds"), in_microseconds("PT1.5S")
    (10000000, 90000000, 1500000)
    >>> in_microseconds(0.25), in_microseconds("soon"), in_microseconds(-1)
    (250000, None, None)
    """
    microseconds: int | None = None
    if isinstance(value, timedelta):
        microseconds = value // timedelta(microseconds=1)
    elif isinstance(value, str):
        microseconds = _read(value.strip().lower())
    elif isinstance(value, int | float) and not isinstance(value, bool):
        microseconds = round(value * 10**6) if abs(value) < LONGEST / 10**6 else None
    return microseconds if microseconds is not None and 0 <= microseconds < LONGEST else None


def _read(text: str) -> int | None:
    iso = _ISO.fullmatch(text)
    if iso is not None:
        parts = [(digits, unit) for unit, digits in iso.groupdict().items() if digits]
    else:
        parsed = _TEXT.fullmatch(text)
        parts = _PART.findall(parsed[1]) if parsed else []
    if not parts or any(unit not in _UNITS for _, unit in parts):
        return None
    return round(sum(Decimal(digits) * _UNITS[unit] for digits, unit in parts))
