"""Wait for a fact, not for a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_PAUSE_SECONDS = 0.005


def until(
    condition: Callable[[], T | None], seconds: float, what: str, *, pause_s: float = _PAUSE_SECONDS
) -> T:
    """Return the first true value of ``condition``.

    Args:
        condition: asked again and again.
        seconds: how long at most.
        what: the fact waited for, for the message.
        pause_s: seconds between two questions; more where asking is dear.

    Raises:
        AssertionError: it did not come true in time; the message has the last value.
    """
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {seconds} s: {what}; last answer: {value!r}")
        pause.wait(pause_s)
