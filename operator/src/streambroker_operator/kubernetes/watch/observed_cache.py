"""What an event, a list or a sweep means for what is known of one kind.

Rule 1: nothing here does I/O or reads a clock. What was seen goes in, events for the
board come out, and the caller delivers all of them in their order.
Rule 2: what is late by the rules of the board's shelf is late here too, so that both
always know the same.
Rule 3: a list cannot be older than what was seen before it was asked for, nor bring back
what had gone before. If it does, somebody served an old list, or the store was restored;
`ObservedCache.contradicts` says so, and only a second such list may be taken for a restore.
Lists take turns: none is asked for before the last one was taken in or given up.
Rule 4: what matters of a resource are uid, generation, deletion and spec, and the generation
that its status accepted last while that is an earlier one, or has a filter, or may be missing. An
event that changes none of them moves the board's point and is not even parsed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Container, Iterable, Mapping, Sequence
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
from streambroker_core.wire.manifests.ports import API_VERSION, read_manifest, size_problem
from streambroker_core.wire.manifests.rules import read_rule_manifest
from streambroker_operator.kubernetes.status.conditions import read_conditions

Entry: TypeAlias = "Export | Import | Rule | Unreadable"

_ObjectName: TypeAlias = "tuple[str, str]"
"""Namespace and name."""

_METADATA = ("name", "namespace", "uid", "creationTimestamp")
_DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectRef:
    """That an object exists, and at which version it was changed last."""

    uid: str
    namespace: str
    name: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedObject:
    """One object as a list or an event showed it.

    Attributes:
        ref: which it is, at which version.
        digest: a digest of all that matters of it.
        body: the object.
    """

    ref: ObjectRef
    digest: bytes
    body: Mapping[str, Any]


class ListedObject(NamedTuple):
    """One object of a list, read; its body is not kept, for a list may be long."""

    ref: ObjectRef
    digest: bytes
    entry: Entry


@dataclass(slots=True, kw_only=True)
class _CachedObject:
    """What is known of one object: up to which version that holds, and since when."""

    version: int
    confirmed_version: int
    digest: bytes
    entry: Entry

    @property
    def name(self) -> _ObjectName:
        """Which name it has, in which namespace."""
        entry = self.entry
        if isinstance(entry, Unreadable):
            return entry.namespace, entry.name
        return entry.key.namespace, entry.name


class _Tombstone(NamedTuple):
    """That an object went: at which version that was known, and until when it had its name."""

    version: int
    name: _ObjectName
    name_until: int


def object_ref(body: Mapping[str, Any]) -> ObjectRef:
    """Read which object a body is.

    Raises:
        ValueError: it is no object of an API server.
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


def parse_object(body: Mapping[str, Any]) -> ObservedObject:
    """Read an object as far as it takes to see whether it matters.

    Raises:
        ValueError: it is no object of an API server.
    """
    mark, metadata = object_ref(body), body["metadata"]
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
    return ObservedObject(ref=mark, digest=digest.digest(), body=body)


