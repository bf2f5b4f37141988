"""What follows from a definition, worked out once: types of keys, values and waiting rows."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from streambroker_core.side.checking import check
from streambroker_core.side.definition import RESERVED, SideJoin
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
    """

    join: SideJoin
    key_types: tuple[pa.DataType, ...]
    value_types: tuple[pa.DataType, ...]
    pairs: pa.Schema
    lateness: int

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
    )
