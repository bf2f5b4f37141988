"""REST behind the guard of a cluster: what costs a review, what is asked, what force adds."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from streambroker_core.model import PeKey
from streambroker_core.wire.broker import request_signature as signature
from streambroker_operator.errors import RequestError
from streambroker_operator.rest.guard.authentication import GUARD, Guard, is_still_authorised
from streambroker_operator.rest.guard.rate_limits import RateLimits
from streambroker_operator.rest.lists.snapshots import MAX_SNAPSHOTS
from support.brokers.brokers import EXPORT, Rest
from support.kubernetes.guarded import TOKEN, Guarded, guarded_broker
from support.kubernetes.jwts import jwt

ANN: dict[str, Any] = {"Authorization": f"Bearer {jwt(sub='ann')}"}
BOB: dict[str, Any] = {"Authorization": f"Bearer {jwt(sub='bob')}"}
REPORT: dict[str, Any] = {"Authorization": f"Bearer {jwt(sub='system:serviceaccount:jobs:report')}"}
"""An account of the namespace ``jobs``."""
POD: dict[str, Any] = {"Authorization": f"Bearer {TOKEN}"}
AGENT = {"instance": "0123456789abcdef", "location": "grpc+tcp://127.0.0.1:4711", "hint": None}
FEED = "/job/feed/pe/0"
TRADES = f"{FEED}/export/trades"
NAMED = {
    "apiVersion": "streambroker.io/v1alpha1",
    "kind": "Export",
    "metadata": {"name": "my-trades"},
    "spec": {**EXPORT, "job": "feed", "port": "trades"},
}


@asynccontextmanager
async def guarded(
    tmp_path: Path, limits: RateLimits | None = None, *, remembers: bool = False
) -> AsyncIterator[tuple[Guarded, Rest]]:
    async with (
        guarded_broker(tmp_path / "broker.db", limits, remembers=remembers) as broker,
        aiohttp.ClientSession() as session,
    ):
        broker.people.add("ann")
        yield broker, Rest(broker.url, session)


async def declared(client: Rest) -> None:
    assert (await client("PUT", FEED, AGENT, **POD)).status == 200
    assert (await client("PUT", TRADES, NAMED, **POD)).status == 201


# ---- what is asked of the cluster's rules ------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "body", "ask"),
    [
        ("GET", "", None, "get exports"),
        ("PATCH", "", {"allowFilter": False}, "patch exports"),
        ("PUT", "/properties", {"kind": "x"}, "patch exports/properties"),
        ("DELETE", "", None, "delete exports"),
    ],
)
async def test_a_right_to_one_resource_is_enough_for_that_one(
    tmp_path: Path, method: str, path: str, body: Any, ask: str
) -> None:
    async with guarded(tmp_path) as (broker, client):
        await declared(client)
        other = f"{FEED}/export/quotes"
        await client("PUT", other, EXPORT, **POD)
        broker.granted.add(f"{ask} my-trades")
        refused = await client(method, other + path, body, **ANN)
        allowed = await client(method, TRADES + path, body, **ANN)

    assert refused.status == 403
    assert allowed.status < 300
    assert broker.asked[0] == f"{ask} feed-0-quotes"


async def test_what_is_not_there_yet_has_no_name_to_ask_for(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (broker, client):
        await client("PUT", FEED, AGENT, **POD)
        broker.granted |= {"create exports feed-0-trades", "patch exports"}
        refused = await client("PUT", TRADES, EXPORT, **ANN)
        broker.granted.add("create exports")
        made = await client("PUT", TRADES, EXPORT, **ANN)

    assert (refused.status, made.status) == (403, 201)
    assert broker.asked == ["create exports", "create exports", "patch exports"]


async def test_a_list_is_asked_for_as_a_whole(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (broker, client):
        await declared(client)
        broker.granted.add("list exports my-trades")

        assert (await client("GET", "/exports", **ANN)).status == 403
        assert broker.asked == ["list exports"]


async def test_without_a_namespace_the_callers_own_is_meant(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (broker, client):
        broker.people.add("system:serviceaccount:jobs:report")
        broker.granted |= {f"{verb} exports" for verb in ("create", "patch", "list")}
        made = await client("PUT", "/job/other/pe/0/export/trades", EXPORT, **REPORT)
        own = await client("GET", "/exports", **REPORT)
        named = await client("GET", "/exports?namespace=default", **REPORT)
        of_nobody = await client("GET", "/exports", **ANN)

    assert made.status == 201
    assert [one["metadata"]["namespace"] for one in own.body["items"]] == ["jobs"]
    assert named.body["items"] == of_nobody.body["items"] == []
    assert broker.places == {"jobs", "default"}


async def test_what_can_be_no_port_is_not_found_and_no_failure(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (broker, client):
        await declared(client)
        broker.granted.add("get exports")

        assert (await client("GET", f"{FEED}/export/.", **ANN)).status == 404
        assert (await client("GET", f"{FEED}/export/a%20b", **ANN)).status == 404


# ---- force ---------------------------------------------------------------------


@pytest.mark.parametrize("token", [ANN, POD])
async def test_force_is_refused_where_there_is_nothing_to_take(
    tmp_path: Path, token: dict[str, Any]
) -> None:
    async with guarded(tmp_path) as (broker, client):
        await declared(client)
        broker.jobs = ("feed",)
        broker.granted |= {f"{v} {r}" for r in ("exports", "imports") for v in ("patch", "delete")}
        answers = [
            await client("PUT", f"{FEED}?force=true", AGENT, **token),
            await client("DELETE", f"{TRADES}?force=true", **token),
            await client("POST", "/apply?force=true", {"resources": [NAMED]}, **token),
        ]

    assert {(answer.status, answer.code) for answer in answers} == {(403, "NotYours")}


async def test_force_lets_nobody_make_what_they_could_only_change(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (broker, client):
        await client("PUT", FEED, AGENT, **POD)
        broker.granted.add("patch exports")

        assert (await client("PUT", f"{TRADES}?force=true", EXPORT, **ANN)).status == 403


# ---- signatures ----------------------------------------------------------------


def signed(broker: Guarded, method: str, path: str, body: Any, time_us: int) -> dict[str, Any]:
    """Return the header that the agent of `FEED` sends."""
    feed = PeKey.parse("default/feed/0")
    agent = broker.runtime.board.registration(feed)
    assert agent is not None
    header = signature.sign(
        broker.runtime.agent_key(feed, agent),
        agent=feed,
        instance=agent.instance,
        method=method,
        path=f"/api/subscriptions{path}",
        body=json.dumps(body).encode(),
        time_us=time_us,
    )
    return {"Authorization": header}


@pytest.mark.parametrize(
    ("path", "body", "again"),
    [
        (f"{FEED}/report", {"exports": {}}, 200),
        (f"{TRADES}/properties", {"kind": "x"}, 401),
        (FEED, AGENT, 401),
    ],
)
async def test_only_figures_may_be_sent_twice_under_one_signature(
    tmp_path: Path, path: str, body: Any, again: int
) -> None:
    async with guarded(tmp_path) as (broker, client):
        await declared(client)
        header = signed(broker, "PUT", path, body, int(time.time() * 1e6))
        first = await client("PUT", path, body, **header)
        second = await client("PUT", path, body, **header)

    assert (first.status, second.status) == (200, again)
    assert second.code == ("SignatureInvalid" if again == 401 else None)


# ---- callers beside each other ---------------------------------------------------


async def test_of_two_people_behind_one_address_neither_expires_a_list_of_the_other(
    tmp_path: Path,
) -> None:
    async with guarded(tmp_path) as (broker, client):
        broker.people.add("bob")
        broker.granted.add("list exports")
        await declared(client)
        await client("PUT", f"{FEED}/export/quotes", EXPORT, **POD)
        first = await client("GET", "/exports?limit=1", **ANN)
        for number in range(MAX_SNAPSHOTS + 1):
            await client("PUT", f"{FEED}/export/q{number}", EXPORT, **POD)
            assert (await client("GET", "/exports?limit=1", **BOB)).status == 200
        path = f"/exports?limit=1&continue={first.body['continue']}"
        second = await client("GET", path, **ANN)

    assert (second.status, len(second.body["items"])) == (200, 1)


# ---- tokens that nobody knows ----------------------------------------------------

FEW = RateLimits(refusals_per_s=5.0, refusal_burst=20)


async def statuses(client: Rest, count: int, at_once: int = 50) -> Counter[int]:
    """Show so many tokens of the right form that nobody made."""
    found: Counter[int] = Counter()
    numbers = iter(range(count))

    async def show() -> None:
        for number in numbers:
            token: dict[str, Any] = {"Authorization": f"Bearer {jwt(sub=f'nobody-{number}')}"}
            found[(await client("GET", "/pes", **token)).status] += 1

    await asyncio.gather(*(show() for _ in range(at_once)))
    return found


@pytest.mark.parametrize("at_once", [1, 50])
async def test_wrong_tokens_cost_no_more_reviews_than_refusals(
    tmp_path: Path, at_once: int
) -> None:
    async with guarded(tmp_path, FEW, remembers=True) as (broker, client):
        broker.granted |= {"list exports", "list imports"}
        assert (await client("GET", "/pes", **ANN)).status == 200
        began = asyncio.get_running_loop().time()
        found = await statuses(client, 300, at_once)
        took = asyncio.get_running_loop().time() - began

        assert set(found) == {401, 429}
        assert broker.reviewed - 1 <= 20 + 5.0 * took
        assert (await client("GET", "/pes", **ANN)).status == 200


async def test_a_token_that_was_good_is_looked_at_again_beside_those_who_guess(
    tmp_path: Path,
) -> None:
    async with guarded(tmp_path, FEW) as (broker, client):
        broker.granted |= {"list exports", "list imports"}
        assert (await client("GET", "/pes", **ANN)).status == 200
        await statuses(client, 40)
        before = broker.reviewed

        assert (await client("GET", "/pes", **ANN)).status == 200
        assert broker.reviewed == before + 1


async def test_what_is_no_token_of_this_broker_costs_no_review(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (broker, client):
        for wrong in ("nonsense", "a.b.c", jwt(aud=["another"]), jwt(exp=1)):
            answer = await client("GET", "/pes", Authorization=f"Bearer {wrong}")
            assert (answer.status, answer.code) == (401, "TokenWrong")

    assert broker.reviewed == 0


async def test_a_stream_outlives_those_who_guess_beside_it() -> None:
    class Busy:
        async def identify(self, request: web.Request) -> str:
            raise RequestError(status, "TooManyRequests", "Later.")

    app = web.Application()
    app[GUARD] = cast(Guard, Busy())
    kept = {}
    for status in (401, 429, 503):
        kept[status] = await is_still_authorised(make_mocked_request("GET", "/", app=app))

    assert kept == {401: False, 429: True, 503: True}
