"""The epochs of one stream as the ledger sees them: numbers, sizes, and what is gone.

Sums of rows and bytes before each epoch outlive the epoch, so that what a reader has lost can be
counted from its position alone. What a question costs does not grow with what is retained.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

TOMBSTONES = 100_000
_SLACK = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """One published micro-batch.

    Attributes:
        bytes: its size in the log.
        published: when.
        gap: how many batches of its query were published right before it and are in no log: the
            log is an older copy. Such an epoch is the first of its stream.
    """

    number: int
    rows: int
    bytes: int
    published: float
    query: str
    batch: int
    gap: int = 0


def holes(ranges: Iterable[tuple[int, int]], first: int, next_: int) -> Iterator[tuple[int, int]]:
    """Give what ``ranges``, ascending, leave out of ``[first, next_)``, as ranges."""
    at = first
    for low, high in ranges:
        if at < min(low, next_):
            yield at, min(low, next_)
        at = max(at, high)
    if at < next_:
        yield at, next_


class Sums:
    """A sum before each of many numbers; the lowest are forgotten when there are too many."""

    __slots__ = ("_known", "_numbers")

    def __init__(self) -> None:
        self._known = {0: 0}
        self._numbers = [0]

    def __getitem__(self, number: int) -> int:
        """Return the sum before a number; where it is not known any more, the nearest below."""
        if number in self._known:
            return self._known[number]
        at = bisect_right(self._numbers, number)
        return self._known[self._numbers[max(0, at - 1)]]

    def __setitem__(self, number: int, sum_: int) -> None:
        if number not in self._known:
            insort(self._numbers, number)
        self._known[number] = sum_
        if len(self._numbers) > TOMBSTONES + _SLACK:
            for one in self._numbers[:_SLACK]:
                del self._known[one]
            del self._numbers[:_SLACK]

    def __contains__(self, number: int) -> bool:
        return number in self._known


@dataclass(slots=True)
class Stream:
    """One log of epochs; ``next`` is the number the next epoch gets, ``bytes`` what is kept.

    Attributes:
        sealed: a successor was opened; no epoch is added any more.
        epochs: what is retained, by number, ascending; planned epochs may stand alone.
        rows_before: rows of all earlier epochs, by epoch number; kept for removed ones, too.
        bytes_before: likewise, bytes.
        whole: from here on no epoch is missing.
        alone: retained epochs below ``whole``, ascending.
    """

    id: str
    sealed: bool = False
    next: int = 0
    bytes: int = 0
    epochs: dict[int, Epoch] = field(default_factory=dict)
    rows_before: Sums = field(default_factory=Sums)
    bytes_before: Sums = field(default_factory=Sums)
    whole: int = 0
    alone: list[int] = field(default_factory=list)

    def add(self, epoch: Epoch) -> None:
        """Take in the epoch that ``next`` announced."""
        self.epochs[epoch.number] = epoch
        self.bytes += epoch.bytes
        self.next = epoch.number + 1
        self.rows_before[self.next] = self.rows_before[epoch.number] + epoch.rows
        self.bytes_before[self.next] = self.bytes_before[epoch.number] + epoch.bytes

    def skip_to(self, number: int, rows_before: int) -> None:
        """Go on at a later epoch: the ones between are gone, ``rows_before`` is the sum there."""
        if number > self.next:
            self.alone.extend(range(self.whole, self.next))
            self.whole = number
        self.bytes_before[number] = self.bytes_before[self.next]
        self.rows_before[number] = rows_before
        self.next = number

    def recall(self, number: int, rows_before: int) -> None:
        """Learn a sum again that a restart made us forget; a known one stays."""
        if number < self.next and number not in self.rows_before:
            self.rows_before[number] = rows_before

    def remove(self, number: int) -> Epoch:
        """Take an epoch out; its sums stay."""
        epoch = self.epochs.pop(number)
        self.bytes -= epoch.bytes
        if number < self.whole:
            del self.alone[bisect_left(self.alone, number)]
        else:
            self.alone.extend(range(self.whole, number))
            self.whole = number + 1
        return epoch

    def at_or_after(self, number: int) -> int:
        """Return the first retained epoch not below ``number``, or ``next`` if there is none."""
        if number >= self.whole:
            return number
        at = bisect_left(self.alone, number)
        return self.alone[at] if at < len(self.alone) else self.whole

    def present(self, first: int, next_: int) -> Iterator[tuple[int, int]]:
        """Give the retained epochs of ``[first, next_)`` as ranges, ascending."""
        for number in self.alone[bisect_left(self.alone, first) : bisect_left(self.alone, next_)]:
            yield number, number + 1
        low, high = max(first, self.whole), min(next_, self.next)
        if low < high:
            yield low, high

    def whole_from(self) -> int:
        """Return the number from which on no epoch is missing."""
        return self.whole

    def rows_between(self, first: int, last: int) -> int:
        """Return the rows of epochs ``[first, last)``, removed ones included."""
        return self.rows_before[last] - self.rows_before[first]

    def bytes_from(self, number: int) -> int:
        """Return the bytes of the epochs from ``number`` on."""
        return self.bytes_before[self.next] - self.bytes_before[number]
