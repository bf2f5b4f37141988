"""A feeder behind a proxy that misbehaves, and the broker it feeds, in a thread of their own.

The broker is all of one but REST, statuses and the Lease: its runtime, its desk and its store,
which asks the API server itself and not the proxy.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal, TypeVar

from streambroker_core.board import Action, Board, BoardEvent, Synced, Unreadable
from streambroker_core.model import RULE, AnyKind, Export, Import, PeKey, Rule, kind_of
from streambroker_core.wire.manifests.ports import OBJECTS
from streambroker_operator.agents.hint_sender import HintSender
from streambroker_operator.kubernetes.apply.port_store import KubernetesStore
from streambroker_operator.kubernetes.apply.registrations import Registrations
from streambroker_operator.kubernetes.client.http_api import HttpApi
from streambroker_operator.kubernetes.client.kubeconfig import Access
from streambroker_operator.kubernetes.client.objects import Objects
from streambroker_operator.kubernetes.client.watch_client import ApiClient, Timing
from streambroker_operator.kubernetes.status.controller import StatusController
from streambroker_operator.kubernetes.watch.informer import ApiFeeder, FeedHealth
from streambroker_operator.kubernetes.watch.kopf_feeder import KopfFeeder
from streambroker_operator.kubernetes.watch.observed_cache import Entry, parse_object, read_entry
from streambroker_operator.kubernetes.watch.reflector import ReflectorFeeder
from streambroker_operator.runtime.runtime import Runtime
from support.clusters.api_server import GROUP, ApiServer
from support.clusters.proxy import KubeProxy
from support.processes.waiting import until

T = TypeVar("T")
FeederName = Literal["kopf", "reflector"]

HASTY = Timing(
    call_s=4.0,
    server_s=20,
    idle_s=2.5,
    page=5,
    resync_s=0.5,
    settle_s=0.1,
    confirm_s=0.1,
    retry_s=(0.02, 0.3),
    restart_s=(0.1, 0.5),
)
"""Everything soon, so that what happens once a minute happens in a test."""
CALM = Timing(page=5, retry_s=(0.02, 0.3), restart_s=(0.1, 0.5), settle_s=0.1, confirm_s=0.1)
"""No sweep and no doubt within the time of a test."""
_SECONDS = 40.0
_ANNOUNCE_S = 0.1


class _Watched(Board):
    """A board that somebody looks at whenever it is whole."""

    def __init__(self, look: Callable[[Sequence[BoardEvent]], None]) -> None:
        super().__init__()
        self._look = look

    def iter_steps(self, events: Iterable[BoardEvent]) -> Iterator[Action | None]:
        events = list(events)
        yield from super().iter_steps(events)
        self._look(events)


class Followed:
    """A broker that is fed; ``torn`` has those of the ``steady`` uids that went, with the event."""

    def __init__(
        self,
        access: Access,
        feeder: FeederName = "reflector",
        namespaces: Sequence[str] = (),
        timing: Timing = HASTY,
    ) -> None:
        self._access = access
        self.proxy = KubeProxy(access)
        self.board: Board = _Watched(self._look)
        self.runtime: Runtime
        self.store: KubernetesStore
        self.events: list[BoardEvent] = []
        self.steady: set[str] = set()
        self.torn: list[tuple[str, BoardEvent]] = []
        self._shown: set[str] = set()
        self._name, self._namespaces, self._timing = feeder, tuple(namespaces), timing
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self.feeder: ApiFeeder
        self._thread = threading.Thread(target=self._run, daemon=True, name="followed")

    @contextmanager
    def running(self) -> Iterator[Followed]:
        """Follow until the end of the block; nothing may have been torn down falsely."""
        self._thread.start()
        self._ready.wait(10)
        try:
            yield self
        finally:
            self._loop.call_soon_threadsafe(self._task.cancel)
            self._thread.join(20)
        if self._failure is not None:
            raise self._failure
        assert self.torn == []

    def _run(self) -> None:
        self._task = self._loop.create_task(self._follow())
        try:
            self._loop.run_until_complete(self._task)
        except asyncio.CancelledError:
            pass
        except BaseException as error:  # the test's thread raises it again
            self._failure = error
        finally:
            self._ready.set()
            self._loop.run_until_complete(_wind_up())
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    async def _follow(self) -> None:
        async with self.proxy.running():
            client = ApiClient(self.proxy.access(), self._timing)
            kind = KopfFeeder if self._name == "kopf" else ReflectorFeeder
            api, sender = HttpApi(self._access), HintSender()
            self.store = KubernetesStore(Objects(api), self.board.reader, secret=b"s" * 32)
            desk = StatusController(api, self.board.reader, self.store, instance="broker-0")
            self.runtime = desk.runtime = Runtime(self.store, sender, self.board, desk)
            self.feeder = kind(
                client, self._namespaces, desk.observe, self.board.reader.newest_version
            )
            announcing = asyncio.ensure_future(self._announce())
            self._ready.set()
            try:
                await self.feeder.run(self._deliver, self._load)
            finally:
                announcing.cancel()
                await asyncio.gather(announcing, return_exceptions=True)
                self.runtime.publisher.close()
                sender.close()
                self.store.close()
                await api.close()

    async def _announce(self) -> None:
        while True:
            await asyncio.sleep(_ANNOUNCE_S)
            await self.store.registrations.announce()

    def _deliver(self, event: BoardEvent) -> None:
        self.events.append(event)
        self.runtime.feed.deliver(event)

    async def _load(self, event: Synced) -> None:
        self.events.append(event)
        await self.runtime.feed.load(event)

    def _look(self, events: Sequence[BoardEvent]) -> None:
        shown = set(_readable(self.board))
        self.torn += [(uid, events[-1]) for uid in self.steady & self._shown - shown]
        self._shown = shown

    # ---- for the test's thread -------------------------------------------

    def call(self, function: Callable[[], T]) -> T:
        async def calling() -> T:
            return function()

        return self.wait_for(calling())

    def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """Have something done in the feeder's thread, and return what comes of it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def demand(self, what: str) -> None:
        def demanding() -> None:
            for feed in self.feeder.feeds.values():
                (feed.relist_needed if what == "relist" else feed.resync_due).set()

        self.call(demanding)

    def health(self) -> FeedHealth:
        return self.call(self.feeder.health)

    def entries(self) -> dict[str, Entry]:
        return self.call(lambda: _entries(self.board, self.feeder))

    def unlike(self, api: ApiServer, namespaces: Sequence[str]) -> str:
        """Say in what the board is not what the server holds; empty if it is."""
        health = self.health()
        if not health.synced:
            return f"not synced: {health}"
        entries = self.entries()
        scanned = scan(api, namespaces, _accepted(entries))
        if scanned is None:
            return "the server does not say what it holds"
        wanted, board = scanned
        if entries != wanted:
            pairs = [(entries.get(uid), wanted.get(uid)) for uid in sorted({*entries, *wanted})]
            return f"entries {[pair for pair in pairs if pair[0] != pair[1]]}; {health}"
        views, wanted_views = self.call(lambda: _views(self.board, board)), board.reader.versions()
        return "" if views == wanted_views else f"views {views} and not {wanted_views}; {health}"

    def await_scan(self, api: ApiServer, namespaces: Sequence[str], seconds: float = 40.0) -> None:
        try:
            what = "the board shows what the server has"
            until(lambda: not self.unlike(api, namespaces), seconds, what)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.unlike(api, namespaces)}") from error
        assert self.torn == []

    def await_synced(self) -> None:
        until(lambda: self.health().synced, _SECONDS, "both kinds are listed")


