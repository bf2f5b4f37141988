"""Cache of the newest known state of all resources of one kind.

Events may be late, repeated, out of order or missing. Rules:

- An event is late if the resource is known at the event's version or a higher one, or as deleted.
  It is also late if the last list is at least as new.
- A list is complete at its version: what it omits is deleted, unless seen after that version.
- Two resources of one name cannot coexist: the one with the lower version is deleted.
- Falling versions mean that the store behind the feed was restored. A new session begins; what
  the list omits is deleted, whatever its version was.
- What was seen ahead of the feed, in the response to a write, counts until the feed reaches its
  version. From then on the feed decides: a restored store may have lost the write, and then
  never reports it.

A deletion leaves a tombstone until nothing older can arrive: until the next list, or until the
feed has caught up. The same rules apply to unreadable resources, which are cached but not shown.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Generic

from streambroker_core.board.events import Difference, R, ResourceChanged, Unreadable
from streambroker_core.model import AnyKind, Import, Rule


@dataclass(slots=True, kw_only=True)
class _CachedResource(Generic[R]):
    """A resource and what is known of its version.

    Attributes:
        version: at which it changed last.
        observed_version: up to which `entry` is known to be current.
        session: in which it was seen.
        confirmed_version: up to which the feed reported it; lower if it was seen ahead of the feed.
        feed_entry: the resource as the feed reported it last; None before that, or if deleted.
    """

    entry: R | Unreadable
    version: int
    observed_version: int
    session: int
    confirmed_version: int
    feed_entry: R | Unreadable | None

    @property
    def resource(self) -> R | None:
        """The resource, or None if it is unreadable."""
        return None if isinstance(self.entry, Unreadable) else self.entry


class _Tombstone(Generic[R]):
    """Tombstone of a deleted resource: version, session, and name if known.

    Attributes:
        ahead_of_feed: the feed has not reported the deletion yet.
        feed_entry: the feed's last report of it, at `confirmed_version`; None if there is none.
        is_suspect: the feed has caught up once since, without reporting the deletion.
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


