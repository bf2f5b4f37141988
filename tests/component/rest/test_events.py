"""Events: everything that changes, once, in order; resumed, or reset where that cannot be."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from streambroker_operator.broker import Broker
from streambroker_operator.rest import events, listen
from streambroker_operator.rest.guard.rate_limits import RateLimits
from streambroker_operator.runtime import change_log as changes
from support.brokers.brokers import EXPORT, IMPORT, Rest, running_broker

X = "/job/feed/pe/0/export/trades"
I = "/job/alerts/pe/0/import/trades"  # noqa: E741
AGENT = {"instance": "0123456789abcdef", "location": "grpc+tcp://127.0.0.1:4711", "hint": None}
ROUTE = {"export": "default/feed/0/trades", "import": "default/alerts/0/trades"}


class Stream:
    """One reader's events.

    Attributes:
        last: id of the last event.
        comments: how many comments came.
    """

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response
        self.last = ""
        self.comments = 0

    async def block(self) -> dict[str, str]:
        """Return the fields of the next block, comments left out; {} at the end."""
        fields: dict[str, str] = {}
        async for raw in self.response.content:
            line = raw.decode().rstrip("\n")
            if not line and fields:
                break
            name, _, value = line.partition(":")
            if name:
                fields[name] = value.strip()
            elif line:
                self.comments += 1
        self.last = fields.get("id", self.last)
        return fields

    async def event(self) -> tuple[str, Any]:
        """Return name and data of the next event."""
        fields = await asyncio.wait_for(self.block(), 10.0)
        return fields["event"], json.loads(fields["data"])

    async def events(self, count: int) -> list[tuple[str, Any]]:
        return [await self.event() for _ in range(count)]


@asynccontextmanager
async def following(
    rest: Rest, namespace: str = "default", last: str | None = None
) -> AsyncIterator[Stream]:
    """Follow a broker; the greeting of one who has no id yet is read."""
    headers = {} if last is None else {"Last-Event-ID": last}
    url = f"{rest.url}/api/subscriptions/events?namespace={namespace}"
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as response:
        assert response.status == 200
        assert response.content_type == "text/event-stream"
        stream = Stream(response)
        greeting = await stream.block()
        assert greeting["retry"] == "1000"
        yield stream


def kinds(events: list[tuple[str, Any]]) -> list[tuple[str, str]]:
    return [(name, data["type"]) for name, data in events]


async def test_an_export_that_ends_and_goes_on_is_reported_once_for_either(rest: Rest) -> None:
    await rest("PUT", X, EXPORT)
    view = (await rest("GET", "/job/feed/pe/0")).headers["ETag"]
    async with following(rest) as stream:
        polls: list[dict[str, Any]] = [{"Ended": "trades"}, {"Ended": "trades"}, {}]
        for said in polls:
            await rest("GET", "/job/feed/pe/0", If_None_Match=view, **said)
        await rest("PUT", I, IMPORT)
        reported = await stream.events(3)

    assert [name for name, _ in reported] == ["export", "export", "import"]
    assert [data["type"] for _, data in reported[:2]] == ["MODIFIED"] * 2
    assert [data["object"]["status"]["ended"] for _, data in reported[:2]] == [True, False]


async def test_uploads_are_reported_when_the_status_of_the_export_changes(rest: Rest) -> None:
    await rest("PUT", X, EXPORT)
    ports: list[dict[str, Any]] = [{}, *({"storage": {"seconds": n}} for n in (0, 59, 60, 599))]
    async with following(rest) as stream:
        for port in ports:
            await rest("PUT", "/job/feed/pe/0/report", {"exports": {"trades": port}})
        await rest("PUT", X, {**EXPORT, "durability": "stored"})
        await rest("PUT", "/job/feed/pe/0/report", {"exports": {"trades": {}}})
        reported = await stream.events(5)

    exports = [data["object"] for name, data in reported if name == "export"]
    assert [each["status"]["stored"]["reason"] for each in exports] == [
        *("UpToDate", "Behind", "Behind", "StorageMissing")
    ]
    assert kinds(reported)[3] == ("pe", "MODIFIED")  # its view has the durability


async def test_each_change_is_reported_with_all_that_came_of_it(rest: Rest) -> None:
    async with following(rest) as stream:
        await rest("PUT", X, EXPORT)
        exported = await stream.events(2)
        await rest("PUT", I, IMPORT)
        imported = await stream.events(5)
        await rest("PUT", f"{I}/filter", "price > 20.0")
        filtered = await stream.events(4)
        await rest("PUT", f"{X}/properties", {"kind": "quote"})
        cut = await stream.events(5)

    assert kinds(exported) == [("export", "ADDED"), ("pe", "ADDED")]
    assert exported[0][1]["object"]["spec"]["port"] == "trades"
    assert kinds(imported)[0] == ("import", "ADDED")
    assert imported[0][1]["object"]["status"]["matches"] == 1
    ((_, added),) = [event for event in imported if event[0] == "route-added"]
    assert {name: added["route"][name] for name in ROUTE} == ROUTE
    assert sorted(kinds(filtered)) == [
        ("import", "MODIFIED"),
        ("pe", "MODIFIED"),
        ("pe", "MODIFIED"),
        ("route-changed", "MODIFIED"),
    ]
    ((_, gone),) = [event for event in cut if event[0] == "route-cut"]
    assert (gone["reason"], gone["route"]["import"]) == ("SubscriptionFalse", ROUTE["import"])
    assert cut[0][1]["point"][0] == 4


async def test_an_event_shows_the_object_as_the_list_does(rest: Rest) -> None:
    async with following(rest) as stream:
        await rest("PUT", X, EXPORT)
        (_, exported), (_, pe) = await stream.events(2)

    assert [exported["object"]] == (await rest("GET", "/exports")).body["items"]
    assert [pe["object"]] == (await rest("GET", "/pes")).body["items"]


@pytest.mark.parametrize(
    ("path", "patch", "name", "before"),
    [
        (I, {"filter": "price > 20.0"}, "filter", "price > 10.0"),
        (X, {"congestionPolicy": "drop"}, "policy", "wait"),
    ],
)
async def test_a_route_that_goes_on_in_another_way_is_reported_as_the_list_shows_it(
    rest: Rest, path: str, patch: Any, name: str, before: str
) -> None:
    await rest("PUT", X, EXPORT)
    await rest("PUT", I, IMPORT)
    async with following(rest) as stream:
        await rest("PATCH", path, patch)
        await rest("PUT", X + "2", {"streamId": "s"})
        events = [await stream.event()]
        while events[-1][1].get("object", {}).get("spec", {}).get("port") != "trades2":
            events.append(await stream.event())

    reported = [(name, data) for name, data in events if name.startswith("route")]
    assert kinds(reported) == [("route-changed", "MODIFIED")]
    assert reported[0][1]["route"] == (await rest("GET", "/routes")).body["items"][0]
    assert reported[0][1]["was"] == {name: before}


async def test_a_status_that_another_resource_changed_is_reported(rest: Rest) -> None:
    await rest("PUT", X, EXPORT)
    async with following(rest) as stream:
        await rest("PUT", I, IMPORT)
        events = await stream.events(5)
    ((_, changed),) = [event for event in events if event[0] == "export"]

    assert (changed["type"], changed["object"]["status"]["matches"]) == ("MODIFIED", 1)
    assert [changed["object"]] == (await rest("GET", "/exports")).body["items"]


async def test_withdrawing_is_reported(rest: Rest) -> None:
    await rest("PUT", X, EXPORT)
    await rest("PUT", I, IMPORT)
    async with following(rest) as stream:
        await rest("DELETE", X)
        cut = await stream.events(5)
        await rest("DELETE", "/job/feed/pe/0")
        gone = await stream.event()

    assert kinds(cut)[0] == ("export", "DELETED")
    assert [data["reason"] for name, data in cut if name == "route-cut"] == ["ExportRemoved"]
    assert (gone[0], gone[1]["type"], gone[1]["object"]["job"]) == ("pe", "DELETED", "feed")


async def test_an_agent_is_reported_when_it_is_new_or_elsewhere_and_not_when_it_repeats(
    rest: Rest,
) -> None:
    async with following(rest) as stream:
        await rest("PUT", "/job/feed/pe/0", AGENT)
        await rest("PUT", "/job/feed/pe/0", AGENT)
        await rest("PUT", "/job/feed/pe/0", {**AGENT, "location": "grpc+tcp://127.0.0.1:1"})
        await rest("PUT", X, EXPORT)
        events = await stream.events(3)

    assert kinds(events) == [("pe", "ADDED"), ("pe", "MODIFIED"), ("export", "ADDED")]
    assert events[1][1]["object"]["location"] == "grpc+tcp://127.0.0.1:1"


async def test_what_changes_nothing_is_not_reported(rest: Rest) -> None:
    await rest("PUT", X, EXPORT)
    async with following(rest) as stream:
        await rest("PUT", X, EXPORT)
        await rest("PUT", X, {"streamId": "s", "properties": {}})
        await rest("DELETE", X + "2")
        await rest("PUT", X + "3", EXPORT)
        (name, data) = await stream.event()

    assert (name, data["object"]["spec"]["port"]) == ("export", "trades3")


async def test_namespaces_are_reported_apart(rest: Rest) -> None:
    open_ = {**EXPORT, "allowedNamespaces": ["lab"]}
    async with (
        following(rest) as mine,
        following(rest, "lab") as lab,
        following(rest, "*") as all_,
    ):
        await rest("PUT", X, open_)
        await rest("PUT", I + "?namespace=lab", IMPORT)
        everything = await all_.events(7)
        of_lab = [name for name, _ in await lab.events(3)]
        of_mine = [name for name, _ in await mine.events(5)]

    assert sorted(of_lab) == ["import", "pe", "route-added"]
    assert sorted(of_mine) == ["export", "export", "pe", "pe", "route-added"]
    assert len(everything) == 7


async def test_a_reader_goes_on_where_it_stopped(rest: Rest) -> None:
    async with following(rest) as stream:
        await rest("PUT", X, EXPORT)
        await stream.event()
        last = stream.last
        missed = [await stream.event()]
    await rest("PUT", I, IMPORT)
    async with following(rest, last=last) as stream:
        events = await stream.events(6)
        ids = stream.last

    assert events[:1] == missed
    assert ("import", "ADDED") in kinds(events)
    assert int(ids.rpartition(".")[2]) == int(last.rpartition(".")[2]) + 6


async def test_the_greeting_is_enough_to_go_on_from(rest: Rest) -> None:
    async with following(rest) as stream:
        last = stream.last
    await rest("PUT", X, EXPORT)
    async with following(rest, last=last) as stream:
        assert kinds([await stream.event()]) == [("export", "ADDED")]


@pytest.mark.parametrize("last", ["nonsense", "0.1", "", "{session}.99", "{session}.-1", "é"])
async def test_who_cannot_go_on_is_reset_and_gets_what_follows(rest: Rest, last: str) -> None:
    async with following(rest) as stream:
        session = stream.last.partition(".")[0]
    await rest("PUT", X, EXPORT)
    url = f"{rest.url}/api/subscriptions/events"
    headers = {"Last-Event-ID": last.replace("{session}", session)}
    async with aiohttp.ClientSession() as client, client.get(url, headers=headers) as response:
        stream = Stream(response)
        await stream.block()
        name, data = await stream.event()
        await rest("PUT", X + "2", EXPORT)
        following_ = await stream.event()

    assert (name, data["type"]) == ("reset", "RESET")
    assert following_[1]["object"]["spec"]["port"] == "trades2"


async def test_events_that_are_not_kept_any_more_reset_their_reader(
    rest: Rest, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with following(rest) as stream:
        last = stream.last
    monkeypatch.setattr(changes, "MAX_EVENTS", 3)
    await rest("PUT", X, EXPORT)
    async with following(rest, last=last) as stream:
        assert kinds([await stream.event()]) == [("export", "ADDED")]
    await rest("PUT", X + "2", EXPORT)
    async with following(rest, last=last) as stream:
        assert (await stream.event())[0] == "reset"


async def test_a_restarted_broker_resets_its_readers(tmp_path: Path) -> None:
    async with running_broker(tmp_path / "broker.db") as (_, client), following(client) as stream:
        last = stream.last
    async with (
        running_broker(tmp_path / "broker.db") as (_, client),
        following(client, last=last) as stream,
    ):
        assert (await stream.event())[0] == "reset"


async def test_what_a_broker_found_when_it_started_is_no_change(tmp_path: Path) -> None:
    async with running_broker(tmp_path / "broker.db") as (_, client):
        await client("PUT", X, EXPORT)
        await client("PUT", I, IMPORT)
    async with (
        running_broker(tmp_path / "broker.db") as (_, client),
        following(client) as stream,
    ):
        await client("PUT", f"{I}/filter", "price > 20.0")
        await client("PUT", X + "2", {"streamId": "s"})
        events = await stream.events(5)

    assert [name for name, _ in events] == ["import", "pe", "pe", "route-changed", "export"]


async def test_a_reader_without_news_gets_comments(tmp_path: Path) -> None:
    limits = RateLimits(keepalive_s=0.02)
    async with (
        running_broker(tmp_path / "broker.db", limits) as (_, client),
        following(client) as stream,
    ):
        waiting = asyncio.ensure_future(stream.event())
        while stream.comments < 3:
            await asyncio.wait([waiting], timeout=0.02)
        await client("PUT", X, EXPORT)

        assert (await waiting)[0] == "export"


async def test_there_are_only_so_many_readers(tmp_path: Path) -> None:
    async with running_broker(tmp_path / "broker.db", RateLimits(followers=1)) as (_, client):
        async with following(client):
            refused = await client("GET", "/events")

        assert (refused.status, refused.code) == (429, "TooManyRequests")
        assert int(refused.headers["Retry-After"]) >= 1


async def test_a_reader_who_left_is_forgotten(tmp_path: Path) -> None:
    limits = RateLimits(keepalive_s=0.01, followers=1)
    async with running_broker(tmp_path / "broker.db", limits) as (broker, client):
        async with following(client):
            assert broker.runtime.change_log.reader_count == 1

        while broker.runtime.change_log.reader_count:
            assert (await client("GET", "/pes")).status == 200


async def test_a_broker_that_stops_ends_event_streams_instead_of_waiting_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listen, "SHUTDOWN_S", 60.0)
    broker = Broker(db=tmp_path / "broker.db", port=0)
    await broker.start()
    async with aiohttp.ClientSession() as session, following(Rest(broker.url, session)) as stream:
        loop = asyncio.get_running_loop()
        before = loop.time()
        await broker.stop()

        assert loop.time() - before < listen.SHUTDOWN_S / 2
        assert await stream.block() == {}


def deaf_reader(url: str) -> socket.socket:
    """Follow a broker without ever reading what it says."""
    host, _, port = url.removeprefix("http://").partition(":")
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    found.connect((host, int(port)))
    found.sendall(b"GET /api/subscriptions/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return found


async def rest_of(connection: socket.socket) -> bytes:
    """Read a connection to its end."""
    connection.setblocking(False)
    loop, said = asyncio.get_running_loop(), bytearray()
    while piece := await loop.sock_recv(connection, 1 << 20):
        said += piece
    connection.close()
    return bytes(said)


async def test_a_reader_that_is_too_slow_is_reset_and_closed_and_delays_nobody(
    rest: Rest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "MAX_LAG", 40)
    deaf = deaf_reader(rest.url)
    large = {"properties": {f"p{n}": "x" * 1_000 for n in range(40)}}
    reported: list[str] = []
    async with following(rest) as stream:
        for number in range(250):
            answer = await rest("PUT", X, {**large, "allowFilter": number % 2 == 0})
            assert answer.status < 300
            reported += [name for name, _ in await stream.events(2)]
    said = await asyncio.wait_for(rest_of(deaf), 20.0)

    assert set(reported) == {"export", "pe"}
    assert b"event: reset" in said
    assert said.count(b"event: export") < 250


async def test_a_reader_at_pace_gets_all_that_one_change_brings(
    rest: Rest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "MAX_LAG", 40)
    body = {"apiVersion": "streambroker.io/v1alpha1", "kind": "Export"}
    jobs = [f"j{number}" for number in range(60)]
    specs = [{"job": job, "pe": 0, "port": "x", "properties": {"k": 1}} for job in jobs]
    documents = [{**body, "metadata": {"name": spec["job"]}, "spec": spec} for spec in specs]
    async with following(rest) as stream:
        for _ in range(2):
            await rest("PUT", X, EXPORT)
            await rest("DELETE", X)
            await stream.events(4)
        assert (await rest("POST", "/apply", {"resources": documents})).status == 200
        reported = await stream.events(2 * len(jobs))

    assert {name for name, _ in reported} == {"export", "pe"}
    assert [data["object"]["spec"]["job"] for name, data in reported if name == "export"] == jobs


async def test_a_reader_of_a_quiet_namespace_goes_on_though_others_were_busy(
    rest: Rest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "MAX_EVENTS", 20)
    monkeypatch.setattr(events, "MAX_SKIPPED", 5)
    async with following(rest, "lab") as stream:
        for _ in range(15):
            await rest("PUT", X, EXPORT)
            await rest("DELETE", X)
        while int(stream.last.partition(".")[2]) < 50:
            await asyncio.wait_for(stream.block(), 10.0)
    async with following(rest, "lab", last=stream.last) as stream:
        await rest("PUT", X + "?namespace=lab", EXPORT)

        assert kinds([await stream.event()]) == [("export", "ADDED")]
