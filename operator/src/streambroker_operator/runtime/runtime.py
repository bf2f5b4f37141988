"""Runtime: the single owner of the broker's state.

- Every change is checked, written, applied to the board and then hinted, in this order.
- Only written changes are published. A failed check changes nothing.
- If others write to the store too, a feed reports their changes, and the runtime's own again.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from streambroker_core.board import (
    AgentRegistered,
    Board,
    PeWithdrawn,
)
from streambroker_core.diagnose import (
    BoardOverlay,
    CutRoute,
    Forecast,
    Proposal,
    cut_reason,
    find_put_problem,
    forecast,
)
from streambroker_core.matching import find_restriction, visible_schema
from streambroker_core.model import (
    Export,
    Kind,
    PeKey,
    PortKey,
    Removal,
    Resource,
    Route,
    kind_of,
)
from streambroker_core.model.schema import Schema
from streambroker_core.wire.broker import capability
from streambroker_core.wire.broker.registration import Registration, RegistrationReply, derive_key
from streambroker_core.wire.broker.view import ImportRoute, View, with_capabilities
from streambroker_core.wire.manifests.quotas import Quotas
from streambroker_operator.agents.hint_sender import HintSender
from streambroker_operator.agents.liveness import AgentLiveness
from streambroker_operator.agents.port_reports import LocalPortReports, PortReports
from streambroker_operator.errors import RequestError
from streambroker_operator.runtime.change_log import ChangeLog
from streambroker_operator.runtime.feed import Feed
from streambroker_operator.runtime.history import History
from streambroker_operator.runtime.publisher import Observer, Publisher
from streambroker_operator.runtime.rules import Rules
from streambroker_operator.storage.backend import (
    StorageBackend,
    StoredResource,
    applied_event,
    removed_event,
)
from streambroker_operator.storage.write_options import UNCONDITIONAL, Touched, WriteOptions

_log = logging.getLogger("streambroker.matching")


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


class Runtime:
    """Applies commands to the store, then to the board, then sends hints.

    All methods are called on one event loop. Writing methods wait only for the backend.

    Args:
        store: storage of the resources.
        sender: sends hints.
        board: an empty one.
        observer: receives board actions and acknowledged views.
        hints: returns whether this process sends hints now.
        port_reports: published ends of exports; None to use reports to this process.
        quotas: of namespaces; None for none.

    Attributes:
        store: the storage, for reading; writes go through the runtime.
        board: reads the board.
        publisher: applies events to the board.
        feed: fills the board, and orders the events of a feed.
        rules: commands about pattern rules.
        history: what was changed here.
    """

    def __init__(
        self,
        store: StorageBackend,
        sender: HintSender,
        board: Board | None = None,
        observer: Observer | None = None,
        hints: Callable[[], bool] = lambda: True,
        port_reports: PortReports | None = None,
        quotas: Quotas | None = None,
    ) -> None:
        self.store = store
        self.sender = sender
        machine = Board() if board is None else board
        self.board = machine.reader
        self.board.quotas = quotas or Quotas()
        self.liveness = AgentLiveness()
        self.port_reports: PortReports = (
            LocalPortReports(self.board) if port_reports is None else port_reports
        )
        self.change_log = ChangeLog(
            secrets.token_hex(8),
            self.board,
            store.get,
            self.cut_reason,
            self.liveness,
            self.port_reports,
        )
        self.publisher = Publisher(machine, self.change_log, store, sender, observer, hints)
        self.feed = Feed(machine, self.publisher, store)
        self.history = History()
        self.rules = Rules(store, self.board, self.publisher.publish_write)

    # ---- reading ---------------------------------------------------------

    def view(self, pe: PeKey) -> View | None:
        """Return a PE's view with its capabilities; None if the PE is unknown."""
        view = self.board.view(pe)
        if view is None:
            return None
        return with_capabilities(view, self._capability, self._visible_columns)

    def _visible_columns(self, reader: PortKey, route: ImportRoute) -> Schema | None:
        export = self.board.holder("Export", route.export)
        if not isinstance(export, Export):
            return None
        return visible_schema(route.schema, find_restriction(export, reader))

    def _capability(self, reader: PortKey, route: ImportRoute) -> str | None:
        exporter = self.board.registration(route.export.owner)
        export = self.board.holder("Export", route.export)
        if exporter is None or not isinstance(export, Export):
            return None
        return capability.sign(
            self.agent_key(route.export.owner, exporter),
            reader_import=str(reader),
            export=str(route.export),
            filter_allowed=export.allow_filter,
            policy=route.policy,
            expires=capability.compute_expiry(time.time()),
            policed=bool(export.policies),
        )

    def agent_key(self, pe: PeKey, registration: Registration) -> bytes:
        """Return the key of a PE's agent."""
        return derive_key(self.store.secret, pe, registration.instance)

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
            QuotaExceededError: the port is new, and the namespace has no other one left.
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
        if self.store.get(kind, key) is None:
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
        old = self.board.holder(kind, key)
        stored = await self.store.release(kind, key, options=options)
        self.history.note(time.time(), options.principal, "released", old, stored.resource)
        self.publisher.publish_write(applied_event(stored))
        return self._write_result(stored, before)

    async def apply(
        self,
        proposal: Proposal,
        check: Callable[[Forecast], None],
        watch: Callable[[int], None] = lambda routes: None,
        *,
        options: WriteOptions = UNCONDITIONAL,
    ) -> AppliedProposal:
        """Make all changes of a proposal at once, or none.

        Args:
            proposal: the changes; their resources have no uid.
            check: receives the forecast; an exception leaves everything unchanged. It must refuse
                forecasts with refused changes. If the broker is the sole writer, no other change
                happens between the check and the write.
            watch: see `forecast`.
            options: of the write.
        """
        result = forecast(self.board, proposal, watch=watch)
        check(result)
        return AppliedProposal(
            forecast=result, stored=tuple(await self._write(proposal, options=options))
        )

    async def _write(
        self,
        proposal: Proposal,
        *,
        touched: Touched | None = None,
        options: WriteOptions = UNCONDITIONAL,
    ) -> list[StoredResource]:
        puts = len(proposal.puts)
        places = [*((kind_of(one), one.key) for one in proposal.puts)]
        places += [(one.kind, one.key) for one in proposal.deletes]
        old = [self.board.holder(*place) for place in places]
        stored = await self.store.write(proposal, touched=touched, options=options)
        self._note_changes(old, stored, puts, options.principal)
        # If others write too, an unchanged resource may still be new to the board.
        applied = [one for one in stored[:puts] if one.changed or not self.store.is_sole_writer]
        events = *map(applied_event, applied), *map(removed_event, stored[puts:])
        self.publisher.publish_write(*events)
        return stored

    def _note_changes(
        self,
        old: Iterable[Resource | None],
        stored: Iterable[StoredResource],
        puts: int,
        principal: str,
    ) -> None:
        """Add the changes of a write to the history: first `puts` resources, then deleted ones."""
        for index, (before, one) in enumerate(zip(old, stored, strict=True)):
            if index >= puts:
                self.history.note(time.time(), principal, "deleted", one.resource, None)
            elif one.created or one.changed:
                was, action = (None, "created") if one.created else (before, "changed")
                self.history.note(time.time(), principal, action, was, one.resource)

    async def register(
        self, pe: PeKey, registration: Registration, owner: str | None = None
    ) -> RegistrationReply:
        """Store a PE's agent and its token's name; return the agent's key."""
        version = await self.store.register(pe, registration, owner)
        self.liveness.note_contact(pe)
        event = AgentRegistered(pe=pe, registration=registration, version=version)
        self.publisher.publish_agent(event)
        return RegistrationReply(key=self.agent_key(pe, registration))

    async def withdraw(self, pe: PeKey) -> None:
        """Remove a PE; raise 409 if it still has ports."""
        exports, imports = self.board.ports(pe)
        remaining = sorted({*exports, *imports})
        if remaining:
            ports = ", ".join(remaining)
            raise RequestError(
                409, "PortsRemain", f"{pe} still has the ports {ports}; delete them first."
            )
        version = await self.store.withdraw(pe)
        self.liveness.forget(pe)
        self.port_reports.forget(pe)
        self.rules.apply_report(pe, {})
        self.publisher.publish_agent(PeWithdrawn(pe=pe, version=version))

    def _routes_at(self, kind: Kind, key: PortKey) -> list[Route]:
        resource = self.board.holder(kind, key)
        return [] if resource is None else self.board.routes_of(kind, resource.uid)

    def _write_result(self, stored: StoredResource, before: Iterable[Route]) -> WriteResult:
        kind = kind_of(stored.resource)
        after = self.board.routes_of(kind, stored.resource.uid)
        old = {(route.export_uid, route.import_uid): route for route in before}
        new = {(route.export_uid, route.import_uid): route for route in after}
        warned = stored.with_board_warning(self.board.status(kind, stored.resource.uid))
        if stored.changed:
            warned = replace(warned, warnings=(*warned.warnings, *self._quota_warnings(stored)))
        return WriteResult(
            stored=warned,
            retained=tuple(route for pair, route in new.items() if pair in old),
            added=tuple(route for pair, route in new.items() if pair not in old),
            cut=tuple(
                CutRoute(route=route, reason=self.cut_reason(route))
                for pair, route in old.items()
                if pair not in new
            ),
        )

    def _quota_warnings(self, stored: StoredResource) -> tuple[str, ...]:
        namespace = stored.resource.key.namespace
        quota = self.board.quotas.find(namespace)
        if not quota.limits_ports:
            return ()
        return quota.warnings(namespace, self.board.usage(namespace))

    def cut_reason(self, route: Route) -> str:
        """Return the reason code for a removed route."""
        return cut_reason(BoardOverlay(self.board), route)
