"""The graph of jobs, the history and the checks of texts, which the page is made of."""

from __future__ import annotations

import asyncio
import logging
from importlib.metadata import version
from typing import Any
from urllib.parse import quote

import pytest

from streambroker_core import graph
from streambroker_operator.rest.console import graph as console_graph
from streambroker_operator.runtime.history import MAX_ENTRIES
from support.brokers.brokers import EXPORT, IMPORT, Rest, bearer

FEED, ALERTS = "/job/feed/pe/0/export/trades", "/job/alerts/pe/0/import/trades"
ROUTE = ("default/feed/0/trades", "default/alerts/0/trades")


async def test_a_graph_has_jobs_and_routes_with_filter_policy_and_state(pair: Rest) -> None:
    found = (await pair("GET", "/graph")).body

    assert [(node["id"], node["exports"], node["imports"]) for node in found["nodes"]] == [
        ("default/alerts", 0, 1),
        ("default/feed", 1, 0),
    ]
    assert found["nodes"][1]["application"] == "market.Feed"
    (edge,) = found["edges"]
    assert (edge["id"], edge["routes"], edge["state"]) == (
        "default/feed>default/alerts",
        1,
        "unknown",
    )
    (route,) = edge["list"]
    assert (route["export"], route["import"]) == ROUTE
    assert (route["filter"], route["policy"], route["rowsPerSecond"]) == (
        "price > 10.0",
        "wait",
        None,
    )
    assert found["total"] == found["selected"] == {"jobs": 2, "routes": 1}
    assert found["hidden"] == {"jobs": 0, "routes": 0}
    assert not found["folded"]


async def test_a_graph_has_the_rates_of_reports(pair: Rest) -> None:
    for delivered in (0, 5_000):
        reader = {"import": ROUTE[1], "reader": "r", "alive": True, "delivered": delivered}
        body = {"exports": {"trades": {"readers": [reader]}}, "imports": {}}
        await pair("PUT", "/job/feed/pe/0/report", body)
    found = (await pair("GET", "/graph")).body
    top = (await pair("GET", "/top")).body["routes"][0]

    assert found["edges"][0]["rowsPerSecond"] == top["rowsPerSecond"]
    assert found["edges"][0]["state"] == "idle"
    assert {node["state"] for node in found["nodes"]} == {"idle"}


