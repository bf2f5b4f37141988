"""Work that is long: done by turns on the loop, and without the collector of garbage."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

TURN_S = 0.01
"""So long work goes on before others have their turn."""


async def run_in_turns(steps: Iterable[None]) -> None:
    """Do work step by step, and let others have their turn every few milliseconds."""
    began = time.monotonic()
    for _ in steps:
        if time.monotonic() - began > TURN_S:
            await asyncio.sleep(0)
            began = time.monotonic()


class _GcPauses:
    """How many there are that want no collector now, and whether it is to be back after them."""

    count = 0
    collecting = True


FREEZE_MIN = 1000
"""Resources that are worth being passed over."""


def freeze_gc(count: int) -> None:
    """Have the collector of garbage pass over what there is by now, if so much was loaded."""
    if count >= FREEZE_MIN:
        gc.freeze()


@contextmanager
def gc_paused() -> Iterator[None]:
    """Keep the collector of garbage from looking for it in what is being loaded, and stays.

    For 100,000 resources that takes most of a second each time.
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
