"""State layout derived from a definition: types of keys, values and waiting rows."""

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
WAIT_COLUMNS = (SEQ, WINDOW, TIME, SINCE, WAIVED)
"""Additional columns of a waiting row: order of arrival, start of the main window, event time;
pinned time at which it began to wait; bits of side inputs for which it waits no longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateLayout:
    """Layout of a checked definition.

    Attributes:
        join: the definition.
        key_types: type of the keys of each side input, in comparison form.
        value_types: type of one value of each side input: a struct.
        pair_schema: columns of (row, window) pairs.
        lateness: in microseconds.
        form_digests: for each side input, and for the main one, a digest of what its state depends
            on.
        policy_digest: digest of the policies that decide which rows wait and what is visible.
        limits: for each side input, the microseconds after which rows stop waiting; None for no
            limit.
        wait_order: numbers of side inputs in the order in which rows wait for them. The shortest
            limit comes first and no limit last, so that each limit counts.
        default_wait_bits: bits of the side inputs where rows wait for their key by default.
    """

    join: SideJoin
    key_types: tuple[pa.DataType, ...]
    value_types: tuple[pa.DataType, ...]
    pair_schema: pa.Schema
    lateness: int
    form_digests: tuple[str, ...]
    policy_digest: str
    limits: tuple[int | None, ...]
    wait_order: tuple[int, ...]
    default_wait_bits: int

    @property
    def is_by_time(self) -> bool:
        """Whether rows are processed in event-time order."""
        return self.join.order == "event time"


def build_layout(join: SideJoin) -> StateLayout:
    """Check a definition and derive its layout; raise SideDefinitionError if it can never work."""
    check(join)
    types = [[one.schema.field(name).type for name in one.key] for one in join.inputs]
    limits = [join.limit(one) for one in join.inputs]
    own = [pa.field(name, pa.int64()) for name in WAIT_COLUMNS]
    return StateLayout(
        join=join,
        key_types=tuple(key_type(one) if one else pa.int64() for one in types),
        value_types=tuple(one.value_type for one in join.inputs),
        pair_schema=pa.schema([*join.schema, *own]),
        lateness=round(join.lateness * SECOND),
        form_digests=(*(_digest_side(join, one) for one in join.inputs), _digest_main(join)),
        policy_digest=_digest_policies(join),
        limits=tuple(None if one is None else round(one * SECOND) for one in limits),
        wait_order=tuple(
            sorted(range(len(limits)), key=lambda n: inf if (s := limits[n]) is None else s)
        ),
        default_wait_bits=_default_wait_bits(join),
    )


def _default_wait_bits(join: SideJoin) -> int:
    waits = [any(one.missing is None for one in join.waits(side)) for side in join.inputs]
    return sum(1 << number for number, is_set in enumerate(waits) if is_set)


def _digest_policies(join: SideJoin) -> str:
    sides = [(one.updating, one.readiness, join.limit(one)) for one in join.inputs]
    missing = ((one.input, one.on, join.missing(one)) for one in join.enrich)
    return _digest([repr(sides), *map(repr, missing)])


def _digest_side(join: SideJoin, side: SideInput) -> str:
    parts = [side.name, side.kind, *_column_types(side.schema, side.key)]
    if not side.static:
        parts += [str(side.windows), str(side.keyed), *_column_types(side.schema, side.fields)]
        if join.order == "event time":
            parts += _column_types(side.schema, side.schema.names)
    return _digest(parts)


def _digest_main(join: SideJoin) -> str:
    schema = join.schema
    return _digest([join.order, str(join.windows), *join.key, *_column_types(schema, schema.names)])


def _column_types(schema: pa.Schema, names: Iterable[str]) -> list[str]:
    return [f"{name} {schema.field(name).type}" for name in names]


def _digest(parts: list[str]) -> str:
    return f"{crc32(chr(0).join(parts).encode()):08x}"
