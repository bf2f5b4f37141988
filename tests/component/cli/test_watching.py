"""``watch`` and ``get --watch``: what changes, as it changes, until interrupted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from streambroker_operator.broker import Broker
from support.brokers.brokers import EXPORT, IMPORT, Rest, running_broker
from support.brokers.commands import CliProcess

X = "/job/feed/pe/0/export/trades"
I = "/job/alerts/pe/0/import/trades"  # noqa: E741

Watching = Callable[..., CliProcess]


@pytest.fixture
async def rest(tmp_path: Path) -> AsyncIterator[Rest]:
    async with running_broker(tmp_path / "broker.db") as (_, rest):
        await rest("PUT", X, EXPORT)
        yield rest


@asynccontextmanager
async def running(url: str, *arguments: str) -> AsyncIterator[CliProcess]:
    process = CliProcess(url, *arguments)
    try:
        yield process
    finally:
        process.kill()


async def interrupted(process: CliProcess) -> tuple[int, str]:
    process.interrupt()
    return await process.end()


async def test_get_goes_on_with_what_changes_and_ends_with_130_when_interrupted(rest: Rest) -> None:
    async with running(rest.url, "get", "exports", "-w") as process:
        head = await process.line()
        first = await process.line()
        await rest("PUT", X + "/property/level", 7)
        changed = await process.line_with("MODIFIED")
        await rest("DELETE", X)
        deleted = await process.line_with("DELETED")
        ended = await interrupted(process)

    assert head.split()[:3] == ["EVENT", "NAME", "PORT"]
    assert first.split()[:3] == ["ADDED", "feed-0-trades", "feed/0/trades"]
    assert "level=7" in changed
    assert "feed/0/trades" in deleted
    assert ended == (130, "")


async def test_get_watches_only_what_is_named(rest: Rest) -> None:
    async with running(rest.url, "get", "export/feed-0-trades", "-w", "-o", "json") as process:
        first = json.loads(await process.line())
        await rest("PUT", "/job/feed/pe/0/export/other", EXPORT)
        await rest("PUT", X + "/property/level", 7)
        second = json.loads(await process.line())

    assert (first["type"], second["type"]) == ("ADDED", "MODIFIED")
    assert second["object"]["spec"]["port"] == "trades"
    assert second["object"]["spec"]["properties"]["level"] == 7


@pytest.mark.parametrize(
    "words",
    [
        ["watch", "nope/0/x"],
        ["watch", "routes", "nope/0/x"],
        ["get", "export/feed-0-trade", "-w"],
    ],
)
async def test_a_name_that_nothing_has_is_not_waited_for(rest: Rest, words: list[str]) -> None:
    async with running(rest.url, *words) as process:
        code, said = await process.end()

    assert code == 1
    assert "There is no " in said


async def test_what_is_no_longer_asked_for_goes_and_may_come_back(rest: Rest) -> None:
    words = ["get", "exports", "--match", "level == 7", "-w", "-o", "name"]
    async with running(rest.url, *words) as process:
        last = asyncio.ensure_future(process.line_with("-other added"))
        while not last.done():  # it says nothing when it begins
            await rest("PUT", "/job/feed/pe/0/export/other", {"properties": {"level": 7}})
            await rest("DELETE", "/job/feed/pe/0/export/other")
            await asyncio.wait([last], timeout=0.05)
        for level in (7, 8, 9, 7):
            await rest("PUT", X + "/property/level", level)
        lines = [await process.line_with("-trades") for _ in range(3)]

    assert [line.split()[-1] for line in lines] == ["added", "deleted", "added"]


@pytest.mark.parametrize("words", [["get", "-w", "-o", "name"], ["watch"]])
async def test_a_port_is_watched_in_the_namespace_that_its_name_says(
    rest: Rest, words: list[str]
) -> None:
    path = "/job/feed/pe/0/export/quotes?namespace=lab"
    await rest("PUT", path, EXPORT)
    async with running(rest.url, *words, "lab/feed/0/quotes") as process:
        line = asyncio.ensure_future(process.line())
        while not line.done():
            await rest("PATCH", path, {"allowFilter": False})
            await rest("PATCH", path, {"allowFilter": True})
            await asyncio.wait([line], timeout=0.05)

    assert "quotes" in line.result()


async def test_one_namespace_is_watched_or_all(rest: Rest) -> None:
    await rest("PUT", "/job/feed/pe/0/export/quotes?namespace=lab", EXPORT)
    async with running(rest.url, "get", "-w", "lab/feed/0/quotes", "feed/0/trades") as process:
        code, said = await process.end()

    assert code == 2
    assert "-A" in said


async def test_a_port_without_a_route_is_waited_for(rest: Rest) -> None:
    async with running(rest.url, "get", "routes", "feed/0/trades", "-w", "-o", "name") as process:
        await rest("PUT", I, IMPORT)
        line = await process.line()

    assert line == "route/default/feed/0/trades:default/alerts/0/trades added\n"


async def test_rows_of_several_kinds_say_which_they_are(rest: Rest) -> None:
    await rest("PUT", I, IMPORT)
    async with running(rest.url, "get", "exports,imports", "-w") as process:
        lines = [(await process.line()).split()[:3] for _ in range(4)]

    assert lines == [
        ["EVENT", "KIND", "NAME"],
        ["ADDED", "export", "feed-0-trades"],
        ["EVENT", "KIND", "NAME"],
        ["ADDED", "import", "alerts-0-trades"],
    ]


async def test_watch_tells_of_resources_and_routes_with_the_reason_of_a_cut(rest: Rest) -> None:
    async with running(rest.url, "get", "routes", "-w", "-o", "name") as process:
        await rest("PUT", I, IMPORT)
        added = await process.line()
        await rest("PUT", I + "/subscription", {"subscription": "level > 100"})
        cut = await process.line_with("deleted")

    route = "route/default/feed/0/trades:default/alerts/0/trades"
    assert [added, cut] == [f"{route} added\n", f"{route} deleted\n"]


async def test_a_route_that_goes_on_with_another_filter_is_shown_with_it(rest: Rest) -> None:
    async with (
        running(rest.url, "get", "routes", "-w") as table,
        running(rest.url, "watch") as lines,
        running(rest.url, "watch", "routes", "-o", "json") as programs,
    ):
        await reported(rest, lines, programs)
        await rest("PUT", I, IMPORT)
        await table.line_with("alerts/0/trades")
        await programs.line_with("alerts/0/trades")
        await rest("PUT", I + "/filter", "price > 20.0")
        # What was listed just after it came is told once more.
        row = await table.line_with("price > 20.0")
        line = await lines.line_with("MODIFIED  route")
        event = json.loads(await programs.line())

    assert row.split()[0] == "MODIFIED"
    assert line.rstrip().endswith(": filter price > 10.0 => price > 20.0")
    assert (event["event"], event["was"]) == ("route-changed", {"filter": "price > 10.0"})


async def two_lines(process: CliProcess) -> list[str]:
    return [await process.line(), await process.line()]


async def test_an_export_that_ends_is_shown_as_ended(rest: Rest) -> None:
    view = (await rest("GET", "/job/feed/pe/0")).headers["ETag"]
    async with running(rest.url, "watch", "exports") as process:
        said = asyncio.ensure_future(two_lines(process))
        while not said.done():  # it says nothing when it begins
            for reported in ("other", "trades"):
                await rest("GET", "/job/feed/pe/0", If_None_Match=view, Ended=reported)
            await asyncio.wait([said], timeout=0.05)
        lines = await said

    assert sorted(line.rstrip().endswith(", ended") for line in lines) == [False, True]


async def test_watch_shows_lines_for_people_and_json_for_programs(rest: Rest) -> None:
    async with (
        running(rest.url, "watch") as lines,
        running(rest.url, "watch", "routes", "-o", "json") as programs,
    ):
        await reported(rest, lines, programs)
        await rest("PUT", I, IMPORT)
        import_ = await lines.line_with("import  default/alerts/0/trades")
        added = await lines.line_with("route")
        await rest("PUT", I + "/subscription", {"subscription": "level > 100"})
        cut = await lines.line_with("DELETED   route")
        events = [json.loads(await programs.line()) for _ in range(2)]

    assert "ADDED     import  default/alerts/0/trades: " in import_
    assert import_.rstrip().endswith(", filter price > 10.0")
    assert "default/feed/0/trades -> default/alerts/0/trades" in added
    assert cut.rstrip().endswith(": SubscriptionFalse")
    assert [event["event"] for event in events] == ["route-added", "route-cut"]
    assert events[1]["reason"] == "SubscriptionFalse"


async def reported(rest: Rest, *processes: CliProcess) -> None:
    """Return once all of some watching commands show events: they say nothing when they begin."""
    lines = [asyncio.ensure_future(process.line()) for process in processes]
    while not all(line.done() for line in lines):
        await rest("PUT", "/job/alerts/pe/0/import/probe", IMPORT)
        await rest("DELETE", "/job/alerts/pe/0/import/probe")
        await asyncio.wait(lines, timeout=0.05)
    await rest("PUT", "/job/alerts/pe/0/import/last", IMPORT)
    for process in processes:
        while "/last" not in (line := await process.line()) or "route" not in line:
            assert line


async def test_watch_goes_on_when_the_broker_comes_back(tmp_path: Path) -> None:
    broker = Broker(db=tmp_path / "broker.db", port=0)
    await broker.start()
    port = int(broker.url.rpartition(":")[2])
    async with running(broker.url, "get", "pes", "-w", "-o", "name") as process:
        body = {"instance": "ab" * 8, "location": "grpc+tcp://127.0.0.1:1", "hint": None}
        async with aiohttp.ClientSession() as session:
            rest = Rest(broker.url, session)
            await rest("PUT", "/job/feed/pe/0", body)
            first = await process.line()
        await broker.stop()
        again = Broker(db=tmp_path / "broker.db", port=port)
        await again.start()
        try:
            # If the first list had the PE already, its event comes behind it as a change.
            relisted = await process.line_with("added")
        finally:
            await again.stop()

    assert (first, relisted) == ("pe/feed/0 added\n", "pe/feed/0 added\n")
