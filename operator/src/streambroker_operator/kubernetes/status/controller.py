"""Status pipeline: reconcilers compute statuses, one writer writes them, Events report transitions.

Observed objects, board actions and agents' reports go in.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from streambroker_core.board import Action, BoardEvent, BoardReader, RoutesChanged
from streambroker_core.model import RULE, AnyKind, PeKey, Resource, kind_of
from streambroker_core.wire.broker.ended_exports import EndedExports
from streambroker_core.wire.reports.rule_status import RuleStatusMap
from streambroker_operator.agents.port_reports import ChangedPort, PortFacts, ReportedPorts
from streambroker_operator.cooperative import run_in_turns
from streambroker_operator.kubernetes.apply.port_store import KubernetesStore
from streambroker_operator.kubernetes.client.documents import Document
from streambroker_operator.kubernetes.client.http_api import HttpApi
from streambroker_operator.kubernetes.client.rate_limiter import WriteRateLimiter
from streambroker_operator.kubernetes.replicas.agent_reports import (
    AgentReport,
    DamageReport,
    EndsReport,
    HealthReport,
    RulesReport,
    SchemaReport,
    StorageReport,
    ViewReport,
)
from streambroker_operator.kubernetes.status.events import (
    EventNote,
    EventWriter,
    route_cut_note,
    steering_overwritten_note,
    transition_notes,
)
from streambroker_operator.kubernetes.status.nearest_port import NearestSentences
from streambroker_operator.kubernetes.status.port_reconciler import PortReconciler
from streambroker_operator.kubernetes.status.rule_reconciler import RuleReconciler
from streambroker_operator.kubernetes.status.writer import Name, StatusWrite, StatusWriter
from streambroker_operator.runtime.runtime import Runtime

MANY_STATUSES = 100
"""With more waiting statuses than this, nearest-port messages are postponed."""


class StatusController:
    """Connects feed, runtime and relay with the status reconcilers, their writer and Events.

    It is the runtime's observer and its source of reported ends, damage and uploads. Those count as
    soon as the status shows them, so they are the same at every replica.

    Args:
        instance: name of this process in Events.
        leads: returns whether this process leads, and so writes statuses and Events.
        relay: passes an agent's report to the leader.
        on_applied: called with the seconds from a changed view until its agent runs it.

    Attributes:
        runtime: set once it exists, before any input.
    """

    runtime: Runtime

    def __init__(
        self,
        api: HttpApi,
        board: BoardReader,
        store: KubernetesStore,
        *,
        instance: str,
        leads: Callable[[], bool] = lambda: False,
        relay: Callable[[PeKey, AgentReport], None] = lambda *_: None,
        on_applied: Callable[[float], None] = lambda _: None,
        rate_limiter: WriteRateLimiter | None = None,
    ) -> None:
        self._board = board
        self._store = store
        self._leads = leads
        self._relay = relay
        self._offering_task: asyncio.Task[None] | None = None
        self.events = EventWriter(api, instance)
        self._nearest = NearestSentences(board, lambda name: self._offer(name, False))
        self.ports = PortReconciler(
            board,
            self._offer,
            steered=lambda name: store.steering.description(name[1]),
            on_written=self._on_status_written,
            nearest=self._nearest.get,
            on_port_state=self._on_port_state,
            on_applied=on_applied,
            on_deleted=store.on_deleted,
            reoffer_all=self._reoffer_ports,
        )
        self.rules = RuleReconciler(board, self._offer, on_written=self._on_status_written)
        self.writer = StatusWriter(
            api, self, leads=leads, must_write=self._must_write, rate_limiter=rate_limiter
        )

    # ---- lifecycle ---------------------------------------------------------

    def parts(self) -> list[Coroutine[Any, Any, None]]:
        """Return the coroutines to run concurrently."""
        nearest = self._nearest.run(self._leads, lambda: self.writer.waiting > MANY_STATUSES)
        return [self.writer.run(), self.events.run(), nearest]

    async def close(self) -> None:
        """Stop to enqueue statuses."""
        if self._offering_task is not None:
            self._offering_task.cancel()
            await asyncio.gather(self._offering_task, return_exceptions=True)

    def on_leader_change(self, leads: bool, *, is_reachable: bool) -> None:
        """Handle a change of leadership; other replicas relay to this one if it is reachable.

        Without their reports a leader cannot know which agents are away.
        """
        self.ports.on_leader_change(leads and is_reachable)
        if leads:
            self._reoffer_ports()
            self.rules.offer_all()
        else:
            self.writer.drop_all()

    def offer_due(self) -> None:
        """Enqueue statuses that time alone changes; called each second by the leader."""
        self.ports.offer_away()
        self.rules.offer_due()

    def _reoffer_ports(self) -> None:
        """Enqueue the statuses of all ports in steps, without blocking other tasks."""
        if self._offering_task is not None:
            self._offering_task.cancel()
        self._offering_task = asyncio.create_task(run_in_turns(self.ports.offer_in_steps()))

    def _offer(self, name: Name, urgent: bool) -> None:
        live = name[0] == RULE or self.ports.is_live(name)
        self.writer.offer(name, urgent=urgent, live=live)

    # ---- from the feed -----------------------------------------------------

    def observe(self, kind: AnyKind, body: Document, listed: bool) -> None:
        """Process an object from the API server before its events are delivered."""
        if kind == RULE:
            self.rules.observe(body, listed)
            return
        uid = str(body["metadata"]["uid"])
        steered = self._store.steering.description(uid)
        agent = self._store.registrations.observe(body)
        overwritten = self._store.steering.observe(body)
        self.ports.observe(kind, body, listed)
        # The owner of a field may change without its value: no other event reports that.
        if self._store.steering.description(uid) != steered:
            self.ports.offer((kind, uid))
        if agent is not None:
            self.runtime.feed.deliver(agent)
        resource = self._board.get(kind, uid)
        if overwritten is not None and resource is not None and self._leads():
            self._record(
                steering_overwritten_note(resource, overwritten.description, overwritten.manager)
            )

    # ---- from the runtime --------------------------------------------------

    def on_actions(self, event: BoardEvent, actions: Sequence[Action]) -> None:
        """Process the board's actions after an event."""
        self.ports.on_actions(event, actions)
        self.rules.on_actions(event, actions)
        if self._leads():
            self._record_cuts(actions)

    def _record_cuts(self, actions: Sequence[Action]) -> None:
        for action in actions:
            for change in action.route_changes if isinstance(action, RoutesChanged) else ():
                route = change.old
                if route is None or change.new is not None:
                    continue
                reason = self.runtime.cut_reason(route)
                export = self._board.get("Export", route.export_uid)
                import_ = self._board.get("Import", route.import_uid)
                for resource, peer in ((export, route.import_), (import_, route.export)):
                    if resource is not None:
                        self._record(route_cut_note(resource, peer, reason))

    def _record(self, note: EventNote) -> None:
        self.events.record(note, time.time())

    # ---- reports of agents -------------------------------------------------

    def on_report(self, pe: PeKey, report: AgentReport) -> None:
        """Apply a report that an agent sent to this or another replica."""
        if isinstance(report, RulesReport):
            self.rules.on_report(pe, report)
        else:
            self.ports.on_report(pe, report)

    def _on_own_report(self, pe: PeKey, report: AgentReport) -> None:
        """Apply a report sent to this replica; relay it unless this process leads."""
        self.on_report(pe, report)
        if not self._leads():
            self._relay(pe, report)

    def on_acknowledged(self, pe: PeKey, version: str, ago_s: float) -> None:
        """Record the version of the view that an agent runs, and since how many seconds."""
        self._on_own_report(pe, ViewReport(version, ago_s=ago_s))

    def on_rule_report(self, pe: PeKey, statuses: RuleStatusMap, more: bool) -> None:
        """Record the states of a job's rules."""
        self._on_own_report(pe, RulesReport(statuses, more))

    def apply_ends(self, pe: PeKey, ends: EndedExports) -> Sequence[ChangedPort]:
        """Apply reported ends; effective only once the status is written."""
        self._on_own_report(pe, EndsReport(ends))
        return ()

    def apply_report(self, pe: PeKey, report: ReportedPorts) -> Sequence[ChangedPort]:
        """Apply a report of ports; effective only once the status is written."""
        self._on_own_report(pe, DamageReport(report.damaged))
        self._on_own_report(pe, StorageReport(report.storage))
        self._on_own_report(pe, HealthReport(report.health))
        self._on_own_report(pe, SchemaReport(report.schemas))
        return ()

    def facts(self, resource: Resource) -> PortFacts:
        """Return what the status of an Export or Import reports."""
        return self.ports.published_facts((kind_of(resource), resource.uid))

    def forget(self, pe: PeKey) -> None:
        """Do nothing: the reconcilers drop a PE when the board withdraws it."""

    # ---- from the writer ---------------------------------------------------

    def build(self, name: Name) -> StatusWrite | None:
        """Return the status to write; None if it is up to date or the resource is gone."""
        return (self.rules if name[0] == RULE else self.ports).build(name)

    def on_written(self, write: StatusWrite, answer: Document) -> None:
        """Handle the resource that the API server returned after a write."""
        (self.rules if write.kind == RULE else self.ports).on_written(write, answer)

    def _must_write(self, name: Name) -> bool:
        return name[0] != RULE and self.ports.must_write(name)

    def _on_status_written(self, write: StatusWrite) -> None:
        """Record Events for transitions that a status write published."""
        for note in transition_notes(write):
            self._record(note)

    def _on_port_state(self, name: Name) -> None:
        kind, uid = name
        if kind != RULE:
            self.runtime.change_log.note_status(kind, uid)
            self.runtime.change_log.flush()
