"""Budget of a plan: limits the epochs taken from streams by bytes and by window bounds.

A reader of control tuples gets at most what one window may hold of them. Other readers need no
epochs without rows, so these are not planned for their own sake.
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
    """Remaining limits of a plan.

    Attributes:
        size: bytes.
        tuples: control tuples, ``payload`` their bytes.
        at_least_one: take the first epoch of any size; one with too many tuples only if
            nothing else is in the window (its publisher may have received as many).
        control: types that do not end a window; None for a reader without control tuples.
        last: query and batch id of the last epoch that the reader has read.
        rowless: maximum bytes of trailing epochs without rows that stay unplanned for a reader
            without control tuples. More would fill the log that it holds.
    """

    size: int
    tuples: int
    payload: int
    at_least_one: bool
    control: frozenset[str] | None
    last: tuple[str, int] | None
    rowless: int

    def take_epochs(self, stream: Stream, first: int, limit: int) -> int:
        """Take epochs of a stream from ``first`` on; return the first that is not taken."""
        end, size = self._fit_by_size(stream.epochs, first, limit)
        if self.control is None:
            trimmed = end if stream.sealed else self._drop_rowless_tail(stream.epochs, first, end)
            size -= sum(stream.epochs[number].bytes for number in range(trimmed, end))
            end = trimmed
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
        """Return the end of the epochs that fit into the remaining bytes, and their size."""
        query, batch = self.last or (None, 0)
        end, size = first, 0
        while end in epochs and end < limit:
            epoch = epochs[end]
            bytes_ = epoch.bytes
            if size + bytes_ > self.size and not (self.at_least_one and end == first):
                break
            if query is not None and epoch.query == query and epoch.batch <= batch:
                break  # republished after a log was lost, and already read
            size, end = size + bytes_, end + 1
        return end, size

    def _fit_window(self, heads: list[ControlHead]) -> list[ControlHead]:
        """Return the heads of the epochs that fit into one window."""
        if self.control is not None:
            heads = heads[: count_window_epochs(heads, self.control)]
        fitting = count_fitting_epochs(heads, self.tuples, self.payload)
        if self.at_least_one and self.tuples >= MAX_TUPLES and self.payload >= MAX_BYTES:
            fitting = max(1, fitting)
        return heads[:fitting]

    def _drop_rowless_tail(self, epochs: Mapping[int, Epoch], first: int, end: int) -> int:
        """Return the end of epochs without trailing ones that lack rows, unless these are large."""
        trimmed, size = end, 0
        while trimmed > first and not epochs[trimmed - 1].rows:
            trimmed -= 1
            size += epochs[trimmed].bytes
        return trimmed if size <= self.rowless else end

    def must_split(self, before: Epoch | None, first: Epoch | None) -> bool:
        """Return whether a window has to end between two epochs of successive streams."""
        if self.control is None or before is None or first is None:
            return False
        return count_window_epochs([before.head, first.head], self.control) == 1


def is_republished(epoch: Epoch, last: tuple[str, int] | None) -> bool:
    """Return whether an epoch was republished after a log was lost, and was already read."""
    return last is not None and epoch.query == last[0] and epoch.batch <= last[1]
