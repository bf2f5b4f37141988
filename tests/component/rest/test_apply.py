"""A set of changes is made at once or not at all, and is what was foretold."""

from __future__ import annotations

import asyncio
import random
import threading
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from streambroker_operator.rest import diagnose
from streambroker_operator.rest.guard.rate_limits import RateLimits
from streambroker_operator.rest.ports import apply as module
from streambroker_operator.storage.responses import MAX_BODY
from support.brokers.brokers import (
    EXPORT,
    EXPORTS,
    IMPORT,
    IMPORTS,
    Rest,
    received,
    running_broker,
    udp_ear,
)

X = "/job/feed/pe/0/export/trades"
I = "/job/alerts/pe/0/import/trades"  # noqa: E741
FEED = "/job/feed/pe/0"
EXPORT_KEY, IMPORT_KEY = "default/feed/0/trades", "default/alerts/0/trades"
RENAMED = {**EXPORT, "properties": {"type": "trade"}}
WANTS = {**IMPORT, "subscription": 'type == "trade"'}


def manifest(kind: str, job: str, port: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "streambroker.io/v1alpha1",
        "kind": kind,
        "metadata": {"name": f"{kind.lower()}-{job}-{port}"},
        "spec": {"job": job, "port": port, **spec},
    }


def removal(kind: str, job: str, port: str, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "job": job, "port": port, **more}


TOGETHER = {
    "resources": [
        manifest("Export", "feed", "trades", **RENAMED),
        manifest("Import", "alerts", "trades", **WANTS),
    ]
}


async def everything(rest: Rest) -> list[Any]:
    return [(await rest("GET", f"/{what}")).body for what in ("exports", "imports", "routes")]


async def routes_of(rest: Rest) -> dict[tuple[str, str], dict[str, Any]]:
    items = (await rest("GET", "/routes")).body["items"]
    return {(route["export"], route["import"]): route for route in items}


# ---- at once -----------------------------------------------------------------------------------


async def test_a_route_whose_two_ends_change_together_goes_on_and_is_hinted_once(
    pair: Rest,
) -> None:
    async with udp_ear() as (address, ear), aiohttp.ClientSession() as session:
        agent = {"instance": "0123456789abcdef", "location": "grpc+tcp://h:1", "hint": address}
        await pair("PUT", FEED, agent)
        async with session.get(f"{pair.url}/api/subscriptions/events") as events:
            reported = await pair("POST", "/whatif", TOGETHER)
            answer = await pair("POST", "/apply?maxRemoved=0", TOGETHER)
            await pair("PUT", "/job/last/pe/0/export/p", {"properties": {}})
            seen = await until(events, "default/last")
        await received(ear)
        after = [await pair("GET", path) for path in (X, I)]

    assert answer.status == 200
    assert {name: answer.body[name] for name in reported.body} == reported.body
    assert (answer.body["cut"], answer.body["kept"]) == ([], 1)
    assert [name for name in seen if name.startswith("route")] == []
    assert (seen.count("export"), seen.count("import")) == (2, 1)
    assert ear.empty()
    assert [one.body["metadata"]["generation"] for one in after] == [2, 2]


async def until(events: aiohttp.ClientResponse, mark: str) -> list[str]:
    """Return the names of events up to the one whose data has a mark."""
    names: list[str] = []
    async for raw in events.content:
        name, _, value = raw.decode().strip().partition(": ")
        if name == "event":
            names.append(value)
        elif name == "data" and f'"{mark.rpartition("/")[2]}"' in value:
            return names
    return names


async def test_what_each_resource_became_is_reported_in_order(pair: Rest) -> None:
    changes = {
        "resources": [
            manifest("Export", "feed", "trades", **EXPORT),
            manifest("Import", "alerts", "trades", **WANTS),
            manifest("Export", "new", "p", **RENAMED),
            manifest("Export", "new", "p", properties={}),
            manifest("Export", "new", "q", **RENAMED),
        ],
        "delete": [removal("Export", "new", "p"), removal("Export", "feed", "trades")],
    }
    answer = await pair("POST", "/apply", changes)
    results = answer.body["results"]
    exports = (await pair("GET", "/exports")).body

    assert [(one["port"], one["became"], one["generation"]) for one in results] == [
        (EXPORT_KEY, "changed", 1),
        (IMPORT_KEY, "changed", 2),
        ("default/new/0/p", "created", 1),
        ("default/new/0/p", "changed", 2),
        ("default/new/0/q", "created", 1),
        ("default/new/0/p", "deleted", 2),
        (EXPORT_KEY, "deleted", 1),
    ]
    versions = [one["version"] for one in results]
    assert versions == list(range(versions[0], versions[0] + 7))
    assert results[0]["name"] == "export-feed-trades"
    assert [item["metadata"]["uid"] for item in exports["items"]] == [results[4]["uid"]]
    assert max(exports["point"]) == versions[-1]
    again = await pair("POST", "/apply", {"resources": changes["resources"][4:]})
    assert [one["became"] for one in again.body["results"]] == ["unchanged"]
    assert again.body["results"][0]["version"] == versions[4]


