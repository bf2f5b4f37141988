"""The one owner of the broker's state.

Every change takes the same way: checked, written, told to the board, hinted. Nothing
is told to anybody that is not written, and nothing that was checked in vain has changed
anything. Where others write, too, a feed tells of their changes, and of ours once more.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

from streambroker_core.board import (
    Action,
    AgentRegistered,
    Board,
    CaughtUp,
    Event,
    ExportApplied,
    ExportRemoved,
    FeedLost,
    FellBack,
    Hint,
    ImportApplied,
    ImportRemoved,
    PeWithdrawn,
    RoutesChanged,
    RuleApplied,
    RuleRemoved,
    StatusChanged,
    Synced,
)
from streambroker_core.board.events import Difference
from streambroker_core.diagnose import (
    Cut,
    Forecast,
    Overlay,
    Proposal,
    Removal,
    forecast,
    refusal,
    why_cut,
)
from streambroker_core.model import (
    RULE,
    AnyKind,
    Kind,
    PeKey,
    PortKey,
    Resource,
    Route,
    kind_of,
)
from streambroker_core.wire.broker import capability, hints
from streambroker_core.wire.broker.registration import Registered, Registration, derive_key
from streambroker_core.wire.broker.view import ImportRoute, View, with_capabilities
from streambroker_operator.agents.ended_exports import Endings, HeardEndings
from streambroker_operator.agents.hint_sender import HintSender
from streambroker_operator.agents.liveness import Heard
from streambroker_operator.cooperative import in_turns, keep_from_collector, without_collector
from streambroker_operator.errors import RequestError
from streambroker_operator.runtime.change_log import ChangeLog, became_of, named_by
from streambroker_operator.runtime.rules import Rules
from streambroker_operator.storage.backend import Backing, Stored, applied_event, removed_event
from streambroker_operator.storage.responses import Answered
from streambroker_operator.storage.write_options import FREELY, Terms, Touched

_log = logging.getLogger("streambroker.matching")

_OfResource: TypeAlias = (
    ExportApplied | ExportRemoved | ImportApplied | ImportRemoved | RuleApplied | RuleRemoved
)

_FELL_BACK: Mapping[Difference, str] = {
    "changed": "its older version counts again",
    "ghost": "it is not there",
    "missing": "it was deleted, and is back",
}
_AT_ONCE = 50
"""Resources that a later list changes in one turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What a change did."""

    stored: Stored
    kept: tuple[Route, ...] = ()
    added: tuple[Route, ...] = ()
    cut: tuple[Cut, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What a set of changes did.

    Attributes:
        forecast: what it was to do, and did.
        stored: what each of its puts became, then what each of its removals was.
    """

    forecast: Forecast
    stored: tuple[Stored, ...]


class Observer(Protocol):
    """Is told what becomes of the board, on its event loop."""

    def followed(self, event: Event, actions: Sequence[Action]) -> None:
        """Take in what an event has done to the board; of several at once, the last has it all."""

    def acknowledged(self, pe: PeKey, version: str, ago_s: float) -> None:
        """Take in which view an agent runs, and since how many seconds."""


