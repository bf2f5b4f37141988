"""Whose status is to be written next: a set of names, not a list of writes.

What is to be written is found out when its turn comes, so the newest wins and nothing old is ever
sent. Names come back after a failure, later each time.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)

SETTLE_S = 1.0
"""How long a change may settle before it is written, in seconds: most are programmed by then."""
MAX_PACE_S = 10.0
"""How long what changes all the time waits between two writes at last, in seconds."""
FIRST_DELAY_S = 0.5
MAX_DELAY_S = 60.0
URGENT, LIVE, IDLE = range(3)
"""Ranks: of names that are due the lower goes first, and `URGENT` does not wait to settle."""
_MIN_PACES = 1024


def retry_delay_s(attempt: int, jitter: float) -> float:
    """Return how long to wait before an attempt is made again, in seconds.

    Args:
        attempt: failures so far, from 1.
        jitter: from 0 to 1, random; spreads the delay over its upper half.
    """
    longest = min(MAX_DELAY_S, FIRST_DELAY_S * 2.0 ** min(attempt - 1, 30))
    return longest * (0.5 + 0.5 * jitter)


@dataclass(slots=True)
class _Entry:
    due: float
    rank: int
    is_retry: bool
    """It failed before, so `due` may not come sooner."""


class _WritePace(NamedTuple):
    """When something was last written, and for how long it may not be again."""

    at: float
    pace: float

    def is_recent(self, now: float) -> bool:
        """Say whether this was a moment ago, as such things go."""
        return now - self.at < 2 * MAX_PACE_S


class WorkQueue(Generic[K]):
    """Names in the order of their ranks, then in that in which they are due.

    What is written and changes again soon waits longer each time: a status that nobody has time
    to read only takes the API server's time from the changes themselves.

    All times are those of one monotonic clock, in seconds.

    Args:
        settle_s: how long what is not urgent waits for more to change.
    """

    def __init__(self, settle_s: float = SETTLE_S) -> None:
        self._settle_s = settle_s
        self._waiting: dict[K, _Entry] = {}
        self._order: list[tuple[float, int, K]] = []
        self._due: tuple[dict[K, None], ...] = ({}, {}, {})
        # The rank with which a name was offered again while it was taken, or None.
        self._in_progress: dict[K, int | None] = {}
        self._failures: dict[K, int] = {}
        self._paces: dict[K, _WritePace] = {}
        self._most_paces = _MIN_PACES
        self._sequence = itertools.count()

    def __len__(self) -> int:
        return len(self._waiting) + sum(map(len, self._due))

    def offer(self, key: K, now: float, *, rank: int = IDLE) -> None:
        """Ask for a turn; the second of two requests adds nothing but a lower rank."""
        if key in self._in_progress:
            before = self._in_progress[key]
            self._in_progress[key] = rank if before is None else min(rank, before)
            return
        for at, names in enumerate(self._due):
            if key in names:
                if rank < at:
                    del names[key]
                    self._due[rank][key] = None
                return
        known = self._waiting.get(key)
        if known is not None:
            hastened = rank == URGENT and known.rank != URGENT and not known.is_retry
            known.rank = min(rank, known.rank)
            if not hastened:
                return
        due = now if rank == URGENT else self._settled_at(key, now)
        self._wait(key, _Entry(due=due, rank=rank, is_retry=False))

    def take(self, now: float) -> K | None:
        """Return the next that is due and hold it until `done` or `failed`; None if none is."""
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
        """Return when `take` will have something; None if nothing waits."""
        if any(self._due):
            return float("-inf")
        return self._next_waiting()

    def done(self, key: K, now: float, *, wrote: bool = False) -> None:
        """Let go of what was taken; what was offered meanwhile gets another turn.

        Args:
            key: what was taken.
            now: the time.
            wrote: whether something was written.
        """
        self._failures.pop(key, None)
        if wrote:
            known = self._paces.get(key)
            fast = known is not None and known.is_recent(now)
            pace = 2 * known.pace if known is not None and fast else self._settle_s
            self._paces[key] = _WritePace(at=now, pace=min(pace, MAX_PACE_S))
            self._forget_paces(now)
        again = self._in_progress.pop(key, None)
        if again is not None:
            self.offer(key, now, rank=again)

    def failed(self, key: K, now: float, *, jitter: float, after_s: float = 0.0) -> None:
        """Let go of what was taken, and give it another turn after a delay.

        Args:
            key: what was taken.
            now: the time.
            jitter: from 0 to 1, random.
            after_s: what the API server asked for, at least.
        """
        failures = self._failures.get(key, 0) + 1
        self._failures[key] = failures
        again = self._in_progress.pop(key, None)
        due = now + max(after_s, retry_delay_s(failures, jitter))
        self._wait(key, _Entry(due=due, rank=IDLE if again is None else again, is_retry=True))

    def clear(self) -> None:
        """Forget all that waits; what is taken stays so until it is let go."""
        self._waiting.clear()
        self._order.clear()
        for names in self._due:
            names.clear()
        self._failures.clear()
        for key in self._in_progress:
            self._in_progress[key] = None

    def _settled_at(self, key: K, now: float) -> float:
        """Return when something that was offered has settled."""
        known = self._paces.get(key)
        soonest = now + self._settle_s
        return soonest if known is None else max(soonest, known.at + known.pace)

    def _forget_paces(self, now: float) -> None:
        """Forget what has long been quiet, now and then."""
        if len(self._paces) > self._most_paces:
            self._paces = {key: pace for key, pace in self._paces.items() if pace.is_recent(now)}
            self._most_paces = max(_MIN_PACES, 2 * len(self._paces))

    def _next_waiting(self) -> float | None:
        """Return when the next that waits is due, and forget what was moved since."""
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
