"""Exports, Imports and rules as an API server holds them, without one: versions, events, copies."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from streambroker_core.model import RULE, AnyKind, Kind

KINDS: tuple[Kind, Kind] = ("Export", "Import")
EVERY_KIND: tuple[AnyKind, ...] = (*KINDS, RULE)
SPECS: dict[AnyKind, tuple[dict[str, Any], ...]] = {
    "Export": (
        {"properties": {"kind": "trade"}},
        {"properties": {"kind": "quote"}},
        {"properties": {"a b": 1}},
    ),
    "Import": (
        {"subscription": 'kind == "trade"'},
        {"subscription": 'kind == "quote"', "filter": "price > 1.0"},
        {"subscription": 'kind == "trade"', "schema": [{"name": "a", "type": "nosuch"}]},
    ),
    RULE: (
        {"version": 1, "pattern": {"stages": [{"name": "a", "where": "price > 10"}]}},
        {"version": 2, "pattern": {"stages": [{"name": "a", "where": "price > 20"}]}},
        {"version": 3, "pattern": {"stages": [{"name": "a", "where": "price >"}]}},
    ),
}
"""Of each kind two, of ports such as match crosswise, and one that an API server takes and we
cannot read, or not run."""

Object = Any
World = dict[str, Object]


def object_of(
    kind: AnyKind, name: str, variant: int, *, namespace: str = "default", **more: Any
) -> Object:
    """Return a manifest of a port or rule of a job of the same name; without what a server adds."""
    port = {} if kind == RULE else {"pe": 0, "port": "p"}
    return {
        "apiVersion": "streambroker.io/v1alpha1",
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"job": name, **port, **SPECS[kind][variant], **more},
    }


@dataclass
class ObjectStore:
    """What a server holds, and what its watches tell.

    A restored one may come to versions of before again, but never with an object of before that
    says something else at the same version: nobody could tell the two apart by their versions.
    """

    version: int = 0
    created: int = 0
    world: World = field(default_factory=dict)
    said: dict[tuple[str, int], Any] = field(default_factory=dict)

    def write(
        self, kind: Kind, name: str, variant: int, namespace: str = "default"
    ) -> tuple[str, Object]:
        """Create an object, or change its spec; return the watch's event."""
        found = self.find(kind, name, namespace)
        made = object_of(kind, name, variant, namespace=namespace)
        if found is None:
            self.created += 1
            generation, uid, when = 1, f"{kind}-{self.created}", self.created
        else:
            generation, uid = found["metadata"]["generation"] + 1, found["metadata"]["uid"]
            when = int(uid.rpartition("-")[2])
            if "status" in found:
                made["status"] = found["status"]
        self._move(uid, made.get("spec"))
        made["metadata"] |= {
            "uid": uid,
            "generation": generation,
            "resourceVersion": str(self.version),
            "creationTimestamp": f"2026-01-01T00:{when // 60:02}:{when % 60:02}Z",
        }
        self.world[uid] = made
        return ("ADDED" if found is None else "MODIFIED"), made

    def touch(self, uid: str, status: Object | None = None) -> tuple[str, Object]:
        """Write a status, the same again if none is given; return the watch's event."""
        body = dict(self.world[uid])
        if status is not None:
            body["status"] = status
        return "MODIFIED", self._again(uid, body, keep=True)

    def delete(self, uid: str) -> tuple[str, Object]:
        """Delete an object; return the watch's event, with the deletion's own version."""
        return "DELETED", self._again(uid, dict(self.world[uid]), keep=False)

    def _again(self, uid: str, body: Object, *, keep: bool) -> Object:
        self._move(uid, body.get("spec") if keep else None)
        body["metadata"] = {**body["metadata"], "resourceVersion": str(self.version)}
        if keep:
            self.world[uid] = body
        else:
            del self.world[uid]
        return body

    def _move(self, uid: str, spec: Any) -> None:
        self.version += 1
        while self.said.setdefault((uid, self.version), spec) != spec:
            self.version += 1

    def find(self, kind: Kind, name: str, namespace: str = "default") -> Object | None:
        for body in self.world.values():
            metadata = body["metadata"]
            if (body["kind"], metadata["namespace"], metadata["name"]) == (kind, namespace, name):
                return body
        return None

    def of(self, kind: Kind) -> list[Object]:
        """Return what a list of a kind shows now."""
        return [body for body in self.world.values() if body["kind"] == kind]
