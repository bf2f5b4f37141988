"""What has changed, in order, for those who follow the broker.

Every change of an Export, an Import, a PE or a route is one event with a number.
The last ones are kept, so that a follower who was away goes on where it stopped.
A follower has a place in this one sequence, not a queue of its own; one that falls
too far behind is let go, and lists everything anew.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from streambroker_core.board import (
    Board,
    CaughtUp,
    Event,
    ExportApplied,
    ExportRemoved,
    ImportApplied,
    ImportRemoved,
    Moved,
    PointMoved,
    Synced,
    Unreadable,
)
from streambroker_core.model import RULE, Kind, PeKey, PortKey, Resource, Route, kind_of
from streambroker_core.wire.encoding.canonical import canonical
from streambroker_operator.agents.ended_exports import Endings
from streambroker_operator.agents.liveness import Heard
from streambroker_operator.runtime.bodies import earlier_body, pe_body, resource_body, route_body
from streambroker_operator.storage.backend import Stored

KEPT_EVENTS = 10_000
KEPT_BYTES = 32 * 1024 * 1024
BEHIND = 1_000
"""How many events a follower may be behind once it has caught up."""

Word = Literal["ADDED", "MODIFIED", "DELETED"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One event.

    Attributes:
        number: counts from 1 in a session.
        name: ``export``, ``import``, ``pe``, ``route-added``, ``route-changed`` or
            ``route-cut``.
        namespaces: those it touches.
        data: canonical JSON.
    """

    number: int
    name: str
    namespaces: tuple[str, ...]
    data: bytes


class Follower:
    """One reader's place in the sequence.

    Attributes:
        place: number of the last event that was sent.
        lost: whether it fell too far behind; nothing more is promised to it.
    """

    def __init__(self, place: int, end: int) -> None:
        self.place = place
        self._caught_up_at = end
        self._woken_at = place
        self._news: asyncio.Future[None] | None = None
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def lost(self) -> bool:
        """Whether it was let go."""
        return self.gone.done()

    def tell(self, number: int) -> None:
        """Note that there is a new event."""
        if self._news is not None:
            # It has nothing to read: what one change brings at once is not its being slow.
            self._woken_at = number
            if not self._news.done():
                self._news.set_result(None)
            return
        allowed = BEHIND if self.place >= self._caught_up_at else KEPT_EVENTS + BEHIND
        if number - max(self.place, self._woken_at) > allowed:
            self.let_go()

    def let_go(self) -> None:
        """End it."""
        for future in (self.gone, self._news):
            if future is not None and not future.done():
                future.set_result(None)

    async def news(self, timeout_s: float) -> bool:
        """Return when there is a new event or it is let go; False where time is up before."""
        self._news = asyncio.get_running_loop().create_future()
        try:
            done, _ = await asyncio.wait([self._news], timeout=timeout_s)
        finally:
            self._news = None
        return bool(done)


class _Touched:
    """What is another of a PE since it was told of last.

    Attributes:
        new: whether it was not known then.
        moved: its exports' routes as they were then and as they are, by the uids of both ends.
    """

    def __init__(self, new: bool) -> None:
        self.new = new
        self.moved: dict[tuple[str, str], Moved] = {}

    def move(self, one: Moved) -> None:
        """Note what became of a route."""
        route = one.now or one.was
        if route is not None:
            pair = route.export_uid, route.import_uid
            first = self.moved.get(pair, one)
            self.moved[pair] = Moved(was=first.was, now=one.now)


