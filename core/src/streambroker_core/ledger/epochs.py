"""Epochs of one stream: numbers, sizes, row sums, and what was removed or is missing.

The sum of rows below an epoch outlives the epoch, so a reader's loss follows from its position.
Of removed epochs only the latest sums are kept, and those at readers' positions. The cost of a
lookup does not grow with the number of retained epochs.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from streambroker_core.control.tuples.window_bounds import ControlHead

TOMBSTONES = 100_000
"""Sums of removed epochs that are kept in addition to those that readers need."""
SLACK = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """One published micro-batch.

    Attributes:
        bytes: size in the log.
        memory: bytes of memory that it takes while it is retained.
        gap: batches of its query published right before it that are in no log, because the log
            is an older copy. Such an epoch is the first of its stream.
        control: head of its control tuples, None if it has none. An agent's own epoch, for tuples
            from outside, has no query and no rows.
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
        """The control head, empty if the epoch has no tuples."""
        return self.control or ControlHead(number=self.number)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredLog:
    """What an export had when an older copy of its log was restored.

    Attributes:
        streams: ids of its streams.
        batches: last batch of each query.
    """

    streams: frozenset[str]
    batches: Mapping[str, int]


def holes(ranges: Iterable[tuple[int, int]], first: int, next_: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of ``[first, next_)`` that ``ranges`` (ascending) do not cover."""
    at = first
    for low, high in ranges:
        if at < min(low, next_):
            yield at, min(low, next_)
        at = max(at, high)
    if at < next_:
        yield at, next_


class RowSums:
    """Sums of rows below the numbers of removed epochs."""

    __slots__ = ("_numbers", "_sums")

    def __init__(self) -> None:
        self._sums: dict[int, int] = {}
        self._numbers: list[int] = []

    def __getitem__(self, number: int) -> int | None:
        """Return the sum below a number; if unknown, below the next known number, else None."""
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
        """Of the lowest ``count`` numbers, forget those that are not needed."""
        lowest = self._numbers[:count]
        kept = [n for n in lowest if is_needed(n)]
        for number in set(lowest).difference(kept):
            del self._sums[number]
        self._numbers[:count] = kept


@dataclass(slots=True)
class Stream:
    """One log of epochs.

    Attributes:
        sealed: a successor was opened; no more epochs are added.
        next: number of the next epoch.
        bytes: size of the retained epochs.
        epochs: retained epochs by number, ascending; with gaps where only planned ones remain.
        rows: rows of all epochs ever published.
        memory: bytes of memory that the retained epochs take.
        sums_before: rows, bytes and memory of all earlier epochs, by number of a retained epoch.
            Bytes and memory count from where the stream was opened.
        removed_sums: rows below the numbers of removed epochs.
        complete_from: from this number on every epoch is retained.
        isolated: retained epochs below ``complete_from``, ascending.
        missing: ranges of epochs lost by damage to the log's files, ascending. Once retention
            removes an epoch behind them, they count as removed.
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
        """Add the epoch with number ``next``."""
        self.epochs[epoch.number] = epoch
        self.sums_before[epoch.number] = (self.rows, self._bytes, self._memory)
        self.bytes += epoch.bytes
        self._bytes += epoch.bytes
        self.memory += epoch.memory
        self._memory += epoch.memory
        self.rows += epoch.rows
        self.next = epoch.number + 1

    def skip_to(self, number: int, rows_before: int) -> None:
        """Continue at a later epoch, with ``rows_before`` rows below; those between are gone."""
        if number > self.next:
            self.isolated.extend(range(self.complete_from, self.next))
            self.complete_from = number
            self.removed_sums[self.next] = self.rows
        self.rows = rows_before
        self.next = number

    def restore_sum(self, number: int, rows_before: int) -> None:
        """Restore a sum after a restart, unless it is known."""
        if number < self.next and not self.has_sum(number):
            self.removed_sums[number] = rows_before

    def set_expected(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Record as missing what is not retained of the expected epochs (ascending ranges).

        Call it after all retained epochs were added.
        """
        missing: list[tuple[int, int]] = []
        for first, next_ in ranges:
            for low, high in holes(self.retained_ranges(first, next_), first, next_):
                joins = bool(missing) and missing[-1][1] == low
                missing.append((missing.pop()[0] if joins else low, high))
        self.missing = missing

    def count_missing(self, first: int, next_: int) -> tuple[int, int]:
        """Return the number and rows of missing epochs in ``[first, next_)``."""
        parts = [(max(low, first), min(high, next_)) for low, high in self.missing]
        parts = [(low, high) for low, high in parts if low < high]
        epochs = sum(high - low for low, high in parts)
        return epochs, sum(self.rows_between(low, high) for low, high in parts)

    def first_available(self) -> int:
        """Return the first epoch that is retained or missing, ``next`` if there is none."""
        first = self.at_or_after(0)
        return min(first, self.missing[0][0]) if self.missing else first

    def agreed_loss_end(self) -> int:
        """Return the epoch below which all that is gone was removed by agreement."""
        return min(self.complete_from, self.missing[0][0]) if self.missing else self.complete_from

    def remove(self, number: int) -> Epoch:
        """Remove an epoch; its row sum stays."""
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
        """Forget the oldest sums of removed epochs, if there are too many.

        Keep those of ``needed_numbers(stream)`` and those at the end of a retained epoch.
        """
        if len(self.removed_sums) > max(self._retained_sums, TOMBSTONES) + SLACK:
            needed = frozenset(needed_numbers(self.id))
            self.removed_sums.forget(
                len(self.removed_sums) - TOMBSTONES, lambda n: n in needed or n - 1 in self.epochs
            )
            self._retained_sums = len(self.removed_sums)

    def at_or_after(self, number: int) -> int:
        """Return the first retained epoch from ``number`` on, or ``next`` if there is none."""
        if number >= self.complete_from:
            return number
        at = bisect_left(self.isolated, number)
        return self.isolated[at] if at < len(self.isolated) else self.complete_from

    def retained_ranges(self, first: int, next_: int) -> Iterator[tuple[int, int]]:
        """Yield the retained ranges of ``[first, next_)``, ascending."""
        for number in self.isolated[
            bisect_left(self.isolated, first) : bisect_left(self.isolated, next_)
        ]:
            yield number, number + 1
        low, high = max(first, self.complete_from), min(next_, self.next)
        if low < high:
            yield low, high

    def sizes_between(self, first: int, next_: int) -> tuple[int, int]:
        """Return the bytes and the memory of the retained epochs in ``[first, next_)``."""
        size = memory = 0
        for low, high in self.retained_ranges(first, next_):
            last, before = self.epochs[high - 1], self.sums_before
            size += before[high - 1][1] + last.bytes - before[low][1]
            memory += before[high - 1][2] + last.memory - before[low][2]
        return size, memory

    def has_sum(self, number: int) -> bool:
        """Return whether the sum of rows below a number is known exactly."""
        return (
            number <= 0
            or number in self.sums_before
            or number in self.removed_sums
            or number == self.next
        )

    def rows_before(self, number: int) -> int:
        """Return the rows of all epochs below ``number``, including removed ones.

        For a forgotten sum return that of the next known number.
        """
        if number <= 0:
            return 0
        retained = self.at_or_after(number)
        rows = self.sums_before[retained][0] if retained < self.next else self.rows
        removed = self.removed_sums[number] if retained > number else None
        return rows if removed is None else min(removed, rows)

    def rows_between(self, first: int, last: int) -> int:
        """Return the rows of epochs ``[first, last)``, including removed ones."""
        return 0 if first == last else self.rows_before(last) - self.rows_before(first)

    def bytes_from(self, number: int) -> int:
        """Return the bytes published since the first retained epoch from ``number`` on."""
        first = self.at_or_after(number)
        return self._bytes - self.sums_before[first][1] if first < self.next else 0

    def memory_from(self, number: int) -> int:
        """Return the memory of the same epochs, in bytes."""
        first = self.at_or_after(number)
        return self._memory - self.sums_before[first][2] if first < self.next else 0
