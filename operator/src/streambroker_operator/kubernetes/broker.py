"""Broker of a cluster: runs feed, REST, hints, statuses, Lease and probes until stopped."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from aiohttp import web

from streambroker_core.board import Board, BoardEvent, ExportApplied, ImportApplied
from streambroker_core.model import RULE, AnyKind, Kind, PeKey
from streambroker_core.wire.reports.rule_status import RuleStatusMap
from streambroker_operator.agents.hint_sender import HintSender
from streambroker_operator.cooperative import run_in_turns
from streambroker_operator.errors import AddressError, RequestError
from streambroker_operator.kubernetes.apply.port_store import KubernetesStore, read_secret
from streambroker_operator.kubernetes.auth.authorize import Authorizer
from streambroker_operator.kubernetes.auth.middleware import ClusterGuard
from streambroker_operator.kubernetes.auth.token_review import Authenticator, ReviewClient
from streambroker_operator.kubernetes.client.http_api import HttpApi
from streambroker_operator.kubernetes.client.kubeconfig import Access
from streambroker_operator.kubernetes.client.objects import Objects
from streambroker_operator.kubernetes.client.rate_limiter import WriteRateLimiter
from streambroker_operator.kubernetes.client.watch_client import ApiClient, Timing
from streambroker_operator.kubernetes.observability.health import BrokerState
from streambroker_operator.kubernetes.observability.metrics import (
    BrokerGauges,
    Metrics,
    count_writes,
)
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
from streambroker_operator.kubernetes.status.controller import (
    PublishedExportReports,
    StatusController,
)
from streambroker_operator.kubernetes.status.events import EventWriter
from streambroker_operator.kubernetes.status.nearest_port import NearestSentences
from streambroker_operator.kubernetes.status.port_reconciler import PortReconciler
from streambroker_operator.kubernetes.status.programmed import AgentState
from streambroker_operator.kubernetes.status.rule_reconciler import RuleReconciler
from streambroker_operator.kubernetes.status.sources import StatusSources
from streambroker_operator.kubernetes.status.writer import Name, StatusWriter
from streambroker_operator.kubernetes.watch.informer import ApiFeeder, FeederName
from streambroker_operator.kubernetes.watch.kopf_feeder import KopfFeeder
from streambroker_operator.kubernetes.watch.reflector import ReflectorFeeder
from streambroker_operator.kubernetes.webhook.review import review
from streambroker_operator.kubernetes.webhook.server import Webhook
from streambroker_operator.rest import create_app
from streambroker_operator.rest.agents.reports import REPORTS, Reports
from streambroker_operator.rest.guard.connections import connection_limit
from streambroker_operator.rest.guard.rate_limits import RateLimits
from streambroker_operator.rest.listen import listen
from streambroker_operator.runtime.agent_commands import CommandQueue, command_hinter
from streambroker_operator.runtime.runtime import Runtime
from streambroker_operator.security.certificate import Certificate

ANNOUNCE_S = 1.0
"""Seconds between announcements of agents to resources created after them."""
FORGET_S = 60.0
BEAT_S = 1.0
RETRY_S = 2.0
"""Seconds before reading the broker's secret is retried."""
MAX_PROBE_CONNECTIONS = 64
"""Maximum connections of the port for probes and metrics."""
MAX_REVIEW_CONNECTIONS = 256
"""Maximum connections of the webhook port."""
MANY_STATUSES = 100
"""With more waiting statuses than this, nearest-port messages are postponed."""
HINT_LOST_S = 5.0
"""An agent that applies a change later than this found it by polling: the hint was lost."""

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
        self._closing = False
        self._reports: Reports | None = None
        self._offering_task: asyncio.Task[None] | None = None
        self._last_beat = 0.0
        self._hints_lost = 0
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
        self._objects = objects
        self._build(objects, secret)
        tls = None if certificate is None else certificate.context
        limits = settings.limits or RateLimits()
        wait_s = limits.agent_wait_s
        own = CommandQueue(command_hinter(self.runtime), wait_s)
        self._commands = command_relay.LeaderCommands(
            own, secret, self._leads, lambda: self.lease.leader_address, wait_s
        )
        app = create_app(
            self.runtime,
            limits=settings.limits,
            guard=self._create_guard(),
            commands=self._commands,
        )
        self._reports = app[REPORTS]
        app.middlewares.insert(0, count_answers(self.metrics))
        app.middlewares.insert(0, close_when_stopping(lambda: self._closing))
        total = connection_limit(limits.connections)
        probe_share = min(MAX_PROBE_CONNECTIONS, total // 4)
        try:
            review_share = min(MAX_REVIEW_CONNECTIONS, total // 4) if settings.webhook else 0
            connection_limits = limits.connection_limits(total - probe_share - review_share)
            self.url = await self._listen(app, settings.port, "--port", connection_limits, tls)
            probes = create_probes(self._read_state, self.metrics)
            probes.router.add_post(relay.PATH, self._relay_handler(secret))
            probes.router.add_post(
                command_relay.PATH, command_relay.handler(own, secret, self._leads)
            )
            connection_limits = limits.connection_limits(probe_share)
            port = settings.metrics_port
            self.probes_url = await self._listen(probes, port, "--metrics-port", connection_limits)
            webhook = await self._start_webhook(secret, limits.connection_limits(review_share))
        except AddressError:
            await self.stop()
            raise
        self._last_beat = _now()
        components: list[Coroutine[Any, Any, None]] = [
            self.feeder.run(self._deliver, self.runtime.load),
            self.writer.run(),
            self._events.run(),
            self._relay.run(),
            self._run_announcements(),
            self._nearest.run(self._leads, lambda: self.writer.waiting > MANY_STATUSES),
            self._run_garbage_collection(),
            self._run_heartbeat(),
        ]
        if certificate is not None:
            components.append(certificate.follow())
        if webhook is not None:
            components.append(webhook.run())
        self._lease_task = asyncio.create_task(self._supervise(self.lease.run()))
        self._tasks = [
            self._lease_task,
            *(asyncio.create_task(self._supervise(part)) for part in components),
        ]

    async def _start_webhook(
        self, secret: bytes, connection_limits: tuple[int, int]
    ) -> Webhook | None:
        """Listen for admission reviews of the API server, if configured."""
        settings = self._settings
        if not settings.webhook:
            return None
        webhook = Webhook(
            self._objects,
            namespace=settings.access.namespace,
            secret_name=settings.webhook_secret,
            configuration=settings.webhook,
            key=secret,
            review=lambda asked: review(asked, self.runtime.board, settings.namespaces),
        )
        port = settings.webhook_port
        await self._listen(webhook.app, port, "--webhook-port", connection_limits, webhook.tls)
        return webhook

    async def stop(self) -> None:
        """Release the Lease, serve until callers notice, then close everything.

        After a pod is removed from its Service, nodes still send requests here for a while.
        """
        self._closing = True
        if self._tasks:
            await self._release_lease()
            await asyncio.sleep(self._settings.drain_s)
        self.runtime.close()
        ending = [*self._tasks, *([] if self._offering_task is None else [self._offering_task])]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        for runner in self._runners:
            await runner.cleanup()
        await self._commands.close()
        self._sender.close()
        self.store.close()
        await self._api.close()

    async def _release_lease(self) -> None:
        self._lease_task.cancel()
        await asyncio.gather(self._lease_task, return_exceptions=True)
        await self.lease.release()

    async def wait_failed(self) -> None:
        """Return when a component that the broker requires has failed."""
        await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)

    async def _supervise(self, part: Coroutine[Any, Any, None]) -> None:
        try:
            await part
        except Exception:
            _log.exception("broker component failed, shutting down")
            raise

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

    def _build(self, objects: Objects, secret: bytes) -> None:
        settings, board = self._settings, Board()
        rate_limiter = WriteRateLimiter(settings.statuses_per_s)
        self.store = KubernetesStore(objects, board, secret=secret, rate_limiter=rate_limiter)
        self._sender = HintSender()
        self._events = EventWriter(self._api, settings.pod)
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
        self.metrics = Metrics(self._read_gauges)
        self.status_controller = StatusController(
            board, self.store, self._events, leads=self._leads, relay=self._relay.note_version
        )
        self._nearest = NearestSentences(
            board,
            lambda name: self._offer(name, False),
        )
        self.status_controller.port_reconciler = PortReconciler(
            board,
            self._offer,
            steered=lambda name: self.store.steering.description(name[1]),
            on_written=self.status_controller.on_status_written,
            nearest=self._nearest.get,
            on_export_state=self._on_export_state,
            on_applied=self._on_applied,
            reoffer_all=self._reoffer_all,
        )
        self.status_controller.rule_reconciler = RuleReconciler(
            board,
            self._offer,
            on_written=self.status_controller.on_status_written,
        )
        sources = StatusSources(
            self.status_controller.port_reconciler, self.status_controller.rule_reconciler
        )
        self.writer = StatusWriter(
            self._api,
            sources,
            leads=self._leads,
            must_write=self.status_controller.port_reconciler.must_write,
            rate_limiter=rate_limiter,
        )
        export_reports = PublishedExportReports(
            self.status_controller.port_reconciler, self._leads, self._relay
        )
        self.runtime = Runtime(
            self.store, self._sender, board, self.status_controller, self._leads, export_reports
        )
        self.runtime.rules.published_status = (
            self.status_controller.rule_reconciler.published_status
        )
        self.runtime.rules.on_report = self._on_rule_report
        self.status_controller.deliver = self.runtime.deliver
        self.status_controller.cut_reason = self.runtime.cut_reason
        self.feeder = self._create_feeder()

    def _offer(self, name: Name, urgent: bool) -> None:
        """Enqueue a resource at the status writer."""
        live = name[0] == RULE or self.status_controller.port_reconciler.is_live(name)
        self.writer.offer(name, urgent=urgent, live=live)

    def _relay_handler(self, secret: bytes) -> Callable[[web.Request], Awaitable[web.Response]]:
        statuses = self.status_controller.port_reconciler
        rules = self.status_controller.rule_reconciler.on_report
        damaged = statuses.on_damage
        return relay.handler(secret, statuses.on_report, statuses.on_ends, rules, damaged)

    def _on_rule_report(self, pe: PeKey, reported: RuleStatusMap, more: bool) -> None:
        """Have the leader write the report of an agent about the rules of its job."""
        self.status_controller.rule_reconciler.on_report(pe, reported, more)
        if not self._leads():
            self._relay.note_rules(pe, reported, more)

    def _on_export_state(self, name: Name) -> None:
        kind, uid = name
        if kind != RULE:
            self.runtime.change_log.note_status(kind, uid)
            self.runtime.change_log.flush()

    def _create_feeder(self) -> ApiFeeder:
        settings = self._settings
        client = ApiClient(settings.access, settings.timing)
        feeder_class = KopfFeeder if settings.feeder == "kopf" else ReflectorFeeder
        board = self.runtime.board
        return feeder_class(
            client, settings.namespaces, self.status_controller.observe, board.newest_version
        )

    def _create_guard(self) -> ClusterGuard:
        registrations = self.store.registrations
        reviews = ReviewClient(self._api)
        self._reviews = reviews
        identities = Authenticator(
            reviews, key_for=self._key_for, account_for=registrations.account_for
        )
        return ClusterGuard(
            identities, Authorizer(reviews, registrations.account_for), registrations.jobs_for
        )

    def _instance_for(self, pe: PeKey) -> str:
        registration = self.runtime.board.registration(pe)
        return "" if registration is None else registration.instance

    def _key_for(self, pe: PeKey, instance: str) -> bytes | None:
        registration = self.runtime.board.registration(pe)
        if registration is None or registration.instance != instance:
            return None
        return self.runtime.agent_key(pe, registration)

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

    def _deliver(self, event: BoardEvent) -> None:
        started_at = time.perf_counter()
        self.runtime.deliver(event)
        if isinstance(event, ExportApplied | ImportApplied):
            self.metrics.observe_match(time.perf_counter() - started_at)

    # ---- running -----------------------------------------------------------

    def _leads(self) -> bool:
        return self.lease.leads

    def _on_leader_change(self, leads: bool) -> None:
        # Other replicas relay to this address. Without it the leader cannot know who is away.
        self.status_controller.port_reconciler.on_leader_change(
            leads and bool(self._settings.address)
        )
        if leads:
            self._reoffer_all()
            self.status_controller.rule_reconciler.offer_all()
            current = self.status_controller.port_reconciler.programmed_tracker.runs_current
            agents = self.runtime.board.registrations()
            # The previous leader may have stopped before it sent the hints.
            self.runtime.hint(pe for pe in agents if not current(pe))
        else:
            self.writer.drop_all()

    def _reoffer_all(self) -> None:
        """Enqueue all statuses in steps, without blocking other tasks."""
        if self._offering_task is not None:
            self._offering_task.cancel()
        self._offering_task = asyncio.create_task(
            run_in_turns(self.status_controller.port_reconciler.offer_in_steps())
        )

    def _on_applied(self, seconds: float) -> None:
        # Each replica sees its own agents. Only the leader gets all reports and sent the hints.
        if not self._leads():
            return
        self.metrics.observe_applied(seconds)
        self._hints_lost += seconds > HINT_LOST_S

    async def _run_garbage_collection(self) -> None:
        garbage = PeGarbage()
        while True:
            await asyncio.sleep(FORGET_S)
            await self.forget_pes(garbage, _now())

    async def forget_pes(self, garbage: PeGarbage, now: float) -> None:
        """Withdraw PEs that have no resources and are silent; their jobs' names become free."""
        board, liveness = self.runtime.board, self.runtime.liveness
        pes = (stored.pe for stored in self.store.pes())
        without_resources = [
            (pe, liveness.last_contact(pe)) for pe in pes if not any(board.resources_of(pe))
        ]
        for pe in garbage.collect(without_resources, now):
            await self.runtime.withdraw(pe)

    async def _run_announcements(self) -> None:
        while True:
            await asyncio.sleep(ANNOUNCE_S)
            try:
                await self.store.announce()
            except RequestError as error:
                _log.debug("agent addresses are not written to all resources yet: %s", error)

    async def _run_heartbeat(self) -> None:
        while True:
            self._last_beat = _now()
            if self._leads():
                self.status_controller.port_reconciler.offer_away()
                self.status_controller.rule_reconciler.offer_due()
            await asyncio.sleep(BEAT_S)

    # ---- state and metrics -------------------------------------------------

    def _read_state(self) -> BrokerState:
        board, health = self.runtime.board, self.feeder.health()
        return BrokerState(
            beat_age_s=_now() - self._last_beat,
            synced=board.synced,
            closing=self._closing,
            stale=board.stale or bool(health.last_error),
            leads=self._leads(),
            reason=health.reason or health.last_error,
            refused=health.refused,
        )

    def _read_gauges(self) -> BrokerGauges:
        board = self.runtime.board
        kinds: Sequence[Kind] = ("Export", "Import")
        exports, imports = board.point
        feeds = self.feeder.feeds
        refused = {kind: len(board.standby_uids(kind)) for kind in kinds}
        count = {
            "Export": len(list(board.iter_exports())),
            "Import": len(list(board.iter_imports())),
        }
        return BrokerGauges(
            release=self._settings.release,
            synced=board.synced,
            leads=self._leads(),
            routes=board.route_count,
            board_versions={"Export": exports, "Import": imports},
            watch_age_s={kind: feed.stale_for_s() for kind, feed in feeds.items()},
            followed={
                (kind, namespace): namespace not in feed.refused
                for kind, feed in feeds.items()
                for namespace in self._settings.namespaces
            },
            resources={
                **{(kind, "refused"): refused[kind] for kind in kinds},
                **{(kind, "accepted"): count[kind] - refused[kind] for kind in kinds},
            },
            agents=self._count_agents(),
            reported_routes=self._reports.count_states(time.monotonic()) if self._reports else {},
            hints_sent=self._sender.sent,
            hints_lost=self._hints_lost,
            resyncs=sum(feed.resyncs for feed in feeds.values()),
            resync_differences=self._count_differences(),
            relists={kind: max(0, feed.relists - 1) for kind, feed in feeds.items()},
            feeder_restarts=self.feeder.restarts,
            writes=count_writes(
                self.writer.metrics, self._events, self.lease, self._objects.writes
            ),
            reviews=dict(self._reviews.counts),
        )

    def _count_differences(self) -> Mapping[tuple[AnyKind, str], int]:
        differences: Counter[tuple[AnyKind, str]] = Counter()
        for (kind, difference), number in self.runtime.fallen_back.items():
            differences[kind, difference] += number
        for kind, feed in self.feeder.feeds.items():
            differences[kind, "ghost"] += feed.missed_deletions
            for missed, number in feed.missed_changes.items():
                differences[kind, missed] += number
        return differences

    def _count_agents(self) -> dict[AgentState, int]:
        """Return the number of agents per state; empty unless this replica leads."""
        if not self._leads():
            return {}
        counts: dict[AgentState, int] = dict.fromkeys(get_args(AgentState), 0)
        for pe in self.runtime.board.registrations():
            counts[self.status_controller.port_reconciler.agent_state(pe)] += 1
        return counts


def _now() -> float:
    return asyncio.get_running_loop().time()


__all__ = ["ClusterBroker", "Settings"]
