"""What feeders have in common: one kind's list, events and sweep, told to the board.

A feeder follows the server in its own way. What it saw, and that it saw nothing for too
long, goes through `KindFeed`, which alone asks `ObservedCache` what that means and tells the
board. A list takes its turn: there is never more than one at a time, so that versions of
lists can be compared.
"""

from __future__ import annotations

import asyncio
import logging
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from streambroker_core.board import BoardEvent, Synced
from streambroker_core.model import RULE, AnyKind
from streambroker_core.wire.manifests.ports import GROUP, OBJECTS
from streambroker_operator.cooperative import gc_paused
from streambroker_operator.kubernetes.client.objects import ObjectPath, list_path
from streambroker_operator.kubernetes.client.watch_client import (
    LIST_METADATA,
    OBJECT_METADATA,
    ApiClient,
    ApiError,
    Body,
    with_timeout,
)
from streambroker_operator.kubernetes.watch.observed_cache import (
    ListedObject,
    ObjectRef,
    ObservedCache,
    object_ref,
    parse_object,
)
from streambroker_operator.kubernetes.watch.refused_namespaces import (
    Refusal,
    log_changes,
    refusal_reason,
)

_log = logging.getLogger("streambroker.kubernetes")

PORTS: tuple[AnyKind, ...] = ("Export", "Import")
"""The kinds without which there are no views."""
KINDS: tuple[AnyKind, ...] = (RULE, *PORTS)
FeederName: TypeAlias = Literal["kopf", "reflector"]
FEEDERS: tuple[FeederName, ...] = get_args(FeederName)

_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
jitter = random.Random()  # noqa: S311 - nobody gains by guessing it
"""What makes pauses uneven; its own, so that whoever seeds the common one makes none alike."""

_MAX_PAUSE_S = 30.0
_RULES_TIMEOUT_S = 5.0
_OBJECTS_PER_TURN = 20
"""Objects that are read without letting anything else have its turn."""
_MAX_SINGLE_FETCHES = 100
"""More than this and a list is cheaper."""

Deliver = Callable[[BoardEvent], None]
Load = Callable[[Synced], Awaitable[None]]
"""Takes a whole list, which may take some turns of the loop."""
ObserveObject = Callable[[AnyKind, Body, bool], None]
"""Takes each whole object that was seen, and whether by a list."""
Newest = Callable[[AnyKind], int]
"""Returns the highest version at which the board saw any object of a kind."""
FeedChange = tuple["str | None", Body]
"""The type of an event, None for one of kopf's lists, and the object."""


