"""Assigns rows to buckets by a hash of their key, which is fixed for the life of a checkpoint.

- Values are cast to the key's declared types first, so int32 and int64 of two inputs match.
- -0.0 equals 0.0, and all NaN are equal.
- The hash (``HASH``) is defined here and the same everywhere. Changing it changes the format.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc

from streambroker_core.control.operators.operator import Input, OperatorError
from streambroker_core.control.tuples import ControlError, KeyValue

HASH = "mix64-1"
MAX_BUCKETS = 1 << 16

_U64 = pa.uint64()


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How the rows of one port are partitioned into buckets.

    Attributes:
        key: names and types of the key columns; without, rows are spread by their sequence.
        broadcast: every bucket gets every row.
        nulls: rows with a null in their key go to bucket 0; otherwise they are rejected.
    """

    port: str
    buckets: int = 64
    key: tuple[tuple[str, pa.DataType], ...] = ()
    broadcast: bool = False
    nulls: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.buckets <= MAX_BUCKETS:
            raise OperatorError(f"{self.buckets} buckets: there can be 1 to {MAX_BUCKETS}.")
        if self.key and self.broadcast:
            raise OperatorError(
                f"input {self.port} has a key and is broadcast: with a key each row has one"
                " bucket; remove one of the two."
            )

    def text(self) -> str:
        """Return the part of the layout that must not change within a checkpoint."""
        how = ",".join(f"{name}:{kind}" for name, kind in self.key)
        if not how:
            how = "broadcast" if self.broadcast else "sequence"
        return f"{HASH};{self.buckets};{how}"


def make_layout(input_: Input, schema: pa.Schema, buckets: int, *, nulls: bool = False) -> Layout:
    """Return the layout of an operator's input, with key types from the rows' schema.

    Raises:
        OperatorError: the rows lack a key column.
    """
    missing = [name for name in input_.key if name not in schema.names]
    if missing:
        raise OperatorError(
            f"input {input_.name} has the key {', '.join(input_.key)}, and its rows have no column"
            f" {missing[0]}; they have {', '.join(schema.names)}."
        )
    return Layout(
        port=input_.name,
        buckets=buckets,
        key=tuple((name, schema.field(name).type) for name in input_.key),
        broadcast=input_.broadcast,
        nulls=nulls,
    )


def assign_buckets(batch: pa.RecordBatch, layout: Layout, seq: pa.Array) -> pa.Array:
    """Return the bucket of each row, as int32.

    Raises:
        OperatorError: a key column is missing, cannot be cast, or has nulls.
    """
    if not layout.key:
        return _scale_to_buckets(_mix_bits(seq.cast(pa.int64()).view(_U64)), layout.buckets)
    columns = [_key_column(batch, name, kind, layout) for name, kind in layout.key]
    return _buckets(columns, layout)


def bucket_for_key(values: Sequence[KeyValue], layout: Layout) -> int:
    """Return the bucket of a key.

    Raises:
        ControlError: the values do not fit the key's types.
    """
    if len(values) != len(layout.key):
        names = ", ".join(name for name, _ in layout.key)
        raise ControlError(
            f"key {list(values)} has {len(values)} values; input {layout.port} has {names}."
        )
    columns = []
    for value, (name, kind) in zip(values, layout.key, strict=True):
        try:
            columns.append(pa.array([value]).cast(kind))
        except pa.ArrowException as error:
            raise ControlError(
                f"key {list(values)} does not fit column {name} of input {layout.port}, which is"
                f" {kind}: {error}."
            ) from error
    return int(_buckets(columns, layout)[0].as_py())


def _key_column(batch: pa.RecordBatch, name: str, kind: pa.DataType, layout: Layout) -> pa.Array:
    if name not in batch.schema.names:
        raise OperatorError(
            f"rows of input {layout.port} have no column {name}, which is its key; they have"
            f" {', '.join(batch.schema.names)}."
        )
    try:
        column = batch.column(name).cast(kind)
    except pa.ArrowException as error:
        raise OperatorError(
            f"column {name} of input {layout.port} is {batch.schema.field(name).type} and cannot"
            f" be cast to {kind}, the type of its key: {error}."
        ) from error
    if column.null_count and not layout.nulls:
        raise OperatorError(
            f"column {name} of input {layout.port} is null in {column.null_count} rows, and it is"
            " its key: filter them out, or allow null keys."
        )
    return column


def _buckets(columns: Sequence[pa.Array], layout: Layout) -> pa.Array:
    mixed = None
    for column in columns:
        number = _number(column, layout)
        mixed = _mix_bits(number if mixed is None else pc.bit_wise_xor(mixed, number))
    buckets = _scale_to_buckets(mixed, layout.buckets)
    return pc.fill_null(buckets, 0) if buckets.null_count else buckets


def _number(column: pa.Array, layout: Layout) -> pa.Array:
    """Return uint64 that are equal where the values are; null where they are null."""
    kind = column.type
    if pa.types.is_floating(kind):
        column = pc.add(column.cast(pa.float64()), 0.0)
        column = pc.if_else(pc.is_nan(column), float("nan"), column)
        return column.view(_U64)
    if pa.types.is_unsigned_integer(kind):
        return column.cast(_U64)
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return column.cast(pa.int64()).view(_U64)
    if pa.types.is_timestamp(kind):
        return column.cast(pa.timestamp("us", kind.tz)).view(_U64)
    if pa.types.is_date32(kind):
        return column.cast(pa.int32()).cast(pa.int64()).view(_U64)
    if pa.types.is_decimal(kind):
        column = column.cast(pa.string())
    elif not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or _is_bytes(kind)):
        raise OperatorError(
            f"input {layout.port} has a key of type {kind}: a key can be a text, bytes, a number,"
            " a boolean, a date or a time."
        )
    encoded = column.dictionary_encode()
    values = encoded.dictionary.cast(pa.large_binary()).to_pylist()
    return pa.array([crc32(value) for value in values], _U64).take(encoded.indices)


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _mix_bits(number: pa.Array) -> pa.Array:
    """Return hashed uint64: the finaliser of SplitMix64 (Steele, Lea, Flood 2014)."""
    mixed = pc.add(number, pa.scalar(0x9E3779B97F4A7C15, _U64))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = pc.bit_wise_xor(mixed, pc.shift_right(mixed, pa.scalar(shift, _U64)))
        mixed = pc.multiply(mixed, pa.scalar(factor, _U64))
    return pc.bit_wise_xor(mixed, pc.shift_right(mixed, pa.scalar(31, _U64)))


def _scale_to_buckets(mixed: pa.Array, buckets: int) -> pa.Array:
    """Scale the upper half of a hash to the number of buckets."""
    upper = pc.shift_right(mixed, pa.scalar(32, _U64))
    scaled = pc.multiply(upper, pa.scalar(buckets, _U64))
    return pc.shift_right(scaled, pa.scalar(32, _U64)).cast(pa.int32())
