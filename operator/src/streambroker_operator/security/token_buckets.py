"""Token buckets, which limit the rate of requests and datagrams."""

from __future__ import annotations

from collections import OrderedDict

MAX_BUCKETS = 10_000
"""Callers remembered; the least recently seen one is forgotten and restarts with a full bucket."""


class TokenBuckets:
    """One token bucket per caller: `per_s` tokens are added per second, up to `burst`.

    `now` is monotonic time in seconds.
    """

    def __init__(self, per_s: float, burst: int, max_callers: int = MAX_BUCKETS) -> None:
        self._per_s = per_s
        self._burst = float(burst)
        self._max_callers = max_callers
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str, now: float) -> float:
        """Take a token; return 0, or the seconds until there is one."""
        level = self._level(caller, now)
        wait = 0.0 if level >= 1.0 else (1.0 - level) / self._per_s
        self._levels[caller] = (level if wait else level - 1.0, now)
        self._levels.move_to_end(caller)
        if len(self._levels) > self._max_callers:
            self._levels.popitem(last=False)
        return wait

    def wait(self, caller: str, now: float, reserved: int = 0) -> float:
        """Return the seconds until a token is free after `reserved` others, without taking one."""
        return max(0.0, (1.0 + reserved - self._level(caller, now)) / self._per_s)

    def _level(self, caller: str, now: float) -> float:
        level, at = self._levels.get(caller, (self._burst, now))
        return min(self._burst, level + (now - at) * self._per_s)

    def charge(self, caller: str, tokens: int) -> None:
        """Take more tokens for a request already admitted; the level may become negative."""
        level = self._levels.get(caller)
        if level is not None:
            self._levels[caller] = (level[0] - tokens, level[1])
