"""Complete lines of a growing file, read without reading earlier parts again.

Data after the last line break is a line being written, or a remnant of a crash.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import IO

CHUNK_BYTES = 1 << 20
"""Bytes per read while searching for line breaks."""


class Lines:
    """Lines after a file's first one, numbered from 0; a file that shrank is indexed again."""

    def __init__(self, path: Path) -> None:
        """Create without reading the file."""
        self._path = path
        self._ends = array("Q")

    def __reduce__(self) -> tuple[type[Lines], tuple[Path]]:
        return Lines, (self._path,)  # tasks read no file

    def count(self) -> int:
        """Return the number of lines; reads only what was added to the file."""
        with self._path.open("rb") as file:
            return self._index_lines(file)

    def read_range(self, first: int, stop: int) -> list[bytes]:
        """Return lines ``[first, stop)``, fewer at the end of the file."""
        with self._path.open("rb") as file:
            stop = min(stop, self._index_lines(file))
            if first >= stop:
                return []
            begin, end = self._ends[first], self._ends[stop]
            file.seek(begin)
            return file.read(end - begin).split(b"\n")[:-1]

    def sizes(self, first: int, stop: int) -> Iterator[int]:
        """Yield the bytes of lines without their line breaks; the lines are not read."""
        for at in range(first, min(stop, self.count())):
            yield self._ends[at + 1] - self._ends[at] - 1

    def backwards(self, stop: int | None = None) -> Iterator[bytes]:
        """Yield the lines before ``stop`` in reverse order; each is read on demand."""
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
            line_break = piece.find(b"\n")
            while line_break >= 0:
                self._ends.append(at + line_break + 1)
                line_break = piece.find(b"\n", line_break + 1)
            at += len(piece)
        return max(len(self._ends) - 1, 0)


def last_line(file: IO[bytes]) -> tuple[bytes, int]:
    """Return the last complete line and the offset after its break; ``b""`` and 0 if none.

    Only the file's end is read.
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
