"""Wait for a fact, not for a time."""

from __future__ import annotations

import asyncio
import math
import select
import threading
import time
from collections.abc import Awaitable, Callable
from typing import IO, AnyStr, TypeVar

T = TypeVar("T")

_PAUSE_SECONDS = 0.005


def until(
    condition: Callable[[], T | None],
    seconds: float,
    what: str,
    *,
    pause_s: float = _PAUSE_SECONDS,
    progress: Callable[[], object] = lambda: None,
) -> T:
    """Return the first true value of ``condition``.

    When the time is over and ``progress`` gives something else than before, the time starts again.
    """
    deadline, reached = time.monotonic() + seconds, progress()
    pause = threading.Event()
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= deadline:
            before, reached = reached, progress()
            if before == reached:
                raise AssertionError(f"not within {seconds} s: {what}; last answer: {value!r}")
            deadline = time.monotonic() + seconds
        pause.wait(pause_s)


async def until_async(
    condition: Callable[[], Awaitable[T | None]], seconds: float, what: str, *, pause_s: float
) -> T:
    """Return the first true value of ``condition``, which is awaited; else as ``until``."""
    deadline = time.monotonic() + seconds
    while not (value := await condition()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}; it is {value!r}"
        await asyncio.sleep(pause_s)
    return value


def first_line(stream: IO[AnyStr], seconds: float, what: str) -> AnyStr:
    """Return the first line that another process says; an empty one if it says nothing and ends."""
    said, _, _ = select.select([stream], [], [], None if math.isinf(seconds) else seconds)
    assert said, f"not within {seconds} s: {what}; it has said nothing"
    return stream.readline()
