"""Sorted set of numbers with cheap insertion, removal and range counts."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator

_BLOCK = 1024


class SortedNumbers:
    """Distinct numbers in blocks of bounded length, so that a change moves one block only.

    The owner maintains `uses`, the total number of uses of the numbers by Exports.
    """

    __slots__ = ("_blocks", "_tops", "size", "uses")

    def __init__(self) -> None:
        self._blocks: list[list[float]] = []
        self._tops: list[float] = []
        self.size = 0
        self.uses = 0

    def add(self, number: float) -> None:
        """Add a number that is not in the set."""
        self.size += 1
        if not self._blocks:
            self._blocks.append([number])
            self._tops.append(number)
            return
        index = min(bisect_left(self._tops, number), len(self._tops) - 1)
        block = self._blocks[index]
        insort(block, number)
        if len(block) > 2 * _BLOCK:
            self._blocks.insert(index + 1, block[_BLOCK:])
            self._tops.insert(index + 1, block[-1])
            del block[_BLOCK:]
        self._tops[index] = block[-1]

    def remove(self, number: float) -> None:
        """Remove a number of the set."""
        self.size -= 1
        index = bisect_left(self._tops, number)
        block = self._blocks[index]
        del block[bisect_left(block, number)]
        if block:
            self._tops[index] = block[-1]
        else:
            del self._blocks[index], self._tops[index]

    def count(self, low: float | None, high: float | None) -> int:
        """Return how many numbers are in an inclusive range; None is open."""
        first, start = (0, 0) if low is None else self._locate(low)
        last, end = (len(self._blocks), 0) if high is None else self._locate(high, above=True)
        if first >= last:
            return max(0, end - start) if first == last else 0
        total = sum(len(block) for block in self._blocks[first:last])
        return total - start + end

    def iter_between(self, low: float | None, high: float | None) -> Iterator[float]:
        """Yield the numbers of an inclusive range, in order; None is open."""
        first, start = (0, 0) if low is None else self._locate(low)
        for index in range(first, len(self._blocks)):
            for number in self._blocks[index][start:]:
                if high is not None and number > high:
                    return
                yield number
            start = 0

    def _locate(self, number: float, *, above: bool = False) -> tuple[int, int]:
        """Return block and position of the first number not below a number, or above it."""
        bisect = bisect_right if above else bisect_left
        block = bisect(self._tops, number)
        if block == len(self._blocks):
            return block, 0
        return block, bisect(self._blocks[block], number)
