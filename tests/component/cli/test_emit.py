"""``emit``: what a person types becomes one tuple, and what comes of it is told."""

from __future__ import annotations

import asyncio
import json

import pytest

from streambroker_core.deprecation import CHANGED_DELIVERY
from support.agents.emitting import LOG, command_agent
from support.brokers.commands import Cli

FEED = "/job/feed/pe/0"


async def test_a_tuple_goes_to_the_importers_of_an_export_by_any_of_its_names(
    applied: Cli,
) -> None:
    async with command_agent(applied.rest, FEED) as agent:
        names = ("feed-trades", "feed/0/trades", "export/feed-trades", "default/feed/0/trades")
        said = [await applied("emit", name, "EndOfDay", "{day: 2013-01-01}") for name in names]

    assert [code for code, _, _ in said] == [0] * 4
    assert said[0][1] == f"export default/feed/0/trades emitted EndOfDay {LOG}/0\n"
    what = {"type": "EndOfDay", "payload": {"day": "2013-01-01"}, "delivery": "END_WINDOW"}
    assert [one.body["what"] for one in agent.done] == [what] * 4


async def test_a_note_names_the_changed_default_only_without_a_delivery(applied: Cli) -> None:
    async with command_agent(applied.rest, FEED) as agent:
        _, _, without = await applied("emit", "feed/0", "a")
        _, _, given = await applied("emit", "feed/0", "a", "--delivery", "BEGIN")

    assert without == f"streambroker: note: {CHANGED_DELIVERY}\n"
    assert given == ""
    assert [one.body["what"]["delivery"] for one in agent.done] == ["END_WINDOW", "BEGIN"]


@pytest.mark.parametrize("aim", ["feed/0", "pe/feed/0"])
async def test_a_tuple_goes_to_the_operators_of_a_pe(applied: Cli, aim: str) -> None:
    to = ("--operator", "multiply", "--bucket", "3", "--key", "IBM", "--key", "7")
    when = ("--delivery", "AT_TIME", "--at", "1970-01-01T00:00:01.5Z")
    async with command_agent(applied.rest, FEED) as agent:
        code, out, _ = await applied("emit", aim, "SetFactor", *to, *when)

    assert (code, out) == (0, f"pe default/feed/0 emitted SetFactor {LOG}/0\n")
    assert agent.done[0].body["what"] == {
        "type": "SetFactor",
        "payload": None,
        "delivery": "AT_TIME",
        "at": 1_500_000,
        "target": {"operator": "multiply", "bucket": 3, "key": ["IBM", 7]},
    }


async def test_a_repeated_request_is_one_tuple(applied: Cli) -> None:
    async with command_agent(applied.rest, FEED) as agent:
        for _ in range(2):
            assert (await applied("emit", "feed/0", "a", "--request-id", "once"))[0] == 0
        assert (await applied("emit", "feed/0", "a"))[0] == 0

    assert len(agent.requests) == 2


async def test_it_waits_until_all_have_applied_it(applied: Cli) -> None:
    async with command_agent(applied.rest, FEED) as agent:
        agent.applied = True
        code, out, _ = await applied("emit", "feed/0/trades", "a", "--wait")
        reported = await applied("emit", "feed/0/trades", "a", "--wait", "-o", "json")

    assert (code, reported[0]) == (0, 0)
    assert out.splitlines()[1] == f"export default/feed/0/trades applied {LOG}/0 by 1"
    assert json.loads(reported[1])["applied"] is True


async def test_who_has_not_applied_it_in_time_is_named(applied: Cli) -> None:
    async with command_agent(applied.rest, FEED):
        wait = ("--wait", "--timeout", "0.5", "--request-id", "mine")
        code, out, err = await applied("emit", "feed/0/trades", "a", *wait)

    assert (code, out.count("emitted")) == (1, 1)
    assert f"NotApplied: {LOG}/0 is emitted, and not applied by r after 0.5 s." in err
    assert "`--request-id mine --wait`" in err


async def test_an_agent_that_is_away_is_asked_again(applied: Cli) -> None:
    sending = asyncio.ensure_future(applied("emit", "feed/0/trades", "a", "--timeout", "30"))
    await asyncio.sleep(0.3)
    async with command_agent(applied.rest, FEED) as agent:
        code, out, _ = await sending

    assert (code, len(agent.requests)) == (0, 1)
    assert out.endswith(f"emitted a {LOG}/0\n")


async def test_in_the_end_it_is_said_how_to_repeat_the_request(applied: Cli) -> None:
    mine = ("--timeout", "0.2", "--request-id", "mine")
    code, out, err = await applied("emit", "feed/0/trades", "a", "--delivery", "BEGIN", *mine)

    assert (code, out) == (4, "")
    assert err.startswith("streambroker: AgentAway: No agent of default/feed/0 has registered.")
    assert err.endswith("`--request-id mine` repeats this one.\n")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("feed/0/trdes", "a"), 1, "Did you mean 'feed/0/trades'?"),
        (("alerts-trades", "a"), 1, "it is an import"),
        (("import/alerts-trades", "a"), 2, "is not of kind export, which is required here"),
        (("feed/0",), 2, "TYPE"),
        (("feed/0", "a", "--delivery", "END"), 2, "is none of BEGIN"),
        (("feed/0", "a", "--at", "soon"), 2, "'soon' is not a time"),
        (("feed/0", "a", "--at", "1"), 1, "ManifestInvalid"),
        (("feed/0", "a", "{b: "), 1, "ManifestInvalid"),
        (("nobody/0", "a"), 1, "UnknownPE"),
        (("feed/0", "a", "--request-id", "a b"), 1, "RequestIdInvalid"),
    ],
)
async def test_what_cannot_be_is_refused_with_a_remedy(
    applied: Cli, words: tuple[str, ...], code: int, said: str
) -> None:
    async with command_agent(applied.rest, FEED) as agent:
        refused, out, err = await applied("emit", *words)

    assert (refused, out, agent.done) == (code, "", [])
    assert said in err
