"""One half of the board: the Exports or the Imports, and whom each of them meets."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Generic, TypeVar

from streambroker_core.board.roster import Roster
from streambroker_core.board.shelf import Change, Shelf
from streambroker_core.matching import Match, Outcome
from streambroker_core.model import Export, Import, PeKey, PortKey

R = TypeVar("R", Export, Import)


class Half(Generic[R]):
    """Resources of one kind with their standing and their outcomes.

    Args:
        stream_of: the stream name a resource claims, or None.
    """

    def __init__(self, stream_of: Callable[[R], Hashable | None]) -> None:
        self.shelf: Shelf[R] = Shelf()
        self.roster: Roster[R] = Roster(stream_of)
        self._of_pe: dict[PeKey, list[str]] = {}
        self._outcomes: dict[str, dict[str, Outcome]] = {}

    def enter(self, change: Change[R]) -> set[str]:
        """Take in a change; return the uids whose part may be another now."""
        if change.old is not None:
            owner = change.old.key.owner
            self._of_pe[owner].remove(change.uid)
            if not self._of_pe[owner]:
                del self._of_pe[owner]
        if change.new is not None:
            insort(self._of_pe.setdefault(change.new.key.owner, []), change.uid)
        return self.roster.change(change)

    def pair(self, uid: str, outcomes: Mapping[str, Outcome], other: Half[Any]) -> set[str]:
        """Set whom a resource meets, on both sides; return the uids that this concerns."""
        old = self._outcomes.pop(uid, {})
        if outcomes:
            self._outcomes[uid] = dict(outcomes)
        for peer in old.keys() - outcomes.keys():
            other.part(peer, uid)
        for peer, outcome in outcomes.items():
            other.meet(peer, uid, outcome)
        return set(old.keys() | outcomes.keys())

    def meet(self, uid: str, peer: str, outcome: Outcome) -> None:
        """Note an outcome that was found from the other side."""
        self._outcomes.setdefault(uid, {})[peer] = outcome

    def part(self, uid: str, peer: str) -> None:
        """Forget an outcome that no longer holds."""
        outcomes = self._outcomes.get(uid, {})
        outcomes.pop(peer, None)
        if not outcomes:
            self._outcomes.pop(uid, None)

    def outcomes_of(self, uid: str) -> Mapping[str, Outcome]:
        """Return matches and near refusals by the other side's uid."""
        return self._outcomes.get(uid, {})

    def match_count(self) -> int:
        """Return how many of all outcomes are matches."""
        return sum(
            isinstance(outcome, Match)
            for outcomes in self._outcomes.values()
            for outcome in outcomes.values()
        )

    def taking_part(self, uid: str) -> R | None:
        """Return a resource if it is there and holds what it claims."""
        return self.shelf.get(uid) if self.roster.takes_part(uid) else None

    def of_pe(self, pe: PeKey) -> list[str]:
        """Return the uids of a PE's resources, in order."""
        return list(self._of_pe.get(pe, ()))

    def holders(self, pe: PeKey) -> list[R]:
        """Return the resources that hold a PE's ports, in order of the ports."""
        found = [
            resource
            for uid in self.of_pe(pe)
            if (resource := self.shelf.get(uid)) is not None and not self.roster.port_rival(uid)
        ]
        return sorted(found, key=lambda resource: resource.key)

    def at(self, key: PortKey) -> list[R]:
        """Return all that claim a port, in order of their uids."""
        claimed = (self.shelf.get(uid) for uid in self.of_pe(key.owner))
        return [resource for resource in claimed if resource is not None and resource.key == key]

    def sharing(self, stream: Hashable) -> list[R]:
        """Return the holders of ports that claim a stream name, in order of their uids."""
        claimed = (self.shelf.get(uid) for uid in self.roster.claimants(stream))
        return [resource for resource in claimed if resource is not None]

    def holder_at(self, key: PortKey) -> R | None:
        """Return the resource that holds a port."""
        return next((r for r in self.holders(key.owner) if r.key == key), None)
