"""Board, statuses and their writer as a leading broker has them, on a real API server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from streambroker_core.board import AgentRegistered, Board, BoardEvent
from streambroker_core.model import RULE, AnyKind, Kind, PeKey
from streambroker_core.wire.broker.ended_exports import make_ended_exports
from streambroker_operator.kubernetes.client.documents import Document
from streambroker_operator.kubernetes.client.http_api import HttpApi
from streambroker_operator.kubernetes.client.watch_client import ApiClient
from streambroker_operator.kubernetes.replicas.agent_reports import (
    EndsReport,
    PortReport,
    ViewReport,
)
from streambroker_operator.kubernetes.status.events import EventWriter, transition_notes
from streambroker_operator.kubernetes.status.port_reconciler import PortReconciler
from streambroker_operator.kubernetes.status.writer import StatusWrite, StatusWriter
from streambroker_operator.kubernetes.watch.kopf_feeder import KopfFeeder
from streambroker_operator.kubernetes.watch.reflector import ReflectorFeeder
from support.clusters.api_server import ApiServer
from support.clusters.calls import calls_of, fill, listed, open_to, true
from support.core.resources import registration


class Broker:
    """Board, statuses and writer as a leading broker has them, without a feed."""

    def __init__(
        self, api: HttpApi, namespace: str, settle_s: float = 0.2, leads: bool = True
    ) -> None:
        self.api, self.namespace = api, namespace
        self.board = Board()
        self.leads = leads
        self.events = EventWriter(api, "broker-0")
        self.statuses = PortReconciler(
            self.board.reader,
            lambda name, urgent: self.writer.offer(name, urgent=urgent),
            on_written=self._apply,
        )
        self.writer = StatusWriter(api, self.statuses, leads=lambda: self.leads, settle_s=settle_s)

    def _apply(self, write: StatusWrite) -> None:
        for note in transition_notes(write):
            self.events.record(note, time.time())

    async def fill(self) -> None:
        await fill(self.board, self.statuses, self.api, self.namespace)

    def observe(self, kind: AnyKind, body: Document, listed: bool) -> None:
        if kind != RULE:
            self.statuses.observe(kind, body, listed)

    def deliver(self, event: BoardEvent) -> None:
        self.statuses.on_actions(event, self.board.handle(event))

    async def settled(self) -> None:
        assert await true(lambda: self.writer.is_idle), (self.writer.writes, self.writer.waiting)
        await self.events.flush()

    def register(self, *jobs: str) -> None:
        for version, job in enumerate(jobs, start=1):
            where = PeKey(namespace=self.namespace, job=job, pe=0)
            event = AgentRegistered(pe=where, registration=registration(), version=version)
            self.statuses.on_actions(event, self.board.handle(event))

    def poll(self, *jobs: str) -> None:
        for job in jobs:
            where = PeKey(namespace=self.namespace, job=job, pe=0)
            view = self.board.reader.view(where)
            assert view is not None
            self.statuses.on_report(where, ViewReport(view.version))

    def report(self, job: str, report: PortReport) -> None:
        """Report as the agent of a job does."""
        self.statuses.on_report(PeKey(namespace=self.namespace, job=job, pe=0), report)

    def say(self, job: str, *ports: str) -> None:
        """Tell which exports of a job have ended, as its agent does with its poll."""
        self.report(job, EndsReport(make_ended_exports(ports)))

    async def read(self, kind: Kind, name: str) -> Any:
        items = await listed(self.api, self.namespace, kind)
        (found,) = [item for item in items if item["metadata"]["name"] == name]
        return found


@asynccontextmanager
async def broker_at(server: ApiServer, namespace: str, leads: bool = True) -> AsyncIterator[Broker]:
    async with calls_of(server) as api:
        broker = Broker(api, namespace, leads=leads)
        running = [
            asyncio.ensure_future(broker.writer.run()),
            asyncio.ensure_future(broker.events.run()),
        ]
        try:
            yield broker
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
    assert await true(lambda: not open_to(server.port), 10.0)


@asynccontextmanager
async def fed_broker_at(
    server: ApiServer, namespace: str, feeder: str = "reflector", leads: bool = True
) -> AsyncIterator[Broker]:
    async with broker_at(server, namespace, leads) as broker:
        make = ReflectorFeeder if feeder == "reflector" else KopfFeeder
        feeding = asyncio.ensure_future(
            make(ApiClient(server.access()), [namespace], broker.observe).run(broker.deliver)
        )
        try:
            assert await true(lambda: broker.board.reader.synced)
            yield broker
        finally:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)