class ChangeLog:
    """The sequence of events, written by the owner of the state.

    Args:
        session: a text that no other run of the broker has.
        board: where statuses, views and registrations are looked up.
        stored: gives the resource of a port.
        why_cut: gives the reason word of a route that is gone.
        heard: when agents were heard of.
        endings: which exports have ended.

    Attributes:
        count: number of the last event.
        closed: whether the broker is stopping.
    """

    def __init__(
        self,
        session: str,
        board: Board,
        stored: Callable[[Kind, PortKey], Stored | None],
        why_cut: Callable[[Route], str],
        heard: Heard,
        endings: Endings,
    ) -> None:
        self.session = session
        self.count = 0
        self.closed = False
        self._board = board
        self._stored = stored
        self._why_cut = why_cut
        self._heard = heard
        self._endings = endings
        self._kept: deque[Change] = deque()
        self._bytes = 0
        self._followers: set[Follower] = set()
        self._touched: dict[PeKey, _Touched] = {}
        self._statuses: dict[tuple[Kind, str], None] = {}

    # ---- writing ---------------------------------------------------------

    def touch(self, pe: PeKey, *, new: bool = False, moved: Iterable[Moved] = ()) -> None:
        """Note that a PE's view or registration is another; `settle` tells of it.

        Args:
            pe: the PE.
            new: whether it was not known before.
            moved: what became of the routes of its exports.
        """
        touched = self._touched.setdefault(pe, _Touched(new))
        touched.new = touched.new or new
        for one in moved:
            touched.move(one)

    def touch_status(self, kind: Kind, uid: str) -> None:
        """Note that a resource's status is another; `settle` tells of it."""
        self._statuses[(kind, uid)] = None

    def show(self, exports: Iterable[PortKey]) -> None:
        """Tell of Exports of which something else is shown now."""
        for key in exports:
            export = self._board.export_at(key)
            if export is not None:
                self.touch_status("Export", export.uid)
        self.settle()

    def resources(self, *changed: tuple[Word, Stored]) -> None:
        """Tell of Exports and Imports, then of all that changed with them."""
        for word, stored in changed:
            self._statuses.pop((kind_of(stored.resource), stored.resource.uid), None)
            self._tell(word, stored)
        self.settle()

    def settle(self) -> None:
        """Tell of the statuses and PEs that were touched, and of the PEs' routes."""
        statuses, self._statuses = self._statuses, {}
        touched, self._touched = self._touched, {}
        for kind, uid in statuses:
            resource = self._board.get(kind, uid)
            stored = None if resource is None else self._stored(kind, resource.key)
            if stored is not None and stored.resource.uid == uid:
                self._tell("MODIFIED", stored)
        for pe, what in touched.items():
            self._settle(pe, what)

    def _tell(self, word: Word, stored: Stored) -> None:
        resource = stored.resource
        body = {"type": word, "object": resource_body(self._board, stored, self._endings)}
        self._add(kind_of(resource).lower(), (resource.key.namespace,), body)

    def _settle(self, pe: PeKey, touched: _Touched) -> None:
        known = self._board.version(pe) is not None
        if known or not touched.new:
            word: Word = "DELETED" if not known else "ADDED" if touched.new else "MODIFIED"
            body = {"type": word, "object": pe_body(self._board, pe, self._heard)}
            self._add("pe", (pe.namespace,), body)
        moved = [one for one in touched.moved.values() if one.was != one.now]
        for one in moved:
            if one.was is not None and one.now is None:
                self._route("route-cut", "DELETED", one.was, reason=self._why_cut(one.was))
        for one in moved:
            if one.now is not None and one.was is None:
                self._route("route-added", "ADDED", one.now)
            elif one.now is not None and one.was is not None:
                was = earlier_body(one.now, one.was)
                self._route("route-changed", "MODIFIED", one.now, was=was)

    def _route(self, name: str, word: Word, route: Route, **more: Any) -> None:
        namespaces = (route.export.namespace, route.import_.namespace)
        self._add(name, namespaces, {"type": word, "route": route_body(route), **more})

    def _add(self, name: str, namespaces: tuple[str, ...], body: Mapping[str, Any]) -> None:
        self.count += 1
        data = canonical({**body, "point": list(self._board.point)})
        self._kept.append(Change(number=self.count, name=name, namespaces=namespaces, data=data))
        self._bytes += len(data)
        while len(self._kept) > KEPT_EVENTS or self._bytes > KEPT_BYTES:
            self._bytes -= len(self._kept.popleft().data)
        for follower in list(self._followers):
            follower.tell(self.count)

    # ---- following -------------------------------------------------------

    @property
    def followers(self) -> int:
        """How many follow at the moment."""
        return len(self._followers)

    def follow(self, last: str | None) -> Follower | None:
        """Let somebody follow.

        Args:
            last: id of the last event that it has; None to begin with the next one.

        Returns:
            Its place; None where the events after that id are not kept.
        """
        place = self.count if last is None else self._place_of(last)
        if place is None:
            return None
        follower = Follower(place, self.count)
        self._followers.add(follower)
        return follower

    def leave(self, follower: Follower) -> None:
        """Forget a follower."""
        self._followers.discard(follower)

    def after(self, place: int, most: int) -> list[Change] | None:
        """Return the events after a place, at most so many; None where some are not kept."""
        oldest = self._kept[0].number if self._kept else self.count + 1
        if place + 1 < oldest:
            return None
        start = place + 1 - oldest
        return [self._kept[at] for at in range(start, min(start + most, len(self._kept)))]

    def id_of(self, number: int) -> str:
        """Return the id of an event."""
        return f"{self.session}.{number}"

    def _place_of(self, last: str) -> int | None:
        session, _, digits = last.rpartition(".")
        if session != self.session or not (digits.isascii() and digits.isdigit()):
            return None
        place = int(digits) if len(digits) < 19 else self.count + 1
        return place if place <= self.count and self.after(place, 0) is not None else None

    def close(self) -> None:
        """Let all followers go; there are no new ones."""
        self.closed = True
        for follower in list(self._followers):
            follower.let_go()


