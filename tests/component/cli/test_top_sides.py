"""Side inputs in ``streambroker top``: what waits for them, their size and version."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from streambroker_core.wire.encoding.canonical import JsonObject
from streambroker_core.wire.reports.side_status import SideStall, SideStatus, write_side
from streambroker_operator.cli.commands import top
from streambroker_operator.rest.agents import reports
from support.brokers.brokers import EXPORT, IMPORT, running_broker
from support.brokers.commands import Cli

FEED = "/job/feed/pe/0"
PE = "default/feed/0"


def sides(now: float) -> list[JsonObject]:
    since = int((now - 90) * 1e6)
    cause = "for side input `rates` (rows wait for the first\ndata)"
    rates = SideStatus(
        operator="join",
        input="rates",
        waiting_rows=1_200,
        waiting_since=since,
        entries=5,
        size=3 << 20,
        version="v3-0a1b",
        version_since=int((now - 7_200) * 1e6),
        stalls=(SideStall(cause=cause, rows=1_200, since=since),),
    )
    return [write_side(SideStatus(operator="join", input="main", late=4)), write_side(rates)]


@pytest.fixture
async def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> AsyncIterator[Cli]:
    """A broker with one route, from feed to alerts; the agent of feed has told of side inputs."""
    async with running_broker(tmp_path / "broker.db") as (_, rest):
        await rest("PUT", FEED + "/export/trades", EXPORT)
        await rest("PUT", "/job/alerts/pe/0/import/trades", IMPORT)
        body = {"exports": {}, "sides": sides(time.time())}
        answer = await rest("PUT", FEED + "/report", body)
        assert answer.status == 200, answer.body
        yield Cli(rest, capsys, tmp_path)


async def test_top_says_what_waits_for_a_side_input_and_since_when(cli: Cli) -> None:
    _, out, _ = await cli("top")
    head, rates, main, stall = out.splitlines()[-4:]
    assert " ".join(head.split()) == (
        "WAITING SINCE PE OPERATOR SIDE INPUT ENTRIES BYTES STAGED LATE REFUSED VERSION SET AGE"
    )
    assert " ".join(rates.split()).startswith(
        "1,200 1m default/feed/0 join rates 5 3.0Mi 0 0 0 v3-0a1b 2h "
    )
    assert " ".join(main.split()).startswith("0 - default/feed/0 join main 0 0 0 4 0 - - ")
    assert stall.startswith(
        "default/feed/0 join: 1,200 rows wait for side input `rates` (rows wait for the first data)"
        "; the first for 9"
    )


async def test_programs_get_all_that_was_set_and_other_namespaces_nothing(cli: Cli) -> None:
    _, out, _ = await cli("top", "-o", "json")
    _, as_yaml, _ = await cli("top", "-o", "yaml")
    assert yaml.safe_load(as_yaml).keys() == json.loads(out).keys()
    assert yaml.safe_load(as_yaml)["sides"] == json.loads(out)["sides"]
    first, second = json.loads(out)["sides"]
    assert (first["pe"], first["input"], second["waitingRows"]) == (PE, "main", 1_200)
    reported = {
        n: (await cli.rest("GET", f"/top?namespace={n}")).body["sides"] for n in ("*", "lab")
    }
    assert (len(reported["*"]), reported["lab"]) == (2, [])


async def test_only_the_agents_of_the_routes_that_are_named_are_shown(cli: Cli) -> None:
    await cli.rest("PUT", "/job/other/pe/0/export/trades", {**EXPORT, "properties": {"kind": "x"}})
    _, out, _ = await cli("top", "alerts/0/trades")
    assert "rates" in out
    _, out, _ = await cli("top", "other/0/trades")
    assert "rates" not in out


async def test_a_broken_report_is_refused_whole(cli: Cli) -> None:
    body = {"exports": {}, "sides": [{"operator": "join"}]}
    answer = await cli.rest("PUT", FEED + "/report", body)
    assert (answer.status, "sides[0].input" in str(answer.body)) == (422, True)
    _, out, _ = await cli("top", "-o", "json")
    assert len(json.loads(out)["sides"]) == 2


async def test_of_an_agent_that_reports_no_more_nothing_is_known(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "STALE_S", -1.0)
    _, out, _ = await cli("top", "-o", "json")
    assert json.loads(out)["sides"] == []


def test_a_terminal_keeps_two_thirds_for_routes() -> None:
    many = [{"pe": PE, "age": 1.0, **one} for one in sides(10_000.0) * 20]
    now = datetime.fromtimestamp(10_000.0, tz=UTC)
    lines = top.render_screen(top.TopSnapshot([], many), "http://b", "", 60, 30, now).splitlines()
    assert len(lines) <= 29
    assert sum("feed/0" in line for line in lines) == 9
    assert max(map(len, lines)) <= 60
