"""State and metrics of a broker, read from its parts."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import get_args

from streambroker_core.board import BoardEvent, ExportApplied, ImportApplied
from streambroker_core.model import AnyKind, Resource
from streambroker_core.wire.manifests.ports import OBJECTS, PLURALS
from streambroker_operator.cooperative import loop_time
from streambroker_operator.kubernetes.auth.token_review import ReviewClient
from streambroker_operator.kubernetes.client.objects import Objects
from streambroker_operator.kubernetes.observability.health import BrokerState
from streambroker_operator.kubernetes.observability.metrics import Labelled, Metrics, count_writes
from streambroker_operator.kubernetes.replicas.lease import Lease
from streambroker_operator.kubernetes.status.controller import StatusController
from streambroker_operator.kubernetes.status.programmed import AgentState
from streambroker_operator.kubernetes.watch.informer import ApiFeeder
from streambroker_operator.lineage import LineageSender
from streambroker_operator.rest.agents.reports import Reports
from streambroker_operator.runtime.runtime import Runtime

HINT_LOST_S = 5.0
"""An agent that applies a change later than this found it by polling: the hint was lost."""


class BrokerMonitor:
    """Reads the state and the metrics of a broker.

    Args:
        namespaces: watched namespaces; empty for all.

    Attributes:
        closing: whether the broker is stopping.
        reports: reports of agents; None until REST is set up.
        lineage: sends the graph; None if it has no receiver.
        certificate_ends: functions that return when a certificate ends, by its use; 0 without one.
    """

    def __init__(
        self,
        release: str,
        namespaces: Sequence[str],
        objects: Objects,
        reviews: ReviewClient,
        lease: Lease,
    ) -> None:
        self._release = release
        self._namespaces = namespaces
        self._objects = objects
        self._reviews = reviews
        self._lease = lease
        self._last_beat = loop_time()
        self._hints_lost = 0
        self.closing = False
        self.reports: Reports | None = None
        self.lineage: LineageSender | None = None
        self.certificate_ends: dict[str, Callable[[], float]] = {}
        self.metrics = Metrics(self._read_values)
        self._runtime: Runtime
        self._status: StatusController
        self._feeder: ApiFeeder

    def connect(self, runtime: Runtime, status: StatusController, feeder: ApiFeeder) -> None:
        """Set the parts to read from."""
        self._runtime, self._status, self._feeder = runtime, status, feeder

    def beat(self) -> None:
        """Record that the event loop works."""
        self._last_beat = loop_time()

    def observed(self, deliver: Callable[[BoardEvent], None]) -> Callable[[BoardEvent], None]:
        """Return a function that delivers an event and records how long matching takes."""

        def timed(event: BoardEvent) -> None:
            started_at = time.perf_counter()
            deliver(event)
            if isinstance(event, ExportApplied | ImportApplied):
                self.metrics.observe_match(time.perf_counter() - started_at)

        return timed

    def on_applied(self, seconds: float) -> None:
        """Record the time from a changed view until its agent ran it."""
        # Each replica sees its own agents. Only the leader gets all reports and sent the hints.
        if self._lease.leads:
            self.metrics.observe_applied(seconds)
            self._hints_lost += seconds > HINT_LOST_S

    def read_state(self) -> BrokerState:
        """Return the state for the probes."""
        board, health = self._runtime.board, self._feeder.health()
        return BrokerState(
            beat_age_s=loop_time() - self._last_beat,
            synced=board.synced,
            closing=self.closing,
            stale=board.stale or bool(health.last_error),
            leads=self._lease.leads,
            reason=health.reason or health.last_error,
            refused=health.refused,
            lineage="" if self.lineage is None else self.lineage.problem,
        )

    def _read_values(self) -> Mapping[str, Labelled]:
        board, sender = self._runtime.board, self._runtime.sender
        exports, imports = board.point
        feeds = self._feeder.feeds
        health = {OBJECTS[kind]: feed.health for kind, feed in feeds.items()}
        reported = self.reports.count_states(time.monotonic()) if self.reports else {}
        return {
            "build_info": {(self._release,): 1},
            "feed_synced": {(): board.synced},
            "leader": {(): self._lease.leads},
            "routes": {(): board.route_count},
            "board_version": {(OBJECTS["Export"],): exports, (OBJECTS["Import"],): imports},
            "watch_age_seconds": {(kind,): feed.stale_for_s() for kind, feed in health.items()},
            "namespace_followed": {
                (OBJECTS[kind], namespace): namespace not in feed.lister.refused
                for kind, feed in feeds.items()
                for namespace in self._namespaces
            },
            "broker_certificate_expiry_timestamp_seconds": {
                (use,): end for use, read in self.certificate_ends.items() if (end := read())
            },
            **self._count_quotas(),
            "resources": self._count_resources(),
            "agents": self._count_agents(),
            "reported_routes": {(state,): count for state, count in reported.items()},
            "lineage_pending": {(): 0 if self.lineage is None else self.lineage.pending},
            "lineage_events": {}
            if self.lineage is None
            else {(result,): count for result, count in self.lineage.results.items()},
            "hints_sent": {(): sender.sent},
            "hints_lost": {(): self._hints_lost},
            "sweeps": {(): sum(feed.resyncs for feed in health.values())},
            "sweep_differences": self._count_differences(),
            "relists": {(kind,): max(0, feed.relists - 1) for kind, feed in health.items()},
            "feeder_restarts": {(): self._feeder.restarts},
            "api_writes": count_writes(
                self._objects.writes,
                status=self._status.writer.writes,
                event=self._status.events.writes,
                lease=self._lease.writes,
            ),
            "reviews": self._reviews.counts,
        }

    def _count_resources(self) -> Labelled:
        board = self._runtime.board
        counts = dict.fromkeys(product(PLURALS.values(), ("accepted", "refused")), 0)
        counts[PLURALS["Export"], "accepted"] = len(list(board.iter_exports()))
        counts[PLURALS["Import"], "accepted"] = len(list(board.iter_imports()))
        for (kind, uid), status in board.statuses().items():
            if not status.accepted:
                counts[PLURALS[kind], "refused"] += 1
                counts[PLURALS[kind], "accepted"] -= board.get(kind, uid) is not None
        return counts

    def _count_quotas(self) -> Mapping[str, Labelled]:
        """Return quota and use of each namespace that has a quota and a port."""
        board = self._runtime.board
        resources: list[Resource] = [*board.iter_exports(), *board.iter_imports()]
        limits, used = dict[tuple[str, str], float](), dict[tuple[str, str], float]()
        for of in {one.key.namespace for one in resources} if board.quotas.by_namespace else ():
            quota, usage = board.quotas.find(of), board.usage(of)._asdict()
            for resource, limit in (("ports", quota.ports), ("bytes", quota.bytes)):
                if limit is not None:
                    limits[of, resource], used[of, resource] = limit, usage[resource]
        return {"quota_limit": limits, "quota_used": used}

    def _count_differences(self) -> Labelled:
        differences: Counter[tuple[AnyKind, str]] = Counter()
        differences.update(self._runtime.publisher.fallen_back)
        for kind, feed in self._feeder.feeds.items():
            differences[kind, "ghost"] += feed.health.missed_deletions
            for missed, number in feed.health.missed_changes.items():
                differences[kind, missed] += number
        return {(OBJECTS[kind], missed): count for (kind, missed), count in differences.items()}

    def _count_agents(self) -> Labelled:
        """Return the number of agents per state; empty unless this replica leads."""
        if not self._lease.leads:
            return {}
        counts = {(state,): 0 for state in get_args(AgentState)}
        for pe in self._runtime.board.registrations():
            counts[(self._status.ports.agent_state(pe),)] += 1
        return counts
