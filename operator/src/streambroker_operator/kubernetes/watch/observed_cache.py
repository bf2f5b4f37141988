"""Cache of the observed objects of one kind: turns watch events and lists into board events.

Invariants:

- No I/O and no clock. Observations go in and board events come out. The caller delivers all
  events in order.
- An observation that the board's resource cache would reject as late is rejected here too, so
  both hold the same state.
- A list is never older than what was seen before its request, and never restores a deleted
  object. Otherwise the server returned an old list or the store was restored:
  `ObservedCache.contradicts` reports it. Only a second such list may count as a restore.
- Lists do not overlap: the caller applies or abandons one before it requests the next.
- Only these fields of an object matter: uid, generation, deletion and spec, and from its status
  the accepted generation (if it is an earlier one, has a filter, or may be missing). Any other
  event only advances the board's version and is not parsed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypeAlias

from streambroker_core.board import (
    BoardEvent,
    CaughtUp,
    ExportApplied,
    ExportRemoved,
    FeedAdvanced,
    FeedLost,
    ImportApplied,
    ImportRemoved,
    RuleApplied,
    RuleRemoved,
    Synced,
    Unreadable,
)
from streambroker_core.errors import ManifestError, StreambrokerError
from streambroker_core.model import RULE, AnyKind, Export, Import, PortKey, Resource, Rule
from streambroker_core.wire.encoding.canonical import JsonObject
from streambroker_core.wire.manifests.ports import API_VERSION, read_manifest, size_problem
from streambroker_core.wire.manifests.rules import read_rule_manifest
from streambroker_operator.kubernetes.client.documents import Document, ObjectMetadata
from streambroker_operator.kubernetes.client.http_api import object_at
from streambroker_operator.kubernetes.status.conditions import read_conditions

Entry: TypeAlias = "Export | Import | Rule | Unreadable"

_ObjectName: TypeAlias = "tuple[str, str]"
"""Namespace and name."""

_METADATA = ("name", "namespace", "uid", "creationTimestamp")
_DIGEST_BYTES = 16
_REMOVED: Mapping[AnyKind, Callable[..., BoardEvent]] = {
    "Export": ExportRemoved,
    "Import": ImportRemoved,
    RULE: RuleRemoved,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectRef:
    """Identity of an object and the version of its last change."""

    uid: str
    namespace: str
    name: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedObject:
    """One object as received in a list or an event; `digest` covers all fields that matter."""

    ref: ObjectRef
    digest: bytes
    body: Document


class AcceptedSpec(NamedTuple):
    """The last accepted generation in a status, and its spec."""

    generation: int
    spec: JsonObject


class ListedObject(NamedTuple):
    """Parsed entry of a list, without the body: a list may be long."""

    ref: ObjectRef
    digest: bytes
    entry: Entry


@dataclass(slots=True, kw_only=True)
class _CachedObject:
    """Cached object: version of its last change, and the latest version confirmed for it."""

    version: int
    confirmed_version: int
    digest: bytes
    entry: Entry

    @property
    def name(self) -> _ObjectName:
        """Namespace and name."""
        entry = self.entry
        if isinstance(entry, Unreadable):
            return entry.namespace, entry.name
        return entry.key.namespace, entry.name


class _Tombstone(NamedTuple):
    """Deleted object: version of the deletion, and until which version it had its name."""

    version: int
    name: _ObjectName
    name_until: int


def object_ref(body: Document) -> ObjectRef:
    """Read the identity of an object.

    Raises:
        ValueError: the body is not an object of an API server.
    """
    metadata = body.get("metadata")
    if not isinstance(metadata, Mapping):
        raise ValueError("an object without metadata")
    try:
        return ObjectRef(
            uid=str(metadata["uid"]),
            namespace=str(metadata["namespace"]),
            name=str(metadata["name"]),
            version=int(metadata["resourceVersion"]),
        )
    except KeyError as error:
        raise ValueError(f"an object without metadata.{error.args[0]}") from error


def parse_object(body: Document) -> ObservedObject:
    """Identify an object and compute its digest, without parsing its spec.

    Raises:
        ValueError: the body is not an object of an API server.
    """
    ref, metadata = object_ref(body), body["metadata"]
    generation, earlier = metadata.get("generation"), earlier_generation(body)
    deletion, spec = metadata.get("deletionTimestamp"), body.get("spec")
    matters = (
        generation,
        deletion,
        spec,
        earlier,
        has_unrecorded_generation(body),
        has_accepted_filter(body),
    )
    text = json.dumps(matters, sort_keys=True, separators=(",", ":"))
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES)
    return ObservedObject(ref=ref, digest=digest.digest(), body=body)


def earlier_generation(body: Document) -> AcceptedSpec | None:
    """Return the accepted generation and its spec from the status; None unless it is earlier."""
    accepted, current = object_at(body, "status", "accepted"), body["metadata"].get("generation")
    generation, spec = accepted.get("generation"), accepted.get("spec")
    if not (isinstance(generation, int) and isinstance(current, int) and generation < current):
        return None
    return AcceptedSpec(generation, spec) if isinstance(spec, Mapping) else None


def has_unrecorded_generation(body: Document) -> bool:
    """Return whether an earlier generation may have been accepted without a record in the status.

    A status that reports Accepted=False and not Held=True is trusted: there is none.
    """
    status, generation = object_at(body, "status"), body["metadata"].get("generation")
    if not isinstance(generation, int) or generation < 2:
        return False
    conditions, _ = read_conditions(status, ("Accepted", "Held"))
    states = {condition.type: condition.status for condition in conditions}
    trusted = states.get("Accepted") == "False" and states.get("Held") != "True"
    return not trusted and not isinstance(status.get("accepted"), Mapping)


def has_accepted_filter(body: Document) -> bool:
    """Return whether the status accepts a filter of the current generation.

    The existing Exports decide whether such a filter is valid.
    """
    accepted = object_at(body, "status", "accepted")
    is_current = bool(accepted) and accepted.get("generation") == body["metadata"].get("generation")
    return is_current and bool(object_at(body, "spec").get("filter"))


def read_entry(kind: AnyKind, observed: ObservedObject) -> Entry:
    """Return the resource that an object describes, or why it cannot be read.

    Includes the last accepted generation, if that is an earlier one.
    """
    body = observed.body
    entry = _read_generation(kind, observed, body.get("spec"), body["metadata"].get("generation"))
    accepted = earlier_generation(body)
    if isinstance(entry, Import):
        entry = replace(
            entry,
            earlier_unknown=has_unrecorded_generation(body),
            was_accepted=has_accepted_filter(body),
        )
    elif isinstance(entry, Unreadable) and kind == "Import":
        entry = replace(entry, earlier_unknown=has_unrecorded_generation(body))
    if accepted is None or isinstance(entry, Export):
        return entry
    earlier = _read_generation(kind, observed, accepted.spec, accepted.generation)
    # Only brokers may write the status, but check anyway: the port of an object never changes.
    if isinstance(earlier, Unreadable) or earlier.key != entry.key:
        return entry
    return replace(entry, last_accepted=earlier)  # type: ignore[arg-type]


def _read_generation(
    kind: AnyKind, observed: ObservedObject, spec: object, generation: object
) -> Entry:
    try:
        return parse_resource(kind, observed.body["metadata"], spec, generation)
    except StreambrokerError as error:
        return _to_unreadable(kind, observed, error)


def parse_resource(
    kind: AnyKind, metadata: ObjectMetadata, spec: object, generation: object = None
) -> Resource | Rule:
    """Parse an object of an API server as a resource or a rule.

    `spec` is its current or an earlier one; `generation` is None if unknown.

    Raises:
        StreambrokerError: the object cannot be read, or is too large.
    """
    identity = {name: value for name, value in metadata.items() if name in _METADATA}
    document = {
        "apiVersion": API_VERSION,
        "kind": kind,
        "metadata": {**identity, "generation": generation},
        "spec": spec,
    }
    # Loose: a newer release may default unknown fields in every object. Rejecting them would
    # remove all routes.
    if kind == RULE:
        # Problems of a rule are also reported to its job.
        return read_rule_manifest(document, loose=True)
    entry = read_manifest(document, loose=True)
    problem = size_problem(entry)
    if problem is not None:
        raise problem
    return entry


def _to_unreadable(kind: AnyKind, observed: ObservedObject, error: StreambrokerError) -> Unreadable:
    ref, generation = observed.ref, observed.body["metadata"].get("generation")
    return Unreadable(
        kind=kind,
        uid=ref.uid,
        version=ref.version,
        namespace=ref.namespace,
        name=ref.name,
        generation=generation if isinstance(generation, int) else 1,
        key=_parse_key(ref.namespace, object_at(observed.body, "spec")),
        code=error.code,
        problem=str(error),
        path=error.path if isinstance(error, ManifestError) else "",
    )


def _parse_key(namespace: str, spec: Mapping[str, Any]) -> PortKey | None:
    try:
        return PortKey.parse(f"{namespace}/{spec.get('job')}/{spec.get('pe', 0)}/{spec['port']}")
    except (KeyError, ManifestError):
        return None


class ObservedCache:
    """Cache of all objects of one kind that the feed has seen.

    Attributes:
        synced: whether a list has been applied since the feed was last lost.
        session: number of applied lists; what was seen in an earlier session is void.
        max_version: highest version seen. Read it before requesting a list.
        unlisted: namespaces that the last list was not allowed to read.
    """

    def __init__(self, kind: AnyKind) -> None:
        self.kind = kind
        self.synced = False
        self.session = 0
        self.max_version = 0
        self.unlisted: frozenset[str] = frozenset()
        self._objects: dict[str, _CachedObject] = {}
        self._tombstones: dict[str, _Tombstone] = {}
        # An uncached object of at most this version was deleted or never existed.
        self._floor = -1

    def __len__(self) -> int:
        return len(self._objects)

    # ---- lists -----------------------------------------------------------

    def read_listed(self, observed: ObservedObject) -> ListedObject:
        """Return the list entry of an object; parse the object only if it is new or changed."""
        ref = observed.ref
        cached = self._objects.get(ref.uid)
        if cached is None or cached.digest != observed.digest:
            entry = read_entry(self.kind, observed)
        elif isinstance(cached.entry, Unreadable):
            entry = replace(cached.entry, version=ref.version)
        else:
            entry = cached.entry
        return ListedObject(ref, observed.digest, entry)

    def cached_in(self, namespaces: Container[str], version: int) -> list[ListedObject]:
        """Return the cached objects of namespaces that a list at `version` could not read."""
        entries = []
        for uid, cached in self._objects.items():
            namespace, name = cached.name
            if namespace in namespaces:
                capped = min(cached.version, version)
                ref = ObjectRef(uid=uid, namespace=namespace, name=name, version=capped)
                entries.append(ListedObject(ref, cached.digest, cached.entry))
        return entries

    def contradicts(self, refs: Iterable[ObjectRef], version: int, asked_at: int) -> bool:
        """Return whether a list and the cache cannot belong to one history of versions.

        Then the server returned an old list, or the store was restored from an old copy. `asked_at`
        is the minimum version of a list at the time of the request; at least `max_version`.
        """
        if version < asked_at:
            return True
        names = self._names_in_use(version)
        # Changes in a namespace while it was unreadable contradict nothing.
        judged = (ref for ref in refs if ref.namespace not in self.unlisted)
        return any(self._is_contradicted(ref, version, names) for ref in judged)

    def _is_contradicted(
        self, ref: ObjectRef, version: int, names: Mapping[_ObjectName, int]
    ) -> bool:
        # Two objects cannot have the same name at the same time.
        name_used_until = names.get((ref.namespace, ref.name), -1)
        cached = self._objects.get(ref.uid)
        if cached is not None:
            return (
                name_used_until > cached.confirmed_version
                or ref.version < cached.version <= version
            )
        tombstone = self._tombstones.get(ref.uid)
        if tombstone is not None:
            return tombstone.version <= version
        return ref.version <= max(self._floor, name_used_until)

    def _names_in_use(self, version: int) -> dict[_ObjectName, int]:
        """Return until which version each name was in use, as far as a list can judge."""
        used_until: dict[_ObjectName, int] = {}
        for cached in self._objects.values():
            if cached.confirmed_version <= version:
                used_until[cached.name] = max(
                    cached.confirmed_version, used_until.get(cached.name, -1)
                )
        for tombstone in self._tombstones.values():
            if tombstone.name_until <= version:
                used_until[tombstone.name] = max(
                    tombstone.name_until, used_until.get(tombstone.name, -1)
                )
        return used_until

    def apply_list(
        self, objects: Sequence[ListedObject], version: int, *, restored: bool = False
    ) -> list[BoardEvent]:
        """Apply a complete, consistent list; return the events for the board.

        `restored` means that it contradicts the cache, like another list before it.
        """
        events: list[BoardEvent] = []
        if restored:
            events += self.mark_lost("Restored")
        fresh = not self.synced
        cached = {} if fresh else self._newer_than({listed.ref.uid for listed in objects}, version)
        for ref, digest, entry in objects:
            if ref.uid not in cached and (fresh or self._deleted_version(ref.uid) <= version):
                cached[ref.uid] = _CachedObject(
                    version=ref.version,
                    confirmed_version=max(ref.version, version),
                    digest=digest,
                    entry=entry,
                )
        self._objects = cached
        self._tombstones = {} if fresh else self._tombstones_after(version)
        self._floor = version
        self.max_version = version if fresh else max(self.max_version, version)
        self.synced = True
        self.session += 1
        return [*events, self._synced_event(objects, version)]

    def _newer_than(self, listed_uids: set[str], version: int) -> dict[str, _CachedObject]:
        """Return the objects seen after `version`, which a list of that version cannot judge."""
        return {
            uid: cached
            for uid, cached in self._objects.items()
            if (cached.version if uid in listed_uids else cached.confirmed_version) > version
        }

    def _deleted_version(self, uid: str) -> int:
        tombstone = self._tombstones.get(uid)
        return -1 if tombstone is None else tombstone.version

    def _tombstones_after(self, version: int) -> dict[str, _Tombstone]:
        return {
            uid: tombstone
            for uid, tombstone in self._tombstones.items()
            if tombstone.version > version
        }

    def _synced_event(self, objects: Sequence[ListedObject], version: int) -> Synced:
        listed: list[tuple[Resource | Rule, int]] = []
        unreadable: list[Unreadable] = []
        for ref, _, entry in objects:
            if isinstance(entry, Unreadable):
                unreadable.append(entry)
            else:
                listed.append((entry, ref.version))
        return Synced(
            kind=self.kind, listed=tuple(listed), version=version, unreadable=tuple(unreadable)
        )

    def mark_lost(self, reason: str) -> list[BoardEvent]:
        """Mark the feed as lost; the objects stay until the next list decides."""
        if not self.synced:
            return []
        self.synced = False
        return [FeedLost(kind=self.kind, reason=reason)]

    # ---- events ----------------------------------------------------------

    def apply(self, observed: ObservedObject) -> BoardEvent | None:
        """Apply an observed object; return None if it is late."""
        ref = observed.ref
        self.max_version = max(self.max_version, ref.version)
        cached = self._objects.get(ref.uid)
        if cached is None:
            if ref.version <= self._floor or ref.uid in self._tombstones:
                return None
        elif ref.version <= cached.confirmed_version:
            return None
        elif cached.digest == observed.digest:
            cached.version = cached.confirmed_version = ref.version
            return FeedAdvanced(kind=self.kind, version=ref.version, uid=ref.uid)
        entry = read_entry(self.kind, observed)
        self._objects[ref.uid] = _CachedObject(
            version=ref.version,
            confirmed_version=ref.version,
            digest=observed.digest,
            entry=entry,
        )
        return _applied_event(entry, ref.version)

    def remove(self, ref: ObjectRef) -> BoardEvent | None:
        """Apply a deletion at its own version; return None if it is late."""
        self.max_version = max(self.max_version, ref.version)
        cached = self._objects.get(ref.uid)
        if cached is None:
            if ref.version <= self._floor or ref.uid in self._tombstones:
                return None
        elif ref.version < cached.confirmed_version:
            return None
        self._objects.pop(ref.uid, None)
        name = ref.namespace, ref.name
        self._tombstones[ref.uid] = _Tombstone(ref.version, name, ref.version)
        return self._removed_event(ref.uid, ref.version)

    def apply_bookmark(self, version: int) -> BoardEvent | None:
        """Advance to the version that a watch has reached; return None if it is not newer."""
        if version <= self.max_version:
            return None
        self.max_version = version
        return FeedAdvanced(kind=self.kind, version=version)

    def _removed_event(self, uid: str, version: int) -> BoardEvent:
        return _REMOVED[self.kind](uid=uid, version=version)

    # ---- resync ----------------------------------------------------------

    def apply_resync(self, refs: Iterable[ObjectRef], version: int) -> list[BoardEvent]:
        """Apply a metadata list; return deletions the watch missed.

        An object counts as deleted only if it was not seen after `version`. Its removal gets
        the version up to which it is confirmed, not that of the list: a new object of the same
        name may have a version in between.
        """
        listed_uids = {ref.uid for ref in refs}
        events: list[BoardEvent] = []
        for uid, cached in list(self._objects.items()):
            if uid not in listed_uids and cached.confirmed_version <= version:
                del self._objects[uid]
                self._tombstones[uid] = _Tombstone(version, cached.name, cached.confirmed_version)
                events.append(self._removed_event(uid, cached.confirmed_version))
        return events

    def stale_refs(self, refs: Iterable[ObjectRef]) -> list[ObjectRef]:
        """Return the listed objects that must be fetched: not cached, or at an older version."""
        stale = []
        for ref in refs:
            cached = self._objects.get(ref.uid)
            if cached is None:
                if ref.uid not in self._tombstones:
                    stale.append(ref)
            elif ref.version > cached.version:
                stale.append(ref)
        return stale

    def difference(self, ref: ObjectRef) -> Literal["missing", "changed"]:
        """Return why an object is stale: not cached, or cached at an older version."""
        return "changed" if ref.uid in self._objects else "missing"

    def mark_caught_up(self, version: int) -> list[BoardEvent]:
        """Record that the cache is complete up to `version`; drop tombstones up to it."""
        self._floor = max(self._floor, version)
        self._tombstones = self._tombstones_after(version)
        self.max_version = max(self.max_version, version)
        return [CaughtUp(version=version, kind=self.kind)]


def _applied_event(entry: Entry, version: int) -> BoardEvent:
    if isinstance(entry, Unreadable):
        return entry
    if isinstance(entry, Export):
        return ExportApplied(export=entry, version=version)
    if isinstance(entry, Rule):
        return RuleApplied(rule=entry, version=version)
    return ImportApplied(import_=entry, version=version)
