"""Codec of columns as bytes: one Arrow record batch without its schema.

The reader must know the types. The first byte of a blob is the format version.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from streambroker_core.control.operators.operator import Blobs, StateError

_FORMAT = 1


def pack(*columns: pa.Array) -> bytes:
    """Encode columns of equal length."""
    names = [str(number) for number in range(len(columns))]
    batch = pa.RecordBatch.from_arrays(list(columns), names=names)
    data: bytes = batch.serialize().to_pybytes()
    return bytes([_FORMAT]) + bytes(7) + data


def unpack(blobs: Blobs, name: str, types: Sequence[pa.DataType]) -> list[pa.Array]:
    """Decode a blob's columns; raise StateError if it is missing, damaged or of a newer release."""
    data = blobs.get(name)
    if data is None:
        raise StateError(f"state {name} is missing: the store has lost a blob.")
    if data[0] > _FORMAT:
        raise StateError(
            f"state {name} has form {data[0]}, of a newer release; this one reads up to {_FORMAT}."
            " Start that release."
        )
    schema = pa.schema([(str(number), type_) for number, type_ in enumerate(types)])
    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(data).slice(8), schema)
    except (pa.ArrowInvalid, OSError) as error:
        raise StateError(f"state {name} is damaged: {error}.") from error
    return list(batch.columns)
