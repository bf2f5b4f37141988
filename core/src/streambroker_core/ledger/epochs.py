"""The epochs of one stream as the ledger sees them: numbers, sizes, and what is gone.

The sum of rows below an epoch outlives the epoch, so that what a reader has lost can be counted
from its position alone. Of removed epochs only the latest sums are kept, and those at places of
readers. What a question costs does not grow with what is retained.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field

from streambroker_core.control.tuples.window_bounds import ControlHead

TOMBSTONES = 100_000
"""How many sums of removed epochs are kept beside those that readers need."""
SLACK = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """One published micro-batch.

    Attributes:
        bytes: its size in the log.
        published: when.
        memory: what is kept of it in memory while it is retained, in bytes.
        gap: how many batches of its query were published right before it and are in no log: the
            log is an older copy. Such an epoch is the first of its stream.
        control: what its head tells of control tuples, None if it has none. One of an agent's own,
            for tuples from outside, has no query and no rows.
    """

    number: int
    rows: int
    bytes: int
    published: float
    query: str
    batch: int
    gap: int = 0
    memory: int = 0
    control: ControlHead | None = None

    @property
    def head(self) -> ControlHead:
        """Its control head, an empty one if it has no tuples."""
        return self.control or ControlHead(number=self.number)


def holes(ranges: Iterable[tuple[int, int]], first: int, next_: int) -> Iterator[tuple[int, int]]:
    """Give what ``ranges``, ascending, leave out of ``[first, next_)``, as ranges."""
    at = first
    for low, high in ranges:
        if at < min(low, next_):
            yield at, min(low, next_)
        at = max(at, high)
    if at < next_:
        yield at, next_


class RowSums:
    """Rows of all epochs below each of many numbers that no epoch stands for any more."""

    __slots__ = ("_numbers", "_sums")

    def __init__(self) -> None:
        self._sums: dict[int, int] = {}
        self._numbers: list[int] = []

    def __getitem__(self, number: int) -> int | None:
        """Return the sum below a number; of one that is not known, that of the next above."""
        if number not in self._sums:
            at = bisect_left(self._numbers, number)
            if at == len(self._numbers):
                return None
            number = self._numbers[at]
        return self._sums[number]

    def __setitem__(self, number: int, sum_: int) -> None:
        if number not in self._sums:
            insort(self._numbers, number)
        self._sums[number] = sum_

    def __contains__(self, number: int) -> bool:
        return number in self._sums

    def __len__(self) -> int:
        return len(self._numbers)

    def forget(self, count: int, is_needed: Callable[[int], bool]) -> None:
        """Forget those of the lowest ``count`` numbers that are not needed."""
        lowest = self._numbers[:count]
        kept = [n for n in lowest if is_needed(n)]
        for number in set(lowest).difference(kept):
            del self._sums[number]
        self._numbers[:count] = kept


@dataclass(slots=True)
class Stream:
    """One log of epochs; ``next`` is the number the next epoch gets, ``bytes`` what is kept.

    Attributes:
        memory: what the retained epochs take in memory.
        sealed: a successor was opened; no epoch is added any more.
        epochs: what is retained, by number, ascending; planned epochs may stand alone.
        rows: of all epochs that there ever were.
        sums_before: rows, bytes and memory of all earlier epochs, by the number of a retained
            epoch. Bytes and memory are counted from where the stream was opened.
        removed_sums: rows below numbers of which there is no epoch any more.
        complete_from: from here on every epoch is retained.
        isolated: retained epochs below ``complete_from``, ascending.
        missing: epochs ``[first, next)`` that should be retained and are not in the log, ascending:
            its files were damaged. Once size or age takes an epoch behind them, they would be gone
            in any case, and count as removed.
    """

    id: str
    sealed: bool = False
    next: int = 0
    bytes: int = 0
    epochs: dict[int, Epoch] = field(default_factory=dict)
    rows: int = 0
    memory: int = 0
    sums_before: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    removed_sums: RowSums = field(default_factory=RowSums)
    complete_from: int = 0
    isolated: list[int] = field(default_factory=list)
    missing: list[tuple[int, int]] = field(default_factory=list)
    _bytes: int = 0
    _memory: int = 0
    _retained_sums: int = 0

    def add(self, epoch: Epoch) -> None:
        """Take in the epoch that ``next`` announced."""
        self.epochs[epoch.number] = epoch
        self.sums_before[epoch.number] = (self.rows, self._bytes, self._memory)
        self.bytes += epoch.bytes
        self._bytes += epoch.bytes
        self.memory += epoch.memory
        self._memory += epoch.memory
        self.rows += epoch.rows
        self.next = epoch.number + 1

    def skip_to(self, number: int, rows_before: int) -> None:
        """Go on at a later epoch: the ones between are gone, ``rows_before`` is the sum there."""
        if number > self.next:
            self.isolated.extend(range(self.complete_from, self.next))
            self.complete_from = number
            self.removed_sums[self.next] = self.rows
        self.rows = rows_before
        self.next = number

    def restore_sum(self, number: int, rows_before: int) -> None:
        """Learn a sum again that a restart made us forget; a known one stays."""
        if number < self.next and not self.has_sum(number):
            self.removed_sums[number] = rows_before

    def set_expected(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Learn which epochs should be retained, in ascending ranges; those not there are missing.

        To be called once all that is there was added.
        """
        missing: list[tuple[int, int]] = []
        for first, next_ in ranges:
            for low, high in holes(self.retained_ranges(first, next_), first, next_):
                joins = bool(missing) and missing[-1][1] == low
                missing.append((missing.pop()[0] if joins else low, high))
        self.missing = missing

    def count_missing(self, first: int, next_: int) -> tuple[int, int]:
        """Return how many epochs of ``[first, next_)`` are missing, and their rows."""
        parts = [(max(low, first), min(high, next_)) for low, high in self.missing]
        parts = [(low, high) for low, high in parts if low < high]
        epochs = sum(high - low for low, high in parts)
        return epochs, sum(self.rows_between(low, high) for low, high in parts)

    def first_available(self) -> int:
        """Return the first epoch that is retained or missing, ``next`` if there is none."""
        found = self.at_or_after(0)
        return min(found, self.missing[0][0]) if self.missing else found

    def agreed_loss_end(self) -> int:
        """Return up to which epoch all that is gone was removed by agreement."""
        return min(self.complete_from, self.missing[0][0]) if self.missing else self.complete_from

    def remove(self, number: int) -> Epoch:
        """Take an epoch out; its sums stay."""
        epoch = self.epochs.pop(number)
        if self.missing:
            self.missing = [hole for hole in self.missing if hole[0] > number]
        self.removed_sums[number] = self.sums_before.pop(number)[0]
        self.bytes -= epoch.bytes
        self.memory -= epoch.memory
        if number < self.complete_from:
            del self.isolated[bisect_left(self.isolated, number)]
        else:
            self.isolated.extend(range(self.complete_from, number))
            self.complete_from = number + 1
        return epoch

    def forget_sums(self, needed_numbers: Callable[[str], Collection[int]]) -> None:
        """Forget the oldest sums of removed epochs, if there are many.

        Args:
            needed_numbers: returns the numbers of a stream whose sums are kept in any case, as are
                those at the end of a retained epoch.
        """
        if len(self.removed_sums) > max(self._retained_sums, TOMBSTONES) + SLACK:
            needed = frozenset(needed_numbers(self.id))
            self.removed_sums.forget(
                len(self.removed_sums) - TOMBSTONES, lambda n: n in needed or n - 1 in self.epochs
            )
            self._retained_sums = len(self.removed_sums)

    def at_or_after(self, number: int) -> int:
        """Return the first retained epoch not below ``number``, or ``next`` if there is none."""
        if number >= self.complete_from:
            return number
        at = bisect_left(self.isolated, number)
        return self.isolated[at] if at < len(self.isolated) else self.complete_from

    def retained_ranges(self, first: int, next_: int) -> Iterator[tuple[int, int]]:
        """Give the retained epochs of ``[first, next_)`` as ranges, ascending."""
        for number in self.isolated[
            bisect_left(self.isolated, first) : bisect_left(self.isolated, next_)
        ]:
            yield number, number + 1
        low, high = max(first, self.complete_from), min(next_, self.next)
        if low < high:
            yield low, high

    def has_sum(self, number: int) -> bool:
        """Whether the sum of rows below a number is known exactly."""
        return (
            number <= 0
            or number in self.sums_before
            or number in self.removed_sums
            or number == self.next
        )

    def rows_before(self, number: int) -> int:
        """Return the rows of all epochs below ``number``, removed ones included.

        Where the sum is forgotten it is that of the next number of which it is known.
        """
        if number <= 0:
            return 0
        found = self.at_or_after(number)
        rows = self.sums_before[found][0] if found < self.next else self.rows
        removed = self.removed_sums[number] if found > number else None
        return rows if removed is None else min(removed, rows)

    def rows_between(self, first: int, last: int) -> int:
        """Return the rows of epochs ``[first, last)``, removed ones included."""
        return self.rows_before(last) - self.rows_before(first)

    def bytes_from(self, number: int) -> int:
        """Return the bytes from the first epoch on that is retained and not below ``number``."""
        found = self.at_or_after(number)
        return self._bytes - self.sums_before[found][1] if found < self.next else 0

    def memory_from(self, number: int) -> int:
        """Return the memory that the same epochs take."""
        found = self.at_or_after(number)
        return self._memory - self.sums_before[found][2] if found < self.next else 0
