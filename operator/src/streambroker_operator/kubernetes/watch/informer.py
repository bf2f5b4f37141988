"""Shared parts of the feeders: list, events and resync of one kind, delivered to the board.

Each feeder has its own way to follow the API server. All observations go through `KindFeed`:
only it passes them to `ObservedCache` and delivers the resulting events to the board. At most
one list of a kind runs at a time, so that the versions of lists can be compared.
"""

from __future__ import annotations

import asyncio
import logging
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

from streambroker_core.board import BoardEvent, Synced
from streambroker_core.model import RULE, AnyKind
from streambroker_operator.cooperative import gc_paused, loop_time
from streambroker_operator.kubernetes.client.documents import Document
from streambroker_operator.kubernetes.client.objects import ObjectPath
from streambroker_operator.kubernetes.client.watch_client import (
    LIST_METADATA,
    ApiClient,
    ApiError,
    with_timeout,
)
from streambroker_operator.kubernetes.watch.lister import CrdMissingError, KindLister, Refusal
from streambroker_operator.kubernetes.watch.observed_cache import (
    ListedObject,
    ObjectRef,
    ObservedCache,
    object_ref,
    parse_object,
)

_log = logging.getLogger("streambroker.kubernetes")

PORTS: tuple[AnyKind, ...] = ("Export", "Import")
"""The kinds without which there are no views."""
KINDS: tuple[AnyKind, ...] = (RULE, *PORTS)
FeederName: TypeAlias = Literal["kopf", "reflector"]
FEEDERS: tuple[FeederName, ...] = get_args(FeederName)

jitter = random.Random()  # noqa: S311 - nobody gains by guessing it
"""Random source of pauses. Its own, so that seeding the global one does not align pauses."""

_MAX_PAUSE_S = 30.0
_RULES_TIMEOUT_S = 5.0
_MAX_SINGLE_FETCHES = 100
"""With more objects than this a full list is cheaper."""

