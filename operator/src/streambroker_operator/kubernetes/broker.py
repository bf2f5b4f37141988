"""Run a broker in a cluster: feed, REST, hints, statuses, Lease and probes, until it is stopped."""

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
from streambroker_operator.broker import listen
from streambroker_operator.cooperative import run_in_turns
from streambroker_operator.errors import AddressError, RequestError
from streambroker_operator.kubernetes.apply.port_store import KubernetesStore, read_secret
from streambroker_operator.kubernetes.auth.authorize import Authorizer
from streambroker_operator.kubernetes.auth.middleware import ClusterGuard
from streambroker_operator.kubernetes.auth.token_review import Authenticator, ReviewClient
from streambroker_operator.kubernetes.client.certificate import Certificate
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
from streambroker_operator.kubernetes.replicas import command_relay as errands
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
from streambroker_operator.runtime.agent_commands import CommandQueue, command_hinter
from streambroker_operator.runtime.runtime import Runtime

ANNOUNCE_S = 1.0
"""How often resources that came after their agents are told of them, in seconds."""
FORGET_S = 60.0
BEAT_S = 1.0
RETRY_S = 2.0
"""Pause before the broker's secret is asked for again, in seconds."""
MAX_PROBE_CONNECTIONS = 64
"""Connections that the port of probes and metrics may have."""
MAX_REVIEW_CONNECTIONS = 256
"""Connections that the port of the webhook may have."""
MANY_STATUSES = 100
"""So many statuses that wait go before messages about the nearest port."""
HINT_LOST_S = 5.0
"""An agent that takes longer to run a change has come by its poll: the hint was lost."""

