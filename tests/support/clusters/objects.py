"""Ports and rules on an API server, by name: created, changed, given a status, deleted."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from streambroker_core.model import RULE, AnyKind
from streambroker_core.wire.manifests.ports import OBJECTS
from support.clusters.api_server import GROUP, MERGE, Answer, ApiServer
from support.kubernetes.object_store import object_of
from support.processes.waiting import until


@dataclass
class ClusterObjects:
    """One namespace of an API server."""

    api: ApiServer
    namespace: str

    def ask(
        self, method: str, path: str, body: object = None, *, content_type: str | None = None
    ) -> Answer:
        """Send a request; a server that is not quite there yet is asked again."""

        def answer() -> Answer | None:
            text = body if content_type is None else json.dumps(body)
            said = self.api.request(method, path, text, content_type=content_type)
            return None if said.status in (429, 503) else said

        return until(answer, 30.0, f"{method} {path} is answered")

    def path(self, kind: AnyKind, name: str = "") -> str:
        place = f"{GROUP}/namespaces/{self.namespace}/{OBJECTS[kind]}"
        return f"{place}/{name}" if name else place

    def write(self, kind: AnyKind, name: str, variant: int = 0) -> str:
        """Create an object or replace its spec; return its uid."""
        body = object_of(kind, name, variant, namespace=self.namespace)
        made = self.ask("POST", self.path(kind), body)
        if made.status == 409:
            patch = {"spec": _change(kind, body["spec"])}
            made = self.ask("PATCH", self.path(kind, name), patch, content_type=MERGE)
        assert made.status in (200, 201), made
        return str(made.body["metadata"]["uid"])

    def touch(self, kind: AnyKind, name: str, number: int) -> None:
        """Write a status, if the object is there."""
        status = {"status": {"matches": number}}
        self.ask("PATCH", self.path(kind, f"{name}/status"), status, content_type=MERGE)

    def delete(self, kind: AnyKind, name: str) -> None:
        answer = self.ask("DELETE", self.path(kind, name))
        assert answer.status in (200, 404), answer


def _change(kind: AnyKind, spec: dict[str, Any]) -> dict[str, Any]:
    """Return a merge patch that leaves nothing of another variant."""
    if kind == RULE:
        return spec
    if kind == "Export":
        return {**spec, "properties": {"kind": None, "a b": None, **spec["properties"]}}
    return {"filter": None, "schema": None, **spec}
