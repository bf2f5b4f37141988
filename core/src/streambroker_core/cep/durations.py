"""Durations: microseconds inside, texts as ``10s`` in documents."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TypeAlias

from streambroker_core.cep.refusals import PatternArgumentError

Duration: TypeAlias = "timedelta | float | str"
"""A timedelta, a number of seconds, or a text: ``250ms``, ``10s``, ``5m``, ``1h``, ``1d``."""

_UNITS = {"us": 1, "ms": 10**3, "s": 10**6, "m": 60_000_000, "h": 3600 * 10**6, "d": 86400 * 10**6}
_TEXT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(us|ms|s|m|h|d)\s*\Z")
_LONGEST = 2**62


def microseconds(value: Duration, *, stage: str | None = None) -> int:
    """Return a duration as whole microseconds, 0 or more.

    Raises:
        PatternArgumentError: it is negative, or is no duration.
    """
    whole = _read(value)
    if whole is None or not 0 <= whole < _LONGEST:
        raise PatternArgumentError(
            f"{value!r} is not a duration",
            stage=stage,
            remedy="write a timedelta, seconds, or a text such as `250ms`, `10s`, `5m`, `1h`, `1d`",
        )
    return whole


def _read(value: Duration) -> int | None:
    if isinstance(value, timedelta):
        return value // timedelta(microseconds=1)
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, str):
        found = _TEXT.match(value)
        return None if found is None else _scaled(found[1], _UNITS[found[2]])
    return round(value * 10**6) if abs(value) < _LONGEST / 10**6 else None


def text_of(duration: int) -> str:
    """Return microseconds as text, in the largest unit that leaves a whole number."""
    for unit in ("d", "h", "m", "s", "ms"):
        if duration and duration % _UNITS[unit] == 0:
            return f"{duration // _UNITS[unit]}{unit}"
    return f"{duration}us" if duration else "0s"


def _scaled(digits: str, unit: int) -> int:
    return int(digits) * unit if digits.isdigit() else round(float(digits) * unit)
