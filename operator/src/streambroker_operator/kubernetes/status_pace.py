"""How fast statuses are written: by all in this process together, as few at a time as is enough.

The status of a resource is written for people, and for agents: where they are. What an agent waits
for goes ahead, and what is written for people waits the longer for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from streambroker_operator.rest.limits import Buckets

IN_FLIGHT = 2
"""Requests at a time; more only make everybody else wait."""
PER_S = 40.0
"""A thousand statuses take less than half a minute; faster would only slow other writes down."""
BURST = 20

_TICK_S = 0.001


class StatusPace:
    """Tokens for writes, and places for those under way.

    All methods are called on one event loop.

    Args:
        per_s: writes per second, in the long run.
        burst: writes that may be made at once after some rest.
    """

    def __init__(self, per_s: float = PER_S, burst: int = BURST) -> None:
        self._bucket = Buckets(per_s, burst)
        self._places = asyncio.Semaphore(IN_FLIGHT)

    async def token(self) -> None:
        """Take a token; wait for it."""
        while True:
            wait = self._bucket.take("", self._now())
            if not wait:
                return
            await asyncio.sleep(max(wait, _TICK_S))

    async def turn(self) -> None:
        """Wait until there is a token, for one of `ahead`."""
        while True:
            wait = self._bucket.wait("", self._now(), 0)
            if not wait:
                return
            await asyncio.sleep(max(wait, _TICK_S))

    async def begin(self) -> None:
        """Take a place; wait for it."""
        await self._places.acquire()

    def end(self) -> None:
        """Give a place back."""
        self._places.release()

    @asynccontextmanager
    async def ahead(self) -> AsyncIterator[None]:
        """Write while this is open: at once but for a place, and others owe the token."""
        if self._bucket.take("", self._now()):
            self._bucket.charge("", 1)
        await self.begin()
        try:
            yield
        finally:
            self.end()

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