def selected(changes: Iterable[Change], namespace: str) -> list[Change]:
    """Return the events that touch a namespace; all for ``*``."""
    return [one for one in changes if namespace == "*" or namespace in one.namespaces]


def named_by(board: Board, event: Event) -> list[tuple[Kind, str, int]]:
    """Return the resources that an event may change, and at which version."""
    if isinstance(event, ExportApplied | ImportApplied):
        resource = event.export if isinstance(event, ExportApplied) else event.import_
        kind = kind_of(resource)
        known = board.named(kind, resource.key.namespace, resource.name)
        uids = [resource.uid] if known is None else [known, resource.uid]
        return [(kind, uid, event.version) for uid in uids]
    if isinstance(event, ExportRemoved | ImportRemoved):
        kind = "Export" if isinstance(event, ExportRemoved) else "Import"
        return [(kind, event.uid, event.version)]
    if isinstance(event, PointMoved) and event.uid is not None and event.kind != RULE:
        return [(event.kind, event.uid, event.version)]
    if isinstance(event, CaughtUp) and event.kind is not None and event.kind != RULE:
        return [(event.kind, uid, event.version) for uid in board.ahead(event.kind)]
    # Followers of changes get changes of ports, not of rules.
    if not isinstance(event, Unreadable | Synced) or event.kind == RULE:
        return []
    if isinstance(event, Unreadable):
        return [(event.kind, event.uid, event.version)]
    # All else is known as it is: a list is long.
    listed = {resource.uid: resource for resource, _ in event.listed}
    here = board.each_export() if event.kind == "Export" else board.each_import()
    there = {resource.uid: resource for resource in here}
    uids = [uid for uid, resource in listed.items() if there.get(uid) != resource]
    uids += [uid for uid in there if uid not in listed]
    return [(event.kind, uid, event.version) for uid in uids]


def became_of(
    board: Board, before: Mapping[tuple[Kind, str], tuple[Resource | None, int]]
) -> Iterable[tuple[Word, Stored]]:
    """Yield what has become of resources, each as it was before with a version to show it at."""
    for name, (old, version) in before.items():
        new = board.get(*name)
        if new is None and old is not None:
            yield "DELETED", Stored(resource=old, version=version, changed=True)
        elif new is not None and new != old:
            word: Word = "ADDED" if old is None else "MODIFIED"
            at = board.version_of(*name)
            yield word, Stored(resource=new, version=at, changed=True)
