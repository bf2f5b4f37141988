"""Definitions of side inputs and of the operator that joins them."""

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
"""Update policies of each kind; the first is the default."""
READY: Final = ("first data", "complete", "watermark", "not required")
MISSING: Final = ("null", "error", "wait")
DEFAULT_KEY_TIMEOUT: Final = 60.0
"""Seconds for which a row waits for its key by default, without a ``timeout``."""
MAX_INPUTS: Final = 60
MAIN: Final = "main"
RESERVED: Final = "__side_"
"""Prefix that column names of a main input must not have."""


class _NoDefault:
    """Marks the absence of a default, because None is a default."""

    def __repr__(self) -> str:
        return "no default"

    def __reduce__(self) -> str:
        """Keep it a singleton in every process."""
        return "NO_DEFAULT"


NO_DEFAULT: Final = _NoDefault()


@dataclass(frozen=True, slots=True, kw_only=True)
class SideInput:
    """A side input of an operator.

    Attributes:
        name: its port, and the name by which functions access it.
        kind: what functions see.
        schema: columns of its rows; further columns are ignored.
        key: columns that make the key of a map or multimap; for a keyed singleton or list, those
            that are compared with the key of the main input.
        value: the column that is the value; several for named values; None for all columns that are
            not key, event time or ``deleted``.
        update: effect of a further value; None for the kind's default. A load replaces a list as a
            whole, and in a multimap the keys that it contains.
        ready: what main rows wait for; None for ``first data``, for static tables ``complete``.
        keyed: its rows are in the bucket of the main rows with their key, and it becomes ready key
            by key. A keyed singleton is read as a map, a keyed list as a multimap.
        static: it is a table that is read as a whole, version by version; no rows arrive.
        windows: windows of its event time; there is one view per window.
        event_time: the timestamp column with the event time of its rows.
        deleted: a boolean column; a row in which it is true removes the value, or its key.
        default: value of an empty singleton, or of keys that a map lacks.
        timeout: seconds of the pinned clock after which a row stops waiting. None for no limit, or
            for ``DEFAULT_KEY_TIMEOUT`` where rows wait for their key by default.
        on_timeout: ``default``: such a row sees the current content; ``error``: it goes to the
            output ``errors``.
        on_refused: rows that the policy rejects stop the query (``fail``), or go to ``errors``
            (``output``).
        max_entries: values in all windows of one bucket; for a static table, in one version.
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
        """The effective update policy."""
        return self.update or UPDATES[self.kind][0]

    @property
    def readiness(self) -> str:
        """The effective readiness policy."""
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
        """The type of one value: a struct of its columns."""
        return pa.struct([self.schema.field(name) for name in self.fields])

    @property
    def many(self) -> bool:
        """Whether there may be several values, in total or for a key."""
        return self.kind in ("list", "multimap")

    @property
    def has_default(self) -> bool:
        """Whether there is a default; it may be None."""
        return self.default is not NO_DEFAULT


@dataclass(frozen=True, slots=True, kw_only=True)
class Enrich:
    """Adds columns of a side input to each main row.

    Attributes:
        input: the side input: a singleton or a map.
        on: columns of the main input, in the order of the side input's key; none for a singleton.
        columns: the values to add; none for all.
        names: other names for some of them.
        missing: a row without a value gets nulls, goes to the output ``errors``, or waits until its
            key is there. None for the default, see ``SideJoin.missing``.
        version: a column for the version of the view; None for none.
        only_wait: add no columns; rows wait for keys that the function looks up.
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
        inputs: the side inputs; their order decides at equal positions.
        enrich: columns to add, before the function if there is one.
        key: columns of the main input that decide the bucket.
        windows: windows of main rows: each (row, window) is processed once; None: no windows.
        grouped: the function is called once for each key and main window, with all rows. The call
            follows when the watermark has passed the window and its side windows are ready.
        event_time: the timestamp column with the event time of main rows.
        order: ``arrival``: the order of the runtime. ``event time``: rows of all inputs wait until
            the watermark has passed them, and are processed in the order of their times.
        lateness: seconds for which a window stays open after the watermark has passed it.
        max_waiting_rows: rows that may wait in one bucket.
        max_waiting_bytes: their bytes in Arrow.
        stateless: rows are joined with tables without state, ordering or waiting.
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
        """Return a side input by name; raise SideDefinitionError if there is none."""
        for side in self.inputs:
            if side.name == name:
                return side
        known = ", ".join(side.name for side in self.inputs) or "none"
        raise SideDefinitionError(name, "there is no such side input", f"there are: {known}")

    def missing(self, enrich: Enrich) -> str:
        """Return how a row without a value is handled.

        By default it waits for its key where the first data of a stream makes that stream ready:
        other keys of the same load may still arrive. It gets nulls where the content is known to be
        complete and where rows do not wait. So it does in groups, which wait for the end of their
        window.
        """
        if enrich.missing is not None:
            return enrich.missing
        side = self.input(enrich.input)
        may_arrive = side.readiness == "first data" and not side.static and bool(side.key)
        return "wait" if may_arrive and not self.grouped and not self.stateless else "null"

    def waits(self, side: SideInput) -> list[Enrich]:
        """Return the enrichments that make rows wait for their key in a side input."""
        enrichments = (one for one in self.enrich if one.input == side.name)
        return [one for one in enrichments if self.missing(one) == "wait"]

    def limit(self, side: SideInput) -> float | None:
        """Return the seconds after which rows stop waiting for a side input; None for no limit."""
        if side.timeout is not None:
            return side.timeout
        waits = self.waits(side)
        return DEFAULT_KEY_TIMEOUT if waits and all(one.missing is None for one in waits) else None


def added_columns(enrich: Enrich, side: SideInput) -> list[tuple[str, str]]:
    """Return the added columns as (column name, value name)."""
    if enrich.only_wait:
        return []
    names = dict(enrich.names)
    return [(names.get(field, field), field) for field in enrich.columns or side.fields]