_log = logging.getLogger("streambroker")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a broker in a cluster is run.

    Attributes:
        access: the API server.
        namespaces: those that are watched; empty for all.
        feeder: who follows the API server.
        pod: name of this pod, or of this machine.
        address: where other replicas reach the probes of this pod; empty for nowhere, and then no
            agent is ever told to be away.
        lease_name: of the Lease, in the namespace of ``access``.
        secret_name: of the Secret, there as well.
        make_secret: whether the broker creates that if it is missing.
        host: address to listen at.
        port: of REST; 0 picks a free one.
        metrics_port: of probes and metrics, likewise.
        certificate: files of certificate and key; None for no TLS.
        webhook: name of the ValidatingWebhookConfiguration that leads here; empty for none.
        webhook_secret: name of the Secret with the certificate of the webhook.
        webhook_port: of the webhook.
        limits: how much one caller may ask for.
        release: of this program.
        statuses_per_s: how many statuses are written per second at most; 0 for no limit but
            what the API server takes.
        drain_s: for how long it still answers when it is to end: others learn late of that.
        lease_timing: how the Lease is kept.
        timing: how the API server is asked.
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
    """A broker in this process.

    Args:
        settings: how it is run.

    Attributes:
        url: of REST, once it listens; likewise ``probes_url``.
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

    # ---- beginning and end -------------------------------------------------

    async def start(self) -> None:
        """Put everything together and listen; the board is filled by and by.

        Raises:
            OpenError: the certificate cannot be used.
            StoreError: there is no secret, or it is too short.
            AddressError: an address is taken.
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
        self._commands = errands.LeaderCommands(
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
        most = connection_limit(limits.connections)
        for_probes = min(MAX_PROBE_CONNECTIONS, most // 4)
        try:
            for_reviews = min(MAX_REVIEW_CONNECTIONS, most // 4) if settings.webhook else 0
            room = limits.connection_limits(most - for_probes - for_reviews)
            self.url = await self._listen(app, settings.port, "--port", room, tls)
            probes = create_probes(self._read_state, self.metrics)
            probes.router.add_post(relay.PATH, self._relay_handler(secret))
            probes.router.add_post(errands.PATH, errands.handler(own, secret, self._leads))
            room = limits.connection_limits(for_probes)
            port = settings.metrics_port
            self.probes_url = await self._listen(probes, port, "--metrics-port", room)
            webhook = await self._start_webhook(secret, limits.connection_limits(for_reviews))
        except AddressError:
            await self.stop()
            raise
        self._last_beat = _now()
        parts: list[Coroutine[Any, Any, None]] = [
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
            parts.append(certificate.follow())
        if webhook is not None:
            parts.append(webhook.run())
        self._lease_task = asyncio.create_task(self._supervise(self.lease.run()))
        self._tasks = [
            self._lease_task,
            *(asyncio.create_task(self._supervise(part)) for part in parts),
        ]

    async def _start_webhook(
        self, secret: bytes, connection_limits: tuple[int, int]
    ) -> Webhook | None:
        """Listen for reviews of the API server, if that is wanted."""
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
        """Let others lead, answer until callers know better, then close everything.

        Where the pod is taken out of its Service, nodes learn of that by and by; until then they
        send requests here.
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
        """Return when a part has failed that the broker cannot be without."""
        await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)

    async def _supervise(self, part: Coroutine[Any, Any, None]) -> None:
        try:
            await part
        except Exception:
            _log.exception("a part of the broker failed, which ends")
            raise

    async def _read_secret(self, objects: Objects) -> bytes:
        """Return the broker's secret; wait for the API server if it has to be."""
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
                _log.warning("the secret cannot be read yet: %s", error)
                await asyncio.sleep(RETRY_S)

    def _build(self, objects: Objects, secret: bytes) -> None:
        settings, board = self._settings, Board()
        pace = WriteRateLimiter(settings.statuses_per_s)
        self.store = KubernetesStore(objects, board, secret=secret, rate_limiter=pace)
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
            rate_limiter=pace,
        )
        endings = PublishedExportReports(
            self.status_controller.port_reconciler, self._leads, self._relay
        )
        self.runtime = Runtime(
            self.store, self._sender, board, self.status_controller, self._leads, endings
        )
        self.runtime.rules.published_status = (
            self.status_controller.rule_reconciler.published_status
        )
        self.runtime.rules.on_report = self._on_rule_report
        self.status_controller.deliver = self.runtime.deliver
        self.status_controller.cut_reason = self.runtime.cut_reason
        self.feeder = self._create_feeder()

    def _offer(self, name: Name, urgent: bool) -> None:
        """Ask the status writer to look at a resource."""
        live = name[0] == RULE or self.status_controller.port_reconciler.is_live(name)
        self.writer.offer(name, urgent=urgent, live=live)

    def _relay_handler(self, secret: bytes) -> Callable[[web.Request], Awaitable[web.Response]]:
        statuses = self.status_controller.port_reconciler
        rules = self.status_controller.rule_reconciler.on_report
        damaged = statuses.on_damage
        return relay.handler(secret, statuses.on_report, statuses.on_ends, rules, damaged)

    def _on_rule_report(self, pe: PeKey, reported: RuleStatusMap, more: bool) -> None:
        """Have it written what an agent says of its job's rules, by whoever leads."""
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
        kind = KopfFeeder if settings.feeder == "kopf" else ReflectorFeeder
        board = self.runtime.board
        return kind(
            client, settings.namespaces, self.status_controller.observe, board.newest_version
        )

    def _create_guard(self) -> ClusterGuard:
        known = self.store.registrations
        reviews = ReviewClient(self._api)
        self._reviews = reviews
        identities = Authenticator(reviews, key_for=self._key_for, account_for=known.account_for)
        return ClusterGuard(identities, Authorizer(reviews, known.account_for), known.jobs_for)

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
        began = time.perf_counter()
        self.runtime.deliver(event)
        if isinstance(event, ExportApplied | ImportApplied):
            self.metrics.observe_match(time.perf_counter() - began)

    # ---- what goes on ------------------------------------------------------

    def _leads(self) -> bool:
        return self.lease.leads

    def _on_leader_change(self, leads: bool) -> None:
        # Without an address it is not told which agents ask others, and never knows who is away.
        self.status_controller.port_reconciler.on_leader_change(
            leads and bool(self._settings.address)
        )
        if leads:
            self._reoffer_all()
            self.status_controller.rule_reconciler.offer_all()
            current = self.status_controller.port_reconciler.programmed_tracker.runs_current
            agents = self.runtime.board.registrations()
            # Whoever led before may have ended before it told them.
            self.runtime.hint(pe for pe in agents if not current(pe))
        else:
            self.writer.drop_all()

    def _reoffer_all(self) -> None:
        """Have all statuses looked at, while everything else has its turn."""
        if self._offering_task is not None:
            self._offering_task.cancel()
        self._offering_task = asyncio.create_task(
            run_in_turns(self.status_controller.port_reconciler.offer_in_steps())
        )

    def _on_applied(self, seconds: float) -> None:
        # Each replica hears of its own agents; only who leads hears of all, and sent the hints.
        if not self._leads():
            return
        self.metrics.observe_applied(seconds)
        self._hints_lost += seconds > HINT_LOST_S

    async def _run_garbage_collection(self) -> None:
        left = PeGarbage()
        while True:
            await asyncio.sleep(FORGET_S)
            await self.forget_pes(left, _now())

    async def forget_pes(self, garbage: PeGarbage, now: float) -> None:
        """Forget the PEs that nothing is left of; their jobs' names are free again.

        Args:
            garbage: knows since when they are silent.
            now: of the clock of the loop, in seconds.
        """
        board, heard = self.runtime.board, self.runtime.liveness
        known = (one.pe for one in self.store.pes())
        bare = [(pe, heard.last_contact(pe)) for pe in known if not any(board.resources_of(pe))]
        for pe in garbage.collect(bare, now):
            await self.runtime.withdraw(pe)

    async def _run_announcements(self) -> None:
        while True:
            await asyncio.sleep(ANNOUNCE_S)
            try:
                await self.store.announce()
            except RequestError as error:
                _log.debug("not all resources know their agents yet: %s", error)

    async def _run_heartbeat(self) -> None:
        while True:
            self._last_beat = _now()
            if self._leads():
                self.status_controller.port_reconciler.offer_away()
                self.status_controller.rule_reconciler.offer_due()
            await asyncio.sleep(BEAT_S)

    # ---- what is asked -----------------------------------------------------

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
        found: Counter[tuple[AnyKind, str]] = Counter()
        for (kind, difference), number in self.runtime.fallen_back.items():
            found[kind, difference] += number
        for kind, feed in self.feeder.feeds.items():
            found[kind, "ghost"] += feed.missed_deletions
            for what, number in feed.missed_changes.items():
                found[kind, what] += number
        return found

    def _count_agents(self) -> dict[AgentState, int]:
        """Return how many agents are in which state; nothing where others hear of them."""
        if not self._leads():
            return {}
        found: dict[AgentState, int] = dict.fromkeys(get_args(AgentState), 0)
        for pe in self.runtime.board.registrations():
            found[self.status_controller.port_reconciler.agent_state(pe)] += 1
        return found


def _now() -> float:
    return asyncio.get_running_loop().time()


__all__ = ["ClusterBroker", "Settings"]
