"""A whole broker on a real API server: from its start, and from ``kubectl`` to the agents' routes.

API server, etcd, broker, agents and whoever makes the changes share the cores.
"""

from __future__ import annotations

import asyncio
import http.client
import itertools
import json
import os
import ssl
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from change_to_route import Links, took_of
from feed import fill, processor_seconds
from links import PORT
from measure import Figures, Settings, quantile

from streambroker_operator.kubernetes.access import from_kubeconfig

PURPOSE = "a broker on a real API server: cold start, PATCH -> routes of agents, a burst, and rest"
EACH = 10_000
AGENTS = 50
RATES = (10, 100)
SECONDS = 10.0
BURST = 1_000
REST_S = 600.0
JSON = "application/json"
PATCH = "application/merge-patch+json"


def run(settings: Settings) -> Figures:
    """Start an API server for each part, and measure."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from support.cluster import running_api_server
    from support.kube_programs import assets

    figures = Figures()
    try:
        programs = assets()
    except pytest.skip.Exception as missing:
        figures.note(f"not measured: {missing}")
        return figures
    for name, part in (("start", cold_start), ("changes", changes)):
        with running_api_server(programs, settings.place / name) as api:
            part(settings, api, figures)
    figures.note("All on the same cores: API server, etcd, broker, agents, and who changes.")
    return figures


# ---- start -------------------------------------------------------------------------------------


def cold_start(settings: Settings, api: Any, figures: Figures) -> None:
    """Measure from the start of the process until it is ready, with many resources there."""
    from support.operators import make_key, operator

    count = EACH // (10 if settings.quick else 1)
    make_key(api, "default")
    asyncio.run(fill(from_kubeconfig(api.kubeconfig()), count))
    for _ in range(settings.rounds):
        figures.yardstick()
        before, began = processor_seconds(api.program.pid), time.perf_counter()
        listening = Listening()
        with operator(api, settings.place, "default", listens=listening.begin) as broker:
            figures.add("start to served board", time.perf_counter() - began, "s")
            spent = processor_seconds(api.program.pid) - before
            figures.add("of it, processor of the API server", spent, "s")
            figures.add("resident memory of the broker", memory(broker.process.pid), "MiB")
            for label, share in (("p99", 0.99), ("max", 1.0)):
                delay = quantile(listening.end(), share) * 1e3
                figures.add(f"an answer of its loop meanwhile, {label}", delay, "ms")
    figures.note(f"{count:,} Exports and {count:,} Imports; kopf's process is not in the memory.")


class Listening:
    """Asks for ``/livez`` again and again, which the loop that reads and matches answers."""

    def __init__(self) -> None:
        self._took: list[float] = []
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, url: str) -> None:
        """Begin to ask."""
        self._thread = threading.Thread(target=self._ask, args=(url,), daemon=True)
        self._thread.start()

    def _ask(self, url: str) -> None:
        door = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        while not self._over.wait(0.005):
            began = time.perf_counter()
            with door.open(f"{url}/livez", timeout=30.0) as answer:
                answer.read()
            self._took.append(time.perf_counter() - began)

    def end(self) -> list[float]:
        """Stop; return the seconds that each answer took."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        return self._took


