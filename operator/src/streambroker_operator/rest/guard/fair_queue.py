"""Queue that runs one expensive request at a time, fairly among callers."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from streambroker_operator.rest.guard.rate_limits import too_many_error

MAX_WAITING = 8
"""Waiting requests of one caller, at most."""


class FairQueue:
    """Runs one request at a time; the next is of the caller that was not served for longest.

    A caller with many requests delays others by one request at most.
    """

    def __init__(self, limit: int = MAX_WAITING) -> None:
        self._limit = limit
        self._busy = False
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @asynccontextmanager
    async def turn(self, caller: str) -> AsyncIterator[None]:
        """Hold the caller's turn while the block runs; raise 429 if too many requests wait."""
        await self._wait(caller)
        try:
            yield
        finally:
            self._next()

    async def _wait(self, caller: str) -> None:
        if not self._busy:
            self._busy = True
            return
        mine = self._waiting.get(caller, ())
        if len(mine) >= self._limit:
            raise too_many_error(
                f"{self._limit} such requests of one caller are waiting already.", 1.0
            )
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(caller, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._cancel(caller, turn)
            else:
                self._next()
            raise

    def _cancel(self, caller: str, turn: asyncio.Future[None]) -> None:
        mine = self._waiting[caller]
        mine.remove(turn)
        if not mine:
            del self._waiting[caller]

    def _next(self) -> None:
        while self._waiting:
            caller, mine = self._waiting.popitem(last=False)
            turn = mine.popleft()
            if mine:
                self._waiting[caller] = mine
            turn.set_result(None)
            return
        self._busy = False


FAIR_QUEUE = web.AppKey("turns", FairQueue)
"""Orders requests that scan all resources, so that other requests keep most of the CPU."""
