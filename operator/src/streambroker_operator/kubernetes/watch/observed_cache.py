"""What an event, a list or a sweep means for what is known of one kind.

Rule 1: nothing here does I/O or reads a clock. What was seen goes in, events for the
board come out, and the caller delivers all of them in their order.
Rule 2: what is late by the rules of the board's shelf is late here too, so that both
always know the same.
Rule 3: a list cannot be older than what was seen before it was asked for, nor bring back
what had gone before. If it does, somebody served an old list, or the store was restored;
`Following.contradicts` says so, and only a second such list may be taken for a restore.
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
    CaughtUp,
    Event,
    ExportApplied,
    ExportRemoved,
    FeedLost,
    ImportApplied,
    ImportRemoved,
    PointMoved,
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

_Name: TypeAlias = "tuple[str, str]"
"""Namespace and name."""

_METADATA = ("name", "namespace", "uid", "creationTimestamp")
_PRINT_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """That an object exists, and at which version it was changed last."""

    uid: str
    namespace: str
    name: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """One object as a list or an event showed it.

    Attributes:
        mark: which it is, at which version.
        print: a digest of all that matters of it.
        body: the object.
    """

    mark: Mark
    print: bytes
    body: Mapping[str, Any]


class Listed(NamedTuple):
    """One object of a list, read; its body is not kept, for a list may be long."""

    mark: Mark
    print: bytes
    entry: Entry


@dataclass(slots=True, kw_only=True)
class _Known:
    """What is known of one object: up to which version that holds, and since when."""

    version: int
    seen: int
    print: bytes
    entry: Entry

    @property
    def name(self) -> _Name:
        """Which name it has, in which namespace."""
        entry = self.entry
        if isinstance(entry, Unreadable):
            return entry.namespace, entry.name
        return entry.key.namespace, entry.name


class _Gone(NamedTuple):
    """That an object went: at which version that was known, and until when it had its name."""

    version: int
    name: _Name
    until: int


def mark_of(body: Mapping[str, Any]) -> Mark:
    """Read which object a body is.

    Raises:
        ValueError: it is no object of an API server.
    """
    metadata = body.get("metadata")
    if not isinstance(metadata, Mapping):
        raise ValueError("an object without metadata")
    try:
        return Mark(
            uid=str(metadata["uid"]),
            namespace=str(metadata["namespace"]),
            name=str(metadata["name"]),
            version=int(metadata["resourceVersion"]),
        )
    except KeyError as error:
        raise ValueError(f"an object without metadata.{error.args[0]}") from error


def sighting_of(body: Mapping[str, Any]) -> Sighting:
    """Read an object as far as it takes to see whether it matters.

    Raises:
        ValueError: it is no object of an API server.
    """
    mark, metadata = mark_of(body), body["metadata"]
    generation, earlier = metadata.get("generation"), earlier_of(body)
    deletion, spec = metadata.get("deletionTimestamp"), body.get("spec")
    matters = (generation, deletion, spec, earlier, unsure_of(body), settled_of(body))
    text = json.dumps(matters, sort_keys=True, separators=(",", ":"))
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_PRINT_BYTES)
    return Sighting(mark=mark, print=digest.digest(), body=body)


def earlier_of(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the generation that a status accepted last, with its spec; None if it is current."""
    status = body.get("status")
    accepted = status.get("accepted") if isinstance(status, Mapping) else None
    if not isinstance(accepted, Mapping) or not isinstance(accepted.get("spec"), Mapping):
        return None
    at, now = accepted.get("generation"), body["metadata"].get("generation")
    older = isinstance(at, int) and isinstance(now, int) and at < now
    return accepted if older else None


def unsure_of(body: Mapping[str, Any]) -> bool:
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


def settled_of(body: Mapping[str, Any]) -> bool:
    """Say whether a status has accepted a filter that is judged by what Exports there are."""
    spec, status = body.get("spec"), body.get("status")
    if not isinstance(spec, Mapping) or not spec.get("filter") or not isinstance(status, Mapping):
        return False
    accepted, generation = status.get("accepted"), body["metadata"].get("generation")
    return isinstance(accepted, Mapping) and accepted.get("generation") == generation


def read(kind: AnyKind, sighting: Sighting) -> Entry:
    """Return the resource that an object is, or why it cannot be read.

    Each with the generation that was accepted last, if that is an earlier one.
    """
    body = sighting.body
    entry = _read(kind, sighting, body.get("spec"), body["metadata"].get("generation"))
    accepted = earlier_of(body)
    if isinstance(entry, Import):
        entry = replace(entry, unsure=unsure_of(body), settled=settled_of(body))
    elif isinstance(entry, Unreadable) and kind == "Import":
        entry = replace(entry, unsure=unsure_of(body))
    if accepted is None or isinstance(entry, Export):
        return entry
    earlier = _read(kind, sighting, accepted["spec"], accepted["generation"])
    # Nobody but brokers may write there, and still: a port is one for the life of an object.
    if isinstance(earlier, Unreadable) or earlier.key != entry.key:
        return entry
    return replace(entry, earlier=earlier)  # type: ignore[arg-type]