class CrdMissingError(Exception):
    """The custom resource definition is gone or going; its objects go with it, unmeant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedHealth:
    """How a feeder is.

    Attributes:
        kind: which feeder it is.
        synced: whether Exports and Imports have been listed, and neither is lost.
        stale_for_s: since the last sign of life of the quieter of these, in seconds.
        relists: whole lists taken in, the first ones included.
        missed_deletions: removals that only a sweep brought to light.
        last_error: what failed last, empty once all is well again.
        reason: a word for why one of them is lost, as ``CrdMissing``; empty if none is.
        refused: watched namespaces that are not followed, by kind and namespace.
    """

    kind: FeederName
    synced: bool
    stale_for_s: float
    relists: int
    missed_deletions: int
    last_error: str
    reason: str
    refused: Mapping[tuple[AnyKind, str], Refusal]


class Backoff:
    """Pauses that double from failure to failure, each of them shortened at random.

    Args:
        shortest: the first, in seconds.
        longest: the limit, in seconds.
    """

    def __init__(self, shortest: float, longest: float) -> None:
        self._shortest, self._longest = shortest, longest
        self._next = shortest

    def reset(self) -> None:
        """Begin again with the shortest: something went well."""
        self._next = self._shortest

    async def pause(self, at_least: float = 0.0) -> None:
        """Wait, at least as long as the server asked for."""
        seconds = self._next * jitter.uniform(0.5, 1.0)
        self._next = min(self._longest, 2 * self._next)
        await asyncio.sleep(max(seconds, min(at_least, _MAX_PAUSE_S)))


class KindFeed:
    """All that is done about one kind, whoever follows.

    Args:
        client: asks the API server.
        kind: which.
        namespaces: those to watch; empty for all.
        deliver: takes the events for the board.
        observe: takes the objects themselves, before the events that come of them.
        load: takes whole lists; as ``deliver`` by default.
        newest: how far the board is, which sees what it writes ahead of the feed.

    Attributes:
        cache: what is known.
        relist_needed: set when nothing but a whole list helps.
        resync_due: set when a sweep is due at once.
        event_count: events taken in.
        relists: lists taken in.
        missed_deletions: removals that only a sweep brought to light.
        resyncs: comparisons with a list.
        missed_changes: what else they brought to light: ``missing`` or ``changed``.
        last_error: what failed last.
        reason: why the kind is lost; empty if it is not.
        paths: path of the list for each namespace; of all namespaces for the empty name.
        refused: namespaces that are not followed. The others are.
        on_lost: called when it is lost.
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
        self.event_count = self.relists = self.missed_deletions = self.resyncs = 0
        self.missed_changes: Counter[str] = Counter()
        self.last_error = self.reason = ""
        self.on_lost: Callable[[], None] = lambda: None
        self._deliver = deliver
        self._observe = observe
        self._load = load
        self._newest = newest
        self._lock = asyncio.Lock()
        self._crd_path = f"{_CRDS}/{OBJECTS[kind]}.{GROUP}"
        self._crd_uid = ""
        self.paths = {name: list_path(kind, name or None) for name in namespaces or ("",)}
        self.refused: dict[str, Refusal] = {}
        self._last_alive = asyncio.get_running_loop().time()

    # ---- health ----------------------------------------------------------

    def mark_alive(self) -> None:
        """Note a sign of life."""
        self._last_alive = asyncio.get_running_loop().time()
        if self.last_error:
            _log.info("following %ss works again", self.kind)
        self.last_error = ""

    def stale_for_s(self) -> float:
        """Return how long ago the last sign of life was, in seconds."""
        return asyncio.get_running_loop().time() - self._last_alive

    def on_failed(self, error: Exception) -> None:
        """Note a failure; it is logged once until something goes well again."""
        if not self.last_error:
            _log.warning("following %ss: %s", self.kind, error)
        self.last_error = str(error)

    def mark_lost(self, reason: str) -> None:
        """Tell the board that the feed broke off."""
        first, self.reason = not self.reason, reason
        if first:
            self.on_lost()
        self._deliver_all(self.cache.mark_lost(reason))
        self.relist_needed.set()

    def _deliver_all(self, events: Iterable[BoardEvent | None]) -> None:
        for event in events:
            if event is not None:
                self._deliver(event)

    # ---- the whole list --------------------------------------------------

    async def relist(self) -> int:
        """List everything and let the list decide; return its version.

        A list that contradicts what is known is asked for again: only when the next one
        does so too has the store been restored.

        Raises:
            CrdMissingError: the list says nothing: the definition is gone or going.
            ApiError: there is no list to be had.
        """
        async with self._lock:
            self.relist_needed.clear()
            with gc_paused():
                return await self._relist()

    async def _relist(self) -> int:
        doubted: int | None = None
        while True:
            asked_at = self._min_list_version()
            crd = await self._read_crd_uid()
            found, version, refused = await self._list_objects()
            if await self._read_crd_uid() != crd:
                raise CrdMissingError
            marks = (listed.ref for listed in found)
            odd = self.cache.contradicts(marks, version, asked_at)
            if not odd or (doubted is not None and version >= doubted):
                break
            doubted = version
            await asyncio.sleep(self.client.timing.confirm_s)
        self._crd_uid = crd
        for event in self.cache.apply_list(found, version, restored=odd):
            if isinstance(event, Synced) and self._load is not None:
                await self._load(event)
            else:
                self._deliver(event)
        self._note_refused(refused)
        self.last_error, self.reason = self.last_error or self.reason, ""
        self.relists += 1
        self.mark_alive()
        return version

    def _min_list_version(self) -> int:
        """Return the version that a list asked for now has reached, whoever answers rightly."""
        return max(self.cache.max_version, self._newest(self.kind))

    async def _read_crd_uid(self) -> str:
        """Return the uid of the custom resource definition.

        Raises:
            CrdMissingError: it is gone or going.
            ApiError: that is not known.
        """
        try:
            body = await self.client.get(self._crd_path, accept=OBJECT_METADATA)
        except ApiError as error:
            if error.status == 404:
                raise CrdMissingError from error
            raise
        metadata = body.get("metadata")
        if not isinstance(metadata, dict) or not metadata.get("uid"):
            raise ApiError(0, f"{self._crd_path}: the answer is no definition")
        if metadata.get("deletionTimestamp"):
            raise CrdMissingError
        return str(metadata["uid"])

    async def _list_objects(self) -> tuple[list[ListedObject], int, dict[str, Refusal]]:
        found: list[ListedObject] = []

        def take(body: Body) -> None:
            sighting = parse_object(body)
            self._observe(self.kind, body, True)
            found.append(self.cache.read_listed(sighting))

        version, refused = await self._list(take)
        if self._is_all_refused(refused):
            raise ApiError(403, f"no watched namespace can be listed: {', '.join(refused)}")
        return [*found, *self._cached_of_refused(refused, version)], version, refused

    async def _list_refs(self) -> tuple[list[ObjectRef], int, dict[str, Refusal]]:
        found: list[ObjectRef] = []
        version, refused = await self._list(
            lambda body: found.append(object_ref(body)), accept=LIST_METADATA
        )
        return (
            [*found, *(one.ref for one in self._cached_of_refused(refused, version))],
            version,
            refused,
        )

    async def _list(
        self, on_object: Callable[[Body], None], **how: Any
    ) -> tuple[int, dict[str, Refusal]]:
        """List all namespaces at the version of the first; return it, and which were refused."""
        version, refused, high = 0, dict[str, Refusal](), self._min_list_version()
        for namespace, path in self.paths.items():
            params, begun = {}, False
            if version:
                params = {"resourceVersion": str(version), "resourceVersionMatch": "Exact"}
            try:
                async for items, at in self.client.pages(path, params, **how):
                    version, begun = at, True
                    await _read_page(items, on_object)
            except ApiError as error:
                if error.status == 404:
                    raise CrdMissingError from error
                if error.status != 403 or not namespace or begun:
                    raise
                refused[namespace] = await self._refusal_reason(namespace, error)
        # Objects of a namespace that is gone went after all that was seen of them.
        return version or high, refused

    # ---- namespaces that are refused -------------------------------------

    async def _refusal_reason(self, namespace: str, error: ApiError) -> Refusal:
        """Return why a namespace cannot be listed.

        Raises:
            ApiError: the error itself: nothing is known of that namespace yet, and a board
                without it would cut routes that are still there.
        """
        why = await refusal_reason(self.client, namespace)
        if why == "Forbidden" and not self.relists:
            raise error
        return why

    def _cached_of_refused(
        self, refused: Mapping[str, Refusal], version: int
    ) -> list[ListedObject]:
        """Return what is known of namespaces that are there and cannot be listed."""
        there = {namespace for namespace, why in refused.items() if why == "Forbidden"}
        return self.cache.cached_in(there, version) if there else []

    def _is_all_refused(self, refused: Mapping[str, Refusal]) -> bool:
        """Return whether no namespace can be listed, and one of them may have objects."""
        return refused.keys() == self.paths.keys() and "Forbidden" in refused.values()

    def _note_refused(self, refused: dict[str, Refusal]) -> None:
        """Note which namespaces are not followed."""
        log_changes(self.kind, self.refused, refused)
        self.refused = refused
        self.cache.unlisted = frozenset(refused)

    async def probe_refused(self) -> None:
        """Ask for a whole list if a namespace that was refused can be listed again."""
        for namespace in tuple(self.refused):
            try:
                await self.client.get(self.paths[namespace], {"limit": "1"}, accept=LIST_METADATA)
            except ApiError:
                continue
            self.relist_needed.set()

    # ---- events ----------------------------------------------------------

    async def apply_changes(self, changes: Sequence[FeedChange], session: int) -> None:
        """Tell the board of events, in their order.

        Args:
            changes: the events; ``BOOKMARK`` says only how far the watch has come.
            session: the list that they follow; if there was another one since, they are void.

        Raises:
            CrdMissingError: objects went with their definition.
            ApiError: whether they did is not known.
        """
        deleted = any(kind == "DELETED" for kind, _ in changes)
        # Asked after the deletions came: the answer holds for all of them.
        if deleted and await self._read_crd_uid() != self._crd_uid:
            raise CrdMissingError
        if not self.cache.synced or self.cache.session != session:
            return
        for kind, body in changes:
            self._deliver_all([self._to_event(kind, body)])
        self.event_count += len(changes)
        self.mark_alive()

    def _to_event(self, kind: str | None, body: Body) -> BoardEvent | None:
        try:
            if kind == "BOOKMARK":
                return self.cache.apply_bookmark(int(body["metadata"]["resourceVersion"]))
            if kind == "DELETED":
                return self.cache.remove(object_ref(body))
            sighting = parse_object(body)
            self._observe(self.kind, body, False)
            return self.cache.apply(sighting)
        except (ValueError, KeyError, TypeError) as error:
            raise ApiError(0, f"an event that cannot be read: {error}") from error

    # ---- the sweep -------------------------------------------------------

    async def resync(self) -> None:
        """Compare what is known with what the server holds, by their versions alone.

        Raises:
            CrdMissingError: the definition is gone or going.
            ApiError: there is no list to be had.
        """
        async with self._lock:
            if not self.cache.synced:
                return
            session, asked_at = self.cache.session, self._min_list_version()
            marks, version, refused = await self._list_refs()
            if await self._read_crd_uid() != self._crd_uid:
                raise CrdMissingError
            if self.refused.keys() - refused.keys():
                self.relist_needed.set()
                return
            if self.cache.contradicts(marks, version, asked_at):
                self.relist_needed.set()
                return
            if not self.cache.synced:
                return
            self._note_refused(refused)
            if self._is_all_refused(refused):
                return
            removals = self.cache.apply_resync(marks, version)
            self.missed_deletions += len(removals)
            self.resyncs += 1
            self._deliver_all(removals)
            if await self._fetch_stale(marks, session) and self.cache.synced:
                self._deliver_all(self.cache.mark_caught_up(version))
            self.mark_alive()

    async def _fetch_stale(self, refs: list[ObjectRef], session: int) -> bool:
        """Fetch what nobody told of; say whether all is known now."""
        if self.cache.stale_refs(refs):
            await asyncio.sleep(self.client.timing.settle_s)
        behind = self.cache.stale_refs(refs)
        self.missed_changes.update(map(self.cache.difference, behind))
        if len(behind) > _MAX_SINGLE_FETCHES:
            self.relist_needed.set()
            return False
        for mark in behind:
            try:
                place = ObjectPath(kind=self.kind, namespace=mark.namespace, name=mark.name)
                body = await self.client.get(place.path)
            except ApiError as error:
                if error.status != 404:
                    raise
            else:
                await self.apply_changes([(None, body)], session)
        # What went after the list is still missing: the next resync reports it.
        return not self.cache.stale_refs(refs)


