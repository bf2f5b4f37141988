"""What the broker needs of RBAC for statuses, Lease, Events and reviews: each verb, and no more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from streambroker_operator.errors import RequestError
from streambroker_operator.kubernetes.api import HttpApi
from streambroker_operator.kubernetes.events import EventWriter, Note
from streambroker_operator.kubernetes.identity import Reviews
from streambroker_operator.kubernetes.lease import Lease
from streambroker_operator.kubernetes.permissions import Ask, Caller
from streambroker_operator.kubernetes.status_writer import Name, StatusWrite, StatusWriter
from support.cluster import ApiServer
from support.kube_calls import calls_of, create, grant, listed, manifest, true

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
    return events.failed == 0


async def review(api: HttpApi, namespace: str) -> bool:
    reviews = Reviews(api)
    ask = Ask(verb="patch", resource="imports")
    caller = Caller(user="nobody")
    if await refusal_of(reviews.caller("no.such.token")) == 503:
        return False
    return await refusal_of(reviews.check(caller, ((ask,),), namespace)) == 403


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
    tell_events: ((EVENTS, "events", "create"), (EVENTS, "events", "patch")),
    review: (
        ("authentication.k8s.io", "tokenreviews", "create"),
        ("authorization.k8s.io", "subjectaccessreviews", "create"),
    ),
}


CASES = [
    pytest.param(use, missing, id=f"{use.__name__} without {missing}")
    for use, rights in USES.items()
    for missing in (None, *rights)
]


@pytest.mark.parametrize(("use", "missing"), CASES)
async def test_each_right_is_enough_with_the_others_and_needed(
    api: ApiServer, namespace: str, use: Use, missing: Right | None
) -> None:
    grant(api, "broker", "stranger", *(right for right in USES[use] if right != missing))
    async with calls_of(api) as admin, calls_of(api, "stranger") as calls:
        await create(
            admin, namespace, [manifest("Export", "feed", job="feed", port="p", properties={})]
        )

        assert await use(calls, namespace) is (missing is None)

        (export,) = await listed(admin, namespace, "Export")
        wrote = use is write_status and missing is None
        assert export.get("status", {}).get("matches") == (1 if wrote else None)