async def test_what_was_applied_is_there_after_a_restart(tmp_path: Path) -> None:
    async with running_broker(tmp_path / "broker.db") as (_, rest):
        await rest("POST", "/apply", TOGETHER)
        before = await everything(rest)
    async with running_broker(tmp_path / "broker.db") as (_, rest):
        after = await everything(rest)

    assert [one["items"] for one in after] == [one["items"] for one in before]
    assert len(after[2]["items"]) == 1


@pytest.mark.parametrize("seed", range(4))
async def test_what_is_applied_is_what_was_predicted_or_nothing(rest: Rest, seed: int) -> None:
    dice, made = random.Random(seed), 0
    for _ in range(15):
        puts = []
        for _ in range(dice.randint(0, 3)):
            kind = dice.choice(("Export", "Import"))
            spec = dice.choice(EXPORTS if kind == "Export" else IMPORTS)
            puts.append(manifest(kind, dice.choice("ab"), dice.choice("pq"), **spec))
        deletes = [removal(dice.choice(("Export", "Import")), "a", "p")] * dice.randint(0, 1)
        changes = {"resources": puts, "delete": deletes}
        before, routes = await everything(rest), await routes_of(rest)
        reported = (await rest("POST", "/whatif", changes)).body
        answer = await rest("POST", "/apply", changes)
        if any(problem["refused"] for problem in reported["problems"]):
            assert answer.status in (409, 422)
            assert answer.body["problems"] == reported["problems"]
            assert await everything(rest) == before
            continue
        made += 1
        after = await routes_of(rest)
        assert {name: answer.body[name] for name in reported} == reported
        cut = {(one["export"], one["import"]) for one in reported["cut"]}
        added = {(one["export"], one["import"]) for one in reported["added"]}
        assert (cut, added) == (routes.keys() - after.keys(), after.keys() - routes.keys())
    assert made > 3


# ---- refused -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("resources", "deletes", "status", "codes"),
    [
        ([{}], [], 422, ["ManifestInvalid"]),
        ([manifest("Import", "a", "p", subscription="kind ==")], [], 422, ["SubscriptionInvalid"]),
        (
            [manifest("Import", "a", "p", **{**IMPORT, "filter": "x > 1"})],
            [],
            422,
            ["FilterInvalid"],
        ),
        ([], [removal("Export", "feed", "nope")], 409, ["UnknownPort"]),
        ([], [removal("Export", "feed", "trades", name="another")], 409, ["PortTaken"]),
        (
            [{**manifest("Export", "b", "p", **EXPORT), "metadata": {"name": "mine"}}, {}],
            [removal("Import", "b", "p")],
            409,
            ["NameTaken", "ManifestInvalid", "UnknownPort"],
        ),
    ],
)
async def test_one_that_is_refused_refuses_all_and_every_problem_is_reported(
    pair: Rest, resources: list[Any], deletes: list[Any], status: int, codes: list[str]
) -> None:
    named = {**manifest("Export", "named", "p", properties={}), "metadata": {"name": "mine"}}
    await pair("PUT", "/job/named/pe/0/export/p", named)
    before = await everything(pair)
    good = manifest("Export", "good", "p", **EXPORT)
    answer = await pair("POST", "/apply", {"resources": [good, *resources], "delete": deletes})
    problems = answer.body["problems"]

    assert (answer.status, answer.code) == (status, codes[0])
    assert [(one["index"], one["code"]) for one in problems] == list(enumerate(codes, 1))
    assert answer.body["detail"].endswith("Nothing was changed.")
    assert problems[0]["detail"] in answer.body["detail"]
    assert await everything(pair) == before


@pytest.mark.parametrize(("most", "status"), [("0", 409), ("1", 200), ("999999999", 200)])
async def test_more_routes_than_allowed_are_not_cut(pair: Rest, most: str, status: int) -> None:
    before = await everything(pair)
    gone = {"delete": [removal("Export", "feed", "trades")]}
    answer = await pair("POST", f"/apply?maxRemoved={most}", gone)

    assert answer.status == status
    if status == 409:
        assert answer.code == "WouldCut"
        assert "1 route would be cut, 0 may be" in answer.body["detail"]
        assert f"  - {EXPORT_KEY} -> {IMPORT_KEY}: ExportRemoved" in answer.body["text"]
        assert await everything(pair) == before


@pytest.mark.parametrize("most", ["-1", "1.5", "", "many", "1000000000"])
async def test_a_guard_that_is_no_number_is_refused(pair: Rest, most: str) -> None:
    answer = await pair("POST", f"/apply?maxRemoved={most}", {})

    assert (answer.status, answer.code) == (400, "QueryInvalid")


