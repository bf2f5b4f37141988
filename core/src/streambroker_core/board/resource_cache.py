"""Keep the newest known state of all resources of one kind.

Events come late, twice, out of order, or not at all. The shelf decides what each
one is worth, by five rules:

- An event is late if the resource is known at its version or a higher one, if
  the resource is known to be gone, or if the last list is as young as the event.
- A list is the truth at its version: what it leaves out is gone, unless it was
  seen after that version.
- Two resources of one name cannot exist together: the lower version is gone.
- Versions that go down mean that the store behind the feed was restored. A new
  session begins; what the list leaves out is gone, whatever version it had.

- What was seen ahead of the feed, in the answer to a write, counts until the feed has come to
  its version. From then on the feed counts, whatever it says: a restored store may have lost
  the write, and never reports it.

Who is gone is remembered until nothing older can come: until the next list, or
until the feed is known to have caught up. What is there and cannot be read is kept
like any other, so that the same rules hold for it; it is only not shown.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from streambroker_core.board.events import Difference, Unreadable
from streambroker_core.model import Export, Import, Rule

R = TypeVar("R", Export, Import, Rule)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change(Generic[R]):
    """One resource before and after; None where it is not there, or cannot be read."""

    uid: str
    old: R | None
    new: R | None

    @property
    def moves(self) -> bool:
        """Whether it has another port now, for which nothing of the old one holds."""
        old, new = self.old, self.new
        return old is not None and new is not None and tuple(old.key) != tuple(new.key)


@dataclass(slots=True, kw_only=True)
class _Held(Generic[R]):
    """A resource, its version, the version up to which that is known, its session.

    ``told`` is the version up to which the feed told of it: lower where it was seen ahead of it.
    ``fed`` is the resource as the feed told of it last; None before that, or if it went.
    """

    entry: R | Unreadable
    version: int
    seen: int
    session: int
    told: int
    fed: R | Unreadable | None

    @property
    def resource(self) -> R | None:
        """What can be shown."""
        return None if isinstance(self.entry, Unreadable) else self.entry


class _Grave(Generic[R]):
    """Of a resource that went: at which version, in which session, and its name if known.

    ``early`` if the feed has not reported that it went: ``fed`` is the resource as the feed
    reported it last, at the version ``told``, None if it did not; ``doubted`` if the feed has
    caught up once since.
    """

    __slots__ = ("doubted", "early", "fed", "name", "session", "told", "version")

    def __init__(self, version: int, session: int, name: tuple[str, str] | None) -> None:
        self.version = version
        self.session = session
        self.name = name
        self.early = False
        self.fed: R | Unreadable | None = None
        self.told = 0
        self.doubted = False


def _name(entry: R | Unreadable) -> tuple[str, str]:
    if isinstance(entry, Unreadable):
        return entry.namespace, entry.name
    return entry.key.namespace, entry.name


def _standing(entry: R | Unreadable) -> tuple[bool, bool]:
    """Return what the status of an Import says of its generations, which is no change of it."""
    if isinstance(entry, Import):
        return entry.unsure, entry.settled
    return isinstance(entry, Unreadable) and entry.unsure, False


def _alike(one: R | Unreadable, other: R | Unreadable) -> bool:
    """Say whether two entries are the same, whatever their statuses have of an earlier one."""
    if isinstance(one, Import) and isinstance(other, Import):
        return replace(one, earlier=None, held=False) == replace(other, earlier=None, held=False)
    if isinstance(one, Rule) and isinstance(other, Rule):
        return replace(one, earlier=None) == replace(other, earlier=None)
    return one == other


class Shelf(Generic[R]):
    """All resources of one kind, by uid.

    Attributes:
        undone: resources that were seen ahead of the feed, and that the feed did not confirm when
            it came to that version, with the difference; the code that reports them empties it.
    """

    def __init__(self) -> None:
        self._held: dict[str, _Held[R]] = {}
        self._gone: dict[str, _Grave[R]] = {}
        self._names: dict[tuple[str, str], tuple[int, str]] = {}
        self._session = 0
        # Whoever is not here at this version was told to be gone, or never was.
        self._listed_at = -1
        self._reached = 0
        self.point = 0
        self.synced = False
        self.stale = False
        self.undone: list[tuple[str, Difference]] = []

    def __iter__(self) -> Iterator[R]:
        every = (held.resource for held in self._held.values())
        return (resource for resource in every if resource is not None)

    def __len__(self) -> int:
        return len(self._held)

    def uids(self) -> Iterable[str]:
        """Return the uids of all, in no order."""
        return self._held.keys()

    def get(self, uid: str) -> R | None:
        """Return a resource, or None."""
        held = self._held.get(uid)
        if held is None or isinstance(held.entry, Unreadable):
            return None
        return held.entry

    def unreadable(self, uid: str) -> Unreadable | None:
        """Return what is known of a resource that is there and cannot be read, or None."""
        held = self._held.get(uid)
        return held.entry if held is not None and isinstance(held.entry, Unreadable) else None

    def named(self, namespace: str, name: str) -> str | None:
        """Return the uid of the resource that a new one of this name would replace."""
        uid = self._names.get((namespace, name), (0, ""))[1]
        return uid if uid in self._held else None

    def version_of(self, uid: str) -> int:
        """Return the version at which a resource changed last; 0 where it is not known."""
        held = self._held.get(uid)
        return 0 if held is None else held.version

    def newest(self) -> int:
        """Return the highest version at which one was seen or went early; 0 without one."""
        seen = max((held.seen for held in self._held.values()), default=0)
        early = (grave.version for grave in self._gone.values() if grave.early)
        return max(seen, max(early, default=0))

    def apply(self, entry: R | Unreadable, version: int, *, early: bool = False) -> list[Change[R]]:
        """Take in a resource as it was at a version; return what that changed.

        Args:
            entry: the resource, or that it cannot be read.
            version: when it was so.
            early: ahead of the feed, which has not come to that version yet.
        """
        if not early:
            self._reach(version)
        held = self._held.get(entry.uid)
        if held is not None:
            return self._change(held, entry, version, early=early)
        grave = self._gone.get(entry.uid)
        if grave is not None and grave.early and not early and version > grave.told:
            grave.fed, grave.told = entry, version
        if version <= self._listed_at or grave is not None:
            return []
        return self._admit(entry, version, early=early)

    def _change(
        self, held: _Held[R], entry: R | Unreadable, version: int, *, early: bool
    ) -> list[Change[R]]:
        if early:
            later = version > held.seen
            return self._put(self._seen(entry, version, held.told, held.fed)) if later else []
        if version <= held.told:
            return []
        held.told, held.fed = version, entry
        if version < held.seen:
            return []
        if version == held.seen and not _alike(entry, held.entry):
            self.undone.append((entry.uid, "changed"))
        return self._put(self._seen(entry, version, version, entry))

    def swap(self, entry: R) -> list[Change[R]]:
        """Hold another generation of a resource, at the version at which it is known."""
        held = self._held[entry.uid]
        old = held.resource
        held.fed = entry if held.fed is held.entry else held.fed
        held.entry = entry
        return [Change(uid=entry.uid, old=old, new=entry)]

    def touch(self, uid: str | None, version: int) -> list[Change[R]]:
        """Take in that the feed came to a version, and with it a resource as it told of it."""
        self._reach(version)
        held = None if uid is None else self._held.get(uid)
        if held is None:
            return []
        entry = held.entry if held.fed is None else held.fed
        if version > held.seen and not _alike(entry, held.entry):
            self.undone.append((held.entry.uid, "changed"))
        return self._change(held, entry, version, early=False)

    def _admit(self, entry: R | Unreadable, version: int, *, early: bool) -> list[Change[R]]:
        changes: list[Change[R]] = []
        name = _name(entry)
        known = self._names.get(name)
        if name[1] and known is not None:
            if version < known[0]:
                # A restored store may have lost the younger one, and have this one.
                grave = self._bury(entry.uid, version)
                grave.early = True
                if not early:
                    grave.fed, grave.told = entry, version
                return []
            changes += self._drop(known[1], version, early=early)
        told, fed = (0, None) if early else (version, entry)
        return changes + self._put(self._seen(entry, version, told, fed))

    def _seen(
        self, entry: R | Unreadable, version: int, told: int, fed: R | Unreadable | None
    ) -> _Held[R]:
        return _Held(
            entry=entry, version=version, seen=version, session=self._session, told=told, fed=fed
        )

    def _put(self, fresh: _Held[R]) -> list[Change[R]]:
        """Hold a resource, and what is known of it; an equal one stays the same object."""
        uid = fresh.entry.uid
        held = self._held.get(uid)
        same = held is not None and held.entry == fresh.entry
        if held is not None and same and _standing(held.entry) == _standing(fresh.entry):
            fresh.fed = held.entry if fresh.fed is fresh.entry else fresh.fed
            fresh.entry = held.entry
        self._held[uid] = fresh
        name = _name(fresh.entry)
        if name[1]:
            self._names[name] = (fresh.version, uid)
        old = None if held is None else held.resource
        return [] if same else [Change(uid=uid, old=old, new=fresh.resource)]

    def remove(self, uid: str, version: int, *, early: bool = False) -> list[Change[R]]:
        """Take in that a resource went at a version; return what that changed.

        Args:
            uid: of the resource.
            version: when it went; if early, up to when it is known to have been there.
            early: ahead of the feed, which has not come to its end yet.
        """
        if not early:
            self._reach(version)
        held = self._held.get(uid)
        if held is None:
            if version > self._listed_at or uid in self._gone:
                self._bury(uid, version)
            return []
        at = max(version, held.seen) if early else version
        if at >= held.seen:
            return self._drop(uid, at, early=early)
        if version >= held.told:
            held.told, held.fed = version, None
        return []

    def _drop(self, uid: str, version: int, *, early: bool = False) -> list[Change[R]]:
        held = self._held.pop(uid, None)
        last = held or self._gone.get(uid)
        grave = self._bury(uid, version, None if held is None else _name(held.entry))
        if early and last is not None:
            grave.early, grave.fed, grave.told = True, last.fed, last.told
        if held is None:
            return []
        name = _name(held.entry)
        if self._names.get(name, (0, ""))[1] == uid:
            self._names[name] = (version, uid)
        return [Change(uid=uid, old=held.resource, new=None)]

    def _bury(self, uid: str, version: int, name: tuple[str, str] | None = None) -> _Grave[R]:
        known = self._gone.get(uid)
        if name is None and known is not None:
            name = known.name
        grave = self._gone[uid] = _Grave(version, self._session, name)
        return grave

    def _buried_after(self, uid: str, version: int) -> bool:
        grave = self._gone.get(uid)
        return grave is not None and grave.version > version and grave.session == self._session

    def caught_up(self, version: int) -> list[Change[R]]:
        """Take in that nothing older than a version comes any more; forget who was gone by then.

        What went by then but is still listed by the feed is back.
        """
        changes: list[Change[R]] = []
        self._listed_at = max(self._listed_at, version)
        for uid, grave in list(self._gone.items()):
            if grave.version > version:
                continue
            if grave.early and (not grave.doubted or self._name_is_early(grave)):
                # The deletion has no version of its own: the feed may report it after this.
                grave.doubted = True
                continue
            del self._gone[uid]
            if grave.name is not None and self._names.get(grave.name, (0, ""))[1] == uid:
                del self._names[grave.name]
            changes += self._revive(grave)
        return changes

    def unconfirmed(self, version: int) -> list[Change[R]]:
        """Take in that the feed told of all that there was at a version.

        What was seen ahead of the feed by then, and not by the feed, is as the feed told of it
        last: as it is listed, or gone.
        """
        changes: list[Change[R]] = []
        for uid, held in list(self._held.items()):
            if not held.told < held.seen <= version:
                continue
            if held.fed is None:
                self.undone.append((uid, "ghost"))
                changes += self._drop(uid, held.seen)
            else:
                self.undone.append((uid, "changed"))
                fresh = self._seen(held.fed, held.told, held.told, held.fed)
                fresh.seen = fresh.told = held.seen
                changes += self._put(fresh)
        return changes

    def _revive(self, grave: _Grave[R]) -> list[Change[R]]:
        """Bring back what the feed lists though it was seen to go."""
        entry = grave.fed
        if entry is None or self.named(*_name(entry)) is not None:
            return []
        self.undone.append((entry.uid, "missing"))
        return self._put(self._seen(entry, grave.told, grave.told, entry))

    def _name_is_early(self, grave: _Grave[R]) -> bool:
        """Say whether another resource has the name that the feed has not reported yet."""
        uid = None if grave.fed is None else self.named(*_name(grave.fed))
        return uid is not None and self._held[uid].told < self._held[uid].seen

    def ahead(self) -> list[str]:
        """Return the uids of all that was seen or went without a report of the feed."""
        gone = [uid for uid, grave in self._gone.items() if grave.early]
        return [uid for uid, held in self._held.items() if held.told < held.seen] + gone

    def lost(self) -> None:
        """Note that the feed broke off: what was seen so far is of an old session."""
        self._session += 1
        self._reached = 0
        self.stale = True

    def relist(
        self, entries: Iterable[tuple[R | Unreadable, int]], version: int
    ) -> Iterator[Change[R]]:
        """Take in a consistent list, one by one as what that changes is asked for, to the end.

        A list at the start of a broker is long: nothing is kept twice of it.
        """
        listed: dict[str, _Held[R]] = {
            entry.uid: _Held(
                entry=entry,
                version=own,
                seen=max(own, version),
                session=0,
                told=max(own, version),
                fed=entry,
            )
            for entry, own in entries
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
        for uid, grave in self._gone.items():
            if grave.early and grave.told <= version:
                grave.fed = listed[uid].entry if uid in listed else None
        self._names = {
            name: (at, uid)
            for name, (at, uid) in self._names.items()
            if uid in self._held or uid in self._gone
        }
        self._listed_at = version
        self._reached = max(self._reached, version)
        self.point = self._reached if self.stale else max(self.point, self._reached)
        self.synced, self.stale = True, False

    def news(
        self, resources: Iterable[tuple[R, int]], unreadable: Container[str], version: int
    ) -> Iterator[tuple[int, str, R | None] | None]:
        """Yield what a list tells that is not known, and None for each that is as it is known.

        Each with its version and uid, None for one that is gone at the last version it was seen
        at; the oldest first. Changes nothing, and what is done meanwhile may be anything.
        """
        here: set[str] = set()
        found: list[tuple[int, str, R | None]] = []
        for resource, own in resources:
            here.add(resource.uid)
            known = self._held.get(resource.uid)
            if known is None or (known.entry is not resource and known.entry != resource):
                found.append((own, resource.uid, resource))
            yield None
        for uid, held in list(self._held.items()):
            if uid not in here and uid not in unreadable and held.seen <= version:
                found.append((held.seen, uid, None))
            yield None
        yield from sorted(found, key=lambda one: one[:2])

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
        uid = fresh.entry.uid
        held = self._held.get(uid)
        if held is not None and held.session == self._session and held.version > version:
            if fresh.told > held.told:
                held.told, held.fed = fresh.told, fresh.entry
            return []
        if self._buried_after(uid, version) or self._outlived(fresh.entry, version):
            return []
        fresh.session = self._session
        return self._put(fresh)

    def _outlived(self, entry: R | Unreadable, version: int) -> bool:
        """Say whether another resource of the name was seen after a version, or seen to go."""
        name = _name(entry)
        other = self._names.get(name, (0, entry.uid))[1]
        if not name[1] or other == entry.uid:
            return False
        held = self._held.get(other)
        if held is None:
            return self._buried_after(other, version)
        return held.session == self._session and held.version > version

    def _reach(self, version: int) -> None:
        self._reached = max(self._reached, version)
        self.point = max(self.point, version)
