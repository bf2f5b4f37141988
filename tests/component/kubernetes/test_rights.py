"""What the broker needs of RBAC for statuses, Lease, Events and reviews: each verb, and no more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from streambroker_core.board import Event, ExportApplied, ImportApplied
from streambroker_operator.errors import RequestError
from streambroker_operator.kubernetes.access import Access
from streambroker_operator.kubernetes.api import HttpApi
from streambroker_operator.kubernetes.client import ApiClient, Timing
from streambroker_operator.kubernetes.events import EventWriter, Note
from streambroker_operator.kubernetes.identity import Reviews
from streambroker_operator.kubernetes.lease import Lease
from streambroker_operator.kubernetes.objects import Objects, Place
from streambroker_operator.kubernetes.permissions import Ask, Caller
from streambroker_operator.kubernetes.reflector import ReflectorFeeder
from streambroker_operator.kubernetes.status_writer import Name, StatusWrite, StatusWriter
from support.cluster import ApiServer
from support.jwts import jwt
from support.kube_calls import calls_of, create, grant, listed, manifest, open_to, true

Right = tuple[str, str, str]
Use = Callable[[HttpApi, str], Awaitable[bool]]

LEASES, STREAMS, EVENTS = "coordination.k8s.io", "streambroker.io", "events.k8s.io"


class OneStatus:
    """Wants one status written."""

    def __init__(self, write: StatusWrite) -> None:
        self.write: StatusWrite | None = write

    def draw(self, name: Name) -> StatusWrite | None:
        return self.write

    def wrote(self, write: StatusWrite, answer: object) -> None:
        self.write = None


async def write_status(api: HttpApi, namespace: str) -> bool:
    write = StatusWrite(
        kind="Export", namespace=namespace, name="feed", uid="u", status={"matches": 1}
    )
    desk = OneStatus(write)
    writer = StatusWriter(api, desk, leads=lambda: True, settle_s=0.0)
    running = asyncio.ensure_future(writer.run())
    writer.offer(("Export", "u"))
    await true(lambda: writer.idle)
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


async def tell_events(api: HttpApi, namespace: str) -> bool:
    """Write an Event, and its series."""
    events = EventWriter(api, "broker-0")
    note = Note(
        kind="Export", namespace=namespace, name="feed", uid="u", reason="RouteCut", action="Match"
    )
    running = asyncio.ensure_future(events.run())
    events.tell(note, 0.0)
    events.tell(note, 1.0)
    await events.written_all()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return events.failed + events.refused == 0


async def review(api: HttpApi, namespace: str) -> bool:
    reviews = Reviews(api)
    ask = Ask(verb="patch", resource="imports")
    caller = Caller(user="nobody")
    if await refusal_of(reviews.caller(jwt(sub="nobody"))) == 503:
        return False
    return await refusal_of(reviews.check(caller, ((ask,),), namespace)) == 403


async def change_streams(api: HttpApi, namespace: str) -> bool:
    """Make a resource, change it, and delete it."""
    objects = Objects(api)
    place = Place(kind="Import", namespace=namespace, name="alerts")
    wanted = manifest("Import", "alerts", job="alerts", port="in")
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


USES: dict[Use, tuple[Right, ...]] = {
    write_status: ((STREAMS, "exports/status", "patch"),),
    hold_lease: (
        (LEASES, "leases", "get"),
        (LEASES, "leases", "create"),
        (LEASES, "leases", "update"),
    ),
    change_streams: tuple((STREAMS, "imports", v) for v in ("get", "create", "patch", "delete")),
    read_key: (("", "secrets", "get"),),
    tell_events: ((EVENTS, "events", "create"), (EVENTS, "events", "patch")),
    review: (
        ("authentication.k8s.io", "tokenreviews", "create"),
        ("authorization.k8s.io", "subjectaccessreviews", "create"),
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

CASES = [
    pytest.param(use, missing, id=f"{use.__name__} without {missing}")
    for use, rights in USES.items()
    for missing in (None, *rights)
]


@pytest.mark.parametrize(("use", "missing"), CASES)
async def test_each_right_is_enough_with_the_others_and_needed(
    api: ApiServer, namespace: str, use: Use, missing: Right | None
) -> None:
    grant(api, "broker", "worker", *(right for right in USES[use] if right != missing))
    async with calls_of(api) as admin, calls_of(api, "worker") as calls:
        await create(
            admin, namespace, [manifest("Export", "feed", job="feed", port="p", properties={})]
        )

        assert await use(calls, namespace) is (missing is None)

        (export,) = await listed(admin, namespace, "Export")
        wrote = use is write_status and missing is None
        assert export.get("status", {}).get("matches") == (1 if wrote else None)


@pytest.mark.parametrize("missing", [None, *FOLLOWING], ids=str)
async def test_each_right_to_follow_is_needed(
    api: ApiServer, namespace: str, missing: Right | None
) -> None:
    grant(api, "follower", "worker", *(right for right in FOLLOWING if right != missing))
    access = Access(server=api.url, token=api.tokens["worker"], ca_file=str(api.ca))
    feeder = ReflectorFeeder(ApiClient(access, CALM), [namespace])
    told: list[Event] = []
    running = asyncio.ensure_future(feeder.run(told.append))
    async with calls_of(api) as admin:
        try:
            await true(lambda: feeder.health().synced or bool(feeder.health().last_error), 20.0)
            documents = [
                manifest("Export", "feed", job="feed", port="p", properties={}),
                manifest("Import", "alerts", job="alerts", port="in"),
            ]
            await create(admin, namespace, documents)
            told_all = await true(
                lambda: {ExportApplied, ImportApplied} <= set(map(type, told)), 2.0
            )
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    assert told_all is (missing is None)
    assert await true(lambda: not open_to(api.port), 10.0)