def _read(kind: AnyKind, sighting: Sighting, spec: object, generation: object) -> Entry:
    try:
        return parsed(kind, sighting.body["metadata"], spec, generation)
    except StreambrokerError as error:
        return _unreadable(kind, sighting, error)


def parsed(
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


def _unreadable(kind: AnyKind, sighting: Sighting, error: StreambrokerError) -> Unreadable:
    mark, generation = sighting.mark, sighting.body["metadata"].get("generation")
    return Unreadable(
        kind=kind,
        uid=mark.uid,
        version=mark.version,
        namespace=mark.namespace,
        name=mark.name,
        generation=generation if isinstance(generation, int) else 1,
        key=_key(mark.namespace, sighting.body.get("spec")),
        code=error.code,
        problem=str(error),
        path=error.path if isinstance(error, ManifestError) else "",
    )


def _key(namespace: str, spec: object) -> PortKey | None:
    if not isinstance(spec, Mapping):
        return None
    try:
        return PortKey.parse(f"{namespace}/{spec.get('job')}/{spec.get('pe', 0)}/{spec['port']}")
    except (KeyError, ManifestError):
        return None


class Following:
    """All objects of one kind, as far as the feed knows them.

    Args:
        kind: which.

    Attributes:
        synced: whether a list has been taken in since the feed was lost last.
        session: how many lists were taken in; what was seen in an earlier session is void.
        high: the highest version seen. Note it before asking for a list.
        unlisted: namespaces that the last list was not allowed to read.
    """

    def __init__(self, kind: AnyKind) -> None:
        self.kind = kind
        self.synced = False
        self.session = 0
        self.high = 0
        self.unlisted: frozenset[str] = frozenset()
        self._known: dict[str, _Known] = {}
        self._gone: dict[str, _Gone] = {}
        # Whoever is not known at this version is gone, or never was.
        self._floor = -1

    def __len__(self) -> int:
        return len(self._known)

    # ---- lists -----------------------------------------------------------

    def read(self, sighting: Sighting) -> Listed:
        """Return what a listed object is; it is parsed only if it is not known as it is."""
        mark = sighting.mark
        known = self._known.get(mark.uid)
        if known is None or known.print != sighting.print:
            entry = read(self.kind, sighting)
        elif isinstance(known.entry, Unreadable):
            entry = replace(known.entry, version=mark.version)
        else:
            entry = known.entry
        return Listed(mark, sighting.print, entry)

    def kept(self, namespaces: Container[str], version: int) -> list[Listed]:
        """Return what is known of namespaces that a list of a version was not allowed to read."""
        found = []
        for uid, known in self._known.items():
            namespace, name = known.name
            if namespace in namespaces:
                at = min(known.version, version)
                mark = Mark(uid=uid, namespace=namespace, name=name, version=at)
                found.append(Listed(mark, known.print, known.entry))
        return found

    def contradicts(self, marks: Iterable[Mark], version: int, asked_at: int) -> bool:
        """Say whether a list and what is known cannot both be true of one course of versions.

        Either somebody answered with an old list, or the store was restored from an old copy.

        Args:
            marks: what is listed.
            version: the version of the list.
            asked_at: what a list had to reach at the time of the question; at least `high`.
        """
        if version < asked_at:
            return True
        names = self._held_names(version)
        # What happened in a namespace while it could not be read contradicts nothing.
        judged = (mark for mark in marks if mark.namespace not in self.unlisted)
        return any(self._contradicts(mark, version, names) for mark in judged)

    def _contradicts(self, mark: Mark, version: int, names: Mapping[_Name, int]) -> bool:
        # Two objects cannot have had one name at the same time.
        held = names.get((mark.namespace, mark.name), -1)
        known = self._known.get(mark.uid)
        if known is not None:
            return held > known.seen or mark.version < known.version <= version
        gone = self._gone.get(mark.uid)
        if gone is not None:
            return gone.version <= version
        return mark.version <= max(self._floor, held)

    def _held_names(self, version: int) -> dict[_Name, int]:
        """Return until which version each name was held, of what a list can judge."""
        held: dict[_Name, int] = {}
        for known in self._known.values():
            if known.seen <= version:
                held[known.name] = max(known.seen, held.get(known.name, -1))
        for gone in self._gone.values():
            if gone.until <= version:
                held[gone.name] = max(gone.until, held.get(gone.name, -1))
        return held

    def listed(
        self, found: Sequence[Listed], version: int, *, restored: bool = False
    ) -> list[Event]:
        """Take in a whole, consistent list; return what to tell the board.

        Args:
            found: what `read` made of each object.
            version: the version of the list.
            restored: it contradicts what is known, and so did another one before it.
        """
        events: list[Event] = []
        if restored:
            events += self.lost("Restored")
        fresh = not self.synced
        known = {} if fresh else self._younger({listed.mark.uid for listed in found}, version)
        for mark, print_, entry in found:
            if mark.uid not in known and (fresh or self._gone_at(mark.uid) <= version):
                known[mark.uid] = _Known(
                    version=mark.version,
                    seen=max(mark.version, version),
                    print=print_,
                    entry=entry,
                )
        self._known = known
        self._gone = {} if fresh else self._gone_after(version)
        self._floor = version
        self.high = version if fresh else max(self.high, version)
        self.synced = True
        self.session += 1
        return [*events, self._synced(found, version)]

    def _younger(self, here: set[str], version: int) -> dict[str, _Known]:
        """Return what was seen after a version, and so is not for a list of it to judge."""
        return {
            uid: known
            for uid, known in self._known.items()
            if (known.version if uid in here else known.seen) > version
        }

    def _gone_at(self, uid: str) -> int:
        gone = self._gone.get(uid)
        return -1 if gone is None else gone.version

    def _gone_after(self, version: int) -> dict[str, _Gone]:
        return {uid: gone for uid, gone in self._gone.items() if gone.version > version}

    def _synced(self, found: Sequence[Listed], version: int) -> Synced:
        listed: list[tuple[Resource | Rule, int]] = []
        unreadable: list[Unreadable] = []
        for mark, _, entry in found:
            if isinstance(entry, Unreadable):
                unreadable.append(entry)
            else:
                listed.append((entry, mark.version))
        return Synced(
            kind=self.kind, listed=tuple(listed), version=version, unreadable=tuple(unreadable)
        )

    def lost(self, reason: str) -> list[Event]:
        """Take in that the feed broke off; all stays until the next list decides."""
        if not self.synced:
            return []
        self.synced = False
        return [FeedLost(kind=self.kind, reason=reason)]

    # ---- events ----------------------------------------------------------

    def applied(self, sighting: Sighting) -> Event | None:
        """Take in that an object was seen; None if that is late."""
        mark = sighting.mark
        self.high = max(self.high, mark.version)
        known = self._known.get(mark.uid)
        if known is None:
            if mark.version <= self._floor or mark.uid in self._gone:
                return None
        elif mark.version <= known.seen:
            return None
        elif known.print == sighting.print:
            known.version = known.seen = mark.version
            return PointMoved(kind=self.kind, version=mark.version, uid=mark.uid)
        entry = read(self.kind, sighting)
        self._known[mark.uid] = _Known(
            version=mark.version, seen=mark.version, print=sighting.print, entry=entry
        )
        return _applied(entry, mark.version)

    def deleted(self, mark: Mark) -> Event | None:
        """Take in that an object went, at the deletion's own version; None if that is late."""
        self.high = max(self.high, mark.version)
        known = self._known.get(mark.uid)
        if known is None:
            if mark.version <= self._floor or mark.uid in self._gone:
                return None
        elif mark.version < known.seen:
            return None
        self._known.pop(mark.uid, None)
        name = mark.namespace, mark.name
        self._gone[mark.uid] = _Gone(mark.version, name, mark.version)
        return self._removed(mark.uid, mark.version)

    def bookmark(self, version: int) -> Event | None:
        """Take in that a watch has come to a version; None if that is no news."""
        if version <= self.high:
            return None
        self.high = version
        return PointMoved(kind=self.kind, version=version)

    def _removed(self, uid: str, version: int) -> Event:
        if self.kind == "Export":
            return ExportRemoved(uid=uid, version=version)
        if self.kind == RULE:
            return RuleRemoved(uid=uid, version=version)
        return ImportRemoved(uid=uid, version=version)

    # ---- sweeps ----------------------------------------------------------

    def swept(self, marks: Iterable[Mark], version: int) -> list[Event]:
        """Take in who exists at a version; return the removals that nobody told of.

        An object is gone only if nothing of it was seen after that version. Its removal is
        told at the version up to which it is known to have been there, not at the list's:
        another object of its name may be younger than the one and older than the other.
        """
        here = {mark.uid for mark in marks}
        events: list[Event] = []
        for uid, known in list(self._known.items()):
            if uid not in here and known.seen <= version:
                del self._known[uid]
                self._gone[uid] = _Gone(version, known.name, known.seen)
                events.append(self._removed(uid, known.seen))
        return events

    def behind(self, marks: Iterable[Mark]) -> list[Mark]:
        """Return what has to be fetched: what is listed and not known at its version."""
        found = []
        for mark in marks:
            known = self._known.get(mark.uid)
            if known is None:
                if mark.uid not in self._gone:
                    found.append(mark)
            elif mark.version > known.version:
                found.append(mark)
        return found

    def difference(self, mark: Mark) -> Literal["missing", "changed"]:
        """Return what is wrong with what is known of an object that is behind."""
        return "changed" if mark.uid in self._known else "missing"

    def caught_up(self, version: int) -> list[Event]:
        """Take in that all is known that existed at a version; forget who was gone by then."""
        self._floor = max(self._floor, version)
        self._gone = self._gone_after(version)
        self.high = max(self.high, version)
        return [CaughtUp(version=version, kind=self.kind)]


def _applied(entry: Entry, version: int) -> Event:
    if isinstance(entry, Unreadable):
        return entry
    if isinstance(entry, Export):
        return ExportApplied(export=entry, version=version)
    if isinstance(entry, Rule):
        return RuleApplied(rule=entry, version=version)
    return ImportApplied(import_=entry, version=version)
