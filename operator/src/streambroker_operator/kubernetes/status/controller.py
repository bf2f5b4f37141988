"""Tell the statuses what becomes of the board, and all that know objects what was seen of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from streambroker_core.board import (
    Action,
    Board,
    Event,
    ExportRemoved,
    ImportRemoved,
    RoutesChanged,
    Synced,
)
from streambroker_core.model import RULE, AnyKind, Kind, PeKey, PortKey, Resource, Route
from streambroker_core.wire.broker.ended_exports import Ends
from streambroker_operator.kubernetes.apply.port_store import KubernetesStore
from streambroker_operator.kubernetes.client.watch_client import Body
from streambroker_operator.kubernetes.replicas.report_relay import Relay
from streambroker_operator.kubernetes.status.events import (
    EventWriter,
    ShownConditions,
    route_cut,
    steering_overwritten,
    transitions,
)
from streambroker_operator.kubernetes.status.port_reconciler import Statuses
from streambroker_operator.kubernetes.status.rule_reconciler import RuleStatuses
from streambroker_operator.kubernetes.status.writer import StatusWrite


class Desk:
    """Stands between feed and runtime on one side, statuses, Events and the store on the other.

    Args:
        board: of the runtime.
        store: knows agents and what is steered.
        events: for people who look at a resource.
        leads: whether this process tells the cluster of changes.
        relay: takes which view an agent runs, for whoever leads.

    Attributes:
        deliver: takes events for the board; the runtime's, set once that is there.
        why_cut: gives the reason word of a route that is gone; likewise.
        statuses: what has to stand in statuses of ports; likewise.
        rule_statuses: what has to stand in those of rules; likewise.
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
        self._seen: dict[Kind, set[str]] = {"Export": set(), "Import": set()}
        self.deliver: Callable[[Event], None]
        self.why_cut: Callable[[Route], str]
        self.statuses: Statuses
        self.rule_statuses: RuleStatuses

    # ---- of the feed -------------------------------------------------------

    def look(self, kind: AnyKind, body: Body, listed: bool) -> None:
        """Take in an object as the API server has it, before the events that come of it."""
        if kind == RULE:
            self.rule_statuses.look(body, listed)
            return
        uid = str(body["metadata"]["uid"])
        steered = self._store.steering.words(uid)
        seen = self._store.saw(kind, dict(body))
        self.statuses.look(kind, body, listed)
        # Who holds a field may change while the field does not: no event tells of that.
        if self._store.steering.words(uid) != steered:
            self.statuses.offer((kind, uid))
        self._seen[kind].add(uid)
        if seen.agent is not None:
            self.deliver(seen.agent)
        resource = self._board.get(kind, uid)
        if seen.overwritten is not None and resource is not None and self._leads():
            note = steering_overwritten(resource, seen.overwritten.words, seen.overwritten.by)
            self._events.tell(note, time.time())

    # ---- of the runtime ----------------------------------------------------

    def followed(self, event: Event, actions: Sequence[Action]) -> None:
        """Take in what an event has done to the board."""
        self.statuses.followed(event, actions)
        self.rule_statuses.followed(event, actions)
        if isinstance(event, ExportRemoved | ImportRemoved):
            kind: Kind = "Export" if isinstance(event, ExportRemoved) else "Import"
            self._forget(kind, {event.uid})
        elif isinstance(event, Synced) and event.kind != RULE:
            there = {resource.uid for resource, _ in event.listed}
            there.update(unread.uid for unread in event.unreadable)
            self._forget(event.kind, self._seen[event.kind] - there)
        if self._leads():
            self._tell_cuts(actions)

    def _forget(self, kind: Kind, uids: set[str]) -> None:
        for uid in uids:
            if self._board.get(kind, uid) is None and self._board.unreadable(kind, uid) is None:
                self._seen[kind].discard(uid)
                self._store.gone(uid)

    def _tell_cuts(self, actions: Sequence[Action]) -> None:
        for action in actions:
            moved = action.moved if isinstance(action, RoutesChanged) else ()
            for one in moved:
                if one.was is None or one.now is not None:
                    continue
                export = self._board.get("Export", one.was.export_uid)
                import_ = self._board.get("Import", one.was.import_uid)
                reason = self.why_cut(one.was)
                if export is not None:
                    self._events.tell(route_cut(export, one.was.import_, reason), time.time())
                if import_ is not None:
                    self._events.tell(route_cut(import_, one.was.export, reason), time.time())

    def acknowledged(self, pe: PeKey, version: str, ago_s: float) -> None:
        """Take in which view an agent runs, and since how many seconds."""
        self.statuses.heard(pe, version, ago_s)
        if not self._leads():
            self._relay(pe, version, ago_s)

    def told(self, write: StatusWrite, before: ShownConditions, after: Mapping[str, Any]) -> None:
        """Tell people of what a status that was just written says for the first time."""
        for note in transitions(write, before, after):
            self._events.tell(note, time.time())


class ShownEndings:
    """What statuses say of ends and damage of exports, which is the same at every replica.

    Args:
        statuses: takes what agents tell; says what is shown.
        leads: whether this process writes them.
        relay: tells the one that does.
    """

    def __init__(self, statuses: Statuses, leads: Callable[[], bool], relay: Relay) -> None:
        self._statuses = statuses
        self._leads = leads
        self._relay = relay

    def take(self, pe: PeKey, ends: Ends) -> Sequence[PortKey]:
        """Have it written; nothing else is shown before it is."""
        self._statuses.ends_heard(pe, ends)
        if not self._leads():
            self._relay.note_ends(pe, ends)
        return ()

    def take_damage(self, pe: PeKey, damaged: Mapping[str, str]) -> Sequence[PortKey]:
        """Likewise."""
        self._statuses.damage_heard(pe, damaged)
        if not self._leads():
            self._relay.note_damage(pe, damaged)
        return ()

    def damage(self, resource: Resource) -> str:
        """Return what the status of an Export says of damage to its log."""
        return self._statuses.shows_damage(resource.uid)

    def shows(self, resource: Resource) -> bool:
        """Say whether the status of an Export says that it has ended."""
        return self._statuses.shows_end(resource.uid)

    def forget(self, pe: PeKey) -> None:
        """Nothing is kept here."""
