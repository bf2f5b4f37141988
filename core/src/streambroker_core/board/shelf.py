"""Keep the newest known state of all resources of one kind.

Events come late, twice, out of order, or not at all. The shelf decides what each
one is worth, by four rules:

- An event is late if the resource is known at its version or a higher one, if
  the resource is known to be gone, or if the last list is as young as the event.
- A list is the truth at its version: what it leaves out is gone, unless it was
  seen after that version.
- Two resources of one name cannot exist together: the lower version is gone.
- Versions that go down mean that the store behind the feed was restored. A new
  session begins; what the list leaves out is gone, whatever version it had.

Who is gone is remembered until nothing older can come: until the next list, or
until the feed is known to have caught up.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from streambroker_core.model import Export, Import

R = TypeVar("R", Export, Import)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change(Generic[R]):
    """One resource before and after; None where it is not there."""

    uid: str
    old: R | None
    new: R | None


@dataclass(slots=True, kw_only=True)
class _Held(Generic[R]):
    """A resource, its version, the version up to which that is known, its session."""

    resource: R
    version: int
    seen: int
    session: int


class _Grave(NamedTuple):
    """Of a resource that went: at which version, in which session, and its name if known."""

    version: int
    session: int
    name: tuple[str, str] | None


class Shelf(Generic[R]):
    """All resources of one kind, by uid."""

    def __init__(self) -> None:
        self._held: dict[str, _Held[R]] = {}
        self._gone: dict[str, _Grave] = {}
        self._names: dict[tuple[str, str], tuple[int, str]] = {}
        self._session = 0
        # Whoever is not here at this version was told to be gone, or never was.
        self._listed_at = -1
        self._reached = 0
        self.point = 0
        self.synced = False
        self.stale = False

    def __iter__(self) -> Iterator[R]:
        return (held.resource for held in self._held.values())

    def __len__(self) -> int:
        return len(self._held)

    def uids(self) -> Iterable[str]:
        """Return the uids of all, in no order."""
        return self._held.keys()

    def get(self, uid: str) -> R | None:
        """Return a resource, or None."""
        held = self._held.get(uid)
        return None if held is None else held.resource

    def named(self, namespace: str, name: str) -> str | None:
        """Return the uid of the resource that a new one of this name would replace."""
        uid = self._names.get((namespace, name), (0, ""))[1]
        return uid if uid in self._held else None

    def apply(self, resource: R, version: int) -> list[Change[R]]:
        """Take in a resource as it was at a version; return what that changed."""
        self._reach(version)
        held = self._held.get(resource.uid)
        if held is not None:
            return [] if version <= held.seen else self._put(self._seen(resource, version))
        if version <= self._listed_at or resource.uid in self._gone:
            return []
        return self._admit(resource, version)

    def _admit(self, resource: R, version: int) -> list[Change[R]]:
        changes: list[Change[R]] = []
        name = (resource.key.namespace, resource.name)
        known = self._names.get(name)
        if resource.name and known is not None:
            if version < known[0]:
                self._bury(resource.uid, version)
                return []
            changes += self._drop(known[1], version)
        return changes + self._put(self._seen(resource, version))

    def _seen(self, resource: R, version: int) -> _Held[R]:
        return _Held(resource=resource, version=version, seen=version, session=self._session)

    def _put(self, fresh: _Held[R]) -> list[Change[R]]:
        """Hold a resource, and what is known of it; an equal one stays the same object."""
        resource = fresh.resource
        held = self._held.get(resource.uid)
        old = None if held is None else held.resource
        if old == resource:
            fresh.resource = old
        self._held[resource.uid] = fresh
        if resource.name:
            self._names[(resource.key.namespace, resource.name)] = (fresh.version, resource.uid)
        return [] if old == resource else [Change(uid=resource.uid, old=old, new=resource)]

    def remove(self, uid: str, version: int) -> list[Change[R]]:
        """Take in that a resource went at a version; return what that changed."""
        self._reach(version)
        held = self._held.get(uid)
        if held is None:
            if version > self._listed_at:
                self._bury(uid, version)
            return []
        if version < held.seen:
            return []
        return self._drop(uid, version)

    def _drop(self, uid: str, version: int) -> list[Change[R]]:
        held = self._held.pop(uid, None)
        if held is None:
            self._bury(uid, version)
            return []
        name = (held.resource.key.namespace, held.resource.name)
        self._bury(uid, version, name)
        if self._names.get(name, (0, ""))[1] == uid:
            self._names[name] = (version, uid)
        return [Change(uid=uid, old=held.resource, new=None)]

    def _bury(self, uid: str, version: int, name: tuple[str, str] | None = None) -> None:
        known = self._gone.get(uid)
        if name is None and known is not None:
            name = known.name
        self._gone[uid] = _Grave(version, self._session, name)

    def _buried_after(self, uid: str, version: int) -> bool:
        grave = self._gone.get(uid)
        return grave is not None and grave.version > version and grave.session == self._session

    def caught_up(self, version: int) -> None:
        """Take in that nothing older than a version comes any more; forget who was gone by then."""
        self._listed_at = max(self._listed_at, version)
        settled = [uid for uid, grave in self._gone.items() if grave.version <= version]
        for uid in settled:
            name = self._gone.pop(uid).name
            if name is not None and self._names.get(name, (0, ""))[1] == uid:
                del self._names[name]

    def lost(self) -> None:
        """Note that the feed broke off: what was seen so far is of an old session."""
        self._session += 1
        self._reached = 0
        self.stale = True

    def relist(self, entries: Iterable[tuple[R, int]], version: int) -> Iterator[Change[R]]:
        """Take in a consistent list, one by one as what that changes is asked for, to the end.

        A list at the start of a broker is long: nothing is kept twice of it.
        """
        listed: dict[str, _Held[R]] = {
            resource.uid: _Held(resource=resource, version=own, seen=max(own, version), session=0)
            for resource, own in entries
        }
        if self._restored(listed, version):
            self.lost()
        for uid in self._missing(listed, version):
            yield from self._drop(uid, version)
        for fresh in listed.values():
            yield from self._take_listed(fresh, version)
        self._gone = {
            uid: grave for uid, grave in self._gone.items() if self._buried_after(uid, version)
        }
        self._names = {
            name: (at, uid)
            for name, (at, uid) in self._names.items()
            if uid in self._held or uid in self._gone
        }
        self._listed_at = version
        self._reached = max(self._reached, version)
        self.point = self._reached if self.stale else max(self.point, self._reached)
        self.synced, self.stale = True, False

    def _restored(self, listed: Mapping[str, _Held[R]], version: int) -> bool:
        if version < self._listed_at:
            return True
        for uid, fresh in listed.items():
            held = self._held.get(uid)
            if held is not None and fresh.version < held.version <= version:
                return True
        return False

    def _missing(self, listed: Container[str], version: int) -> list[str]:
        return [
            uid
            for uid, held in self._held.items()
            if uid not in listed and (held.seen <= version or held.session < self._session)
        ]

    def _take_listed(self, fresh: _Held[R], version: int) -> list[Change[R]]:
        uid = fresh.resource.uid
        held = self._held.get(uid)
        if held is not None and held.session == self._session and held.version > version:
            return []
        if self._buried_after(uid, version) or self._outlived(fresh.resource, version):
            return []
        fresh.session = self._session
        return self._put(fresh)

    def _outlived(self, resource: R, version: int) -> bool:
        """Say whether another resource of the name was seen after a version, or seen to go."""
        if not resource.name:
            return False
        name = (resource.key.namespace, resource.name)
        other = self._names.get(name, (0, resource.uid))[1]
        if other == resource.uid:
            return False
        held = self._held.get(other)
        if held is None:
            return self._buried_after(other, version)
        return held.session == self._session and held.version > version

    def _reach(self, version: int) -> None:
        self._reached = max(self._reached, version)
        self.point = max(self.point, version)