async def test_a_change_of_the_board_is_in_the_next_graph(pair: Rest) -> None:
    before = await pair("GET", "/graph")
    same = await pair("GET", "/graph", If_None_Match=before.headers["ETag"])
    await pair("PUT", ALERTS + "/filter", {"filter": "price > 20.0"})
    after = (await pair("GET", "/graph")).body

    assert same.status == 304
    assert after["edges"][0]["list"][0]["filter"] == "price > 20.0"
    assert after["version"] != before.body["version"]


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the namespaces of the graphs that are built from now on."""
    namespaces: list[str] = []
    build_graph = graph.build_graph

    def counted(*arguments: Any) -> graph.JobGraph:
        namespaces.append(arguments[-1])
        return build_graph(*arguments)

    monkeypatch.setattr(graph, "build_graph", counted)
    return namespaces


async def test_a_graph_is_built_again_only_after_a_change(pair: Rest, built: list[str]) -> None:
    for query in ("", "?limit=1", "?focus=default/feed", "?namespace=*", "?namespace=*&match=feed"):
        assert (await pair("GET", f"/graph{query}")).status == 200
    assert built == ["default", "*"]
    await pair("PUT", ALERTS + "/filter", {"filter": "price > 20.0"})
    await pair("GET", "/graph")

    assert built == ["default", "*", "default"]


async def test_equal_requests_share_an_answer_for_a_moment(
    pair: Rest, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    answer = graph.answer

    def counted(jobs: graph.JobGraph, question: graph.Question) -> graph.Answer:
        asked.append(question.limit)
        return answer(jobs, question)

    monkeypatch.setattr(graph, "answer", counted)
    monkeypatch.setattr(console_graph, "ANSWER_TTL_S", 3600.0)
    for _ in range(3):
        await pair("GET", "/graph?limit=7")
    await pair("GET", "/graph?limit=8")
    assert asked == [7, 8]
    await pair("PUT", ALERTS + "/filter", {"filter": "price > 20.0"})
    changed = (await pair("GET", "/graph?limit=7")).body
    assert changed["edges"][0]["list"][0]["filter"] == "price > 20.0"

    monkeypatch.setattr(console_graph, "ANSWER_TTL_S", 0.0)
    await pair("GET", "/graph?limit=7")
    assert asked == [7, 8, 7, 7]


async def test_pages_that_ask_at_once_after_a_change_share_what_one_has_built(
    pair: Rest, built: list[str]
) -> None:
    for text in ("price > 20.0", "price > 30.0"):
        await pair("PUT", ALERTS + "/filter", {"filter": text})
        answers = await asyncio.gather(*(pair("GET", "/graph") for _ in range(50)))

        assert {one.status for one in answers} == {200}
        filters = {one.body["edges"][0]["list"][0]["filter"] for one in answers}
        assert filters == {text}
    assert len(built) == 2


async def test_a_graph_is_never_larger_than_its_limit(rest: Rest) -> None:
    for number in range(12):
        application = {"name": f"app{number % 3}"}
        path = f"/job/j{number}/pe/0"
        await rest("PUT", f"{path}/export/out", {**EXPORT, "application": application})
        await rest("PUT", f"{path}/import/in", {**IMPORT, "application": application})
    whole = (await rest("GET", "/graph?limit=2000")).body
    folded = (await rest("GET", "/graph?limit=20")).body
    opened = (await rest("GET", "/graph?limit=40&group=default/app1")).body
    tiny = (await rest("GET", "/graph?limit=1")).body

    assert whole["total"] == {"jobs": 12, "routes": 144}
    assert len(whole["nodes"]) == 12
    assert {node["id"] for node in folded["nodes"]} == {f"group:default/app{n}" for n in range(3)}
    assert sum(edge["routes"] for edge in folded["edges"]) == 144
    assert [node["kind"] for node in opened["nodes"]].count("job") == 4
    for found in (whole, folded, opened, tiny):
        assert len(found["nodes"]) + len(found["edges"]) <= found["limit"]
        shown = sum(node.get("jobs", 1) for node in found["nodes"])
        assert shown + found["hidden"]["jobs"] == found["selected"]["jobs"]
        routes = sum(edge["routes"] for edge in found["edges"])
        assert routes + found["hidden"]["routes"] == found["selected"]["routes"]


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("focus=default/nope", 404, "UnknownJob"),
        ("focus=nope", 400, "QueryInvalid"),
        ("focus=default/a/b", 400, "QueryInvalid"),
        ("hops=3", 400, "QueryInvalid"),
        ("limit=2001", 400, "QueryInvalid"),
        ("limit=0", 400, "QueryInvalid"),
        ("group=x", 400, "QueryInvalid"),
        ("match=" + quote('kind == "a" and b'), 422, "SubscriptionInvalid"),
        ("match=" + "a" * 3000, 400, "QueryInvalid"),
        ("match=" + quote("a=" + " " * 1500 + "x"), 200, None),
        ("match=" + quote("<script>alert(1)</script>"), 422, "SubscriptionInvalid"),
        ("nope=1", 400, "QueryInvalid"),
    ],
)
async def test_a_question_that_makes_no_sense_is_refused(
    pair: Rest, query: str, status: int, code: str | None
) -> None:
    answer = await pair("GET", f"/graph?{query}")

    assert (answer.status, answer.code) == (status, code)


async def test_a_reader_of_one_namespace_sees_no_other(guarded: Rest) -> None:
    own = await guarded("GET", "/graph", **bearer("job"))
    others = [
        (await guarded("GET", f"{path}namespace={namespace}", **bearer("job"))).status
        for path in ("/graph?", "/history?", "/names?")
        for namespace in ("lab", "*")
    ]
    focus = await guarded("GET", "/graph?focus=lab/feed", **bearer("job"))
    every = await guarded("GET", "/graph?namespace=*", **bearer("ops"))

    assert {node["namespace"] for node in own.body["nodes"]} == {"default"}
    assert own.body["total"] == {"jobs": 2, "routes": 1}
    assert others == [403] * 6
    assert (focus.status, focus.code) == (404, "UnknownJob")
    assert {node["namespace"] for node in every.body["nodes"]} == {"default", "lab"}


async def test_a_job_beyond_a_route_is_shown_by_name_alone(guarded: Rest) -> None:
    shared = {**EXPORT, "properties": {"kind": "trade", "secret": "x"}, "allowedNamespaces": ["*"]}
    await guarded("PUT", FEED + "?namespace=lab", shared, **bearer("ops"))
    found = (await guarded("GET", "/graph", **bearer("job"))).body
    (away,) = (node for node in found["nodes"] if node["namespace"] == "lab")
    search = await guarded("GET", "/graph?match=secret%3Dx", **bearer("job"))
    names = await guarded("GET", "/names", **bearer("job"))

    assert (away["id"], away["external"], away["application"]) == ("lab/feed", True, "")
    assert search.body["nodes"] == []
    assert "secret" not in {one["name"] for one in names.body["properties"]}


# ---- what the page needs first ---------------------------------------------------------------


async def test_the_page_learns_without_a_token_only_that_it_needs_one(guarded: Rest) -> None:
    answer = await guarded("GET", "/ui")

    assert answer.body == {
        "authentication": True,
        "peek": answer.body["peek"],
        "readOnly": False,
        "version": version("streambroker-operator"),
    }
    assert (await guarded("GET", "/ui", Authorization="Bearer wrong-0123456789ab")).status == 401


async def test_the_page_learns_with_a_token_which_namespaces_it_reads(guarded: Rest) -> None:
    ops, job = [(await guarded("GET", "/ui", **bearer(who))).body for who in ("ops", "job")]

    assert (ops["namespaces"], ops["allNamespaces"]) == (["default", "lab"], True)
    assert (job["namespaces"], job["allNamespaces"]) == (["default"], False)


async def test_a_broker_without_tokens_needs_none(pair: Rest) -> None:
    found = (await pair("GET", "/ui")).body

    assert not found["authentication"]
    assert found["namespaces"] == ["default"]


# ---- history -------------------------------------------------------------------------------------


async def test_the_history_has_what_changed_and_by_which_caller(guarded: Rest) -> None:
    await guarded("PUT", ALERTS + "/filter", {"filter": "price > 20.0"}, **bearer("job"))
    await guarded("PUT", ALERTS + "/filter", {"filter": "price >"}, **bearer("job"))
    await guarded("DELETE", ALERTS, **bearer("ops"))
    body = {"resources": [], "delete": [{"kind": "Export", "job": "feed", "port": "trades"}]}
    await guarded("POST", "/apply", body, **bearer("ops"))
    entries = (await guarded("GET", "/history", **bearer("job"))).body["entries"]
    alone = await guarded("GET", f"/history?import={ROUTE[1]}&limit=2", **bearer("job"))

    assert [(one["action"], one["principal"], one["port"]) for one in entries] == [
        ("deleted", "ops", ROUTE[0]),
        ("deleted", "ops", ROUTE[1]),
        ("changed", "job", ROUTE[1]),
        ("created", "ops", ROUTE[1]),
        ("created", "ops", ROUTE[0]),
    ]
    assert entries[2]["changes"] == [
        {"field": "filter", "old": "price > 10.0", "new": "price > 20.0"}
    ]
    assert alone.body["entries"] == entries[1:3]


async def test_the_history_of_a_port_is_bounded_and_its_values_are_cut(pair: Rest) -> None:
    for number in range(MAX_ENTRIES + 5):
        await pair("PUT", FEED + "/property/note", f"{number}" + "<script>" * 100)
    found = (await pair("GET", f"/history?export={ROUTE[0]}")).body["entries"]

    assert len(found) == MAX_ENTRIES
    assert f'"note":"{MAX_ENTRIES + 4}<script>' in found[0]["changes"][0]["new"]
    assert len(found[0]["changes"][0]["new"]) == 200


async def test_the_history_of_a_port_is_asked_for_in_its_namespace(guarded: Rest) -> None:
    answer = await guarded("GET", "/history?export=lab/feed/0/trades", **bearer("job"))
    both = await guarded("GET", f"/history?export={ROUTE[0]}&import={ROUTE[1]}", **bearer("job"))

    assert (answer.status, both.status) == (400, 400)


async def test_tokens_are_in_no_log_and_in_no_history(
    guarded: Rest, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    await guarded("PUT", ALERTS + "/filter", {"filter": "price > 1"}, **bearer("ops"))
    texts = [
        str((await guarded("GET", path, **bearer("ops"))).body)
        for path in ("/graph", "/history", "/ui", "/names")
    ]

    assert "PUT" in caplog.text
    assert bearer("ops")["Authorization"].removeprefix("Bearer ") not in "".join(
        [caplog.text, *texts]
    )


# ---- checks --------------------------------------------------------------------------------------

CHECKS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"text": 'kind=="a"'}, {"ok": True, "canonical": 'kind == "a"'}),
    ({"text": ""}, {"ok": True, "canonical": ""}),
    ({"kind": "filter", "text": "nope > 1"}, {"ok": True, "canonical": "nope > 1"}),
    (
        {"text": 'a == 1\n&& b === "x"'},
        {"line": 2, "column": 8, "endColumn": 9, "code": "SubscriptionInvalid"},
    ),
    ({"text": 'kind == "a" and b'}, {"line": 1, "column": 13, "endColumn": 16}),
    ({"text": "<script>"}, {"ok": False, "line": 1, "column": 1}),
    (
        {"kind": "filter", "text": "price > 1 && nope > 1", "export": ROUTE[0]},
        {"line": 1, "column": 14, "endColumn": 18, "code": "FilterInvalid"},
    ),
]


@pytest.mark.parametrize(("body", "expected"), CHECKS)
async def test_a_text_is_checked_and_a_mistake_has_its_place(
    pair: Rest, body: dict[str, Any], expected: dict[str, Any]
) -> None:
    answer = await pair("POST", "/check", body)

    assert answer.status == 200
    assert {name: answer.body[name] for name in expected} == expected


async def test_a_check_reads_only_exports_of_its_namespace(guarded: Rest) -> None:
    body = {"kind": "filter", "text": "price > 1", "export": "lab/feed/0/trades"}
    refused = await guarded("POST", "/check", body, **bearer("job"))
    missing = await guarded("POST", "/check", {**body, "export": ROUTE[1]}, **bearer("job"))
    unknown = await guarded("POST", "/check", body)

    assert (refused.status, missing.status, unknown.status) == (403, 404, 401)


async def test_names_are_those_of_the_exports(pair: Rest) -> None:
    await pair("PUT", "/job/other/pe/0/export/x", {"properties": {"kind": ["a", "b"], "on": True}})
    found = (await pair("GET", "/names")).body

    assert found == {
        "properties": [
            {"name": "kind", "values": ["a", "b", "trade"]},
            {"name": "level", "values": [5]},
            {"name": "on", "values": [True]},
        ],
        "columns": [{"name": "price", "type": "double"}],
    }
