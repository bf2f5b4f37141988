"""Actions of an importer's agent at an exporter's agent.

A request shows a capability, or a pass for what was planned before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from streambroker_core.errors import CapabilityError
from streambroker_core.wire.agent_rpc.codec import (
    MessageInvalidError,
    Request,
    json_field,
    optional,
)
from streambroker_core.wire.encoding.start import START_FORMS, is_start

MAX_READER_ID = 64
"""Maximum characters of a reader id; agents create ids of 32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerCredentials:
    """What an importer's agent shows for an export and an import."""

    export: str
    import_: str
    capability: str | None = None
    reader: str | None = None
    pass_: str | None = None
    filter: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """Fields of both plan requests.

    Attributes:
        call: incarnation of the reader's agent and number of the call in it; older agents send
            none.
        positions: first unfinished epoch by stream.
        own: streams in ``positions`` that the reader attributes to this export.
        lease: seconds.
        lossy: report unexpected loss and skip it.
        control: types of control tuples that do not cut batches; None for a reader of rows.
    """

    export: str
    import_: str
    reader: str
    lease: float
    positions: Mapping[str, int]
    filter: str | None
    columns: list[str] | None
    call: tuple[str, int] | None = None
    capability: str | None = None
    pass_: str | None = None
    own: Sequence[str] = ()
    lossy: bool = False
    control: Sequence[str] | None = optional()

    def __post_init__(self) -> None:
        _check_reader(self.reader, self.call)
        if self.lease < 0:
            raise MessageInvalidError(f"lease is {self.lease}, which is not a valid lifetime")
        _check_numbers("positions", self.positions)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRange:
    """Pinned epochs ``[from_, next)`` of one stream; pairs are epochs and rows.

    Attributes:
        dropped: dropped by agreement between the reader's position and ``from_``.
        duplicates: right before ``from_``, already read by the reader from a lost log.
        lost: unexpected loss between the reader's position and ``from_``; rows None if unknown.
        has_gap: ``from_`` is past the reader's position.
        rows_below: rows of the stream below ``next``, before filters; older agents send none.
    """

    stream: str
    from_: int
    next: int
    dropped: tuple[int, int] = (0, 0)
    duplicates: tuple[int, int] = (0, 0)
    lost: tuple[int, int | None] = (0, 0)
    has_gap: bool = json_field(key="moved", default=False)
    rows_below: int | None = optional()


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """Epochs pinned for a reader.

    Attributes:
        last: query and batch of the last planned epoch.
        gone: streams of the request that the export does not know.
        quiet: end of the rowless epochs behind the plan, by stream.
        tuples: control tuples of the plan, ``payload`` their bytes.
        misfits: reasons why streams are not sent.
        pass_: credential for requests without a capability.
    """

    planned: Sequence[PlannedRange]
    bytes: int
    last: tuple[str, int] | None
    routed: bool
    gone: Sequence[str] = ()
    quiet: Mapping[str, int] = field(default_factory=dict)
    tuples: int = 0
    payload: int = 0
    misfits: Sequence[str] = ()
    pass_: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerPlan(_Plan, Request[Planned]):
    """Acknowledge positions and plan the next epochs.

    Attributes:
        start: where an import begins.
        known: the reader has opened this export before.
        last: query and batch of the last epoch read.
        limit: exclusive upper bound by stream; None for no limit.
        budget: maximum bytes; ``one`` plans one epoch of any size.
        schema: DDL of the reader's columns.
        tuples: maximum control tuples, ``payload`` their maximum bytes; with ``control`` only.
    """

    action: ClassVar[str] = "peer.plan"
    start: str = "latest"
    known: bool = True
    last: tuple[str, int] | None = None
    limit: Mapping[str, int] | None = None
    budget: int = 0
    one: bool = True
    schema: str | None = None
    tuples: int | None = optional()
    payload: int | None = optional()

    def __post_init__(self) -> None:
        _Plan.__post_init__(self)
        if not is_start(self.start):
            raise MessageInvalidError(f"start is {self.start!r}, which is not {START_FORMS}")
        if self.last is not None and self.last[1] < -1:
            raise MessageInvalidError("last has to be a query id and the id of a batch")
        numbers = {"budget": self.budget, "tuples": self.tuples, "payload": self.payload}
        _check_numbers("the plan", {name: n for name, n in numbers.items() if n is not None})
        _check_numbers("limit", self.limit or {})


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReader:
    """A reader of a `PlanGroup`; its fields are those of its own `PeerPlan`."""

    import_: str
    reader: str
    call: tuple[str, int] | None = None
    capability: str | None = None
    pass_: str | None = None

    def __post_init__(self) -> None:
        _check_reader(self.reader, self.call)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanGroup:
    """Plans that differ in the fields of a `PlanReader` only; ``plan`` is that of the first."""

    plan: PeerPlan
    others: Sequence[PlanReader] = ()

    @property
    def readers(self) -> list[PlanReader]:
        """All readers of the group."""
        first = self.plan
        return [
            PlanReader(
                import_=first.import_,
                reader=first.reader,
                call=first.call,
                capability=first.capability,
                pass_=first.pass_,
            ),
            *self.others,
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanResult:
    """Index of a reader's plan in `PlansMade`, and its pass; or code and text of an error."""

    plan: int = 0
    pass_: str | None = optional()
    code: str | None = optional()
    error: str | None = optional()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlansMade:
    """Different plans, and the result of each reader, in the order of the request."""

    plans: Sequence[Planned]
    results: Sequence[PlanResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerPlans(Request[PlansMade]):
    """Requests of several readers, each of which is handled as a `PeerPlan`."""

    action: ClassVar[str] = "peer.plans"
    groups: Sequence[PlanGroup]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredPlan:
    """Blocks of a plan.

    Attributes:
        grant: None from an older agent, which needs none.
        blocks: rows and bytes of each block, by stream and epoch.
        gone: missing epochs and rows, by stream.
        order: streams in order.
        control: epochs with control tuples, by stream.
        direct: epochs by stream that are in objects, which tasks may read themselves, see
            `PeerObjects`.
        traces: contexts of the spans that published the epochs, as W3C's ``traceparent``.
    """

    grant: str | None = optional()
    pass_: str | None = None
    blocks: Mapping[str, Mapping[Any, Any]]
    gone: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    order: Sequence[str] = ()
    control: Mapping[str, Sequence[int]] = field(default_factory=dict)
    direct: Mapping[str, Sequence[int]] = optional({})
    traces: Sequence[str] = optional(())


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectRange:
    """Blocks of one epoch that lie one behind the other in an object.

    ``url`` is signed, ``offset`` is that of the first, and ``blocks`` has bytes, rows and crc32.
    """

    url: str
    offset: int
    epoch: int
    blocks: Sequence[tuple[int, int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectRanges:
    """Where a task reads its blocks; None if the agent has to send them.

    ``arrow`` is the stream's schema in base64.
    """

    ranges: Sequence[ObjectRange] | None = None
    arrow: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerObjects(Request[ObjectRanges]):
    """Ask for the URLs of the blocks of a ticket, from block ``skip`` on."""

    action: ClassVar[str] = "peer.objects"
    ticket: Mapping[str, Any]
    skip: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerReplan(_Plan, Request[RegisteredPlan]):
    """Register the plan of a batch again; ``ranges`` are its epochs ``[first, next)`` by stream."""

    action: ClassVar[str] = "peer.replan"
    ranges: Mapping[str, tuple[int, int]]

    def __post_init__(self) -> None:
        _Plan.__post_init__(self)
        for stream, (first, next_) in self.ranges.items():
            if not 0 <= first <= next_:
                raise MessageInvalidError(f"ranges of {stream} have to be [first, next]")


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSnapshot(_Plan, Request[RegisteredPlan]):
    """Plan a batch read: all epochs from ``start`` to ``end``, both as the start of an import.

    ``schema`` is the DDL of the reader's columns. The plan is claimed until `PeerLeave`.
    """

    action: ClassVar[str] = "peer.snapshot"
    start: str
    end: str
    schema: str | None

    def __post_init__(self) -> None:
        _Plan.__post_init__(self)
        for at in (self.start, self.end):
            if not is_start(at):
                raise MessageInvalidError(f"{at!r} is not {START_FORMS}")


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedImport:
    """Capability of one import, and the passes of its readers.

    An older agent sends a list of readers without passes. ``waits`` has the exports that the
    readers' queries wait for, by reader.
    """

    capability: str | None
    readers: Mapping[str, str | None] | Sequence[str]
    waits: Mapping[str, Sequence[str]] = optional({})

    @property
    def passes(self) -> Mapping[str, str | None]:
        """The passes by reader."""
        return self.readers if isinstance(self.readers, Mapping) else dict.fromkeys(self.readers)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedExport:
    """Heads that the caller knows, and the imports that read the export.

    ``ended`` is None if the caller does not ask for it.
    """

    heads: Mapping[str, int] | None
    ended: bool | None = optional()
    imports: Mapping[str, WatchedImport]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportHead:
    """Next epoch of each stream, None for a caller that only has a plan.

    ``rows`` has the rows of each stream below it, before filters; older agents send none.
    """

    heads: Mapping[str, int] | None
    ended: bool = False
    rows: Mapping[str, int] = optional({})


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedHead:
    """Why a caller gets no heads; an older agent sends no code."""

    error: str
    code: str = CapabilityError.code


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """Heads by export."""

    exports: Mapping[str, ExportHead | RefusedHead]


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerWatch(Request[Heads]):
    """Renew the leases of readers; wait up to ``wait`` seconds for heads that differ."""

    action: ClassVar[str] = "peer.watch"
    exports: Mapping[str, WatchedExport]
    wait: float
    lease: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLeave(Request[None]):
    """End the lease of a reader."""

    action: ClassVar[str] = "peer.leave"
    export: str
    import_: str
    reader: str
    pass_: str | None = None


def credentials(request: PeerPlan | PeerReplan | PeerSnapshot) -> PeerCredentials:
    """Return the credentials in a request."""
    return PeerCredentials(
        export=request.export,
        import_=request.import_,
        capability=request.capability,
        reader=request.reader,
        pass_=request.pass_,
        filter=request.filter,
    )


def _check_reader(reader: str, call: tuple[str, int] | None) -> None:
    if not 0 < len(reader) <= MAX_READER_ID:
        raise MessageInvalidError(f"reader has to have 1 to {MAX_READER_ID} characters")
    if call is not None and (len(call[0]) > MAX_READER_ID or call[1] < 0):
        raise MessageInvalidError("call has to be an incarnation and the number of a call")


def _check_numbers(name: str, numbers: Mapping[str, int]) -> None:
    for key, number in numbers.items():
        if number < 0:
            raise MessageInvalidError(f"{name} has {number} for {key}, which is not from 0")
