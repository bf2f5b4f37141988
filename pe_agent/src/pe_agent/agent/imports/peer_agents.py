"""Other agents as the importing side sees them: heads by long poll, and their reachability."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from pe_agent.agent.notifier import Notifier
from pe_agent.transport.agent_client import AgentClient, send
from pe_agent.transport.flight_errors import AgentRefusedError
from streambroker_core.errors import CapabilityError, StreambrokerError
from streambroker_core.wire.agent_rpc.peer import (
    ExportHead,
    PeerLeave,
    PeerWatch,
    RefusedHead,
    WatchedExport,
    WatchedImport,
)
from streambroker_core.wire.broker.view import ImportRoute, View

log = logging.getLogger("pe_agent")

WATCH_SECONDS = 2.0
READER_LEASE = 5.0
PLAN_SECONDS = 2.0
MAX_IMPORTS = 64
"""Maximum imports per watch; far below the size limit of an agent's requests."""

Routes = Mapping[str, Mapping[str, str | None]]
"""Exports of one agent that this agent reads: ``{export: {import: capability}}``."""


@dataclass(slots=True)
class _Watch:
    location: str
    routes: Routes
    stopped: threading.Event = field(default_factory=threading.Event)


class PeerAgents:
    """Watches of other agents, which fetch heads and renew the leases of our readers.

    Attributes:
        find_wait_chains: returns the exports that the readers' queries wait for, by reader.
    """

    def __init__(
        self,
        notifier: Notifier,
        alive: Callable[[], dict[str, list[str]]],
        unfinished: Callable[[], Iterable[tuple[str, str, str]]],
        find_pass: Callable[[str, str], str | None] = lambda *_: None,
    ) -> None:
        """Create without watches; :meth:`apply_view` starts them.

        ``alive`` returns the active readers by import. ``unfinished`` returns address, export and
        import of unacknowledged plans of active readers, including those without a route.
        """
        self.find_wait_chains: Callable[[Iterable[str]], dict[str, list[str]]] = lambda _: {}
        self._notifier = notifier
        self._alive = alive
        self._unfinished = unfinished
        self._find_pass = find_pass
        self._routed: dict[str, dict[str, dict[str, str | None]]] = {}
        self._lock = threading.Lock()
        self._watches: dict[tuple[str, int], _Watch] = {}
        self._heads: dict[str, Mapping[str, int] | None] = {}
        self._rows: dict[str, Mapping[str, int]] = {}
        """Rows of each stream below its head, by export."""
        self._ended: set[str] = set()
        self._away: dict[str, str] = {}
        self._refused: dict[str, str] = {}

    def apply_view(self, view: View) -> None:
        """Watch the agents of this view's import routes."""
        routed: dict[str, dict[str, dict[str, str | None]]] = {}
        for port, import_ in view.imports.items():
            for route in import_.routes:
                if route.location is not None:
                    exports = routed.setdefault(route.location, {})
                    exports.setdefault(str(route.export), {})[f"{view.pe}/{port}"] = (
                        route.capability
                    )
        self._routed = routed
        self.refresh()
        self._notifier.notify()

    def refresh(self) -> None:
        """Watch routed agents, and those with unfinished plans of an active reader."""
        wanted = {
            location: {e: dict(i) for e, i in r.items()} for location, r in self._routed.items()
        }
        for location, export, import_ in self._unfinished():
            if not self._is_home(export, location):
                continue  # the export's agent has moved, with all its data
            wanted.setdefault(location, {}).setdefault(export, {}).setdefault(import_, None)
        parts = {
            (at, n): part for at, r in wanted.items() for n, part in enumerate(_split_routes(r))
        }
        with self._lock:
            for key in list(self._watches):
                if key not in parts:
                    self._watches.pop(key).stopped.set()
            self._away = {at: why for at, why in self._away.items() if at in wanted}
            for (location, n), routes in parts.items():
                watched = self._watches.get((location, n))
                if watched is None:
                    watched = self._watches[location, n] = _Watch(location, routes)
                    threading.Thread(
                        target=self._watch, args=(watched,), daemon=True, name=f"watch {location}"
                    ).start()
                elif watched.routes != routes:
                    watched.routes = routes
            known = {export for routes in wanted.values() for export in routes}
            self._heads = {e: h for e, h in self._heads.items() if e in known}
            self._rows = {e: rows for e, rows in self._rows.items() if e in known}
            self._ended &= known
            self._refused = {e: why for e, why in self._refused.items() if e in known}

    def _is_home(self, export: str, location: str) -> bool:
        """Return whether an export is at an address, according to the routes."""
        routed = {at for at, exports in self._routed.items() if export in exports}
        return not routed or location in routed

    def heads(self, export: str) -> Mapping[str, int] | None:
        """Return the last known ``{stream: next epoch}``, None if unknown."""
        return self._heads.get(export)

    def rows(self, export: str) -> Mapping[str, int]:
        """Return the rows of each stream below its last known head; empty if unknown."""
        return self._rows.get(export, {})

    def has_ended(self, export: str) -> bool:
        """Return whether an export has ended, as of its last known heads."""
        return export in self._ended

    def is_away(self, location: str) -> bool:
        """Return whether the agent's last call failed; its watch keeps trying."""
        return location in self._away

    def refusal(self, export: str) -> str | None:
        """Return why an agent refuses an export's heads; None if it does not, or is away."""
        return self._refused.get(export)

    def refusals(self) -> dict[str, str]:
        """Return the refusals of heads, by export."""
        return dict(self._refused)

    def note_away(self, location: str, reason: str) -> None:
        """Record that another call could not reach an agent."""
        if (location, 0) in self._watches:
            self._away[location] = reason

    def away(self) -> dict[str, str]:
        """Return why an agent is unreachable, by location."""
        return dict(self._away)

    def _watch(self, watched: _Watch) -> None:
        client = AgentClient(watched.location)
        pause = 0.05
        while not watched.stopped.is_set():
            try:
                has_heads = self._watch_once(client, watched)
                self.refresh()
                self._away.pop(watched.location, None)
                if has_heads:
                    pause = 0.05
                    continue
            except Exception as error:
                if not isinstance(error, StreambrokerError):
                    log.exception("watch failed", extra={"location": watched.location})
                elif watched.location not in self._away:
                    log.warning(
                        "agent is unreachable: %s", error, extra={"location": watched.location}
                    )
                self._away[watched.location] = str(error)
            watched.stopped.wait(pause)
            pause = min(1.0, pause * 2)

    def _watch_once(self, client: AgentClient, watched: _Watch) -> bool:
        """Send one long poll; return whether the agent sent heads of any export."""
        alive = self._alive()
        request = PeerWatch(
            exports={
                export: WatchedExport(
                    heads=self._heads.get(export),
                    ended=export in self._ended,
                    imports={
                        import_: self._import_request(export, capability, alive.get(import_, []))
                        for import_, capability in imports.items()
                    },
                )
                for export, imports in watched.routes.items()
            },
            wait=WATCH_SECONDS,
            lease=READER_LEASE,
        )
        began = time.monotonic()
        try:
            heads = send(client, request, timeout=WATCH_SECONDS + 5.0).exports
        except StreambrokerError:
            self._note_refused(dict.fromkeys(request.exports))
            raise
        refused = {e: head.error for e, head in heads.items() if isinstance(head, RefusedHead)}
        self._note_refused({**dict.fromkeys(heads), **refused})
        moved: set[str] = set()
        for export, head in heads.items():
            if isinstance(head, RefusedHead):
                if self._is_home(export, watched.location):
                    with self._lock:
                        self._heads.pop(export, None)
                        self._ended.discard(export)
                continue
            known = export in watched.routes and self._is_home(export, watched.location)
            with self._lock:
                if known and self._heads.get(export) != head.heads:
                    self._heads[export], self._rows[export] = head.heads, head.rows
                    moved.update(watched.routes[export])
                if known and head.ended != (export in self._ended):
                    self._ended ^= {export}
                    moved.update(watched.routes[export])
        if moved:
            self._notifier.notify(*moved)
        if refused and len(refused) == len(request.exports):
            return False
        if not moved and time.monotonic() - began < 0.01:
            watched.stopped.wait(0.05)
        return True

    def _import_request(
        self, export: str, capability: str | None, readers: list[str]
    ) -> WatchedImport:
        return WatchedImport(
            capability=capability,
            readers={reader: self._find_pass(reader, export) for reader in readers},
            waits=self.find_wait_chains(readers),
        )

    def _note_refused(self, reasons: Mapping[str, str | None]) -> None:
        """Record per export why its agent refuses it; log each new reason once."""
        with self._lock:
            for export, why in reasons.items():
                before = self._refused.pop(export, None)
                if why is not None:
                    self._refused[export] = why
                    if before != why:
                        log.info("heads of export %s refused: %s", export, why)

    def fetch_heads(self, route: ImportRoute, import_: str) -> ExportHead:
        """Return the current heads of one export, and whether it has ended.

        Raises:
            AgentUnreachableError: its agent does not respond.
            AgentRefusedError: its agent refuses.
        """
        export = str(route.export)
        imports = {import_: WatchedImport(capability=route.capability, readers=())}
        watched = WatchedExport(heads=None, imports=imports)
        request = PeerWatch(exports={export: watched}, wait=0, lease=READER_LEASE)
        head = send(AgentClient(str(route.location)), request, timeout=PLAN_SECONDS).exports[export]
        if isinstance(head, RefusedHead):
            raise AgentRefusedError(head.code, head.error)
        if head.heads is None:
            why = "its agent has no key to verify the capability"
            raise AgentRefusedError(CapabilityError.code, why)
        return head

    def report_leave(
        self, location: str, export: str, import_: str, reader: str, pass_: str | None
    ) -> None:
        """Report that a reader has ended; failures are only logged."""
        request = PeerLeave(export=export, import_=import_, reader=reader, pass_=pass_)
        try:
            send(AgentClient(location), request, timeout=1.0)
        except StreambrokerError as error:
            log.info("cannot report that a reader has left: %s", error)

    def close(self) -> None:
        """Stop all watches."""
        with self._lock:
            for watched in self._watches.values():
                watched.stopped.set()
            self._watches.clear()


def _split_routes(routes: Routes) -> list[Routes]:
    """Divide the exports of one agent into watches of at most `MAX_IMPORTS` imports."""
    parts: list[dict[str, Mapping[str, str | None]]] = [{}]
    room = MAX_IMPORTS
    for export, imports in sorted(routes.items()):
        if parts[-1] and len(imports) > room:
            parts.append({})
            room = MAX_IMPORTS
        parts[-1][export] = imports
        room -= len(imports)
    return list(parts)
