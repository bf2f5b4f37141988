"""Broker of a cluster: runs feed, REST, hints, statuses, Lease and probes until stopped."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from streambroker_core.board import Board
from streambroker_core.model import PeKey
from streambroker_core.wire.manifests.quotas import Quotas
from streambroker_operator.agents.hint_sender import HintSender
from streambroker_operator.cooperative import loop_time
from streambroker_operator.errors import AddressError, RequestError
from streambroker_operator.kubernetes.apply.port_store import KubernetesStore, read_secret
from streambroker_operator.kubernetes.auth.middleware import ClusterGuard
from streambroker_operator.kubernetes.auth.token_review import Authenticator, ReviewClient
from streambroker_operator.kubernetes.client.http_api import HttpApi
from streambroker_operator.kubernetes.client.kubeconfig import Access
from streambroker_operator.kubernetes.client.objects import Objects
from streambroker_operator.kubernetes.client.rate_limiter import WriteRateLimiter
from streambroker_operator.kubernetes.client.watch_client import ApiClient, Timing
from streambroker_operator.kubernetes.observability.monitor import BrokerMonitor
from streambroker_operator.kubernetes.observability.probes import (
    close_when_stopping,
    count_answers,
    create_probes,
)
from streambroker_operator.kubernetes.replicas import command_relay
from streambroker_operator.kubernetes.replicas import report_relay as relay
from streambroker_operator.kubernetes.replicas.election import LeaseTiming
from streambroker_operator.kubernetes.replicas.garbage import PeGarbage
from streambroker_operator.kubernetes.replicas.lease import Lease, new_identity
from streambroker_operator.kubernetes.status.controller import StatusController
from streambroker_operator.kubernetes.watch.informer import ApiFeeder, FeederName
from streambroker_operator.kubernetes.watch.kopf_feeder import KopfFeeder
from streambroker_operator.kubernetes.watch.reflector import ReflectorFeeder
from streambroker_operator.kubernetes.webhook.review import review
from streambroker_operator.kubernetes.webhook.server import Webhook
from streambroker_operator.lineage import LineageSender, LineageTarget
from streambroker_operator.rest.agents.reports import REPORTS
from streambroker_operator.rest.app import create_app
from streambroker_operator.rest.guard.connections import connection_limit
from streambroker_operator.rest.guard.rate_limits import RateLimits
from streambroker_operator.rest.listen import listen
from streambroker_operator.runtime.agent_commands import CommandQueue, command_hinter
from streambroker_operator.runtime.runtime import Runtime
from streambroker_operator.security.certificate import Certificate
from streambroker_telemetry import otlp

ANNOUNCE_S = 1.0
"""Seconds between announcements of agents to resources created after them."""
FORGET_S = 60.0
BEAT_S = 1.0
COLLECT_S = 5.0
RETRY_S = 2.0
"""Seconds before reading the broker's secret is retried."""
MAX_PROBE_CONNECTIONS = 64
"""Maximum connections of the port for probes and metrics."""
MAX_REVIEW_CONNECTIONS = 256
"""Maximum connections of the webhook port."""

