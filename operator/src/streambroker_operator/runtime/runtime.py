"""Runtime: the single owner of the broker's state.

- Every change is checked, written, applied to the board and then hinted, in this order.
- Only written changes are published. A failed check changes nothing.
- If others write to the store too, a feed reports their changes, and the runtime's own again.
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
    BoardEvent,
    CaughtUp,
    ExportApplied,
    ExportRemoved,
    FeedLost,
    HintAction,
    ImportApplied,
    ImportRemoved,
    PeWithdrawn,
    RoutesChanged,
    RuleApplied,
    RuleRemoved,
    StatusChanged,
    Synced,
    WriteReverted,
)
from streambroker_core.board.events import Difference
from streambroker_core.diagnose import (
    BoardOverlay,
    CutRoute,
    Forecast,
    Proposal,
    Removal,
    cut_reason,
    find_put_problem,
    forecast,
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
from streambroker_core.wire.broker.registration import Registration, RegistrationReply, derive_key
from streambroker_core.wire.broker.view import ImportRoute, View, with_capabilities
from streambroker_operator.agents.ended_exports import ExportReports, LocalExportReports
from streambroker_operator.agents.hint_sender import HintSender
from streambroker_operator.agents.liveness import AgentLiveness
from streambroker_operator.cooperative import freeze_gc, gc_paused, run_in_turns
from streambroker_operator.errors import RequestError
from streambroker_operator.runtime.change_log import ChangeLog, affected_resources, resource_changes
from streambroker_operator.runtime.rules import Rules
from streambroker_operator.storage.backend import (
    StorageBackend,
    StoredResource,
    applied_event,
    removed_event,
)
from streambroker_operator.storage.responses import ResponseStore
from streambroker_operator.storage.write_options import UNCONDITIONAL, Touched, WriteOptions

_log = logging.getLogger("streambroker.matching")

_ResourceEvent: TypeAlias = (
    ExportApplied | ExportRemoved | ImportApplied | ImportRemoved | RuleApplied | RuleRemoved
)

_FALLBACK_EFFECTS: Mapping[Difference, str] = {
    "changed": "its older version applies again",
    "ghost": "it does not exist",
    "missing": "it was deleted, and exists again",
}
_RESOURCES_PER_TURN = 50
"""Resources of a later list that are applied in one turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteResult:
    """Result of a change: the stored resource, and routes retained, added and cut."""

    stored: StoredResource
    retained: tuple[Route, ...] = ()
    added: tuple[Route, ...] = ()
    cut: tuple[CutRoute, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedProposal:
    """Result of a set of changes.

    Attributes:
        forecast: the effect on routes.
        stored: the resource of each put, then the deleted resource of each removal.
    """

    forecast: Forecast
    stored: tuple[StoredResource, ...]


class Observer(Protocol):
    """Receives the effects of board events, on the runtime's event loop."""

    def on_actions(self, event: BoardEvent, actions: Sequence[Action]) -> None:
        """Handle the actions of an event; with several events at once, the last has all actions."""

    def on_acknowledged(self, pe: PeKey, version: str, ago_s: float) -> None:
        """Handle that an agent has been running a view for `ago_s` seconds."""


class Runtime:
    """Applies commands to the store, then to the board, then sends hints.

    All methods are called on one event loop. Writing methods wait only for the backend.

    Args:
        backing: storage of the resources.
        sender: sends hints.
        board: an empty one.
        observer: receives board actions and acknowledged views.
        hints: returns whether this process sends hints now.
        export_reports: published ends of exports; None to use reports to this process.

    Attributes:
        needs_acknowledgements: whether an observer wants acknowledgements at once.
        rules: commands about pattern rules.
        fallen_back: number of writes that the store lost, by kind and difference.
    """

    def __init__(
        self,
        backing: StorageBackend,
        sender: HintSender,
        board: Board | None = None,
        observer: Observer | None = None,
        hints: Callable[[], bool] = lambda: True,
        export_reports: ExportReports | None = None,
    ) -> None:
        self._backing = backing
        self._observer = observer
        self._sends_hints = hints
        self.sender = sender
        self.board = Board() if board is None else board
        self.rules = Rules(backing, self.board, self._apply_own_write)
        self._waiters: dict[PeKey, set[asyncio.Future[None]]] = {}
        self._closing = False
        self._warned = False
        self._loading: asyncio.Task[None] | None = None
        # Feed events that arrive while a list is loading and must follow it.
        self._deferred: list[BoardEvent] | None = None
        self.fallen_back: Counter[tuple[AnyKind, Difference]] = Counter()
        self.liveness = AgentLiveness()
        self.export_reports: ExportReports = (
            LocalExportReports() if export_reports is None else export_reports
        )
        self.change_log = ChangeLog(
            secrets.token_hex(8),
            self.board,
            backing.get,
            self.cut_reason,
            self.liveness,
            self.export_reports,
        )

    def start(self) -> None:
        """Load the stored resources into the board; no views exist before this or the feed."""
        with gc_paused():
            self._fill(self._backing.load())
            if self.board.synced:
                self._freeze_gc()
        if self.board.synced:
            self._warn()

    def _freeze_gc(self) -> None:
        stats = self.board.index_stats()
        freeze_gc(stats.exports + stats.imports)

    def _fill(self, events: Iterable[BoardEvent]) -> None:
        # No readers or waiters exist yet, so only hints have an effect.
        for event in events:
            for action in self.board.iter_actions((event,)):
                if isinstance(action, HintAction):
                    self._hint(action)
            if self._observer is not None:
                self._observer.on_actions(event, ())

    async def load(self, event: Synced) -> None:
        """Apply a list from the feed, and yield to other tasks meanwhile.

        Cancelling the caller does not stop it: a partly loaded board would never be completed.
        """
        earlier, self._deferred = self._deferred or [], []
        self._loading = asyncio.create_task(self._load(event, earlier, self._loading))
        await asyncio.shield(self._loading)

    async def _load(
        self, event: Synced, earlier: Sequence[BoardEvent], before: asyncio.Task[None] | None
    ) -> None:
        if before is not None:
            await before
        for deferred in earlier:
            self._on_event(deferred)
        with gc_paused():
            if self.board.synced:
                await run_in_turns(self._apply_ahead(event))
                self._apply_events(event)
            else:
                await self._load_first(event)
        if asyncio.current_task() is not self._loading:
            # Another list waits: events before it precede it, all others follow it.
            return
        deferred_events, self._deferred = self._deferred or (), None
        for later in deferred_events:
            self._on_event(later)

    async def _load_first(self, event: Synced) -> None:
        await run_in_turns(self._steps(event))
        if self._observer is not None:
            self._observer.on_actions(event, ())
        self._freeze_gc()
        if self.board.synced:
            self._warn()

    def _apply_ahead(self, event: Synced) -> Iterator[None]:
        """Apply the differences of a later list in batches, so that the list itself is quick.

        The board answers queries meanwhile and must be consistent after each batch.
        """
        batch: list[BoardEvent] = []
        for change in self.board.diff(event):
            if change is not None:
                batch.append(change)
            if len(batch) == _RESOURCES_PER_TURN:
                self._apply_events(*batch)
                batch.clear()
            yield
        if batch:
            self._apply_events(*batch)
            yield

    def _steps(self, event: BoardEvent) -> Iterator[None]:
        for action in self.board.iter_steps((event,)):
            if isinstance(action, HintAction):
                self._hint(action)
            yield

    def deliver(self, event: BoardEvent) -> None:
        """Apply an event of the feed, or defer it until the list is loaded."""
        if self._deferred is not None and self._must_defer(event):
            self._deferred.append(event)
        else:
            self._on_event(event)

    def _on_event(self, event: BoardEvent) -> None:
        if not self.board.synced:
            self._fill((event,))
            if self.board.synced:
                self._freeze_gc()
                self._warn()
        elif isinstance(event, AgentRegistered):
            self._apply_agent(event)
        else:
            self._apply_events(event)

    def _must_defer(self, event: BoardEvent) -> bool:
        """Return whether an event must wait for the list that is loading.

        A partly loaded board applies no events. A complete one applies all but `FeedLost`, which
        would make the old list equal to the next one.
        """
        return not self.board.synced or isinstance(event, FeedLost)

    def close(self) -> None:
        """Wake all waiters and close the change log."""
        self._closing = True
        self.change_log.close()
        for pe in list(self._waiters):
            self._wake(pe)

    # ---- reading ---------------------------------------------------------

    def view(self, pe: PeKey) -> View | None:
        """Return a PE's view with its capabilities; None if the PE is unknown."""
        view = self.board.view(pe)
        return None if view is None else with_capabilities(view, self._capability)

    def _capability(self, reader: PortKey, route: ImportRoute) -> str | None:
        exporter = self.board.registration(route.export.owner)
        export = self.board.export_at(route.export)
        if exporter is None or export is None:
            return None
        return capability.sign(
            self.agent_key(route.export.owner, exporter),
            reader_import=str(reader),
            export=str(route.export),
            filter_allowed=export.allow_filter,
            policy=route.policy,
            expires=capability.compute_expiry(time.time()),
        )

    def agent_key(self, pe: PeKey, registration: Registration) -> bytes:
        """Return the key of a PE's agent."""
        return derive_key(self._backing.secret, pe, registration.instance)

    @property
    def secret(self) -> bytes:
        """Signing key material of this broker."""
        return self._backing.secret

    @property
    def responses(self) -> ResponseStore:
        """Stored responses for repeated requests."""
        return self._backing.responses

    def get_stored(self, kind: Kind, key: PortKey) -> StoredResource | None:
        """Return the resource of a port."""
        return self._backing.get(kind, key)

    def resources(self, kind: Kind) -> list[StoredResource]:
        """Return all resources of one kind, in order of their ports."""
        return self._backing.resources(kind)

    def unordered_resources(self, kind: Kind) -> tuple[StoredResource, ...]:
        """Return all resources of one kind, in no order."""
        return self._backing.unordered_resources(kind)

    async def wait_changed(self, pe: PeKey, timeout_s: float) -> None:
        """Wait until a PE's view changes, the time is up or the broker stops."""
        if self._closing:
            return
        future = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(pe, set()).add(future)
        try:
            await asyncio.wait([future], timeout=timeout_s)
        finally:
            waiting = self._waiters.get(pe, set())
            waiting.discard(future)
            if not waiting:
                self._waiters.pop(pe, None)

    # ---- writing ---------------------------------------------------------

    async def put(
        self,
        resource: Resource,
        *,
        touched: Touched | None = None,
        options: WriteOptions = UNCONDITIONAL,
    ) -> WriteResult:
        """Create or replace the resource of a port; `touched` None changes its whole spec.

        Raises:
            RequestError: see `StorageBackend.write`.
            TakenError: the port or the name belongs to another resource.
            SubscriptionError: the subscription is invalid.
            FilterError: the filter is invalid, or can never match.
            ManifestError: the resource has become too large.
        """
        problem = find_put_problem(BoardOverlay(self.board), resource)
        if problem is not None:
            raise problem.with_traceback(None)
        before = self._routes_at(kind_of(resource), resource.key)
        (stored,) = await self._write(Proposal(puts=(resource,)), touched=touched, options=options)
        return self._write_result(stored, before)

    async def delete(
        self, kind: Kind, key: PortKey, *, options: WriteOptions = UNCONDITIONAL
    ) -> WriteResult | None:
        """Delete the resource of a port; return None if there is none."""
        if self._backing.get(kind, key) is None:
            return None
        before = self._routes_at(kind, key)
        (stored,) = await self._write(Proposal(deletes=(Removal(kind, key),)), options=options)
        return self._write_result(stored, before)

    async def release(
        self, kind: Kind, key: PortKey, *, options: WriteOptions = UNCONDITIONAL
    ) -> WriteResult:
        """Release the fields changed here, so that what others declare applies again.

        Raises:
            RequestError: see `StorageBackend.release`.
        """
        before = self._routes_at(kind, key)
        stored = await self._backing.release(kind, key, options=options)
        self._apply_own_write(applied_event(stored))
        return self._write_result(stored, before)

    async def apply(
        self,
        proposal: Proposal,
        check: Callable[[Forecast], None],
        watch: Callable[[int], None] = lambda routes: None,
    ) -> AppliedProposal:
        """Make all changes of a proposal at once, or none.

        Args:
            proposal: the changes; their resources have no uid.
            check: receives the forecast; an exception leaves everything unchanged. It must refuse
                forecasts with refused changes. If the broker is the sole writer, no other change
                happens between the check and the write.
            watch: see `forecast`.
        """
        result = forecast(self.board, proposal, watch=watch)
        check(result)
        return AppliedProposal(forecast=result, stored=tuple(await self._write(proposal)))

    async def _write(
        self,
        proposal: Proposal,
        *,
        touched: Touched | None = None,
        options: WriteOptions = UNCONDITIONAL,
    ) -> list[StoredResource]:
        stored = await self._backing.write(proposal, touched=touched, options=options)
        puts = len(proposal.puts)
        # If others write too, an unchanged resource may still be new to the board.
        applied = [one for one in stored[:puts] if one.changed or not self._backing.is_sole_writer]
        self._apply_own_write(*map(applied_event, applied), *map(removed_event, stored[puts:]))
        return stored

    def _apply_own_write(self, *events: _ResourceEvent) -> None:
        """Apply own writes: final if this broker is the sole writer, else ahead of the feed."""
        if not self._backing.is_sole_writer:
            self._apply_events(*(replace(event, ahead_of_feed=True) for event in events))
        elif events:
            self._apply_events(*events, CaughtUp(version=events[-1].version))

    def _apply_events(self, *events: BoardEvent) -> None:
        before = {
            (kind, uid): (self.board.get(kind, uid), version)
            for event in events
            for kind, uid, version in affected_resources(self.board, event)
        }
        self._publish(*events)
        changes = list(resource_changes(self.board, before))
        self.change_log.publish_resources(*changes)
        if changes:
            self._warn()

    def owner(self, pe: PeKey) -> str | None:
        """Return the name of the token that a PE's agent is bound to; None if it is unbound."""
        return self._backing.owner(pe)

    async def register(
        self, pe: PeKey, registration: Registration, owner: str | None = None
    ) -> RegistrationReply:
        """Store a PE's agent and its token's name; return the agent's key."""
        version = await self._backing.register(pe, registration, owner)
        self.liveness.note_contact(pe)
        self._apply_agent(AgentRegistered(pe=pe, registration=registration, version=version))
        return RegistrationReply(key=self.agent_key(pe, registration))

    def _apply_agent(self, event: AgentRegistered | PeWithdrawn) -> None:
        current = self.board.registration(event.pe)
        if isinstance(event, AgentRegistered) and current != event.registration:
            self.change_log.note_pe(event.pe)
        last = [CaughtUp(version=event.version)] if self._backing.is_sole_writer else []
        self._publish(event, *last)
        self.change_log.flush()

    async def withdraw(self, pe: PeKey) -> None:
        """Remove a PE; raise 409 if it still has ports."""
        exports, imports = self.board.ports(pe)
        remaining = sorted({*exports, *imports})
        if remaining:
            ports = ", ".join(remaining)
            raise RequestError(
                409, "PortsRemain", f"{pe} still has the ports {ports}; delete them first."
            )
        version = await self._backing.withdraw(pe)
        self.liveness.forget(pe)
        self.export_reports.forget(pe)
        self.rules.apply_report(pe, {})
        self._apply_agent(PeWithdrawn(pe=pe, version=version))

    @property
    def needs_acknowledgements(self) -> bool:
        """Whether an observer wants acknowledgements at once."""
        return self._observer is not None

    def acknowledge(self, pe: PeKey, version: str, ago_s: float = 0.0) -> None:
        """Record that an agent has been running a view for `ago_s` seconds, as its job reports."""
        if self._observer is not None:
            self._observer.on_acknowledged(pe, version, ago_s)

    def _warn(self) -> None:
        """Warn once if too many subscriptions cannot be indexed."""
        stats = self.board.index_stats()
        if stats.is_crowded and not self._warned:
            self._warned = True
            _log.warning(
                "%d of %d subscriptions cannot be indexed and are evaluated for every Export;"
                " give them an equality, `in`, or a range with both ends",
                stats.unindexed,
                stats.imports,
            )

    def _routes_at(self, kind: Kind, key: PortKey) -> list[Route]:
        resource: Resource | None = (
            self.board.export_at(key) if kind == "Export" else self.board.import_at(key)
        )
        return [] if resource is None else self.board.routes_of(kind, resource.uid)

    def _write_result(self, stored: StoredResource, before: Iterable[Route]) -> WriteResult:
        kind = kind_of(stored.resource)
        after = self.board.routes_of(kind, stored.resource.uid)
        old = {(route.export_uid, route.import_uid): route for route in before}
        new = {(route.export_uid, route.import_uid): route for route in after}
        return WriteResult(
            stored=stored.with_board_warning(self.board.status(kind, stored.resource.uid)),
            retained=tuple(route for pair, route in new.items() if pair in old),
            added=tuple(route for pair, route in new.items() if pair not in old),
            cut=tuple(
                CutRoute(route=route, reason=self.cut_reason(route))
                for pair, route in old.items()
                if pair not in new
            ),
        )

    def cut_reason(self, route: Route) -> str:
        """Return the reason code for a removed route."""
        return cut_reason(BoardOverlay(self.board), route)

    # ---- orders ----------------------------------------------------------

    def _publish(self, *events: BoardEvent) -> None:
        """Apply events to the board and perform its actions.

        A final `CaughtUp` means that nothing older follows. This holds after each write if the
        broker is the sole writer.
        """
        actions = list(self.board.iter_actions(events))
        for action in actions:
            self._perform(action)
        if self._observer is not None:
            for event in events:
                last = event is events[-1]
                self._observer.on_actions(event, actions if last else ())

    def _perform(self, action: Action) -> None:
        if isinstance(action, RoutesChanged):
            self.change_log.note_pe(
                action.pe, is_new=action.new, route_changes=action.route_changes
            )
            self._wake(action.pe)
        elif isinstance(action, StatusChanged) and action.kind != RULE:
            self.change_log.note_status(action.kind, action.uid)
        elif isinstance(action, HintAction):
            self._hint(action)
        elif isinstance(action, WriteReverted):
            self._report_fallback(action)

    def _report_fallback(self, order: WriteReverted) -> None:
        self.fallen_back[order.kind, order.difference] += 1
        effect = _FALLBACK_EFFECTS[order.difference]
        _log.warning(
            "%s with uid %s: the API server lost a change made by this broker, after a restore"
            " for instance; %s",
            *(order.kind, order.uid, effect),
        )

    def _wake(self, pe: PeKey) -> None:
        for future in self._waiters.pop(pe, set()):
            if not future.done():
                future.set_result(None)

    def hint(self, pes: Iterable[PeKey]) -> None:
        """Send agents a hint with the current version of their views."""
        for pe in pes:
            version = self.board.version(pe)
            if version is not None:
                self._hint(HintAction(pe=pe, version=version, point=self.board.point))

    def _hint(self, order: HintAction) -> None:
        registration = self.board.registration(order.pe)
        if registration is None or registration.hint is None or not self._sends_hints():
            return
        key = self.agent_key(order.pe, registration)
        datagram = hints.encode(key, str(order.pe), order.version, order.point)
        self.sender.send(order.pe, registration.hint, datagram)
