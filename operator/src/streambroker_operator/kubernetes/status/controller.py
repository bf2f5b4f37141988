"""Tell the statuses what becomes of the board, and all that know objects what was seen of them."""

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
    """Stands between feed and runtime on one side, statuses, Events and the store on the other.

    Args:
        board: of the runtime.
        store: knows agents and what is steered.
        events: for people who look at a resource.
        leads: whether this process tells the cluster of changes.
        relay: takes which view an agent runs, for whoever leads.

    Attributes:
        deliver: takes events for the board; the runtime's, set once that is there.
        cut_reason: gives the reason word of a route that is gone; likewise.
        port_reconciler: what has to stand in statuses of ports; likewise.
        rule_reconciler: what has to stand in those of rules; likewise.
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

    # ---- of the feed -------------------------------------------------------

    def observe(self, kind: AnyKind, body: Body, listed: bool) -> None:
        """Take in an object as the API server has it, before the events that come of it."""
        if kind == RULE:
            self.rule_reconciler.observe(body, listed)
            return
        uid = str(body["metadata"]["uid"])
        steered = self._store.steering.description(uid)
        seen = self._store.observe(kind, dict(body))
        self.port_reconciler.observe(kind, body, listed)
        # Who holds a field may change while the field does not: no event tells of that.
        if self._store.steering.description(uid) != steered:
            self.port_reconciler.offer((kind, uid))
        self._observed_uids[kind].add(uid)
        if seen.agent is not None:
            self.deliver(seen.agent)
        resource = self._board.get(kind, uid)
        if seen.overwritten is not None and resource is not None and self._leads():
            note = steering_overwritten_note(
                resource, seen.overwritten.description, seen.overwritten.manager
            )
            self._events.record(note, time.time())

    # ---- of the runtime ----------------------------------------------------

    def on_actions(self, event: BoardEvent, actions: Sequence[Action]) -> None:
        """Take in what an event has done to the board."""
        self.port_reconciler.on_actions(event, actions)
        self.rule_reconciler.on_actions(event, actions)
        if isinstance(event, ExportRemoved | ImportRemoved):
            kind: Kind = "Export" if isinstance(event, ExportRemoved) else "Import"
            self._forget(kind, {event.uid})
        elif isinstance(event, Synced) and event.kind != RULE:
            there = {resource.uid for resource, _ in event.listed}
            there.update(unread.uid for unread in event.unreadable)
            self._forget(event.kind, self._observed_uids[event.kind] - there)
        if self._leads():
            self._record_cuts(actions)

    def _forget(self, kind: Kind, uids: set[str]) -> None:
        for uid in uids:
            if self._board.get(kind, uid) is None and self._board.unreadable(kind, uid) is None:
                self._observed_uids[kind].discard(uid)
                self._store.on_deleted(uid)

    def _record_cuts(self, actions: Sequence[Action]) -> None:
        for action in actions:
            moved = action.route_changes if isinstance(action, RoutesChanged) else ()
            for one in moved:
                if one.old is None or one.new is not None:
                    continue
                export = self._board.get("Export", one.old.export_uid)
                import_ = self._board.get("Import", one.old.import_uid)
                reason = self.cut_reason(one.old)
                if export is not None:
                    self._events.record(
                        route_cut_note(export, one.old.import_, reason), time.time()
                    )
                if import_ is not None:
                    self._events.record(
                        route_cut_note(import_, one.old.export, reason), time.time()
                    )

    def on_acknowledged(self, pe: PeKey, version: str, ago_s: float) -> None:
        """Take in which view an agent runs, and since how many seconds."""
        self.port_reconciler.on_report(pe, version, ago_s)
        if not self._leads():
            self._relay(pe, version, ago_s)

    def on_status_written(
        self, write: StatusWrite, before: PublishedConditions, after: Mapping[str, Any]
    ) -> None:
        """Tell people of what a status that was just written says for the first time."""
        for note in transition_notes(write, before, after):
            self._events.record(note, time.time())


class PublishedExportReports:
    """What statuses say of ends and damage of exports, which is the same at every replica.

    Args:
        port_reconciler: takes what agents tell; says what is shown.
        leads: whether this process writes them.
        relay: tells the one that does.
    """

    def __init__(
        self, port_reconciler: PortReconciler, leads: Callable[[], bool], relay: ReportRelay
    ) -> None:
        self._port_reconciler = port_reconciler
        self._leads = leads
        self._relay = relay

    def apply_ends(self, pe: PeKey, ends: EndedExports) -> Sequence[PortKey]:
        """Have it written; nothing else is shown before it is."""
        self._port_reconciler.on_ends(pe, ends)
        if not self._leads():
            self._relay.note_ends(pe, ends)
        return ()

    def apply_damage(self, pe: PeKey, damaged: Mapping[str, str]) -> Sequence[PortKey]:
        """Likewise."""
        self._port_reconciler.on_damage(pe, damaged)
        if not self._leads():
            self._relay.note_damage(pe, damaged)
        return ()

    def damage(self, resource: Resource) -> str:
        """Return what the status of an Export says of damage to its log."""
        return self._port_reconciler.published_damage(resource.uid)

    def is_ended(self, resource: Resource) -> bool:
        """Say whether the status of an Export says that it has ended."""
        return self._port_reconciler.is_published_ended(resource.uid)

    def forget(self, pe: PeKey) -> None:
        """Nothing is kept here."""
