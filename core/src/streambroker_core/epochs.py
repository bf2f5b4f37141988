"""The epochs of one stream as the ledger sees them: numbers, sizes, and what is gone.

Sums of rows and bytes before each epoch outlive the epoch, so that what a reader has lost can be
counted from its position alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

TOMBSTONES = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """One published micro-batch. ``bytes`` is its size in the log, ``published`` its time."""

    number: int
    rows: int
    bytes: int
    published: float
    query: str
    batch: int


@dataclass(slots=True)
class Stream:
    """One log of epochs; ``next`` is the number the next epoch gets, ``bytes`` what is kept.

    Attributes:
        sealed: a successor was opened; no epoch is added any more.
        epochs: what is retained, by number, ascending; planned epochs may stand alone.
        rows_before: rows of all earlier epochs, by epoch number; kept for removed ones, too.
        bytes_before: likewise, bytes.
    """

    id: str
    sealed: bool = False
    next: int = 0
    bytes: int = 0
    epochs: dict[int, Epoch] = field(default_factory=dict)
    rows_before: dict[int, int] = field(default_factory=lambda: {0: 0})
    bytes_before: dict[int, int] = field(default_factory=lambda: {0: 0})

    def add(self, epoch: Epoch) -> None:
        """Take in the epoch that ``next`` announced."""
        self.epochs[epoch.number] = epoch
        self.bytes += epoch.bytes
        self.next = epoch.number + 1
        self.rows_before[self.next] = self.rows_before[epoch.number] + epoch.rows
        self.bytes_before[self.next] = self.bytes_before[epoch.number] + epoch.bytes
        for before in (self.rows_before, self.bytes_before):
            while len(before) > TOMBSTONES:
                del before[next(iter(before))]

    def skip_to(self, number: int, rows_before: int) -> None:
        """Go on at a later epoch: the ones between are gone, ``rows_before`` is the sum there."""
        self.bytes_before[number] = self.bytes_before[self.next]
        self.rows_before[number] = rows_before
        self.next = number

    def recall(self, number: int, rows_before: int) -> None:
        """Learn a sum again that a restart made us forget; a known one stays."""
        if number < self.next:
            self.rows_before.setdefault(number, rows_before)

    def remove(self, number: int) -> Epoch:
        """Take an epoch out; its sums stay."""
        epoch = self.epochs.pop(number)
        self.bytes -= epoch.bytes
        return epoch

    def at_or_after(self, number: int) -> int:
        """Return the first retained epoch not below ``number``, or ``next`` if there is none."""
        if number in self.epochs or not self.epochs:
            return number if number in self.epochs else max(number, self.next)
        return next((n for n in self.epochs if n >= number), max(number, self.next))

    def whole_from(self) -> int:
        """Return the number from which on no epoch is missing."""
        number = self.next
        while number - 1 in self.epochs:
            number -= 1
        return number

    def rows_between(self, first: int, last: int) -> int:
        """Return the rows of epochs ``[first, last)``, removed ones included."""
        return _before(self.rows_before, last) - _before(self.rows_before, first)

    def bytes_from(self, number: int) -> int:
        """Return the bytes of the epochs from ``number`` on."""
        return self.bytes_before[self.next] - _before(self.bytes_before, number)


def _before(sums: Mapping[int, int], number: int) -> int:
    """Return the sum before an epoch; where it is not known any more, the nearest below."""
    if number in sums:
        return sums[number]
    return sums[max((n for n in sums if n <= number), default=min(sums))]
