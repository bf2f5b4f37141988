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
class ResourceChanged(Generic[R]):
    """One resource before and after; None where it is not there, or cannot be read."""

    uid: str
    old: R | None
    new: R | None

    @property
    def has_new_port(self) -> bool:
        """Whether it has another port now, for which nothing of the old one holds."""
        old, new = self.old, self.new
        return old is not None and new is not None and tuple(old.key) != tuple(new.key)


@dataclass(slots=True, kw_only=True)
class _CachedResource(Generic[R]):
    """A resource, its version, the version up to which that is known, its session.

    ``confirmed_version`` is the version up to which the feed told of it: lower where it was seen
    ahead of it.
    ``feed_entry`` is the resource as the feed told of it last; None before that, or if it went.
    """

    entry: R | Unreadable
    version: int
    observed_version: int
    session: int
    confirmed_version: int
    feed_entry: R | Unreadable | None

    @property
    def resource(self) -> R | None:
        """What can be shown."""
        return None if isinstance(self.entry, Unreadable) else self.entry


class _Tombstone(Generic[R]):
    """Of a resource that went: at which version, in which session, and its name if known.

    ``ahead_of_feed`` if the feed has not reported that it went: ``feed_entry`` is the resource as
    the feed reported it last, at the version ``confirmed_version``, None if it did not;
    ``is_suspect`` if the feed has caught up once since.
    """

    __slots__ = (
        "ahead_of_feed",
        "confirmed_version",
        "feed_entry",
        "is_suspect",
        "name",
        "session",
        "version",
    )

    def __init__(self, version: int, session: int, name: tuple[str, str] | None) -> None:
        self.version = version
        self.session = session
        self.name = name
        self.ahead_of_feed = False
        self.feed_entry: R | Unreadable | None = None
        self.confirmed_version = 0
        self.is_suspect = False


def _name_key(entry: R | Unreadable) -> tuple[str, str]:
    if isinstance(entry, Unreadable):
        return entry.namespace, entry.name
    return entry.key.namespace, entry.name


def _acceptance_flags(entry: R | Unreadable) -> tuple[bool, bool]:
    """Return what the status of an Import says of its generations, which is no change of it."""
    if isinstance(entry, Import):
        return entry.earlier_unknown, entry.was_accepted
    return isinstance(entry, Unreadable) and entry.earlier_unknown, False


def _is_equivalent(left: R | Unreadable, right: R | Unreadable) -> bool:
    """Say whether two entries are the same, whatever their statuses have of an earlier one."""
    if isinstance(left, Import) and isinstance(right, Import):
        return replace(left, last_accepted=None, held=False) == replace(
            right, last_accepted=None, held=False
        )
    if isinstance(left, Rule) and isinstance(right, Rule):
        return replace(left, last_accepted=None) == replace(right, last_accepted=None)
    return left == right


