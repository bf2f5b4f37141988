"""Rate limiter of all status writes of this process, which adapts to the API server.

The number of requests in flight grows while responses are fast. It is halved when they are slow or
the server rejects requests. Requests that an agent waits for have priority.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from streambroker_operator.cooperative import loop_time
from streambroker_operator.errors import RequestError
from streambroker_operator.security.token_buckets import TokenBuckets

FIRST_IN_FLIGHT = 2
"""Initial requests in flight; about 130 fast responses reach the maximum."""
MAX_IN_FLIGHT = 16
"""Maximum requests in flight: a small part of what the API server grants to one flow."""
SLOW_S = 0.1
"""Minimum duration of a slow response, in seconds."""
SLOW_FACTOR = 3.0
"""A slow response also takes this many times as long as the fastest recent one."""

_TICK_S = 0.001
_FORGET_S = 600.0
"""Seconds after which the fastest response counts as twice as slow."""


class CongestionWindow:
    """Limit of requests in flight: additive increase, multiplicative decrease.

    All times are of one monotonic clock, in seconds.
    """

    def __init__(self) -> None:
        self._size = float(FIRST_IN_FLIGHT)
        self._quickest = math.inf
        self._last = 0.0
        self._halved_at = -math.inf

    @property
    def size(self) -> int:
        """Current limit of requests in flight."""
        return int(self._size)

    def on_answer(self, began: float, now: float, *, refused: bool = False) -> None:
        """Adapt the limit to a response: when its request was sent (`began`), and when it arrived.

        `refused` means that the server could not handle it: 429, 5xx or no response.
        """
        duration = now - began
        is_slow = duration > max(SLOW_S, SLOW_FACTOR * self._quickest)
        aged_quickest = self._quickest * 2.0 ** min(10.0, (now - self._last) / _FORGET_S)
        self._quickest, self._last = min(duration, aged_quickest), now
        if not refused and not is_slow:
            self._size = min(MAX_IN_FLIGHT, self._size + 1 / self._size)
        elif began >= self._halved_at:
            # Requests sent before the last halving belong to the same overload: count it once.
            self._size, self._halved_at = max(1.0, self._size / 2), now


class WriteRateLimiter:
    """Slots for requests in flight, and tokens if the rate is limited.

    All methods are called on one event loop.

    Args:
        per_s: maximum writes per second; 0 for no limit.
    """

    def __init__(self, per_s: float = 0.0) -> None:
        self._bucket = TokenBuckets(per_s, max(1, round(per_s / 2))) if per_s else None
        self._window = CongestionWindow()
        self._in_flight = 0
        # First queue: requests that an agent waits for. Second queue: all others.
        self._waiting: tuple[deque[asyncio.Future[None]], deque[asyncio.Future[None]]]
        self._waiting = deque(), deque()

    async def take_token(self) -> None:
        """Wait for a token and take it."""
        while self._bucket is not None:
            wait = self._bucket.take("", loop_time())
            if not wait:
                return
            await asyncio.sleep(max(wait, _TICK_S))

    async def wait_for_token(self) -> None:
        """Wait until a token is available, before a `write` that no agent waits for."""
        while self._bucket is not None:
            wait = self._bucket.wait("", loop_time(), 0)
            if not wait:
                return
            await asyncio.sleep(max(wait, _TICK_S))

    async def acquire(self, *, has_priority: bool = False) -> None:
        """Wait for a slot and take it; requests that an agent waits for have priority."""
        if self._in_flight < self._window.size and not any(self._waiting):
            self._in_flight += 1
            return
        slot: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue = self._waiting[0 if has_priority else 1]
        queue.append(slot)
        try:
            await slot
        except asyncio.CancelledError:
            if not slot.cancelled():
                self._in_flight -= 1
            elif slot in queue:
                queue.remove(slot)
            self._admit()
            raise

    def release(self) -> None:
        """Release a slot."""
        self._in_flight -= 1
        self._admit()

    def _admit(self) -> None:
        while self._in_flight < self._window.size and any(self._waiting):
            slot = (self._waiting[0] or self._waiting[1]).popleft()
            if not slot.done():
                self._in_flight += 1
                slot.set_result(None)

    def on_answer(self, began: float, *, refused: bool = False) -> None:
        """Adapt to a response, before `release`; arguments as in `CongestionWindow.on_answer`."""
        self._window.on_answer(began, loop_time(), refused=refused)

    @asynccontextmanager
    async def write(self, *, has_priority: bool) -> AsyncIterator[None]:
        """Acquire a slot for one request; it does not wait for a token, but charges one."""
        if self._bucket is not None and self._bucket.take("", loop_time()):
            self._bucket.charge("", 1)
        await self.acquire(has_priority=has_priority)
        started_at = loop_time()
        try:
            yield
            self.on_answer(started_at)
        except RequestError as error:
            self.on_answer(started_at, refused=error.status == 429 or error.status >= 500)
            raise
        finally:
            self.release()
