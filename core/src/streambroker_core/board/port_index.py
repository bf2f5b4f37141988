"""One half of the board: the Exports or the Imports, and whom each of them meets."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from streambroker_core.board.name_ownership import Roster
from streambroker_core.board.resource_cache import Change, Shelf
from streambroker_core.matching import Match, Outcome
from streambroker_core.model import Export, Import, PeKey, PortKey

R = TypeVar("R", Export, Import)

Place: TypeAlias = "tuple[str, str, int, str, str]"
"""What orders resources of one kind: their ports, then their uids."""


def place_of(resource: Export | Import) -> Place:
    """Return a resource's place among those of its kind."""
    return *resource.key, resource.uid


class Met:
    """Whom one resource meets.

    Attributes:
        outcomes: matches and near refusals by the other side's uid.
        places: of all of these, in order.
        matches: how many of them are matches.
    """

    __slots__ = ("matches", "outcomes", "places")

    def __init__(self, outcomes: dict[str, Outcome], places: list[Place]) -> None:
        self.outcomes = outcomes
        self.places = places
        self.matches = sum(isinstance(outcome, Match) for outcome in outcomes.values())

    def set(self, place: Place, outcome: Outcome) -> None:
        """Set the outcome with one of the other side."""
        known = self.outcomes.get(place[-1])
        if known is None:
            insort(self.places, place)
        self.outcomes[place[-1]] = outcome
        self.matches += isinstance(outcome, Match) - isinstance(known, Match)

    def drop(self, place: Place) -> None:
        """Forget one of the other side."""
        known = self.outcomes.pop(place[-1], None)
        if known is not None:
            del self.places[bisect_left(self.places, place)]
            self.matches -= isinstance(known, Match)

    def peers(self) -> Iterator[str]:
        """Yield the uids of all, in order of the other side's ports."""
        return (place[-1] for place in self.places)

    def each(self) -> Iterator[tuple[str, Outcome]]:
        """Yield uid and outcome of all, in order of the other side's ports."""
        return ((uid, self.outcomes[uid]) for uid in self.peers())


NOBODY = Met({}, [])
"""Of a resource that meets none; not to be changed."""


class Meeting(NamedTuple):
    """An outcome with one of the other side, as it was and as it is; None for none."""

    peer: str
    was: Outcome | None
    now: Outcome | None


class Half(Generic[R]):
    """Resources of one kind with their standing and their outcomes.

    A resource keeps its port for as long as it has its uid.

    Args:
        stream_of: the stream name a resource claims, or None.
    """

    def __init__(self, stream_of: Callable[[R], Hashable | None]) -> None:
        self.shelf: Shelf[R] = Shelf()
        self.roster: Roster[R] = Roster(self.shelf.get, stream_of)
        self._met: dict[str, Met] = {}

    def enter(self, change: Change[R]) -> set[str]:
        """Take in a change; return the uids whose part may be another now."""
        return self.roster.change(change)

    def pair(self, resource: R, outcomes: Mapping[str, Outcome], other: Half[Any]) -> list[Meeting]:
        """Set whom a resource meets, on both sides; return all that this concerns."""
        place = place_of(resource)
        old = self._met.pop(resource.uid, NOBODY)
        if outcomes:
            same = old.outcomes.keys() == outcomes.keys()
            places = old.places if same else other.places_of(outcomes)
            self._met[resource.uid] = Met(dict(outcomes), places)
        for peer in old.outcomes.keys() - outcomes.keys():
            other.part(peer, place)
        for peer, outcome in outcomes.items():
            other.meet(peer, place, outcome)
        return [
            Meeting(peer, old.outcomes.get(peer), outcomes.get(peer))
            for peer in old.outcomes.keys() | outcomes.keys()
        ]

    def places_of(self, uids: Mapping[str, object]) -> list[Place]:
        """Return the places of resources, in order."""
        found = (self.shelf.get(uid) for uid in uids)
        return sorted(place_of(resource) for resource in found if resource is not None)

    def meet(self, uid: str, place: Place, outcome: Outcome) -> None:
        """Note an outcome that was found from the other side."""
        met = self._met.get(uid)
        if met is None:
            self._met[uid] = Met({place[-1]: outcome}, [place])
        else:
            met.set(place, outcome)

    def part(self, uid: str, place: Place) -> None:
        """Forget an outcome that no longer holds."""
        met = self._met.get(uid)
        if met is not None:
            met.drop(place)
            if not met.outcomes:
                del self._met[uid]

    def met(self, uid: str) -> Met:
        """Return whom a resource meets."""
        return self._met.get(uid, NOBODY)

    def outcomes_of(self, uid: str) -> Mapping[str, Outcome]:
        """Return matches and near refusals by the other side's uid."""
        return self.met(uid).outcomes

    def match_count(self) -> int:
        """Return how many of all outcomes are matches."""
        return sum(met.matches for met in self._met.values())

    def taking_part(self, uid: str) -> R | None:
        """Return a resource if it is there and holds what it claims."""
        return self.shelf.get(uid) if self.roster.takes_part(uid) else None

    def of_pe(self, pe: PeKey) -> list[str]:
        """Return the uids of a PE's resources, in order."""
        return [resource.uid for resource in self.roster.of_pe(pe)]

    def holders(self, pe: PeKey) -> list[R]:
        """Return the resources that hold a PE's ports, in order of the ports."""
        return self.roster.holders(pe)

    def at(self, key: PortKey) -> list[R]:
        """Return all that claim a port, in order of their uids."""
        return sorted(self.roster.on(key), key=lambda resource: resource.uid)

    def sharing(self, stream: Hashable) -> list[R]:
        """Return the holders of ports that claim a stream name, in order of their uids."""
        claimed = (self.shelf.get(uid) for uid in self.roster.claimants(stream))
        return [resource for resource in claimed if resource is not None]

    def holder_at(self, key: PortKey) -> R | None:
        """Return the resource that holds a port."""
        return next(iter(self.roster.on(key)), None)