class ResourceCache(Generic[R]):
    """All resources of one kind, by uid.

    Attributes:
        reverted: resources that were seen ahead of the feed, and that the feed did not confirm when
            it came to that version, with the difference; the code that reports them empties it.
    """

    def __init__(self) -> None:
        self._entries: dict[str, _CachedResource[R]] = {}
        self._tombstones: dict[str, _Tombstone[R]] = {}
        self._names: dict[tuple[str, str], tuple[int, str]] = {}
        self._session = 0
        # Whoever is not here at this version was told to be gone, or never was.
        self._list_version = -1
        self._feed_version = 0
        self.resource_version = 0
        self.synced = False
        self.stale = False
        self.reverted: list[tuple[str, Difference]] = []

    def __iter__(self) -> Iterator[R]:
        every = (held.resource for held in self._entries.values())
        return (resource for resource in every if resource is not None)

    def __len__(self) -> int:
        return len(self._entries)

    def uids(self) -> Iterable[str]:
        """Return the uids of all, in no order."""
        return self._entries.keys()

    def get(self, uid: str) -> R | None:
        """Return a resource, or None."""
        held = self._entries.get(uid)
        if held is None or isinstance(held.entry, Unreadable):
            return None
        return held.entry

    def unreadable(self, uid: str) -> Unreadable | None:
        """Return what is known of a resource that is there and cannot be read, or None."""
        held = self._entries.get(uid)
        return held.entry if held is not None and isinstance(held.entry, Unreadable) else None

    def uid_by_name(self, namespace: str, name: str) -> str | None:
        """Return the uid of the resource that a new one of this name would replace."""
        uid = self._names.get((namespace, name), (0, ""))[1]
        return uid if uid in self._entries else None

    def version_of(self, uid: str) -> int:
        """Return the version at which a resource changed last; 0 where it is not known."""
        held = self._entries.get(uid)
        return 0 if held is None else held.version

    def newest_version(self) -> int:
        """Return the highest version at which one was seen or went early; 0 without one."""
        seen = max((held.observed_version for held in self._entries.values()), default=0)
        early = (grave.version for grave in self._tombstones.values() if grave.ahead_of_feed)
        return max(seen, max(early, default=0))

    def apply(
        self, entry: R | Unreadable, version: int, *, ahead_of_feed: bool = False
    ) -> list[ResourceChanged[R]]:
        """Take in a resource as it was at a version; return what that changed.

        Args:
            entry: the resource, or that it cannot be read.
            version: when it was so.
            ahead_of_feed: ahead of the feed, which has not come to that version yet.
        """
        if not ahead_of_feed:
            self._advance(version)
        held = self._entries.get(entry.uid)
        if held is not None:
            return self._update(held, entry, version, ahead_of_feed=ahead_of_feed)
        grave = self._tombstones.get(entry.uid)
        if (
            grave is not None
            and grave.ahead_of_feed
            and not ahead_of_feed
            and version > grave.confirmed_version
        ):
            grave.feed_entry, grave.confirmed_version = entry, version
        if version <= self._list_version or grave is not None:
            return []
        return self._admit(entry, version, ahead_of_feed=ahead_of_feed)

    def _update(
        self,
        cached: _CachedResource[R],
        entry: R | Unreadable,
        version: int,
        *,
        ahead_of_feed: bool,
    ) -> list[ResourceChanged[R]]:
        if ahead_of_feed:
            later = version > cached.observed_version
            return (
                self._put(
                    self._make_entry(entry, version, cached.confirmed_version, cached.feed_entry)
                )
                if later
                else []
            )
        if version <= cached.confirmed_version:
            return []
        cached.confirmed_version, cached.feed_entry = version, entry
        if version < cached.observed_version:
            return []
        if version == cached.observed_version and not _is_equivalent(entry, cached.entry):
            self.reverted.append((entry.uid, "changed"))
        return self._put(self._make_entry(entry, version, version, entry))

    def replace_entry(self, entry: R) -> list[ResourceChanged[R]]:
        """Hold another generation of a resource, at the version at which it is known."""
        held = self._entries[entry.uid]
        old = held.resource
        held.feed_entry = entry if held.feed_entry is held.entry else held.feed_entry
        held.entry = entry
        return [ResourceChanged(uid=entry.uid, old=old, new=entry)]

    def confirm(self, uid: str | None, version: int) -> list[ResourceChanged[R]]:
        """Take in that the feed came to a version, and with it a resource as it told of it."""
        self._advance(version)
        held = None if uid is None else self._entries.get(uid)
        if held is None:
            return []
        entry = held.entry if held.feed_entry is None else held.feed_entry
        if version > held.observed_version and not _is_equivalent(entry, held.entry):
            self.reverted.append((held.entry.uid, "changed"))
        return self._update(held, entry, version, ahead_of_feed=False)

    def _admit(
        self, entry: R | Unreadable, version: int, *, ahead_of_feed: bool
    ) -> list[ResourceChanged[R]]:
        changes: list[ResourceChanged[R]] = []
        name = _name_key(entry)
        known = self._names.get(name)
        if name[1] and known is not None:
            if version < known[0]:
                # A restored store may have lost the younger one, and have this one.
                grave = self._add_tombstone(entry.uid, version)
                grave.ahead_of_feed = True
                if not ahead_of_feed:
                    grave.feed_entry, grave.confirmed_version = entry, version
                return []
            changes += self._drop(known[1], version, ahead_of_feed=ahead_of_feed)
        told, fed = (0, None) if ahead_of_feed else (version, entry)
        return changes + self._put(self._make_entry(entry, version, told, fed))

    def _make_entry(
        self,
        entry: R | Unreadable,
        version: int,
        confirmed_version: int,
        feed_entry: R | Unreadable | None,
    ) -> _CachedResource[R]:
        return _CachedResource(
            entry=entry,
            version=version,
            observed_version=version,
            session=self._session,
            confirmed_version=confirmed_version,
            feed_entry=feed_entry,
        )

    def _put(self, fresh: _CachedResource[R]) -> list[ResourceChanged[R]]:
        """Hold a resource, and what is known of it; an equal one stays the same object."""
        uid = fresh.entry.uid
        held = self._entries.get(uid)
        same = held is not None and held.entry == fresh.entry
        if (
            held is not None
            and same
            and _acceptance_flags(held.entry) == _acceptance_flags(fresh.entry)
        ):
            fresh.feed_entry = held.entry if fresh.feed_entry is fresh.entry else fresh.feed_entry
            fresh.entry = held.entry
        self._entries[uid] = fresh
        name = _name_key(fresh.entry)
        if name[1]:
            self._names[name] = (fresh.version, uid)
        old = None if held is None else held.resource
        return [] if same else [ResourceChanged(uid=uid, old=old, new=fresh.resource)]

    def remove(
        self, uid: str, version: int, *, ahead_of_feed: bool = False
    ) -> list[ResourceChanged[R]]:
        """Take in that a resource went at a version; return what that changed.

        Args:
            uid: of the resource.
            version: when it went; if early, up to when it is known to have been there.
            ahead_of_feed: ahead of the feed, which has not come to its end yet.
        """
        if not ahead_of_feed:
            self._advance(version)
        held = self._entries.get(uid)
        if held is None:
            if version > self._list_version or uid in self._tombstones:
                self._add_tombstone(uid, version)
            return []
        at = max(version, held.observed_version) if ahead_of_feed else version
        if at >= held.observed_version:
            return self._drop(uid, at, ahead_of_feed=ahead_of_feed)
        if version >= held.confirmed_version:
            held.confirmed_version, held.feed_entry = version, None
        return []

    def _drop(
        self, uid: str, version: int, *, ahead_of_feed: bool = False
    ) -> list[ResourceChanged[R]]:
        held = self._entries.pop(uid, None)
        last = held or self._tombstones.get(uid)
        grave = self._add_tombstone(uid, version, None if held is None else _name_key(held.entry))
        if ahead_of_feed and last is not None:
            grave.ahead_of_feed = True
            grave.feed_entry, grave.confirmed_version = last.feed_entry, last.confirmed_version
        if held is None:
            return []
        name = _name_key(held.entry)
        if self._names.get(name, (0, ""))[1] == uid:
            self._names[name] = (version, uid)
        return [ResourceChanged(uid=uid, old=held.resource, new=None)]

    def _add_tombstone(
        self, uid: str, version: int, name: tuple[str, str] | None = None
    ) -> _Tombstone[R]:
        known = self._tombstones.get(uid)
        if name is None and known is not None:
            name = known.name
        grave = self._tombstones[uid] = _Tombstone(version, self._session, name)
        return grave

    def _is_deleted_after(self, uid: str, version: int) -> bool:
        grave = self._tombstones.get(uid)
        return grave is not None and grave.version > version and grave.session == self._session

    def expire_tombstones(self, version: int) -> list[ResourceChanged[R]]:
        """Take in that nothing older than a version comes any more; forget who was gone by then.

        What went by then but is still listed by the feed is back.
        """
        changes: list[ResourceChanged[R]] = []
        self._list_version = max(self._list_version, version)
        for uid, grave in list(self._tombstones.items()):
            if grave.version > version:
                continue
            if grave.ahead_of_feed and (not grave.is_suspect or self._name_is_ahead(grave)):
                # The deletion has no version of its own: the feed may report it after this.
                grave.is_suspect = True
                continue
            del self._tombstones[uid]
            if grave.name is not None and self._names.get(grave.name, (0, ""))[1] == uid:
                del self._names[grave.name]
            changes += self._restore(grave)
        return changes

    def revert_unconfirmed(self, version: int) -> list[ResourceChanged[R]]:
        """Take in that the feed told of all that there was at a version.

        What was seen ahead of the feed by then, and not by the feed, is as the feed told of it
        last: as it is listed, or gone.
        """
        changes: list[ResourceChanged[R]] = []
        for uid, held in list(self._entries.items()):
            if not held.confirmed_version < held.observed_version <= version:
                continue
            if held.feed_entry is None:
                self.reverted.append((uid, "ghost"))
                changes += self._drop(uid, held.observed_version)
            else:
                self.reverted.append((uid, "changed"))
                fresh = self._make_entry(
                    held.feed_entry, held.confirmed_version, held.confirmed_version, held.feed_entry
                )
                fresh.observed_version = fresh.confirmed_version = held.observed_version
                changes += self._put(fresh)
        return changes

    def _restore(self, tombstone: _Tombstone[R]) -> list[ResourceChanged[R]]:
        """Bring back what the feed lists though it was seen to go."""
        entry = tombstone.feed_entry
        if entry is None or self.uid_by_name(*_name_key(entry)) is not None:
            return []
        self.reverted.append((entry.uid, "missing"))
        return self._put(
            self._make_entry(entry, tombstone.confirmed_version, tombstone.confirmed_version, entry)
        )

    def _name_is_ahead(self, tombstone: _Tombstone[R]) -> bool:
        """Say whether another resource has the name that the feed has not reported yet."""
        entry = tombstone.feed_entry
        uid = None if entry is None else self.uid_by_name(*_name_key(entry))
        if uid is None:
            return False
        return self._entries[uid].confirmed_version < self._entries[uid].observed_version

    def uids_ahead_of_feed(self) -> list[str]:
        """Return the uids of all that was seen or went without a report of the feed."""
        gone = [uid for uid, grave in self._tombstones.items() if grave.ahead_of_feed]
        return [
            uid
            for uid, held in self._entries.items()
            if held.confirmed_version < held.observed_version
        ] + gone

    def mark_feed_lost(self) -> None:
        """Note that the feed broke off: what was seen so far is of an old session."""
        self._session += 1
        self._feed_version = 0
        self.stale = True

    def relist(
        self, entries: Iterable[tuple[R | Unreadable, int]], version: int
    ) -> Iterator[ResourceChanged[R]]:
        """Take in a consistent list, one by one as what that changes is asked for, to the end.

        A list at the start of a broker is long: nothing is kept twice of it.
        """
        listed: dict[str, _CachedResource[R]] = {
            entry.uid: _CachedResource(
                entry=entry,
                version=own,
                observed_version=max(own, version),
                session=0,
                confirmed_version=max(own, version),
                feed_entry=entry,
            )
            for entry, own in entries
        }
        if self._is_store_restored(listed, version):
            self.mark_feed_lost()
        for uid in self._find_missing(listed, version):
            yield from self._drop(uid, version)
        for fresh in listed.values():
            yield from self._apply_listed(fresh, version)
        self._tombstones = {
            uid: grave
            for uid, grave in self._tombstones.items()
            if self._is_deleted_after(uid, version)
        }
        for uid, grave in self._tombstones.items():
            if grave.ahead_of_feed and grave.confirmed_version <= version:
                grave.feed_entry = listed[uid].entry if uid in listed else None
        self._names = {
            name: (at, uid)
            for name, (at, uid) in self._names.items()
            if uid in self._entries or uid in self._tombstones
        }
        self._list_version = version
        self._feed_version = max(self._feed_version, version)
        self.resource_version = (
            self._feed_version if self.stale else max(self.resource_version, self._feed_version)
        )
        self.synced, self.stale = True, False

    def diff(
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
            known = self._entries.get(resource.uid)
            if known is None or (known.entry is not resource and known.entry != resource):
                found.append((own, resource.uid, resource))
            yield None
        for uid, held in list(self._entries.items()):
            if uid not in here and uid not in unreadable and held.observed_version <= version:
                found.append((held.observed_version, uid, None))
            yield None
        yield from sorted(found, key=lambda one: one[:2])

    def _is_store_restored(self, listed: Mapping[str, _CachedResource[R]], version: int) -> bool:
        if version < self._list_version:
            return True
        for uid, fresh in listed.items():
            held = self._entries.get(uid)
            if held is not None and fresh.version < held.version <= version:
                return True
        return False

    def _find_missing(self, listed: Container[str], version: int) -> list[str]:
        return [
            uid
            for uid, held in self._entries.items()
            if uid not in listed
            and (held.observed_version <= version or held.session < self._session)
        ]

    def _apply_listed(self, fresh: _CachedResource[R], version: int) -> list[ResourceChanged[R]]:
        uid = fresh.entry.uid
        held = self._entries.get(uid)
        if held is not None and held.session == self._session and held.version > version:
            if fresh.confirmed_version > held.confirmed_version:
                held.confirmed_version, held.feed_entry = fresh.confirmed_version, fresh.entry
            return []
        if self._is_deleted_after(uid, version) or self._is_replaced(fresh.entry, version):
            return []
        fresh.session = self._session
        return self._put(fresh)

    def _is_replaced(self, entry: R | Unreadable, version: int) -> bool:
        """Say whether another resource of the name was seen after a version, or seen to go."""
        name = _name_key(entry)
        other = self._names.get(name, (0, entry.uid))[1]
        if not name[1] or other == entry.uid:
            return False
        held = self._entries.get(other)
        if held is None:
            return self._is_deleted_after(other, version)
        return held.session == self._session and held.version > version

    def _advance(self, version: int) -> None:
        self._feed_version = max(self._feed_version, version)
        self.resource_version = max(self.resource_version, version)