class Runtime:
    """Commands in; what they stand on, board and hints follow, in this order.

    All methods are called on one event loop. Those that write wait only where the
    backing does.

    Args:
        backing: where the resources are.
        sender: sends hints.
        board: an empty one.
        observer: is told what becomes of the board, and which views agents run.
        hints: whether hints are to be sent from here now.
        endings: what is shown of the ends of exports; None for what agents say to this process.

    Attributes:
        wants_acknowledgements: whether somebody wants to know at once which views agents run.
        rules: commands about rules of patterns.
        fallen_back: how many writes the store turned out not to have, by kind and difference.
    """

    def __init__(
        self,
        backing: Backing,
        sender: HintSender,
        board: Board | None = None,
        observer: Observer | None = None,
        hints: Callable[[], bool] = lambda: True,
        endings: Endings | None = None,
    ) -> None:
        self._backing = backing
        self._observer = observer
        self._hints = hints
        self.sender = sender
        self.board = Board() if board is None else board
        self.rules = Rules(backing, self.board, self._take_own)
        self._waiting: dict[PeKey, set[asyncio.Future[None]]] = {}
        self._closing = False
        self._warned = False
        self._loading: asyncio.Task[None] | None = None
        # What the feed tells while a list is being taken in, and is to come after it.
        self._held_back: list[Event] | None = None
        self.fallen_back: Counter[tuple[AnyKind, Difference]] = Counter()
        self.heard = Heard()
        self.endings: Endings = HeardEndings() if endings is None else endings
        self.changes = ChangeLog(
            secrets.token_hex(8), self.board, backing.get, self.why_cut, self.heard, self.endings
        )

    def start(self) -> None:
        """Fill the board with what is kept; before this, or before the feed, there are no views."""
        with without_collector():
            self._fill(self._backing.load())
            if self.board.synced:
                self._keep_from_collector()
        if self.board.synced:
            self._warn()

    def _keep_from_collector(self) -> None:
        figures = self.board.figures()
        keep_from_collector(figures.exports + figures.imports)

    def _fill(self, events: Iterable[Event]) -> None:
        # Nobody follows yet and nobody waits: of all that the board orders only hints go out.
        for event in events:
            for action in self.board.orders((event,)):
                if isinstance(action, Hint):
                    self._hint(action)
            if self._observer is not None:
                self._observer.followed(event, ())

    async def load(self, event: Synced) -> None:
        """Take in a list that the feed tells, and let others have their turn meanwhile.

        Whoever cancels this does not cut it short: a board that is half told would never learn
        the rest.
        """
        earlier, self._held_back = self._held_back or [], []
        self._loading = asyncio.create_task(self._load(event, earlier, self._loading))
        await asyncio.shield(self._loading)

    async def _load(
        self, event: Synced, earlier: Sequence[Event], before: asyncio.Task[None] | None
    ) -> None:
        if before is not None:
            await before
        for one in earlier:
            self._hear(one)
        with without_collector():
            if self.board.synced:
                await in_turns(self._ahead(event))
                self._take(event)
            else:
                await self._load_first(event)
        if asyncio.current_task() is not self._loading:
            # Another list waits; what was told before it comes before it, all else after it.
            return
        held_back, self._held_back = self._held_back or (), None
        for later in held_back:
            self._hear(later)

    async def _load_first(self, event: Synced) -> None:
        await in_turns(self._steps(event))
        if self._observer is not None:
            self._observer.followed(event, ())
        self._keep_from_collector()
        if self.board.synced:
            self._warn()

    def _ahead(self, event: Synced) -> Iterator[None]:
        """Take in what a later list tells, some of it at once; the list itself is short work then.

        The board is asked meanwhile, and has to be whole at any time.
        """
        several: list[Event] = []
        for one in self.board.news(event):
            if one is not None:
                several.append(one)
            if len(several) == _AT_ONCE:
                self._take(*several)
                several.clear()
            yield
        if several:
            self._take(*several)
            yield

    def _steps(self, event: Event) -> Iterator[None]:
        for action in self.board.steps((event,)):
            if isinstance(action, Hint):
                self._hint(action)
            yield

    def deliver(self, event: Event) -> None:
        """Take in what the feed tells."""
        if self._held_back is not None and self._waits(event):
            self._held_back.append(event)
        else:
            self._hear(event)

    def _hear(self, event: Event) -> None:
        """Have the board, which is whole, take an event in."""
        if not self.board.synced:
            self._fill((event,))
            if self.board.synced:
                self._keep_from_collector()
                self._warn()
        elif isinstance(event, AgentRegistered):
            self._agent(event)
        else:
            self._take(event)

    def _waits(self, event: Event) -> bool:
        """Say whether an event has to come after the list that is being taken in.

        A half-told board takes nothing in; a whole one takes all but the end of the feed that the
        list is of: that would make an old list the next one's equal.
        """
        return not self.board.synced or isinstance(event, FeedLost)

    def close(self) -> None:
        """Let everybody go who waits for a change."""
        self._closing = True
        self.changes.close()
        for pe in list(self._waiting):
            self._wake(pe)

    # ---- reading ---------------------------------------------------------

    def view(self, pe: PeKey) -> View | None:
        """Return a PE's view with its capabilities; None where the PE is not known."""
        view = self.board.view(pe)
        return None if view is None else with_capabilities(view, self._capability)

    def _capability(self, reader: PortKey, route: ImportRoute) -> str | None:
        exporter = self.board.registration(route.export.owner)
        export = self.board.export_at(route.export)
        if exporter is None or export is None:
            return None
        return capability.sign(
            self.key(route.export.owner, exporter),
            reader_import=str(reader),
            export=str(route.export),
            filter_allowed=export.allow_filter,
            policy=route.policy,
            expires=capability.end_of(time.time()),
        )

    def key(self, pe: PeKey, registration: Registration) -> bytes:
        """Return the key of a PE's agent."""
        return derive_key(self._backing.secret, pe, registration.instance)

    @property
    def secret(self) -> bytes:
        """What this broker signs with."""
        return self._backing.secret

    @property
    def answered(self) -> Answered:
        """The answers that are given again to the same request."""
        return self._backing.answered

    def stored(self, kind: Kind, key: PortKey) -> Stored | None:
        """Return the resource of a port."""
        return self._backing.get(kind, key)

    def all_of(self, kind: Kind) -> list[Stored]:
        """Return all resources of one kind, in order of their ports."""
        return self._backing.resources(kind)

    def each_of(self, kind: Kind) -> tuple[Stored, ...]:
        """Return all resources of one kind, in no order."""
        return self._backing.each(kind)

    async def changed(self, pe: PeKey, timeout_s: float) -> None:
        """Return when a PE's view changes, when time is up, or when the broker stops."""
        if self._closing:
            return
        future = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(pe, set()).add(future)
        try:
            await asyncio.wait([future], timeout=timeout_s)
        finally:
            waiting = self._waiting.get(pe, set())
            waiting.discard(future)
            if not waiting:
                self._waiting.pop(pe, None)

    # ---- writing ---------------------------------------------------------

    async def put(
        self, resource: Resource, *, touched: Touched | None = None, terms: Terms = FREELY
    ) -> Written:
        """Create or replace the resource of a port.

        Args:
            resource: as it should be.
            touched: what of its spec is meant; None for all of it.
            terms: on which this is done.

        Raises:
            RequestError: as of `Backing.write`.
            TakenError: the port, or the name, is another resource's.
            SubscriptionError: the subscription cannot be read.
            FilterError: the filter cannot be read, or can never work.
            ManifestError: the resource has become too large.
        """
        problem = refusal(Overlay(self.board), resource)
        if problem is not None:
            raise problem.with_traceback(None)
        before = self._routes_at(kind_of(resource), resource.key)
        (stored,) = await self._write(Proposal(puts=(resource,)), touched=touched, terms=terms)
        return self._written(stored, before)

    async def delete(self, kind: Kind, key: PortKey, *, terms: Terms = FREELY) -> Written | None:
        """Delete the resource of a port; None where there is none."""
        if self._backing.get(kind, key) is None:
            return None
        before = self._routes_at(kind, key)
        (stored,) = await self._write(Proposal(deletes=(Removal(kind, key),)), terms=terms)
        return self._written(stored, before)

    async def release(self, kind: Kind, key: PortKey, *, terms: Terms = FREELY) -> Written:
        """Give up what was changed here, so that what others declare holds again.

        Raises:
            RequestError: as of `Backing.release`.
        """
        before = self._routes_at(kind, key)
        stored = await self._backing.release(kind, key, terms=terms)
        self._take_own(applied_event(stored))
        return self._written(stored, before)

    async def apply(
        self,
        proposal: Proposal,
        check: Callable[[Forecast], None],
        watch: Callable[[int], None] = lambda routes: None,
    ) -> Applied:
        """Make all changes of a proposal at once, or none of them.

        Args:
            proposal: the changes, none of which has a uid.
            check: looks at what they will do; what it raises leaves everything as it is.
                It has to refuse a forecast with changes that are refused. Where nobody else
                writes, nothing comes between it and the changes.
            watch: as of `forecast`.
        """
        found = forecast(self.board, proposal, watch=watch)
        check(found)
        return Applied(forecast=found, stored=tuple(await self._write(proposal)))

    async def _write(
        self, proposal: Proposal, *, touched: Touched | None = None, terms: Terms = FREELY
    ) -> list[Stored]:
        """Make changes that are not refused, and tell everybody of all of them together."""
        stored = await self._backing.write(proposal, touched=touched, terms=terms)
        puts = len(proposal.puts)
        # What was found as it should be may still be news where others write.
        done = [one for one in stored[:puts] if one.changed or not self._backing.ordered]
        self._take_own(*map(applied_event, done), *map(removed_event, stored[puts:]))
        return stored

    def _take_own(self, *events: _OfResource) -> None:
        """Tell of own writes: the last word where only we write, ahead of the feed elsewhere."""
        if not self._backing.ordered:
            self._take(*(replace(event, early=True) for event in events))
        elif events:
            self._take(*events, CaughtUp(version=events[-1].version))

    def _take(self, *events: Event) -> None:
        """Tell the board of events, and everybody else of what they changed."""
        before = {
            (kind, uid): (self.board.get(kind, uid), version)
            for event in events
            for kind, uid, version in named_by(self.board, event)
        }
        self._tell(*events)
        told = list(became_of(self.board, before))
        self.changes.resources(*told)
        if told:
            self._warn()

    def owner(self, pe: PeKey) -> str | None:
        """Return the name of the token that a PE's agent is bound to; None if to none."""
        return self._backing.owner(pe)

    async def register(
        self, pe: PeKey, registration: Registration, owner: str | None = None
    ) -> Registered:
        """Remember where a PE's agent is, and whose token it has; return its key."""
        version = await self._backing.register(pe, registration, owner)
        self.heard.note(pe)
        self._agent(AgentRegistered(pe=pe, registration=registration, version=version))
        return Registered(key=self.key(pe, registration))

    def _agent(self, event: AgentRegistered | PeWithdrawn) -> None:
        """Tell of an agent, or that a PE is gone."""
        known = self.board.registration(event.pe)
        if isinstance(event, AgentRegistered) and known != event.registration:
            self.changes.touch(event.pe)
        last = [CaughtUp(version=event.version)] if self._backing.ordered else []
        self._tell(event, *last)
        self.changes.settle()

    async def withdraw(self, pe: PeKey) -> None:
        """Forget a PE that has no port left.

        Raises:
            RequestError: it has; nothing is changed.
        """
        exports, imports = self.board.ports(pe)
        left = sorted({*exports, *imports})
        if left:
            ports = ", ".join(left)
            raise RequestError(
                409, "PortsRemain", f"{pe} still has the ports {ports}; delete them first."
            )
        version = await self._backing.withdraw(pe)
        self.heard.forget(pe)
        self.endings.forget(pe)
        self.rules.heard(pe, {})
        self._agent(PeWithdrawn(pe=pe, version=version))

    @property
    def wants_acknowledgements(self) -> bool:
        """As above."""
        return self._observer is not None

    def acknowledge(self, pe: PeKey, version: str, ago_s: float = 0.0) -> None:
        """Take in which view an agent runs, and since how many seconds, as its own job says."""
        if self._observer is not None:
            self._observer.acknowledged(pe, version, ago_s)

    def _warn(self) -> None:
        """Say once that subscriptions have become slow to match."""
        figures = self.board.figures()
        if figures.crowded and not self._warned:
            self._warned = True
            _log.warning(
                "%d of %d subscriptions cannot be looked up and are tried for every Export; "
                "give them an equality, `in`, or a range with both ends",
                figures.others,
                figures.imports,
            )

    def _routes_at(self, kind: Kind, key: PortKey) -> list[Route]:
        found: Resource | None = (
            self.board.export_at(key) if kind == "Export" else self.board.import_at(key)
        )
        return [] if found is None else self.board.routes_of(kind, found.uid)

    def _written(self, stored: Stored, before: Iterable[Route]) -> Written:
        kind = kind_of(stored.resource)
        after = self.board.routes_of(kind, stored.resource.uid)
        old = {(route.export_uid, route.import_uid): route for route in before}
        new = {(route.export_uid, route.import_uid): route for route in after}
        return Written(
            stored=stored.judged(self.board.status(kind, stored.resource.uid)),
            kept=tuple(route for pair, route in new.items() if pair in old),
            added=tuple(route for pair, route in new.items() if pair not in old),
            cut=tuple(
                Cut(route=route, reason=self.why_cut(route))
                for pair, route in old.items()
                if pair not in new
            ),
        )

    def why_cut(self, route: Route) -> str:
        """Return the word for why a route is gone."""
        return why_cut(Overlay(self.board), route)

    # ---- orders ----------------------------------------------------------

    def _tell(self, *events: Event) -> None:
        """Tell the board; `CaughtUp` as the last one says that nothing older follows.

        That is so after each write where nobody else writes.
        """
        actions = list(self.board.orders(events))
        for action in actions:
            self._perform(action)
        if self._observer is not None:
            for event in events:
                last = event is events[-1]
                self._observer.followed(event, actions if last else ())

    def _perform(self, action: Action) -> None:
        if isinstance(action, RoutesChanged):
            self.changes.touch(action.pe, new=action.new, moved=action.moved)
            self._wake(action.pe)
        elif isinstance(action, StatusChanged) and action.kind != RULE:
            self.changes.touch_status(action.kind, action.uid)
        elif isinstance(action, Hint):
            self._hint(action)
        elif isinstance(action, FellBack):
            self._report(action)

    def _report(self, order: FellBack) -> None:
        self.fallen_back[order.kind, order.difference] += 1
        place = _FELL_BACK[order.difference]
        _log.warning(
            "%s with uid %s: the API server lost the change that this broker had made, after a "
            "restore for instance; %s",
            *(order.kind, order.uid, place),
        )

    def _wake(self, pe: PeKey) -> None:
        for future in self._waiting.pop(pe, set()):
            if not future.done():
                future.set_result(None)

    def hint(self, pes: Iterable[PeKey]) -> None:
        """Send agents a hint of their views as they are now."""
        for pe in pes:
            version = self.board.version(pe)
            if version is not None:
                self._hint(Hint(pe=pe, version=version, point=self.board.point))

    def _hint(self, order: Hint) -> None:
        registration = self.board.registration(order.pe)
        if registration is None or registration.hint is None or not self._hints():
            return
        key = self.key(order.pe, registration)
        datagram = hints.encode(key, str(order.pe), order.version, order.point)
        self.sender.send(order.pe, registration.hint, datagram)
