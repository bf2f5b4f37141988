"""Who holds a port and a stream id when several resources claim the same.

The older holds it: by creation time, then by uid. The others stand by, and the
next one comes in when the holder goes. The outcome depends on who is there, not
on the order in which they came.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Generic, TypeVar

from streambroker_core.board.resource_cache import ResourceChanged
from streambroker_core.model import Export, Import, PeKey, PortKey, seniority

R = TypeVar("R", Export, Import)


class _PortClaims(Generic[R]):
    """Claims on ports, by PE; each port goes to the oldest claimant."""

    def __init__(self) -> None:
        # Most PEs have one port of a kind, with one claimant: then that alone. Of others, the
        # claimants by port, in order of their age.
        self._of_pe: dict[PeKey, R | dict[str, tuple[R, ...]]] = {}

    def add(self, resource: R) -> tuple[R, ...]:
        """Add a claimant; return all of its port."""
        pe: PeKey = resource.key.owner
        port: str = resource.key.port
        if pe not in self._of_pe:
            self._of_pe[pe] = resource
            return (resource,)
        ports: dict[str, tuple[R, ...]] = self._by_port(pe)
        claimants: list[R] = list(ports.get(port, ()))
        claimants.append(resource)
        ports[port] = tuple(sorted(claimants, key=seniority))
        self._of_pe[pe] = ports
        return ports[port]

    def remove(self, resource: R) -> tuple[R, ...]:
        """Take a claimant away; return those that its port has left."""
        pe: PeKey = resource.key.owner
        port: str = resource.key.port
        ports: dict[str, tuple[R, ...]] = self._by_port(pe)
        left = tuple(one for one in ports.pop(port, ()) if one.uid != resource.uid)
        if left:
            ports[port] = left
        alone = _sole_claimant(ports)
        if alone is not None:
            self._of_pe[pe] = alone
        elif ports:
            self._of_pe[pe] = ports
        else:
            self._of_pe.pop(pe, None)
        return left

    def _by_port(self, pe: PeKey) -> dict[str, tuple[R, ...]]:
        known = self._of_pe.get(pe)
        if known is None or isinstance(known, dict):
            return known or {}
        return {known.key.port: (known,)}

    def claimants(self, key: PortKey) -> tuple[R, ...]:
        """Return who claims a port, in order of their age."""
        return self._by_port(key.owner).get(key.port, ())

    def claimants_of_pe(self, pe: PeKey) -> Iterable[tuple[R, ...]]:
        """Return the claimants of each of a PE's ports, in no order."""
        return self._by_port(pe).values()

    def standby_uids(self) -> Iterator[str]:
        """Yield who claims a port that an older one holds."""
        several = (ports for ports in self._of_pe.values() if isinstance(ports, dict))
        return (one.uid for ports in several for all_ in ports.values() for one in all_[1:])


def _sole_claimant(ports: Mapping[str, tuple[R, ...]]) -> R | None:
    """Return the only claimant of the only port, or None."""
    if len(ports) != 1:
        return None
    (claimants,) = ports.values()
    return claimants[0] if len(claimants) == 1 else None


