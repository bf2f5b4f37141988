"""Control tuples from outside by REST: the agent's identity, once, or a refusal that helps."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from streambroker_core.deprecation import CHANGED_DELIVERY
from streambroker_core.model import PeKey
from streambroker_core.wire.broker import hints
from streambroker_core.wire.broker.agent_commands import APPEND, EMIT, EMITTED, ENTRY
from streambroker_operator.rest.guard.rate_limits import RateLimits
from streambroker_operator.security import audit_log as audit
from support.agents.emitting import AGENT, LOG, CommandAgent, command_agent
from support.brokers.brokers import EXPORT, Rest, bearer, received, running_broker, udp_ear

FEED = "/job/feed/pe/0"
TRADES = f"{FEED}/export/trades"
CONTROL = f"{TRADES}/control"
TUPLE = {"type": "EndOfDay", "payload": {"day": "2013-01-01"}, "delivery": "END_WINDOW"}
QUICK = RateLimits(agent_wait_s=0.05)


@pytest.fixture
async def quick(tmp_path: Path) -> AsyncIterator[Rest]:
    """A broker that does not wait for agents for long."""
    async with running_broker(tmp_path / "broker.db", QUICK) as (_, rest):
        assert (await rest("PUT", TRADES, EXPORT)).status == 201
        yield rest


async def test_a_tuple_for_importers_gets_the_identity_that_the_agent_gives(pair: Rest) -> None:
    async with command_agent(pair, FEED) as agent:
        sent = await pair("POST", CONTROL, TUPLE)
        agent.applied = True
        state = await pair("GET", f"{CONTROL}/{LOG}/0")

    assert (sent.status, sent.body["id"], sent.body["applied"]) == (201, f"{LOG}/0", False)
    assert sent.headers["Location"] == f"/api/subscriptions{CONTROL}/{LOG}/0"
    assert (state.status, state.body["applied"]) == (200, True)
    assert [one.action for one in agent.done] == [EMIT, EMITTED]
    assert (agent.done[0].body["export"], agent.done[0].body["what"]) == ("trades", TUPLE)


async def test_the_address_of_a_tuples_state_is_in_the_namespace_of_the_request(
    guarded: Rest,
) -> None:
    lab, ops = "?namespace=lab", bearer("ops")
    async with command_agent(guarded, FEED + lab, **ops):
        sent = await guarded("POST", CONTROL + lab, TUPLE, **ops)
        state = await guarded("GET", sent.headers["Location"], **ops)

    assert (sent.status, state.status) == (201, 200)
    assert state.body["id"] == sent.body["id"]


async def test_a_tuple_for_operators_goes_to_the_control_log(pair: Rest) -> None:
    async with command_agent(pair, FEED) as agent:
        sent = await pair("POST", f"{FEED}/control?operator=multiply", {"type": "SetFactor"})
        await pair("POST", f"{FEED}/control", {**TUPLE, "target": {"operator": "a", "bucket": 1}})
        state = await pair("GET", f"{FEED}/control/{LOG}/0")

    assert (sent.status, state.status) == (201, 200)
    assert [one.action for one in agent.done] == [APPEND, APPEND, ENTRY]
    whats = [one.body["what"] for one in agent.done[:2]]
    assert whats[0]["target"] == {"operator": "multiply"}
    assert whats[1] == {**TUPLE, "target": {"operator": "a", "bucket": 1}}


@pytest.mark.parametrize("path", [CONTROL, f"{FEED}/control"])
async def test_a_tuple_without_a_delivery_takes_the_common_default_with_a_warning(
    pair: Rest, path: str
) -> None:
    async with command_agent(pair, FEED) as agent:
        without = await pair("POST", path, {"type": "SetFactor"})
        given = await pair("POST", path, TUPLE)

    assert [one.body["what"]["delivery"] for one in agent.done] == ["END_WINDOW"] * 2
    assert without.body["warnings"] == [CHANGED_DELIVERY]
    assert (without.status, given.status, "warnings" in given.body) == (201, 201, False)


async def test_the_same_request_sends_one_tuple_and_those_of_others_are_apart(
    guarded: Rest,
) -> None:
    alerts = "/job/alerts/pe/0/control"
    async with command_agent(guarded, "/job/alerts/pe/0", **bearer("job")) as agent:
        asked = [
            await guarded("POST", alerts, TUPLE, Request_Id="a", **bearer(who))
            for who in ("job", "ops", "job")
        ]
        named = [await guarded("POST", alerts, TUPLE, **bearer("job")) for _ in range(2)]
        other = await guarded("POST", alerts, {"type": "x"}, Request_Id="a", **bearer("job"))

    assert [one.body["seq"] for one in asked + named] == [0, 1, 0, 2, 3]
    assert [one.headers.get("Replayed") for one in asked] == [None, None, "true"]
    assert (other.status, other.code) == (422, "RequestIdReused")
    assert len(agent.requests) == 4


async def test_a_restarted_broker_has_the_agent_tell_the_same_identity(tmp_path: Path) -> None:
    found = []
    agent = CommandAgent()
    for number in range(2):
        async with running_broker(tmp_path / f"{number}.db") as (_, rest):
            await rest("PUT", TRADES, EXPORT)
            async with command_agent(rest, FEED) as one:
                one.requests = agent.requests
                found.append(await rest("POST", CONTROL, TUPLE, Request_Id="a"))

    assert [one.body["id"] for one in found] == [f"{LOG}/0"] * 2


async def test_the_agent_gets_a_hint_and_learns_the_rest_with_a_poll(quick: Rest) -> None:
    async with udp_ear() as (address, heard):
        made = await quick("PUT", FEED, {**AGENT, "hint": address})
        refused = await quick("POST", CONTROL, TUPLE, Request_Id="a")
        hint = hints.decode(bytes.fromhex(made.body["key"]), await received(heard), FEED_KEY)
        polled = await quick("GET", FEED)
        agent = CommandAgent()
        await agent.round(quick, FEED)
        again = await quick("POST", CONTROL, TUPLE, Request_Id="a")
        after = await quick("GET", FEED)

    assert (refused.status, refused.code) == (503, "AgentAway")
    assert "same Request-Id" in refused.body["detail"]
    assert refused.headers["Retry-After"]
    assert hint.version == hints.COMMANDS
    assert polled.headers["Errands"] == "waiting"
    assert again.code == "AgentAway"
    assert after.headers["Errands"] == "waiting"
    assert agent.requests == [(EMIT, agent.requests[0][1])]


FEED_KEY = str(PeKey(namespace="default", job="feed", pe=0))


async def test_without_an_agent_it_is_said_at_once(pair: Rest) -> None:
    sent = await pair("POST", CONTROL, TUPLE)
    state = await pair("GET", f"{CONTROL}/{LOG}/0")

    assert [(one.status, one.code) for one in (sent, state)] == [(503, "AgentAway")] * 2
    assert "No agent of default/feed/0 has registered" in sent.body["detail"]


@pytest.mark.parametrize(
    ("path", "body", "status", "code", "said"),
    [
        (CONTROL, {"payload": 1}, 422, "ManifestInvalid", "type is required"),
        (CONTROL, {"type": "a", "dellivery": "BEGIN"}, 422, "ManifestInvalid", "delivery"),
        (CONTROL, {"type": "a", "delivery": "NEVER"}, 422, "ManifestInvalid", "'NEVER'"),
        (CONTROL, {"type": "a", "at": 1}, 422, "ManifestInvalid", "AT_TIME"),
        (CONTROL, [1], 422, "ManifestInvalid", "object"),
        (CONTROL, {"type": "a", "payload": "x" * 70_000}, 413, "BodyTooLarge", "65536"),
        (f"{FEED}/export/nothing/control", TUPLE, 404, "UnknownPort", "nothing"),
        ("/job/nobody/pe/0/control", TUPLE, 404, "UnknownPE", "nobody"),
        (f"{FEED}/control?operator=", TUPLE, 422, "ManifestInvalid", "operator"),
        (f"{FEED}/control?oprator=a", TUPLE, 400, "QueryInvalid", "Did you mean operator"),
        (
            f"{FEED}/control?operator=a",
            {"type": "a", "target": {"operator": "b"}},
            422,
            "ManifestInvalid",
            "'b', but the address has 'a'",
        ),
    ],
)
async def test_what_is_wrong_is_reported_before_anything_is_sent(
    pair: Rest, path: str, body: Any, status: int, code: str, said: str
) -> None:
    async with command_agent(pair, FEED) as agent:
        refused = await pair("POST", path, body)

    assert (refused.status, refused.code) == (status, code)
    assert said in refused.body["detail"]
    assert agent.done == []


async def test_a_payload_that_is_no_json_is_refused_with_its_place(pair: Rest) -> None:
    broken = await pair("POST", CONTROL, data=b'{"type": "a", "payload": NaN}')
    cut = await pair("POST", CONTROL, data=b'{"type": "a",')

    assert [(one.status, one.code) for one in (broken, cut)] == [(400, "NotJson")] * 2
    assert cut.body["position"]["line"] == 1


@pytest.mark.parametrize(
    ("reported", "status", "code"),
    [
        ("ExportFull", 409, "ExportFull"),
        ("ControlLogFull", 409, "ControlLogFull"),
        ("ControlLimit", 422, "ControlLimit"),
        ("RequestDiffers", 422, "RequestIdReused"),
        ("UnknownPort", 503, "AgentAway"),
        ("InternalError", 503, "InternalError"),
    ],
)
async def test_what_an_agent_refuses_is_the_answer(
    pair: Rest, reported: str, status: int, code: str
) -> None:
    async with command_agent(pair, FEED) as agent:
        agent.refuses = (reported, "it cannot be done.")
        refused = await pair("POST", CONTROL, TUPLE)

    assert (refused.status, refused.code) == (status, code)
    assert code == "AgentAway" or refused.body["detail"] == "it cannot be done."
    assert (status == 503) == ("Retry-After" in refused.headers)


@pytest.mark.parametrize("id_", [f"{LOG}/1", "fedcba9876543210/0", f"{LOG}/x", f"{LOG}/-1"])
async def test_an_identity_that_is_not_the_agents_is_not_found(pair: Rest, id_: str) -> None:
    async with command_agent(pair, FEED):
        await pair("POST", CONTROL, TUPLE)
        found = await pair("GET", f"{CONTROL}/{id_}")

    assert (found.status, found.code) == (404, "NotEmitted")


async def test_who_may_not_change_the_job_may_not_send_nor_fetch(guarded: Rest) -> None:
    job, ops = bearer("job"), bearer("ops")
    await guarded("PUT", FEED, AGENT, **ops)
    of_others = [
        await guarded("POST", CONTROL, TUPLE, **job),
        await guarded("POST", f"{FEED}/control", TUPLE, **job),
        await guarded("POST", f"{FEED}/errands", {}, **job),
    ]
    own = await guarded("POST", "/job/alerts/pe/0/errands", {}, **job)

    assert [(one.status, one.code) for one in of_others] == [(403, "NotYours")] * 3
    assert (own.status, own.body) == (200, {"errands": []})


async def test_a_condition_on_the_export_holds_for_a_tuple(pair: Rest) -> None:
    async with command_agent(pair, FEED) as agent:
        refused = await pair("POST", CONTROL, TUPLE, If_Match='"other.1"')
        sent = await pair("POST", CONTROL, TUPLE, If_Match="*")

    assert (refused.status, sent.status) == (412, 201)
    assert len(agent.requests) == 1


async def test_a_tuple_is_in_the_audit_log_and_an_agents_fetching_is_not(
    pair: Rest, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, audit.LOGGER):
        async with command_agent(pair, FEED):
            await pair("POST", f"{CONTROL}?namespace=default", TUPLE, Request_Id="a")

    lines = [json.loads(one.message) for one in caplog.records if one.name == audit.LOGGER]
    reported = [(one["method"], one["path"].partition("/pe/")[2], one["status"]) for one in lines]
    assert reported[-1] == ("POST", "0/export/trades/control?namespace=default", 201)
    assert lines[-1]["requestId"] == "a"
    assert not any("errands" in path for _, path, _ in reported)


async def test_a_payload_that_is_nested_without_end_is_refused_or_taken_and_stops_nothing(
    pair: Rest,
) -> None:
    async with command_agent(pair, FEED) as agent:
        for depth in (10, 300, *range(800, 1_000, 7), 5_000):
            body = b'{"type": "a", "payload": ' + b"[" * depth + b"]" * depth + b"}"
            answer = await pair("POST", CONTROL, data=body)
            assert answer.status in (201, 400, 422), depth
        last = await pair("POST", CONTROL, TUPLE)

    assert last.status == 201
    assert agent.requests
