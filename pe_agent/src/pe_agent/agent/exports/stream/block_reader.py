"""Block reader: filters and projects blocks of planned epochs for many readers.

Readers with equal filter and columns share the filtered batch. Different filters share the masks
of common predicates.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from pe_agent.agent.exports.stream.export_policies import ExportPolicies
from pe_agent.agent.exports.stream.export_stream import ExportStream, VisibleStream
from pe_agent.agent.exports.stream.manifests import Manifest, ObjectBlock
from pe_agent.agent.exports.stream.row_filter import compile_cached
from pe_agent.agent.exports.stream.schema_versions import adapt
from pe_agent.log.errors import AddressGone
from pe_agent.transport.flight_errors import AgentUnreachableError
from streambroker_core.control.runtime.control_rows import to_batch
from streambroker_core.control.runtime.packing import SEQ
from streambroker_core.errors import StreambrokerError
from streambroker_core.model.policies import PolicyDeniedError
from streambroker_core.wire.agent_rpc.peer import ObjectRange

CACHE_BYTES = 64 << 20
ENTRY_BYTES = 1024
"""Bytes of a cache entry without its columns or masks."""
COLUMN_BYTES = 512
"""Bytes of a column or mask without its values."""
_SEQ_FIELD = pa.field(SEQ, pa.int64(), nullable=False)
SentBlock: TypeAlias = "tuple[pa.RecordBatch, dict[str, Any]]"
"""A sent block and its metadata: ``epoch``, and ``latest`` if requested."""


class NotPlannedError(StreambrokerError):
    """A read of unplanned epochs; nothing was sent."""

    code = "NotPlanned"


class BytesCache:
    """LRU cache with a limit in bytes; thread-safe."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._lock = threading.Lock()
        self._items: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()

    def get(self, key: Hashable) -> Any:
        """Return a value and mark it as most recently used; None if missing."""
        with self._lock:
            entry = self._items.get(key)
            if entry is None:
                return None
            self._items.move_to_end(key)
            return entry[0]

    def put(self, key: Hashable, value: Any, size: int) -> None:
        """Cache a value of ``size`` bytes, above 0; a value above the limit is not cached."""
        if size > self._limit:
            return
        with self._lock:
            old = self._items.pop(key, None)
            self._size += size - (old[1] if old else 0)
            self._items[key] = (value, size)
            while self._size > self._limit:
                self._size -= self._items.popitem(last=False)[1][1]


@dataclass(frozen=True, slots=True, kw_only=True)
class LatestTimeRequest:
    """Request for the latest time of all rows that pass a wider filter.

    Attributes:
        column: timestamp column.
        filter: the wider filter; None for all rows.
    """

    column: str
    filter: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequest:
    """Request of one slice: blocks ``[first, last)`` of each epoch, in order.

    ``query`` is the reading task's streaming query, None if not reported. With ``numbered``,
    filtered rows carry their number in the block, as column ``_seq``. ``latest`` requests a time
    as metadata, because the reader's clock follows rows that its narrower filter removes.
    """

    reader: str
    stream: str
    pieces: tuple[tuple[int, int, int], ...]
    filter: str | None
    columns: tuple[str, ...] | None
    query: str | None = None
    numbered: bool = False
    latest: LatestTimeRequest | None = None


class Readable(Protocol):
    """Streams with read permissions."""

    @property
    def streams(self) -> Mapping[str, ExportStream]:
        """Return the streams, by id."""

    @property
    def policies(self) -> ExportPolicies:
        """Return what the readers may see of the streams."""

    def find_readable(self, read: ReadRequest, epoch: int) -> Manifest | None:
        """Return the manifest of an epoch, None if the reader may not read it."""

    def count_block(self, reader: str, stream: str, epoch: int, block: int, rows: int) -> None:
        """Record how many rows of a block passed the filter."""

    def count_sent(self, reader: str, rows: int, size: int) -> None:
        """Count sent rows and bytes."""

    def count_control(self, reader: str, deliveries: Iterable[str]) -> None:
        """Count sent control tuples."""


