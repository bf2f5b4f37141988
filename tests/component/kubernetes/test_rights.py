"""What the broker needs of RBAC: each verb that the chart gives it, and no more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from streambroker_core.board import BoardEvent, ExportApplied, ImportApplied
from streambroker_core.board.events import RuleApplied
from streambroker_core.model import AnyKind
from streambroker_core.wire.manifests.ports import OBJECTS
from streambroker_operator.errors import RequestError
from streambroker_operator.kubernetes.auth.rbac import AccessRequest, Caller
from streambroker_operator.kubernetes.auth.token_review import ReviewClient
from streambroker_operator.kubernetes.client.http_api import HttpApi
from streambroker_operator.kubernetes.client.kubeconfig import Access
from streambroker_operator.kubernetes.client.objects import ObjectPath, Objects
from streambroker_operator.kubernetes.client.watch_client import ApiClient, Timing
from streambroker_operator.kubernetes.replicas.lease import Lease
from streambroker_operator.kubernetes.status.events import EventNote, EventWriter
from streambroker_operator.kubernetes.status.writer import Name, StatusWrite, StatusWriter
from streambroker_operator.kubernetes.watch.reflector import ReflectorFeeder
from support.clusters.api_server import ApiServer
from support.clusters.calls import calls_of, create, grant, listed, manifest, open_to, true
from support.kubernetes import charts
from support.kubernetes.jwts import jwt

Right = tuple[str, str, str]
Use = Callable[[HttpApi, str], Awaitable[bool]]

LEASES, STREAMS, EVENTS = "coordination.k8s.io", "streambroker.io", "events.k8s.io"


class OneStatus:
    """Wants one status written."""

    def __init__(self, write: StatusWrite) -> None:
        self.write: StatusWrite | None = write

    def build(self, name: Name) -> StatusWrite | None:
        return self.write

    def on_written(self, write: StatusWrite, answer: object) -> None:
        self.write = None


async def write_status(api: HttpApi, namespace: str, kind: AnyKind) -> bool:
    write = StatusWrite(kind=kind, namespace=namespace, name="feed", uid="u", status={"matches": 1})
    desk = OneStatus(write)
    writer = StatusWriter(api, desk, leads=lambda: True, settle_s=0.0)
    running = asyncio.ensure_future(writer.run())
    writer.offer((kind, "u"))
    await true(lambda: writer.is_idle)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return desk.write is None


async def hold_lease(api: HttpApi, namespace: str) -> bool:
    """Make the Lease, renew it, and let it go."""
    return all([await held(api, namespace, identity) for identity in ("a", "b")])


async def held(api: HttpApi, namespace: str, identity: str) -> bool:
    lease = Lease(api, namespace=namespace, name="streambroker", identity=identity)
    running = asyncio.ensure_future(lease.run())
    led = await true(lambda: lease.leads, 3.0)
    running.cancel()
    await lease.release()
    return led


async def write_events(api: HttpApi, namespace: str) -> bool:
    """Write an Event, and its series."""
    events = EventWriter(api, "broker-0")
    note = EventNote(
        kind="Export", namespace=namespace, name="feed", uid="u", reason="RouteCut", action="Match"
    )
    running = asyncio.ensure_future(events.run())
    events.record(note, 0.0)
    events.record(note, 1.0)
    await events.flush()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return events.writes["failed"] + events.writes["refused"] == 0


async def review(api: HttpApi, namespace: str) -> bool:
    reviews = ReviewClient(api)
    ask = AccessRequest(verb="patch", resource="imports")
    caller = Caller(user="nobody")
    if await refusal_of(reviews.review_token(jwt(sub="nobody"))) == 503:
        return False
    return await refusal_of(reviews.check_access(caller, ((ask,),), namespace)) == 403


async def change_stream(api: HttpApi, namespace: str, kind: AnyKind) -> bool:
    """Make a resource, read it, and delete it."""
    objects = Objects(api)
    place = ObjectPath(kind=kind, namespace=namespace, name="made")
    wanted: Any = manifest(kind, "made", job="made", **SPECS[kind])
    wanted["metadata"]["namespace"] = namespace
    try:
        await objects.apply(place, wanted, manager="streambroker-api")
        made = await objects.read(place)
        await objects.delete(place, uid=(made or wanted)["metadata"]["uid"])
    except RequestError as error:
        return error.status != 403
    return True


async def read_key(api: HttpApi, namespace: str) -> bool:
    try:
        return await Objects(api).read_secret(namespace, "streambroker-key") is None
    except RequestError as error:
        return error.status != 403


async def refusal_of(asked: Awaitable[object]) -> int:
    with pytest.raises(RequestError) as raised:
        await asked
    return raised.value.status


KINDS: tuple[AnyKind, ...] = ("Export", "Import", "PatternProcessor")
SPECS: dict[AnyKind, dict[str, Any]] = {
    "Export": {"port": "p", "properties": {}},
    "Import": {"port": "p"},
    "PatternProcessor": {"version": 0, "pattern": {"stages": [{"name": "a"}]}},
}
USES: dict[str, tuple[Use, tuple[Right, ...]]] = {
    **{
        f"status of an {kind}": (
            partial(write_status, kind=kind),
            ((STREAMS, f"{OBJECTS[kind]}/status", "patch"),),
        )
        for kind in KINDS
    },
    **{
        f"change of an {kind}": (
            partial(change_stream, kind=kind),
            tuple((STREAMS, OBJECTS[kind], v) for v in ("get", "create", "patch", "delete")),
        )
        for kind in KINDS
    },
    "Lease": (hold_lease, tuple((LEASES, "leases", v) for v in ("get", "create", "update"))),
    "key": (read_key, (("", "secrets", "get"),)),
    "Events": (write_events, tuple((EVENTS, "events", v) for v in ("create", "patch"))),
    "reviews": (
        review,
        (
            ("authentication.k8s.io", "tokenreviews", "create"),
            ("authorization.k8s.io", "subjectaccessreviews", "create"),
        ),
    ),
}


CALM = Timing(retry_s=(0.02, 0.3))
"""No sweep within the time of a test: only the watches tell."""
FOLLOWING: tuple[Right, ...] = (
    (STREAMS, "exports", "list"),
    (STREAMS, "imports", "list"),
    (STREAMS, "exports", "watch"),
    (STREAMS, "imports", "watch"),
    ("apiextensions.k8s.io", "customresourcedefinitions", "get"),
)
FOLLOWING_RULES: tuple[Right, ...] = tuple(
    (STREAMS, "patternprocessors", verb) for verb in ("list", "watch")
)
"""Without them ports are followed none the less."""

CASES = [
    pytest.param(what, missing, id=f"{what} without {missing}")
    for what, (_, rights) in USES.items()
    for missing in (None, *rights)
]


@pytest.mark.parametrize("watched", ["own", ["jobs", "reports"], "*"], ids=str)
def test_the_chart_gives_the_rights_that_are_tried_here_and_no_other(watched: Any) -> None:
    found = charts.objects({"watchNamespaces": watched})
    bound = {
        (kind, each["metadata"].get("namespace", ""), each["roleRef"]["name"])
        for kind in ("Role", "ClusterRole")
        for each in charts.of_kind(found, f"{kind}Binding")
    }
    given = {
        (group, resource, verb)
        for each in found
        if charts.key_of(each) in bound
        for rule in each["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }

    tried = {right for _, rights in USES.values() for right in rights}
    namespaces = {("", "namespaces", "get")} if isinstance(watched, list) else set()
    assert given == tried | {*FOLLOWING, *FOLLOWING_RULES} | namespaces


@pytest.mark.parametrize(("what", "missing"), CASES)
async def test_each_right_is_enough_with_the_others_and_needed(
    api: ApiServer, namespace: str, what: str, missing: Right | None
) -> None:
    use, rights = USES[what]
    grant(api, "broker", "worker", *(right for right in rights if right != missing))
    async with calls_of(api) as admin, calls_of(api, "worker") as calls:
        documents = [manifest(kind, "feed", job="feed", **SPECS[kind]) for kind in KINDS]
        await create(admin, namespace, documents)

        assert await use(calls, namespace) is (missing is None)

        for kind in KINDS:
            (found,) = (
                one
                for one in await listed(admin, namespace, kind)
                if one["metadata"]["name"] == "feed"
            )
            wrote = what == f"status of an {kind}" and missing is None
            assert found.get("status", {}).get("matches") == (1 if wrote else None)


@pytest.mark.parametrize("missing", [None, *FOLLOWING, *FOLLOWING_RULES], ids=str)
async def test_each_right_to_follow_is_needed(
    api: ApiServer, namespace: str, missing: Right | None, caplog: pytest.LogCaptureFixture
) -> None:
    rights = (*FOLLOWING, *FOLLOWING_RULES)
    grant(api, "follower", "worker", *(right for right in rights if right != missing))
    access = Access(server=api.url, token=api.tokens["worker"], ca_file=str(api.ca))
    feeder = ReflectorFeeder(ApiClient(access, CALM), [namespace])
    events: list[BoardEvent] = []

    def seen() -> set[type]:
        return set(map(type, events))

    running = asyncio.ensure_future(feeder.run(events.append))
    async with calls_of(api) as admin:
        try:
            await true(lambda: feeder.health().synced or bool(feeder.health().last_error), 20.0)
            documents = [manifest(kind, "feed", job="feed", **SPECS[kind]) for kind in KINDS]
            await create(admin, namespace, documents)
            if missing is None or missing in FOLLOWING_RULES:
                assert await true(lambda: {ExportApplied, ImportApplied} <= seen(), 20.0)
            if missing is None or missing[1] in ("exports", "imports"):
                assert await true(lambda: RuleApplied in seen(), 20.0)
            if missing is not None:
                assert await true(lambda: "403" in caplog.text, 20.0)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    assert ("403" in caplog.text) is (missing is not None)
    assert await true(lambda: not open_to(api.port), 10.0)
