"""Control tuples as Arrow rows: how they travel on the path of the data.

One row per tuple, with ``position``: the tuple stands before the first row of its port whose
sequence is not lower. The version is in the schema's metadata; a newer one is refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import pyarrow as pa

from streambroker_core.control.envelope import (
    DELIVERIES,
    VERSION,
    WHAT,
    decode_target,
    encode_target,
)
from streambroker_core.control.tuples import EVERYBODY, ControlError, ControlTuple
from streambroker_core.errors import FormatTooNewError, ManifestError
from streambroker_core.wire.canonical import canonical
from streambroker_core.wire.fields import Fields

_MARK = b"streambroker.control"


@cache
def schema() -> pa.Schema:
    """Return the Arrow schema: ``position`` is where an ``IMMEDIATE`` tuple stands in its port."""
    text, number = pa.string(), pa.int64()
    return pa.schema(
        [
            pa.field("position", number, nullable=False),
            pa.field("type", text, nullable=False),
            pa.field("id", text, nullable=False),
            pa.field("delivery", text, nullable=False),
            pa.field("at", number),
            pa.field("epoch", number, nullable=False),
            pa.field("emitter", text, nullable=False),
            pa.field("seq", number, nullable=False),
            pa.field("payload", text, nullable=False),
            pa.field("target", text),
        ],
        metadata={_MARK: str(VERSION)},
    )


Placed = tuple[int, ControlTuple]
"""A control tuple and its position: it stands before the first row whose sequence is not lower."""


def to_batch(placed: Sequence[Placed]) -> pa.RecordBatch:
    """Return Arrow rows, in the order given."""
    rows = [
        {
            "position": position,
            "type": one.type,
            "id": one.id,
            "delivery": one.delivery.value,
            "at": one.at,
            "epoch": one.epoch,
            "emitter": one.emitter,
            "seq": one.seq,
            "payload": one.text,
            "target": canonical(encode_target(one.target)).decode()
            if one.target != EVERYBODY
            else None,
        }
        for position, one in placed
    ]
    return pa.RecordBatch.from_pylist(rows, schema=schema())


def from_batch(batch: pa.RecordBatch) -> list[Placed]:
    """Read Arrow rows.

    Raises:
        FormatTooNewError: they are of a newer release.
        ControlError: they are no control tuples.
    """
    found = (batch.schema.metadata or {}).get(_MARK)
    if found is not None and found.isdigit() and int(found) > VERSION:
        raise FormatTooNewError(path=_MARK.decode(), found=int(found), newest=VERSION, what=WHAT)
    if found is None or not batch.schema.equals(schema()):
        raise ControlError(
            f"rows with the columns {', '.join(batch.schema.names)} are not control tuples: a"
            " control column has been changed on the way. Let control go around that step."
        )
    return [(row["position"], _from_row(row)) for row in batch.to_pylist()]


def _from_row(row: Mapping[str, Any]) -> ControlTuple:
    try:
        delivery = DELIVERIES[row["delivery"]]
        target = EVERYBODY
        if row["target"] is not None:
            target = decode_target(Fields(json.loads(row["target"]), "target"))
    except (KeyError, ValueError, ManifestError) as error:
        raise ControlError(f"control tuple {row['id']} cannot be read: {error}") from error
    return ControlTuple(
        type=row["type"],
        id=row["id"],
        delivery=delivery,
        at=row["at"],
        epoch=row["epoch"],
        emitter=row["emitter"],
        seq=row["seq"],
        text=row["payload"],
        target=target,
    )
