"""One half of the board: the Exports or the Imports, and whom each of them meets."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from streambroker_core.board.name_ownership import NameOwnership
from streambroker_core.board.resource_cache import ResourceCache, ResourceChanged
from streambroker_core.matching import Match, MatchResult
from streambroker_core.model import Export, Import, PeKey, PortKey

R = TypeVar("R", Export, Import)

PortOrder: TypeAlias = "tuple[str, str, int, str, str]"
"""What orders resources of one kind: their ports, then their uids."""


def port_order_for(resource: Export | Import) -> PortOrder:
    """Return a resource's place among those of its kind."""
    return *resource.key, resource.uid


class PeerSet:
    """Whom one resource meets.

    Attributes:
        outcomes: matches and near refusals by the other side's uid.
        port_orders: of all of these, in order.
        matches: how many of them are matches.
    """

    __slots__ = ("matches", "outcomes", "port_orders")

    def __init__(self, outcomes: dict[str, MatchResult], port_orders: list[PortOrder]) -> None:
        self.outcomes = outcomes
        self.port_orders = port_orders
        self.matches = sum(isinstance(outcome, Match) for outcome in outcomes.values())

    def set(self, port_order: PortOrder, outcome: MatchResult) -> None:
        """Set the outcome with one of the other side."""
        known = self.outcomes.get(port_order[-1])
        if known is None:
            insort(self.port_orders, port_order)
        self.outcomes[port_order[-1]] = outcome
        self.matches += isinstance(outcome, Match) - isinstance(known, Match)

    def drop(self, port_order: PortOrder) -> None:
        """Forget one of the other side."""
        known = self.outcomes.pop(port_order[-1], None)
        if known is not None:
            del self.port_orders[bisect_left(self.port_orders, port_order)]
            self.matches -= isinstance(known, Match)

    def peers(self) -> Iterator[str]:
        """Yield the uids of all, in order of the other side's ports."""
        return (place[-1] for place in self.port_orders)

    def items(self) -> Iterator[tuple[str, MatchResult]]:
        """Yield uid and outcome of all, in order of the other side's ports."""
        return ((uid, self.outcomes[uid]) for uid in self.peers())


NO_PEERS = PeerSet({}, [])
"""Of a resource that meets none; not to be changed."""


class PairChange(NamedTuple):
    """An outcome with one of the other side, as it was and as it is; None for none."""

    peer: str
    old: MatchResult | None
    new: MatchResult | None


class PortIndex(Generic[R]):
    """Resources of one kind with their standing and their outcomes.

    A resource keeps its port for as long as it has its uid.

    Args:
        claimed_stream: the stream name a resource claims, or None.
    """

    def __init__(self, claimed_stream: Callable[[R], Hashable | None]) -> None:
        self.cache: ResourceCache[R] = ResourceCache()
        self.ownership: NameOwnership[R] = NameOwnership(self.cache.get, claimed_stream)
        self._peers_by_uid: dict[str, PeerSet] = {}

    def apply(self, change: ResourceChanged[R]) -> set[str]:
        """Take in a change; return the uids whose part may be another now."""
        return self.ownership.apply(change)

    def set_outcomes(
        self, resource: R, outcomes: Mapping[str, MatchResult], other: PortIndex[Any]
    ) -> list[PairChange]:
        """Set whom a resource meets, on both sides; return all that this concerns."""
        place = port_order_for(resource)
        old = self._peers_by_uid.pop(resource.uid, NO_PEERS)
        if outcomes:
            same = old.outcomes.keys() == outcomes.keys()
            places = old.port_orders if same else other.port_orders_for(outcomes)
            self._peers_by_uid[resource.uid] = PeerSet(dict(outcomes), places)
        for peer in old.outcomes.keys() - outcomes.keys():
            other.remove_outcome(peer, place)
        for peer, outcome in outcomes.items():
            other.add_outcome(peer, place, outcome)
        return [
            PairChange(peer, old.outcomes.get(peer), outcomes.get(peer))
            for peer in old.outcomes.keys() | outcomes.keys()
        ]

    def port_orders_for(self, uids: Mapping[str, object]) -> list[PortOrder]:
        """Return the places of resources, in order."""
        found = (self.cache.get(uid) for uid in uids)
        return sorted(port_order_for(resource) for resource in found if resource is not None)

    def add_outcome(self, uid: str, port_order: PortOrder, outcome: MatchResult) -> None:
        """Note an outcome that was found from the other side."""
        met = self._peers_by_uid.get(uid)
        if met is None:
            self._peers_by_uid[uid] = PeerSet({port_order[-1]: outcome}, [port_order])
        else:
            met.set(port_order, outcome)

    def remove_outcome(self, uid: str, port_order: PortOrder) -> None:
        """Forget an outcome that no longer holds."""
        met = self._peers_by_uid.get(uid)
        if met is not None:
            met.drop(port_order)
            if not met.outcomes:
                del self._peers_by_uid[uid]

    def peers_for(self, uid: str) -> PeerSet:
        """Return whom a resource meets."""
        return self._peers_by_uid.get(uid, NO_PEERS)

    def outcomes_of(self, uid: str) -> Mapping[str, MatchResult]:
        """Return matches and near refusals by the other side's uid."""
        return self.peers_for(uid).outcomes

    def match_count(self) -> int:
        """Return how many of all outcomes are matches."""
        return sum(met.matches for met in self._peers_by_uid.values())

    def get_accepted(self, uid: str) -> R | None:
        """Return a resource if it is there and holds what it claims."""
        return self.cache.get(uid) if self.ownership.is_accepted(uid) else None

    def uids_of_pe(self, pe: PeKey) -> list[str]:
        """Return the uids of a PE's resources, in order."""
        return [resource.uid for resource in self.ownership.claimants_of_pe(pe)]

    def holders(self, pe: PeKey) -> list[R]:
        """Return the resources that hold a PE's ports, in order of the ports."""
        return self.ownership.holders(pe)

    def claimants(self, key: PortKey) -> list[R]:
        """Return all that claim a port, in order of their uids."""
        return sorted(self.ownership.port_claimants(key), key=lambda resource: resource.uid)

    def stream_holders(self, stream: Hashable) -> list[R]:
        """Return the holders of ports that claim a stream name, in order of their uids."""
        claimed = (self.cache.get(uid) for uid in self.ownership.stream_claimants(stream))
        return [resource for resource in claimed if resource is not None]

    def holder_at(self, key: PortKey) -> R | None:
        """Return the resource that holds a port."""
        return next(iter(self.ownership.port_claimants(key)), None)
