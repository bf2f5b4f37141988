"""Events the board handles and actions it returns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar, Generic, Literal, TypeAlias, TypeVar

from streambroker_core.model import (
    RULE,
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

R = TypeVar("R", Export, Import, Rule)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Applied:
    """A resource was seen at a version: new, changed or unchanged.

    Attributes:
        ahead_of_feed: seen in the response to a write, ahead of the feed; the board's point stays.
    """

    version: int
    ahead_of_feed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Removed:
    """A resource was deleted, at the version of the deletion.

    Attributes:
        ahead_of_feed: seen in the response to a write, which has no version of the deletion.
            `version` is then the last one at which the resource was known; the point stays.
    """

    uid: str
    version: int
    ahead_of_feed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportApplied(_Applied):
    """An Export was seen."""

    kind: ClassVar[AnyKind] = "Export"
    export: Export

    @property
    def resource(self) -> Export:
        """The Export."""
        return self.export


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRemoved(_Removed):
    """An Export was deleted."""

    kind: ClassVar[AnyKind] = "Export"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportApplied(_Applied):
    """An Import was seen."""

    kind: ClassVar[AnyKind] = "Import"
    import_: Import

    @property
    def resource(self) -> Import:
        """The Import."""
        return self.import_


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportRemoved(_Removed):
    """An Import was deleted."""

    kind: ClassVar[AnyKind] = "Import"


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleApplied(_Applied):
    """A rule of patterns was seen."""

    kind: ClassVar[AnyKind] = RULE
    rule: Rule

    @property
    def resource(self) -> Rule:
        """The rule."""
        return self.rule


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleRemoved(_Removed):
    """A rule was deleted."""

    kind: ClassVar[AnyKind] = RULE


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """A resource was seen at a version, and its content cannot be parsed.

    It exists and has a status, but takes no part in matching.

    Attributes:
        version: at which it was seen; ignored in comparisons.
        generation: that cannot be parsed.
        key: its port; None if that cannot be parsed either.
        code: the reason word.
        problem: a sentence.
        path: the invalid field, such as ``spec.buffer.maxBytes``; empty if not a single field.
        last_accepted: the last accepted generation from its status, or None.
        earlier_unknown: see `Import`.
        held: see `Import`.
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
    """The feed of one kind reached a version without a relevant change.

    `uid` is the resource that was seen unchanged at that version, if any.
    """

    kind: AnyKind
    version: int
    uid: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRegistered:
    """A PE's agent registered. A version lower than the known one is late."""

    pe: PeKey
    registration: Registration
    version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PeDeclared:
    """A PE exists, even without a resource or an agent."""

    pe: PeKey


@dataclass(frozen=True, slots=True, kw_only=True)
class PeWithdrawn:
    """A PE is gone for good: forget its agent, and the PE itself if it has no port left."""

    pe: PeKey
    version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Synced:
    """A consistent list of all resources of one kind.

    Attributes:
        listed: each resource with its own version; `Board.handle` iterates over it once.
        version: of the list; no listed resource is newer.
        unreadable: listed resources that cannot be parsed, each with its own version.
    """

    kind: AnyKind
    listed: Iterable[tuple[Resource | Rule, int]]
    version: int
    unreadable: tuple[Unreadable, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedLost:
    """The feed of one kind broke off; the board keeps its state until the next `Synced`.

    The reason is a word such as ``CrdMissing``, or empty if unknown.
    """

    kind: AnyKind
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaughtUp:
    """Everything up to a version has been reported; nothing older arrives.

    For all kinds, only a feed that is one ordered sequence of all kinds and the agents can state
    this. For one kind, a feed can that compares its reports with a list. Otherwise the board
    keeps tombstones until the next `Synced`.

    Attributes:
        kind: that caught up; None for all kinds and the agents.
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
    """Notify the PE's agent that its view has this version."""

    pe: PeKey
    version: str
    point: Point


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteChange:
    """A route before and after; None if there is none."""

    old: Route | None
    new: Route | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutesChanged:
    """The content of the PE's view changed.

    Attributes:
        version: of the view; None if the PE is no longer known.
        new: whether the PE was unknown before.
        route_changes: changes of its exports' routes, in port order.
    """

    pe: PeKey
    version: str | None
    new: bool = field(default=False, compare=False)
    route_changes: tuple[RouteChange, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusChanged:
    """Update the status of a resource."""

    kind: AnyKind
    uid: str


Difference: TypeAlias = Literal["missing", "changed", "ghost"]
"""How the known state of a resource is wrong: unknown, different, or actually deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteReverted:
    """Report that the store lacks a write that was seen ahead of the feed.

    The resource has the feed's state again. Either the store was restored from an older copy, or
    the resource was deleted before the feed reported it.
    """

    kind: AnyKind
    uid: str
    difference: Difference


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceChanged(Generic[R]):
    """One resource before and after; None if absent or unreadable.

    Attributes:
        version: at which it changed; of a deletion, that of its event.
    """

    kind: AnyKind
    uid: str
    old: R | None
    new: R | None
    version: int

    @property
    def has_new_port(self) -> bool:
        """Whether its port changed, so that no outcome of the old port applies."""
        old, new = self.old, self.new
        return old is not None and new is not None and tuple(old.key) != tuple(new.key)


AnyChange: TypeAlias = ResourceChanged[Export] | ResourceChanged[Import] | ResourceChanged[Rule]

Action: TypeAlias = HintAction | RoutesChanged | StatusChanged | WriteReverted | AnyChange


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """Status of one resource, as the board decides it.

    Attributes:
        accepted: whether its latest generation takes part in matching.
        reason: ``Accepted``, or the word for why not.
        message: a sentence; empty if accepted.
        matches: number of its routes.
        peers: the first ten ports it is connected to.
        refused: pairs that fail for filter or schema alone, at most twenty.
        ring: a sentence about the ring of waiting jobs that contains one of its routes, or empty.
        running_generation: the generation that runs if the latest one is refused; else None.
        held: refused, while agents keep its existing routes.
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
