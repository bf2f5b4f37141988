"""A real Kubernetes API server with its etcd, on loopback, for the length of a test.

Not a whole cluster: nothing runs pods, and no controller makes service accounts, collects
garbage or empties namespaces. Admission, server-side apply, watches, RBAC and tokens are real.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import shutil
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from functools import cached_property
from pathlib import Path
from typing import Any

from streambroker_operator.kubernetes.client.kubeconfig import Access
from support.clusters.programs import Program
from support.processes.ports import free_port
from support.processes.waiting import until

CRDS = Path(__file__).parents[3] / "crds"
GROUP = "/apis/streambroker.io/v1alpha1"
KINDS = {"Export", "Import", "PatternProcessor"}

JSON = "application/json"
YAML = "application/yaml"
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"

USERS = {
    "admin": "system:masters",
    "gitops": "",
    "viewer": "",
    "worker": "",
    "broker": "",
    "stranger": "",
}
"""Who has a token, and their group; all but ``admin`` may do what a test lets them, and
``stranger``, whom none lets do anything, nothing."""

_ANSWER_SECONDS = 30.0
_AUDIT_POLICY = """
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: None, verbs: [get, list, watch]}
- {level: Metadata}
"""


@dataclass(frozen=True)
class Answer:
    """What the API server said; for a refusal the body is a ``Status``."""

    status: int
    body: Any

    @property
    def message(self) -> str:
        return str(self.body.get("message", "")) if isinstance(self.body, dict) else ""


class Etcd:
    """Where API servers keep their objects; several of them may share one."""

    def __init__(self, assets: Path, folder: Path) -> None:
        self._data = folder / "etcd"
        self.url = f"http://127.0.0.1:{free_port()}"
        peers = f"http://127.0.0.1:{free_port()}"
        command = [
            str(assets / "etcd"),
            f"--data-dir={self._data}",
            f"--listen-client-urls={self.url}",
            f"--advertise-client-urls={self.url}",
            f"--listen-peer-urls={peers}",
            f"--initial-advertise-peer-urls={peers}",
            f"--initial-cluster=default={peers}",
            "--unsafe-no-fsync",
            "--log-level=warn",
        ]
        self.program = Program(command, folder / "etcd.log")
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def start(self) -> None:
        self.program.start(self._healthy)

    def stop(self) -> None:
        self.program.stop()

    def compact(self) -> int:
        """Forget all but the newest version of every object; return that revision."""
        revision = int(self._post("/v3/maintenance/status", {})["header"]["revision"])
        self._post("/v3/kv/compaction", {"revision": str(revision), "physical": True})
        return revision

    def save(self, folder: Path) -> None:
        """Copy its data, for which it stops a moment."""
        self.stop()
        shutil.copytree(self._data, folder)
        self.start()

    def restore(self, folder: Path) -> None:
        """Go on from a copy of its data, as after a disaster: revisions go back.

        API servers that run keep what they have cached; start them anew, as the handbook says.
        """
        self.stop()
        shutil.rmtree(self._data)
        shutil.copytree(folder, self._data)
        self.start()

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self._data, ignore_errors=True)

    def _healthy(self) -> bool:
        try:
            with self._open.open(f"{self.url}/health", timeout=5.0) as answer:
                return bool(json.load(answer)["health"] == "true")
        except OSError:
            return False

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        data = json.dumps(body).encode()
        with self._open.open(f"{self.url}{path}", data=data, timeout=_ANSWER_SECONDS) as answer:
            return json.load(answer)


class ApiServer:
    """A kube-apiserver with RBAC, tokens for `USERS`, and an audit log of all writes."""

    def __init__(self, assets: Path, folder: Path, etcd: Etcd, given: Path) -> None:
        self._assets = assets
        self._folder = folder
        self._given = given
        self.etcd = etcd
        self.port = free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        self.ca = folder / "certs" / "apiserver.crt"
        rows = [line.split(",") for line in (given / "tokens.csv").read_text().splitlines()]
        self.tokens = {user: token for token, user, *_ in rows}
        self.program = Program(self._command(), folder / "apiserver.log")

    def _command(self) -> list[str]:
        key = self._given / "accounts.key"
        return [
            str(self._assets / "kube-apiserver"),
            f"--etcd-servers={self.etcd.url}",
            f"--cert-dir={self._folder / 'certs'}",
            f"--secure-port={self.port}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            f"--token-auth-file={self._given / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            f"--audit-policy-file={self._given / 'audit.yaml'}",
            f"--audit-log-path={self._folder / 'audit.log'}",
        ]

    # ---- life ------------------------------------------------------------

    def start(self) -> None:
        """Run it and wait until it says that it is ready; custom resources come later."""
        self.program.start(self._ready)

    def stop(self) -> None:
        self.program.stop()

    @contextmanager
    def second(self) -> Iterator[ApiServer]:
        """Run another API server over the same etcd, with the same tokens."""
        folder = self._folder / f"second-{secrets.token_hex(4)}"
        folder.mkdir()
        other = ApiServer(self._assets, folder, self.etcd, self._given)
        try:
            other.start()
            yield other
        finally:
            other.stop()

    def _ready(self) -> bool:
        try:
            return self.request("GET", "/readyz").status == 200
        except OSError:
            return False

    # ---- asking ----------------------------------------------------------

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        user: str = "admin",
        token: str | None = None,
        content_type: str | None = None,
    ) -> Answer:
        """Send a request; a body that is a text is YAML, anything else becomes JSON."""
        text = isinstance(body, str)
        data = None if body is None else (body if text else json.dumps(body)).encode()
        headers = {"Authorization": f"Bearer {token or self.tokens[user]}", "Accept": JSON}
        if data is not None:
            headers["Content-Type"] = content_type or (YAML if text else JSON)
        request = urllib.request.Request(
            f"{self.url}{path}", data=data, method=method, headers=headers
        )
        status, read, _ = sent(self._opener, request, _ANSWER_SECONDS)
        try:
            return Answer(status, json.loads(read))
        except ValueError:
            return Answer(status, read.decode(errors="replace"))

    @cached_property
    def _opener(self) -> urllib.request.OpenerDirector:
        tls = urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=str(self.ca)))
        return urllib.request.build_opener(urllib.request.ProxyHandler({}), tls)

    def kubeconfig(self, user: str = "admin") -> Path:
        """Write a file by which kubectl and clients find this server as a user."""
        path = self._folder / f"kubeconfig-{user}.json"
        cluster = {"server": self.url, "certificate-authority": str(self.ca)}
        context = {"cluster": "test", "user": user, "namespace": "default"}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": self.tokens[user]}}],
            "contexts": [{"name": "test", "context": context}],
            "current-context": "test",
        }
        path.write_text(json.dumps(config))
        return path

    def access(self, user: str = "admin") -> Access:
        return Access(server=self.url, token=self.tokens[user], ca_file=str(self.ca))

    def kubectl(
        self, *arguments: str, stdin: str = "", user: str = "admin", editor: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl and return what it said; ``edit`` runs the editor."""
        return subprocess.run(
            [str(self._assets / "kubectl"), *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60.0,
            check=False,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(self._folder),
                "KUBECONFIG": str(self.kubeconfig(user)),
                "KUBE_EDITOR": editor,
            },
        )

    # ---- what tests need -------------------------------------------------

    def apply_crds(self) -> None:
        """Bring the CRDs in, strictly, and wait until both kinds are served."""
        for path in sorted(CRDS.glob("*.yaml")):
            answer = self.request(
                "PATCH",
                "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/"
                f"{path.stem}.streambroker.io?fieldManager=tests&force=true&fieldValidation=Strict",
                path.read_text(),
                content_type=APPLY,
            )
            assert answer.status in (200, 201), (path.name, answer.message)

        self.await_kinds()

    def await_kinds(self) -> None:
        """Wait until all kinds are served and described, some time after the server is ready."""
        paths = [f"{GROUP}/{plural}" for plural in ("exports", "imports", "patternprocessors")]

        def served() -> bool:
            return all(self.request("GET", path).status == 200 for path in paths)

        until(served, 90.0, f"{paths} are served")
        until(lambda: self.published().keys() >= KINDS, 30.0, "the kinds are described")

    def published(self) -> dict[str, Any]:
        """Return the schemas of the OpenAPI document by kind; empty until the server has it."""
        document = self.request("GET", f"/openapi/v3{GROUP}").body
        schemas = document["components"]["schemas"] if isinstance(document, dict) else {}
        return {name.rpartition(".")[2]: schema for name, schema in schemas.items()}

    def make(self, path: str, kind: str, name: str, *, known: bool = False, **more: Any) -> Any:
        """Create an object of the core API and return it; ``known``: it may be there already."""
        body = {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, **more}
        answer = self.request("POST", f"/api/v1/{path}", body)
        assert answer.status == 201 or (known and answer.status == 409), answer.message
        return answer.body

    def create_namespace(self, name: str) -> None:
        self.make("namespaces", "Namespace", name)

    def remove_namespace(self, name: str) -> None:
        """Remove a namespace and the Exports and Imports in it; no controller does it here."""
        for plural in ("exports", "imports"):
            self.request("DELETE", f"{GROUP}/namespaces/{name}/{plural}")
        self.request("DELETE", f"/api/v1/namespaces/{name}")
        left = self.request("GET", f"/api/v1/namespaces/{name}")
        if left.status == 200:
            body = {**left.body, "spec": {"finalizers": []}}
            self.request("PUT", f"/api/v1/namespaces/{name}/finalize", body)

    def writes(self, *, plural: str | None = None) -> list[dict[str, Any]]:
        """Return the audit log's entries of writes by others than the server itself."""
        path = self._folder / "audit.log"
        lines = path.read_text().splitlines() if path.exists() else []
        entries: list[dict[str, Any]] = [json.loads(line) for line in lines]
        return [
            entry
            for entry in entries
            if entry["user"]["username"] != "system:apiserver"
            and plural in (None, entry.get("objectRef", {}).get("resource"))
        ]


