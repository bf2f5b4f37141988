"""Brokers of a cluster, each a process of its own, and agents that speak to them by hand."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import secrets
import signal
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from email.message import Message
from pathlib import Path
from typing import Any

from streambroker_core.wire.broker import ended_exports as ends
from streambroker_core.wire.broker.registration import decode_answer
from streambroker_operator.kubernetes.broker import ClusterBroker, Settings
from streambroker_operator.kubernetes.client.kubeconfig import from_kubeconfig
from support.clusters.api_server import GROUP, JSON, ApiServer, sent
from support.clusters.calls import make_account, make_pod, manifest, token_of, true
from support.processes.forks import CLI, program
from support.processes.ports import free_port
from support.processes.waiting import until

_LISTENS = re.compile(r"listening on (\S+), probes and metrics on (\S+)")
START_SECONDS = 30.0
_OPEN = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def make_key(server: ApiServer, namespace: str) -> None:
    key = base64.b64encode(secrets.token_bytes(32)).decode()
    server.make(f"namespaces/{namespace}/secrets", "Secret", "streambroker", data={"key": key})


def kubeconfig(
    server: ApiServer, folder: Path, namespace: str, token: str | None, url: str = ""
) -> Path:
    """Write a kubeconfig whose context is in a namespace; without a token, the admin's.

    ``url`` is of a proxy before the server.
    """
    config = json.loads(server.kubeconfig().read_text())
    if url:
        config["clusters"][0]["cluster"] = {"server": url}
    config["contexts"][0]["context"]["namespace"] = namespace
    if token is not None:
        config["users"][0]["user"] = {"token": token}
    path = folder / "kubeconfig.json"
    path.write_text(json.dumps(config))
    return path


class Operator:
    """One replica."""

    def __init__(self, command: list[str], environ: Mapping[str, str], log: Path) -> None:
        self._log = log
        with log.open("wb") as out:
            self.process = program(command, stdout=out, stderr=out, environment=environ)
        self.url = self.probes = ""

    def await_ready(self, listens: Callable[[str], None], *, synced: bool) -> None:
        """Wait until it listens, and has read everything if it is to be ``synced``."""
        until(self._listens, START_SECONDS, "the broker listens")
        listens(self.probes)
        if synced:
            until(lambda: self.probe("/readyz")[0] == 200, 2 * START_SECONDS, "the broker is ready")

    def _listens(self) -> bool:
        said = self._log.read_text()
        assert self.process.poll() is None, said
        found = _LISTENS.search(said)
        if found is not None:
            self.url, self.probes = found.groups()
        return found is not None

    def probe(self, path: str) -> tuple[int, str]:
        status, text, _ = sent(_OPEN, self.probes + path, 5.0)
        return status, text.decode()

    @property
    def leads(self) -> bool:
        return "lease held" in self.probe("/readyz")[1]

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(timeout=20.0)

    def call(
        self, token: str, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[int, Any, Message]:
        """Send a request below ``/api/subscriptions``, or to ``/api/…``; return what came of it."""
        data = None if body is None else json.dumps(body).encode()
        given = {"Authorization": f"Bearer {token}", "Content-Type": JSON, **headers}
        where = path if path.startswith("/api/") else f"/api/subscriptions{path}"
        request = urllib.request.Request(self.url + where, data=data, method=method, headers=given)
        status, text, answered = sent(_OPEN, request, 20.0)
        return status, json.loads(text) if text else None, answered


@contextmanager
def operator(
    server: ApiServer,
    folder: Path,
    namespace: str,
    *options: str,
    token: str | None = None,
    url: str = "",
    synced: bool = True,
    listens: Callable[[str], None] = lambda _: None,
) -> Iterator[Operator]:
    """Run a replica that watches one namespace, by default as one who may do everything.

    ``url`` is of a proxy before the API server. One that will not be ``synced`` is not waited for.
    """
    own = folder / secrets.token_hex(4)
    own.mkdir()
    environ = {
        **os.environ,
        "KUBECONFIG": str(kubeconfig(server, own, namespace, token, url)),
        "POD_NAME": f"broker-{own.name}",
        "POD_IP": "127.0.0.1",
        "PYTHONUNBUFFERED": "1",
    }
    # Replicas are told each other's address, so that the port has to be known beforehand.
    command = [*CLI, "operator", "--port", "0", "--metrics-port", str(free_port())]
    command += ["--log-level", "INFO", "--drain", "0", *options]
    found = Operator(command, environ, own / "broker.log")
    try:
        found.await_ready(listens, synced=synced)
        yield found
    finally:
        if found.process.poll() is None:
            found.stop()


class _Here(Operator):
    def __init__(self, settings: Settings) -> None:
        self.url = self.probes = ""
        self.listens, self._loop = threading.Event(), asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self.thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._run()))
        self._settings = settings

    async def _run(self) -> None:
        broker = ClusterBroker(self._settings)
        await broker.start()
        self.url, self.probes = broker.url, broker.probes_url
        self.listens.set()
        await self._stopping.wait()
        await broker.stop()
        assert await true(lambda: self._open() == 1), "connections are still open"

    def _open(self) -> int:
        """Return how many files the loop watches; one is its own."""
        selector: Any = getattr(self._loop, "_selector", None)
        return len(selector.get_map())

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self.thread.join(20.0)
        self._loop.close()


@contextmanager
def operator_here(
    server: ApiServer, folder: Path, namespace: str, **settings: Any
) -> Iterator[Operator]:
    """Run a replica in this process, for tests that need time to pass faster."""
    access = from_kubeconfig(kubeconfig(server, folder, namespace, None))
    own: dict[str, Any] = {"port": 0, "metrics_port": 0, "drain_s": 0.0}
    own |= {"feeder": "reflector", **settings}
    found = _Here(Settings(access=access, release="0", namespaces=(namespace,), **own))
    found.thread.start()
    try:
        assert found.listens.wait(30.0)
        until(lambda: found.probe("/readyz")[0] == 200, 60.0, "the broker is ready")
        yield found
    finally:
        found.stop()


class SignedAgent:
    """An agent's requests, from a pod of its job."""

    def __init__(
        self,
        server: ApiServer,
        namespace: str,
        job: str,
        *,
        hint: str | None = None,
        location: str = "grpc+tcp://127.0.0.1:1",
    ) -> None:
        instance = secrets.token_hex(8)
        make_account(server, namespace, job)
        self._pod = make_pod(server, namespace, f"{job}-{instance}", job)
        self.token = token_of(server, namespace, job, pod=self._pod)
        self._pe, self._query = f"/job/{job}/pe/0", f"?namespace={namespace}"
        self.path = self.at("")
        self.version, self.key = "", b""
        self._said: dict[str, Any] = {"instance": instance, "location": location}
        if hint is not None:
            self._said["hint"] = hint

    def at(self, rest: str) -> str:
        return f"{self._pe}{rest}{self._query}"

    def register(self, broker: Operator) -> None:
        status, answer, _ = broker.call(self.token, "PUT", self.path, self._said)
        assert status == 200, answer
        self.key = decode_answer(answer).key

    def poll(self, broker: Operator, *ended: str) -> dict[str, Any] | None:
        """Ask for the view, and run it; None where it is as it was."""
        sent = {"If-None-Match": f'"{self.version}"'} if self.version else {}
        sent |= {ends.HEADER: ends.encode(ends.make_ended_exports(ended))} if ended else {}
        status, view, headers = broker.call(self.token, "GET", self.path, **sent)
        if status == 304:
            return None
        assert status == 200, view
        self.version = headers["ETag"].strip('"')
        found: dict[str, Any] = view
        return found


