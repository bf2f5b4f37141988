"""Statuses of Exports and Imports: desired by the board and agents, published per the watch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from streambroker_core.board import BoardReader, events
from streambroker_core.matching import Match
from streambroker_core.model import RULE, AnyKind, Export, Kind, PeKey, PortKey, Resource, kind_of
from streambroker_core.wire.reports.health import HealthState
from streambroker_core.wire.reports.storage_status import (
    StoredState,
)
from streambroker_operator.agents.port_reports import PortFacts
from streambroker_operator.kubernetes.client.documents import Document
from streambroker_operator.kubernetes.replicas.agent_reports import (
    PortReport,
    ViewReport,
)
from streambroker_operator.kubernetes.status.conditions import (
    NOTHING_PUBLISHED,
    DesiredStatus,
    PublishedStatus,
    desired_status,
    read_published,
    status_to_write,
    unreadable_status,
)
from streambroker_operator.kubernetes.status.last_reports import LastReports, PortReports
from streambroker_operator.kubernetes.status.programmed import AgentState, ProgrammedTracker
from streambroker_operator.kubernetes.status.published import (
    PublishedStatuses,
    affected_names,
    changed_name,
)
from streambroker_operator.kubernetes.status.writer import Name, StatusWrite


class PortReconciler:
    """Computes the statuses of Exports and Imports for the status writer.

    All methods are called on the board's event loop.

    Args:
        offer: enqueues a status at the writer; the second argument marks it as urgent.
        steered: returns which fields of a resource are set at run time, as text, or None.
        on_written: called after a write.
        nearest: returns the message for a resource without matches, or None.
        on_port_state: called with a port whose published end, damage, uploads or health changed.
        on_applied: called with the seconds from a changed view until its agent runs it.
        on_deleted: called with the uid of a deleted resource.
        reoffer_all: enqueues all resources after a list; by default synchronously.
    """

    def __init__(
        self,
        board: BoardReader,
        offer: Callable[[Name, bool], None],
        *,
        steered: Callable[[Name], str | None] = lambda _: None,
        on_written: Callable[[StatusWrite], None] = lambda _: None,
        nearest: Callable[[Name, int], str | None] = lambda *_: None,
        on_port_state: Callable[[Name], None] = lambda _: None,
        on_applied: Callable[[float], None] = lambda _: None,
        on_deleted: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        reoffer_all: Callable[[], None] | None = None,
    ) -> None:
        self._reoffer_all = reoffer_all or self.offer_all
        self._board = board
        self._offer = offer
        self._steered = steered
        self._on_written = on_written
        self._nearest = nearest
        self._on_port_state = on_port_state
        self._on_deleted = on_deleted
        self._clock = clock
        self._published = PublishedStatuses(
            lambda status, _: read_published(status), NOTHING_PUBLISHED, self._on_published
        )
        self.programmed_tracker = ProgrammedTracker(
            board.version, self._is_registered, on_applied=on_applied, clock=monotonic
        )
        self._reports = PortReports(monotonic)

    # ---- input -----------------------------------------------------------

    def observe(self, kind: AnyKind, body: Document, listed: bool) -> None:
        """Process an object from the API server; enqueue it if another writer changed its status.

        `listed` means that a list contains it, not the watch.
        """
        name = (kind, str(body["metadata"]["uid"]))
        if self._published.observe(name, body, listed):
            self._offer(name, False)

    def _on_published(self, name: Name, before: PublishedStatus, after: PublishedStatus) -> None:
        shown = [
            (one.ended, one.damaged, one.stored, one.healthy, one.schema) for one in (before, after)
        ]
        if shown[0] != shown[1]:
            self._on_port_state(name)

    def _forget(self, names: Iterable[Name]) -> None:
        """Drop the state of deleted resources."""
        for name in names:
            if self._board.get(*name) is None and self._board.unreadable(*name) is None:
                self._published.forget(name)
                self.programmed_tracker.forget(name[1])
                self._on_deleted(name[1])

    def on_actions(self, event: events.BoardEvent, actions: Iterable[events.Action]) -> None:
        """Process the board's actions after an event; enqueue the affected statuses."""
        actions, changed = list(actions), changed_name(event)
        self.programmed_tracker.on_actions(
            actions, changed=() if changed is None or changed[0] == RULE else (changed[1],)
        )
        names = {name for name in affected_names(event, actions) if name[0] != RULE}
        if isinstance(event, events.ExportRemoved | events.ImportRemoved):
            self._forget(
                [("Export" if isinstance(event, events.ExportRemoved) else "Import", event.uid)]
            )
        elif isinstance(event, events.Synced) and event.kind != RULE:
            self._forget(self._published.unlisted(event))
            if self._board.synced:
                self._reoffer_all()
        elif isinstance(event, events.AgentRegistered | events.PeWithdrawn):
            self._on_agent_changed(event.pe)
            names |= self._related_names(event.pe)
        for name in names:
            self.offer(name)

    def _on_agent_changed(self, pe: PeKey) -> None:
        registration = self._board.registration(pe)
        trackers: Sequence[ProgrammedTracker | LastReports[Any, Any]]
        trackers = [self.programmed_tracker, *self._reports.all]
        for tracker in trackers:
            if registration is None:
                tracker.on_withdrawn(pe)
            else:
                tracker.on_registered(pe, registration.instance)

    def on_report(self, pe: PeKey, report: PortReport) -> None:
        """Record an agent's report; enqueue the statuses that it affects."""
        if isinstance(report, ViewReport):
            if self.programmed_tracker.on_acknowledged(
                pe, report.version, report.ago_s, report.instance
            ):
                self._offer_related(pe)
            return
        view = self._board.view(pe) if self._reports.on_report(pe, report) else None
        if view is None:
            return
        for port, export in view.exports.items():
            name: Name = ("Export", export.uid)
            key, published = PortKey(*pe, port), self._published.get(name)
            if self._reports.change_export(key, export.durability, published):
                self._offer(name, False)
        for port, import_ in view.imports.items():
            name = ("Import", import_.uid)
            key, published = PortKey(*pe, port), self._published.get(name)
            if self._reports.healthy("Import", key, published) != published.healthy:
                self._offer(name, False)

    def published_facts(self, name: Name) -> PortFacts:
        """Return what the published status of an Export or Import reports."""
        published = self._published.get(name)
        shown, healthy = published.stored, published.healthy
        return PortFacts(
            healthy=None
            if healthy is None
            else HealthState(reason=healthy.reason, message=healthy.message),
            ended=published.ended,
            damaged=published.damaged,
            stored=None
            if shown is None
            else StoredState(reason=shown.reason, message=shown.message),
            schema=published.schema,
        )

    def on_leader_change(self, leads: bool) -> None:
        """Handle a change of leadership: only a leader receives reports of all agents."""
        self.programmed_tracker.liveness.on_leader_change(leads)
        for reports in self._reports.all:
            reports.on_leader_change()

    def offer_away(self) -> None:
        """Enqueue statuses affected by agents that went away; called each second by the leader.

        Until then the published state stays: a silent agent may be about to poll.
        """
        for pe in self.programmed_tracker.liveness.collect_away():
            self._offer_related(pe)

    def _offer_related(self, pe: PeKey) -> None:
        for name in self._related_names(pe):
            self._offer(name, False)

    def offer(self, name: Name) -> None:
        """Enqueue a resource; a rejected one is urgent."""
        status = self._board.status(*name)
        self._offer(name, status is not None and not status.accepted)

    def offer_all(self) -> None:
        """Enqueue all resources: after a list, or when this process becomes leader."""
        for _ in self.offer_in_steps():
            pass

    def offer_in_steps(self) -> Iterator[None]:
        """Do the same as `offer_all` in small steps, between which other tasks may run."""
        for name in self._published.names():
            self.offer(name)
            yield

    # ---- output ----------------------------------------------------------

    def build(self, name: Name) -> StatusWrite | None:
        """Return the status to write; None if it is up to date or the resource is gone."""
        resource, unreadable = self._board.get(*name), self._board.unreadable(*name)
        published = self._published.get(name)
        if unreadable is not None:
            desired: DesiredStatus | None = unreadable_status(
                unreadable.generation, unreadable.code, unreadable.problem, is_held=unreadable.held
            )
            namespace, object_name = unreadable.namespace, unreadable.name
        elif resource is not None:
            desired = self._desired(name, resource, published)
            namespace, object_name = resource.key.namespace, resource.name
        else:
            return None
        status = None if desired is None else status_to_write(desired, published, self._clock())
        if status is None:
            return None
        return StatusWrite(
            kind=name[0],
            namespace=namespace,
            name=object_name,
            uid=name[1],
            status=status,
            before=published.since,
        )

    def on_written(self, write: StatusWrite, answer: Document) -> None:
        """Handle the resource that the API server returned after a write."""
        name = (write.kind, write.uid)
        current = self._board.get(*name) or self._board.unreadable(*name)
        if current is not None and self._published.on_written(name, answer):
            self._on_written(write)

    def _desired(
        self, name: Name, resource: Resource, published: PublishedStatus
    ) -> DesiredStatus | None:
        status = self._board.status(*name)
        if status is None:
            return None
        programmed = nearest = None
        is_export = isinstance(resource, Export)
        runs = status.accepted or status.running_generation is not None
        if runs and not status.matches and not status.refused:
            nearest = self._nearest(name, resource.generation)
        if runs and status.matches:
            programmed = self.programmed_tracker.condition(resource.uid, self._route_pes(resource))
        return desired_status(
            resource,
            status,
            programmed=programmed,
            published=published,
            steered=self._steered(name),
            nearest=nearest,
            ended=self._reports.ended.find(resource.key) if is_export else False,
            damaged=self._reports.damage.find(resource.key) if is_export else "",
            storage=self._reports.storage.find(resource.key),
            schema=self._reports.schemas.find(resource.key),
            healthy=self._reports.healthy(kind_of(resource), resource.key, published)
            if self._is_registered(resource.key.owner)
            else None,
        )

    def agent_state(self, pe: PeKey) -> AgentState:
        """Return the state of a registered agent; ``gone`` if it is away and not missed."""
        state = self.programmed_tracker.agent_state(pe)
        return "gone" if state == "away" and not self._is_missed(pe) else state

    def _is_missed(self, pe: PeKey) -> bool:
        """Return whether an agent that is not away reads an Export of this PE that is not ended."""
        view = self._board.view(pe)
        return view is not None and any(
            self._is_registered(route.import_.owner)
            and not self.programmed_tracker.liveness.is_away(route.import_.owner)
            for export in view.exports.values()
            if not self._published.get(("Export", export.uid)).ended
            for route in export.routes
        )

    def _route_pes(self, resource: Resource) -> Iterator[PeKey]:
        yield resource.key.owner
        kind = kind_of(resource)
        other: Kind = "Import" if kind == "Export" else "Export"
        for uid, outcome in self._board.outcomes(kind, resource.uid).items():
            peer = self._board.get(other, uid)
            if isinstance(outcome, Match) and peer is not None:
                yield peer.key.owner

    def _related_names(self, pe: PeKey) -> set[Name]:
        """Return the ports of a PE and the other ends of their routes."""
        view = self._board.view(pe)
        names: set[Name] = set()
        if view is not None:
            for export in view.exports.values():
                names.add(("Export", export.uid))
                names.update(("Import", route.uid) for route in export.routes)
            for import_ in view.imports.values():
                names.add(("Import", import_.uid))
                names.update(("Export", route.uid) for route in import_.routes)
        return names

    def is_live(self, name: Name) -> bool:
        """Return whether an agent is registered for the PE of a resource."""
        resource = self._board.get(*name)
        return resource is not None and self._is_registered(resource.key.owner)

    def must_write(self, name: Name) -> bool:
        """Return whether the status lacks the running generation while the latest is rejected.

        Another replica may become leader without having seen that generation, so every replica
        must write it.
        """
        resource = self._board.get(*name)
        published = self._published.get(name)
        return bool(resource and resource.rejected and resource.generation > published.accepted)

    def _is_registered(self, pe: PeKey) -> bool:
        return self._board.registration(pe) is not None
