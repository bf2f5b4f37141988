"""Sizes and durations as Kubernetes users write them: ``256Mi``, ``1h30m``."""

from __future__ import annotations

import re

MAX_SIZE = 10**18
"""Maximum bytes of a size without a unit; about an exabyte."""

_SIZE = re.compile(
    r"[1-9]([0-9]{0,17}|[0-9]{0,14}(k|Ki)|[0-9]{0,11}(M|Mi)|[0-9]{0,8}(G|Gi)|[0-9]{0,5}(T|Ti))"
)
_PARTS = re.compile(r"([0-9]+)([A-Za-z]*)")
_DURATION = re.compile(r"(?:[0-9]{1,12}(?:ms|s|m|h|d))+")
_PART = re.compile(r"([0-9]+)(ms|s|m|h|d)")

_BYTES = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 1 << 10,
    "Mi": 1 << 20,
    "Gi": 1 << 30,
    "Ti": 1 << 40,
}
_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_size(value: object) -> int | None:
    """Return bytes for ``1Gi``, ``500k`` or a positive integer; None for anything else.

    >>> parse_size("1Gi"), parse_size(4096), parse_size("1.5Gi")
    (1073741824, 4096, None)
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value if 0 < value <= MAX_SIZE else None
    if not isinstance(value, str) or _SIZE.fullmatch(value) is None:
        return None
    count, unit = _PARTS.findall(value)[0]
    return int(count) * _BYTES[unit]


def format_size(size: int) -> str:
    """Return the shortest exact text of a number of bytes.

    >>> format_size(1 << 30), format_size(1000)
    ('1Gi', '1000')
    """
    for unit in ("Ti", "Gi", "Mi", "Ki"):
        if size % _BYTES[unit] == 0:
            return f"{size // _BYTES[unit]}{unit}"
    return str(size)


def parse_duration(value: object) -> float | None:
    """Return seconds for ``1h``, ``1h30m`` or ``250ms``; None for anything else.

    >>> parse_duration("1h30m"), parse_duration("250ms"), parse_duration("soon")
    (5400.0, 0.25, None)
    """
    if not isinstance(value, str) or len(value) > 32 or _DURATION.fullmatch(value) is None:
        return None
    return sum(int(count) * _MS[unit] for count, unit in _PART.findall(value)) / 1000


def format_duration(seconds: float) -> str:
    """Return the text of a duration in its largest exact unit.

    >>> format_duration(5400.0), format_duration(0.25)
    ('90m', '250ms')
    """
    milliseconds = round(seconds * 1000)
    for unit in ("d", "h", "m", "s"):
        if milliseconds and milliseconds % _MS[unit] == 0:
            return f"{milliseconds // _MS[unit]}{unit}"
    return f"{milliseconds}ms" if milliseconds else "0s"
