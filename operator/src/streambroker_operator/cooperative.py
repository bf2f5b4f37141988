"""Work that is long: done by turns on the loop, and without the collector of garbage."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

TURN_S = 0.01
"""So long work goes on before others have their turn."""


async def in_turns(steps: Iterable[None]) -> None:
    """Do work step by step, and let others have their turn every few milliseconds."""
    began = time.monotonic()
    for _ in steps:
        if time.monotonic() - began > TURN_S:
            await asyncio.sleep(0)
            began = time.monotonic()


class _Users:
    """How many there are that want no collector now, and whether it is to be back after them."""

    count = 0
    collecting = True


MANY = 1000
"""Resources that are worth being passed over."""


def keep_from_collector(count: int) -> None:
    """Have the collector of garbage pass over what there is by now, if so much was loaded."""
    if count >= MANY:
        gc.freeze()


@contextmanager
def without_collector() -> Iterator[None]:
    """Keep the collector of garbage from looking for it in what is being loaded, and stays.

    For 100,000 resources that takes most of a second each time.
    """
    if _Users.count == 0:
        _Users.collecting = gc.isenabled()
        gc.disable()
    _Users.count += 1
    try:
        yield
    finally:
        _Users.count -= 1
        if _Users.count == 0 and _Users.collecting:
            gc.enable()