_log = logging.getLogger("streambroker")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of a broker in a cluster.

    Attributes:
        namespaces: namespaces to watch; empty for all.
        pod: name of this pod or machine.
        address: address of this pod's probes for other replicas. If empty, no agent is ever
            reported as away.
        lease_name: name of the Lease, in the namespace of ``access``.
        secret_name: name of the Secret, in the same namespace.
        port: REST port; 0 picks a free one.
        metrics_port: port of probes and metrics; 0 picks a free one.
        certificate: files of certificate and key; None for no TLS.
        webhook: name of the ValidatingWebhookConfiguration that calls this broker; empty for none.
        webhook_secret: name of the Secret with the certificate of the webhook.
        limits: request limits per caller.
        make_secret: whether the broker creates a missing Secret.
        statuses_per_s: maximum status writes per second; 0 for the limit of the API server only.
        page: whether the page is served at ``/ui/``.
        peek: whether callers may look at rows.
        lineage: receives the graph from the leader; None for no receiver.
        quotas: of namespaces.
        drain_s: seconds that a stopping broker keeps serving, until callers stop using it.
    """

    access: Access
    release: str
    namespaces: tuple[str, ...] = ()
    feeder: FeederName = "kopf"
    pod: str = "broker"
    address: str = ""
    lease_name: str = "streambroker"
    secret_name: str = "streambroker"  # noqa: S105 - a name, and no secret
    host: str = "127.0.0.1"
    port: int = 8470
    metrics_port: int = 8471
    certificate: tuple[Path, Path] | None = None
    webhook: str = ""
    webhook_secret: str = "streambroker-webhook"  # noqa: S105 - a name, and no secret
    webhook_port: int = 8473
    limits: RateLimits | None = None
    make_secret: bool = False
    statuses_per_s: float = 0.0
    page: bool = True
    peek: bool = True
    lineage: LineageTarget | None = None
    quotas: Quotas | None = None
    drain_s: float = 3.0
    lease_timing: LeaseTiming = field(default_factory=LeaseTiming)
    timing: Timing = field(default_factory=Timing)


class ClusterBroker:
    """Broker in this process.

    Attributes:
        url: REST URL, once the broker listens.
        probes_url: URL of probes and metrics, once the broker listens.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._tasks: list[asyncio.Task[None]] = []
        self._runners: list[web.AppRunner] = []
        self._telemetry: otlp.Telemetry | None = None
        self.url = self.probes_url = ""

    # ---- start and stop ----------------------------------------------------

    async def start(self) -> None:
        """Build the components and listen; the feed fills the board afterwards.

        Raises:
            OpenError: the certificate cannot be used.
            StoreError: the secret is missing or too short.
            AddressError: an address is in use.
        """
        settings = self._settings
        certificate = None if settings.certificate is None else Certificate(*settings.certificate)
        self._api = HttpApi(settings.access)
        objects = Objects(self._api)
        try:
            secret = await self._read_secret(objects)
        except BaseException:
            await self._api.close()
            raise
        reviews = ReviewClient(self._api)
        self._build(objects, reviews, secret)
        try:
            components = await self._listen_all(objects, reviews, secret, certificate)
        except AddressError:
            await self.stop()
            raise
        self._monitor.beat()
        self._telemetry = _push_metrics(settings.pod, self._monitor)
        components += [
            self.feeder.run(
                self._monitor.observed(self.runtime.feed.deliver), self.runtime.feed.load
            ),
            *self._status.parts(),
            self._relay.run(),
            self._run_announcements(),
            self._run_garbage_collection(),
            self._run_heartbeat(),
        ]
        self._tasks = [
            asyncio.create_task(self._supervise(part)) for part in (self.lease.run(), *components)
        ]
        if settings.lineage is not None:
            self._monitor.lineage = LineageSender(settings.lineage)
            self._monitor.lineage.start(self.runtime, self._leads)

    def _build(self, objects: Objects, reviews: ReviewClient, secret: bytes) -> None:
        settings, machine = self._settings, Board()
        board = machine.reader
        rate_limiter = WriteRateLimiter(settings.statuses_per_s)
        self.store = KubernetesStore(objects, board, secret=secret, rate_limiter=rate_limiter)
        self.lease = Lease(
            self._api,
            namespace=settings.access.namespace,
            name=settings.lease_name,
            identity=new_identity(settings.pod),
            timing=settings.lease_timing,
            address=settings.address,
            on_change=self._on_leader_change,
        )
        self._relay = relay.ReportRelay(
            secret, lambda: self.lease.leader_address, self._instance_for
        )
        self._monitor = BrokerMonitor(
            settings.release, settings.namespaces, objects, reviews, self.lease
        )
        self._status = StatusController(
            self._api,
            board,
            self.store,
            instance=settings.pod,
            leads=self._leads,
            relay=self._relay.note,
            on_applied=self._monitor.on_applied,
            rate_limiter=rate_limiter,
        )
        self.runtime = Runtime(
            self.store,
            HintSender(),
            machine,
            self._status,
            self._leads,
            self._status,
            settings.quotas,
        )
        self._status.runtime = self.runtime
        self.runtime.rules.published_status = self._status.rules.published_status
        self.runtime.rules.on_report = self._status.on_rule_report
        feeder_class = KopfFeeder if settings.feeder == "kopf" else ReflectorFeeder
        self.feeder: ApiFeeder = feeder_class(
            ApiClient(settings.access, settings.timing),
            settings.namespaces,
            self._status.observe,
            board.newest_version,
        )
        self._monitor.connect(self.runtime, self._status, self.feeder)

    async def _read_secret(self, objects: Objects) -> bytes:
        """Return the broker's secret; retry while the API server is unavailable."""
        while True:
            try:
                return await read_secret(
                    objects,
                    self._settings.access.namespace,
                    self._settings.secret_name,
                    create=self._settings.make_secret,
                )
            except RequestError as error:
                if error.status != 503:
                    raise
                _log.warning("cannot read the secret yet: %s", error)
                await asyncio.sleep(RETRY_S)

    async def stop(self) -> None:
        """Release the Lease, serve until callers notice, then close everything.

        After a pod is removed from its Service, nodes still send requests here for a while.
        """
        self._monitor.closing = True
        if self._tasks:
            leasing = self._tasks[0]
            leasing.cancel()
            await asyncio.gather(leasing, return_exceptions=True)
            await self.lease.release()
            await asyncio.sleep(self._settings.drain_s)
        if self._monitor.lineage is not None:
            await self._monitor.lineage.stop()
        self.runtime.publisher.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._status.close()
        for runner in self._runners:
            await runner.cleanup()
        if self._telemetry is not None:
            await asyncio.to_thread(self._telemetry.close)
        await self._commands.close()
        self.runtime.sender.close()
        self.store.close()
        await self._api.close()

    async def wait_failed(self) -> None:
        """Return when a component that the broker requires has failed."""
        await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)

    async def _supervise(self, part: Coroutine[Any, Any, None]) -> None:
        try:
            await part
        except Exception:
            _log.exception("broker component failed, shutting down")
            raise

    # ---- listening -----------------------------------------------------------

    async def _listen_all(
        self,
        objects: Objects,
        reviews: ReviewClient,
        secret: bytes,
        certificate: Certificate | None,
    ) -> list[Coroutine[Any, Any, None]]:
        """Listen for REST, probes and admission reviews; return what has to run for them."""
        settings, monitor = self._settings, self._monitor
        limits = settings.limits or RateLimits()
        wait_s = limits.agent_wait_s
        own = CommandQueue(command_hinter(self.runtime), wait_s)
        self._commands = command_relay.LeaderCommands(
            own, secret, self._leads, lambda: self.lease.leader_address, wait_s
        )
        app = create_app(
            self.runtime,
            limits=settings.limits,
            guard=self._create_guard(reviews),
            commands=self._commands,
            page=settings.page,
            peek=settings.peek,
        )
        monitor.reports = app[REPORTS]
        app.middlewares.insert(0, count_answers(monitor.metrics))
        app.middlewares.insert(0, close_when_stopping(lambda: monitor.closing))
        total = connection_limit(limits.connections)
        probe_share = min(MAX_PROBE_CONNECTIONS, total // 4)
        review_share = min(MAX_REVIEW_CONNECTIONS, total // 4) if settings.webhook else 0
        connection_limits = limits.connection_limits(total - probe_share - review_share)
        tls = None if certificate is None else certificate.context
        if certificate is not None:
            monitor.certificate_ends["rest"] = lambda: certificate.valid_until
        self.url = await self._listen(app, settings.port, "--port", connection_limits, tls)
        probes = create_probes(monitor.read_state, monitor.metrics)
        probes.router.add_post(relay.PATH, relay.handler(secret, self._status.on_report))
        probes.router.add_post(command_relay.PATH, command_relay.handler(own, secret, self._leads))
        connection_limits, port = limits.connection_limits(probe_share), settings.metrics_port
        self.probes_url = await self._listen(probes, port, "--metrics-port", connection_limits)
        webhook = None
        if settings.webhook:
            webhook = Webhook(
                objects,
                namespace=settings.access.namespace,
                secret_name=settings.webhook_secret,
                configuration=settings.webhook,
                key=secret,
                review=lambda asked: review(asked, self.runtime.board, settings.namespaces),
            )
            monitor.certificate_ends["webhook"] = lambda: webhook.valid_until
            connection_limits, port = limits.connection_limits(review_share), settings.webhook_port
            await self._listen(webhook.app, port, "--webhook-port", connection_limits, webhook.tls)
        return [
            *([] if certificate is None else [certificate.follow()]),
            *([] if webhook is None else [webhook.run()]),
        ]

    async def _listen(
        self,
        app: web.Application,
        port: int,
        option: str,
        connection_limits: tuple[int, int],
        tls: ssl.SSLContext | None = None,
    ) -> str:
        host = self._settings.host
        runner, url = await listen(
            app, host, port, connection_limits=connection_limits, tls=tls, option=option
        )
        self._runners.append(runner)
        return url

    def _create_guard(self, reviews: ReviewClient) -> ClusterGuard:
        agents = self.store.registrations.endpoints
        identities = Authenticator(reviews, key_for=self._key_for, account_for=agents.account_for)
        return ClusterGuard(identities, reviews, agents.account_for, agents.jobs_for)

    def _instance_for(self, pe: PeKey) -> str:
        registration = self.runtime.board.registration(pe)
        return "" if registration is None else registration.instance

    def _key_for(self, pe: PeKey, instance: str) -> bytes | None:
        registration = self.runtime.board.registration(pe)
        if registration is None or registration.instance != instance:
            return None
        return self.runtime.agent_key(pe, registration)

    # ---- running -----------------------------------------------------------

    def _leads(self) -> bool:
        return self.lease.leads

    def _on_leader_change(self, leads: bool) -> None:
        self._status.on_leader_change(leads, is_reachable=bool(self._settings.address))
        if leads:
            current = self._status.ports.programmed_tracker.runs_current
            agents = self.runtime.board.registrations()
            # The previous leader may have stopped before it sent the hints.
            self.runtime.publisher.hint(pe for pe in agents if not current(pe))

    async def _run_garbage_collection(self) -> None:
        """Withdraw PEs that have no resources and are silent; their jobs' names become free."""
        garbage = PeGarbage()
        board, liveness = self.runtime.board, self.runtime.liveness
        while True:
            await asyncio.sleep(FORGET_S)
            pes = (stored.pe for stored in self.store.pes())
            without_resources = [
                (pe, liveness.last_contact(pe)) for pe in pes if not any(board.resources_of(pe))
            ]
            for pe in garbage.collect(without_resources, loop_time()):
                await self.runtime.withdraw(pe)

    async def _run_announcements(self) -> None:
        while True:
            await asyncio.sleep(ANNOUNCE_S)
            try:
                await self.store.registrations.announce()
            except RequestError as error:
                _log.debug("agent addresses are not written to all resources yet: %s", error)

    async def _run_heartbeat(self) -> None:
        while True:
            self._monitor.beat()
            if self._leads():
                self._status.offer_due()
            await asyncio.sleep(BEAT_S)


__all__ = ["ClusterBroker", "Settings"]


def _push_metrics(pod: str, monitor: BrokerMonitor) -> otlp.Telemetry | None:
    """Send the metrics by OTLP, if the environment asks for it; the loop reads them."""
    telemetry = otlp.start({"service.name": "streambroker", "service.instance.id": pod})
    if telemetry is None:
        return None
    loop = asyncio.get_running_loop()

    async def collect() -> list[otlp.Family]:
        return monitor.metrics.families()

    telemetry.push_metrics(
        lambda: asyncio.run_coroutine_threadsafe(collect(), loop).result(COLLECT_S)
    )
    return telemetry
