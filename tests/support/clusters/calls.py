"""The broker's own calls of a real API server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from streambroker_core.board import Board, Synced
from streambroker_core.model import AnyKind, Kind
from streambroker_core.wire.manifests.ports import OBJECTS, read_manifest
from streambroker_operator.kubernetes.client.http_api import HttpApi
from streambroker_operator.kubernetes.status.port_reconciler import PortReconciler
from support.clusters.api_server import APPLY, GROUP, ApiServer
from support.processes.waiting import until


@asynccontextmanager
async def calls_of(server: ApiServer, user: str = "admin") -> AsyncIterator[HttpApi]:
    api = HttpApi(server.access(user))
    try:
        yield api
    finally:
        await api.close()


def manifest(kind: AnyKind, name: str, **spec: Any) -> dict[str, Any]:
    """Return a document of which only the spec matters."""
    return {
        "apiVersion": "streambroker.io/v1alpha1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": spec,
    }


async def create(api: HttpApi, namespace: str, documents: Iterable[Mapping[str, Any]]) -> None:
    places = asyncio.Semaphore(16)

    async def one(document: Mapping[str, Any]) -> None:
        async with places:
            path = f"{GROUP}/namespaces/{namespace}/{OBJECTS[document['kind']]}"
            answer = await api.call("POST", path, document, timeout_s=60)
            assert answer.status == 201, answer.body

    await asyncio.gather(*(one(document) for document in documents))


async def listed(api: HttpApi, namespace: str, kind: AnyKind) -> list[Any]:
    answer = await api.call("GET", f"{GROUP}/namespaces/{namespace}/{OBJECTS[kind]}", timeout_s=60)
    assert answer.status == 200, answer.body
    return [
        {**item, "kind": kind, "apiVersion": "streambroker.io/v1alpha1"}
        for item in answer.body["items"]
    ]


async def fill(board: Board, statuses: PortReconciler, api: HttpApi, namespace: str) -> None:
    """Have a board and its statuses read what there is, as a list at start does."""
    kinds: tuple[Kind, ...] = ("Export", "Import")
    for kind in kinds:
        items = await listed(api, namespace, kind)
        resources = []
        for item in items:
            version = int(item["metadata"]["resourceVersion"])
            statuses.observe(kind, item, True)
            resources.append((read_manifest(item), version))
        newest = max((version for _, version in resources), default=1)
        event = Synced(kind=kind, listed=tuple(resources), version=newest)
        statuses.on_actions(event, board.handle(event))


def allowed(*rules: tuple[str, str, str]) -> list[dict[str, Any]]:
    return [
        {"apiGroups": [group], "resources": [resource], "verbs": [verb]}
        for group, resource, verb in rules
    ]


def grant(server: ApiServer, name: str, user: str, *rules: tuple[str, str, str]) -> None:
    """Let a user do something everywhere, and nothing else that this name allowed before.

    Returns when the server goes by it, which takes it a moment.
    """
    group = "rbac.authorization.k8s.io"
    path = f"/apis/{group}/v1"
    known = server.request("GET", f"{path}/clusterroles/{name}").body.get("rules") or ()
    before = {(r["apiGroups"][0], r["resources"][0], r["verbs"][0]) for r in known}
    ref = {"apiGroup": group, "kind": "ClusterRole", "name": name}
    subject = {"apiGroup": group, "kind": "User", "name": user}
    parts: dict[str, dict[str, Any]] = {
        "ClusterRole": {"rules": allowed(*rules)},
        "ClusterRoleBinding": {"roleRef": ref, "subjects": [subject]},
    }
    for kind, part in parts.items():
        where = f"{path}/{kind.lower()}s/{name}?fieldManager=tests&force=true"
        body = {"apiVersion": f"{group}/v1", "kind": kind, "metadata": {"name": name}, **part}
        answer = server.request("PATCH", where, body, content_type=APPLY)
        assert answer.status in (200, 201), answer.message
    wanted = {
        (group, resource, verb): bool({(group, resource, verb), (group, resource, "*")} & {*rules})
        for group, resource, verb in before | set(rules)
    }
    until(
        lambda: all(may(server, user, right) is given for right, given in wanted.items()),
        10.0,
        f"{user} has the rights of {name}",
    )


def declare_role(
    server: ApiServer, namespace: str, account: str, rules: list[dict[str, Any]]
) -> None:
    """Let a service account do something in its namespace alone; it takes the server a moment."""
    group = "rbac.authorization.k8s.io"
    subject = {"kind": "ServiceAccount", "name": account, "namespace": namespace}
    ref = {"apiGroup": group, "kind": "Role", "name": account}
    parts: dict[str, dict[str, Any]] = {
        "Role": {"rules": rules},
        "RoleBinding": {"roleRef": ref, "subjects": [subject]},
    }
    for kind, part in parts.items():
        where = f"/apis/{group}/v1/namespaces/{namespace}/{kind.lower()}s"
        body = {"apiVersion": f"{group}/v1", "kind": kind, "metadata": {"name": account}, **part}
        answer = server.request("POST", where, body)
        assert answer.status == 201, answer.message


def may(server: ApiServer, user: str, right: tuple[str, str, str]) -> bool:
    """Say whether the server lets a user do something of (API group, resource, verb)."""
    group, resource, verb = right
    plural, _, part = resource.partition("/")
    what = {"group": group, "resource": plural, "subresource": part, "verb": verb}
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": user, "resourceAttributes": what},
    }
    answer = server.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", body)
    assert answer.status == 201, answer.message
    return answer.body["status"]["allowed"] is True


def token_of(
    server: ApiServer,
    namespace: str,
    account: str,
    *,
    pod: Mapping[str, str] | None = None,
    audiences: tuple[str, ...] = ("streambroker",),
) -> str:
    """Return a token of a service account, bound to a pod (name, uid) or to none."""
    spec: dict[str, Any] = {"audiences": list(audiences), "expirationSeconds": 3600}
    if pod is not None:
        spec["boundObjectRef"] = {"kind": "Pod", "apiVersion": "v1", **pod}
    answer = server.request(
        "POST",
        f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token",
        {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec},
    )
    assert answer.status == 201, answer.message
    return str(answer.body["status"]["token"])


def make_account(server: ApiServer, namespace: str, name: str) -> None:
    """Make a service account; no controller makes even the default one here."""
    server.make(f"namespaces/{namespace}/serviceaccounts", "ServiceAccount", name, known=True)


def make_pod(server: ApiServer, namespace: str, name: str, account: str) -> dict[str, str]:
    """Make a pod that never runs; return its name and uid."""
    own = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    spec = {
        "serviceAccountName": account,
        "automountServiceAccountToken": False,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [{"name": "main", "image": "none", "securityContext": own}],
    }
    made = server.make(f"namespaces/{namespace}/pods", "Pod", name, spec=spec)
    return {"name": name, "uid": str(made["metadata"]["uid"])}


def open_to(port: int) -> bool:
    """Say whether this process still has a connection to a port; where /proc is not, it has none.

    TLS says farewell before it closes, and a loop that ends before that leaves a socket behind.
    """
    if not Path("/proc/net/tcp").exists():
        return False
    own = set()
    for one in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            own.add(str(one.readlink()))
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(int(r[2].split(":")[1], 16) == port and f"socket:[{r[9]}]" in own for r in rows)


async def true(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Wait until a condition on this loop holds; return whether it does in time."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while not (found := condition()) and loop.time() < deadline:  # noqa: ASYNC110 - of any kind
        await asyncio.sleep(0.01)
    return found
