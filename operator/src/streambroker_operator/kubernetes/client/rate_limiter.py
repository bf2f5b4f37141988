"""How fast statuses are written: as fast as the API server answers, by all of this process.

The number of requests in flight follows the API server: it grows while answers are quick and is
halved when they are slow or the server refuses. Requests that an agent waits for go first.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from streambroker_operator.errors import RequestError
from streambroker_operator.rest.guard.rate_limits import TokenBuckets

FIRST_IN_FLIGHT = 2
"""Requests in flight at first; a thousand quick answers later the limit is reached."""
MAX_IN_FLIGHT = 16
"""Requests in flight at most: a small part of what the API server grants to one flow."""
SLOW_S = 0.1
"""An answer that takes longer is slow, in seconds, unless all take about as long."""
SLOW_FACTOR = 3.0
"""An answer is slow only if it takes so many times as long as the quickest of late."""

_TICK_S = 0.001
_FORGET_S = 600.0
"""So many seconds later the quickest answer counts as having taken twice as long."""


class CongestionWindow:
    """How many requests may be in flight: additive increase, multiplicative decrease.

    All times are those of one monotonic clock, in seconds.
    """

    def __init__(self) -> None:
        self._size = float(FIRST_IN_FLIGHT)
        self._quickest = math.inf
        self._last = 0.0
        self._halved_at = -math.inf

    @property
    def size(self) -> int:
        """How many requests may be in flight now."""
        return int(self._size)

    def on_answer(self, began: float, now: float, *, refused: bool = False) -> None:
        """Adapt the size to an answer.

        Args:
            began: when the request was sent.
            now: when it was answered.
            refused: whether the server could not take it: 429, 5xx or no answer at all.
        """
        took = now - began
        slow = took > max(SLOW_S, SLOW_FACTOR * self._quickest)
        faded = self._quickest * 2.0 ** min(10.0, (now - self._last) / _FORGET_S)
        self._quickest, self._last = min(took, faded), now
        if not refused and not slow:
            self._size = min(MAX_IN_FLIGHT, self._size + 1 / self._size)
        elif began >= self._halved_at:
            # Requests sent before the last halving met the same trouble; they count once.
            self._size, self._halved_at = max(1.0, self._size / 2), now


class WriteRateLimiter:
    """Places for requests in flight, and tokens if their rate is limited.

    All methods are called on one event loop.

    Args:
        per_s: writes per second at most; 0 for no limit.
    """

    def __init__(self, per_s: float = 0.0) -> None:
        self._bucket = TokenBuckets(per_s, max(1, round(per_s / 2))) if per_s else None
        self._window = CongestionWindow()
        self._in_flight = 0
        # Of those an agent waits for, then of all others.
        self._waiting: tuple[deque[asyncio.Future[None]], deque[asyncio.Future[None]]]
        self._waiting = deque(), deque()

    async def take_token(self) -> None:
        """Take a token; wait for it."""
        while self._bucket is not None:
            wait = self._bucket.take("", self._now())
            if not wait:
                return
            await asyncio.sleep(max(wait, _TICK_S))

    async def wait_for_token(self) -> None:
        """Wait until there is a token, for a `write` that no agent waits for."""
        while self._bucket is not None:
            wait = self._bucket.wait("", self._now(), 0)
            if not wait:
                return
            await asyncio.sleep(max(wait, _TICK_S))

    async def acquire(self, *, has_priority: bool = False) -> None:
        """Take a place; wait for it.

        Args:
            has_priority: of those that are not; an agent waits for this request.
        """
        if self._in_flight < self._window.size and not any(self._waiting):
            self._in_flight += 1
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line = self._waiting[0 if has_priority else 1]
        line.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if not place.cancelled():
                self._in_flight -= 1
            elif place in line:
                line.remove(place)
            self._admit()
            raise

    def release(self) -> None:
        """Give a place back."""
        self._in_flight -= 1
        self._admit()

    def _admit(self) -> None:
        while self._in_flight < self._window.size and any(self._waiting):
            place = (self._waiting[0] or self._waiting[1]).popleft()
            if not place.done():
                self._in_flight += 1
                place.set_result(None)

    def on_answer(self, began: float, *, refused: bool = False) -> None:
        """Adapt to an answer of the API server, before `end`; arguments of `CongestionWindow`."""
        self._window.on_answer(began, self._now(), refused=refused)

    @asynccontextmanager
    async def write(self, *, has_priority: bool) -> AsyncIterator[None]:
        """Make one request while this is open; it does not wait for a token, but others owe it.

        Args:
            has_priority: as of `begin`.
        """
        if self._bucket is not None and self._bucket.take("", self._now()):
            self._bucket.charge("", 1)
        await self.acquire(has_priority=has_priority)
        began = self._now()
        try:
            yield
            self.on_answer(began)
        except RequestError as error:
            self.on_answer(began, refused=error.status == 429 or error.status >= 500)
            raise
        finally:
            self.release()

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
