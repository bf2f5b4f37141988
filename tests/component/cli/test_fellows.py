"""The shard agents of an agent, which hold rows of its exports, as people see them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from streambroker_operator.rest.agents import reports
from support.agents.agents import AgentProcess
from support.brokers.brokers import EXPORT, IMPORT, Rest, running_broker
from support.brokers.commands import Cli
from support.processes.ports import free_port
from support.processes.waiting import until_async

FEED = "/job/feed/pe/0"
HOME = "default/feed/0"
HERE = {"pe": "default/feed/1", "active": True, "away": None}
AWAY = {"pe": "default/feed/2", "active": True, "away": "the agent\nat 10.0.0.7 is\x1b[31m gone."}
SECONDS = 60.0


@pytest.fixture
async def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> AsyncIterator[Cli]:
    """A broker with one route, from feed to alerts."""
    async with running_broker(tmp_path / "broker.db") as (_, rest):
        await rest("PUT", FEED + "/export/trades", EXPORT)
        await rest("PUT", "/job/alerts/pe/0/import/trades", IMPORT)
        yield Cli(rest, capsys, tmp_path)


async def report(rest: Rest, *fellows: Any) -> None:
    answer = await rest("PUT", FEED + "/report", {"exports": {}, "fellows": list(fellows)})
    assert answer.status == 200, answer.body


async def column(cli: Cli) -> dict[str, str]:
    """Return what `get pes` says of fellows, by PE."""
    _, out, _ = await cli("get", "pes")
    head, *rows = out.splitlines()
    at = head.index("FELLOWS")
    return {row.split()[0]: row[at:].strip() for row in rows}


async def test_get_pes_names_fellows_and_which_of_them_are_away(cli: Cli) -> None:
    assert await column(cli) == {"alerts/0": "-", "feed/0": "-"}
    await report(cli.rest, HERE, AWAY)
    assert await column(cli) == {"alerts/0": "-", "feed/0": "1, 2 (away)"}
    _, out, _ = await cli("get", "pe/feed/0", "-o", "json")
    assert json.loads(out)["fellows"] == [HERE, AWAY]
    await report(cli.rest, HERE)
    assert (await column(cli))["feed/0"] == "1"
    await report(cli.rest)
    assert (await column(cli))["feed/0"] == "-"


async def test_describe_tells_why_a_fellow_is_away(cli: Cli) -> None:
    await report(cli.rest, HERE, AWAY)
    _, out, _ = await cli("describe", "pe/feed/0")
    assert "Shards:    1, 2 (away)" in out
    assert "Its shard agent default/feed/2 is away: the agent at 10.0.0.7 is�[31m gone." in out
    _, out, _ = await cli("describe", "pe/alerts/0")
    assert "Shards:    -" in out


async def test_top_names_the_fellows_of_those_that_export(cli: Cli) -> None:
    await report(cli.rest, HERE, AWAY)
    _, out, _ = await cli("top")
    assert out.splitlines()[-2:] == [
        "default/feed/2 is away: the agent at 10.0.0.7 is�[31m gone.",
        f"shard agents of {HOME}: 1, 2 (away)",
    ]
    _, out, _ = await cli("top", "-o", "json")
    assert json.loads(out)["fellows"] == {HOME: [HERE, AWAY]}
    reported = {
        n: (await cli.rest("GET", f"/top?namespace={n}")).body["fellows"] for n in ("*", "lab")
    }
    assert reported == {"*": {HOME: [HERE, AWAY]}, "lab": {}}


async def test_what_an_agent_said_of_its_fellows_long_ago_is_not_shown_by_top(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    await report(cli.rest, HERE)
    monkeypatch.setattr(reports, "STALE_S", -1.0)
    assert (await cli.rest("GET", "/top")).body["fellows"] == {}


async def test_the_fellows_of_a_pe_that_was_withdrawn_are_forgotten(cli: Cli) -> None:
    await report(cli.rest, HERE)
    for path in (FEED + "/export/trades", FEED):
        assert (await cli.rest("DELETE", path)).status in (200, 204)
    await cli.rest("PUT", FEED + "/export/trades", EXPORT)
    assert (await column(cli))["feed/0"] == "-"


@pytest.mark.parametrize(
    "fellow",
    [
        {**HERE, "pe": "default/other/1"},
        {**HERE, "pe": "lab/feed/1"},
        {**HERE, "pe": "feed"},
        {**HERE, "active": "yes"},
        {**HERE, "away": 5},
        {**HERE, "away": "x" * 1_001},
        {"active": True},
        "default/feed/1",
    ],
)
async def test_a_report_with_a_wrong_fellow_is_refused_and_changes_nothing(
    cli: Cli, fellow: Any
) -> None:
    await report(cli.rest, HERE)
    answer = await cli.rest("PUT", FEED + "/report", {"exports": {}, "fellows": [fellow]})
    assert (answer.status, answer.code) == (422, "ManifestInvalid")
    assert (await column(cli))["feed/0"] == "1"


@pytest.mark.slow
async def test_what_real_agents_say_of_their_fellows_reaches_get_pes(
    tmp_path: Path, cli: Cli
) -> None:
    home = AgentProcess(tmp_path / "feed", "feed", broker=cli.rest.url)
    fellow = AgentProcess(tmp_path / "feed-1", "feed", number=1, port=free_port())
    try:
        await asyncio.to_thread(started, home, fellow)
        await shown(cli, "1")
        await asyncio.to_thread(fellow.kill)
        await shown(cli, "1 (away)")
        await asyncio.to_thread(fellow.start)
        await shown(cli, "1")
    finally:
        home.kill()
        fellow.kill()


def started(home: AgentProcess, fellow: AgentProcess) -> None:
    """Start both; the home is told of its fellow as the driver does it."""
    fellow.start()
    home.start()
    reported = {"pe": fellow.pe, "location": fellow.location, "token": fellow.address["token"]}
    home.client.call("fellows", agents=[reported])


async def shown(cli: Cli, wanted: str) -> None:
    """Wait until `get pes` shows it; who watches `top` makes agents report each second."""

    async def is_shown() -> bool:
        await cli.rest("GET", "/top")
        return (await column(cli))["feed/0"] == wanted

    await until_async(is_shown, SECONDS, f"get pes shows {wanted}", pause_s=0.2)
