"""Cache of the newest known state of all resources of one kind.

Events may be late, repeated, out of order or missing. Rules:

- An event is late if the resource is known at the event's version or a higher one, or as deleted.
  It is also late if the last list is at least as new.
- A list is complete at its version: what it omits is deleted, unless seen after that version.
- Two resources of one name cannot coexist: the one with the lower version is deleted.
- Falling versions mean that the store behind the feed was restored. A new session begins; what
  the list omits is deleted, of any version.
- What was seen ahead of the feed, in the response to a write, counts until the feed reaches its
  version. From then on the feed decides: a restored store may have lost the write, and then
  never reports it.

A deletion leaves a tombstone until nothing older can arrive: until the next list, or until the
feed has caught up. The same rules apply to unreadable resources, which are cached but not shown.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Generic

from streambroker_core.board.events import Difference, R, ResourceChanged, Unreadable
from streambroker_core.model import AnyKind, Import, Rule


@dataclass(slots=True, kw_only=True)
class _CachedResource(Generic[R]):
    """A resource and what is known of its version.

    Attributes:
        version: at which it changed last.
        observed_version: up to which `entry` is known to be current.
        confirmed_version: up to which the feed reported it; lower if it was seen ahead of the feed.
        feed_entry: the resource as the feed reported it last; None before that, or if deleted.
        session: in which it was seen.
    """

    entry: R | Unreadable
    version: int
    observed_version: int
    confirmed_version: int
    feed_entry: R | Unreadable | None
    session: int = 0

    @property
    def resource(self) -> R | None:
        """The resource, or None if it is unreadable."""
        return None if isinstance(self.entry, Unreadable) else self.entry

    @property
    def is_ahead(self) -> bool:
        """Whether it was seen ahead of the feed, which has not confirmed it yet."""
        return self.confirmed_version < self.observed_version


@dataclass(slots=True, kw_only=True)
class _Tombstone(Generic[R]):
    """Tombstone of a deleted resource: version, session, and name if known.

    Attributes:
        ahead_of_feed: the feed has not reported the deletion yet.
        feed_entry: the feed's last report of it, at `confirmed_version`; None if there is none.
        is_suspect: the feed has caught up once since, without reporting the deletion.
    """

    version: int
    session: int
    name: tuple[str, str] | None
    ahead_of_feed: bool = False
    feed_entry: R | Unreadable | None = None
    confirmed_version: int = 0
    is_suspect: bool = False


def _name_key(entry: R | Unreadable) -> tuple[str, str]:
    if isinstance(entry, Unreadable):
        return entry.namespace, entry.name
    return entry.key.namespace, entry.name


def _acceptance_flags(entry: R | Unreadable) -> tuple[bool, bool]:
    """Return what an Import's status states of its generations; it does not count as a change."""
    if isinstance(entry, Import):
        return entry.earlier_unknown, entry.was_accepted
    return isinstance(entry, Unreadable) and entry.earlier_unknown, False


def _is_equivalent(left: R | Unreadable, right: R | Unreadable) -> bool:
    """Return whether two entries are equal, ignoring earlier generations in their statuses."""
    if isinstance(left, Import) and isinstance(right, Import):
        return replace(left, last_accepted=None, held=False) == replace(
            right, last_accepted=None, held=False
        )
    if isinstance(left, Rule) and isinstance(right, Rule):
        return replace(left, last_accepted=None) == replace(right, last_accepted=None)
    return left == right


