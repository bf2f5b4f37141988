"""What every resource's status has to say, by the board, and what it says, by the watch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from streambroker_core.board import (
    Action,
    AgentRegistered,
    Board,
    Event,
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
from streambroker_core.wire.broker.ended_exports import Ends
from streambroker_operator.kubernetes.status.conditions import (
    NOTHING_SHOWN,
    Facts,
    Shown,
    facts_of,
    read_shown,
    unreadable,
    written,
)
from streambroker_operator.kubernetes.status.ended import Damage, Ending
from streambroker_operator.kubernetes.status.programmed import AgentState, Programming
from streambroker_operator.kubernetes.status.writer import Name, StatusWrite


class Statuses:
    """What the status writer asks of Exports and Imports, and tells.

    All methods are called on the board's event loop.

    Args:
        board: read, never changed.
        offer: asks the writer to look at a status; the second argument says whether urgently.
        steered: which fields of a resource are set at run time, in words, or None.
        told: takes the status before and after a write.
        nearest: returns the sentence about a resource that matches nothing, or None.
        turned: takes an Export of which it is shown from now on that it has ended, or that its log
            is damaged, or no more.
        applied: takes the seconds from a changed view until its agent runs it.
        clock: seconds since 1970.
        monotonic: seconds of a clock that nobody sets.
        all_anew: has all resources looked at, after a list; at once by default.
    """

    def __init__(
        self,
        board: Board,
        offer: Callable[[Name, bool], None],
        *,
        steered: Callable[[Name], str | None] = lambda _: None,
        told: Callable[[StatusWrite, Shown, Mapping[str, Any]], None] = lambda *_: None,
        nearest: Callable[[Name, int], str | None] = lambda *_: None,
        turned: Callable[[Name], None] = lambda _: None,
        applied: Callable[[float], None] = lambda _: None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        all_anew: Callable[[], None] | None = None,
    ) -> None:
        self._all_anew = all_anew or self.offer_all
        self._board = board
        self._offer = offer
        self._steered = steered
        self._told = told
        self._nearest = nearest
        self._turned = turned
        self._clock = clock
        self._shown: dict[Name, Shown] = {}
        self._answered: dict[Name, int] = {}
        self._drawn: dict[Name, Shown] = {}
        self.programming = Programming(
            self._version, self._registered, applied=applied, clock=monotonic
        )
        self.ending = Ending(monotonic)
        self.damage = Damage(monotonic)

    # ---- what comes in ---------------------------------------------------

    def seen(self, name: Name, version: int, status: object, *, listed: bool = False) -> None:
        """Take in what a resource's status says; what somebody else wrote is looked at again.

        Args:
            name: of the resource.
            version: of the resource as it says that.
            status: the object, or None.
            listed: by a list, which is right whatever was before, and not by the watch.
        """
        answered = self._answered.get(name)
        if answered is not None and version < answered and not listed:
            return
        self._answered.pop(name, None)
        before = self._shown.get(name)
        if self._show(name, read_shown(status)) and before is not None:
            self._offer(name, False)

    def _show(self, name: Name, shown: Shown) -> bool:
        """Note what a status says; say whether that is another thing than before."""
        before = self._shown.get(name)
        self._shown[name] = shown
        if before is not None and ((before.ended, before.damaged) != (shown.ended, shown.damaged)):
            self._turned(name)
        return before is None or before.content != shown.content

    def look(self, kind: AnyKind, body: Mapping[str, Any], listed: bool) -> None:
        """Take in a whole resource as the API server has it.

        Args:
            kind: of the resource.
            body: the object.
            listed: by a list, and not by the watch.
        """
        if kind == RULE:
            return
        metadata = body["metadata"]
        name = (kind, str(metadata["uid"]))
        self.seen(name, int(metadata["resourceVersion"]), body.get("status"), listed=listed)

    def gone(self, name: Name) -> None:
        """Forget a resource."""
        for known in (self._shown, self._answered, self._drawn):
            known.pop(name, None)
        self.programming.forget(name[1])

    def followed(self, event: Event, actions: Iterable[Action]) -> None:
        """Take in what an event has done to the board, and have looked at what it concerns."""
        actions = list(actions)
        changed = _changed(event)
        self.programming.follow(actions, changed=() if changed is None else (changed[1],))
        if isinstance(event, ExportRemoved | ImportRemoved):
            self.gone(("Export" if isinstance(event, ExportRemoved) else "Import", event.uid))
        names: set[Name] = {
            (a.kind, a.uid) for a in actions if isinstance(a, StatusChanged) and a.kind != RULE
        }
        if changed is not None:
            names.add(changed)
        if isinstance(event, Synced) and event.kind != RULE:
            self._forget_unlisted(event.kind, event)
            if self._board.synced:
                self._all_anew()
        if isinstance(event, AgentRegistered | PeWithdrawn):
            self._who_runs(event.pe)
            names.update(self._touching(event.pe))
        for name in names:
            self._offer(name, self._urgent(name))

    def _forget_unlisted(self, kind: Kind, event: Synced) -> None:
        there: set[Name] = {(kind, resource.uid) for resource, _ in event.listed}
        there.update((kind, unread.uid) for unread in event.unreadable)
        for name in [name for name in self._shown if name[0] == kind and name not in there]:
            self.gone(name)

    def _who_runs(self, pe: PeKey) -> None:
        found = self._board.registration(pe)
        if found is None:
            self.programming.withdrawn(pe)
            self.ending.withdrawn(pe)
            self.damage.withdrawn(pe)
        else:
            self.programming.registered(pe, found.instance)
            self.ending.registered(pe, found.instance)
            self.damage.registered(pe, found.instance)

    def heard(
        self, pe: PeKey, version: str, ago_s: float = 0.0, instance: str | None = None
    ) -> None:
        """Take in which view an agent runs, and have looked at what waited for that."""
        if self.programming.heard(pe, version, ago_s, instance):
            for name in self._touching(pe):
                self._offer(name, False)

    def ends_heard(
        self, pe: PeKey, ends: Ends, ago_s: float = 0.0, instance: str | None = None
    ) -> None:
        """Take in which exports have ended, as of `Ending`, and have looked at what says else."""
        if not self.ending.heard(pe, ends, ago_s, instance):
            return
        view = self._board.view(pe)
        for port, export in view.exports.items() if view is not None else ():
            ended = ends.of(port)
            if ended is not None and ended != self.shows_end(export.uid):
                self._offer(("Export", export.uid), False)

    def damage_heard(
        self,
        pe: PeKey,
        damaged: Mapping[str, str],
        ago_s: float = 0.0,
        instance: str | None = None,
    ) -> None:
        """Take in which logs are damaged, as of `Damage`, and have looked at what says else."""
        if not self.damage.heard(pe, damaged, ago_s, instance):
            return
        view = self._board.view(pe)
        for port, export in view.exports.items() if view is not None else ():
            if damaged.get(port, "") != self.shows_damage(export.uid):
                self._offer(("Export", export.uid), False)

    def shows_damage(self, uid: str) -> str:
        """Return what an Export's status says of damage to its log; empty for none."""
        return self._shown.get(("Export", uid), NOTHING_SHOWN).damaged

    def shows_end(self, uid: str) -> bool:
        """Say whether an Export's status says that it has ended."""
        return self._shown.get(("Export", uid), NOTHING_SHOWN).ended

    def lead(self, leads: bool) -> None:
        """Take in whether this process leads, and so hears of all agents, from now on."""
        self.programming.presence.lead(leads)
        self.ending.lead()
        self.damage.lead()

    def listen(self) -> None:
        """Have looked at what concerns agents that have gone away; asked of who leads each second.

        What was shown of them stays until then: an agent that is silent may be about to ask.
        """
        for pe in self.programming.presence.look():
            for name in self._touching(pe):
                self._offer(name, False)

    def offer(self, name: Name) -> None:
        """Have a resource looked at."""
        self._offer(name, self._urgent(name))

    def offer_all(self) -> None:
        """Have everything looked at: a list came, or this process leads from now on."""
        for _ in self.offering():
            pass

    def offering(self) -> Iterator[None]:
        """Do what `offer_all` does in small steps, between which anything may happen."""
        for name in list(self._shown):
            self._offer(name, self._urgent(name))
            yield

    # ---- what goes out ---------------------------------------------------

    def draw(self, name: Name) -> StatusWrite | None:
        """Return what is to be written now; None where it stands there, or the resource is gone."""
        resource, unread = self._board.get(*name), self._board.unreadable(*name)
        shown = self._shown.get(name, NOTHING_SHOWN)
        if unread is not None:
            facts: Facts | None = unreadable(
                unread.generation, unread.code, unread.problem, held=unread.held
            )
            namespace, title = unread.namespace, unread.name
        elif resource is not None:
            facts = self._facts(name, resource, shown)
            namespace, title = resource.key.namespace, resource.name
        else:
            return None
        status = None if facts is None else written(facts, shown, self._clock())
        if status is None:
            return None
        self._drawn[name] = shown
        return StatusWrite(
            kind=name[0], namespace=namespace, name=title, uid=name[1], status=status
        )

    def wrote(self, write: StatusWrite, answer: Mapping[str, Any]) -> None:
        """Take in the resource as the API server has it after a write."""
        name = (write.kind, write.uid)
        before = self._drawn.pop(name, NOTHING_SHOWN)
        metadata = answer.get("metadata")
        metadata = metadata if isinstance(metadata, Mapping) else {}
        there = self._board.get(*name) or self._board.unreadable(*name)
        if metadata.get("uid") != write.uid or there is None:
            return
        version = str(metadata.get("resourceVersion", ""))
        if version.isdigit():
            self._answered[name] = int(version)
        self._show(name, read_shown(answer.get("status")))
        self._told(write, before, write.status)

    def _facts(self, name: Name, resource: Resource, shown: Shown) -> Facts | None:
        status = self._board.status(*name)
        if status is None:
            return None
        programmed = nearest = None
        runs = status.accepted or status.runs is not None
        if runs and not status.matches and not status.refused:
            nearest = self._nearest(name, resource.generation)
        if runs and status.matches:
            programmed = self.programming.condition(resource.uid, self._pes(resource))
        return facts_of(
            resource,
            status,
            programmed=programmed,
            shown=shown,
            steered=self._steered(name),
            nearest=nearest,
            ended=self.ending.ended(resource.key) if isinstance(resource, Export) else False,
            damaged=self.damage.damaged(resource.key) if isinstance(resource, Export) else "",
        )

    def agent_state(self, pe: PeKey) -> AgentState:
        """Return how a registered agent is; resources of a finished job stay, and it with them."""
        state = self.programming.state(pe)
        return "gone" if state == "away" and not self._missed(pe) else state

    def _missed(self, pe: PeKey) -> bool:
        """Whether an agent that is not away reads an Export of a PE that has not ended."""
        view = self._board.view(pe)
        return view is not None and any(
            self._registered(route.import_.owner)
            and not self.programming.presence.away(route.import_.owner)
            for export in view.exports.values()
            if not self.shows_end(export.uid)
            for route in export.routes
        )

    def _pes(self, resource: Resource) -> Iterator[PeKey]:
        yield resource.key.owner
        kind = kind_of(resource)
        other: Kind = "Import" if kind == "Export" else "Export"
        for uid, outcome in self._board.outcomes(kind, resource.uid).items():
            peer = self._board.get(other, uid)
            if isinstance(outcome, Match) and peer is not None:
                yield peer.key.owner

    def _touching(self, pe: PeKey) -> set[Name]:
        """Return the ports of a PE and the other ends of their routes."""
        view = self._board.view(pe)
        found: set[Name] = set()
        if view is not None:
            for export in view.exports.values():
                found.add(("Export", export.uid))
                found.update(("Import", route.uid) for route in export.routes)
            for import_ in view.imports.values():
                found.add(("Import", import_.uid))
                found.update(("Export", other.uid) for other in import_.routes)
        return found

    def live(self, name: Name) -> bool:
        """Return whether the job of a resource has registered an agent for its PE."""
        resource = self._board.get(*name)
        return resource is not None and self._registered(resource.key.owner)

    def remembers(self, name: Name) -> bool:
        """Return whether a later generation runs than the status has, and the latest is refused.

        Another replica may lead that has not seen that one: it has to be in the status.
        """
        if name[0] == RULE:
            return False
        resource = self._board.get(*name)
        shown = self._shown.get(name, NOTHING_SHOWN)
        return bool(resource and resource.newer and resource.generation > shown.accepted)

    def _urgent(self, name: Name) -> bool:
        status = self._board.status(*name)
        return status is not None and not status.accepted

    def _version(self, pe: PeKey) -> str | None:
        return self._board.version(pe)

    def _registered(self, pe: PeKey) -> bool:
        return self._board.registration(pe) is not None


def _changed(event: Event) -> Name | None:
    if isinstance(event, ExportApplied):
        return "Export", event.export.uid
    if isinstance(event, ImportApplied):
        return "Import", event.import_.uid
    if isinstance(event, Unreadable) and event.kind != RULE:
        return event.kind, event.uid
    return None