def memory(pid: int) -> float:
    """Return the most resident memory that a process has had, in MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


# ---- changes -----------------------------------------------------------------------------------


def changes(settings: Settings, api: Any, figures: Figures) -> None:
    """Measure changes of filters by the API server until agents run them."""
    from support.operators import Agent, make_key, operator

    make_key(api, "default")
    takers = [f"taker-{number}" for number in range(AGENTS)]
    bench = Cluster(api)
    bench.declare("Export", "feed", job="feed", port="out", properties={"kind": "out"})
    for job in takers:
        bench.declare("Import", job, job=job, port=PORT, subscription='kind == "out"')
    os.environ["STREAMBROKER_TOKEN"] = Agent(api, "default", "jobs").token
    with operator(api, settings.place, "default") as broker:
        links = Links(settings.place, broker.url, ["feed", *takers])
        try:
            measure(settings, figures, bench, links, takers)
            rest(settings, figures, api, bench)
        finally:
            links.end()


def measure(
    settings: Settings, figures: Figures, bench: Cluster, links: Links, takers: list[str]
) -> None:
    """Change at several rates, then as fast as the API server takes it."""
    seconds = 2.0 if settings.quick else SECONDS
    bench.changed(takers, 10, 2.0)
    for _ in range(settings.rounds):
        figures.yardstick()
        for rate in RATES:
            sent = bench.changed(takers, rate, seconds)
            took = took_of([one[:3] for one in sent], lambda: links.ask("seen"))
            for label, share in (("p50", 0.5), ("p99", 0.99)):
                name = f"PATCH -> agent, {rate} changes/s, {label}"
                figures.add(name, quantile(took, share) * 1e3, "ms")
            answered = quantile([one[3] for one in sent], 0.5) * 1e3
            figures.add(f"the API server's answer, {rate} changes/s, p50", answered, "ms")
        sent = bench.changed(takers, 0, 0.0)
        last = max(began + answer for _, began, _, answer in sent)
        newest = {job: max(g for j, _, g, _ in sent if j == job) for job in takers}
        took = took_of([(job, last, g) for job, g in newest.items()], lambda: links.ask("seen"))
        figures.add(f"burst of {BURST:,}: last answer -> all agents", max(0.0, *took), "s")
        figures.add(f"burst of {BURST:,}: API server", last - min(o[1] for o in sent), "s")


def rest(settings: Settings, figures: Figures, api: Any, bench: Cluster) -> None:
    """Count what is written while nothing changes, once the statuses of the changes are."""
    time.sleep(35.0)
    before = len(api.writes())
    leases = bench.leases()
    time.sleep(10.0 if settings.quick else REST_S)
    written = len(api.writes()) - before - (bench.leases() - leases)
    figures.add("writes in ten minutes of rest, the Lease apart", float(written), "writes")


class Cluster:
    """Declares and changes resources as kubectl would.

    Args:
        api: the API server.
    """

    def __init__(self, api: Any) -> None:
        self._api = api
        self._numbers = itertools.count(1)
        self._own = threading.local()
        self._tls = ssl.create_default_context(cafile=str(api.ca))

    def declare(self, kind: str, name: str, **spec: Any) -> None:
        """Make a resource."""
        body = {"apiVersion": "streambroker.io/v1alpha1", "kind": kind, "spec": spec}
        self._send("POST", f"{kind.lower()}s", {**body, "metadata": {"name": name}})

    def _send(self, method: str, rest: str, body: Any, content_type: str = JSON) -> Any:
        path = f"/apis/streambroker.io/v1alpha1/namespaces/default/{rest}"
        headers = {
            "Authorization": f"Bearer {self._api.tokens['admin']}",
            "Content-Type": content_type,
        }
        connection = self._connection()
        connection.request(method, path, json.dumps(body), headers)
        answer = connection.getresponse()
        found = json.loads(answer.read())
        if answer.status not in (200, 201):
            raise RuntimeError(found)
        return found

    def _connection(self) -> http.client.HTTPSConnection:
        """Return this thread's connection, which it keeps: programs do so, too."""
        known: http.client.HTTPSConnection | None = getattr(self._own, "connection", None)
        if known is None:
            known = http.client.HTTPSConnection(
                "127.0.0.1", self._api.port, timeout=60.0, context=self._tls
            )
            self._own.connection = known
        return known

    def changed(
        self, jobs: list[str], rate: int, seconds: float
    ) -> list[tuple[str, float, int, float]]:
        """Change filters in turn, at a rate, or a burst as fast as it goes if that is 0.

        Returns:
            of each its job, when it was sent, its generation, and seconds until the answer.
        """
        count = int(rate * seconds) if rate else BURST
        due = time.perf_counter()
        sent: list[tuple[str, float, int, float]] = []

        def change(number: int) -> None:
            if rate:
                time.sleep(max(0.0, due + number / rate - time.perf_counter()))
            job = jobs[number % len(jobs)]
            began = time.perf_counter()
            spec = {"filter": f"a > {next(self._numbers)}"}
            body = self._send("PATCH", f"imports/{job}", {"spec": spec}, PATCH)
            answered = time.perf_counter() - began
            sent.append((job, began, int(body["metadata"]["generation"]), answered))

        with ThreadPoolExecutor(8) as pool:
            for order in [pool.submit(change, number) for number in range(count)]:
                order.result()
        return sent

    def leases(self) -> int:
        """Return how many writes of Leases there were."""
        return len(self._api.writes(plural="leases"))