Deliver = Callable[[BoardEvent], None]
Load = Callable[[Synced], Awaitable[None]]
"""Loads a full list, which may take several turns of the event loop."""
ObserveObject = Callable[[AnyKind, Document, bool], None]
"""Called with each full object seen, and whether a list contained it."""
Newest = Callable[[AnyKind], int]
"""Returns the highest version at which the board saw any object of a kind."""
FeedChange = tuple["str | None", Document]
"""Type of the event (None for an object of a kopf list) and the object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedHealth:
    """Health of a feeder.

    Attributes:
        synced: whether Exports and Imports have been listed and neither feed is lost.
        stale_for_s: age of the last sign of life, in seconds, of the quieter of the two.
        relists: applied full lists, including the first ones.
        missed_deletions: deletions that only a resync found.
        last_error: the last failure; empty once the feed works again.
        reason: why a feed is lost, e.g. ``CrdMissing``; empty if none is.
        refused: watched namespaces that are not followed, by kind and namespace.
    """

    synced: bool
    stale_for_s: float
    relists: int
    missed_deletions: int
    last_error: str
    reason: str
    refused: Mapping[tuple[AnyKind, str], Refusal]


class Backoff:
    """Pauses (seconds) that double with each failure up to `longest`, shortened at random."""

    def __init__(self, shortest: float, longest: float) -> None:
        self._shortest, self._longest = shortest, longest
        self._next = shortest

    def reset(self) -> None:
        """Start again with the shortest pause."""
        self._next = self._shortest

    async def pause(self, at_least: float = 0.0) -> None:
        """Wait, at least as long as the server requested (limited to 30 s)."""
        seconds = self._next * jitter.uniform(0.5, 1.0)
        self._next = min(self._longest, 2 * self._next)
        await asyncio.sleep(max(seconds, min(at_least, _MAX_PAUSE_S)))


@dataclass(slots=True)
class KindHealth:
    """Health and counts of the feed of one kind.

    Attributes not listed here are those of `FeedHealth`.

    Attributes:
        event_count: delivered events.
        resyncs: completed comparisons with a list.
        missed_changes: other differences they found: ``missing`` or ``changed``.
    """

    kind: AnyKind
    event_count: int = 0
    relists: int = 0
    missed_deletions: int = 0
    resyncs: int = 0
    missed_changes: Counter[str] = field(default_factory=Counter)
    last_error: str = ""
    reason: str = ""
    _alive_at: float = field(default_factory=loop_time)

    def mark_alive(self) -> None:
        """Record a sign of life."""
        self._alive_at = loop_time()
        if self.last_error:
            _log.info("watching %ss works again", self.kind)
        self.last_error = ""

    def mark_listed(self) -> None:
        """Record an applied full list, after which the kind is not lost any more."""
        self.last_error, self.reason = self.last_error or self.reason, ""
        self.relists += 1
        self.mark_alive()

    def stale_for_s(self) -> float:
        """Return the seconds since the last sign of life."""
        return loop_time() - self._alive_at

    def on_failed(self, error: Exception) -> None:
        """Record a failure; logged once until the feed works again."""
        if not self.last_error:
            _log.warning("watching %ss failed: %s", self.kind, error)
        self.last_error = str(error)


class KindFeed:
    """List, events and resync of one kind, independent of the feeder.

    Args:
        namespaces: namespaces to watch; empty for all.
        deliver: receives the events for the board.
        observe: receives each object before its events are delivered.
        load: receives full lists; default is ``deliver``.
        newest: version that the board has seen. Its own writes put it ahead of the feed.

    Attributes:
        relist_needed: set when a full list is needed.
        resync_due: set when a resync is due at once.
        lister: lists the kind, and has the namespaces that are not followed.
        on_lost: called when the kind is lost.
    """

    def __init__(
        self,
        client: ApiClient,
        kind: AnyKind,
        namespaces: Sequence[str],
        deliver: Deliver,
        observe: ObserveObject = lambda *_: None,
        load: Load | None = None,
        newest: Newest = lambda _: 0,
    ) -> None:
        self.kind = kind
        self.cache = ObservedCache(kind)
        self.client = client
        self.relist_needed, self.resync_due = asyncio.Event(), asyncio.Event()
        self.health = KindHealth(kind)
        self.on_lost: Callable[[], None] = lambda: None
        self._deliver = deliver
        self._observe = observe
        self._load = load
        self._newest = newest
        self._lock = asyncio.Lock()
        self._crd_uid = ""
        self.lister = KindLister(client, kind, namespaces)

    def mark_lost(self, reason: str) -> None:
        """Report the feed as lost to the board and request a full list."""
        first, self.health.reason = not self.health.reason, reason
        if first:
            self.on_lost()
        self._deliver_all(self.cache.mark_lost(reason))
        self.relist_needed.set()

    def _deliver_all(self, events: Iterable[BoardEvent | None]) -> None:
        for event in events:
            if event is not None:
                self._deliver(event)

    # ---- full list -------------------------------------------------------

    async def relist(self) -> int:
        """Apply a full list; return its version.

        A list that contradicts the cache is requested again. Only if the next one also does,
        the store counts as restored.

        Raises:
            CrdMissingError: the list means nothing: the definition is deleted or being deleted.
            ApiError: the list failed.
        """
        async with self._lock:
            self.relist_needed.clear()
            with gc_paused():
                return await self._relist()

    async def _relist(self) -> int:
        doubted: int | None = None
        while True:
            asked_at = self._min_list_version()
            crd = await self.lister.read_crd_uid()
            objects, version, refused = await self._list_objects()
            if await self.lister.read_crd_uid() != crd:
                raise CrdMissingError
            refs = (listed.ref for listed in objects)
            contradicts = self.cache.contradicts(refs, version, asked_at)
            if not contradicts or (doubted is not None and version >= doubted):
                break
            doubted = version
            await asyncio.sleep(self.client.timing.confirm_s)
        self._crd_uid = crd
        for event in self.cache.apply_list(objects, version, restored=contradicts):
            if isinstance(event, Synced) and self._load is not None:
                await self._load(event)
            else:
                self._deliver(event)
        self._note_refused(refused)
        self.health.mark_listed()
        return version

    def _min_list_version(self) -> int:
        """Return the version that a correct list requested now reaches at least."""
        return max(self.cache.max_version, self._newest(self.kind))

    async def _list_objects(self) -> tuple[list[ListedObject], int, dict[str, Refusal]]:
        objects: list[ListedObject] = []

        def take(body: Document) -> None:
            observed = parse_object(body)
            self._observe(self.kind, body, True)
            objects.append(self.cache.read_listed(observed))

        version, refused = await self._list(take)
        if self.lister.is_all_refused(refused):
            raise ApiError(403, f"no watched namespace can be listed: {', '.join(refused)}")
        return [*objects, *self._cached_of_refused(refused, version)], version, refused

    async def _list_refs(self) -> tuple[list[ObjectRef], int, dict[str, Refusal]]:
        refs: list[ObjectRef] = []
        version, refused = await self._list(
            lambda body: refs.append(object_ref(body)), accept=LIST_METADATA
        )
        cached = self._cached_of_refused(refused, version)
        return [*refs, *(listed.ref for listed in cached)], version, refused

    async def _list(
        self, on_object: Callable[[Document], None], **how: Any
    ) -> tuple[int, dict[str, Refusal]]:
        """List all namespaces; return the version of the list and the refused namespaces."""
        min_version = self._min_list_version()
        version, refused = await self.lister.list(
            on_object, is_first=not self.health.relists, **how
        )
        # No namespace was listed: objects of deleted namespaces vanished after the last event seen.
        return version or min_version, refused

    def _cached_of_refused(
        self, refused: Mapping[str, Refusal], version: int
    ) -> list[ListedObject]:
        """Return the cached objects of namespaces that exist but cannot be listed."""
        forbidden = {namespace for namespace, why in refused.items() if why == "Forbidden"}
        return self.cache.cached_in(forbidden, version) if forbidden else []

    def _note_refused(self, refused: dict[str, Refusal]) -> None:
        self.lister.note_refused(refused)
        self.cache.unlisted = frozenset(refused)

    async def probe_refused(self) -> None:
        """Request a full list if a refused namespace can be listed again."""
        if await self.lister.has_readable():
            self.relist_needed.set()

    # ---- events ----------------------------------------------------------

    async def apply_changes(self, changes: Sequence[FeedChange], session: int) -> None:
        """Deliver events to the board in order; drop them if a new list came since `session`.

        ``BOOKMARK`` only reports how far the watch is.

        Raises:
            CrdMissingError: objects were deleted with their definition.
            ApiError: the check of the definition failed, or an event cannot be read.
        """
        deleted = any(kind == "DELETED" for kind, _ in changes)
        # Checked after the deletions arrived, so the answer holds for all of them.
        if deleted and await self.lister.read_crd_uid() != self._crd_uid:
            raise CrdMissingError
        if not self.cache.synced or self.cache.session != session:
            return
        for kind, body in changes:
            self._deliver_all([self._to_event(kind, body)])
        self.health.event_count += len(changes)
        self.health.mark_alive()

    def _to_event(self, kind: str | None, body: Document) -> BoardEvent | None:
        try:
            if kind == "BOOKMARK":
                return self.cache.apply_bookmark(int(body["metadata"]["resourceVersion"]))
            if kind == "DELETED":
                return self.cache.remove(object_ref(body))
            observed = parse_object(body)
            self._observe(self.kind, body, False)
            return self.cache.apply(observed)
        except (ValueError, KeyError, TypeError) as error:
            raise ApiError(0, f"an event that cannot be read: {error}") from error

    # ---- resync ----------------------------------------------------------

    async def resync(self) -> None:
        """Compare the versions of the cached objects with a metadata list.

        Raises:
            CrdMissingError: the definition is deleted or being deleted.
            ApiError: the list failed.
        """
        async with self._lock:
            if not self.cache.synced:
                return
            session, asked_at = self.cache.session, self._min_list_version()
            refs, version, refused = await self._list_refs()
            if await self.lister.read_crd_uid() != self._crd_uid:
                raise CrdMissingError
            if self.lister.refused.keys() - refused.keys():
                self.relist_needed.set()
                return
            if self.cache.contradicts(refs, version, asked_at):
                self.relist_needed.set()
                return
            if not self.cache.synced:
                return
            self._note_refused(refused)
            if self.lister.is_all_refused(refused):
                return
            removals = self.cache.apply_resync(refs, version)
            self.health.missed_deletions += len(removals)
            self.health.resyncs += 1
            self._deliver_all(removals)
            if await self._fetch_stale(refs, session) and self.cache.synced:
                self._deliver_all(self.cache.mark_caught_up(version))
            self.health.mark_alive()

    async def _fetch_stale(self, refs: list[ObjectRef], session: int) -> bool:
        """Fetch missed objects; return whether the cache is complete."""
        if self.cache.stale_refs(refs):
            await asyncio.sleep(self.client.timing.settle_s)
        stale = self.cache.stale_refs(refs)
        self.health.missed_changes.update(map(self.cache.difference, stale))
        if len(stale) > _MAX_SINGLE_FETCHES:
            self.relist_needed.set()
            return False
        for ref in stale:
            try:
                target = ObjectPath(kind=self.kind, namespace=ref.namespace, name=ref.name)
                body = await self.client.get(target.path)
            except ApiError as error:
                if error.status != 404:
                    raise
            else:
                await self.apply_changes([(None, body)], session)
        # What was deleted after the list is still missing: the next resync reports it.
        return not self.cache.stale_refs(refs)


async def run_until_first_ends(*parts: Awaitable[object]) -> None:
    """Wait until the first awaitable ends or fails, then cancel the others."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()


