"""A watched namespace that cannot be listed: what is known of it stays, the others go on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streambroker_core.board import Board, BoardEvent, FeedLost, Synced
from streambroker_operator.kubernetes.client.watch_client import ApiClient, ApiError, Timing
from streambroker_operator.kubernetes.observability.health import BrokerState, check_ready
from streambroker_operator.kubernetes.watch.informer import KindFeed
from streambroker_operator.kubernetes.watch.lister import Refusal
from support.kubernetes.object_store import Object, ObjectStore

JOBS, REPORTS = "jobs", "reports"
NAMESPACES = (JOBS, REPORTS)


@dataclass
class Server:
    """An API server with two namespaces, as a client sees it."""

    store: ObjectStore = field(default_factory=ObjectStore)
    there: set[str] = field(default_factory=lambda: set(NAMESPACES))
    allowed: set[str] = field(default_factory=lambda: set(NAMESPACES))
    names_namespaces: bool = True
    timing: Timing = field(default_factory=lambda: Timing(settle_s=0.0, confirm_s=0.0))

    async def get(self, path: str, *_: Any, **__: Any) -> Object:
        if "customresourcedefinitions" in path:
            return {"metadata": {"uid": "crd"}}
        if path.startswith("/api/v1/namespaces/"):
            if not self.names_namespaces:
                raise ApiError(403, "forbidden")
            if path.rpartition("/")[2] not in self.there:
                raise ApiError(404, "not found")
            return {"metadata": {"name": path.rpartition("/")[2]}}
        namespace, plural, *name = path.partition("/namespaces/")[2].split("/")
        self._check(namespace)
        found = self.of(namespace)
        if not name:
            return {"kind": plural, "items": found}
        for body in found:
            if body["metadata"]["name"] == name[0]:
                return body
        raise ApiError(404, "not found")

    async def pages(self, path: str, *_: Any, **__: Any) -> AsyncIterator[tuple[list[Object], int]]:
        namespace = path.partition("/namespaces/")[2].split("/")[0]
        self._check(namespace)
        yield self.of(namespace), self.store.version

    def _check(self, namespace: str) -> None:
        if namespace not in self.allowed:
            raise ApiError(403, f"{namespace} is forbidden")

    def of(self, namespace: str) -> list[Object]:
        every = self.store.of("Export")
        return [body for body in every if body["metadata"]["namespace"] == namespace]


@dataclass
class Rig:
    """A feed of Exports, its board, and the events that its watches have not brought yet."""

    server: Server = field(default_factory=Server)
    board: Board = field(default_factory=Board)
    events: list[BoardEvent] = field(default_factory=list)
    coming: list[tuple[str, Object]] = field(default_factory=list)
    watched: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        client = cast(ApiClient, self.server)
        self.feed = KindFeed(client, "Export", NAMESPACES, self.deliver)
        self.board.handle(Synced(kind="Import", listed=(), version=0))

    def deliver(self, event: BoardEvent) -> None:
        self.events.append(event)
        self.board.handle(event)

    # ---- what happens ----------------------------------------------------

    async def write(self, namespace: str, name: str) -> None:
        if namespace in self.server.there:
            variant = self.server.store.version % 2
            self._news(namespace, self.server.store.write("Export", name, variant, namespace))

    async def delete(self, namespace: str, name: str) -> None:
        found = self.server.store.find("Export", name, namespace)
        if found is not None:
            self._news(namespace, self.server.store.delete(found["metadata"]["uid"]))

    def _news(self, namespace: str, event: tuple[str, Object]) -> None:
        if namespace in self.watched:
            self.coming.append(event)

    async def bring(self, *_: str) -> None:
        await self.feed.apply_changes(self.coming, self.feed.cache.session)
        self.coming.clear()

    async def lose(self, *_: str) -> None:
        self.coming.clear()

    async def forbid(self, namespace: str, _: str) -> None:
        self.server.allowed.discard(namespace)

    async def allow(self, namespace: str, _: str) -> None:
        self.server.there.add(namespace)
        self.server.allowed.add(namespace)

    async def remove(self, namespace: str, _: str) -> None:
        """Delete a namespace, its right, and all that is in it."""
        self.server.allowed.discard(namespace)
        for body in self.server.of(namespace):
            await self.delete(namespace, body["metadata"]["name"])
        self.server.there.discard(namespace)

    async def make(self, namespace: str, _: str) -> None:
        self.server.there.add(namespace)

    async def sweep(self, *_: str) -> None:
        await self.feed.resync()
        if not self.feed.relist_needed.is_set():
            self.coming.clear()
            self.assert_followed()

    async def relist(self, *_: str) -> None:
        with suppress(ApiError):
            await self.feed.relist()
        if self.feed.relist_needed.is_set() or not self.server.allowed:
            return
        self.coming.clear()
        self.watched = set(NAMESPACES) - self.feed.lister.refused.keys()
        self.assert_followed()

    # ---- what has to hold ------------------------------------------------

    def shown(self) -> set[str]:
        return {export.uid for export in self.board.reader.iter_exports()}

    def assert_followed(self) -> None:
        """What is readable is on the board, and nothing else of these namespaces."""
        for namespace in set(NAMESPACES) - self.feed.lister.refused.keys():
            here = {e.uid for e in self.board.reader.iter_exports() if e.key.namespace == namespace}
            assert here == {body["metadata"]["uid"] for body in self.server.of(namespace)}

    async def step(self, action: str, namespace: str, name: str) -> None:
        before = self.shown() & self.server.store.world.keys()
        await getattr(self, action)(namespace, name)
        assert before & self.server.store.world.keys() <= self.shown(), "a route is cut"


ACTIONS = (
    "write",
    "delete",
    "bring",
    "lose",
    "forbid",
    "allow",
    "remove",
    "make",
    "sweep",
    "relist",
)
STEPS = st.tuples(
    st.sampled_from(ACTIONS), st.sampled_from(NAMESPACES), st.sampled_from(("a", "b"))
)


async def _play(plan: list[tuple[str, str, str]], *, names_namespaces: bool) -> None:
    rig = Rig(Server(names_namespaces=names_namespaces))
    await rig.relist()
    for action, namespace, name in plan:
        await rig.step(action, namespace, name)
    for namespace in NAMESPACES:
        await rig.step("allow", namespace, "")
    await rig.feed.resync()
    if rig.feed.lister.refused:
        assert rig.feed.relist_needed.is_set(), "a list is due"
    await rig.step("relist", "", "")

    assert rig.feed.lister.refused == {}
    assert rig.shown() == rig.server.store.world.keys()
    for body in rig.server.store.world.values():
        export = rig.board.reader.get("Export", body["metadata"]["uid"])
        assert export is not None
        assert export.generation == body["metadata"]["generation"]
    assert [event for event in rig.events if isinstance(event, FeedLost)] == []


@settings(deadline=None, max_examples=200)
@given(plan=st.lists(STEPS, max_size=25), names_namespaces=st.booleans())
@example(
    # An object is created while its namespace is refused, and sweeps pass its version.
    plan=[
        ("forbid", REPORTS, ""),
        ("write", REPORTS, "a"),
        ("lose", REPORTS, ""),
        ("write", JOBS, "a"),
        ("sweep", JOBS, ""),
    ],
    names_namespaces=True,
)
def test_a_refused_namespace_cuts_nothing_that_is_there_and_is_right_once_it_is_listed(
    plan: list[tuple[str, str, str]], names_namespaces: bool
) -> None:
    asyncio.run(_play(plan, names_namespaces=names_namespaces))


async def _two_exports(**server: Any) -> Rig:
    rig = Rig(Server(**server))
    for namespace in NAMESPACES:
        rig.server.store.write("Export", "a", 0, namespace)
    await rig.relist()
    return rig


async def test_changes_elsewhere_are_found_while_one_namespace_is_refused() -> None:
    rig = await _two_exports()
    rig.server.allowed.discard(REPORTS)
    rig.server.store.write("Export", "b", 0, JOBS)
    await rig.feed.resync()

    assert rig.shown() == {"Export-1", "Export-2", "Export-3"}
    assert rig.feed.lister.refused == {REPORTS: "Forbidden"}


@pytest.mark.parametrize(
    ("names_namespaces", "why", "left"),
    [(True, "NamespaceGone", {"Export-1"}), (False, "Forbidden", {"Export-1", "Export-2"})],
)
async def test_what_was_in_a_namespace_goes_once_the_namespace_is_known_to_be_gone(
    names_namespaces: bool, why: Refusal, left: set[str]
) -> None:
    rig = await _two_exports(names_namespaces=names_namespaces)
    await rig.remove(REPORTS, "")
    rig.coming.clear()
    await rig.feed.resync()

    assert (rig.feed.lister.refused, rig.shown()) == ({REPORTS: why}, left)


async def test_the_only_namespaces_can_go_as_well() -> None:
    rig = await _two_exports()
    for namespace in NAMESPACES:
        await rig.remove(namespace, "")
    rig.coming.clear()
    await rig.feed.resync()

    assert rig.shown() == set()


async def test_a_namespace_that_was_never_listed_keeps_a_new_broker_from_serving() -> None:
    rig = Rig(Server(allowed={JOBS}))
    with pytest.raises(ApiError, match="reports is forbidden"):
        await rig.feed.relist()

    assert not rig.board.reader.synced
    rig.server.there.discard(REPORTS)
    await rig.feed.relist()
    assert rig.feed.lister.refused == {REPORTS: "NamespaceGone"}


async def test_a_list_is_asked_for_as_soon_as_the_namespace_can_be_read() -> None:
    rig = await _two_exports()
    rig.server.allowed.discard(REPORTS)
    await rig.feed.resync()
    await rig.feed.probe_refused()
    assert not rig.feed.relist_needed.is_set()

    rig.server.allowed.add(REPORTS)
    await rig.feed.probe_refused()
    assert rig.feed.relist_needed.is_set()


async def test_one_line_says_that_a_namespace_is_refused_and_one_that_it_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = await _two_exports()
    caplog.set_level(logging.INFO)
    rig.server.allowed.discard(REPORTS)
    for _ in range(3):
        await rig.feed.resync()
    rig.server.allowed.add(REPORTS)
    for _ in range(3):
        await rig.feed.relist()

    assert caplog.messages == [
        "namespace reports: Exports cannot be listed (403); their last known state is kept",
        "namespace reports: Exports are watched again",
    ]


def test_a_broker_is_ready_and_names_the_namespaces_that_it_does_not_follow() -> None:
    refused: Mapping[Any, Refusal] = {
        ("Import", "b"): "NamespaceGone",
        ("Export", "a"): "Forbidden",
    }
    probe = check_ready(BrokerState(beat_age_s=0.0, synced=True, refused=refused))

    assert probe.is_ok
    assert [line for line in probe.text.splitlines() if "namespace" in line] == [
        "[+]namespace a of exports not followed: Forbidden",
        "[+]namespace b of imports not followed: NamespaceGone",
    ]