class _Entries(Generic[R]):
    """Resources and tombstones of one kind by uid, and the last holder of each name.

    Attributes:
        session: number of the feed's session.
        reverted: see `ResourceCache`.
    """

    def __init__(self, kind: AnyKind) -> None:
        self._kind = kind
        self.by_uid: dict[str, _CachedResource[R]] = {}
        self.tombstones: dict[str, _Tombstone[R]] = {}
        self.names: dict[tuple[str, str], tuple[int, str]] = {}
        self.session = 0
        self.reverted: list[tuple[str, Difference]] = []

    def uid_by_name(self, name: tuple[str, str]) -> str | None:
        """Return the uid of the resource that has a name."""
        uid = self.names.get(name, (0, ""))[1]
        return uid if uid in self.by_uid else None

    def see(
        self,
        entry: R | Unreadable,
        version: int,
        confirmed_version: int,
        feed_entry: R | Unreadable | None,
    ) -> list[ResourceChanged[R]]:
        """Store a resource as it is at a version."""
        return self.put(
            _CachedResource(
                entry=entry,
                version=version,
                observed_version=version,
                confirmed_version=confirmed_version,
                feed_entry=feed_entry,
            )
        )

    def put(self, fresh: _CachedResource[R]) -> list[ResourceChanged[R]]:
        """Store an entry. If it equals the previous one, that object is kept."""
        uid, fresh.session = fresh.entry.uid, self.session
        cached = self.by_uid.get(uid)
        same = cached is not None and cached.entry == fresh.entry
        if (
            cached is not None
            and same
            and _acceptance_flags(cached.entry) == _acceptance_flags(fresh.entry)
        ):
            fresh.feed_entry = cached.entry if fresh.feed_entry is fresh.entry else fresh.feed_entry
            fresh.entry = cached.entry
        self.by_uid[uid] = fresh
        name = _name_key(fresh.entry)
        if name[1]:
            self.names[name] = (fresh.version, uid)
        old = None if cached is None else cached.resource
        return [] if same else [self.changed(uid, old, fresh.resource, fresh.version)]

    def changed(self, uid: str, old: R | None, new: R | None, version: int) -> ResourceChanged[R]:
        """Return the record of a change."""
        return ResourceChanged(kind=self._kind, uid=uid, old=old, new=new, version=version)

    def drop(
        self, uid: str, version: int, *, reported: int | None = None, ahead_of_feed: bool = False
    ) -> list[ResourceChanged[R]]:
        """Delete a resource at a version; `reported` is the version of the event, if different."""
        cached = self.by_uid.pop(uid, None)
        last = cached or self.tombstones.get(uid)
        name = None if cached is None else _name_key(cached.entry)
        tombstone = self.add_tombstone(uid, version, name)
        if ahead_of_feed and last is not None:
            tombstone.ahead_of_feed = True
            tombstone.feed_entry = last.feed_entry
            tombstone.confirmed_version = last.confirmed_version
        if cached is None:
            return []
        if name is not None and self.names.get(name, (0, ""))[1] == uid:
            self.names[name] = (version, uid)
        at = version if reported is None else reported
        return [self.changed(uid, cached.resource, None, at)]

    def add_tombstone(
        self, uid: str, version: int, name: tuple[str, str] | None = None
    ) -> _Tombstone[R]:
        """Add or replace a tombstone."""
        known = self.tombstones.get(uid)
        if name is None and known is not None:
            name = known.name
        tombstone: _Tombstone[R] = _Tombstone(version=version, session=self.session, name=name)
        self.tombstones[uid] = tombstone
        return tombstone

    def is_deleted_after(self, uid: str, version: int) -> bool:
        """Return whether a resource was deleted after a version, in this session."""
        tombstone = self.tombstones.get(uid)
        return (
            tombstone is not None
            and tombstone.version > version
            and tombstone.session == self.session
        )

    def is_replaced(self, entry: R | Unreadable, version: int) -> bool:
        """Return whether another resource of the name was seen, or deleted, after a version."""
        name = _name_key(entry)
        other = self.names.get(name, (0, entry.uid))[1]
        if not name[1] or other == entry.uid:
            return False
        cached = self.by_uid.get(other)
        if cached is None:
            return self.is_deleted_after(other, version)
        return cached.session == self.session and cached.version > version

    def expire(self, version: int) -> list[ResourceChanged[R]]:
        """Drop tombstones up to a version; restore the resources that the feed still lists."""
        changes: list[ResourceChanged[R]] = []
        for uid, tombstone in list(self.tombstones.items()):
            if tombstone.version > version:
                continue
            if tombstone.ahead_of_feed and (
                not tombstone.is_suspect or self._name_is_ahead(tombstone)
            ):
                # The deletion has no version of its own: the feed may report it after this one.
                tombstone.is_suspect = True
                continue
            del self.tombstones[uid]
            if tombstone.name is not None and self.names.get(tombstone.name, (0, ""))[1] == uid:
                del self.names[tombstone.name]
            entry, at = tombstone.feed_entry, tombstone.confirmed_version
            if entry is not None and self.uid_by_name(_name_key(entry)) is None:
                self.reverted.append((uid, "missing"))
                changes += self.see(entry, at, at, entry)
        return changes

    def _name_is_ahead(self, tombstone: _Tombstone[R]) -> bool:
        """Return whether another resource has the name, ahead of the feed."""
        entry = tombstone.feed_entry
        uid = None if entry is None else self.uid_by_name(_name_key(entry))
        return uid is not None and self.by_uid[uid].is_ahead


