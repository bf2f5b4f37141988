"""What follows from a definition, worked out once: types of keys, values and waiting rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from zlib import crc32

import pyarrow as pa

from streambroker_core.side.definition import RESERVED, SideInput, SideJoin
from streambroker_core.side.keys import key_type
from streambroker_core.side.validate import check
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
        limits: of each side input, the microseconds after which rows wait for it no longer; None
            for no limit.
        turns: side inputs by number, in the order in which rows wait for them: those with a
            limit first, the shortest before the others, so that each limit counts.
        by_default: bits of the side inputs where rows wait for their key by default.
    """

    join: SideJoin
    key_types: tuple[pa.DataType, ...]
    value_types: tuple[pa.DataType, ...]
    pairs: pa.Schema
    lateness: int
    forms: tuple[str, ...]
    policies: str
    limits: tuple[int | None, ...]
    turns: tuple[int, ...]
    by_default: int

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
    limits = [join.limit(one) for one in join.inputs]
    own = [pa.field(name, pa.int64()) for name in OWN]
    return Shape(
        join=join,
        key_types=tuple(key_type(one) if one else pa.int64() for one in types),
        value_types=tuple(one.value_type for one in join.inputs),
        pairs=pa.schema([*join.schema, *own]),
        lateness=round(join.lateness * SECOND),
        forms=(*(_form_of_side(join, one) for one in join.inputs), _form_of_main(join)),
        policies=_policies_of(join),
        limits=tuple(None if one is None else round(one * SECOND) for one in limits),
        turns=tuple(
            sorted(range(len(limits)), key=lambda n: inf if (s := limits[n]) is None else s)
        ),
        by_default=_by_default(join),
    )


def _by_default(join: SideJoin) -> int:
    waits = [any(one.missing is None for one in join.waits(side)) for side in join.inputs]
    return sum(1 << number for number, found in enumerate(waits) if found)


def _policies_of(join: SideJoin) -> str:
    sides = [(one.updating, one.readiness, join.limit(one)) for one in join.inputs]
    missing = ((one.input, one.on, join.missing(one)) for one in join.enrich)
    return _digest([repr(sides), *map(repr, missing)])


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
