"""Packs rows for the shuffle: one packed row per bucket and Arrow batch.

A packed row is ``bucket, seq, n, event_time, payload``.

- The payload is an Arrow IPC stream: the bucket's rows of one batch, with their sequence as first
  column, or control tuples.
- Its schema metadata hold the format version, the port and, for rows, the layout.
- ``event_time`` is null except in watermark rows, which have no payload. So no packed row counts as
  late on the way.
- ``seq`` of a watermark row is the number of rows that its task has packed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

from streambroker_core.control.operators.operator import OperatorError
from streambroker_core.control.runtime.buckets import Layout, assign_buckets
from streambroker_core.control.runtime.control_rows import (
    PositionedControl,
    add_if_first,
    from_batch,
    merge_batch,
    to_batch,
)
from streambroker_core.control.tuples import ControlError
from streambroker_core.errors import FormatTooNewError

VERSION = 1
SEQ = "_seq"
RESERVED = ("_control", "_seq", "_pid", "_now")
NO_BUCKET = -1
RUNNING_BITS, PART_BITS, RANK_BITS = 40, 16, 7
"""Bits of a sequence (int64): rank of an input, part (task or bucket), running number."""

PACKED = pa.schema(
    [
        pa.field("bucket", pa.int32(), nullable=False),
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("n", pa.int32(), nullable=False),
        pa.field("event_time", pa.timestamp("us", "UTC")),
        pa.field("payload", pa.binary(), nullable=False),
    ]
)

_VERSION, _PORT, _LAYOUT = b"streambroker.packed", b"streambroker.port", b"streambroker.layout"


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """One packed row, without its bucket.

    Attributes:
        seq: sequence of its first row.
        n: number of its rows or control tuples.
        payload: Arrow IPC stream; empty for a watermark.
    """

    seq: int
    n: int
    payload: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """An unpacked payload: rows with ``_seq`` as first column, or control tuples.

    Attributes:
        layout: text of the rows' layout; empty for control.
    """

    port: str
    layout: str = ""
    rows: pa.RecordBatch | None = None
    control: tuple[PositionedControl, ...] = ()


def sequence(*, rank: int = 0, part: int = 0, number: int = 0) -> int:
    """Return the position of a row among all rows of a port in one window.

    Args:
        rank: index of the frame among those that feed the port; their rows follow each other.
        part: task or bucket of that frame.
        number: running number of the row in the part.

    Raises:
        OperatorError: an argument is out of range.
    """
    for name, value, bits in (
        ("inputs of one port", rank, RANK_BITS),
        ("tasks", part, PART_BITS),
        ("rows of a task in one window", number, RUNNING_BITS),
    ):
        if not 0 <= value < 1 << bits:
            raise OperatorError(f"{value} is out of range for {name}: there can be {1 << bits}.")
    return (((rank << PART_BITS) | part) << RUNNING_BITS) | number


def consecutive_numbers(first: int, count: int) -> pa.Array:
    """Return ``count`` consecutive int64."""
    if not count:
        return pa.array([], pa.int64())
    ones = pa.repeat(pa.scalar(1, pa.int64()), count)
    return pc.cumulative_sum(ones, start=pa.scalar(first - 1, pa.int64()))


def pack(batch: pa.RecordBatch, layout: Layout, seq: int | pa.Array) -> pa.RecordBatch:
    """Pack rows for their buckets.

    Args:
        batch: rows in their order.
        layout: how they are partitioned.
        seq: sequence of the first row, the others follow; or of each row, ascending.

    Returns:
        Packed rows, by bucket.

    Raises:
        OperatorError: a column has a reserved name, or the key does not fit.
    """
    check_names(batch.schema, layout)
    if not batch.num_rows:
        return packed_rows([])
    order = (
        consecutive_numbers(seq, batch.num_rows)
        if isinstance(seq, int)
        else _check_ascending(seq, layout)
    )
    schema = _packed_schema(batch.schema.remove_metadata(), layout)
    numbered = pa.RecordBatch.from_arrays([order, *batch.columns], schema=schema)
    if layout.broadcast:
        packed = _pack_row(numbered)
        return packed_rows((bucket, packed) for bucket in range(layout.buckets))
    buckets = assign_buckets(batch, layout, order)
    return packed_rows(
        (bucket, _pack_row(rows)) for bucket, rows in _split_by_bucket(numbered, buckets)
    )


def check_names(schema: pa.Schema, layout: Layout) -> None:
    """Raise OperatorError if a column of rows has a reserved name."""
    for name in schema.names:
        if name.startswith(RESERVED):
            raise OperatorError(
                f"rows of input {layout.port} have a column {name}: names that begin with"
                f" {', '.join(RESERVED)} are reserved. Rename it."
            )


def pack_control(
    positioned: Iterable[PositionedControl], port: str, buckets: int
) -> pa.RecordBatch:
    """Pack control tuples for all buckets; of copies the lowest position wins."""
    first: dict[str, PositionedControl] = {}
    for position, control in positioned:
        add_if_first(first, position, control)
    if not first:
        return packed_rows([])
    one = pack_control_row(sorted(first.values(), key=lambda one: one[0]), port)
    return packed_rows((bucket, one) for bucket in range(buckets))


def pack_control_row(positioned: Sequence[PositionedControl], port: str) -> Packed:
    """Pack control tuples of one port: at least one, without copies, by ascending position."""
    batch = to_batch(positioned)
    meta = {**(batch.schema.metadata or {}), _VERSION: str(VERSION), _PORT: port}
    return Packed(
        seq=positioned[0][0],
        n=len(positioned),
        payload=_write(batch.replace_schema_metadata(meta), _CONTROL_OPTIONS),
    )


def pack_watermark(time: int | None, rows: int = 0) -> pa.RecordBatch:
    """Return a task's watermark row, which belongs to no bucket.

    Args:
        time: the largest event time of the task's rows, in microseconds; None for none.
        rows: number of the task's rows, for a reader that counts them.
    """
    return pa.RecordBatch.from_arrays(
        [
            pa.array([NO_BUCKET], pa.int32()),
            pa.array([rows], pa.int64()),
            pa.array([0], pa.int32()),
            pa.array([time], pa.timestamp("us", "UTC")),
            pa.array([b""], pa.binary()),
        ],
        schema=PACKED,
    )


def packed_rows(rows: Iterable[tuple[int, Packed]]) -> pa.RecordBatch:
    """Return packed rows as an Arrow batch."""
    entries = list(rows)
    return pa.RecordBatch.from_arrays(
        [
            pa.array([bucket for bucket, _ in entries], pa.int32()),
            pa.array([row.seq for _, row in entries], pa.int64()),
            pa.array([row.n for _, row in entries], pa.int32()),
            pa.nulls(len(entries), pa.timestamp("us", "UTC")),
            pa.array([row.payload for _, row in entries], pa.binary()),
        ],
        schema=PACKED,
    )


def by_bucket(batch: pa.RecordBatch) -> Iterator[tuple[int, Packed]]:
    """Yield the packed rows of an Arrow batch with their buckets, without watermark rows."""
    for bucket, seq, n, payload in zip(
        *(batch.column(name).to_pylist() for name in ("bucket", "seq", "n", "payload")),
        strict=True,
    ):
        if n:
            yield bucket, Packed(seq=seq, n=n, payload=payload)


def unpack(packed: Packed) -> Arrival:
    """Read a packed row.

    Raises:
        FormatTooNewError: it is of a newer release.
        ControlError: it is not a packed row, or damaged.
    """
    for payload, cached in _CACHE.get((packed.n, len(packed.payload)), ()):
        if payload == packed.payload:
            return cached
    metadata, batch = _open_payload(packed)
    port = metadata[_PORT].decode()
    if _LAYOUT in metadata:
        return Arrival(port=port, layout=metadata[_LAYOUT].decode(), rows=batch)
    arrival = Arrival(port=port, control=tuple(from_batch(_strip_metadata(batch, metadata))))
    _cache_arrival(packed, arrival)
    return arrival


def merge_control(packed: Packed, into: dict[str, PositionedControl]) -> None:
    """Merge the tuples of a packed row into ``into``; see ``control_rows.merge_batch``.

    Raises like :func:`unpack`.
    """
    metadata, batch = _open_payload(packed)
    merge_batch(_strip_metadata(batch, metadata), into)


def _open_payload(packed: Packed) -> tuple[Mapping[bytes, bytes], pa.RecordBatch]:
    try:
        with pa.ipc.open_stream(packed.payload) as reader:
            metadata: Mapping[bytes, bytes] = reader.schema.metadata or {}
            version = metadata.get(_VERSION, b"")
            if version.isdigit() and int(version) > VERSION:
                raise FormatTooNewError(
                    path=_VERSION.decode(),
                    found=int(version),
                    newest=VERSION,
                    what="packed row",
                )
            if _PORT not in metadata or not version:
                raise ControlError("a payload is not a packed row: its schema names no port.")
            batch = reader.read_next_batch()
    except (pa.ArrowException, StopIteration) as error:
        raise ControlError(f"a payload is not a packed row: {error or 'it ends early'}.") from error
    if batch.num_rows != packed.n:
        raise ControlError(
            f"a payload has {batch.num_rows} rows, but its packed row declares {packed.n}."
        )
    return metadata, batch


def _strip_metadata(batch: pa.RecordBatch, metadata: Mapping[bytes, bytes]) -> pa.RecordBatch:
    """Return control tuples without the metadata that packing adds."""
    remaining = {key: value for key, value in metadata.items() if key not in (_VERSION, _PORT)}
    return batch.replace_schema_metadata(remaining)


def _check_ascending(seq: pa.Array, layout: Layout) -> pa.Array:
    seq = seq.cast(pa.int64())
    rises = pc.less(seq.slice(0, max(len(seq) - 1, 0)), seq.slice(1))
    if seq.null_count or not pc.all(rises, min_count=0).as_py():
        raise OperatorError(
            f"the sequence of input {layout.port} does not increase from row to row: sort the"
            " batch by it, and give each row its own number."
        )
    return seq


def _cache_arrival(packed: Packed, arrival: Arrival) -> None:
    """Cache the last control tuples read, because every bucket receives the same ones."""
    if sum(map(len, _CACHE.values())) >= _MAX_CACHED:
        _CACHE.clear()
    entries = _CACHE.setdefault((packed.n, len(packed.payload)), [])
    entries.append((packed.payload, arrival))


_MAX_CACHED = 16
_CACHE: dict[tuple[int, int], list[tuple[bytes, Arrival]]] = {}
"""By number of rows and length, so that a payload of rows costs one lookup: payload, arrival."""
_CONTROL_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")
"""Compressed: tuples of one emitter are similar, and each bucket receives a copy of all."""


@lru_cache(maxsize=64)
def _packed_schema(schema: pa.Schema, layout: Layout) -> pa.Schema:
    fields = [pa.field(SEQ, pa.int64(), nullable=False), *schema]
    meta = {_VERSION: str(VERSION), _PORT: layout.port, _LAYOUT: layout.text()}
    return pa.schema(fields, metadata=meta)


def _split_by_bucket(
    whole: pa.RecordBatch, buckets: pa.Array
) -> Iterator[tuple[int, pa.RecordBatch]]:
    order = pc.sort_indices(buckets)
    whole = whole.take(order)
    runs = pc.run_end_encode(buckets.take(order))
    first = 0
    for bucket, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        yield bucket, whole.slice(first, end - first)
        first = end


def _pack_row(rows: pa.RecordBatch) -> Packed:
    return Packed(seq=rows.column(0)[0].as_py(), n=rows.num_rows, payload=_write(rows))


def _write(batch: pa.RecordBatch, options: pa.ipc.IpcWriteOptions | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())