@contextmanager
def running_api_server(assets: Path, folder: Path) -> Iterator[ApiServer]:
    """Run etcd and an API server with the CRDs; both are gone afterwards, with their data."""
    given = folder / "secrets"
    given.mkdir(parents=True)
    lines = [f'{secrets.token_hex(16)},{user},{user},"{group}"\n' for user, group in USERS.items()]
    (given / "tokens.csv").write_text("".join(lines))
    (given / "accounts.key").write_text(_signing_key())
    (given / "audit.yaml").write_text(_AUDIT_POLICY)
    etcd = Etcd(assets, folder)
    server = ApiServer(assets, folder, etcd, given)
    try:
        etcd.start()
        server.start()
        server.apply_crds()
        yield server
    finally:
        server.stop()
        etcd.remove()


def _signing_key() -> str:
    """Return a P-256 private key as PEM: RFC 5915 around a random number, without the point."""
    number = secrets.randbelow(1 << 255) + 1
    curve = bytes.fromhex("a00a06082a8648ce3d030107")
    der = bytes.fromhex("30310201010420") + number.to_bytes(32, "big") + curve
    text = base64.b64encode(der).decode()
    return f"-----BEGIN EC PRIVATE KEY-----\n{text}\n-----END EC PRIVATE KEY-----\n"


def sent(
    opener: urllib.request.OpenerDirector, request: urllib.request.Request | str, seconds: float
) -> tuple[int, bytes, Message]:
    """Send a request; return status, body and headers of the answer, also of a refusal."""
    try:
        answer = opener.open(request, timeout=seconds)
    except urllib.error.HTTPError as refusal:
        answer = refusal
    with answer:
        return answer.status, answer.read(), answer.headers