class _NameClaims(Generic[R]):
    """Claims on names; each name goes to the oldest claimant.

    Args:
        get: returns a resource by its uid.
    """

    def __init__(self, get: Callable[[str], R | None]) -> None:
        self._get: Callable[[str], R | None] = get
        # One uid, or several in order of their age; most names have one claimant.
        self._by_name: dict[Hashable, str | tuple[str, ...]] = {}
        self._name_by_uid: dict[str, Hashable] = {}

    def claim(self, uid: str, name: Hashable | None) -> set[str]:
        """Set what a resource claims; return all resources this may concern."""
        old = self._name_by_uid.pop(uid, None)
        concerned = {uid}
        if old is not None:
            left = self._rivals(old)
            concerned.update(left)
            self._set(old, [rival for rival in left if rival != uid])
        if name is not None:
            claimants: list[str] = [*self._rivals(name), uid]
            concerned.update(claimants)
            self._set(name, sorted(claimants, key=self._age_key))
            self._name_by_uid[uid] = name
        return concerned

    def _rivals(self, name: Hashable) -> tuple[str, ...]:
        found = self._by_name.get(name, ())
        return (found,) if isinstance(found, str) else found

    def _set(self, name: Hashable, uids: list[str]) -> None:
        if uids:
            self._by_name[name] = uids[0] if len(uids) == 1 else tuple(uids)
        else:
            self._by_name.pop(name, None)

    def _age_key(self, uid: str) -> tuple[float, str]:
        resource = self._get(uid)
        # Who is not there any more is about to give its claim up.
        return math.inf if resource is None else resource.created, uid

    def claimants(self, name: Hashable) -> list[str]:
        """Return who claims a name, in order of the uids."""
        return sorted(self._rivals(name))

    def standby_uids(self) -> Iterator[str]:
        """Yield who claims a name that an older one holds."""
        several = (uids for uids in self._by_name.values() if not isinstance(uids, str))
        return (uid for uids in several for uid in uids[1:])

    def holder_for(self, uid: str) -> str | None:
        """Return who holds the name that a resource claims; None if it claims none."""
        name = self._name_by_uid.get(uid)
        return None if name is None else self._rivals(name)[0]


class NameOwnership(Generic[R]):
    """Which resources of one kind take part.

    Args:
        get: returns a resource by its uid, None where it is gone.
        claimed_stream: the stream name a resource claims, or None.
    """

    def __init__(
        self, get: Callable[[str], R | None], claimed_stream: Callable[[R], Hashable | None]
    ) -> None:
        self._get: Callable[[str], R | None] = get
        self._claimed_stream: Callable[[R], Hashable | None] = claimed_stream
        self._ports: _PortClaims[R] = _PortClaims()
        self._streams: _NameClaims[R] = _NameClaims(get)

    def apply(self, change: ResourceChanged[R]) -> set[str]:
        """Take in a change; return the uids whose standing may be another now."""
        concerned = {change.uid}
        if change.old is not None:
            concerned.update(rival.uid for rival in self._ports.remove(change.old))
        if change.new is not None:
            concerned.update(rival.uid for rival in self._ports.add(change.new))
        for rival in sorted(concerned):
            concerned |= self._claim_stream(rival)
        return concerned

    def _claim_stream(self, uid: str) -> set[str]:
        resource = self._get(uid)
        held = resource is not None and self.port_rival(uid) is None
        return self._streams.claim(
            uid, self._claimed_stream(resource) if resource and held else None
        )

    def port_claimants(self, key: PortKey) -> tuple[R, ...]:
        """Return who claims a port, in order of their age: the first holds it."""
        return self._ports.claimants(key)

    def claimants_of_pe(self, pe: PeKey) -> list[R]:
        """Return all that claim ports of a PE, in order of their uids."""
        found = (one for claimants in self._ports.claimants_of_pe(pe) for one in claimants)
        return sorted(found, key=lambda one: one.uid)

    def holders(self, pe: PeKey) -> list[R]:
        """Return the resources that hold a PE's ports, in order of the ports."""
        found = (claimants[0] for claimants in self._ports.claimants_of_pe(pe))
        return sorted(found, key=lambda one: one.key.port)

    def stream_claimants(self, stream: Hashable) -> list[str]:
        """Return who claims a stream name and holds a port, in order of the uids."""
        return self._streams.claimants(stream)

    def standby_uids(self) -> set[str]:
        """Return the uids of all that are there and take no part."""
        return {*self._ports.standby_uids(), *self._streams.standby_uids()}

    def port_rival(self, uid: str) -> str | None:
        """Return who holds the resource's port instead of it, or None."""
        resource = self._get(uid)
        holders = () if resource is None else self._ports.claimants(resource.key)[:1]
        return next((holder.uid for holder in holders if holder.uid != uid), None)

    def stream_rival(self, uid: str) -> str | None:
        """Return who holds the resource's stream id instead of it, or None."""
        holder = self._streams.holder_for(uid)
        return None if holder == uid else holder

    def is_accepted(self, uid: str) -> bool:
        """Say whether a resource is there and holds what it claims."""
        present = self._get(uid) is not None
        return present and self.port_rival(uid) is None and self.stream_rival(uid) is None
