"""A broker's store over a real API server, and the others who write there, too."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from streambroker_core.board import Board, BoardEvent, Synced
from streambroker_core.model import Export, Import, Kind, PortKey, Resource
from streambroker_core.wire.manifests.ports import PLURALS, read_manifest
from streambroker_operator.kubernetes.apply.port_store import KubernetesStore
from streambroker_operator.kubernetes.client.http_api import Answer, HttpApi
from streambroker_operator.kubernetes.client.objects import Objects
from streambroker_operator.storage.backend import StoredResource
from streambroker_operator.storage.write_options import UNCONDITIONAL, Touched, WriteOptions
from support.clusters.api_server import APPLY, GROUP, ApiServer
from support.clusters.calls import manifest
from support.kubernetes.fake_server import Api, Call

KINDS: tuple[Kind, Kind] = ("Export", "Import")
FEED = {"job": "feed", "port": "trades"}
ALERTS = {"job": "alerts", "port": "trades"}


class Meddling(Api):
    """Calls before whose next writes something else happens."""

    def __init__(self, calls: HttpApi) -> None:
        self._calls = calls
        self.before: list[Callable[[], object]] = []
        self.sent: list[str] = []

    async def take(self, call: Call) -> Answer:
        self.sent.append(call.method)
        if call.method != "GET" and self.before:
            self.before.pop(0)()
        how: dict[str, Any] = {"content_type": call.content_type, "timeout_s": call.timeout_s}
        body = call.body or None
        return await self._calls.call(call.method, call.path, body, query=call.query, **how)


class Replica:
    """A broker's store and board; the board is filled by `look`."""

    def __init__(
        self, api: ApiServer, namespace: str, user: str = "admin", board: Board | None = None
    ) -> None:
        self.api, self.namespace = api, namespace
        self._calls = HttpApi(api.access(user))
        self.api_calls = Meddling(self._calls)
        self.board = Board() if board is None else board
        self.store = KubernetesStore(Objects(self.api_calls), self.board.reader, secret=b"s" * 32)

    async def close(self) -> None:
        self.store.close()
        await self._calls.close()

    def look(self, deliver: Callable[[BoardEvent], object] | None = None) -> None:
        """Bring the board up to date by a list of both kinds."""
        report = self.board.handle if deliver is None else deliver
        for kind in KINDS:
            answer = self.api.request("GET", f"{GROUP}/namespaces/{self.namespace}/{PLURALS[kind]}")
            found: list[tuple[Resource, int]] = []
            for item in answer.body["items"]:
                document = {"apiVersion": "streambroker.io/v1alpha1", "kind": kind, **item}
                found.append((read_manifest(document), int(item["metadata"]["resourceVersion"])))
            version = int(answer.body["metadata"]["resourceVersion"])
            report(Synced(kind=kind, listed=tuple(found), version=version))
            for item in answer.body["items"]:
                agent = self.store.registrations.observe(item)
                self.store.steering.observe(item)
                if agent is not None:
                    report(agent)

    def key(self, spec: Mapping[str, Any]) -> PortKey:
        return PortKey.parse(f"{self.namespace}/{spec['job']}/{spec.get('pe', 0)}/{spec['port']}")

    def export(self) -> Export:
        self.look()
        found = self.store.get("Export", self.key(FEED))
        assert found is not None
        assert isinstance(found.resource, Export)
        return found.resource

    def import_(self) -> Import:
        self.look()
        found = self.store.get("Import", self.key(ALERTS))
        assert found is not None
        assert isinstance(found.resource, Import)
        return found.resource

    async def change(
        self, resource: Resource, *fields: str, terms: WriteOptions = UNCONDITIONAL
    ) -> StoredResource:
        """Change fields, written ``filter`` or ``properties.limit``; all of them without any."""
        touched: Touched | None = tuple(tuple(field.split(".")) for field in fields) or None
        return await self.store.put(resource, touched=touched, options=terms)


class Others:
    """Everybody else who writes to the API server."""

    def __init__(self, api: ApiServer, namespace: str, folder: Path) -> None:
        self.api, self.namespace = api, namespace
        self._folder = folder

    def manifest(self, kind: Kind, spec: Mapping[str, Any]) -> dict[str, Any]:
        """Return a manifest named ``feed`` or ``alerts`` after its job."""
        found = manifest(kind, spec["job"], **spec)
        found["metadata"]["namespace"] = self.namespace
        return found

    def path(self, kind: Kind, name: str) -> str:
        return f"{GROUP}/namespaces/{self.namespace}/{PLURALS[kind]}/{name}"

    def declare(
        self,
        kind: Kind,
        spec: Mapping[str, Any],
        *,
        manager: str = "gitops",
        force: bool = False,
        status: int | None = None,
    ) -> Any:
        answer = self.api.request(
            "PATCH",
            f"{self.path(kind, spec['job'])}?fieldManager={manager}&force={str(force).lower()}",
            self.manifest(kind, spec),
            content_type=APPLY,
        )
        assert answer.status == status if status else answer.status in (200, 201), answer.message
        return answer.body

    def live(self, kind: Kind, name: str) -> Any:
        """Return the object as it is; None where there is none."""
        answer = self.api.request("GET", self.path(kind, name))
        return None if answer.status == 404 else answer.body

    def kubectl(
        self, *arguments: str, kind: Kind, spec: Mapping[str, Any] | None = None, editor: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl, with a manifest as ``-f`` where a spec is given."""
        given: list[str] = []
        if spec is not None:
            path = self._folder / f"{spec['job']}.json"
            path.write_text(json.dumps(self.manifest(kind, spec)))
            given = ["-f", str(path)]
        return self.api.kubectl(*arguments, *given, "-n", self.namespace, editor=editor)