def declare(api: ApiServer, namespace: str) -> None:
    """Make an Export and an Import that wants it, by kubectl."""
    export = manifest("Export", "feed", job="feed", port="trades", properties={"kind": "trade"})
    wanted = 'kind == "trade"'
    import_ = manifest("Import", "alerts", job="alerts", port="in", subscription=wanted)
    for document in (export, import_):
        done = api.kubectl("apply", "-n", namespace, "-f", "-", stdin=json.dumps(document))
        assert done.returncode == 0, done.stderr


def status_of(api: ApiServer, namespace: str, plural: str, name: str) -> dict[str, Any]:
    answer = api.request("GET", f"{GROUP}/namespaces/{namespace}/{plural}/{name}")
    assert answer.status == 200, answer.message
    found: dict[str, Any] = answer.body.get("status") or {}
    return found


def condition(api: ApiServer, namespace: str, plural: str, name: str, type_: str) -> str | None:
    conditions = status_of(api, namespace, plural, name).get("conditions", [])
    return next((one["status"] for one in conditions if one["type"] == type_), None)


def connected(api: ApiServer, namespace: str, broker: Operator) -> tuple[SignedAgent, SignedAgent]:
    """Connect two jobs whose agents ask one broker."""
    agents = SignedAgent(api, namespace, "feed"), SignedAgent(api, namespace, "alerts")
    for agent in agents:
        agent.register(broker)
    declare(api, namespace)
    until(lambda: ready_over(api, namespace, broker, agents), 20.0, "both are ready")
    return agents


def ready_over(
    api: ApiServer, namespace: str, broker: Operator, agents: tuple[SignedAgent, SignedAgent]
) -> bool:
    """Say whether both ends are ready, after both agents have asked a broker."""
    # As agents do: who has run a change says so with the next poll.
    for agent in agents:
        agent.poll(broker)
    names = (("exports", "feed"), ("imports", "alerts"))
    return all(condition(api, namespace, *name, "Ready") == "True" for name in names)