@dataclass(eq=False)
class ApiFeeder(ABC):
    """Base of the feeders: lists, follows and resyncs every kind until cancelled.

    Args:
        namespaces: namespaces to watch; empty for all.
    """

    client: ApiClient
    namespaces: Sequence[str] = ()
    observe: ObserveObject = lambda *_: None
    newest: Newest = lambda _: 0
    feeds: dict[AnyKind, KindFeed] = field(init=False, default_factory=dict)
    _rules_tried: asyncio.Event = field(init=False, default_factory=asyncio.Event)

    async def run(self, deliver: Deliver, load: Load | None = None) -> None:
        """Follow until cancelled; events are delivered in the thread of the event loop."""
        self.feeds = {
            kind: KindFeed(
                self.client, kind, self.namespaces, deliver, self.observe, load, self.newest
            )
            for kind in KINDS
        }
        try:
            await run_until_first_ends(*self.parts())
        finally:
            await self.client.close()

    @abstractmethod
    def parts(self) -> list[Awaitable[None]]:
        """Return the coroutines to run concurrently."""

    @abstractmethod
    async def follow(self, feed: KindFeed, version: int) -> None:
        """Follow one kind from the version of a list; return when a new list is needed.

        Raises:
            CrdMissingError: the definition is deleted or being deleted.
            ApiError: following failed.
        """

    @property
    def restarts(self) -> int:
        """Restarts of a separate watch process."""
        return 0

    def health(self) -> FeedHealth:
        """Return the current health of the Export and Import feeds."""
        feeds = [feed for kind, feed in self.feeds.items() if kind in PORTS]
        ports = [feed.health for feed in feeds]
        return FeedHealth(
            synced=bool(feeds) and all(feed.cache.synced for feed in feeds),
            stale_for_s=max((port.stale_for_s() for port in ports), default=0.0),
            relists=sum(port.relists for port in ports),
            missed_deletions=sum(port.missed_deletions for port in ports),
            last_error=next((port.last_error for port in ports if port.last_error), ""),
            reason=next((port.reason for port in ports if port.reason), ""),
            refused={
                (kind, namespace): why
                for kind, feed in self.feeds.items()
                for namespace, why in feed.lister.refused.items()
            },
        )

    async def run_feed(self, feed: KindFeed) -> None:
        """List and follow one kind until cancelled, with backoff."""
        loop, backoff = asyncio.get_running_loop(), Backoff(*self.client.timing.retry_s)
        if feed.kind in PORTS:
            await self._wait_for_rules()
        while True:
            started_at, retry_after = loop.time(), 0.0
            try:
                version = await self._relist(feed)
                _log.info("listed all %ss at version %d", feed.kind, version)
                await self.follow(feed, version)
            except CrdMissingError:
                if feed.health.reason != "CrdMissing":
                    _log.warning(
                        "the definition of %ss was deleted: keeping the last known ones", feed.kind
                    )
                feed.mark_lost("CrdMissing")
            except ApiError as error:
                feed.health.on_failed(error)
                retry_after = error.retry_after_s
                if feed.kind == RULE and error.status == 403:
                    # Ports do not wait for rules that this broker may not read.
                    feed.mark_lost("Forbidden")
            if loop.time() - started_at > 2 * self.client.timing.retry_s[1]:
                backoff.reset()
            await backoff.pause(retry_after)

    async def _wait_for_rules(self) -> None:
        """Wait a limited time for the first list of rules, so that the first views have them."""
        try:
            await with_timeout(_RULES_TIMEOUT_S, self._rules_tried.wait())
        except TimeoutError:
            _log.warning("listing %ss takes long: the first views do not contain them", RULE)

    async def _relist(self, feed: KindFeed) -> int:
        try:
            return await feed.relist()
        finally:
            if feed.kind == RULE:
                self._rules_tried.set()
