"""Where a reader starts in an export that it has never read.

``latest`` is at the rows to come, ``earliest`` at the oldest that are kept. A time, or a duration
before the reader's first request, is at the first epoch published from then on that is still kept.
"""

from __future__ import annotations

import re
from datetime import datetime

from streambroker_core.wire.encoding.quantity import parse_duration

START_FORMS = (
    "latest, earliest, a time with zone such as 2026-01-31T12:00:00Z,"
    " or a time ago such as -1h or -7d"
)

MAX_START = 33
"""Maximum characters of a start."""

_TIME = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})([.][0-9]{1,6})?"
    r"(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
)


def is_start(text: str) -> bool:
    """Return whether a text is a start.

    >>> [is_start(text) for text in ("latest", "-1h30m", "2026-01-31T12:00:00Z")]
    [True, True, True]
    >>> [is_start(text) for text in ("now", "1h", "2026-01-31", "2026-02-30T12:00:00Z")]
    [False, False, False, False]
    """
    return text in ("latest", "earliest") or start_time(text, 0.0) is not None


def start_time(text: str, now: float) -> float | None:
    """Return the time of a start in Unix seconds, None if it is no time.

    Args:
        text: the start.
        now: time from which a duration counts back, in Unix seconds.
    """
    if text.startswith("-"):
        ago = parse_duration(text[1:])
        return None if ago is None else now - ago
    if not _TIME.fullmatch(text):
        return None
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None
