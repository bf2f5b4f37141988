"""What follows from a definition, worked out once: types of keys, values and waiting rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from zlib import crc32

import pyarrow as pa

from streambroker_core.side.checking import check
from streambroker_core.side.definition import RESERVED, SideInput, SideJoin
from streambroker_core.side.keys import key_type
from streambroker_core.side.windows import SECOND

SEQ, WINDOW, TIME = RESERVED + "seq", RESERVED + "window", RESERVED + "time"
SINCE, WAIVED = RESERVED + "since", RESERVED + "waived"
OWN = (SEQ, WINDOW, TIME, SINCE, WAIVED)
"""Columns of a waiting row beside its own: order of arrival, start of the main window, event time,
pinned time at which it began to wait, bits of side inputs that it waits for no longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A definition that was checked.

    Attributes:
        join: the definition.
        key_types: type of the keys of each side input, as they are compared.
        value_types: type of one value of each side input: a struct.
        pairs: columns of (row, window) pairs.
        lateness: in microseconds.
        forms: of each side input, and of the main one, a digest of what its state depends on.
        policies: a digest of what decides which rows wait, and what is seen.
        turns: side inputs by number, in the order in which rows wait for them: those with a
            timeout first, the shortest before the others, so that each timeout counts.
    """

    join: SideJoin
    key_types: tuple[pa.DataType, ...]
    value_types: tuple[pa.DataType, ...]
    pairs: pa.Schema
    lateness: int
    forms: tuple[str, ...]
    policies: str
    turns: tuple[int, ...]

    @property
    def by_time(self) -> bool:
        """Whether rows are taken in the order of event time."""
        return self.join.order == "event time"


def shape_of(join: SideJoin) -> Shape:
    """Check a definition and work out what follows from it.

    Raises:
        SideDefinitionError: it could never work.
    """
    check(join)
    types = [[one.schema.field(name).type for name in one.key] for one in join.inputs]
    own = [pa.field(name, pa.int64()) for name in OWN]
    return Shape(
        join=join,
        key_types=tuple(key_type(one) if one else pa.int64() for one in types),
        value_types=tuple(one.value_type for one in join.inputs),
        pairs=pa.schema([*join.schema, *own]),
        lateness=round(join.lateness * SECOND),
        forms=(*(_form_of_side(join, one) for one in join.inputs), _form_of_main(join)),
        policies=_policies_of(join),
        turns=tuple(sorted(range(len(join.inputs)), key=lambda n: _timeout_of(join.inputs[n]))),
    )


def _timeout_of(side: SideInput) -> float:
    return inf if side.timeout is None else side.timeout


def _policies_of(join: SideJoin) -> str:
    sides = [(one.updating, one.readiness, one.timeout) for one in join.inputs]
    return _digest([repr(sides), *(repr((one.input, one.on, one.missing)) for one in join.enrich)])


def _form_of_side(join: SideJoin, side: SideInput) -> str:
    told = [side.name, side.kind, *_typed(side.schema, side.key)]
    if not side.static:
        told += [str(side.windows), str(side.keyed), *_typed(side.schema, side.fields)]
        if join.order == "event time":
            told += _typed(side.schema, side.schema.names)
    return _digest(told)


def _form_of_main(join: SideJoin) -> str:
    schema = join.schema
    return _digest([join.order, str(join.windows), *join.key, *_typed(schema, schema.names)])


def _typed(schema: pa.Schema, names: Iterable[str]) -> list[str]:
    return [f"{name} {schema.field(name).type}" for name in names]


def _digest(told: list[str]) -> str:
    return f"{crc32(chr(0).join(told).encode()):08x}"
