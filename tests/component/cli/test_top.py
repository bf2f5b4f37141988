"""What agents report, and ``top``, which shows it by route."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from streambroker_core.wire.reports.health import Health, HealthState, write_health
from streambroker_operator.cli.commands import top as top_command
from streambroker_operator.rest.agents import reports
from support.agents.agents import AgentProcess, leave_two_unread
from support.brokers.brokers import Rest, running_broker
from support.brokers.commands import ROUTE, Cli, CliTerminal

COLUMNS = [{"name": "n", "type": "bigint"}, {"name": "name", "type": "string"}]
EXPORT = {"properties": {"kind": "trade"}, "schema": COLUMNS}
IMPORT = {"subscription": 'kind == "trade"', "start": "earliest"}
FEED = "/job/feed/pe/0"
ALERTS = "default/alerts/0/trades"
RED = "\x1b[31m"


@dataclass
class Clock:
    """The clock of the reports, set by hand."""

    now: float = 1_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(reports, "time", clock)
    return clock


@pytest.fixture
async def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> AsyncIterator[Cli]:
    """A broker with one route, from feed to alerts."""
    async with running_broker(tmp_path / "broker.db") as (_, rest):
        await rest("PUT", FEED + "/export/trades", EXPORT)
        await rest("PUT", "/job/alerts/pe/0/import/trades", IMPORT)
        yield Cli(rest, capsys, tmp_path)


def reader(**figures: Any) -> dict[str, Any]:
    return {
        "import": ALERTS,
        "reader": "r1",
        "policy": "wait",
        "alive": True,
        "lagEpochs": 0,
        "lagBytes": 0,
        "delivered": 0,
        "filtered": 0,
        "droppedRows": 0,
        **figures,
    }


async def report(rest: Rest, *readers: dict[str, Any], waiting: bool = False, **more: Any) -> Any:
    port = {"waitingFor": [ALERTS] if waiting else [], "readers": list(readers), **more}
    answer = await rest("PUT", FEED + "/report", {"exports": {"trades": port}, "imports": {}})
    assert answer.status == 200
    return answer.body["again"]


async def top(rest: Rest, namespace: str = "default") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await rest("GET", f"/top?namespace={namespace}")).body["routes"]
    return found


async def test_a_route_that_nobody_reported_has_no_figures(cli: Cli) -> None:
    (route,) = await top(cli.rest)

    assert route == ROUTE


async def test_a_rate_is_of_two_reports_and_age_of_the_last(cli: Cli, clock: Clock) -> None:
    await report(cli.rest, reader(delivered=100, lagEpochs=3, lagBytes=4096, droppedRows=7))
    (first,) = await top(cli.rest)
    clock.now += 30
    await report(cli.rest, reader(delivered=400, lagEpochs=1, lagBytes=1024, droppedRows=9))
    clock.now += 2
    (second,) = await top(cli.rest)

    assert (first["rowsPerSecond"], first["lagEpochs"], first["age"]) == (None, 3, 0)
    assert (second["rowsPerSecond"], second["lagBytes"], second["droppedRows"]) == (10.0, 1024, 9)
    assert (second["age"], second["alive"]) == (2.0, True)


async def test_a_reader_that_is_new_or_counts_again_adds_nothing_to_the_rate(
    cli: Cli, clock: Clock
) -> None:
    await report(cli.rest, reader(delivered=100), reader(reader="r2", delivered=1_000))
    clock.now += 10
    await report(
        cli.rest,
        reader(delivered=150),
        reader(reader="r2", delivered=3),
        reader(reader="r3", delivered=10_000),
    )
    (route,) = await top(cli.rest)

    assert route["rowsPerSecond"] == 5.0


async def test_reports_at_almost_the_same_time_do_not_spoil_the_rate(
    cli: Cli, clock: Clock
) -> None:
    await report(cli.rest, reader(delivered=0))
    clock.now += 10
    await report(cli.rest, reader(delivered=1_000))
    clock.now += 0.01
    await report(cli.rest, reader(delivered=1_050))
    (route,) = await top(cli.rest)

    assert route["rowsPerSecond"] == pytest.approx(104.9, rel=0.01)


async def test_the_figures_of_a_route_are_those_of_its_slowest_reader(cli: Cli) -> None:
    await report(
        cli.rest,
        reader(lagEpochs=1, lagBytes=10, alive=False, droppedRows=1),
        reader(reader="r2", lagEpochs=5, lagBytes=50, droppedRows=2),
        waiting=True,
    )
    (route,) = await top(cli.rest)

    assert (route["lagEpochs"], route["lagBytes"], route["droppedRows"]) == (5, 50, 3)
    assert (route["alive"], route["waiting"]) == (True, True)


async def test_what_is_counted_is_added_up_and_what_lags_is_that_of_the_slowest(cli: Cli) -> None:
    counted = ("filtered", "lostRows", "duplicateRows", "blockedSeconds", "releasedPlans")
    behind = ("lagRows", "lagSeconds", "stalledSeconds", "congestion")
    await report(
        cli.rest,
        reader(**dict.fromkeys((*counted, *behind), 3)),
        reader(reader="r2", **dict.fromkeys((*counted, *behind), 4)),
    )
    (route,) = await top(cli.rest)

    shown = ("filteredRows", *counted[1:])
    assert [route[name] for name in shown] == [7] * 5
    assert [route[name] for name in behind] == [4] * 4


async def test_since_when_an_exporter_waits_is_shown_for_those_it_waits_for(cli: Cli) -> None:
    since = "2026-01-02T03:04:05Z"
    for waiting in ([ALERTS], []):
        port = {"waitingFor": waiting, "waitingSince": since, "readers": [reader()]}
        await cli.rest("PUT", FEED + "/report", {"exports": {"trades": port}})
        (route,) = await top(cli.rest)
        assert route["waitingSince"] == (since if waiting else None)


@pytest.mark.parametrize(
    ("readers", "said", "ended", "read", "state"),
    [
        ([{}], {}, None, None, "idle"),
        ([{}], {"ended": False}, False, False, "idle"),
        ([{"lagEpochs": 2}], {"ended": True}, True, False, "flows"),
        ([{}], {"ended": True}, True, True, "ended"),
        ([{"alive": False}], {"ended": True}, True, True, "ended"),
        ([{"lagEpochs": 2, "stalledSeconds": 90}], {}, None, None, "stalled"),
        ([{}, {"reader": "r2", "lagEpochs": 1}], {"ended": True}, True, False, "flows"),
        ([{"alive": False, "lagEpochs": 1}], {"ended": True}, True, False, "away"),
        ([], {"ended": True}, True, False, "away"),
    ],
)
async def test_an_end_is_shown_and_whether_the_importer_has_read_all(
    cli: Cli,
    readers: list[dict[str, Any]],
    said: dict[str, Any],
    ended: bool | None,
    read: bool | None,
    state: str,
) -> None:
    await report(cli.rest, *(reader(**one) for one in readers), **said)
    (route,) = await top(cli.rest)
    _, out, _ = await cli("top", "--once", "-o", "wide")
    head, row = (line.split("  ") for line in out.splitlines())

    assert (route["ended"], route["readToEnd"]) == (ended, read)
    assert row[0] == state
    assert out.splitlines()[1].split()[-3] == {None: "-", False: "no", True: "yes"}[ended]
    assert "ENDED" in [cell.strip() for cell in head]


async def test_agents_report_each_second_while_somebody_watches(cli: Cli, clock: Clock) -> None:
    before = await report(cli.rest)
    await top(cli.rest)
    clock.now += 9
    during = await report(cli.rest)
    clock.now += 2
    after = await report(cli.rest)

    assert (before, during, after) == (30, 1, 30)


async def test_reports_of_agents_that_are_gone_are_forgotten(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "MAX_PES", 1)
    await report(cli.rest, reader())
    await cli.rest("PUT", "/job/alerts/pe/0/report", {"exports": {}, "imports": {}})
    (route,) = await top(cli.rest)

    assert route["age"] is None


async def test_top_shows_the_routes_of_a_namespace_or_of_all(cli: Cli) -> None:
    assert await top(cli.rest, "lab") == []
    assert len(await top(cli.rest, "*")) == 1


@pytest.mark.parametrize(
    "body",
    [
        {"exports": {"trades": {"readers": [reader(delivered=-1)]}}},
        {"exports": {"trades": {"readers": [reader(delivered="5")]}}},
        {"exports": {"trades": {"readers": [reader(alive="yes")]}}},
        {"exports": {"trades": {"readers": [{"reader": "r1"}]}}},
        {"exports": {"trades": {"readers": [{**reader(), "import": "nowhere"}]}}},
        {"exports": {"trades": {"readers": {}}}},
        {"exports": {"trades": {"waitingFor": "x"}}},
        {"exports": {"trades": {"ended": "yes"}}},
        {"exports": []},
        [],
    ],
)
async def test_a_report_with_a_fault_is_refused_and_changes_nothing(cli: Cli, body: Any) -> None:
    await report(cli.rest, reader(delivered=5))
    answer = await cli.rest("PUT", FEED + "/report", body)
    (route,) = await top(cli.rest)

    assert (answer.status, answer.code) == (422, "ManifestInvalid")
    assert route["droppedRows"] == 0


async def test_an_unknown_pe_cannot_report(cli: Cli) -> None:
    answer = await cli.rest("PUT", "/job/nobody/pe/0/report", {"exports": {}, "imports": {}})

    assert (answer.status, answer.code) == (404, "UnknownPE")


# ---- the command -----------------------------------------------------------------------------


async def test_without_a_terminal_top_shows_its_table_once(cli: Cli, clock: Clock) -> None:
    behind = {"lagEpochs": 4, "lagRows": 1_500, "lagBytes": 3 << 20, "lagSeconds": 61}
    counted = {"blockedSeconds": 5, "filtered": 9, "droppedRows": 2, "lostRows": 1}
    await report(cli.rest, reader(delivered=0, sentBytes=0))
    clock.now += 10
    await report(
        cli.rest,
        reader(delivered=12_340, sentBytes=20_480, **behind, congestion=40, **counted),
        waiting=True,
    )
    code, out, err = await cli("top", "-o", "wide")
    head, row = (line.split() for line in out.splitlines())
    _, narrow, _ = await cli("top")
    short_head, short_row = (line.split("  ") for line in narrow.splitlines())

    assert (code, err) == (0, "")
    assert [cell.strip() for cell in short_head if cell] == [
        name for name in top_command._NARROW_COLUMNS if name not in ("STORE", "PROBLEM")
    ]
    assert [cell.strip() for cell in short_row if cell] == [
        *("waits", "feed/0/trades", "alerts/0/trades", "1,234", "1,500", "1m", "5s", "2", "1", "0s")
    ]
    assert head[:5] == ["CONGESTION", "FULL", "EXPORT", "IMPORT", "ROWS/S"]
    assert row == [
        *("waits", "40%", "default/feed/0/trades", ALERTS, "1,234", "2.0Ki"),
        *("4", "1,500", "3.0Mi", "1m", "5s", "0s", "9", "2", "1", "-", "0s", "wait"),
    ]
    assert "\x1b" not in out


async def test_top_shows_uploads_without_the_error_that_names_the_bucket(cli: Cli) -> None:
    uploads = {"bytes": 5 << 20, "seconds": 61}
    shown = []
    for error in ({}, {"error": "s3://rows: it fails."}):
        await report(cli.rest, reader(), storage={**uploads, **error})
        (route,) = await top(cli.rest)
        assert route["storage"] == {**uploads, "failing": bool(error), "superseded": False}
        _, out, _ = await cli("top")
        shown.append([line.split()[-2] for line in out.splitlines()])
    _, described, _ = await cli("describe", "route", "feed/0/trades")

    assert shown == [["STORE", "1m"], ["STORE", "fails"]]
    assert "  To store:    5.0Mi" in described


async def test_top_answers_json_for_programs_and_takes_ports(cli: Cli) -> None:
    _, out, _ = await cli("top", "-o", "json")
    _, mine, _ = await cli("top", "alerts/0/trades", "--once")
    code, other, err = await cli("top", "routes", "other/0/port", "--once")

    assert json.loads(out)["routes"][0]["import"] == ALERTS
    assert " alerts/0/trades " in mine
    assert (code, other, "UnknownPort" in err) == (1, "", True)


async def test_describe_names_the_importer_for_which_an_exporter_waits(cli: Cli) -> None:
    shown = []
    for waiting in (True, False):
        await report(cli.rest, reader(delivered=1), waiting=waiting)
        for port in ("import", "alerts/0/trades"), ("export", "feed/0/trades"):
            _, described, _ = await cli("describe", *port)
            shown.append(f"Export default/feed/0/trades waits for {ALERTS}, and" in described)

    assert shown == [True, True, False, False]


async def test_describe_says_first_that_nothing_reads_an_import_or_that_it_is_not_healthy(
    cli: Cli,
) -> None:
    shown = []
    for alive in (True, False):
        await report(cli.rest, reader(delivered=1, alive=alive), waiting=True)
        shown.append((await cli("describe", "export", "feed/0/trades"))[1])
    problem = HealthState(reason="DataLoss", message="It failed.")
    health = write_health(Health(problems={("Import", "trades"): problem}))
    body = {"exports": {}, "imports": {}, "health": health}
    assert (await cli.rest("PUT", "/job/alerts/pe/0/report", body)).status == 200
    shown.append((await cli("describe", "export", "feed/0/trades"))[1])

    reads, away, failed = shown
    start, slow = f"No query reads {ALERTS}. If its job", "increase the Export's buffer.maxBytes"
    assert start not in reads
    assert 0 < away.index(start) < away.index(slow)
    remedy = f"Import {ALERTS} is not healthy (DataLoss): `streambroker describe import {ALERTS}`"
    assert 0 < failed.index(remedy) < failed.index(start)


async def test_a_table_of_old_metrics_says_how_old_they_are(cli: Cli, clock: Clock) -> None:
    await report(cli.rest, reader(delivered=1))
    shown = []
    for seconds in (5, 20, 100):
        clock.now += seconds
        _, out, _ = await cli("top", "--once")
        shown += [line for line in out.splitlines() if "old; newer ones" in line]

    assert shown == ["Metrics are up to 25s old; newer ones come in some seconds."]


async def test_on_a_terminal_top_is_drawn_again_and_coloured_until_interrupted(cli: Cli) -> None:
    await report(cli.rest, reader(delivered=1), waiting=True)
    terminal = CliTerminal(cli.rest.url, "top", "--interval", "0.1", COLUMNS="200")
    try:
        first = await terminal.drawn("waits")
        await report(cli.rest, reader(delivered=1), waiting=False)
        await terminal.drawn("idle")
        code = await terminal.interrupted()
    finally:
        terminal.kill()

    assert "1 route, 1 waiting" in first
    assert RED in first
    assert code == 130


async def test_on_a_terminal_an_end_is_drawn_once_all_is_read(cli: Cli) -> None:
    await report(cli.rest, reader(lagEpochs=1), ended=True)
    terminal = CliTerminal(cli.rest.url, "top", "--interval", "0.1", COLUMNS="200")
    try:
        await terminal.drawn("flows")
        await report(cli.rest, reader(alive=False), ended=True)
        await terminal.drawn("\nended ")
    finally:
        terminal.kill()


async def test_no_color_keeps_colours_off_a_terminal_and_a_pipe_gets_none(cli: Cli) -> None:
    await report(cli.rest, reader(delivered=1), waiting=True)
    terminal = CliTerminal(cli.rest.url, "top", "--once", COLUMNS="200", NO_COLOR="1")
    try:
        bare = await terminal.drawn("waits")
    finally:
        terminal.kill()
    _, piped, _ = await cli("top", "--once")

    assert "\x1b" not in bare
    assert "\x1b" not in piped


# ---- a real agent ----------------------------------------------------------------------------


async def test_a_real_agent_reports_what_its_readers_have_and_still_have_to_read(
    tmp_path: Path, cli: Cli
) -> None:
    agents = [AgentProcess(tmp_path / job, job, broker=cli.rest.url) for job in ("feed", "alerts")]
    try:
        done = asyncio.ensure_future(asyncio.to_thread(publish_and_read, *agents))
        route = await watched(cli.rest, done)
    finally:
        for agent in agents:
            agent.kill()

    assert (route["export"], route["import"]) == ("default/feed/0/trades", ALERTS)
    assert (route["lagEpochs"], route["alive"], route["waiting"]) == (2, True, False)
    assert route["lagBytes"] > 0
    assert (route["lagRows"], route["congestion"]) == (20, 0)
    assert route["droppedRows"] == 0
    assert (route["ended"], route["readToEnd"]) == (True, False)


def publish_and_read(feed: AgentProcess, alerts: AgentProcess) -> None:
    """Publish three epochs and the end; read the first of them and leave two."""
    feed.start()
    alerts.start()
    publishing = leave_two_unread(feed, alerts)
    finish: dict[str, Any] = {"query": publishing.query, "run": publishing.run}
    feed.client.call("publisher.finish", export="trades", **finish)


async def watched(rest: Rest, done: asyncio.Future[None]) -> dict[str, Any]:
    """Return the route once the agent has reported; asking makes it report each second."""
    while True:
        (route,) = await top(rest)
        if done.done():
            await done
            if route["lagEpochs"] == 2 and route["ended"]:
                return route
        await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=0.1)
