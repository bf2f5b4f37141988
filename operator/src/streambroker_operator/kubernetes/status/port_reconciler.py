"""Statuses of Exports and Imports: desired by the board and agents, published per the watch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from streambroker_core.board import (
    Action,
    AgentRegistered,
    Board,
    BoardEvent,
    ExportApplied,
    ExportRemoved,
    ImportApplied,
    ImportRemoved,
    PeWithdrawn,
    StatusChanged,
    Synced,
    Unreadable,
)
from streambroker_core.matching import Match
from streambroker_core.model import RULE, AnyKind, Export, Kind, PeKey, Resource, kind_of
from streambroker_core.wire.broker.ended_exports import EndedExports
from streambroker_operator.kubernetes.status.conditions import (
    NOTHING_PUBLISHED,
    DesiredStatus,
    PublishedStatus,
    desired_status,
    read_published,
    status_to_write,
    unreadable_status,
)
from streambroker_operator.kubernetes.status.ended import DamageTracker, EndedTracker
from streambroker_operator.kubernetes.status.programmed import AgentState, ProgrammedTracker
from streambroker_operator.kubernetes.status.writer import Name, StatusWrite


class PortReconciler:
    """Computes the statuses of Exports and Imports for the status writer.

    All methods are called on the board's event loop.

    Args:
        offer: enqueues a status at the writer; the second argument marks it as urgent.
        steered: returns which fields of a resource are set at run time, as text, or None.
        on_written: called with the status before and after a write.
        nearest: returns the message for a resource without matches, or None.
        on_export_state: called with an Export whose published end or damage changed.
        on_applied: called with the seconds from a changed view until its agent runs it.
        reoffer_all: enqueues all resources after a list; by default synchronously.
    """

    def __init__(
        self,
        board: Board,
        offer: Callable[[Name, bool], None],
        *,
        steered: Callable[[Name], str | None] = lambda _: None,
        on_written: Callable[[StatusWrite, PublishedStatus, Mapping[str, Any]], None] = lambda *_: (
            None
        ),
        nearest: Callable[[Name, int], str | None] = lambda *_: None,
        on_export_state: Callable[[Name], None] = lambda _: None,
        on_applied: Callable[[float], None] = lambda _: None,
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
        self._on_export_state = on_export_state
        self._clock = clock
        self._published: dict[Name, PublishedStatus] = {}
        self._written_versions: dict[Name, int] = {}
        self._before_write: dict[Name, PublishedStatus] = {}
        self.programmed_tracker = ProgrammedTracker(
            self._version, self._is_registered, on_applied=on_applied, clock=monotonic
        )
        self.ended_tracker = EndedTracker(monotonic)
        self.damage_tracker = DamageTracker(monotonic)

    # ---- input -----------------------------------------------------------

    def observe_status(
        self, name: Name, version: int, status: object, *, listed: bool = False
    ) -> None:
        """Record the observed status of a resource; enqueue it if another writer changed it.

        A list replaces anything older or newer. The watch does not replace a newer written version.
        """
        written_version = self._written_versions.get(name)
        if written_version is not None and version < written_version and not listed:
            return
        self._written_versions.pop(name, None)
        before = self._published.get(name)
        if self._set_published(name, read_published(status)) and before is not None:
            self._offer(name, False)

    def _set_published(self, name: Name, published: PublishedStatus) -> bool:
        """Store a published status; return whether its content changed."""
        before = self._published.get(name)
        self._published[name] = published
        if before is not None and (
            (before.ended, before.damaged) != (published.ended, published.damaged)
        ):
            self._on_export_state(name)
        return before is None or before.content != published.content

    def observe(self, kind: AnyKind, body: Mapping[str, Any], listed: bool) -> None:
        """Process an object from the API server, from a list or the watch."""
        if kind == RULE:
            return
        metadata = body["metadata"]
        name = (kind, str(metadata["uid"]))
        self.observe_status(
            name, int(metadata["resourceVersion"]), body.get("status"), listed=listed
        )

    def on_deleted(self, name: Name) -> None:
        """Drop the state of a deleted resource."""
        for state in (self._published, self._written_versions, self._before_write):
            state.pop(name, None)
        self.programmed_tracker.forget(name[1])

    def on_actions(self, event: BoardEvent, actions: Iterable[Action]) -> None:
        """Process the board's actions after an event; enqueue the affected statuses."""
        actions = list(actions)
        changed = _changed_name(event)
        self.programmed_tracker.on_actions(
            actions, changed=() if changed is None else (changed[1],)
        )
        if isinstance(event, ExportRemoved | ImportRemoved):
            self.on_deleted(("Export" if isinstance(event, ExportRemoved) else "Import", event.uid))
        names: set[Name] = {
            (action.kind, action.uid)
            for action in actions
            if isinstance(action, StatusChanged) and action.kind != RULE
        }
        if changed is not None:
            names.add(changed)
        if isinstance(event, Synced) and event.kind != RULE:
            self._forget_unlisted(event.kind, event)
            if self._board.synced:
                self._reoffer_all()
        if isinstance(event, AgentRegistered | PeWithdrawn):
            self._on_agent_changed(event.pe)
            names.update(self._related_names(event.pe))
        for name in names:
            self._offer(name, self._is_urgent(name))

    def _forget_unlisted(self, kind: Kind, event: Synced) -> None:
        listed: set[Name] = {(kind, resource.uid) for resource, _ in event.listed}
        listed.update((kind, unreadable.uid) for unreadable in event.unreadable)
        for name in [name for name in self._published if name[0] == kind and name not in listed]:
            self.on_deleted(name)

    def _on_agent_changed(self, pe: PeKey) -> None:
        registration = self._board.registration(pe)
        if registration is None:
            self.programmed_tracker.on_withdrawn(pe)
            self.ended_tracker.on_withdrawn(pe)
            self.damage_tracker.on_withdrawn(pe)
        else:
            self.programmed_tracker.on_registered(pe, registration.instance)
            self.ended_tracker.on_registered(pe, registration.instance)
            self.damage_tracker.on_registered(pe, registration.instance)

    def on_report(
        self, pe: PeKey, version: str, ago_s: float = 0.0, instance: str | None = None
    ) -> None:
        """Record the version of the view that an agent runs; enqueue the statuses it affects."""
        if self.programmed_tracker.on_acknowledged(pe, version, ago_s, instance):
            for name in self._related_names(pe):
                self._offer(name, False)

    def on_ends(
        self, pe: PeKey, ends: EndedExports, ago_s: float = 0.0, instance: str | None = None
    ) -> None:
        """Record which exports have ended; enqueue the statuses that differ."""
        if not self.ended_tracker.on_report(pe, ends, ago_s, instance):
            return
        view = self._board.view(pe)
        for port, export in view.exports.items() if view is not None else ():
            ended = ends.has_ended(port)
            if ended is not None and ended != self.is_published_ended(export.uid):
                self._offer(("Export", export.uid), False)

    def on_damage(
        self,
        pe: PeKey,
        damaged: Mapping[str, str],
        ago_s: float = 0.0,
        instance: str | None = None,
    ) -> None:
        """Record which logs are damaged; enqueue the statuses that differ."""
        if not self.damage_tracker.on_report(pe, damaged, ago_s, instance):
            return
        view = self._board.view(pe)
        for port, export in view.exports.items() if view is not None else ():
            if damaged.get(port, "") != self.published_damage(export.uid):
                self._offer(("Export", export.uid), False)

    def published_damage(self, uid: str) -> str:
        """Return the log damage in an Export's published status; empty for none."""
        return self._published.get(("Export", uid), NOTHING_PUBLISHED).damaged

    def is_published_ended(self, uid: str) -> bool:
        """Return whether an Export's published status reports that it has ended."""
        return self._published.get(("Export", uid), NOTHING_PUBLISHED).ended

    def on_leader_change(self, leads: bool) -> None:
        """Handle a change of leadership: only a leader receives reports of all agents."""
        self.programmed_tracker.liveness.on_leader_change(leads)
        self.ended_tracker.on_leader_change()
        self.damage_tracker.on_leader_change()

    def offer_away(self) -> None:
        """Enqueue statuses affected by agents that went away; called each second by the leader.

        Until then the published state stays: a silent agent may be about to poll.
        """
        for pe in self.programmed_tracker.liveness.collect_away():
            for name in self._related_names(pe):
                self._offer(name, False)

    def offer(self, name: Name) -> None:
        """Enqueue a resource."""
        self._offer(name, self._is_urgent(name))

    def offer_all(self) -> None:
        """Enqueue all resources: after a list, or when this process becomes leader."""
        for _ in self.offer_in_steps():
            pass

    def offer_in_steps(self) -> Iterator[None]:
        """Do the same as `offer_all` in small steps, between which other tasks may run."""
        for name in list(self._published):
            self._offer(name, self._is_urgent(name))
            yield

    # ---- output ----------------------------------------------------------

    def build(self, name: Name) -> StatusWrite | None:
        """Return the status to write; None if it is up to date or the resource is gone."""
        resource, unreadable = self._board.get(*name), self._board.unreadable(*name)
        published = self._published.get(name, NOTHING_PUBLISHED)
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
        self._before_write[name] = published
        return StatusWrite(
            kind=name[0], namespace=namespace, name=object_name, uid=name[1], status=status
        )

    def on_written(self, write: StatusWrite, answer: Mapping[str, Any]) -> None:
        """Handle the resource that the API server returned after a write."""
        name = (write.kind, write.uid)
        before = self._before_write.pop(name, NOTHING_PUBLISHED)
        metadata = answer.get("metadata")
        metadata = metadata if isinstance(metadata, Mapping) else {}
        current = self._board.get(*name) or self._board.unreadable(*name)
        if metadata.get("uid") != write.uid or current is None:
            return
        version = str(metadata.get("resourceVersion", ""))
        if version.isdigit():
            self._written_versions[name] = int(version)
        self._set_published(name, read_published(answer.get("status")))
        self._on_written(write, before, write.status)

    def _desired(
        self, name: Name, resource: Resource, published: PublishedStatus
    ) -> DesiredStatus | None:
        status = self._board.status(*name)
        if status is None:
            return None
        programmed = nearest = None
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
            ended=self.ended_tracker.is_ended(resource.key)
            if isinstance(resource, Export)
            else False,
            damaged=self.damage_tracker.damage_text(resource.key)
            if isinstance(resource, Export)
            else "",
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
            if not self.is_published_ended(export.uid)
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
        if name[0] == RULE:
            return False
        resource = self._board.get(*name)
        published = self._published.get(name, NOTHING_PUBLISHED)
        return bool(resource and resource.rejected and resource.generation > published.accepted)

    def _is_urgent(self, name: Name) -> bool:
        status = self._board.status(*name)
        return status is not None and not status.accepted

    def _version(self, pe: PeKey) -> str | None:
        return self._board.version(pe)

    def _is_registered(self, pe: PeKey) -> bool:
        return self._board.registration(pe) is not None


def _changed_name(event: BoardEvent) -> Name | None:
    if isinstance(event, ExportApplied):
        return "Export", event.export.uid
    if isinstance(event, ImportApplied):
        return "Import", event.import_.uid
    if isinstance(event, Unreadable) and event.kind != RULE:
        return event.kind, event.uid
    return None
