"""What a side input is, and what an operator does with several."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

import pyarrow as pa

from streambroker_core.side.errors import SideDefinitionError
from streambroker_core.side.windows import GLOBAL, EventTimeWindows

SideKind = Literal["singleton", "list", "map", "multimap"]
Update = Literal["append", "replace", "refuse", "latest"]
Ready = Literal["first data", "complete", "watermark", "not required"]
Order = Literal["arrival", "event time"]

UPDATES: Final[dict[str, tuple[str, ...]]] = {
    "singleton": ("replace", "refuse", "latest"),
    "list": ("append", "replace"),
    "map": ("replace", "refuse", "latest"),
    "multimap": ("append", "replace"),
}
"""Policies of each kind; the first is the default."""
READY: Final = ("first data", "complete", "watermark", "not required")
MISSING: Final = ("null", "error", "wait")
DEFAULT_KEY_TIMEOUT: Final = 60.0
"""Seconds for which a row waits for its key by default, where there is no ``timeout``."""
MAX_INPUTS: Final = 60
MAIN: Final = "main"
RESERVED: Final = "__side_"
"""Columns of a main input must not begin with this."""


class _NoDefault:
    """Stands for no default, because None is one."""

    def __repr__(self) -> str:
        return "no default"

    def __reduce__(self) -> str:
        """Stay the one object in every process."""
        return "NO_DEFAULT"


NO_DEFAULT: Final = _NoDefault()


@dataclass(frozen=True, slots=True, kw_only=True)
class SideInput:
    """A side input of an operator.

    Attributes:
        name: its port, and how functions ask for it.
        kind: what functions see.
        schema: columns of its rows; what comes has these, and more is passed over.
        key: columns that make the key of a map or multimap; of a keyed singleton or list, those
            that are compared with the key of the main input.
        value: the column that is the value; several for values with names; None for all columns
            that are not key, event time or ``deleted``.
        update: what a further value does; None for the kind's default. A load replaces a list as
            a whole, and of a multimap the keys that it has.
        ready: what main rows wait for; None for ``first data``, of static tables ``complete``.
        keyed: its rows lie with the main rows of their key, and it is ready key by key. A keyed
            singleton is read as a map, a keyed list as a multimap.
        static: it is a table that is read as a whole, version by version; no rows come.
        windows: how its event time is cut; there is one view per window.
        event_time: the timestamp column with the event time of its rows.
        deleted: a boolean column; a row in which it is true removes the value, or its key.
        default: value of an empty singleton, or of keys that a map has not.
        timeout: seconds of the pinned clock after which a row waits no longer. None for no limit;
            where rows wait for their key by default, for ``DEFAULT_KEY_TIMEOUT``.
        on_timeout: such a row sees what is there, or goes to the output ``errors``.
        on_refused: rows that the policy does not take stop the query, or go to ``errors``.
        max_entries: values in all windows of one bucket; of a static table, in one version.
        max_bytes: their bytes in Arrow.
    """

    name: str
    kind: SideKind
    schema: pa.Schema
    key: tuple[str, ...] = ()
    value: str | tuple[str, ...] | None = None
    update: Update | None = None
    ready: Ready | None = None
    keyed: bool = False
    static: bool = False
    windows: EventTimeWindows = GLOBAL
    event_time: str | None = None
    deleted: str | None = None
    default: Any = NO_DEFAULT
    timeout: float | None = None
    on_timeout: Literal["default", "error"] = "default"
    on_refused: Literal["fail", "output"] = "fail"
    max_entries: int = 20_000_000
    max_bytes: int = 4 << 30

    @property
    def updating(self) -> str:
        """The update policy that holds."""
        return self.update or UPDATES[self.kind][0]

    @property
    def readiness(self) -> str:
        """The readiness policy that holds."""
        return self.ready or ("complete" if self.static else "first data")

    @property
    def fields(self) -> tuple[str, ...]:
        """The columns that make a value."""
        if isinstance(self.value, str):
            return (self.value,)
        if self.value is not None:
            return self.value
        others = (*self.key, self.event_time, self.deleted)
        return tuple(name for name in self.schema.names if name not in others)

    @property
    def value_type(self) -> pa.DataType:
        """The type of one value with names: a struct."""
        return pa.struct([self.schema.field(name) for name in self.fields])

    @property
    def many(self) -> bool:
        """Whether there may be several values: of a key, or at all."""
        return self.kind in ("list", "multimap")

    @property
    def has_default(self) -> bool:
        """Whether there is a default; it may be None."""
        return self.default is not NO_DEFAULT


@dataclass(frozen=True, slots=True, kw_only=True)
class Enrich:
    """Columns of a side input, added to each main row.

    Attributes:
        input: the side input: a singleton or a map.
        on: columns of the main input, in the order of the side input's key; none for a singleton.
        columns: which values to add; none for all.
        names: other names for some of them.
        missing: a row without a value gets nulls, goes to the output ``errors``, or waits until
            its key is there. None for the default, see ``SideJoin.missing``.
        version: a column for the version of the view; None for none.
        only_wait: add no columns: rows wait for what the function looks up.
    """

    input: str
    on: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    names: tuple[tuple[str, str], ...] = ()
    missing: Literal["null", "error", "wait"] | None = None
    version: str | None = None
    only_wait: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SideJoin:
    """An operator with side inputs.

    Attributes:
        schema: columns of the main input.
        inputs: the side inputs; their order is the order at equal places.
        enrich: columns to add, before the function if there is one.
        key: columns of the main input that decide the bucket.
        windows: windows of main rows: each (row, window) is one call; None: rows stand alone.
        grouped: the function is called once for each key and main window, with all rows, when the
            watermark has passed the window and its side windows are ready.
        event_time: the timestamp column with the event time of main rows.
        order: ``arrival``: as the runtime orders them; ``event time``: each row, of all inputs,
            waits until the watermark has passed it, and all are taken in the order of their times.
        lateness: seconds for which a window stays open after the watermark has passed it.
        max_waiting_rows: rows that may wait in one bucket.
        max_waiting_bytes: their bytes in Arrow.
        stateless: rows meet tables where they are: nothing is kept, put in order, or waits.
    """

    schema: pa.Schema
    inputs: tuple[SideInput, ...] = ()
    enrich: tuple[Enrich, ...] = ()
    key: tuple[str, ...] = ()
    windows: EventTimeWindows | None = None
    grouped: bool = False
    event_time: str | None = None
    order: Order = "arrival"
    lateness: float = 0.0
    max_waiting_rows: int = 10_000_000
    max_waiting_bytes: int = 4 << 30
    stateless: bool = False

    def input(self, name: str) -> SideInput:
        """Return a side input by name.

        Raises:
            SideDefinitionError: there is none of this name.
        """
        for one in self.inputs:
            if one.name == name:
                return one
        known = ", ".join(one.name for one in self.inputs) or "none"
        raise SideDefinitionError(name, "there is no such side input", f"there are: {known}")

    def missing(self, enrich: Enrich) -> str:
        """Return what becomes of a row without a value.

        By default it waits for its key where the first data of a stream make that stream ready:
        other keys of the same load may still come. It gets nulls where the content is known to be
        complete, where rows do not wait, and in groups, which wait for the end of their window.
        """
        if enrich.missing is not None:
            return enrich.missing
        side = self.input(enrich.input)
        more = side.readiness == "first data" and not side.static and bool(side.key)
        return "wait" if more and not self.grouped and not self.stateless else "null"

    def waits(self, side: SideInput) -> list[Enrich]:
        """Return what makes rows wait for their key in a side input."""
        mine = (one for one in self.enrich if one.input == side.name)
        return [one for one in mine if self.missing(one) == "wait"]

    def limit(self, side: SideInput) -> float | None:
        """Return the seconds after which rows do not wait for a side input any longer."""
        if side.timeout is not None:
            return side.timeout
        waits = self.waits(side)
        return DEFAULT_KEY_TIMEOUT if waits and all(one.missing is None for one in waits) else None


def added_columns(enrich: Enrich, side: SideInput) -> list[tuple[str, str]]:
    """Return the columns that are added: their names, and those of the values."""
    if enrich.only_wait:
        return []
    names = dict(enrich.names)
    return [(names.get(field, field), field) for field in enrich.columns or side.fields]
