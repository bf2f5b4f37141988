"""Arrow form of control tuples, which travel with the rows.

One row is one tuple. Its ``position`` puts it before the first row of its port whose sequence is
not lower. The format version is in the schema metadata; a newer one is rejected by name.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

import pyarrow as pa

from streambroker_core.control.tuples import ALL_TARGETS, ControlError, ControlTuple, Target
from streambroker_core.control.tuples.envelope import (
    DELIVERIES,
    VERSION,
    WHAT,
    decode_target,
    encode_target,
)
from streambroker_core.errors import FormatTooNewError, ManifestError
from streambroker_core.wire.encoding.canonical import canonical
from streambroker_core.wire.encoding.fields import Fields

_MARK = b"streambroker.control"


@cache
def schema() -> pa.Schema:
    """Return the Arrow schema; ``position`` places an ``IMMEDIATE`` tuple in its port."""
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


PositionedControl = tuple[int, ControlTuple]
"""A position and its control tuple, which is before the first row whose sequence is not lower."""


def to_batch(positioned: Sequence[PositionedControl]) -> pa.RecordBatch:
    """Return tuples as Arrow rows, in the same order."""
    positions = pa.array([position for position, _ in positioned], pa.int64())
    columns = _cached_columns([one for _, one in positioned])
    return pa.RecordBatch.from_arrays([positions, *columns], schema=schema())


def _cached_columns(controls: Sequence[ControlTuple]) -> list[pa.Array]:
    """Return the columns of tuples; cache the last, because each bucket forwards every tuple."""
    global _last  # assigned at once, so that no thread sees a partial state
    key, last = tuple(map(id, controls)), _last
    if last is None or last[0] != key:
        _last = last = (key, controls, _to_columns(controls))
    return last[2]


_last: tuple[tuple[int, ...], Sequence[ControlTuple], list[pa.Array]] | None = None
"""Ids, the tuples with these ids (kept so that ids are not reused), and their columns."""


def _to_columns(controls: Sequence[ControlTuple]) -> list[pa.Array]:
    columns: Sequence[Sequence[Any]] = [
        [one.type for one in controls],
        [one.id for one in controls],
        [one.delivery.value for one in controls],
        [one.at for one in controls],
        [one.epoch for one in controls],
        [one.emitter for one in controls],
        [one.seq for one in controls],
        [one.text for one in controls],
        [_target_text(one.target) for one in controls],
    ]
    fields = list(schema())[1:]
    return [pa.array(column, one.type) for column, one in zip(columns, fields, strict=True)]


def _target_text(target: Target) -> str | None:
    return None if target == ALL_TARGETS else canonical(encode_target(target)).decode()


def from_batch(batch: pa.RecordBatch) -> list[PositionedControl]:
    """Read Arrow rows.

    Raises:
        FormatTooNewError: they are of a newer release.
        ControlError: they are not control tuples.
    """
    _check_batch(batch)
    return _read_batch(batch)


def merge_batch(batch: pa.RecordBatch, into: dict[str, PositionedControl]) -> None:
    """Merge Arrow rows into ``into`` by identity; of copies the lowest position wins.

    Of copies only identity and position are read, because each bucket of an operator forwards every
    tuple. Raises like :func:`from_batch`.
    """
    _check_batch(batch)
    names, positions = (batch.column(name).to_pylist() for name in ("id", "position"))
    new = []
    for index, (name, position) in enumerate(zip(names, positions, strict=True)):
        existing = into.get(name)
        if existing is None:
            new.append(index)
        elif position < existing[0]:
            into[name] = (position, existing[1])
    for position, control in _read_batch(batch.take(new)) if new else ():
        add_if_first(into, position, control)


def add_if_first(into: dict[str, PositionedControl], position: int, control: ControlTuple) -> None:
    """Add a tuple by its identity; of copies the lowest position wins."""
    existing = into.get(control.id)
    if existing is None or position < existing[0]:
        into[control.id] = (position, control)


def _check_batch(batch: pa.RecordBatch) -> None:
    version = (batch.schema.metadata or {}).get(_MARK)
    if version is not None and version.isdigit() and int(version) > VERSION:
        raise FormatTooNewError(path=_MARK.decode(), found=int(version), newest=VERSION, what=WHAT)
    if version is None or not batch.schema.equals(schema()):
        raise ControlError(
            f"rows with the columns {', '.join(batch.schema.names)} are not control tuples: a"
            " step in between changed a control column. Let control bypass that step."
        )


def _read_batch(batch: pa.RecordBatch) -> list[PositionedControl]:
    columns = (column.to_pylist() for column in batch.columns)
    return [(position, _parse_row(*fields)) for position, *fields in zip(*columns, strict=True)]


def _parse_row(
    type_: str,
    id_: str,
    delivery: str,
    at: int | None,
    epoch: int,
    emitter: str,
    seq: int,
    text: str,
    target: str | None,
) -> ControlTuple:
    try:
        parsed_delivery = DELIVERIES[delivery]
        parsed_target = ALL_TARGETS
        if target is not None:
            parsed_target = decode_target(Fields(json.loads(target), "target"))
    except (KeyError, ValueError, ManifestError) as error:
        raise ControlError(f"control tuple {id_} cannot be read: {error}") from error
    return ControlTuple(
        type=type_,
        id=id_,
        delivery=parsed_delivery,
        at=at,
        epoch=epoch,
        emitter=emitter,
        seq=seq,
        text=text,
        target=parsed_target,
    )
