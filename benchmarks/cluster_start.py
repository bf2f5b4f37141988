"""From the start of a broker's process until it serves 20,000 resources of a real API server.

Both feeders in turns, first with resources that nobody has told anything of, then with statuses.
"""

from __future__ import annotations

import asyncio
import threading
import time
import urllib.request
from typing import Any

from feed import fill, processor_seconds
from kube_resources import api_server, but_leases, child_of, memory
from measure import Figures, Settings, quantile, turns

from streambroker_core.board import Board, BoardEvent
from streambroker_core.model import RULE, AnyKind
from streambroker_operator.kubernetes.client.documents import Document
from streambroker_operator.kubernetes.client.http_api import HttpApi
from streambroker_operator.kubernetes.client.kubeconfig import Access, from_kubeconfig
from streambroker_operator.kubernetes.client.watch_client import ApiClient
from streambroker_operator.kubernetes.status.port_reconciler import PortReconciler
from streambroker_operator.kubernetes.status.writer import StatusWriter
from streambroker_operator.kubernetes.watch.informer import FEEDERS
from streambroker_operator.kubernetes.watch.reflector import ReflectorFeeder

PURPOSE = "a broker on a real API server: its start with 10,000 Exports and 10,000 Imports"
EACH = 10_000
QUIET_S = 2.0
"""Whose process has used next to nothing of the cores for so long has listed everything."""


def run(settings: Settings) -> Figures:
    """Fill an API server, start brokers, write all statuses, start brokers."""
    figures = Figures()
    count = EACH // (10 if settings.quick else 1)
    with api_server(settings, figures, "start") as api:
        if api is None:
            return figures
        from support.clusters.replicas import make_key

        make_key(api, "default")
        access = from_kubeconfig(api.kubeconfig())
        asyncio.run(fill(access, count))
        settings.say(f"{2 * count:,} resources are there")
        rounds(settings, figures, api, "")
        began = time.perf_counter()
        asyncio.run(fill_statuses(access, 2 * count))
        figures.add(f"first statuses of {2 * count:,} resources", time.perf_counter() - began, "s")
        settings.say("and their statuses")
        rounds(settings, figures, api, ", with statuses")
    figures.note(f"{count:,} Exports and {count:,} Imports; starts, one after the other, in turns.")
    figures.note("kopf's process begins once the board is served; its memory after it has listed.")
    figures.note("All on the same cores: API server, etcd, broker, kopf, and who asks.")
    return figures


def rounds(settings: Settings, figures: Figures, api: Any, label: str) -> None:
    """Start a broker with each feeder in turn."""
    for round_ in range(settings.rounds):
        figures.yardstick()
        for feeder in turns(FEEDERS, round_):
            start(settings, figures, api, feeder, label)


def start(settings: Settings, figures: Figures, api: Any, feeder: str, label: str) -> None:
    """Measure one start."""
    from support.clusters.replicas import operator

    name, listening, written = f"{feeder}{label}", Listening(), len(but_leases(api))
    before, began = processor_seconds(api.program.pid), time.perf_counter()
    options = ("--feeder", feeder)
    with operator(api, settings.place, "default", *options, listens=listening.begin) as broker:
        figures.add(f"{name}: start to served board", time.perf_counter() - began, "s")
        spent = processor_seconds(api.program.pid) - before
        figures.add(f"{name}: of it, processor of the API server", spent, "s")
        for what, share in (("p99", 0.99), ("max", 1.0)):
            delay = quantile(listening.end(), share) * 1e3
            figures.add(f"{name}: an answer of its loop meanwhile, {what}", delay, "ms")
        # Without statuses the broker writes them for minutes, and kopf hears of each.
        if feeder == "kopf" and label:
            kopf = listed(broker.process.pid)
            figures.add(f"{name}: resident memory of kopf's process", memory(kopf), "MiB")
        own = memory(broker.process.pid)
        figures.add(f"{name}: resident memory of the broker", own, "MiB")
        if label:
            # Long enough for a Lease to be taken and for statuses to be looked at.
            time.sleep(0.0 if settings.quick else 5.0)
    figures.add("resident memory of the API server", memory(api.program.pid), "MiB")
    if label:
        writes = len(but_leases(api)) - written
        figures.add(f"{name}: writes, the Lease apart", writes, "writes")


def listed(broker: int) -> int:
    """Return kopf's process once it has hardly used the cores for a while; it may begin twice."""
    found, last, since = None, 0.0, time.perf_counter()
    while found is None or time.perf_counter() - since < QUIET_S:
        time.sleep(0.1)
        kopf = child_of(broker, "kopf_child")
        try:
            now = 0.0 if kopf is None else processor_seconds(kopf)
        except OSError:
            continue
        if kopf != found or now - last > 0.02 * QUIET_S:
            found, last, since = kopf, now, time.perf_counter()
    return found


async def fill_statuses(access: Access, count: int) -> None:
    """Write of every resource what a broker would that no agent has registered with."""
    board, api = Board(), HttpApi(access)
    statuses = PortReconciler(board.reader, lambda name, urgent: writer.offer(name, urgent=urgent))
    writer = StatusWriter(api, statuses, leads=lambda: True, settle_s=0.0)

    def observe(kind: AnyKind, body: Document, listed: bool) -> None:
        if kind != RULE:
            statuses.observe(kind, body, listed)

    feeder = ReflectorFeeder(ApiClient(access), (), observe)

    def deliver(event: BoardEvent) -> None:
        statuses.on_actions(event, list(board.handle(event)))

    running = [asyncio.ensure_future(part) for part in (feeder.run(deliver), writer.run())]
    while writer.writes["done"] < count or not writer.is_idle:
        done, _ = await asyncio.wait(running, timeout=0.2, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    await api.close()


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
