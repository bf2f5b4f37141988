"""Rows to export, as files that a Spark query picks up one by one, each row with its number."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

DDL = "line bigint, price double, name string"
Row = tuple[int, float, str]


def row(line: int) -> Row:
    """Return the row with a number; the same one whenever it is asked for."""
    return (line, float(line * 7 % 50), f"name {line % 11}")


def put_file(folder: Path, name: str, table: pa.Table, *, order: int | None = None) -> None:
    """Put a Parquet file where a query looks, whole; Spark takes those with an order by it."""
    hidden = folder / f".{name}"
    pq.write_table(table, hidden)
    if order is not None:
        os.utime(hidden, (order + 1, order + 1))
    hidden.rename(folder / f"{name}.parquet")


@dataclass
class Feed:
    """A folder of numbered files; file k holds the rows of ``lines(k)``."""

    folder: Path
    rows_per_file: int = 300
    first_line: int = 0
    files: int = 0
    released: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)

    def lines(self, file: int) -> range:
        first = self.first_line + file * self.rows_per_file
        return range(first, first + self.rows_per_file)

    def rows(self, file: int) -> list[Row]:
        return [row(line) for line in self.lines(file)]

    def release(self, count: int = 1) -> None:
        for _ in range(count):
            columns = zip(*self.rows(self.files), strict=True)
            table = pa.table(dict(zip(("line", "price", "name"), columns, strict=True)))
            put_file(self.folder, f"{self.files:06d}", table)
            self.files += 1