async def _wind_up() -> None:
    """End what is left in this loop, and let its connections close: all but its own pipe."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    loop = asyncio.get_running_loop()
    for _ in range(400):
        if len(loop._selector.get_map()) <= 1:  # type: ignore[attr-defined]
            break
        await asyncio.sleep(0.005)


def _readable(board: Board) -> dict[str, Entry]:
    reader = board.reader
    every = (*reader.iter_exports(), *reader.iter_imports(), *reader.rules)
    return {one.uid: one for one in every}


def _entries(board: Board, feeder: ApiFeeder) -> dict[str, Entry]:
    found = _readable(board)
    for kind, feed in feeder.feeds.items():
        for uid in list(feed.cache._objects):
            what = board.reader.unreadable(kind, uid)
            if what is not None:
                found[uid] = what
    return found


def _views(board: Board, wanted: Board) -> dict[PeKey, str]:
    """Return the versions of the views but for those of PEs that nothing is left of."""
    versions = board.reader.versions()
    return {
        pe: versions[pe]
        for pe in versions
        if any(board.reader.ports(pe)) or pe in wanted.reader.versions()
    }


def _accepted(entries: Mapping[str, Entry]) -> list[Export | Import | Rule]:
    """Return the generations that run although a newer one is refused.

    A server knows of them by the statuses, which nothing writes here.
    """
    found: list[Export | Import | Rule] = []
    for one in entries.values():
        if not isinstance(one, Unreadable) and one.rejected is not None:
            assert one.generation < one.rejected.generation
            found.append(replace(one, rejected=None))
    return found


def scan(
    api: ApiServer, namespaces: Sequence[str], accepted: Sequence[Export | Import | Rule] = ()
) -> tuple[dict[str, Entry], Board] | None:
    """Return what a server holds, and a board with it; None while it cannot say."""
    bodies: list[tuple[AnyKind, Any]] = []
    for kind, plural in OBJECTS.items():
        for namespace in namespaces:
            answer = api.request("GET", f"{GROUP}/namespaces/{namespace}/{plural}")
            if answer.status != 200:
                return None
            bodies += [(kind, body) for body in answer.body["items"]]
    board = Board()
    entries: dict[str, Entry] = {}
    for kind in OBJECTS:
        before = tuple(
            (one, 1)
            for one in accepted
            if (RULE if isinstance(one, Rule) else kind_of(one)) == kind
        )
        board.handle(Synced(kind=kind, listed=before, version=1))
    for kind in OBJECTS:
        found = [read_entry(kind, parse_object(body)) for of, body in bodies if of == kind]
        listed = tuple((one, 2) for one in found if not isinstance(one, Unreadable))
        unreadable = tuple(replace(one, version=2) for one in found if isinstance(one, Unreadable))
        board.handle(Synced(kind=kind, listed=listed, version=2, unreadable=unreadable))
        # As the board has them: an Import whose earlier generation it never saw is held.
        shown = [board.reader.unreadable(kind, one.uid) for one in unreadable]
        entries |= {one.uid: one for one in shown if one is not None}
    entries |= _readable(board)
    registrations = Registrations(Objects(HttpApi(Access(server=api.url))), board.reader)
    for kind, body in bodies:
        agent = None if kind == RULE else registrations.observe(body)
        if agent is not None:
            board.handle(agent)
    return entries, board
