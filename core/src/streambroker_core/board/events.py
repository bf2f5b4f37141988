"""What goes into the board and what comes out of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from streambroker_core.model import (
    AnyKind,
    Export,
    Import,
    PeKey,
    PortKey,
    Resource,
    Route,
    Rule,
)
from streambroker_core.wire.broker.hints import Point
from streambroker_core.wire.broker.registration import Registration
from streambroker_core.wire.broker.view import RefusedPair


@dataclass(frozen=True, slots=True, kw_only=True)
class _Applied:
    """A resource was seen at a version: new, changed, or the same again.

    Attributes:
        ahead_of_feed: seen in the answer to a write, ahead of the feed: the board's point stays.
    """

    version: int
    ahead_of_feed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Removed:
    """A resource was seen to go; the version is the deletion's own.

    Attributes:
        ahead_of_feed: seen in the answer to a write, which tells no version: that is the last one
            at which it was known, and the board's point stays.
    """

    uid: str
    version: int
    ahead_of_feed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportApplied(_Applied):
    """An Export was seen."""

    export: Export


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRemoved(_Removed):
    """An Export was seen to go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportApplied(_Applied):
    """An Import was seen."""

    import_: Import


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportRemoved(_Removed):
    """An Import was seen to go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleApplied(_Applied):
    """A rule of patterns was seen."""

    rule: Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleRemoved(_Removed):
    """A rule was seen to go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """A resource was seen at a version, and what it says cannot be read.

    It is there, has a status and takes no part.

    Attributes:
        version: at which it was seen; two that differ in it alone say the same.
        namespace: where it is.
        name: what it is called there.
        generation: of what could not be read.
        key: its port; None if that cannot be read either.
        code: the reason word.
        problem: a sentence.
        path: the field at fault, as ``spec.buffer.maxBytes``; empty if it is no single one.
        last_accepted: the last accepted generation as its status has it, or None.
        earlier_unknown: as of an `Import`.
        held: as of an `Import`.
    """

    kind: AnyKind
    uid: str
    version: int = field(compare=False)
    namespace: str
    name: str
    generation: int = 1
    key: PortKey | None = None
    code: str
    problem: str
    path: str = ""
    last_accepted: Resource | Rule | None = None
    earlier_unknown: bool = field(default=False, compare=False)
    held: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedAdvanced:
    """The feed of one kind has come to a version, and nothing that matters has changed.

    Attributes:
        uid: the resource that was seen at that version as it was before; None if it was none.
    """

    kind: AnyKind
    version: int
    uid: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRegistered:
    """A PE's agent said where it is. A lower version than the known one is late."""

    pe: PeKey
    registration: Registration
    version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PeDeclared:
    """A PE exists, though it has no resource and no agent (any more)."""

    pe: PeKey


@dataclass(frozen=True, slots=True, kw_only=True)
class PeWithdrawn:
    """A PE is gone for good: forget its agent, and the PE if it has no port left."""

    pe: PeKey
    version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Synced:
    """A consistent list of all resources of one kind.

    Attributes:
        listed: each resource with its own version; `Board.handle` asks for it once.
        version: the version of the list; nothing listed is younger.
        unreadable: what the list had besides, each with its own version.
    """

    kind: AnyKind
    listed: Iterable[tuple[Resource | Rule, int]]
    version: int
    unreadable: tuple[Unreadable, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedLost:
    """The feed of one kind broke off; the board stays until the next `Synced`.

    Attributes:
        reason: a word for why, as ``CrdMissing``; empty if nobody asked.
    """

    kind: AnyKind
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaughtUp:
    """All that happened up to a version was told; none of it comes late.

    Only a feed that is one ordered sequence of both kinds and of the agents can say so of all,
    and one that compares what it told with a list can say so of a kind. Without it the board
    has to remember who is gone until the next `Synced`.

    Attributes:
        kind: of which this is said; None for all of them and the agents.
    """

    version: int
    kind: AnyKind | None = None


BoardEvent: TypeAlias = (
    ExportApplied
    | ExportRemoved
    | ImportApplied
    | ImportRemoved
    | RuleApplied
    | RuleRemoved
    | Unreadable
    | FeedAdvanced
    | AgentRegistered
    | PeDeclared
    | PeWithdrawn
    | Synced
    | FeedLost
    | CaughtUp
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HintAction:
    """Order: tell the PE's agent that its view has this version now."""

    pe: PeKey
    version: str
    point: Point


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteChange:
    """A route as it was and as it is; None where there is none."""

    old: Route | None
    new: Route | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutesChanged:
    """The PE's view has other content.

    Attributes:
        version: of the view; None where the PE is no longer known.
        new: whether the PE was not known before.
        route_changes: what became of the routes of its exports, in their order.
    """

    pe: PeKey
    version: str | None
    new: bool = field(default=False, compare=False)
    route_changes: tuple[RouteChange, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusChanged:
    """Order: bring the status of a resource up to date."""

    kind: AnyKind
    uid: str


Difference: TypeAlias = Literal["missing", "changed", "ghost"]
"""What is wrong with what is known of a resource: it is not known, known otherwise, or gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteReverted:
    """Order: report that the store does not have a write that was seen ahead of the feed.

    The resource is as the feed lists it again. Either the store was restored from an older copy,
    or the resource went before the feed reported it.
    """

    kind: AnyKind
    uid: str
    difference: Difference


Action: TypeAlias = HintAction | RoutesChanged | StatusChanged | WriteReverted


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What the board has to say about one resource.

    Attributes:
        accepted: whether its latest generation takes part.
        reason: ``Accepted``, or the word for why not.
        message: a sentence; empty if accepted.
        matches: how many routes it has.
        peers: the first ten ports it is connected to.
        refused: pairs that fail for filter or schema alone, at most twenty.
        ring: a sentence about the ring of waiting jobs that one of its routes is part of, or empty.
        running_generation: the generation that runs where the latest one is refused; else None.
        held: it is refused, and agents keep the routes that they have of it.
    """

    accepted: bool = True
    reason: str = "Accepted"
    message: str = ""
    matches: int = 0
    peers: tuple[PortKey, ...] = ()
    refused: tuple[RefusedPair, ...] = ()
    ring: str = ""
    running_generation: int | None = None
    held: bool = False
