"""What an importer should have received, from the CSV alone, against what it did receive.

The epochs and the filter come from the importer's checkpoint, the rows of an epoch from the CSV by
way of the exporter's checkpoint, and the filters are written here once more in plain Python.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from flights.checkpoints import Batch, committed, published
from flights.children import Failure
from flights.chunks import Chunk
from flights.tables import TIME
from streambroker_core.ledger.offset import Offset

SHOWN = 5

Row = dict[str, Any]


def _late(row: Row, minutes: int) -> bool:
    return row["dep_delay"] is not None and row["dep_delay"] > minutes


PREDICATES: Mapping[str, Callable[[Row], bool]] = {
    "hour >= 6": lambda row: row["hour"] >= 6,
    "dep_delay > 60": lambda row: _late(row, 60),
    'dep_delay > 20 && carrier in ["B6", "DL"]': lambda row: (
        _late(row, 20) and row["carrier"] in ("B6", "DL")
    ),
}
"""The filters that the demonstration sets, by their canonical text."""


class Source:
    """What the exporter has published: chunks, by port and epoch.

    Args:
        work: the demonstration's directory.
        job: the exporting job.
        chunks: all chunks.
    """

    def __init__(self, work: Path, job: str, chunks: Sequence[Chunk]) -> None:
        self._checkpoints = work / "checkpoints"
        self._job = job
        self._chunks = {chunk.name: chunk for chunk in chunks}
        self._epochs: dict[str, list[str]] = {}
        self.ports: dict[str, str] = {}

    def learn(self, exports: Mapping[str, Any]) -> None:
        """Take from the exporter's status which stream belongs to which port."""
        for export, known in exports.items():
            port = export.rpartition("/")[2]
            if len(known["streams"]) > 1:
                raise Failure(f"export {export} has more than one stream: {known['streams']}")
            self.ports.update(dict.fromkeys(known["streams"], port))

    def chunk(self, port: str, epoch: int) -> Chunk:
        """Return the chunk that was published as an epoch."""
        known = self._epochs.get(port, [])
        if epoch >= len(known):
            known = published(self._checkpoints / f"{self._job}-{port}")
            self._epochs[port] = known
        if epoch >= len(known):
            raise Failure(f"{port} has no epoch {epoch}; its exporter planned {len(known)}")
        return self._chunks[known[epoch]]


@dataclass
class Audit:
    """The books of one importer: each committed batch is checked once.

    Attributes:
        job: the importer.
        columns: the columns it reads, apart from ``_source``.
        source: what was published.
        batches: the batches checked so far.
        received: rows received and found right, by port.
        offered: rows published in the epochs it has read, by port, before any filter.
        rows_in: rows received, by batch.
    """

    job: str
    columns: Sequence[str]
    source: Source
    work: Path
    batches: list[Batch] = field(default_factory=list)
    received: Counter[str] = field(default_factory=Counter)
    offered: Counter[str] = field(default_factory=Counter)
    rows_in: dict[int, Counter[str]] = field(default_factory=dict)

    @property
    def checkpoint(self) -> Path:
        """The importing query's checkpoint."""
        return self.work / "checkpoints" / self.job

    @property
    def end(self) -> Offset:
        """The offset after the last batch checked."""
        return self.batches[-1].end if self.batches else Offset()

    def follow(self) -> None:
        """Check the batches that were committed since the last time.

        Raises:
            Failure: a row is missing or too many, or the checkpoint says what cannot be.
        """
        for batch in committed(self.checkpoint, len(self.batches), self.end):
            if any(stream not in self.source.ports for stream in batch.epochs):
                return
            self._check(batch)
            self.batches.append(batch)

    def _check(self, batch: Batch) -> None:
        readers = {b.end.reader for b in (*self.batches[-1:], batch)}
        if len(readers) > 1:
            raise Failure(f"{self.job}: batch {batch.number} has another reader: {readers}")
        expected = Counter(self._expected(batch))
        received = Counter(self._received(batch.number))
        if expected != received:
            raise Failure(_difference(self.job, batch, expected, received))
        self.rows_in[batch.number] = Counter(row[0] for row in received.elements())
        self.received += self.rows_in[batch.number]

    def _expected(self, batch: Batch) -> Iterator[tuple[Any, ...]]:
        text = batch.end.filter
        if text is None or text not in PREDICATES:
            raise Failure(f"{self.job}: batch {batch.number} pins a filter nobody set: {text}")
        passes = PREDICATES[text]
        for stream, (first, next_) in batch.epochs.items():
            port = self.source.ports[stream]
            for epoch in range(first, next_):
                rows = self.source.chunk(port, epoch).rows
                self.offered[port] += rows.num_rows
                for row in _plain(rows).to_pylist():
                    if passes(row):
                        yield (port, epoch, *(row[name] for name in self.columns))

    def _received(self, number: int) -> Iterator[tuple[Any, ...]]:
        rows = pq.read_table(self.work / "received" / self.job / f"{number:05}")
        source = rows["_source"].combine_chunks().flatten()
        places = dict(zip(rows.schema.field("_source").type, source, strict=True))
        named = {f.name: values.to_pylist() for f, values in places.items()}
        data = _plain(rows.select(list(self.columns))).to_pydict()
        yield from zip(named["port"], named["epoch"], *data.values(), strict=True)

    def first_batch(self, holds: Callable[[Batch], bool]) -> Batch | None:
        """Return the first batch of which something is true."""
        return next((batch for batch in self.batches if holds(batch)), None)

    def rows_from(self, number: int, port: str | None = None) -> int:
        """Return the rows received from a batch on, of one port or all."""
        later = [rows for batch, rows in self.rows_in.items() if batch >= number]
        return sum(rows[port] if port else rows.total() for rows in later)


def _plain(table: pa.Table) -> pa.Table:
    """Return the table with times as microseconds since 1970, whatever unit a file has kept."""
    for index, column in enumerate(table.schema):
        if pa.types.is_timestamp(column.type):
            values = table[column.name].cast(TIME).cast(pa.int64())
            table = table.set_column(index, column.name, values)
    return table


def _difference(
    job: str, batch: Batch, expected: Counter[tuple[Any, ...]], received: Counter[tuple[Any, ...]]
) -> str:
    missing, extra = expected - received, received - expected
    told = [
        f"{job}: batch {batch.number} differs: {expected.total():,} rows expected under filter"
        f" {batch.end.filter}, {received.total():,} received"
    ]
    for word, rows in (("missing", missing), ("not expected", extra)):
        if rows:
            told.append(f"{rows.total():,} {word}, the first:")
            told += [
                f"  line {line} of {port}, epoch {epoch}: {values}"
                for port, epoch, line, *values in sorted(rows.elements(), key=str)[:SHOWN]
            ]
    return "\n    ".join(told)


def delivered_as_counted(audit: Audit, exports: Mapping[str, Any]) -> None:
    """Check that published = delivered + filtered + dropped in the exporter's own books.

    Raises:
        Failure: an export's figures for a reader are not those of its checkpoint.
    """
    for export, known in exports.items():
        port = export.rpartition("/")[2]
        reader = known["readers"].get(audit.end.reader)
        if reader is None:
            continue
        figures = {
            "published": (reader["delivered"] + reader["filtered"], audit.offered[port]),
            "delivered": (reader["delivered"], audit.received[port]),
            "dropped": (reader["dropped"][1], 0),
        }
        for what, (says, counted) in figures.items():
            if says != counted:
                raise Failure(
                    f"{export}: the agent counts {says:,} rows {what} for {audit.job}, the"
                    f" checkpoint and the CSV {counted:,}"
                )
