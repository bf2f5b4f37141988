"""Who holds a port and a stream id when several resources claim the same.

The older holds it: by creation time, then by uid. The others stand by, and the
next one comes in when the holder goes. The outcome depends on who is there, not
on the order in which they came.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeAlias, TypeVar

from streambroker_core.board.shelf import Change
from streambroker_core.model import Export, Import

R = TypeVar("R", Export, Import)


_Claim: TypeAlias = "tuple[float, str]"
"""When the claimant was created, and its uid: the least claim holds."""


class _Claims:
    """Claims on names; each name goes to the oldest claimant."""

    def __init__(self) -> None:
        self._by_name: dict[Hashable, tuple[_Claim, ...]] = {}
        self._of: dict[str, Hashable] = {}

    def claim(self, uid: str, name: Hashable | None, created: float) -> set[str]:
        """Set what a resource claims; return all resources this may concern."""
        old = self._of.pop(uid, None)
        concerned = {uid}
        if old is not None:
            rivals = self._by_name.pop(old)
            concerned.update(rival for _, rival in rivals)
            if len(rivals) > 1:
                self._by_name[old] = tuple(claim for claim in rivals if claim[1] != uid)
        if name is not None:
            rivals = self._by_name.get(name, ())
            concerned.update(rival for _, rival in rivals)
            self._by_name[name] = tuple(sorted((*rivals, (created, uid))))
            self._of[uid] = name
        return concerned

    def on(self, name: Hashable) -> list[str]:
        """Return who claims a name, in order of the uids."""
        return sorted(uid for _, uid in self._by_name.get(name, ()))

    def losers(self) -> Iterator[str]:
        """Yield who claims a name that an older one holds."""
        return (uid for rivals in self._by_name.values() for _, uid in rivals[1:])

    def holder_over(self, uid: str) -> str | None:
        """Return who holds the name that a resource claims; None if it claims none."""
        name = self._of.get(uid)
        return None if name is None else self._by_name[name][0][1]


class Roster(Generic[R]):
    """Which resources of one kind take part.

    Args:
        stream_of: the stream name a resource claims, or None.
    """

    def __init__(self, stream_of: Callable[[R], Hashable | None]) -> None:
        self._stream_of: Callable[[R], Hashable | None] = stream_of
        self._known: dict[str, R] = {}
        self._ports = _Claims()
        self._streams = _Claims()

    def change(self, change: Change[R]) -> set[str]:
        """Take in a change; return the uids whose standing may be another now."""
        uid, new = change.uid, change.new
        if new is None:
            self._known.pop(uid, None)
            concerned = self._ports.claim(uid, None, 0.0)
        else:
            self._known[uid] = new
            concerned = self._ports.claim(uid, new.key, new.created)
        for rival in sorted(concerned):
            concerned = concerned | self._claim_stream(rival)
        return concerned

    def _claim_stream(self, uid: str) -> set[str]:
        resource = self._known.get(uid)
        if resource is None or self._ports.holder_over(uid) != uid:
            return self._streams.claim(uid, None, 0.0)
        return self._streams.claim(uid, self._stream_of(resource), resource.created)

    def claimants(self, stream: Hashable) -> list[str]:
        """Return who claims a stream name and holds a port, in order of the uids."""
        return self._streams.on(stream)

    def standing_by(self) -> set[str]:
        """Return the uids of all that are there and take no part."""
        return {*self._ports.losers(), *self._streams.losers()}

    def port_rival(self, uid: str) -> str | None:
        """Return who holds the resource's port instead of it, or None."""
        holder = self._ports.holder_over(uid)
        return None if holder == uid else holder

    def stream_rival(self, uid: str) -> str | None:
        """Return who holds the resource's stream id instead of it, or None."""
        holder = self._streams.holder_over(uid)
        return None if holder == uid else holder

    def takes_part(self, uid: str) -> bool:
        """Say whether a resource is there and holds what it claims."""
        return (
            uid in self._known and self.port_rival(uid) is None and self.stream_rival(uid) is None
        )
