"""Ownership of ports and stream ids that several resources claim.

The oldest claimant holds the name: by creation time, then by uid. The others are on standby; the
next one takes over when the holder is deleted. The result depends on the existing resources, not
on the order in which they arrived.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Generic, TypeVar

from streambroker_core.board.events import ResourceChanged
from streambroker_core.model import Export, Import, PeKey, PortKey, seniority

R = TypeVar("R", Export, Import)


class PortClaims(Generic[R]):
    """Claims on ports, by PE; each port goes to the oldest claimant."""

    def __init__(self) -> None:
        # A PE with one port and one claimant maps to that resource. Other PEs map to the
        # claimants of each port, oldest first.
        self._of_pe: dict[PeKey, R | dict[str, tuple[R, ...]]] = {}

    def add(self, resource: R) -> tuple[R, ...]:
        """Add a claimant; return all claimants of its port."""
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
        """Remove a claimant; return the remaining claimants of its port."""
        pe: PeKey = resource.key.owner
        port: str = resource.key.port
        ports: dict[str, tuple[R, ...]] = self._by_port(pe)
        remaining = tuple(one for one in ports.pop(port, ()) if one.uid != resource.uid)
        if remaining:
            ports[port] = remaining
        sole = _sole_claimant(ports)
        if sole is not None:
            self._of_pe[pe] = sole
        elif ports:
            self._of_pe[pe] = ports
        else:
            self._of_pe.pop(pe, None)
        return remaining

    def _by_port(self, pe: PeKey) -> dict[str, tuple[R, ...]]:
        known = self._of_pe.get(pe)
        if known is None or isinstance(known, dict):
            return known or {}
        return {known.key.port: (known,)}

    def claimants(self, key: PortKey) -> tuple[R, ...]:
        """Return the claimants of a port, oldest first."""
        return self._by_port(key.owner).get(key.port, ())

    def claimants_of_pe(self, pe: PeKey) -> Iterable[tuple[R, ...]]:
        """Return the claimants of each of a PE's ports, unordered."""
        return self._by_port(pe).values()

    def standby_uids(self) -> Iterator[str]:
        """Yield the uids of claimants whose port an older resource holds."""
        several = (ports for ports in self._of_pe.values() if isinstance(ports, dict))
        return (one.uid for ports in several for all_ in ports.values() for one in all_[1:])


def _sole_claimant(ports: Mapping[str, tuple[R, ...]]) -> R | None:
    if len(ports) != 1:
        return None
    (claimants,) = ports.values()
    return claimants[0] if len(claimants) == 1 else None


class NameClaims(Generic[R]):
    """Claims on names; each name goes to the oldest claimant."""

    def __init__(self, get: Callable[[str], R | None]) -> None:
        self._get: Callable[[str], R | None] = get
        # One uid, or several, oldest first; most names have one claimant.
        self._by_name: dict[Hashable, str | tuple[str, ...]] = {}
        self._name_by_uid: dict[str, Hashable] = {}

    def claim(self, uid: str, name: Hashable | None) -> set[str]:
        """Set the name that a resource claims; return the uids of all affected resources."""
        old = self._name_by_uid.pop(uid, None)
        concerned = {uid}
        if old is not None:
            rivals = self._rivals(old)
            concerned.update(rivals)
            self._set(old, [rival for rival in rivals if rival != uid])
        if name is not None:
            claimants: list[str] = [*self._rivals(name), uid]
            concerned.update(claimants)
            self._set(name, sorted(claimants, key=self._age_key))
            self._name_by_uid[uid] = name
        return concerned

    def _rivals(self, name: Hashable) -> tuple[str, ...]:
        uids = self._by_name.get(name, ())
        return (uids,) if isinstance(uids, str) else uids

    def _set(self, name: Hashable, uids: list[str]) -> None:
        if uids:
            self._by_name[name] = uids[0] if len(uids) == 1 else tuple(uids)
        else:
            self._by_name.pop(name, None)

    def _age_key(self, uid: str) -> tuple[float, str]:
        resource = self._get(uid)
        # A deleted resource is about to release its claim.
        return math.inf if resource is None else resource.created, uid

    def claimants(self, name: Hashable) -> list[str]:
        """Return the claimants of a name, ordered by uid."""
        return sorted(self._rivals(name))

    def standby_uids(self) -> Iterator[str]:
        """Yield the uids of claimants whose name an older resource holds."""
        several = (uids for uids in self._by_name.values() if not isinstance(uids, str))
        return (uid for uids in several for uid in uids[1:])

    def holder_for(self, uid: str) -> str | None:
        """Return the holder of the name that a resource claims; None if it claims none."""
        name = self._name_by_uid.get(uid)
        return None if name is None else self._rivals(name)[0]


class NameOwnership(Generic[R]):
    """Ownership of ports and stream names among resources of one kind.

    Attributes:
        ports: claims on ports.
        streams: claims of the port holders on stream names.
    """

    def __init__(
        self, get: Callable[[str], R | None], claimed_stream: Callable[[R], Hashable | None]
    ) -> None:
        self._get: Callable[[str], R | None] = get
        self._claimed_stream: Callable[[R], Hashable | None] = claimed_stream
        self.ports: PortClaims[R] = PortClaims()
        self.streams: NameClaims[R] = NameClaims(get)

    def apply(self, change: ResourceChanged[R]) -> set[str]:
        """Apply a change; return the uids whose ownership may have changed."""
        concerned = {change.uid}
        if change.old is not None:
            concerned.update(rival.uid for rival in self.ports.remove(change.old))
        if change.new is not None:
            concerned.update(rival.uid for rival in self.ports.add(change.new))
        for rival in sorted(concerned):
            concerned |= self._claim_stream(rival)
        return concerned

    def _claim_stream(self, uid: str) -> set[str]:
        resource = self._get(uid)
        holds_port = resource is not None and self.port_rival(uid) is None
        return self.streams.claim(
            uid, self._claimed_stream(resource) if resource and holds_port else None
        )

    def claimants_of_pe(self, pe: PeKey) -> list[R]:
        """Return all resources that claim ports of a PE, ordered by uid."""
        resources = (one for claimants in self.ports.claimants_of_pe(pe) for one in claimants)
        return sorted(resources, key=lambda one: one.uid)

    def holders(self, pe: PeKey) -> list[R]:
        """Return the resources that hold a PE's ports, ordered by port."""
        found = (claimants[0] for claimants in self.ports.claimants_of_pe(pe))
        return sorted(found, key=lambda one: one.key.port)

    def standby_uids(self) -> set[str]:
        """Return the uids of existing resources that do not hold what they claim."""
        return {*self.ports.standby_uids(), *self.streams.standby_uids()}

    def port_rival(self, uid: str) -> str | None:
        """Return the uid of another resource that holds the resource's port, or None."""
        resource = self._get(uid)
        holders = () if resource is None else self.ports.claimants(resource.key)[:1]
        return next((holder.uid for holder in holders if holder.uid != uid), None)

    def stream_rival(self, uid: str) -> str | None:
        """Return the uid of another resource that holds the resource's stream id, or None."""
        holder = self.streams.holder_for(uid)
        return None if holder == uid else holder

    def is_accepted(self, uid: str) -> bool:
        """Return whether a resource exists and holds what it claims."""
        present = self._get(uid) is not None
        return present and self.port_rival(uid) is None and self.stream_rival(uid) is None
