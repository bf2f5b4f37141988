"""Actions by which a query of the job reads an import. Offsets are those of Spark's checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from streambroker_core.wire.agent_rpc.codec import Request, optional


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderLease:
    """Seconds that are left of another process's lease, and its number of renewals."""

    seconds: float
    renewals: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """Another process of the query holds the reader."""

    busy: ReaderLease


@dataclass(frozen=True, slots=True, kw_only=True)
class NextOffset:
    """End of the next batch, None if there is nothing new.

    Attributes:
        gated: export whose full log keeps the query from reading.
        behind: exports that send nothing and are below the limit; without a limit those whose
            refusal alone keeps the reader from its end.
        refused: reasons of those exports of ``behind`` that respond.
        left: seconds for which the query has waited only for exports that refuse it.
        together: a call may wait without blocking other streams.
        ended: all exports have ended and are read.
        heads: with an offset, the next epoch of each of its streams, as last known.
        rows_behind: with an offset, rows of its streams that follow it, before filters, as last
            known; None if unknown.
    """

    offset: Mapping[str, Any] | None
    gated: str | None = optional()
    behind: Sequence[str] = optional(())
    refused: Mapping[str, str] = optional({})
    left: float = optional(0.0)
    together: bool = optional(False)
    ended: bool = optional(False)
    heads: Mapping[str, int] = optional({})
    rows_behind: int | None = optional()


@dataclass(frozen=True, slots=True, kw_only=True)
class RulesPosition:
    """Rules that a reader carries: number of read entries, and the filter of the rows they need.

    ``why`` is the reason for no filter.
    """

    log: str
    next: int
    relevant: str | None = None
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderNext(Request[NextOffset | Busy]):
    """Acknowledge an offset and plan the next batch.

    Attributes:
        mint: id of a new reader.
        limit: exclusive upper bound by stream of a run up to a limit, else None.
        wait: seconds.
        lossy: unexpected loss is counted and does not stop the query.
        frame: name of the import in its query.
        aside: the call blocks no other source.
        control: types of control tuples that do not cut batches; None for a reader of rows.
        log: the reader carries the agent's control log, up to ``log_limit`` in a run with a limit.
        renewals: from the last `Busy` response, None at first.
        stop_at_end: the query ends when all exports have ended and everything is read.
    """

    action: ClassVar[str] = "reader.next"
    import_: str
    session: str
    start: Mapping[str, Any] | None
    columns: Sequence[str]
    max_bytes: int
    wait: float
    limit: Mapping[str, int] | None = None
    renewals: int | None = None
    mint: str | None = optional()
    schema: str | None = optional()
    lossy: bool = False
    frame: str | None = None
    aside: bool = optional(False)
    stop_at_end: bool = optional(False)
    control: Sequence[str] | None = optional()
    log: bool = optional(False)
    log_limit: int | None = optional()
    rules: RulesPosition | None = optional()  # noqa: RUF009


@dataclass(frozen=True, slots=True, kw_only=True)
class Slices:
    """Tickets of a batch, each with its address, and the omitted epochs by stream."""

    slices: Sequence[dict[str, Any]]
    lost: Mapping[str, Sequence[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderSlices(Request[Slices | Busy]):
    """Register the plan of a batch again and cut it.

    ``lossy`` omits missing epochs; ``give_up`` also unreachable epochs without a route. With
    ``control`` the tickets read control tuples and number rows.
    """

    action: ClassVar[str] = "reader.slices"
    import_: str
    session: str
    start: Mapping[str, Any] | None
    end: Mapping[str, Any]
    lossy: bool = False
    control: bool = False
    give_up: bool = False
    renewals: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderSnapshot(Request[Slices]):
    """Plan a batch read of what the exports of an import have, and cut it.

    ``start`` and ``end`` are as the start of an import. ``filter`` narrows that of the import.
    """

    action: ClassVar[str] = "reader.snapshot"
    import_: str
    reader: str
    columns: Sequence[str]
    schema: str
    start: str
    end: str
    filter: str | None = None
    lossy: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderDone(Request[None]):
    """Report that a task has read a slice of a batch read; after the last one its claims end."""

    action: ClassVar[str] = "reader.done"
    reader: str
    slice: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewed:
    """Whether a lease was renewed; false if another process has it."""

    renewed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderRenew(Request[Renewed]):
    """Renew the lease of a reader."""

    action: ClassVar[str] = "reader.renew"
    reader: str
    session: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderLeave(Request[None]):
    """Release the lease of a reader whose process ends."""

    action: ClassVar[str] = "reader.leave"
    reader: str
    session: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportHeads:
    """Next epoch of each stream of an import.

    ``missing`` exports have not responded, ``ended`` ones get no epochs for now. ``control`` is the
    next number of the control log, None from an older agent.
    """

    heads: Mapping[str, int]
    missing: Sequence[str]
    ended: Sequence[str] = ()
    control: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderHeads(Request[ImportHeads]):
    """Ask for the target of a run up to a limit; wait for exports that do not respond."""

    action: ClassVar[str] = "reader.heads"
    import_: str
    wait: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """Address of an agent."""

    location: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderWhere(Request[Located]):
    """Ask for the current address of the agent that has blocks."""

    action: ClassVar[str] = "reader.where"
    export: str
    stream: str
    reader: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportSchema:
    """Columns of an import as DDL, None while they are unknown."""

    ddl: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetSchema(Request[ImportSchema]):
    """Ask for the columns of an import; wait up to ``wait`` seconds for them."""

    action: ClassVar[str] = "schema"
    port: str
    wait: float
