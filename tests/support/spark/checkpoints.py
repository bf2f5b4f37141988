"""What a query has done, read from its checkpoint and from the files of its sink."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from streambroker_core.ledger.offset import Offset, ranges
from support.spark.feeds import Row


@dataclass(frozen=True)
class Batch:
    """One committed micro-batch: what it read of each stream, under which filter."""

    number: int
    start: Offset
    end: Offset

    @property
    def ranges(self) -> dict[str, tuple[int, int]]:
        return ranges(self.start, self.end)


def committed(checkpoint: Path) -> int:
    """Return the number of the last committed batch, -1 before the first."""
    return _last(checkpoint / "commits")


def planned(checkpoint: Path) -> int:
    """Return the number of the last planned batch, -1 before the first."""
    return _last(checkpoint / "offsets")


def _last(log: Path) -> int:
    return max((int(f.name) for f in log.glob("[0-9]*")), default=-1)


def offset(checkpoint: Path, batch: int) -> Offset:
    """Return the end offset of a planned batch."""
    return Offset.decode(_planned(checkpoint, batch))


def _planned(checkpoint: Path, batch: int) -> Any:
    return json.loads((checkpoint / "offsets" / str(batch)).read_text().splitlines()[2])


def batches(checkpoint: Path) -> Iterator[Batch]:
    """Yield the committed batches of a query with one source, in order."""
    start = Offset()
    for number in range(committed(checkpoint) + 1):
        end = offset(checkpoint, number)
        yield Batch(number, start, end)
        start = end


def files_by_batch(checkpoint: Path) -> list[list[int]]:
    """Return which feed files each committed batch of a file stream took.

    One batch takes several entries of the source's own log if the query was killed after it had
    written one there, and before it planned the batch.
    """
    last = committed(checkpoint)  # before the entries are read: the query may go on meanwhile
    of_entry: dict[int, int] = {}
    for log in (checkpoint / "sources" / "0").glob("[0-9]*"):
        for line in log.read_text().splitlines()[1:]:
            entry = json.loads(line)
            number = int(entry["path"].rpartition("/")[2].removesuffix(".parquet"))
            of_entry[int(entry["batchId"])] = number
    result, first = [], 0
    for batch in range(last + 1):
        next_ = int(_planned(checkpoint, batch)["logOffset"]) + 1
        result.append([of_entry[entry] for entry in range(first, next_)])
        first = next_
    return result


def expected(
    checkpoint: Path,
    epochs: Mapping[str, Sequence[list[Row]]],
    passes: Mapping[str, Callable[[Row], bool]],
) -> Counter[Row]:
    """Return the rows that an importer's committed batches have to have delivered."""
    rows: Counter[Row] = Counter()
    for batch in batches(checkpoint):
        for stream, (first, next_) in batch.ranges.items():
            for epoch in range(first, next_):
                rows.update(r for r in epochs[stream][epoch] if passes[batch.end.filter or ""](r))
    return rows


def written(folder: Path) -> dict[int, list[dict[str, Any]]]:
    """Return the rows of each batch that a file sink has committed, where it keeps all its logs."""
    found = {}
    for log in (folder / "_spark_metadata").glob("[0-9]*"):
        entries = [json.loads(line) for line in log.read_text().splitlines()[1:]]
        tables = [pq.read_table(Path(e["path"].removeprefix("file://"))) for e in entries]
        found[int(log.name)] = [row for table in tables for row in table.to_pylist()]
    return found


def received(
    folder: Path, columns: Sequence[str] = ("line", "price", "name")
) -> Counter[tuple[Any, ...]]:
    """Return the rows a file sink has committed, read without Spark from its own log."""
    rows: Counter[tuple[Any, ...]] = Counter()
    for path in _sink_files(folder):
        table = pq.read_table(path, columns=list(columns))
        rows.update(zip(*(c.to_pylist() for c in table.columns), strict=True))
    return rows


def _sink_files(folder: Path) -> Iterator[Path]:
    log = folder / "_spark_metadata"
    compacted = list(log.glob("[0-9]*.compact"))
    newest = max((int(f.name.split(".")[0]) for f in compacted), default=-1)
    logs = [log / f"{newest}.compact"] if newest >= 0 else []
    logs += [f for f in log.glob("[0-9]*") if f.suffix == "" and int(f.name) > newest]
    for file in logs:
        for line in file.read_text().splitlines()[1:]:
            entry: dict[str, Any] = json.loads(line)
            if entry["action"] == "add":
                yield Path(entry["path"].removeprefix("file:"))
