"""A board with proposed changes, stored as differences from the current board.

The board itself is only read. The overlay copies only what the proposed resources touch: their
ports, rivals on these ports, and other claimants of their stream ids.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable

from streambroker_core.board import BoardReader, claimed_stream
from streambroker_core.model import Export, Kind, PortKey, Resource, kind_of, seniority
from streambroker_core.wire.manifests.quotas import Usage


class BoardOverlay:
    """Proposed changes of resources over an unchanged board."""

    def __init__(self, board: BoardReader) -> None:
        self.board = board
        self.changed: dict[Kind, dict[str, Resource | None]] = {"Export": {}, "Import": {}}
        self._claims_by_port: dict[tuple[Kind, PortKey], dict[str, Resource]] = {}
        self._names: dict[tuple[Kind, str, str], str] = {}
        self._streams: dict[Hashable, set[str]] = {}
        self._concerned: dict[Kind, frozenset[str]] = {}
        self._usage: dict[str, Usage] = {}

    def put(self, resource: Resource) -> None:
        """Add or replace a resource by its uid.

        A new resource replaces another one of its name. A removed uid cannot be added again.
        """
        kind = kind_of(resource)
        old = self.get(kind, resource.uid)
        if old is None and resource.uid in self.changed[kind]:
            return
        known = self.resource_by_name(resource) if old is None else None
        if known is not None:
            self.remove(kind, known.uid)
        self._record_change(kind, resource.uid, old, resource)
        if resource.name:
            self._names[(kind, resource.key.namespace, resource.name)] = resource.uid

    def resource_by_name(self, resource: Resource) -> Resource | None:
        """Return the resource with the same kind, namespace and name; None if it has no name."""
        kind, name = kind_of(resource), resource.name
        if not name:
            return None
        entry = (kind, resource.key.namespace, name)
        uid = self._names.get(entry) or self.board.uid_by_name(*entry)
        return None if uid is None else self.get(kind, uid)

    def remove(self, kind: Kind, uid: str) -> None:
        """Remove a resource; an unknown uid changes nothing."""
        old = self.get(kind, uid)
        if old is not None:
            self._record_change(kind, uid, old, None)

    def _record_change(
        self, kind: Kind, uid: str, old: Resource | None, new: Resource | None
    ) -> None:
        self._concerned.pop(kind, None)
        self.changed[kind][uid] = new
        self._record_usage(old, new, self._usage)
        for resource in (old, new):
            if resource is not None:
                self._claims_by_port.setdefault((kind, resource.key), {}).pop(uid, None)
        if new is not None:
            self._claims_by_port[(kind, new.key)][uid] = new
        for resource in (old, new):
            if resource is not None:
                self._record_streams(kind, resource)

    def _record_streams(self, kind: Kind, resource: Resource) -> None:
        """Record the stream ids that may get another holder."""
        if kind == "Import":
            return
        key = resource.key
        claimants = [resource, *self.board.claimants(kind, key), *self.claimants(kind, key)]
        for claimant in claimants:
            stream = claimed_stream(claimant) if isinstance(claimant, Export) else None
            if stream is not None:
                self._streams.setdefault(stream, set()).add(claimant.uid)

    def get(self, kind: Kind, uid: str) -> Resource | None:
        """Return a resource with the changes applied."""
        changed = self.changed[kind]
        return changed[uid] if uid in changed else self.board.get(kind, uid)

    def claimants(self, kind: Kind, key: PortKey) -> list[Resource]:
        """Return all claimants of a port, with the changes applied."""
        changed = self.changed[kind]
        stay = [
            resource for resource in self.board.claimants(kind, key) if resource.uid not in changed
        ]
        return [*stay, *self._claims_by_port.get((kind, key), {}).values()]

    def holder(self, kind: Kind, key: PortKey) -> Resource | None:
        """Return the holder of a port, with the changes applied."""
        return min(self.claimants(kind, key), key=seniority, default=None)

    def stream_holders(self, export: Export) -> list[Export]:
        """Return the port holders that claim the same stream id as an Export."""
        stream = claimed_stream(export)
        if stream is None:
            return []
        uids = {other.uid for other in self.board.exports_sharing_stream(export)}
        uids |= self._streams.get(stream, set())
        found = (self.get("Export", uid) for uid in uids)
        return [
            other
            for other in found
            if isinstance(other, Export)
            and claimed_stream(other) == stream
            and self._holds_port(other)
        ]

    def _holds_port(self, export: Export) -> bool:
        holder = self.holder("Export", export.key)
        return holder is not None and holder.uid == export.uid

    def usage(self, namespace: str) -> Usage:
        """Return what a namespace uses of its quota, with the changes applied."""
        if namespace not in self._usage:
            self._usage[namespace] = self.board.usage(namespace)
            for kind, changed in self.changed.items():
                for uid, new in changed.items():
                    self._record_usage(self.board.get(kind, uid), new, (namespace,))
        return self._usage[namespace]

    def _record_usage(
        self, old: Resource | None, new: Resource | None, namespaces: Collection[str]
    ) -> None:
        for sign, one in ((-1, old), (1, new)):
            if one is not None and one.key.namespace in namespaces:
                ports, size = self._usage[one.key.namespace]
                more = Usage.of(one)
                used = Usage(ports + sign * more.ports, size + sign * more.bytes)
                self._usage[one.key.namespace] = used

    def find_rival(self, resource: Resource) -> tuple[str, Resource] | None:
        """Return the reason word and the older resource that holds a claimed name, if any."""
        holder = self.holder(kind_of(resource), resource.key)
        if holder is not None and holder.uid != resource.uid:
            return "PortTaken", holder
        if isinstance(resource, Export):
            oldest = min(self.stream_holders(resource), key=seniority, default=resource)
            if oldest.uid != resource.uid:
                return "StreamIdTaken", oldest
        return None

    def concerned_uids(self, kind: Kind) -> frozenset[str]:
        """Return the uids of all resources whose ownership may have changed."""
        known = self._concerned.get(kind)
        if known is None:
            known = self._concerned[kind] = frozenset(self._find_concerned(kind))
        return known

    def _find_concerned(self, kind: Kind) -> set[str]:
        found = set(self.changed[kind])
        for touched, key in self._claims_by_port:
            if touched == kind:
                found.update(resource.uid for resource in self.board.claimants(kind, key))
        if kind == "Export":
            for uids in self._streams.values():
                found |= uids | self._sharing_now(uids)
        return found

    def _sharing_now(self, uids: set[str]) -> set[str]:
        found: set[str] = set()
        for uid in uids:
            for known in (self.board.get("Export", uid), self.changed["Export"].get(uid)):
                if isinstance(known, Export):
                    found.update(other.uid for other in self.board.exports_sharing_stream(known))
        return found
