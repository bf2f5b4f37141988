"""Passes board actions and observed objects to the status reconcilers, Events and the store."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from streambroker_core.board import (
    Action,
    Board,
    BoardEvent,
    ExportRemoved,
    ImportRemoved,
    RoutesChanged,
    Synced,
)
from streambroker_core.model import RULE, AnyKind, Kind, PeKey, PortKey, Resource, Route
from streambroker_core.wire.broker.ended_exports import EndedExports
from streambroker_operator.kubernetes.apply.port_store import KubernetesStore
from streambroker_operator.kubernetes.client.watch_client import Body
from streambroker_operator.kubernetes.replicas.report_relay import ReportRelay
from streambroker_operator.kubernetes.status.events import (
    EventWriter,
    PublishedConditions,
    route_cut_note,
    steering_overwritten_note,
    transition_notes,
)
from streambroker_operator.kubernetes.status.port_reconciler import PortReconciler
from streambroker_operator.kubernetes.status.rule_reconciler import RuleReconciler
from streambroker_operator.kubernetes.status.writer import StatusWrite


class StatusController:
    """Connects feed and runtime with the status reconcilers, Events and the store.

    `deliver`, `cut_reason` and the reconcilers are set once the runtime exists. `leads` returns
    whether this process leads, and so records Events. `relay` passes the version that an agent runs
    to the leader.
    """

    def __init__(
        self,
        board: Board,
        store: KubernetesStore,
        events: EventWriter,
        *,
        leads: Callable[[], bool],
        relay: Callable[[PeKey, str, float], None],
    ) -> None:
        self._board = board
        self._store = store
        self._events = events
        self._leads = leads
        self._relay = relay
        self._observed_uids: dict[Kind, set[str]] = {"Export": set(), "Import": set()}
        self.deliver: Callable[[BoardEvent], None]
        self.cut_reason: Callable[[Route], str]
        self.port_reconciler: PortReconciler
        self.rule_reconciler: RuleReconciler

    # ---- from the feed -----------------------------------------------------

    def observe(self, kind: AnyKind, body: Body, listed: bool) -> None:
        """Process an object from the API server before its events are delivered."""
        if kind == RULE:
            self.rule_reconciler.observe(body, listed)
            return
        uid = str(body["metadata"]["uid"])
        steered = self._store.steering.description(uid)
        last_observed = self._store.observe(kind, dict(body))
        self.port_reconciler.observe(kind, body, listed)
        # The owner of a field may change without its value: no other event reports that.
        if self._store.steering.description(uid) != steered:
            self.port_reconciler.offer((kind, uid))
        self._observed_uids[kind].add(uid)
        if last_observed.agent is not None:
            self.deliver(last_observed.agent)
        resource = self._board.get(kind, uid)
        if last_observed.overwritten is not None and resource is not None and self._leads():
            note = steering_overwritten_note(
                resource, last_observed.overwritten.description, last_observed.overwritten.manager
            )
            self._events.record(note, time.time())

    # ---- from the runtime --------------------------------------------------

    def on_actions(self, event: BoardEvent, actions: Sequence[Action]) -> None:
        """Process the board's actions after an event."""
        self.port_reconciler.on_actions(event, actions)
        self.rule_reconciler.on_actions(event, actions)
        if isinstance(event, ExportRemoved | ImportRemoved):
            kind: Kind = "Export" if isinstance(event, ExportRemoved) else "Import"
            self._forget(kind, {event.uid})
        elif isinstance(event, Synced) and event.kind != RULE:
            listed_uids = {resource.uid for resource, _ in event.listed}
            listed_uids.update(unreadable.uid for unreadable in event.unreadable)
            self._forget(event.kind, self._observed_uids[event.kind] - listed_uids)
        if self._leads():
            self._record_cuts(actions)

    def _forget(self, kind: Kind, uids: set[str]) -> None:
        for uid in uids:
            if self._board.get(kind, uid) is None and self._board.unreadable(kind, uid) is None:
                self._observed_uids[kind].discard(uid)
                self._store.on_deleted(uid)

    def _record_cuts(self, actions: Sequence[Action]) -> None:
        for action in actions:
            changes = action.route_changes if isinstance(action, RoutesChanged) else ()
            for change in changes:
                if change.old is None or change.new is not None:
                    continue
                export = self._board.get("Export", change.old.export_uid)
                import_ = self._board.get("Import", change.old.import_uid)
                reason = self.cut_reason(change.old)
                if export is not None:
                    self._events.record(
                        route_cut_note(export, change.old.import_, reason), time.time()
                    )
                if import_ is not None:
                    self._events.record(
                        route_cut_note(import_, change.old.export, reason), time.time()
                    )

    def on_acknowledged(self, pe: PeKey, version: str, ago_s: float) -> None:
        """Record the version of the view that an agent runs, and since how many seconds."""
        self.port_reconciler.on_report(pe, version, ago_s)
        if not self._leads():
            self._relay(pe, version, ago_s)

    def on_status_written(
        self, write: StatusWrite, before: PublishedConditions, after: Mapping[str, Any]
    ) -> None:
        """Record Events for transitions that a status write published."""
        for note in transition_notes(write, before, after):
            self._events.record(note, time.time())


class PublishedExportReports:
    """Export ends and damage as published in statuses, which are the same at every replica.

    Reports go to the reconciler and, unless this process leads, to the leader.
    """

    def __init__(
        self, port_reconciler: PortReconciler, leads: Callable[[], bool], relay: ReportRelay
    ) -> None:
        self._port_reconciler = port_reconciler
        self._leads = leads
        self._relay = relay

    def apply_ends(self, pe: PeKey, ends: EndedExports) -> Sequence[PortKey]:
        """Apply reported ends; effective only once the status is written."""
        self._port_reconciler.on_ends(pe, ends)
        if not self._leads():
            self._relay.note_ends(pe, ends)
        return ()

    def apply_damage(self, pe: PeKey, damaged: Mapping[str, str]) -> Sequence[PortKey]:
        """Apply reported damage; effective only once the status is written."""
        self._port_reconciler.on_damage(pe, damaged)
        if not self._leads():
            self._relay.note_damage(pe, damaged)
        return ()

    def damage(self, resource: Resource) -> str:
        """Return the log damage that the status of an Export reports."""
        return self._port_reconciler.published_damage(resource.uid)

    def is_ended(self, resource: Resource) -> bool:
        """Return whether the status of an Export reports that it has ended."""
        return self._port_reconciler.is_published_ended(resource.uid)

    def forget(self, pe: PeKey) -> None:
        """Do nothing: no state is kept here."""