async def _read_page(items: Sequence[Body], on_object: Callable[[Body], None]) -> None:
    """Read a page, and let others have their turn meanwhile."""
    for place, body in enumerate(items):
        try:
            on_object(body)
        except ValueError as error:
            raise ApiError(0, f"a list with {error}") from error
        if place % _OBJECTS_PER_TURN == _OBJECTS_PER_TURN - 1:
            await asyncio.sleep(0)


async def run_until_first_ends(*parts: Awaitable[None]) -> None:
    """Wait for the first of several to end or fail, and end the others."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()


class ApiFeeder(ABC):
    """A feeder's frame: both kinds are listed, followed and swept until it is cancelled.

    Args:
        client: asks the API server.
        namespaces: those to watch; empty for all.
        observe: takes the objects themselves, before the events that come of them.
        newest: how far the board is that is fed.

    Attributes:
        name: which feeder it is.
    """

    name: FeederName

    def __init__(
        self,
        client: ApiClient,
        namespaces: Sequence[str] = (),
        observe: ObserveObject = lambda *_: None,
        newest: Newest = lambda _: 0,
    ) -> None:
        self.client = client
        self.observe = observe
        self.newest = newest
        self.namespaces = tuple(namespaces)
        self.feeds: dict[AnyKind, KindFeed] = {}
        self._rules_tried = asyncio.Event()

    async def run(self, deliver: Deliver, load: Load | None = None) -> None:
        """Follow until cancelled; events are delivered in the loop's thread."""
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
        """Return what runs side by side."""

    @abstractmethod
    async def follow(self, feed: KindFeed, version: int) -> None:
        """Follow one kind from a list's version on; return when a list is needed.

        Raises:
            CrdMissingError: the definition is gone or going.
            ApiError: following is not possible.
        """

    @property
    def restarts(self) -> int:
        """How often a process of its own was started again."""
        return 0

    def health(self) -> FeedHealth:
        """Return how it is now."""
        feeds = [feed for kind, feed in self.feeds.items() if kind in PORTS]
        return FeedHealth(
            kind=self.name,
            synced=bool(feeds) and all(feed.cache.synced for feed in feeds),
            stale_for_s=max((feed.stale_for_s() for feed in feeds), default=0.0),
            relists=sum(feed.relists for feed in feeds),
            missed_deletions=sum(feed.missed_deletions for feed in feeds),
            last_error=next((feed.last_error for feed in feeds if feed.last_error), ""),
            reason=next((feed.reason for feed in feeds if feed.reason), ""),
            refused={
                (kind, namespace): why
                for kind, feed in self.feeds.items()
                for namespace, why in feed.refused.items()
            },
        )

    async def run_feed(self, feed: KindFeed) -> None:
        """List and follow one kind, again and again."""
        loop, backoff = asyncio.get_running_loop(), Backoff(*self.client.timing.retry_s)
        if feed.kind in PORTS:
            await self._wait_for_rules()
        while True:
            began, asked = loop.time(), 0.0
            try:
                version = await self._relist(feed)
                _log.info("listed all %ss at version %d", feed.kind, version)
                await self.follow(feed, version)
            except CrdMissingError:
                if feed.reason != "CrdMissing":
                    _log.warning(
                        "the definition of %ss is gone: what was known of them stays", feed.kind
                    )
                feed.mark_lost("CrdMissing")
            except ApiError as error:
                feed.on_failed(error)
                asked = error.retry_after_s
                if feed.kind == RULE and error.status == 403:
                    # Nothing that ports need waits for who may not read rules.
                    feed.mark_lost("Forbidden")
            if loop.time() - began > 2 * self.client.timing.retry_s[1]:
                backoff.reset()
            await backoff.pause(asked)

    async def _wait_for_rules(self) -> None:
        """Wait until rules were asked for, so that the first views have them; not for long."""
        try:
            await with_timeout(_RULES_TIMEOUT_S, self._rules_tried.wait())
        except asyncio.TimeoutError:
            _log.warning("the list of %ss takes long: views come without them at first", RULE)

    async def _relist(self, feed: KindFeed) -> int:
        try:
            return await feed.relist()
        finally:
            if feed.kind == RULE:
                self._rules_tried.set()