class BlockReader:
    """Reads slices of blocks. One per agent."""

    def __init__(self, cache_bytes: int = CACHE_BYTES) -> None:
        self._filtered = BytesCache(cache_bytes)
        self._masks = BytesCache(cache_bytes // 4)

    def schema_for(self, stream: VisibleStream, read: ReadRequest) -> pa.Schema:
        """Return the Arrow schema of a read, without row numbers.

        It is that of the newest of its epochs; columns that came later are null.

        Raises:
            PolicyDeniedError: policies withhold one of its columns.
        """
        _check_withheld(stream, read)
        manifests = (stream.manifests.get(epoch) for epoch, _, _ in read.pieces)
        schema = stream.versions.newest_of({m.ddl for m in manifests if m is not None}).schema
        if read.columns is None:
            return schema
        newest = stream.schema
        return pa.schema(
            [schema.field(c) if c in schema.names else newest.field(c) for c in read.columns]
        )

    def sent_schema(self, schema: pa.Schema, read: ReadRequest, stream: VisibleStream) -> pa.Schema:
        """Return the Arrow schema of the batches of a read."""
        if not read.numbered or (read.filter is None and not _filters_rows(stream)):
            return schema
        return schema.append(_SEQ_FIELD)

    def read_control(self, export: Readable, read: ReadRequest) -> Iterator[SentBlock]:
        """Yield the control tuples of each epoch with their positions, unfiltered.

        Raises:
            NotPlannedError: an epoch is not in the reader's plan.
        """
        for epoch, _, _ in read.pieces:
            manifest = _require_planned(export, read, epoch)
            stream = export.streams.get(read.stream)
            placed = stream.read_control(epoch) if stream else []
            if manifest.control and len(placed) != manifest.control.head.tuples:
                raise NotPlannedError(f"epoch {epoch} of stream {read.stream} was removed.")
            export.count_control(read.reader, (one.delivery.value for _, one in placed))
            yield to_batch(placed), {"epoch": epoch}

    def read_batches(
        self,
        export: Readable,
        read: ReadRequest,
        schema: pa.Schema | None = None,
        stream: VisibleStream | None = None,
    ) -> Iterator[SentBlock]:
        """Yield the passing rows and metadata of each block, also for blocks without rows.

        ``stream`` is what the export has found for the read, and ``schema`` what `schema_for`
        returned; by default both are called here.

        Raises:
            AgentUnreachableError: the policies for the reader changed; it has to ask again.
            NotPlannedError: an epoch is not in the reader's plan.
        """
        stream = stream or _visible_stream(export, read)
        if schema is None and stream is not None:
            schema = self.schema_for(stream, read)
        for epoch, first, last in read.pieces:
            manifest = _require_planned(export, read, epoch)
            count = len(manifest.blocks)
            if not 0 <= first <= last <= count:
                raise NotPlannedError(
                    f"epoch {epoch} of stream {read.stream} has {count} blocks here, not"
                    f" blocks {first} to {last}."
                )
            for index in range(first, last):
                metadata: dict[str, Any] = {"epoch": epoch}
                if stream is None or read.stream not in export.streams:
                    raise NotPlannedError(
                        f"stream {read.stream} is no longer in the log of this agent."
                    )
                if export.policies.of_reader(read.reader) != stream.restriction:
                    raise AgentUnreachableError("the policies of the export have changed.")
                batch, manifest = self._read_current(
                    export, stream, read, schema, manifest, index, metadata
                )
                export.count_block(read.reader, read.stream, epoch, index, batch.num_rows)
                export.count_sent(read.reader, batch.num_rows, batch.nbytes)
                yield batch, metadata

    def find_objects(
        self, export: Readable, read: ReadRequest
    ) -> tuple[list[ObjectRange], pa.Schema] | None:
        """Return the objects that have all blocks of an unfiltered read, and their columns.

        None if some blocks are elsewhere, or have other columns. What is found counts as sent.

        Raises:
            NotPlannedError: an epoch is not in the reader's plan.
        """
        stream = _visible_stream(export, read)
        if stream is None or stream.objects is None or read.filter is not None:
            return None
        ranges: list[tuple[str, int, int, list[ObjectBlock]]] = []
        ddls = set[str]()
        for epoch, first, last in read.pieces:
            manifest = _require_planned(export, read, epoch)
            ddls.add(manifest.ddl)
            for block in manifest.blocks[first:last]:
                if not isinstance(block, ObjectBlock):
                    return None
                key, offset = block.key, block.offset
                if ranges and ranges[-1][:2] == (key, epoch) and ranges[-1][2] == offset:
                    ranges[-1][3].append(block)
                    ranges[-1] = (key, epoch, offset + block.bytes, ranges[-1][3])
                else:
                    ranges.append((key, epoch, offset + block.bytes, [block]))
        schema = stream.versions.newest_of(ddls).schema
        if len(ddls) > 1 or not set(read.columns or ()).issubset(schema.names):
            return None
        for *_, blocks in ranges:
            rows, size = sum(b.rows for b in blocks), sum(b.bytes for b in blocks)
            export.count_sent(read.reader, rows, size)
        found = [
            ObjectRange(
                url=stream.objects.get_url(key),
                offset=blocks[0].offset,
                epoch=epoch,
                blocks=[(b.bytes, b.rows, b.crc) for b in blocks],
            )
            for key, epoch, _, blocks in ranges
        ]
        return found, schema

    def _read_current(
        self,
        export: Readable,
        stream: VisibleStream,
        read: ReadRequest,
        schema: pa.Schema | None,
        manifest: Manifest,
        index: int,
        metadata: dict[str, Any],
    ) -> tuple[pa.RecordBatch, Manifest]:
        """Return a block and its current manifest: a rewrite may have moved the block."""
        while True:
            try:
                found = self._read_block(stream, read, schema, manifest, index, metadata)
                return found, manifest
            except AddressGone:
                before, manifest = manifest, _require_planned(export, read, manifest.epoch)
                if manifest == before:
                    raise

    def _read_block(
        self,
        stream: VisibleStream,
        read: ReadRequest,
        schema: pa.Schema | None,
        manifest: Manifest,
        index: int,
        metadata: dict[str, Any],
    ) -> pa.RecordBatch:
        block, epoch = manifest.blocks[index], manifest.epoch
        load = cache(partial(stream.read, block, manifest.ddl))
        if read.latest is not None:
            metadata["latest"] = self._latest_time(stream, read.latest, (epoch, index), load)
        if read.filter is None and stream.restriction is None:
            return adapt(load(), schema)
        key = (stream.id, stream.restriction, epoch, index, read.filter, schema, read.numbered)
        cached = self._filtered.get(key)
        if cached is not None:
            return cached
        batch = load()
        result, numbers = adapt(batch, schema), None
        if _filters_rows(stream):
            numbers = batch.column(SEQ)
        if read.filter is not None:
            mask = self._compute_mask(stream, batch, read.filter, (epoch, index))
            result = result.filter(mask)
            passing = pc.indices_nonzero(mask)
            numbers = passing.cast(pa.int64()) if numbers is None else numbers.take(passing)
        if read.numbered and numbers is not None:
            columns = [*result.columns, numbers]
            result = pa.RecordBatch.from_arrays(columns, schema=result.schema.append(_SEQ_FIELD))
        size = _entry_size(result.num_columns, len(read.filter or "") + result.nbytes)
        self._filtered.put(key, result, size)
        return result

    def _latest_time(
        self,
        stream: VisibleStream,
        request: LatestTimeRequest,
        block: tuple[int, int],
        load: Callable[[], pa.RecordBatch],
    ) -> int | None:
        """Return the latest time of a block in microseconds; None if no row has one."""
        key = (stream.id, stream.restriction, *block, request)
        cached: tuple[int | None] | None = self._masks.get(key)
        if cached is None:
            batch = load()
            times = adapt(batch, stream.schema).column(request.column)
            if request.filter is not None:
                times = times.filter(self._compute_mask(stream, batch, request.filter, block))
            cached = (pc.max(times).cast(pa.timestamp("us", "UTC")).value,)
            self._masks.put(key, cached, _entry_size(0, len(request.filter or "")))
        return cached[0]

    def _compute_mask(
        self, stream: VisibleStream, batch: pa.RecordBatch, filter_: str, block: tuple[int, int]
    ) -> pa.BooleanArray:
        """Return the mask of passing rows; predicate masks are cached for other filters."""
        key, schema = (stream.id, stream.restriction, *block), stream.schema
        atoms: dict[str, Any] = self._masks.get(key) or {}
        mask = compile_cached(filter_, schema).mask(adapt(batch, schema), cache=atoms)
        masks = list(atoms.items())
        self._masks.put(
            key, atoms, _entry_size(len(masks), sum(len(text) + m.nbytes for text, m in masks))
        )
        return mask


def _visible_stream(export: Readable, read: ReadRequest) -> VisibleStream | None:
    stream = export.streams.get(read.stream)
    return None if stream is None else export.policies.show(stream, read.reader)


def _filters_rows(stream: VisibleStream) -> bool:
    """Return whether policies remove rows; what is left then has its numbers as a last column."""
    return stream.restriction is not None and bool(stream.restriction.filters)


def _check_withheld(stream: VisibleStream, read: ReadRequest) -> None:
    if stream.restriction is None:
        return
    names = [*(read.columns or ()), *([read.latest.column] if read.latest else [])]
    withheld = stream.restriction.find_withheld(names)
    if withheld is not None:
        raise PolicyDeniedError(
            f"{stream.restriction} of the export withhold the column `{withheld}` of stream"
            f" {stream.id}. Nothing was sent. Read without it, with a new checkpoint, or ask the"
            " Export's owner for it."
        )


def _require_planned(export: Readable, read: ReadRequest, epoch: int) -> Manifest:
    """Return the manifest of an epoch planned with this filter and columns, else raise."""
    manifest = export.find_readable(read, epoch)
    if manifest is None:
        raise NotPlannedError(
            f"epoch {epoch} of stream {read.stream} is not in the plan of reader {read.reader}: it"
            " was acknowledged, or planned under another filter or with other columns, or another"
            " run of the query went on, or the reader was away for longer than `grace`."
        )
    return manifest


def _entry_size(columns: int, values: int) -> int:
    """Return the size of a cache entry in bytes; empty ones count, as there may be many."""
    return ENTRY_BYTES + columns * COLUMN_BYTES + values
