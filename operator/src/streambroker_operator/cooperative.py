"""Helpers for long work on the event loop: yielding in turns, pausing garbage collection."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

TURN_S = 0.01
"""Longest run before other tasks get a turn, in seconds."""


def loop_time() -> float:
    """Return the monotonic time of the running event loop, in seconds."""
    return asyncio.get_running_loop().time()


async def run_in_turns(steps: Iterable[None]) -> None:
    """Execute steps, and yield to other tasks every `TURN_S`."""
    began = time.monotonic()
    for _ in steps:
        if time.monotonic() - began > TURN_S:
            await asyncio.sleep(0)
            began = time.monotonic()


class _GcPauses:
    count = 0
    collecting = True


FREEZE_MIN = 1000
"""Minimum number of loaded resources for a freeze."""


def freeze_gc(count: int) -> None:
    """Exclude the objects loaded so far from garbage collection, if there are many."""
    if count >= FREEZE_MIN:
        gc.freeze()


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause the garbage collector while long-lived objects are loaded.

    For 100,000 resources each collection takes most of a second.
    """
    if _GcPauses.count == 0:
        _GcPauses.collecting = gc.isenabled()
        gc.disable()
    _GcPauses.count += 1
    try:
        yield
    finally:
        _GcPauses.count -= 1
        if _GcPauses.count == 0 and _GcPauses.collecting:
            gc.enable()
