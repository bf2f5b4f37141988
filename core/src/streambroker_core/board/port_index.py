"""Index of the Exports or the Imports of a board, with the match outcomes of each."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeAlias, TypeVar

from streambroker_core.board.name_ownership import NameOwnership
from streambroker_core.board.resource_cache import ResourceCache
from streambroker_core.matching import Match, MatchResult
from streambroker_core.model import Export, Import, Kind, PeKey, PortKey

R = TypeVar("R", Export, Import)

PortOrder: TypeAlias = "tuple[str, str, int, str, str]"
"""Sort key of resources of one kind: port, then uid."""


def port_order_for(resource: Export | Import) -> PortOrder:
    """Return a resource's sort key among those of its kind."""
    return *resource.key, resource.uid


class PeerSet:
    """Match outcomes of one resource with resources of the other kind.

    Attributes:
        outcomes: matches and near misses by the other side's uid.
        port_orders: sort keys of these peers, in order.
        matches: number of matches.
    """

    __slots__ = ("matches", "outcomes", "port_orders")

    def __init__(self, outcomes: dict[str, MatchResult], port_orders: list[PortOrder]) -> None:
        self.outcomes = outcomes
        self.port_orders = port_orders
        self.matches = sum(isinstance(outcome, Match) for outcome in outcomes.values())

    def set(self, port_order: PortOrder, outcome: MatchResult) -> None:
        """Set the outcome with a peer."""
        known = self.outcomes.get(port_order[-1])
        if known is None:
            insort(self.port_orders, port_order)
        self.outcomes[port_order[-1]] = outcome
        self.matches += isinstance(outcome, Match) - isinstance(known, Match)

    def drop(self, port_order: PortOrder) -> None:
        """Remove a peer."""
        known = self.outcomes.pop(port_order[-1], None)
        if known is not None:
            del self.port_orders[bisect_left(self.port_orders, port_order)]
            self.matches -= isinstance(known, Match)

    def peers(self) -> Iterator[str]:
        """Yield the uids of all peers, in port order."""
        return (port_order[-1] for port_order in self.port_orders)

    def items(self) -> Iterator[tuple[str, MatchResult]]:
        """Yield uid and outcome of all peers, in port order."""
        return ((uid, self.outcomes[uid]) for uid in self.peers())


NO_PEERS = PeerSet({}, [])
"""Shared empty set; must not be changed."""


PairChange: TypeAlias = "tuple[str, MatchResult | None, MatchResult | None]"
"""A peer, and the outcome with it before and after; None if there is none."""


class PortIndex(Generic[R]):
    """Resources of one kind with their ownership and match outcomes.

    A resource keeps its port as long as it has its uid.
    """

    def __init__(self, kind: Kind, claimed_stream: Callable[[R], Hashable | None]) -> None:
        self.cache: ResourceCache[R] = ResourceCache(kind)
        self.ownership: NameOwnership[R] = NameOwnership(self.cache.get, claimed_stream)
        self._peers_by_uid: dict[str, PeerSet] = {}

    def set_outcomes(
        self, resource: R, outcomes: Mapping[str, MatchResult], other: PortIndex[Any]
    ) -> list[PairChange]:
        """Set the outcomes of a resource on both sides; return those of all old and new peers."""
        port_order = port_order_for(resource)
        old = self._peers_by_uid.pop(resource.uid, NO_PEERS)
        if outcomes:
            same_peers = old.outcomes.keys() == outcomes.keys()
            port_orders = old.port_orders if same_peers else other.port_orders_for(outcomes)
            self._peers_by_uid[resource.uid] = PeerSet(dict(outcomes), port_orders)
        for peer in old.outcomes.keys() - outcomes.keys():
            other.remove_outcome(peer, port_order)
        for peer, outcome in outcomes.items():
            other.add_outcome(peer, port_order, outcome)
        return [
            (peer, old.outcomes.get(peer), outcomes.get(peer))
            for peer in old.outcomes.keys() | outcomes.keys()
        ]

    def port_orders_for(self, uids: Iterable[str]) -> list[PortOrder]:
        """Return the sort keys of resources, in order."""
        resources = (self.cache.get(uid) for uid in uids)
        return sorted(port_order_for(resource) for resource in resources if resource is not None)

    def add_outcome(self, uid: str, port_order: PortOrder, outcome: MatchResult) -> None:
        """Record an outcome that the other side computed."""
        peers = self._peers_by_uid.get(uid)
        if peers is None:
            self._peers_by_uid[uid] = PeerSet({port_order[-1]: outcome}, [port_order])
        else:
            peers.set(port_order, outcome)

    def remove_outcome(self, uid: str, port_order: PortOrder) -> None:
        """Remove an outcome that no longer applies."""
        peers = self._peers_by_uid.get(uid)
        if peers is not None:
            peers.drop(port_order)
            if not peers.outcomes:
                del self._peers_by_uid[uid]

    def peers_for(self, uid: str) -> PeerSet:
        """Return the match outcomes of a resource."""
        return self._peers_by_uid.get(uid, NO_PEERS)

    def outcomes_of(self, uid: str) -> Mapping[str, MatchResult]:
        """Return matches and near misses by the other side's uid."""
        return self.peers_for(uid).outcomes

    def match_count(self) -> int:
        """Return the number of matches, without near misses."""
        return sum(peers.matches for peers in self._peers_by_uid.values())

    def get_accepted(self, uid: str) -> R | None:
        """Return a resource if it exists and holds what it claims."""
        return self.cache.get(uid) if self.ownership.is_accepted(uid) else None

    def uids_of_pe(self, pe: PeKey) -> list[str]:
        """Return the uids of a PE's resources, in order."""
        return [resource.uid for resource in self.ownership.claimants_of_pe(pe)]

    def holders(self, pe: PeKey) -> list[R]:
        """Return the resources that hold a PE's ports, ordered by port."""
        return self.ownership.holders(pe)

    def claimants(self, key: PortKey) -> list[R]:
        """Return all claimants of a port, ordered by uid."""
        return sorted(self.ownership.ports.claimants(key), key=lambda resource: resource.uid)

    def stream_holders(self, stream: Hashable) -> list[R]:
        """Return the port holders that claim a stream name, ordered by uid."""
        claimed = (self.cache.get(uid) for uid in self.ownership.streams.claimants(stream))
        return [resource for resource in claimed if resource is not None]

    def holder_at(self, key: PortKey) -> R | None:
        """Return the resource that holds a port."""
        return next(iter(self.ownership.ports.claimants(key)), None)