async def test_what_would_be_there_without_effect_is_no_refusal(rest: Rest) -> None:
    first = manifest("Export", "feed", "one", streamId="s")
    second = manifest("Export", "feed", "two", streamId="s")
    answer = await rest("POST", "/apply", {"resources": [first, second]})

    assert answer.status == 200
    assert [(one["code"], one["refused"]) for one in answer.body["problems"]] == [
        ("StreamIdTaken", False)
    ]


@pytest.mark.parametrize("limit", ["MAX_ROUTES", "MAX_FORECAST_S"])
async def test_too_much_at_once_is_refused_but_never_a_single_change(
    pair: Rest, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(diagnose if limit == "MAX_ROUTES" else module, limit, -1)
    before = await everything(pair)
    answer = await pair("POST", "/apply", TOGETHER)

    assert (answer.status, answer.code) == (422, "ForecastTooLarge")
    assert await everything(pair) == before
    single = await pair("POST", "/apply", {"resources": TOGETHER["resources"][:1]})
    assert single.status == 200


async def test_a_set_has_the_size_that_a_what_if_may_have(
    rest: Rest, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = [
        manifest("Export", f"job-{number}", "p", properties={"text": "x" * 200})
        for number in range(300)
    ]
    answer = await rest("POST", "/apply", {"resources": many}, Request_Id="many")
    long = await rest("POST", "/apply", {"resources": many * 4})
    monkeypatch.setattr("streambroker_operator.rest.app.MAX_PROPOSAL", 100_000)
    longer = await rest("POST", "/apply", data=b" " * 100_001, Request_Id="longer")

    assert (answer.status, len(answer.body["results"])) == (200, 300)
    assert (long.status, long.code) == (422, "ManifestInvalid")
    assert (longer.status, longer.code) == (413, "BodyTooLarge")


# ---- once --------------------------------------------------------------------------------------


async def test_a_set_that_is_sent_twice_under_one_name_is_made_once(pair: Rest) -> None:
    gone = {"delete": [removal("Export", "feed", "trades")]}
    first = await pair("POST", "/apply", gone, Request_Id="gone")
    await pair("PUT", X, EXPORT)
    again = await pair("POST", "/apply", gone, Request_Id="gone")

    assert (again.status, again.body) == (200, first.body)
    assert again.headers["Replayed"] == "true"
    assert (await pair("GET", X)).status == 200


async def test_a_set_whose_answer_was_too_long_to_keep_is_not_made_again(pair: Rest) -> None:
    many = [manifest("Export", f"job-{n}", "p", properties={}) for n in range(100)]
    changes = {"resources": many, "delete": [removal("Export", "feed", "trades")]}
    first = await pair("POST", "/apply", changes, Request_Id="long")
    before = await everything(pair)
    again = await pair("POST", "/apply", changes, Request_Id="long")

    assert len(first.body["results"]) == 101
    assert len(str(first.body)) > MAX_BODY
    assert (again.status, again.body, again.headers["Replayed"]) == (204, None, "true")
    assert await everything(pair) == before


async def test_a_refusal_that_was_too_long_to_keep_is_made_again(rest: Rest) -> None:
    changes = {"delete": [removal("Export", f"job-{n}", "p") for n in range(100)]}
    answers = [await rest("POST", "/apply", changes, Request_Id="no") for _ in range(2)]

    assert [answer.code for answer in answers] == ["UnknownPort", "UnknownPort"]
    assert len(answers[1].body["problems"]) == 100


async def test_a_set_costs_as_much_as_its_changes(tmp_path: Path) -> None:
    limits = RateLimits(writes_per_s=0.1, write_burst=5)
    sets = {"resources": [manifest("Export", "a", f"p{n}", properties={}) for n in range(5)]}
    async with running_broker(tmp_path / "broker.db", limits) as (_, rest):
        first = await rest("POST", "/apply", sets)
        second = await rest("PUT", X, EXPORT)
        read = await rest("GET", "/exports")

    assert (first.status, second.status, second.code) == (200, 429, "TooManyRequests")
    assert int(second.headers["Retry-After"]) == 10
    assert len(read.body["items"]) == 5


async def test_the_guard_sees_what_others_changed_meanwhile(
    pair: Rest, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(*arguments: Any) -> diagnose.Proposed:
        begun.set()
        assert go_on.wait(10.0)
        return diagnose.read_proposal(*arguments)

    monkeypatch.setattr(module, "read_proposal", slow)
    await pair("DELETE", X)
    change = {"resources": [manifest("Import", "alerts", "trades", **WANTS)]}
    asked = asyncio.create_task(pair("POST", "/apply?maxRemoved=0", change))
    await asyncio.to_thread(begun.wait, 10.0)
    assert (await pair("PUT", X, EXPORT)).status == 201
    go_on.set()

    answer = await asked
    assert (answer.status, answer.code) == (409, "WouldCut")
    assert [route["import"] for route in (await pair("GET", "/routes")).body["items"]] == [
        IMPORT_KEY
    ]