def earlier_generation(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the generation that a status accepted last, with its spec; None if it is current."""
    status = body.get("status")
    accepted = status.get("accepted") if isinstance(status, Mapping) else None
    if not isinstance(accepted, Mapping) or not isinstance(accepted.get("spec"), Mapping):
        return None
    at, now = accepted.get("generation"), body["metadata"].get("generation")
    older = isinstance(at, int) and isinstance(now, int) and at < now
    return accepted if older else None


def has_unrecorded_generation(body: Mapping[str, Any]) -> bool:
    """Say whether a generation before this one may have been accepted that no status has.

    A status that says that nothing is accepted, and nothing held, is believed.
    """
    status, generation = body.get("status"), body["metadata"].get("generation")
    if not isinstance(generation, int) or generation < 2:
        return False
    if not isinstance(status, Mapping):
        return True
    conditions, _ = read_conditions(status, ("Accepted", "Held"))
    states = {condition.type: condition.status for condition in conditions}
    believed = states.get("Accepted") == "False" and states.get("Held") != "True"
    return not believed and not isinstance(status.get("accepted"), Mapping)


def has_accepted_filter(body: Mapping[str, Any]) -> bool:
    """Say whether a status has accepted a filter that is judged by what Exports there are."""
    spec, status = body.get("spec"), body.get("status")
    if not isinstance(spec, Mapping) or not spec.get("filter") or not isinstance(status, Mapping):
        return False
    accepted, generation = status.get("accepted"), body["metadata"].get("generation")
    return isinstance(accepted, Mapping) and accepted.get("generation") == generation


def read_entry(kind: AnyKind, observed: ObservedObject) -> Entry:
    """Return the resource that an object is, or why it cannot be read.

    Each with the generation that was accepted last, if that is an earlier one.
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
    earlier = _read_generation(kind, observed, accepted["spec"], accepted["generation"])
    # Nobody but brokers may write there, and still: a port is one for the life of an object.
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
    kind: AnyKind, metadata: Mapping[str, Any], spec: object, generation: object = None
) -> Resource | Rule:
    """Return the resource that an object of an API server is.

    Args:
        kind: of the object.
        metadata: of the object.
        spec: of the object, or one that it had.
        generation: which one that is; None where it is not known.

    Raises:
        StreambrokerError: it cannot be read, or is too large.
    """
    document: dict[str, Any] = {
        "apiVersion": API_VERSION,
        "kind": kind,
        "metadata": {name: metadata[name] for name in _METADATA if name in metadata},
    }
    if generation is not None:
        document["metadata"]["generation"] = generation
    if spec is not None:
        document["spec"] = spec
    # A newer release may have defined fields that are not known here, with defaults in every
    # object: who refused those would take all routes down.
    if kind == RULE:
        # What is wrong with a rule is reported to its job, too.
        return read_rule_manifest(document, loose=True)
    entry = read_manifest(document, loose=True)
    problem = size_problem(entry)
    if problem is not None:
        raise problem
    return entry


def _to_unreadable(kind: AnyKind, observed: ObservedObject, error: StreambrokerError) -> Unreadable:
    mark, generation = observed.ref, observed.body["metadata"].get("generation")
    return Unreadable(
        kind=kind,
        uid=mark.uid,
        version=mark.version,
        namespace=mark.namespace,
        name=mark.name,
        generation=generation if isinstance(generation, int) else 1,
        key=_parse_key(mark.namespace, observed.body.get("spec")),
        code=error.code,
        problem=str(error),
        path=error.path if isinstance(error, ManifestError) else "",
    )


def _parse_key(namespace: str, spec: object) -> PortKey | None:
    if not isinstance(spec, Mapping):
        return None
    try:
        return PortKey.parse(f"{namespace}/{spec.get('job')}/{spec.get('pe', 0)}/{spec['port']}")
    except (KeyError, ManifestError):
        return None


