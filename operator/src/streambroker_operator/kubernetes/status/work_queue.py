"""Work queue of the status writer: a set of names, not of writes.

The status is computed when its name is taken, so outdated content is never sent. A failed name
returns after a delay that grows with each failure.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)

SETTLE_S = 1.0
"""Seconds to wait for further changes before a write: most are programmed by then."""
MAX_PACE_S = 10.0
"""Longest wait in seconds between two writes of a name that changes all the time."""
FIRST_DELAY_S = 0.5
MAX_DELAY_S = 60.0
URGENT, LIVE, IDLE = range(3)
"""Ranks: among due names the lowest goes first; `URGENT` does not wait to settle."""
_MIN_PACES = 1024


def retry_delay_s(attempt: int, jitter: float) -> float:
    """Return the delay in seconds before a retry; `attempt` counts failures from 1.

    `jitter` (random, 0 to 1) spreads the delay over its upper half.
    """
    max_delay = min(MAX_DELAY_S, FIRST_DELAY_S * 2.0 ** min(attempt - 1, 30))
    return max_delay * (0.5 + 0.5 * jitter)


@dataclass(slots=True)
class _Entry:
    due: float
    rank: int
    is_retry: bool
    """Failed before, so `due` must not become earlier."""


class _WritePace(NamedTuple):
    """Time of the last write of a name, and the minimum seconds until the next."""

    at: float
    pace: float

    def is_recent(self, now: float) -> bool:
        return now - self.at < 2 * MAX_PACE_S


class WorkQueue(Generic[K]):
    """Queue of names, ordered by rank and then by due time.

    A name that changes again soon after a write waits longer each time. A status that changes
    faster than it can be read only takes API server capacity from the changes themselves.

    All times are of one monotonic clock, in seconds.

    Args:
        settle_s: seconds that non-urgent names wait for further changes.
    """

    def __init__(self, settle_s: float = SETTLE_S) -> None:
        self._settle_s = settle_s
        self._waiting: dict[K, _Entry] = {}
        self._order: list[tuple[float, int, K]] = []
        self._due: tuple[dict[K, None], ...] = ({}, {}, {})
        # Taken names, with the rank if they were offered again meanwhile, else None.
        self._in_progress: dict[K, int | None] = {}
        self._failures: dict[K, int] = {}
        self._paces: dict[K, _WritePace] = {}
        self._most_paces = _MIN_PACES
        self._sequence = itertools.count()

    def __len__(self) -> int:
        return len(self._waiting) + sum(map(len, self._due))

    def offer(self, key: K, now: float, *, rank: int = IDLE) -> None:
        """Enqueue a name; repeated requests can only improve its rank."""
        if key in self._in_progress:
            before = self._in_progress[key]
            self._in_progress[key] = rank if before is None else min(rank, before)
            return
        for current_rank, names in enumerate(self._due):
            if key in names:
                if rank < current_rank:
                    del names[key]
                    self._due[rank][key] = None
                return
        entry = self._waiting.get(key)
        if entry is not None:
            promoted = rank == URGENT and entry.rank != URGENT and not entry.is_retry
            entry.rank = min(rank, entry.rank)
            if not promoted:
                return
        due = now if rank == URGENT else self._settled_at(key, now)
        self._wait(key, _Entry(due=due, rank=rank, is_retry=False))

    def take(self, now: float) -> K | None:
        """Take the next due name until `done` or `failed`; None if none is due."""
        while (due := self._next_waiting()) is not None and due <= now:
            key = heapq.heappop(self._order)[2]
            entry = self._waiting.pop(key)
            self._due[entry.rank][key] = None
        for names in self._due:
            if names:
                key = next(iter(names))
                del names[key]
                self._in_progress[key] = None
                return key
        return None

    def next_at(self) -> float | None:
        """Return when `take` will have a name; None if nothing waits."""
        if any(self._due):
            return float("-inf")
        return self._next_waiting()

    def done(self, key: K, now: float, *, wrote: bool = False) -> None:
        """Complete a taken name; enqueue it again if it was offered meanwhile."""
        self._failures.pop(key, None)
        if wrote:
            last = self._paces.get(key)
            is_recent = last is not None and last.is_recent(now)
            pace = 2 * last.pace if last is not None and is_recent else self._settle_s
            self._paces[key] = _WritePace(at=now, pace=min(pace, MAX_PACE_S))
            self._forget_paces(now)
        again = self._in_progress.pop(key, None)
        if again is not None:
            self.offer(key, now, rank=again)

    def failed(self, key: K, now: float, *, jitter: float, after_s: float = 0.0) -> None:
        """Complete a taken name and enqueue it again after a delay, at least `after_s`."""
        failures = self._failures.get(key, 0) + 1
        self._failures[key] = failures
        again = self._in_progress.pop(key, None)
        due = now + max(after_s, retry_delay_s(failures, jitter))
        self._wait(key, _Entry(due=due, rank=IDLE if again is None else again, is_retry=True))

    def clear(self) -> None:
        """Drop all waiting names; taken names stay taken until completed."""
        self._waiting.clear()
        self._order.clear()
        for names in self._due:
            names.clear()
        self._failures.clear()
        for key in self._in_progress:
            self._in_progress[key] = None

    def _settled_at(self, key: K, now: float) -> float:
        """Return when the settle time of an offered name ends."""
        last = self._paces.get(key)
        settled = now + self._settle_s
        return settled if last is None else max(settled, last.at + last.pace)

    def _forget_paces(self, now: float) -> None:
        """Drop old entries once there are many."""
        if len(self._paces) > self._most_paces:
            self._paces = {key: pace for key, pace in self._paces.items() if pace.is_recent(now)}
            self._most_paces = max(_MIN_PACES, 2 * len(self._paces))

    def _next_waiting(self) -> float | None:
        """Return when the next waiting name is due; drop outdated heap entries."""
        while self._order:
            due, _, key = self._order[0]
            entry = self._waiting.get(key)
            if entry is not None and entry.due == due:
                return due
            heapq.heappop(self._order)
        return None

    def _wait(self, key: K, entry: _Entry) -> None:
        self._waiting[key] = entry
        heapq.heappush(self._order, (entry.due, next(self._sequence), key))