class ResourceCache(Generic[R]):
    """All resources of one kind, by uid.

    `reverted` lists resources that were seen ahead of the feed, but that the feed did not confirm
    at that version, with the difference. The code that reports them empties the list.
    """

    def __init__(self, kind: AnyKind) -> None:
        self._kind = kind
        self._entries: dict[str, _CachedResource[R]] = {}
        self._tombstones: dict[str, _Tombstone[R]] = {}
        self._names: dict[tuple[str, str], tuple[int, str]] = {}
        self._session = 0
        # A resource that is absent at this version was deleted, or never existed.
        self._list_version = -1
        self._feed_version = 0
        self.resource_version = 0
        self.synced = False
        self.stale = False
        self.reverted: list[tuple[str, Difference]] = []

    def __iter__(self) -> Iterator[R]:
        every = (cached.resource for cached in self._entries.values())
        return (resource for resource in every if resource is not None)

    def __len__(self) -> int:
        return len(self._entries)

    def uids(self) -> Iterable[str]:
        """Return all uids, unordered."""
        return self._entries.keys()

    def get(self, uid: str) -> R | None:
        """Return a resource, or None."""
        cached = self._entries.get(uid)
        if cached is None or isinstance(cached.entry, Unreadable):
            return None
        return cached.entry

    def unreadable(self, uid: str) -> Unreadable | None:
        """Return an unreadable resource, or None."""
        cached = self._entries.get(uid)
        return cached.entry if cached is not None and isinstance(cached.entry, Unreadable) else None

    def uid_by_name(self, namespace: str, name: str) -> str | None:
        """Return the uid of the resource that a new one of this name would replace."""
        uid = self._names.get((namespace, name), (0, ""))[1]
        return uid if uid in self._entries else None

    def version_of(self, uid: str) -> int:
        """Return the version at which a resource changed last; 0 if unknown."""
        cached = self._entries.get(uid)
        return 0 if cached is None else cached.version

    def newest_version(self) -> int:
        """Return the highest version of an observation or an early deletion; else 0."""
        seen = max((cached.observed_version for cached in self._entries.values()), default=0)
        early = (
            tombstone.version for tombstone in self._tombstones.values() if tombstone.ahead_of_feed
        )
        return max(seen, max(early, default=0))

    def apply(
        self, entry: R | Unreadable, version: int, *, ahead_of_feed: bool = False
    ) -> list[ResourceChanged[R]]:
        """Apply a resource as it was at a version; return the resulting changes.

        With `ahead_of_feed`, the feed has not reached that version yet.
        """
        if not ahead_of_feed:
            self._advance(version)
        cached = self._entries.get(entry.uid)
        if cached is not None:
            return self._update(cached, entry, version, ahead_of_feed=ahead_of_feed)
        tombstone = self._tombstones.get(entry.uid)
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
        """Replace the running generation of a resource, at its known version."""
        cached = self._entries[entry.uid]
        old = cached.resource
        cached.feed_entry = entry if cached.feed_entry is cached.entry else cached.feed_entry
        cached.entry = entry
        return [self._changed(entry.uid, old, entry, cached.version)]

    def _changed(self, uid: str, old: R | None, new: R | None, version: int) -> ResourceChanged[R]:
        return ResourceChanged(kind=self._kind, uid=uid, old=old, new=new, version=version)

    def confirm(self, uid: str | None, version: int) -> list[ResourceChanged[R]]:
        """Record that the feed reached a version, and if `uid` is set, saw that resource there."""
        self._advance(version)
        cached = None if uid is None else self._entries.get(uid)
        if cached is None:
            return []
        entry = cached.entry if cached.feed_entry is None else cached.feed_entry
        if version > cached.observed_version and not _is_equivalent(entry, cached.entry):
            self.reverted.append((cached.entry.uid, "changed"))
        return self._update(cached, entry, version, ahead_of_feed=False)

    def _admit(
        self, entry: R | Unreadable, version: int, *, ahead_of_feed: bool
    ) -> list[ResourceChanged[R]]:
        changes: list[ResourceChanged[R]] = []
        name = _name_key(entry)
        known = self._names.get(name)
        if name[1] and known is not None:
            if version < known[0]:
                # A restored store may have lost the newer one and still have this one.
                tombstone = self._add_tombstone(entry.uid, version)
                tombstone.ahead_of_feed = True
                if not ahead_of_feed:
                    tombstone.feed_entry, tombstone.confirmed_version = entry, version
                return []
            changes += self._drop(known[1], version, ahead_of_feed=ahead_of_feed)
        confirmed_version, feed_entry = (0, None) if ahead_of_feed else (version, entry)
        return changes + self._put(self._make_entry(entry, version, confirmed_version, feed_entry))

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
        """Store an entry. If it equals the previous one, that object is kept."""
        uid = fresh.entry.uid
        cached = self._entries.get(uid)
        same = cached is not None and cached.entry == fresh.entry
        if (
            cached is not None
            and same
            and _acceptance_flags(cached.entry) == _acceptance_flags(fresh.entry)
        ):
            fresh.feed_entry = cached.entry if fresh.feed_entry is fresh.entry else fresh.feed_entry
            fresh.entry = cached.entry
        self._entries[uid] = fresh
        name = _name_key(fresh.entry)
        if name[1]:
            self._names[name] = (fresh.version, uid)
        old = None if cached is None else cached.resource
        return [] if same else [self._changed(uid, old, fresh.resource, fresh.version)]

    def remove(
        self, uid: str, version: int, *, ahead_of_feed: bool = False
    ) -> list[ResourceChanged[R]]:
        """Apply a deletion at a version; return the resulting changes.

        With `ahead_of_feed`, the feed has not reported the deletion yet. The version is then the
        last one at which the resource is known.
        """
        if not ahead_of_feed:
            self._advance(version)
        cached = self._entries.get(uid)
        if cached is None:
            if version > self._list_version or uid in self._tombstones:
                self._add_tombstone(uid, version)
            return []
        at = max(version, cached.observed_version) if ahead_of_feed else version
        if at >= cached.observed_version:
            return self._drop(uid, at, reported=version, ahead_of_feed=ahead_of_feed)
        if version >= cached.confirmed_version:
            cached.confirmed_version, cached.feed_entry = version, None
        return []

    def _drop(
        self, uid: str, version: int, *, reported: int | None = None, ahead_of_feed: bool = False
    ) -> list[ResourceChanged[R]]:
        """Delete a resource at a version; `reported` is the version of the event, if different."""
        cached = self._entries.pop(uid, None)
        last = cached or self._tombstones.get(uid)
        tombstone = self._add_tombstone(
            uid, version, None if cached is None else _name_key(cached.entry)
        )
        if ahead_of_feed and last is not None:
            tombstone.ahead_of_feed = True
            tombstone.feed_entry, tombstone.confirmed_version = (
                last.feed_entry,
                last.confirmed_version,
            )
        if cached is None:
            return []
        name = _name_key(cached.entry)
        if self._names.get(name, (0, ""))[1] == uid:
            self._names[name] = (version, uid)
        at = version if reported is None else reported
        return [self._changed(uid, cached.resource, None, at)]

    def _add_tombstone(
        self, uid: str, version: int, name: tuple[str, str] | None = None
    ) -> _Tombstone[R]:
        known = self._tombstones.get(uid)
        if name is None and known is not None:
            name = known.name
        tombstone = self._tombstones[uid] = _Tombstone(version, self._session, name)
        return tombstone

    def _is_deleted_after(self, uid: str, version: int) -> bool:
        tombstone = self._tombstones.get(uid)
        return (
            tombstone is not None
            and tombstone.version > version
            and tombstone.session == self._session
        )

    def expire_tombstones(self, version: int) -> list[ResourceChanged[R]]:
        """Drop tombstones up to a version, as nothing older can arrive; return the changes.

        A resource that the feed still lists is restored.
        """
        changes: list[ResourceChanged[R]] = []
        self._list_version = max(self._list_version, version)
        for uid, tombstone in list(self._tombstones.items()):
            if tombstone.version > version:
                continue
            if tombstone.ahead_of_feed and (
                not tombstone.is_suspect or self._name_is_ahead(tombstone)
            ):
                # The deletion has no version of its own: the feed may report it after this one.
                tombstone.is_suspect = True
                continue
            del self._tombstones[uid]
            if tombstone.name is not None and self._names.get(tombstone.name, (0, ""))[1] == uid:
                del self._names[tombstone.name]
            changes += self._restore(tombstone)
        return changes

    def revert_unconfirmed(self, version: int) -> list[ResourceChanged[R]]:
        """Handle that the feed has reported everything up to a version.

        What was seen ahead of the feed by then and not confirmed reverts to the feed's last
        report: the listed state, or deleted.
        """
        changes: list[ResourceChanged[R]] = []
        for uid, cached in list(self._entries.items()):
            if not cached.confirmed_version < cached.observed_version <= version:
                continue
            if cached.feed_entry is None:
                self.reverted.append((uid, "ghost"))
                changes += self._drop(uid, cached.observed_version, reported=version)
            else:
                self.reverted.append((uid, "changed"))
                fresh = self._make_entry(
                    cached.feed_entry,
                    cached.confirmed_version,
                    cached.confirmed_version,
                    cached.feed_entry,
                )
                fresh.observed_version = fresh.confirmed_version = cached.observed_version
                changes += self._put(fresh)
        return changes

    def _restore(self, tombstone: _Tombstone[R]) -> list[ResourceChanged[R]]:
        """Restore a resource that the feed lists although its deletion was seen."""
        entry = tombstone.feed_entry
        if entry is None or self.uid_by_name(*_name_key(entry)) is not None:
            return []
        self.reverted.append((entry.uid, "missing"))
        return self._put(
            self._make_entry(entry, tombstone.confirmed_version, tombstone.confirmed_version, entry)
        )

    def _name_is_ahead(self, tombstone: _Tombstone[R]) -> bool:
        """Return whether another resource has the name, ahead of the feed."""
        entry = tombstone.feed_entry
        uid = None if entry is None else self.uid_by_name(*_name_key(entry))
        if uid is None:
            return False
        return self._entries[uid].confirmed_version < self._entries[uid].observed_version

    def uids_ahead_of_feed(self) -> list[str]:
        """Return the uids of all that changed or were deleted ahead of the feed."""
        deleted = [uid for uid, tombstone in self._tombstones.items() if tombstone.ahead_of_feed]
        return [
            uid
            for uid, cached in self._entries.items()
            if cached.confirmed_version < cached.observed_version
        ] + deleted

    def mark_feed_lost(self) -> None:
        """Begin a new session: the feed broke off."""
        self._session += 1
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
            uid: tombstone
            for uid, tombstone in self._tombstones.items()
            if self._is_deleted_after(uid, version)
        }
        for uid, tombstone in self._tombstones.items():
            if tombstone.ahead_of_feed and tombstone.confirmed_version <= version:
                tombstone.feed_entry = listed[uid].entry if uid in listed else None
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
        """Yield the differences between a list and the cache, oldest first; None for each match.

        A difference is (version, uid, resource). For a deleted resource that is its last observed
        version and None. The cache is not changed, and may change between two steps.
        """
        listed_uids: set[str] = set()
        differences: list[tuple[int, str, R | None]] = []
        for resource, own in resources:
            listed_uids.add(resource.uid)
            known = self._entries.get(resource.uid)
            if known is None or (known.entry is not resource and known.entry != resource):
                differences.append((own, resource.uid, resource))
            yield None
        for uid, cached in list(self._entries.items()):
            if (
                uid not in listed_uids
                and uid not in unreadable
                and cached.observed_version <= version
            ):
                differences.append((cached.observed_version, uid, None))
            yield None
        yield from sorted(differences, key=lambda one: one[:2])

    def _is_store_restored(self, listed: Mapping[str, _CachedResource[R]], version: int) -> bool:
        if version < self._list_version:
            return True
        for uid, fresh in listed.items():
            cached = self._entries.get(uid)
            if cached is not None and fresh.version < cached.version <= version:
                return True
        return False

    def _find_missing(self, listed: Container[str], version: int) -> list[str]:
        return [
            uid
            for uid, cached in self._entries.items()
            if uid not in listed
            and (cached.observed_version <= version or cached.session < self._session)
        ]

    def _apply_listed(self, fresh: _CachedResource[R], version: int) -> list[ResourceChanged[R]]:
        uid = fresh.entry.uid
        cached = self._entries.get(uid)
        if cached is not None and cached.session == self._session and cached.version > version:
            if fresh.confirmed_version > cached.confirmed_version:
                cached.confirmed_version, cached.feed_entry = fresh.confirmed_version, fresh.entry
            return []
        if self._is_deleted_after(uid, version) or self._is_replaced(fresh.entry, version):
            return []
        fresh.session = self._session
        return self._put(fresh)

    def _is_replaced(self, entry: R | Unreadable, version: int) -> bool:
        """Return whether another resource of the name was seen, or deleted, after a version."""
        name = _name_key(entry)
        other = self._names.get(name, (0, entry.uid))[1]
        if not name[1] or other == entry.uid:
            return False
        cached = self._entries.get(other)
        if cached is None:
            return self._is_deleted_after(other, version)
        return cached.session == self._session and cached.version > version

    def _advance(self, version: int) -> None:
        self._feed_version = max(self._feed_version, version)
        self.resource_version = max(self.resource_version, version)