class ResourceCache(Generic[R]):
    """All resources of one kind, by uid.

    Attributes:
        resource_version: up to which the feed was processed.
        synced: a list was applied.
        stale: the feed broke off after it.
        reverted: resources that were seen ahead of the feed, but that the feed did not confirm at
            that version, with the difference. The code that reports them empties the list.
    """

    def __init__(self, kind: AnyKind) -> None:
        self._entries: _Entries[R] = _Entries(kind)
        self._by_uid: dict[str, _CachedResource[R]] = self._entries.by_uid
        self.reverted: list[tuple[str, Difference]] = self._entries.reverted
        # A resource that is absent at this version was deleted, or never existed.
        self._list_version = -1
        self._feed_version = 0
        self.resource_version = 0
        self.synced = False
        self.stale = False

    def __iter__(self) -> Iterator[R]:
        every = (cached.resource for cached in self._by_uid.values())
        return (resource for resource in every if resource is not None)

    def __len__(self) -> int:
        return len(self._by_uid)

    def uids(self) -> Iterable[str]:
        """Return all uids, unordered."""
        return self._by_uid.keys()

    def get(self, uid: str) -> R | None:
        """Return a resource, or None."""
        cached = self._by_uid.get(uid)
        return None if cached is None else cached.resource

    def unreadable(self, uid: str) -> Unreadable | None:
        """Return an unreadable resource, or None."""
        cached = self._by_uid.get(uid)
        return cached.entry if cached is not None and isinstance(cached.entry, Unreadable) else None

    def uid_by_name(self, namespace: str, name: str) -> str | None:
        """Return the uid of the resource that a new one of this name would replace."""
        return self._entries.uid_by_name((namespace, name))

    def version_of(self, uid: str) -> int:
        """Return the version at which a resource changed last; 0 if unknown."""
        cached = self._by_uid.get(uid)
        return 0 if cached is None else cached.version

    def newest_version(self) -> int:
        """Return the highest version of an observation or an early deletion; else 0."""
        seen = (cached.observed_version for cached in self._by_uid.values())
        deleted = (one.version for one in self._entries.tombstones.values() if one.ahead_of_feed)
        return max(chain(seen, deleted), default=0)

    def apply(
        self, entry: R | Unreadable, version: int, *, ahead_of_feed: bool = False
    ) -> list[ResourceChanged[R]]:
        """Apply a resource as it was at a version; return the resulting changes.

        With `ahead_of_feed`, the feed has not reached that version yet.
        """
        if not ahead_of_feed:
            self._advance(version)
        cached = self._by_uid.get(entry.uid)
        if cached is not None:
            return self._update(cached, entry, version, ahead_of_feed=ahead_of_feed)
        tombstone = self._entries.tombstones.get(entry.uid)
        if (
            tombstone is not None
            and tombstone.ahead_of_feed
            and not ahead_of_feed
            and version > tombstone.confirmed_version
        ):
            tombstone.feed_entry, tombstone.confirmed_version = entry, version
        if version <= self._list_version or tombstone is not None:
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
            if version <= cached.observed_version:
                return []
            return self._entries.see(entry, version, cached.confirmed_version, cached.feed_entry)
        if version <= cached.confirmed_version:
            return []
        cached.confirmed_version, cached.feed_entry = version, entry
        if version < cached.observed_version:
            return []
        if version == cached.observed_version and not _is_equivalent(entry, cached.entry):
            self.reverted.append((entry.uid, "changed"))
        return self._entries.see(entry, version, version, entry)

    def _admit(
        self, entry: R | Unreadable, version: int, *, ahead_of_feed: bool
    ) -> list[ResourceChanged[R]]:
        changes: list[ResourceChanged[R]] = []
        name = _name_key(entry)
        known = self._entries.names.get(name)
        if name[1] and known is not None:
            if version < known[0]:
                # A restored store may have lost the newer one and still have this one.
                tombstone = self._entries.add_tombstone(entry.uid, version)
                tombstone.ahead_of_feed = True
                if not ahead_of_feed:
                    tombstone.feed_entry, tombstone.confirmed_version = entry, version
                return []
            changes += self._entries.drop(known[1], version, ahead_of_feed=ahead_of_feed)
        confirmed_version, feed_entry = (0, None) if ahead_of_feed else (version, entry)
        return changes + self._entries.see(entry, version, confirmed_version, feed_entry)

    def replace_entry(self, entry: R) -> list[ResourceChanged[R]]:
        """Replace the running generation of a resource, at its known version."""
        cached = self._by_uid[entry.uid]
        old = cached.resource
        cached.feed_entry = entry if cached.feed_entry is cached.entry else cached.feed_entry
        cached.entry = entry
        return [self._entries.changed(entry.uid, old, entry, cached.version)]

    def confirm(self, uid: str | None, version: int) -> list[ResourceChanged[R]]:
        """Record that the feed reached a version, and if `uid` is set, saw that resource there."""
        self._advance(version)
        cached = None if uid is None else self._by_uid.get(uid)
        if cached is None:
            return []
        entry = cached.entry if cached.feed_entry is None else cached.feed_entry
        if version > cached.observed_version and not _is_equivalent(entry, cached.entry):
            self.reverted.append((cached.entry.uid, "changed"))
        return self._update(cached, entry, version, ahead_of_feed=False)

    def remove(
        self, uid: str, version: int, *, ahead_of_feed: bool = False
    ) -> list[ResourceChanged[R]]:
        """Apply a deletion at a version; return the resulting changes.

        With `ahead_of_feed`, the feed has not reported the deletion yet. The version is then the
        last one at which the resource is known.
        """
        if not ahead_of_feed:
            self._advance(version)
        cached = self._by_uid.get(uid)
        if cached is None:
            if version > self._list_version or uid in self._entries.tombstones:
                self._entries.add_tombstone(uid, version)
            return []
        at = max(version, cached.observed_version) if ahead_of_feed else version
        if at >= cached.observed_version:
            return self._entries.drop(uid, at, reported=version, ahead_of_feed=ahead_of_feed)
        if version >= cached.confirmed_version:
            cached.confirmed_version, cached.feed_entry = version, None
        return []

    def expire_tombstones(self, version: int) -> list[ResourceChanged[R]]:
        """Drop tombstones up to a version, as nothing older can arrive; return the changes.

        A resource that the feed still lists is restored.
        """
        self._list_version = max(self._list_version, version)
        return self._entries.expire(version)

    def revert_unconfirmed(self, version: int) -> list[ResourceChanged[R]]:
        """Handle that the feed has reported everything up to a version.

        What was seen ahead of the feed by then and not confirmed reverts to the feed's last
        report: the listed state, or deleted.
        """
        changes: list[ResourceChanged[R]] = []
        for uid, cached in list(self._by_uid.items()):
            if not cached.is_ahead or cached.observed_version > version:
                continue
            if cached.feed_entry is None:
                self.reverted.append((uid, "ghost"))
                changes += self._entries.drop(uid, cached.observed_version, reported=version)
            else:
                self.reverted.append((uid, "changed"))
                fresh = replace(cached, entry=cached.feed_entry, version=cached.confirmed_version)
                fresh.confirmed_version = cached.observed_version
                changes += self._entries.put(fresh)
        return changes

    def mark_feed_lost(self) -> None:
        """Begin a new session: the feed broke off."""
        self._entries.session += 1
        self._feed_version = 0
        self.stale = True

    def relist(
        self, entries: Iterable[tuple[R | Unreadable, int]], version: int
    ) -> Iterator[ResourceChanged[R]]:
        """Apply a consistent list lazily; the caller must exhaust the iterator.

        The first list of a broker is long, so changes are not collected.
        """
        listed: dict[str, _CachedResource[R]] = {
            entry.uid: _CachedResource(
                entry=entry,
                version=own,
                observed_version=max(own, version),
                confirmed_version=max(own, version),
                feed_entry=entry,
            )
            for entry, own in entries
        }
        if self._is_store_restored(listed, version):
            self.mark_feed_lost()
        store = self._entries
        for uid in self._find_missing(listed, version):
            yield from store.drop(uid, version)
        for fresh in listed.values():
            yield from self._apply_listed(fresh, version)
        store.tombstones = {
            uid: tombstone
            for uid, tombstone in store.tombstones.items()
            if store.is_deleted_after(uid, version)
        }
        for uid, tombstone in store.tombstones.items():
            if tombstone.ahead_of_feed and tombstone.confirmed_version <= version:
                tombstone.feed_entry = listed[uid].entry if uid in listed else None
        store.names = {
            name: (at, uid)
            for name, (at, uid) in store.names.items()
            if uid in store.by_uid or uid in store.tombstones
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
        """Yield the differences between a list and the cache, oldest first; None for each match.

        A difference is (version, uid, resource). For a deleted resource that is its last observed
        version and None. The cache is not changed, and may change between two steps.
        """
        listed_uids: set[str] = set()
        differences: list[tuple[int, str, R | None]] = []
        for resource, own in resources:
            listed_uids.add(resource.uid)
            known = self._by_uid.get(resource.uid)
            if known is None or (known.entry is not resource and known.entry != resource):
                differences.append((own, resource.uid, resource))
            yield None
        for uid, cached in list(self._by_uid.items()):
            if (
                uid not in listed_uids
                and uid not in unreadable
                and cached.observed_version <= version
            ):
                differences.append((cached.observed_version, uid, None))
            yield None
        yield from sorted(differences, key=lambda one: one[:2])

    def _is_store_restored(self, listed: Mapping[str, _CachedResource[R]], version: int) -> bool:
        pairs = ((fresh, self._by_uid.get(uid)) for uid, fresh in listed.items())
        return version < self._list_version or any(
            cached is not None and fresh.version < cached.version <= version
            for fresh, cached in pairs
        )

    def _find_missing(self, listed: Container[str], version: int) -> list[str]:
        return [
            uid
            for uid, cached in self._by_uid.items()
            if uid not in listed
            and (cached.observed_version <= version or cached.session < self._entries.session)
        ]

    def _apply_listed(self, fresh: _CachedResource[R], version: int) -> list[ResourceChanged[R]]:
        store, uid = self._entries, fresh.entry.uid
        cached = self._by_uid.get(uid)
        if cached is not None and cached.session == store.session and cached.version > version:
            if fresh.confirmed_version > cached.confirmed_version:
                cached.confirmed_version, cached.feed_entry = fresh.confirmed_version, fresh.entry
            return []
        if store.is_deleted_after(uid, version) or store.is_replaced(fresh.entry, version):
            return []
        return store.put(fresh)

    def _advance(self, version: int) -> None:
        self._feed_version = max(self._feed_version, version)
        self.resource_version = max(self.resource_version, version)
