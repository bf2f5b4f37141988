"""Hints over a real socket: who gets one, when, and how many."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pe_agent.job.agent.agent_process import AgentProcess
from streambroker_core.errors import HintError
from streambroker_core.model import PeKey
from streambroker_core.wire.broker.capability import DAY_S, verify
from streambroker_core.wire.broker.hints import PROOF, Hint, HintGate, decode, read_point
from streambroker_operator.broker import Broker
from streambroker_operator.rest.agents import hint_targets
from support.brokers.brokers import EXPORT, IMPORT, Answer, Rest, received, running_broker, udp_ear
from support.core.resources import export_of
from support.processes.waiting import until

X = "/job/feed/pe/0/export/trades"
I = "/job/alerts/pe/0/import/trades"  # noqa: E741
ALERTS, FEED = "default/alerts/0", "default/feed/0"


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[tuple[Broker, Rest]]:
    async with running_broker(tmp_path / "broker.db") as found:
        yield found


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no address be that of the caller's own machine."""
    monkeypatch.setattr(hint_targets, "is_same_host", lambda *_: False)
    monkeypatch.setattr(hint_targets, "DELAY_S", 0.1)


async def register(
    rest: Rest,
    agent: str,
    hint: str | None,
    proof: str | None = None,
    location: str = "grpc+tcp://127.0.0.1:4711",
) -> Answer:
    namespace, job, pe = agent.split("/")
    body = {"instance": job.encode().hex() + "00", "location": location, "hint": hint}
    body |= {} if proof is None else {"proof": proof}
    return await rest("PUT", f"/job/{job}/pe/{pe}?namespace={namespace}", body)


async def registered(
    rest: Rest, agent: str, hint: str | None, location: str = "grpc+tcp://127.0.0.1:4711"
) -> bytes:
    answer = await register(rest, agent, hint, location=location)
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
    assert HintGate().should_poll(alerts_hint, 0.0)
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


async def test_a_name_is_not_looked_up_and_gets_no_hints(running: tuple[Broker, Rest]) -> None:
    broker, rest = running
    answer = await register(rest, FEED, "no-such-host.invalid:9")
    await rest("PUT", X, EXPORT)

    assert (answer.status, answer.body["hinted"]) == (200, False)
    assert (broker.runtime.sender.sent, broker.runtime.sender.failed) == (0, 0)


@pytest.mark.parametrize(
    "hint", ["224.0.0.1:9", "[ff02::1]:9", "169.254.1.1:9", "255.255.255.255:9", "0.0.0.0:9"]
)
async def test_an_address_that_is_not_of_one_machine_is_refused(
    running: tuple[Broker, Rest], hint: str
) -> None:
    _, rest = running
    answer = await register(rest, FEED, hint)

    assert (answer.status, answer.code) == (422, "ManifestInvalid")
    assert "hint" in answer.body["detail"]


async def test_the_address_of_another_machine_gets_one_challenge_and_no_hints(
    running: tuple[Broker, Rest], elsewhere: None
) -> None:
    broker, rest = running
    async with udp_ear() as (at, ear):
        answer = await register(rest, FEED, at)
        key = bytes.fromhex(answer.body["key"])
        challenge = decode(key, await received(ear), FEED)
        await rest("PUT", X, EXPORT)
        await rest("PUT", I, IMPORT)
        sent = broker.runtime.sender.sent

    assert answer.body["hinted"] is False
    assert challenge.version.startswith(PROOF)
    assert sent == 1
    assert ear.empty()


async def test_who_shows_the_proof_gets_hints_from_then_on(
    running: tuple[Broker, Rest], elsewhere: None
) -> None:
    _, rest = running
    async with udp_ear() as (at, ear):
        key = bytes.fromhex((await register(rest, FEED, at)).body["key"])
        proof = decode(key, await received(ear), FEED).version.removeprefix(PROOF)
        wrong = await register(rest, FEED, at, "0" * 32)
        stolen = await register(rest, ALERTS, at, proof)
        proven = await register(rest, FEED, at, proof)
        again = await register(rest, FEED, at)
        await rest("PUT", X, EXPORT)
        # Those before are the challenges of the two registrations that showed nothing good.
        while (datagram := await received(ear)) and is_challenge(datagram):
            pass
        hint = decode(key, datagram, FEED)
        view = await rest("GET", "/job/feed/pe/0")

    assert [one.body["hinted"] for one in (wrong, stolen, proven, again)] == [
        False,
        False,
        True,
        True,
    ]
    assert hint.version == view.body["version"]


def is_challenge(datagram: bytes) -> bool:
    return PROOF.encode() in datagram


async def test_an_agent_that_calls_from_another_address_proves_that_it_listens_at_its_own(
    running: tuple[Broker, Rest], tmp_path: Path
) -> None:
    broker, _ = running
    pe = PeKey.parse(FEED)

    def start() -> AgentProcess:
        home = tmp_path / "home"
        return AgentProcess(pe, home, broker=broker.url, linger=20, host="127.0.0.2", port=0)

    def hinted() -> bool:
        found = broker.runtime.board.registration(pe)
        return found is not None and (found.hint or "").startswith("127.0.0.2:")

    agent = await asyncio.to_thread(start)
    try:
        await asyncio.to_thread(until, hinted, 30.0, "a proven address")
    finally:
        await asyncio.to_thread(agent.stop, end_agent=True)


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
