"""Whole lines of a file that grows at its end: found without reading what was read before.

What follows the last line break is a line that is being written, or what a crash left of one.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import IO

CHUNK_BYTES = 1 << 20
"""Bytes that are read at once where line breaks are looked for."""


class Lines:
    """The lines of a file behind its first one, numbered from 0; of each it is known where it is.

    A file that has become shorter is looked through anew.
    """

    def __init__(self, path: Path) -> None:
        """Begin with nothing; the file is first read when it is asked for something."""
        self._path = path
        self._ends = array("Q")

    def __reduce__(self) -> tuple[type[Lines], tuple[Path]]:
        return Lines, (self._path,)  # tasks read no file

    def count(self) -> int:
        """Return how many there are; the file is read only from where it has grown."""
        with self._path.open("rb") as file:
            return self._index_lines(file)

    def read_range(self, first: int, stop: int) -> list[bytes]:
        """Return lines; fewer if there are not so many.

        Args:
            first: number of the first.
            stop: the number behind the last.
        """
        with self._path.open("rb") as file:
            stop = min(stop, self._index_lines(file))
            if first >= stop:
                return []
            begin, end = self._ends[first], self._ends[stop]
            file.seek(begin)
            return file.read(end - begin).split(b"\n")[:-1]

    def sizes(self, first: int, stop: int) -> Iterator[int]:
        """Give the bytes of lines, without their line breaks; the lines are not read for it."""
        for at in range(first, min(stop, self.count())):
            yield self._ends[at + 1] - self._ends[at] - 1

    def backwards(self, stop: int | None = None) -> Iterator[bytes]:
        """Give the lines before a number, the last one first; each is read when it is asked for."""
        count = self.count()
        for at in range(count - 1 if stop is None else min(stop, count) - 1, -1, -1):
            yield from self.read_range(at, at + 1)

    def _index_lines(self, file: IO[bytes]) -> int:
        size = file.seek(0, 2)
        if self._ends and size < self._ends[-1]:
            del self._ends[:]
        at = self._ends[-1] if self._ends else 0
        file.seek(at)
        while piece := file.read(min(CHUNK_BYTES, size - at)):
            found = piece.find(b"\n")
            while found >= 0:
                self._ends.append(at + found + 1)
                found = piece.find(b"\n", found + 1)
            at += len(piece)
        return max(len(self._ends) - 1, 0)


def last_line(file: IO[bytes]) -> tuple[bytes, int]:
    """Return the last whole line of a file and where it ends; only the file's end is read.

    Returns:
        The line without its line break, and the bytes up to behind that; nothing and 0 if there is
        none.
    """
    size, back = file.seek(0, 2), 1 << 12
    while True:
        begin = max(0, size - back)
        file.seek(begin)
        data = file.read(size - begin)
        end = data.rfind(b"\n")
        before = data.rfind(b"\n", 0, max(end, 0))
        if begin == 0 or before >= 0:
            return (data[before + 1 : end], begin + end + 1) if end >= 0 else (b"", 0)
        back *= 8
