"""Run a coroutine in virtual time: where nothing can happen now, the clock jumps."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Jumping(selectors.SelectSelector):
    """Waits for nothing; tells how long it should have waited."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if timeout is None and not found:
            raise RuntimeError("everything waits, and nothing will ever happen")
        if not found:
            self.now += max(0.0, timeout or 0.0)
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes at once."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def run(main: Coroutine[Any, Any, T], *beside: Coroutine[Any, Any, None]) -> T:
    """Return what a coroutine returns; others run beside it and are cancelled at its end."""

    async def both() -> T:
        first = asyncio.ensure_future(main)
        others = [asyncio.ensure_future(one) for one in beside]
        try:
            await asyncio.wait([first, *others], return_when=asyncio.FIRST_COMPLETED)
            assert first.done(), [task for task in others if task.done()]
            return first.result()
        finally:
            for task in (first, *others):
                task.cancel()
            await asyncio.gather(first, *others, return_exceptions=True)

    loop = VirtualLoop()
    try:
        return loop.run_until_complete(both())
    finally:
        loop.close()
