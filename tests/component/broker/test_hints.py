"""Hints over a real socket: who gets one, when, and how many."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from streambroker_core.errors import HintError
from streambroker_core.wire.capability import DAY_S, verify
from streambroker_core.wire.hints import Hint, HintGate, decode, read_point
from streambroker_operator.serving import Broker
from support.brokers import EXPORT, IMPORT, Rest, received, running_broker, udp_ear
from support.resources import export_of

X = "/job/feed/pe/0/export/trades"
I = "/job/alerts/pe/0/import/trades"  # noqa: E741
ALERTS, FEED = "default/alerts/0", "default/feed/0"


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[tuple[Broker, Rest]]:
    async with running_broker(tmp_path / "broker.db") as found:
        yield found


async def registered(
    rest: Rest, agent: str, hint: str | None, location: str = "grpc+tcp://127.0.0.1:4711"
) -> bytes:
    namespace, job, pe = agent.split("/")
    body = {"instance": job.encode().hex() + "00", "location": location, "hint": hint}
    answer = await rest("PUT", f"/job/{job}/pe/{pe}?namespace={namespace}", body)
    assert answer.status == 200
    return bytes.fromhex(answer.body["key"])


async def test_a_change_is_hinted_to_both_ends_with_the_version_of_their_views(
    running: tuple[Broker, Rest],
) -> None:
    _, rest = running
    async with udp_ear() as (feed_at, feed_ear), udp_ear() as (alerts_at, alerts_ear):
        feed_key = await registered(rest, FEED, feed_at)
        alerts_key = await registered(rest, ALERTS, alerts_at)
        await rest("PUT", X, EXPORT)
        await received(feed_ear)
        await rest("PUT", I, IMPORT)
        feed_hint = decode(feed_key, await received(feed_ear), FEED)
        datagram = await received(alerts_ear)
        alerts_hint = decode(alerts_key, datagram, ALERTS)

    for hint, job in ((feed_hint, "feed"), (alerts_hint, "alerts")):
        view = await rest("GET", f"/job/{job}/pe/0")
        assert hint == Hint(
            agent=f"default/{job}/0",
            version=view.body["version"],
            point=tuple(view.body["point"]),
        )
    assert HintGate().offer(alerts_hint, 0.0)
    for key, agent in ((feed_key, ALERTS), (alerts_key, FEED), (b"", ALERTS)):
        with pytest.raises(HintError):
            decode(key, datagram, agent)


async def test_a_new_location_is_hinted_to_the_importers(running: tuple[Broker, Rest]) -> None:
    _, rest = running
    async with udp_ear() as (alerts_at, ear):
        key = await registered(rest, ALERTS, alerts_at)
        await rest("PUT", X, EXPORT)
        await rest("PUT", I, IMPORT)
        await received(ear)
        await registered(rest, FEED, None, "grpc+tcp://10.0.0.9:1")
        hint = decode(key, await received(ear), ALERTS)
        view = await rest("GET", "/job/alerts/pe/0")

    (route,) = view.body["imports"]["trades"]["routes"]
    assert hint.version == view.body["version"]
    assert route["location"] == "grpc+tcp://10.0.0.9:1"


async def test_the_exporters_key_opens_the_capability_in_the_importers_view(
    running: tuple[Broker, Rest],
) -> None:
    _, rest = running
    key = await registered(rest, FEED, None)
    await rest("PUT", X, {**EXPORT, "allowFilter": False, "congestionPolicy": "drop"})
    await rest("PUT", I, {"subscription": 'kind == "trade"'})
    (route,) = (await rest("GET", "/job/alerts/pe/0")).body["imports"]["trades"]["routes"]
    capability = verify(
        key,
        route["capability"],
        reader_import="default/alerts/0/trades",
        export="default/feed/0/trades",
        now=0.0,
    )

    assert (capability.filter_allowed, capability.policy) == (False, "drop")
    assert capability.expires is not None
    assert DAY_S <= capability.expires - time.time() <= 2 * DAY_S


async def test_a_capability_follows_what_it_says(running: tuple[Broker, Rest]) -> None:
    _, rest = running
    await registered(rest, FEED, None)
    await rest("PUT", X, EXPORT)
    await rest("PUT", I, {"subscription": 'kind == "trade"'})
    before = await rest("GET", "/job/alerts/pe/0")
    await rest("PUT", X, {**EXPORT, "allowFilter": False})
    after = await rest("GET", "/job/alerts/pe/0")

    assert before.headers["ETag"] != after.headers["ETag"]
    tokens = [view.body["imports"]["trades"]["routes"][0]["capability"] for view in (before, after)]
    assert tokens[0] != tokens[1]


async def test_what_changes_nothing_is_not_hinted(running: tuple[Broker, Rest]) -> None:
    broker, rest = running
    async with udp_ear() as (at, ear):
        await registered(rest, FEED, at)
        await rest("PUT", X, EXPORT)
        await received(ear)
        sent = broker.runtime.sender.sent
        await rest("PUT", X, EXPORT)
        await rest("PUT", "/job/other/pe/0/import/p", {"subscription": 'kind == "other"'})
        await registered(rest, FEED, at)
        await rest("GET", "/pes")

    assert broker.runtime.sender.sent == sent
    assert ear.empty()


async def test_changes_within_one_turn_make_one_hint_and_it_is_the_last(
    running: tuple[Broker, Rest],
) -> None:
    broker, rest = running
    async with udp_ear() as (at, ear):
        key = await registered(rest, FEED, at)
        await rest("PUT", X, EXPORT)
        await received(ear)
        for level in range(5):
            await broker.runtime.put(export_of(properties={"level": level}))
        hint = decode(key, await received(ear), FEED)
        view = await rest("GET", "/job/feed/pe/0")

    assert hint.version == view.body["version"]
    assert broker.runtime.sender.sent == 2


async def test_an_address_that_does_not_exist_is_noted_and_forgotten(
    running: tuple[Broker, Rest],
) -> None:
    broker, rest = running
    await registered(rest, FEED, "no-such-host.invalid:9")
    answer = await rest("PUT", X, EXPORT)
    await broker.runtime.sender.settled()

    assert answer.status == 201
    assert broker.runtime.sender.failed == 1


async def test_a_view_that_is_not_sent_again_comes_with_the_point_it_is_still_right_at(
    running: tuple[Broker, Rest],
) -> None:
    _, rest = running
    await rest("PUT", X, EXPORT)
    known = (await rest("GET", "/job/feed/pe/0")).headers["ETag"]
    written = await rest("PUT", "/job/else/pe/0/import/p", {"subscription": 'kind == "none"'})
    same = await rest("GET", "/job/feed/pe/0", If_None_Match=known)

    assert same.status == 304
    assert read_point(same.headers["Point"]) == (1, written.body["version"])