class ObservedCache:
    """All objects of one kind, as far as the feed knows them.

    Args:
        kind: which.

    Attributes:
        synced: whether a list has been taken in since the feed was lost last.
        session: how many lists were taken in; what was seen in an earlier session is void.
        max_version: the highest version seen. Note it before asking for a list.
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
        # Whoever is not known at this version is gone, or never was.
        self._floor = -1

    def __len__(self) -> int:
        return len(self._objects)

    # ---- lists -----------------------------------------------------------

    def read_listed(self, observed: ObservedObject) -> ListedObject:
        """Return what a listed object is; it is parsed only if it is not known as it is."""
        mark = observed.ref
        known = self._objects.get(mark.uid)
        if known is None or known.digest != observed.digest:
            entry = read_entry(self.kind, observed)
        elif isinstance(known.entry, Unreadable):
            entry = replace(known.entry, version=mark.version)
        else:
            entry = known.entry
        return ListedObject(mark, observed.digest, entry)

    def cached_in(self, namespaces: Container[str], version: int) -> list[ListedObject]:
        """Return what is known of namespaces that a list of a version was not allowed to read."""
        found = []
        for uid, known in self._objects.items():
            namespace, name = known.name
            if namespace in namespaces:
                at = min(known.version, version)
                mark = ObjectRef(uid=uid, namespace=namespace, name=name, version=at)
                found.append(ListedObject(mark, known.digest, known.entry))
        return found

    def contradicts(self, refs: Iterable[ObjectRef], version: int, asked_at: int) -> bool:
        """Say whether a list and what is known cannot both be true of one course of versions.

        Either somebody answered with an old list, or the store was restored from an old copy.

        Args:
            refs: what is listed.
            version: the version of the list.
            asked_at: what a list had to reach at the time of the question; at least `high`.
        """
        if version < asked_at:
            return True
        names = self._names_in_use(version)
        # What happened in a namespace while it could not be read contradicts nothing.
        judged = (mark for mark in refs if mark.namespace not in self.unlisted)
        return any(self._is_contradicted(mark, version, names) for mark in judged)

    def _is_contradicted(
        self, ref: ObjectRef, version: int, names: Mapping[_ObjectName, int]
    ) -> bool:
        # Two objects cannot have had one name at the same time.
        held = names.get((ref.namespace, ref.name), -1)
        known = self._objects.get(ref.uid)
        if known is not None:
            return held > known.confirmed_version or ref.version < known.version <= version
        gone = self._tombstones.get(ref.uid)
        if gone is not None:
            return gone.version <= version
        return ref.version <= max(self._floor, held)

    def _names_in_use(self, version: int) -> dict[_ObjectName, int]:
        """Return until which version each name was held, of what a list can judge."""
        held: dict[_ObjectName, int] = {}
        for known in self._objects.values():
            if known.confirmed_version <= version:
                held[known.name] = max(known.confirmed_version, held.get(known.name, -1))
        for gone in self._tombstones.values():
            if gone.name_until <= version:
                held[gone.name] = max(gone.name_until, held.get(gone.name, -1))
        return held

    def apply_list(
        self, objects: Sequence[ListedObject], version: int, *, restored: bool = False
    ) -> list[BoardEvent]:
        """Take in a whole, consistent list; return what to tell the board.

        Args:
            objects: what `read_entry` made of each object.
            version: the version of the list.
            restored: it contradicts what is known, and so did another one before it.
        """
        events: list[BoardEvent] = []
        if restored:
            events += self.mark_lost("Restored")
        fresh = not self.synced
        known = {} if fresh else self._newer_than({listed.ref.uid for listed in objects}, version)
        for mark, print_, entry in objects:
            if mark.uid not in known and (fresh or self._deleted_version(mark.uid) <= version):
                known[mark.uid] = _CachedObject(
                    version=mark.version,
                    confirmed_version=max(mark.version, version),
                    digest=print_,
                    entry=entry,
                )
        self._objects = known
        self._tombstones = {} if fresh else self._tombstones_after(version)
        self._floor = version
        self.max_version = version if fresh else max(self.max_version, version)
        self.synced = True
        self.session += 1
        return [*events, self._synced_event(objects, version)]

    def _newer_than(self, listed_uids: set[str], version: int) -> dict[str, _CachedObject]:
        """Return what was seen after a version, and so is not for a list of it to judge."""
        return {
            uid: known
            for uid, known in self._objects.items()
            if (known.version if uid in listed_uids else known.confirmed_version) > version
        }

    def _deleted_version(self, uid: str) -> int:
        gone = self._tombstones.get(uid)
        return -1 if gone is None else gone.version

    def _tombstones_after(self, version: int) -> dict[str, _Tombstone]:
        return {uid: gone for uid, gone in self._tombstones.items() if gone.version > version}

    def _synced_event(self, objects: Sequence[ListedObject], version: int) -> Synced:
        listed: list[tuple[Resource | Rule, int]] = []
        unreadable: list[Unreadable] = []
        for mark, _, entry in objects:
            if isinstance(entry, Unreadable):
                unreadable.append(entry)
            else:
                listed.append((entry, mark.version))
        return Synced(
            kind=self.kind, listed=tuple(listed), version=version, unreadable=tuple(unreadable)
        )

    def mark_lost(self, reason: str) -> list[BoardEvent]:
        """Take in that the feed broke off; all stays until the next list decides."""
        if not self.synced:
            return []
        self.synced = False
        return [FeedLost(kind=self.kind, reason=reason)]

    # ---- events ----------------------------------------------------------

    def apply(self, observed: ObservedObject) -> BoardEvent | None:
        """Take in that an object was seen; None if that is late."""
        mark = observed.ref
        self.max_version = max(self.max_version, mark.version)
        known = self._objects.get(mark.uid)
        if known is None:
            if mark.version <= self._floor or mark.uid in self._tombstones:
                return None
        elif mark.version <= known.confirmed_version:
            return None
        elif known.digest == observed.digest:
            known.version = known.confirmed_version = mark.version
            return FeedAdvanced(kind=self.kind, version=mark.version, uid=mark.uid)
        entry = read_entry(self.kind, observed)
        self._objects[mark.uid] = _CachedObject(
            version=mark.version,
            confirmed_version=mark.version,
            digest=observed.digest,
            entry=entry,
        )
        return _applied_event(entry, mark.version)

    def remove(self, ref: ObjectRef) -> BoardEvent | None:
        """Take in that an object went, at the deletion's own version; None if that is late."""
        self.max_version = max(self.max_version, ref.version)
        known = self._objects.get(ref.uid)
        if known is None:
            if ref.version <= self._floor or ref.uid in self._tombstones:
                return None
        elif ref.version < known.confirmed_version:
            return None
        self._objects.pop(ref.uid, None)
        name = ref.namespace, ref.name
        self._tombstones[ref.uid] = _Tombstone(ref.version, name, ref.version)
        return self._removed_event(ref.uid, ref.version)

    def apply_bookmark(self, version: int) -> BoardEvent | None:
        """Take in that a watch has come to a version; None if that is no news."""
        if version <= self.max_version:
            return None
        self.max_version = version
        return FeedAdvanced(kind=self.kind, version=version)

    def _removed_event(self, uid: str, version: int) -> BoardEvent:
        if self.kind == "Export":
            return ExportRemoved(uid=uid, version=version)
        if self.kind == RULE:
            return RuleRemoved(uid=uid, version=version)
        return ImportRemoved(uid=uid, version=version)

    # ---- sweeps ----------------------------------------------------------

    def apply_resync(self, refs: Iterable[ObjectRef], version: int) -> list[BoardEvent]:
        """Take in who exists at a version; return the removals that nobody told of.

        An object is gone only if nothing of it was seen after that version. Its removal is
        told at the version up to which it is known to have been there, not at the list's:
        another object of its name may be younger than the one and older than the other.
        """
        here = {mark.uid for mark in refs}
        events: list[BoardEvent] = []
        for uid, known in list(self._objects.items()):
            if uid not in here and known.confirmed_version <= version:
                del self._objects[uid]
                self._tombstones[uid] = _Tombstone(version, known.name, known.confirmed_version)
                events.append(self._removed_event(uid, known.confirmed_version))
        return events

    def stale_refs(self, refs: Iterable[ObjectRef]) -> list[ObjectRef]:
        """Return what has to be fetched: what is listed and not known at its version."""
        found = []
        for mark in refs:
            known = self._objects.get(mark.uid)
            if known is None:
                if mark.uid not in self._tombstones:
                    found.append(mark)
            elif mark.version > known.version:
                found.append(mark)
        return found

    def difference(self, ref: ObjectRef) -> Literal["missing", "changed"]:
        """Return what is wrong with what is known of an object that is behind."""
        return "changed" if ref.uid in self._objects else "missing"

    def mark_caught_up(self, version: int) -> list[BoardEvent]:
        """Take in that all is known that existed at a version; forget who was gone by then."""
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
