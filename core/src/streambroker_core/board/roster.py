"""Who holds a port and a stream id when several resources claim the same.

The older holds it: by creation time, then by uid. The others stand by, and the
next one comes in when the holder goes. The outcome depends on who is there, not
on the order in which they came.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

from streambroker_core.board.shelf import Change
from streambroker_core.model import Export, Import

R = TypeVar("R", Export, Import)


class _Claims(Generic[R]):
    """Claims on names; each name goes to the oldest claimant.

    Args:
        get: returns a resource by its uid.
    """

    def __init__(self, get: Callable[[str], R | None]) -> None:
        self._get: Callable[[str], R | None] = get
        # One uid, or several in order of their age; most names have one claimant.
        self._by_name: dict[Hashable, str | tuple[str, ...]] = {}
        self._of: dict[str, Hashable] = {}

    def claim(self, uid: str, name: Hashable | None) -> set[str]:
        """Set what a resource claims; return all resources this may concern."""
        old = self._of.pop(uid, None)
        concerned = {uid}
        if old is not None:
            left = self._rivals(old)
            concerned.update(left)
            self._set(old, [rival for rival in left if rival != uid])
        if name is not None:
            claimants: list[str] = [*self._rivals(name), uid]
            concerned.update(claimants)
            self._set(name, sorted(claimants, key=self._age))
            self._of[uid] = name
        return concerned

    def _rivals(self, name: Hashable) -> tuple[str, ...]:
        found = self._by_name.get(name, ())
        return (found,) if isinstance(found, str) else found

    def _set(self, name: Hashable, uids: list[str]) -> None:
        if uids:
            self._by_name[name] = uids[0] if len(uids) == 1 else tuple(uids)
        else:
            self._by_name.pop(name, None)

    def _age(self, uid: str) -> tuple[float, str]:
        resource = self._get(uid)
        # Who is not there any more is about to give its claim up.
        return math.inf if resource is None else resource.created, uid

    def __contains__(self, uid: str) -> bool:
        return uid in self._of

    def on(self, name: Hashable) -> list[str]:
        """Return who claims a name, in order of the uids."""
        return sorted(self._rivals(name))

    def losers(self) -> Iterator[str]:
        """Yield who claims a name that an older one holds."""
        several = (uids for uids in self._by_name.values() if not isinstance(uids, str))
        return (uid for uids in several for uid in uids[1:])

    def holder_over(self, uid: str) -> str | None:
        """Return who holds the name that a resource claims; None if it claims none."""
        name = self._of.get(uid)
        return None if name is None else self._rivals(name)[0]


class Roster(Generic[R]):
    """Which resources of one kind take part.

    Args:
        get: returns a resource by its uid, None where it is gone.
        stream_of: the stream name a resource claims, or None.
    """

    def __init__(
        self, get: Callable[[str], R | None], stream_of: Callable[[R], Hashable | None]
    ) -> None:
        self._get: Callable[[str], R | None] = get
        self._stream_of: Callable[[R], Hashable | None] = stream_of
        self._ports: _Claims[R] = _Claims(get)
        self._streams: _Claims[R] = _Claims(get)

    def change(self, change: Change[R]) -> set[str]:
        """Take in a change; return the uids whose standing may be another now."""
        uid, new = change.uid, change.new
        concerned = self._ports.claim(uid, None if new is None else new.key)
        for rival in sorted(concerned):
            concerned = concerned | self._claim_stream(rival)
        return concerned

    def _claim_stream(self, uid: str) -> set[str]:
        resource = self._get(uid)
        if resource is None or self._ports.holder_over(uid) != uid:
            return self._streams.claim(uid, None)
        return self._streams.claim(uid, self._stream_of(resource))

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
            uid in self._ports and self.port_rival(uid) is None and self.stream_rival(uid) is None
        )
