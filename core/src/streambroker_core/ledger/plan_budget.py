"""How many of a stream's next epochs one plan takes: by bytes, and by what a window may hold.

A reader of control tuples is given what one window may have of them. To any other reader an epoch
without rows is nothing: it is not planned for its own sake.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from streambroker_core.control.tuples import MAX_BYTES, MAX_TUPLES
from streambroker_core.control.tuples.window_bounds import (
    ControlHead,
    count_fitting_epochs,
    count_window_epochs,
)
from streambroker_core.ledger.epochs import Epoch, Stream


@dataclass(slots=True)
class PlanBudget:
    """What is left of a plan's limits.

    Attributes:
        size: bytes.
        tuples: control tuples, ``payload`` their bytes.
        at_least_one: one epoch is taken whatever its size, as long as none is; one with too many
            tuples only if nothing else is in the window. Who published it may have been sent as
            many.
        control: types that do not cut, for a reader of control tuples; None for others.
        last: query and batch id of the last epoch that the reader has read.
        rowless: bytes up to which epochs without rows are left behind the plan of a reader of rows;
            with more it takes them, or they would fill the log that it holds.
    """

    size: int
    tuples: int
    payload: int
    at_least_one: bool
    control: frozenset[str] | None
    last: tuple[str, int] | None
    rowless: int

    def take_epochs(self, stream: Stream, first: int, limit: int) -> int:
        """Take the epochs of a stream from ``first`` on; return the one before which that ends."""
        end, size = self._fit_by_size(stream.epochs, first, limit)
        if self.control is None:
            left = end if stream.sealed else self._drop_rowless_tail(stream.epochs, first, end)
            size -= sum(stream.epochs[number].bytes for number in range(left, end))
            end = left
        else:
            heads = self._fit_window([stream.epochs[number].head for number in range(first, end)])
            end = first + len(heads)
            size = sum(stream.epochs[head.number].bytes for head in heads)
            self.tuples -= sum(head.tuples for head in heads)
            self.payload -= sum(head.bytes for head in heads)
        self.size -= size
        self.at_least_one = self.at_least_one and end == first
        return end

    def _fit_by_size(self, epochs: Mapping[int, Epoch], first: int, limit: int) -> tuple[int, int]:
        """Return where epochs end that are no more than what is left, and what they come to."""
        query, batch = self.last or (None, 0)
        end, size = first, 0
        while end in epochs and end < limit:
            epoch = epochs[end]
            bytes_ = epoch.bytes
            if size + bytes_ > self.size and not (self.at_least_one and end == first):
                break
            if query is not None and epoch.query == query and epoch.batch <= batch:
                break  # was read before, over a log that was lost
            size, end = size + bytes_, end + 1
        return end, size

    def _fit_window(self, heads: list[ControlHead]) -> list[ControlHead]:
        """Return the heads of the epochs that one window may have."""
        if self.control is not None:
            heads = heads[: count_window_epochs(heads, self.control)]
        within = count_fitting_epochs(heads, self.tuples, self.payload)
        if self.at_least_one and self.tuples >= MAX_TUPLES and self.payload >= MAX_BYTES:
            within = max(1, within)
        return heads[:within]

    def _drop_rowless_tail(self, epochs: Mapping[int, Epoch], first: int, end: int) -> int:
        """Return where epochs end without those at the end that have no rows, if these are few."""
        left, size = end, 0
        while left > first and not epochs[left - 1].rows:
            left -= 1
            size += epochs[left].bytes
        return left if size <= self.rowless else end

    def must_split(self, before: Epoch | None, first: Epoch | None) -> bool:
        """Whether a window that has one epoch may not have another, of the next stream."""
        if self.control is None or before is None or first is None:
            return False
        return count_window_epochs([before.head, first.head], self.control) == 1


def is_republished(epoch: Epoch, last: tuple[str, int] | None) -> bool:
    """Whether an epoch was published before, over a log that was lost, and read."""
    return last is not None and epoch.query == last[0] and epoch.batch <= last[1]
