"""The one owner of the broker's state.

Every change takes the same way: checked, written to the store, told to the board,
hinted. Nothing is told to anybody that is not on disk, and nothing that was
checked in vain has changed anything.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import get_args

from streambroker_core.board import (
    Action,
    AgentRegistered,
    Board,
    CaughtUp,
    Event,
    ExportApplied,
    ExportRemoved,
    Hint,
    ImportApplied,
    ImportRemoved,
    PeDeclared,
    PeWithdrawn,
    RoutesChanged,
    StatusChanged,
    Synced,
)
from streambroker_core.model import (
    Export,
    Kind,
    PeKey,
    PortKey,
    Resource,
    Route,
    kind_of,
)
from streambroker_core.whatif import (
    Cut,
    Forecast,
    Overlay,
    Proposal,
    Removal,
    forecast,
    refusal,
    why_cut,
)
from streambroker_core.wire import capability, hints
from streambroker_core.wire.registration import Registered, Registration, derive_key
from streambroker_core.wire.view import ImportRoute, View, with_capabilities
from streambroker_operator.changes import ChangeLog, Word
from streambroker_operator.errors import RequestError
from streambroker_operator.heard import Heard
from streambroker_operator.hinting import HintSender
from streambroker_operator.idempotency import Answered
from streambroker_operator.store import Store, Stored

_log = logging.getLogger("streambroker.matching")

_MANY = 1000
"""Resources that are worth freezing."""


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


class Runtime:
    """Commands in; store, board and hints follow, in this order.

    All methods are called on one event loop; none of them waits but `changed`.

    Args:
        store: where the resources are.
        sender: sends hints.
        board: an empty one.
    """

    def __init__(self, store: Store, sender: HintSender, board: Board | None = None) -> None:
        self._store = store
        self.sender = sender
        self.board = Board() if board is None else board
        self._waiting: dict[PeKey, set[asyncio.Future[None]]] = {}
        self._closing = False
        self._warned = False
        self.heard = Heard()
        self.changes = ChangeLog(
            secrets.token_hex(8), self.board, store.get, self._why_cut, self.heard
        )

    def start(self) -> None:
        """Fill the board from the store; before this there are no views.

        What was loaded stays: the collector of garbage is kept from looking for
        rubbish in it, which for 100,000 resources takes most of a second each time.
        """
        collecting = gc.isenabled()
        gc.disable()
        try:
            self._load()
        finally:
            if collecting:
                gc.enable()
        figures = self.board.figures()
        if figures.exports + figures.imports >= _MANY:
            gc.freeze()
        self._warn()

    def _load(self) -> None:
        # Nobody follows yet and nobody waits: of all that the board orders only hints go out.
        for action in self.board.orders(self._stored()):
            if isinstance(action, Hint):
                self._hint(action)

    def _stored(self) -> Iterator[Event]:
        version = self._store.version
        for known in self._store.pes():
            yield PeDeclared(pe=known.pe)
            if known.registration is not None:
                yield AgentRegistered(
                    pe=known.pe, registration=known.registration, version=known.version
                )
        for kind in get_args(Kind):
            listed = ((s.resource, s.version) for s in self._store.resources(kind))
            yield Synced(kind=kind, listed=listed, version=version)

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
        )

    def key(self, pe: PeKey, registration: Registration) -> bytes:
        """Return the key of a PE's agent."""
        return derive_key(self._store.secret, pe, registration.instance)

    @property
    def secret(self) -> bytes:
        """What this broker signs with."""
        return self._store.secret

    @property
    def answered(self) -> Answered:
        """The answers that are given again to the same request."""
        return self._store.answered

    def stored(self, kind: Kind, key: PortKey) -> Stored | None:
        """Return the resource of a port."""
        return self._store.get(kind, key)

    def all_of(self, kind: Kind) -> list[Stored]:
        """Return all resources of one kind, in order of their ports."""
        return self._store.resources(kind)

    def each_of(self, kind: Kind) -> tuple[Stored, ...]:
        """Return all resources of one kind, in no order."""
        return self._store.each(kind)

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

    def put(self, resource: Resource) -> Written:
        """Create or replace the resource of a port.

        Raises:
            TakenError: the port, or the name, is another resource's.
            SubscriptionError: the subscription cannot be read.
            FilterError: the filter cannot be read, or can never work.
            ManifestError: the resource has become too large.
        """
        problem = refusal(Overlay(self.board), resource)
        if problem is not None:
            raise problem.with_traceback(None)
        before = self._routes_at(kind_of(resource), resource.key)
        (stored,) = self._write(Proposal(puts=(resource,)))
        return self._written(stored, before)

    def delete(self, kind: Kind, key: PortKey) -> Written | None:
        """Delete the resource of a port; None where there is none."""
        if self._store.get(kind, key) is None:
            return None
        before = self._routes_at(kind, key)
        (stored,) = self._write(Proposal(deletes=(Removal(kind, key),)))
        return self._written(stored, before)

    def apply(
        self,
        proposal: Proposal,
        check: Callable[[Forecast], None],
        watch: Callable[[int], None] = lambda routes: None,
    ) -> Applied:
        """Make all changes of a proposal at once, or none of them.

        Args:
            proposal: the changes, none of which has a uid.
            check: looks at what they will do; what it raises leaves everything as it is.
                It has to refuse a forecast with changes that are refused. Nothing comes
                between it and the changes.
            watch: as of `forecast`.
        """
        found = forecast(self.board, proposal, watch=watch)
        check(found)
        return Applied(forecast=found, stored=tuple(self._write(proposal)))

    def _write(self, proposal: Proposal) -> list[Stored]:
        """Make changes that are not refused: on the disk all together, then to everybody."""
        with self._store.transaction():
            done = [self._store.put(resource) for resource in proposal.puts]
            gone = [self._store.delete(kind, key) for kind, key, _ in proposal.deletes]
        changed = [stored for stored in done if stored.changed]
        if changed or gone:
            events = [*map(_applied, changed), *map(_removed, gone)]
            self._tell(*events, CaughtUp(version=events[-1].version))
            told: list[tuple[Word, Stored]] = [
                ("ADDED" if stored.created else "MODIFIED", stored) for stored in changed
            ]
            self.changes.resources(*told, *(("DELETED", stored) for stored in gone))
            self._warn()
        return [*done, *gone]

    def owner(self, pe: PeKey) -> str | None:
        """Return the name of the token that a PE's agent is bound to; None if to none."""
        return self._store.owner(pe)

    def register(
        self, pe: PeKey, registration: Registration, owner: str | None = None
    ) -> Registered:
        """Remember where a PE's agent is, and whose token it has; return its key."""
        version = self._store.register(pe, registration, owner)
        self.heard.note(pe)
        if self.board.registration(pe) != registration:
            self.changes.touch(pe)
        event = AgentRegistered(pe=pe, registration=registration, version=version)
        self._tell(event, CaughtUp(version=version))
        self.changes.settle()
        return Registered(key=self.key(pe, registration))

    def withdraw(self, pe: PeKey) -> None:
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
        version = self._store.withdraw(pe)
        self.heard.forget(pe)
        self._tell(PeWithdrawn(pe=pe, version=version), CaughtUp(version=version))
        self.changes.settle()

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
            stored=stored,
            kept=tuple(route for pair, route in new.items() if pair in old),
            added=tuple(route for pair, route in new.items() if pair not in old),
            cut=tuple(
                Cut(route=route, reason=self._why_cut(route))
                for pair, route in old.items()
                if pair not in new
            ),
        )

    def _why_cut(self, route: Route) -> str:
        return why_cut(Overlay(self.board), route)

    # ---- orders ----------------------------------------------------------

    def _tell(self, *events: Event) -> None:
        """Tell the board; `CaughtUp` as the last one says that nothing older follows.

        That is so after each write, as the store's versions are one sequence.
        """
        for action in self.board.orders(events):
            self._perform(action)

    def _perform(self, action: Action) -> None:
        if isinstance(action, RoutesChanged):
            self.changes.touch(action.pe, new=action.new, moved=action.moved)
            self._wake(action.pe)
        elif isinstance(action, StatusChanged):
            self.changes.touch_status(action.kind, action.uid)
        elif isinstance(action, Hint):
            self._hint(action)

    def _wake(self, pe: PeKey) -> None:
        for future in self._waiting.pop(pe, set()):
            if not future.done():
                future.set_result(None)

    def _hint(self, order: Hint) -> None:
        registration = self.board.registration(order.pe)
        if registration is None or registration.hint is None:
            return
        key = self.key(order.pe, registration)
        datagram = hints.encode(key, str(order.pe), order.version, order.point)
        self.sender.send(order.pe, registration.hint, datagram)


def _applied(stored: Stored) -> ExportApplied | ImportApplied:
    resource = stored.resource
    if isinstance(resource, Export):
        return ExportApplied(export=resource, version=stored.version)
    return ImportApplied(import_=resource, version=stored.version)


def _removed(stored: Stored) -> ExportRemoved | ImportRemoved:
    removed = ExportRemoved if kind_of(stored.resource) == "Export" else ImportRemoved
    return removed(uid=stored.resource.uid, version=stored.version)
