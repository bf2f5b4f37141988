"""Change log: numbered events for readers that follow the broker.

- Every change of an Export, an Import, a PE or a route is one event.
- The last events are kept, so a reader can resume after a disconnect.
- A reader has a position in this one sequence, not a queue of its own.
- A reader that falls too far behind is dropped and has to list everything again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from streambroker_core.board import (
    BoardReader,
    RouteChange,
)
from streambroker_core.board.events import AnyChange
from streambroker_core.model import RULE, Kind, PeKey, PortKey, Resource, Route, kind_of
from streambroker_core.wire.encoding.canonical import canonical
from streambroker_operator.agents.liveness import AgentLiveness
from streambroker_operator.agents.port_reports import ChangedPort, PortReports
from streambroker_operator.runtime.bodies import (
    changed_values_body,
    pe_body,
    resource_body,
    route_body,
)
from streambroker_operator.storage.backend import StoredResource

MAX_EVENTS = 10_000
MAX_EVENT_BYTES = 32 * 1024 * 1024
MAX_LAG = 1_000
"""Maximum lag, in events, of a reader that has caught up."""

ChangeType = Literal["ADDED", "MODIFIED", "DELETED"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeEvent:
    """One event.

    Attributes:
        number: counts from 1 in a session.
        name: ``export``, ``import``, ``pe``, ``route-added``, ``route-changed`` or
            ``route-cut``.
        namespaces: those it concerns.
        data: canonical JSON.
    """

    number: int
    name: str
    namespaces: tuple[str, ...]
    data: bytes


class ChangeReader:
    """Position of one reader in the log.

    Attributes:
        position: number of the last event that was sent.
        is_dropped: whether it was too slow or the broker stops; it gets no further events.
    """

    def __init__(self, position: int, end: int) -> None:
        self.position = position
        self._caught_up_at = end
        self._woken_at = position
        self._waiter: asyncio.Future[None] | None = None
        self.dropped: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def is_dropped(self) -> bool:
        """Whether the reader was dropped."""
        return self.dropped.done()

    def notify(self, number: int) -> None:
        """Wake the reader for a new event, or drop it if it lags too far."""
        if self._waiter is not None:
            # It has read everything: a burst of events from one change does not count as lag.
            self._woken_at = number
            if not self._waiter.done():
                self._waiter.set_result(None)
            return
        allowed = MAX_LAG if self.position >= self._caught_up_at else MAX_EVENTS + MAX_LAG
        if number - max(self.position, self._woken_at) > allowed:
            self.drop()

    def drop(self) -> None:
        """Drop the reader and wake it."""
        for future in (self.dropped, self._waiter):
            if future is not None and not future.done():
                future.set_result(None)

    async def wait_for_event(self, timeout_s: float) -> bool:
        """Wait for a new event or for `drop`; return False on timeout."""
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            done, _ = await asyncio.wait([self._waiter], timeout=timeout_s)
        finally:
            self._waiter = None
        return bool(done)


class _PeChanges:
    """Changes of a PE since its last event; route changes by (export uid, import uid)."""

    def __init__(self, is_new: bool) -> None:
        self.is_new = is_new
        self.route_changes: dict[tuple[str, str], RouteChange] = {}

    def add_route_change(self, change: RouteChange) -> None:
        """Record a route change; successive changes of one route are merged."""
        route = change.new or change.old
        if route is not None:
            pair = route.export_uid, route.import_uid
            first = self.route_changes.get(pair, change)
            self.route_changes[pair] = RouteChange(old=first.old, new=change.new)


class ChangeLog:
    """The sequence of events, written by the runtime.

    Attributes:
        session: unique for each run of the broker.
        count: number of the last event.
        closed: whether the broker is stopping.
    """

    def __init__(
        self,
        session: str,
        board: BoardReader,
        get_stored: Callable[[Kind, PortKey], StoredResource | None],
        cut_reason: Callable[[Route], str],
        liveness: AgentLiveness,
        port_reports: PortReports,
    ) -> None:
        self.session = session
        self.count = 0
        self.closed = False
        self._board = board
        self._get_stored = get_stored
        self._cut_reason = cut_reason
        self._liveness = liveness
        self._port_reports = port_reports
        self._events: deque[ChangeEvent] = deque()
        self._bytes = 0
        self._readers: set[ChangeReader] = set()
        self._changed_pes: dict[PeKey, _PeChanges] = {}
        self._changed_statuses: dict[tuple[Kind, str], None] = {}
        # The state before, and the version of the last change.
        self._changed_resources: dict[tuple[Kind, str], tuple[Resource | None, int]] = {}

    # ---- writing ---------------------------------------------------------

    def note_pe(
        self, pe: PeKey, *, is_new: bool = False, route_changes: Iterable[RouteChange] = ()
    ) -> None:
        """Record a changed view, registration or export route of a PE; `flush` publishes it."""
        touched = self._changed_pes.setdefault(pe, _PeChanges(is_new))
        touched.is_new = touched.is_new or is_new
        for one in route_changes:
            touched.add_route_change(one)

    def note_status(self, kind: Kind, uid: str) -> None:
        """Record a changed resource status; `flush` publishes it."""
        self._changed_statuses[(kind, uid)] = None

    def publish_reported(self, ports: Iterable[ChangedPort]) -> None:
        """Publish Exports and Imports of which an agent has reported something else."""
        for kind, key in ports:
            resource = self._board.holder(kind, key)
            if resource is not None:
                self.note_status(kind, resource.uid)
        self.flush()

    def note_resource(self, change: AnyChange) -> None:
        """Record a changed Export or Import; `flush` publishes it. Rules are not in the log."""
        if change.kind != RULE:
            ref = change.kind, change.uid
            first, _ = self._changed_resources.get(ref, (cast("Resource | None", change.old), 0))
            self._changed_resources[ref] = first, change.version

    def flush(self) -> None:
        """Publish the recorded resources, then other statuses, then PEs and their routes."""
        resources, self._changed_resources = self._changed_resources, {}
        statuses, self._changed_statuses = self._changed_statuses, {}
        touched, self._changed_pes = self._changed_pes, {}
        for (kind, uid), (old, version) in resources.items():
            new = self._board.get(kind, uid)
            if new is None and old is not None:
                self._publish_change("DELETED", old, version)
            elif new is not None and new != old:
                current = self._board.version_of(kind, uid)
                self._publish_change("ADDED" if old is None else "MODIFIED", new, current)
            else:
                continue
            statuses.pop((kind, uid), None)
        for kind, uid in statuses:
            resource = self._board.get(kind, uid)
            stored = None if resource is None else self._get_stored(kind, resource.key)
            if stored is not None and stored.resource.uid == uid:
                self._publish_resource("MODIFIED", stored)
        for pe, pe_changes in touched.items():
            self._publish_pe(pe, pe_changes)

    def _publish_change(self, change_type: ChangeType, resource: Resource, version: int) -> None:
        stored = StoredResource(resource=resource, version=version, changed=True)
        self._publish_resource(change_type, stored)

    def _publish_resource(self, change_type: ChangeType, stored: StoredResource) -> None:
        resource = stored.resource
        body = {
            "type": change_type,
            "object": resource_body(self._board, stored, self._port_reports),
        }
        self._append(kind_of(resource).lower(), (resource.key.namespace,), body)

    def _publish_pe(self, pe: PeKey, changes: _PeChanges) -> None:
        exists = self._board.version(pe) is not None
        if exists or not changes.is_new:
            change_type: ChangeType = (
                "DELETED" if not exists else "ADDED" if changes.is_new else "MODIFIED"
            )
            body = {"type": change_type, "object": pe_body(self._board, pe, self._liveness)}
            self._append("pe", (pe.namespace,), body)
        route_changes = [one for one in changes.route_changes.values() if one.old != one.new]
        for one in route_changes:
            if one.old is not None and one.new is None:
                self._publish_route(
                    "route-cut", "DELETED", one.old, reason=self._cut_reason(one.old)
                )
        for one in route_changes:
            if one.new is not None and one.old is None:
                self._publish_route("route-added", "ADDED", one.new)
            elif one.new is not None and one.old is not None:
                was = changed_values_body(one.new, one.old)
                self._publish_route("route-changed", "MODIFIED", one.new, was=was)

    def _publish_route(self, name: str, change_type: ChangeType, route: Route, **more: Any) -> None:
        namespaces = (route.export.namespace, route.import_.namespace)
        self._append(name, namespaces, {"type": change_type, "route": route_body(route), **more})

    def _append(self, name: str, namespaces: tuple[str, ...], body: Mapping[str, object]) -> None:
        self.count += 1
        data = canonical({**body, "point": list(self._board.point)})
        self._events.append(
            ChangeEvent(number=self.count, name=name, namespaces=namespaces, data=data)
        )
        self._bytes += len(data)
        while len(self._events) > MAX_EVENTS or self._bytes > MAX_EVENT_BYTES:
            self._bytes -= len(self._events.popleft().data)
        for follower in list(self._readers):
            follower.notify(self.count)

    # ---- following -------------------------------------------------------

    @property
    def reader_count(self) -> int:
        """Number of current readers."""
        return len(self._readers)

    def follow(self, last: str | None) -> ChangeReader | None:
        """Add a reader that continues after the event with id `last`, or with the next event.

        Returns:
            The reader; None if the events after that id are no longer kept.
        """
        position = self.count if last is None else self._parse_position(last)
        if position is None:
            return None
        follower = ChangeReader(position, self.count)
        self._readers.add(follower)
        return follower

    def unfollow(self, reader: ChangeReader) -> None:
        """Remove a reader."""
        self._readers.discard(reader)

    def events_after(self, position: int, limit: int) -> list[ChangeEvent] | None:
        """Return at most `limit` events after a position; None if some are no longer kept."""
        oldest = self._events[0].number if self._events else self.count + 1
        if position + 1 < oldest:
            return None
        start = position + 1 - oldest
        return [self._events[at] for at in range(start, min(start + limit, len(self._events)))]

    def id_for(self, number: int) -> str:
        """Return the id of an event."""
        return f"{self.session}.{number}"

    def _parse_position(self, last: str) -> int | None:
        session, _, digits = last.rpartition(".")
        if session != self.session or not (digits.isascii() and digits.isdigit()):
            return None
        position = int(digits) if len(digits) < 19 else self.count + 1
        return (
            position
            if position <= self.count and self.events_after(position, 0) is not None
            else None
        )

    def close(self) -> None:
        """Drop all readers; the broker is stopping."""
        self.closed = True
        for follower in list(self._readers):
            follower.drop()


def select_events(changes: Iterable[ChangeEvent], namespace: str) -> list[ChangeEvent]:
    """Return the events that concern a namespace; all for ``*``."""
    return [one for one in changes if namespace == "*" or namespace in one.namespaces]
