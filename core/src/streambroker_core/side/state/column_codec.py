"""Columns as bytes, and back: one Arrow record batch without its schema.

Whoever reads knows the types. A blob begins with a byte for the version of this form.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from streambroker_core.control.operators.operator import Blobs, StateError

_FORMAT = 1


def pack(*columns: pa.Array) -> bytes:
    """Return columns of one length as bytes."""
    names = [str(number) for number in range(len(columns))]
    batch = pa.RecordBatch.from_arrays(list(columns), names=names)
    data: bytes = batch.serialize().to_pybytes()
    return bytes([_FORMAT]) + bytes(7) + data


def unpack(blobs: Blobs, name: str, types: Sequence[pa.DataType]) -> list[pa.Array]:
    """Return the columns of a blob.

    Raises:
        StateError: the blob is missing, damaged or of a newer release.
    """
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
