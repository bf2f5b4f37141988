"""Explanations, findings and forecasts, from a real broker over a real socket."""

from __future__ import annotations

import asyncio
import random
import threading
from pathlib import Path
from typing import Any

import pytest

from streambroker_core.diagnose import Forecast, forecast
from streambroker_operator.rest import diagnose
from streambroker_operator.rest.guard.rate_limits import RateLimits
from support.brokers.brokers import EXPORT, EXPORTS, IMPORT, IMPORTS, Rest, bearer, running_broker

X = "/job/feed/pe/0/export/trades"
I = "/job/alerts/pe/0/import/trades"  # noqa: E741
EXPORT_KEY = "default/feed/0/trades"
IMPORT_KEY = "default/alerts/0/trades"


@pytest.fixture
async def pair(pair: Rest) -> Rest:
    """The same with one export more, which the import does not match."""
    other = {**EXPORT, "properties": {"kind": "quote"}}
    assert (await pair("PUT", "/job/feed/pe/0/export/quotes", other)).status == 201
    return pair


def manifest(kind: str, job: str, port: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "streambroker.io/v1alpha1",
        "kind": kind,
        "metadata": {},
        "spec": {"job": job, "port": port, **spec},
    }


# ---- explain -----------------------------------------------------------------------------------


async def test_an_import_is_explained_against_all_exports_the_nearest_first(pair: Rest) -> None:
    answer = await pair("GET", f"/explain?import={IMPORT_KEY}")

    assert answer.status == 200
    body = answer.body
    assert (body["import"], body["export"]) == (IMPORT_KEY, None)
    assert (body["total"], body["matched"]) == (2, 1)
    assert [(p["export"], p["matched"], p["distance"]) for p in body["pairs"]] == [
        (EXPORT_KEY, True, 0),
        ("default/feed/0/quotes", False, 1),
    ]
    quotes = body["pairs"][1]
    assert quotes["reason"] == "SubscriptionFalse"
    assert quotes["message"] == "needs kind = trade, has quote"
    assert quotes["predicates"] == [
        {"text": 'kind == "trade"', "value": False, "why": '`kind` is "quote"'}
    ]
    assert quotes["misses"] == [
        [{"text": 'kind == "trade"', "wanted": True, "why": '`kind` is "quote"'}]
    ]
    assert body["text"].splitlines()[2] == (
        "  1 change    default/feed/0/quotes  needs kind = trade, has quote"
    )


async def test_an_export_is_explained_against_all_imports(pair: Rest) -> None:
    answer = await pair("GET", f"/explain?export={EXPORT_KEY}&limit=1")

    assert (answer.body["import"], answer.body["export"]) == (None, EXPORT_KEY)
    assert [(p["import"], p["matched"]) for p in answer.body["pairs"]] == [(IMPORT_KEY, True)]


async def test_a_pair_is_explained_with_all_that_stands_in_the_way(pair: Rest) -> None:
    await pair("PUT", X, {**EXPORT, "application": {"scope": "Lab"}, "allowFilter": False})
    answer = await pair("GET", f"/explain?export={EXPORT_KEY}&import={IMPORT_KEY}")

    assert (answer.body["total"], answer.body["matched"]) == (1, 0)
    (found,) = answer.body["pairs"]
    assert [one["reason"] for one in found["obstacles"]] == ["ScopeDiffers", "FilterForbidden"]
    assert (found["reason"], found["distance"]) == ("ScopeDiffers", 2)
    assert answer.body["text"].splitlines()[:2] == [
        f"{EXPORT_KEY} does not feed {IMPORT_KEY} (2 changes away)",
        "  ScopeDiffers: needs the scope Default, has Lab",
    ]


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("", 400, "QueryInvalid"),
        ("?import=alerts", 400, "QueryInvalid"),
        (f"?import={IMPORT_KEY}&limit=501", 400, "QueryInvalid"),
        (f"?import={IMPORT_KEY}&limit=0", 400, "QueryInvalid"),
        ("?import=default/nobody/0/p", 404, "UnknownPort"),
        (f"?import={IMPORT_KEY}&export=default/nobody/0/p", 404, "UnknownPort"),
    ],
)
async def test_what_cannot_be_explained_is_a_problem(
    pair: Rest, query: str, status: int, code: str
) -> None:
    answer = await pair("GET", f"/explain{query}")

    assert (answer.status, answer.code) == (status, code)


async def test_an_explanation_carries_what_looks_wrong_with_the_import(pair: Rest) -> None:
    await pair("PUT", I, {**IMPORT, "subscription": 'knid == "trade"'})
    answer = await pair("GET", f"/explain?import={IMPORT_KEY}")

    assert answer.body["matched"] == 0
    assert answer.body["lint"] == [
        {
            "code": "PropertyNeverOffered",
            "message": '`knid == "trade"` is true of no export: no export offers `knid`; '
            "did you mean `kind`?",
        }
    ]
    assert answer.body["text"].splitlines()[-1].startswith("! PropertyNeverOffered: ")


# ---- lint --------------------------------------------------------------------------------------


async def test_findings_are_those_of_a_namespace_or_of_all(pair: Rest) -> None:
    await pair("PUT", X + "?namespace=lab", {"properties": {"kind": 5}})
    mine = await pair("GET", "/lint")
    all_ = await pair("GET", "/lint?namespace=*")
    first = await pair("GET", "/lint?namespace=*&limit=1")

    assert [(one["code"], one["resource"]) for one in mine.body["findings"]] == [
        ("PropertyTypesDiffer", None),
        ("NobodyImports", "export default/feed/0/quotes"),
    ]
    assert [one["resource"] for one in all_.body["findings"]][2:] == ["export lab/feed/0/trades"]
    assert (first.body["total"], len(first.body["findings"])) == (3, 1)
    assert first.body["text"].splitlines()[-1] == "3 findings, 1 of them shown"


# ---- what-if -----------------------------------------------------------------------------------


async def test_a_what_if_tells_what_a_change_would_cut_and_changes_nothing(pair: Rest) -> None:
    before = (await pair("GET", "/routes")).body
    answer = await pair(
        "POST",
        "/whatif",
        {
            "resources": [
                {"kind": "Nonsense"},
                manifest("Export", "feed", "trades", properties={"kind": "quote"}),
                manifest("Import", "audit", "quotes", subscription='kind == "quote"'),
            ],
            "delete": [{"kind": "Import", "job": "nobody", "port": "p"}],
        },
    )

    assert answer.status == 200
    assert [(r["export"], r["import"]) for r in answer.body["added"]] == [
        ("default/feed/0/quotes", "default/audit/0/quotes"),
        (EXPORT_KEY, "default/audit/0/quotes"),
    ]
    assert [(r["import"], r["reason"]) for r in answer.body["cut"]] == [
        (IMPORT_KEY, "SubscriptionFalse")
    ]
    assert [(p["index"], p["code"]) for p in answer.body["problems"]] == [
        (0, "ManifestInvalid"),
        (3, "UnknownPort"),
    ]
    assert [p["change"] for p in answer.body["problems"]] == [
        "resource 0",
        "delete import default/nobody/0/p",
    ]
    assert answer.body["text"].splitlines()[-1] == "routes: 2 added, 1 cut, 0 kept, 0 changed"
    assert (await pair("GET", "/routes")).body == before


async def test_a_what_if_shows_what_a_changed_route_was(pair: Rest) -> None:
    wants = {**IMPORT, "filter": "price>20.0", "onCongestion": "drop"}
    answer = await pair(
        "POST", "/whatif", {"resources": [manifest("Import", "alerts", "trades", **wants)]}
    )

    assert answer.body["kept"] == 0
    assert answer.body["changed"] == [
        {
            "export": EXPORT_KEY,
            "import": IMPORT_KEY,
            "filter": "price > 20.0",
            "policy": "drop",
            "was": {"filter": "price > 10.0", "policy": "wait"},
        }
    ]


async def test_a_what_if_may_be_larger_than_other_requests(rest: Rest) -> None:
    many = [
        manifest("Export", f"job-{number}", "p", properties={"text": "x" * 200})
        for number in range(300)
    ]
    answer = await rest("POST", "/whatif", {"resources": many})

    assert (answer.status, answer.body["problems"]) == (200, [])
    assert (await rest("GET", "/exports")).body["items"] == []


async def test_a_what_if_keeps_nobody_waiting_and_is_of_one_moment(
    pair: Rest, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, answered = threading.Event(), threading.Event()

    def slow(*arguments: Any, **named: Any) -> Forecast:
        begun.set()
        assert answered.wait(60.0)
        return forecast(*arguments, **named)

    monkeypatch.setattr("streambroker_operator.rest.diagnose.diagnose.forecast", slow)
    gone = {"delete": [{"kind": "Export", "job": "feed", "port": "trades"}]}
    asked = asyncio.create_task(pair("POST", "/whatif", gone))
    await asyncio.to_thread(begun.wait, 60.0)
    assert (await pair("GET", "/job/alerts/pe/0")).status == 200
    assert (await pair("DELETE", I)).status == 200
    assert not asked.done()
    answered.set()

    reported = await asked
    assert (reported.status, [route["import"] for route in reported.body["cut"]]) == (
        200,
        [IMPORT_KEY],
    )
    again = await pair("POST", "/whatif", gone)
    assert (again.status, again.body["cut"]) == (200, [])


async def test_what_ifs_have_a_limit_of_their_own(tmp_path: Path) -> None:
    few = RateLimits(forecasts_per_s=0.01, forecast_burst=2)
    async with running_broker(tmp_path / "broker.db", few) as (_, rest):
        answers = [await rest("POST", "/whatif", {"delete": []}) for _ in range(3)]
        others = [await rest("GET", path) for path in ("/routes", "/lint", "/exports")]

    assert [answer.status for answer in answers] == [200, 200, 429]
    assert answers[2].code == "TooManyRequests"
    assert 1 <= int(answers[2].headers["Retry-After"]) <= 100
    assert [answer.status for answer in others] == [200, 200, 200]


async def test_what_ifs_of_one_principal_are_not_counted_for_another(guarded: Rest) -> None:
    asked: list[int] = []
    # A slow machine is given more of them meanwhile, but never so many.
    while 429 not in asked and len(asked) < 100:
        answer = await guarded("POST", "/whatif", {"delete": []}, **bearer("job"))
        asked.append(answer.status)
    other = await guarded("POST", "/whatif", {"delete": []}, **bearer("ops"))

    assert asked[:20] == [200] * 20
    assert (asked[-1], other.status) == (429, 200)


@pytest.mark.parametrize(
    ("limit", "reason"), [("MAX_ROUTES", "affect more than"), ("MAX_FORECAST_S", "take longer")]
)
async def test_a_what_if_of_too_much_is_ended(
    pair: Rest, monkeypatch: pytest.MonkeyPatch, limit: str, reason: str
) -> None:
    monkeypatch.setattr(diagnose, limit, -1)
    answer = await pair("POST", "/whatif", {"resources": [manifest("Import", "a", "p", **IMPORT)]})

    assert (answer.status, answer.code) == (422, "ForecastTooLarge")
    assert reason in answer.body["detail"]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ([], 422, "ManifestInvalid"),
        ({"resource": []}, 422, "ManifestInvalid"),
        ({"resources": {}}, 422, "ManifestInvalid"),
        ({"delete": [{"kind": "Import", "job": "NO", "port": "p"}]}, 422, "ManifestInvalid"),
        ({"delete": [{"job": "a", "port": "p"}]}, 422, "ManifestInvalid"),
        ({"delete": [{"kind": "Pod", "job": "a", "port": "p"}]}, 422, "ManifestInvalid"),
        ({"resources": [{}] * 1001}, 422, "ManifestInvalid"),
    ],
)
async def test_a_what_if_that_cannot_be_read_is_a_problem(
    rest: Rest, body: Any, status: int, code: str
) -> None:
    answer = await rest("POST", "/whatif", body)

    assert (answer.status, answer.code) == (status, code)


async def test_a_name_that_another_port_has_is_refused_as_predicted(pair: Rest) -> None:
    named = manifest("Export", "feed", "trades", **EXPORT)
    named["metadata"]["name"] = "mine"
    assert (await pair("PUT", X, named)).status == 200
    again = {**named, "spec": {**named["spec"], "port": "other"}}
    before = (await pair("GET", "/routes")).body["items"]
    reported = (await pair("POST", "/whatif", {"resources": [again]})).body
    answer = await pair("PUT", "/job/feed/pe/0/export/other", again)

    assert [p["code"] for p in reported["problems"]] == ["NameTaken"]
    assert (answer.status, answer.code) == (409, "NameTaken")
    assert (await pair("GET", "/routes")).body["items"] == before


def drawn(dice: random.Random) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return resources to put, and ports to delete."""
    puts = []
    for _ in range(dice.randint(0, 4)):
        kind = dice.choice(("Export", "Import"))
        spec = dice.choice(EXPORTS if kind == "Export" else IMPORTS)
        puts.append(manifest(kind, dice.choice("ab"), dice.choice("pqr"), **spec))
    deletes = [
        {"kind": dice.choice(("Export", "Import")), "job": dice.choice("ab"), "port": port}
        for port in dice.sample("pqr", dice.randint(0, 2))
    ]
    return puts, deletes


async def routes_of(rest: Rest) -> dict[tuple[str, str], dict[str, Any]]:
    items = (await rest("GET", "/routes")).body["items"]
    return {(route["export"], route["import"]): route for route in items}


def place(kind: str, spec: dict[str, Any]) -> str:
    return f"/job/{spec['job']}/pe/0/{kind.lower()}/{spec['port']}"


@pytest.mark.parametrize("seed", range(4))
async def test_a_what_if_is_what_applying_the_same_does(rest: Rest, seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(12):
        puts, deletes = drawn(dice)
        reported = (await rest("POST", "/whatif", {"resources": puts, "delete": deletes})).body
        before = await routes_of(rest)
        asked = [("PUT", place(m["kind"], m["spec"]), m) for m in puts]
        asked += [("DELETE", place(d["kind"], d), {}) for d in deletes]
        answers = [await rest(*one) for one in asked]
        after = await routes_of(rest)

        refused = [n for n, answer in enumerate(answers) if answer.status >= 400]
        assert [p["index"] for p in reported["problems"] if p["refused"]] == refused
        added = [route for pair, route in after.items() if pair not in before]
        assert reported["added"] == added
        assert [(r["export"], r["import"]) for r in reported["cut"]] == [
            pair for pair in before if pair not in after
        ]
        kept = [pair for pair, route in after.items() if before.get(pair) == route]
        assert reported["kept"] == len(kept)
        assert len(reported["changed"]) == len(after) - len(added) - len(kept)


# ---- whose namespaces --------------------------------------------------------------------------


@pytest.mark.parametrize(("who", "total"), [("ops", 2), ("job", 1)])
async def test_nobody_is_informed_of_namespaces_that_they_do_not_read(
    guarded: Rest, who: str, total: int
) -> None:
    explained = await guarded("GET", f"/explain?import={IMPORT_KEY}", **bearer(who))
    found = await guarded("GET", "/lint", **bearer(who))

    assert explained.body["total"] == total
    assert ("lab/" in explained.body["text"]) == (who == "ops")
    assert found.status == 200


SECRET = {**EXPORT, "application": {"scope": "Vault"}, "allowedNamespaces": ["default"]}
VAULT = {"subscription": 'kind == "trade"', "applicationScope": "Vault"}
V = "/job/alerts/pe/0/import/vault"
HIDDEN = "/job/hidden/pe/0/export/trades?namespace=lab"


async def test_a_job_is_informed_of_the_exports_that_others_let_it_import(guarded: Rest) -> None:
    await guarded("PUT", X + "?namespace=lab", SECRET, **bearer("ops"))
    await guarded("PUT", HIDDEN, {**SECRET, "allowedNamespaces": []}, **bearer("ops"))
    put = await guarded("PUT", V, VAULT, **bearer("job"))
    assert [route["export"] for route in put.body["routes"]["added"]] == ["lab/feed/0/trades"]

    key = "default/alerts/0/vault"
    reported = await guarded("GET", f"/explain?import={key}", **bearer("job"))
    ports = f"/explain?import={key}&export=lab"
    pair = await guarded("GET", f"{ports}/feed/0/trades", **bearer("job"))
    found = await guarded("GET", "/lint", **bearer("job"))

    assert (reported.body["matched"], reported.body["total"], reported.body["lint"]) == (1, 2, [])
    assert pair.body["pairs"][0]["matched"]
    about = [one["resource"] for one in found.body["findings"]]
    assert f"import {key}" not in about
    assert not [one for one in about if one is None or "lab/" in one]
    for hidden in ("/hidden/0/trades", "/nobody/0/trades"):
        answer = await guarded("GET", ports + hidden, **bearer("job"))
        assert (answer.status, answer.code) == (403, "NotYours")
    alone = await guarded("GET", "/explain?export=lab/feed/0/trades", **bearer("job"))
    assert (alone.status, alone.code) == (403, "NotYours")


async def test_a_job_is_informed_of_the_imports_of_others_that_its_exports_feed(
    guarded: Rest,
) -> None:
    mine = "/job/alerts/pe/0/export/out"
    given = {"properties": {"kind": "alert"}, "allowedNamespaces": ["lab"]}
    wants = {"subscription": 'kind == "alert"'}
    assert (await guarded("PUT", mine, given, **bearer("job"))).status == 201
    for job, subscription in (("fed", wants), ("not", IMPORT)):
        path = f"/job/{job}/pe/0/import/in?namespace=lab"
        assert (await guarded("PUT", path, subscription, **bearer("ops"))).status == 201

    ask = "/explain?export=default/alerts/0/out"
    reported = await guarded("GET", ask, **bearer("job"))
    pair = await guarded("GET", f"{ask}&import=lab/fed/0/in", **bearer("job"))
    other = await guarded("GET", f"{ask}&import=lab/not/0/in", **bearer("job"))
    found = await guarded("GET", "/lint", **bearer("job"))

    assert [p["import"] for p in reported.body["pairs"] if p["matched"]] == ["lab/fed/0/in"]
    assert "lab/not" not in reported.body["text"]
    assert pair.body["matched"] == 1
    assert (other.status, other.code) == (403, "NotYours")
    assert "export default/alerts/0/out" not in [one["resource"] for one in found.body["findings"]]


async def test_nobody_is_informed_of_all_exports_from_those_that_it_reads(guarded: Rest) -> None:
    await guarded("DELETE", X, **bearer("ops"))
    await guarded("PUT", "/job/other/pe/0/export/p", {"properties": {"a": 1}}, **bearer("ops"))
    await guarded("PUT", "/job/other/pe/0/export/q", {"properties": {"a": "x"}}, **bearer("ops"))
    both = [await guarded("GET", "/lint", **bearer(who)) for who in ("ops", "job")]
    await guarded("DELETE", "/job/other/pe/0/export/p", **bearer("ops"))
    await guarded("DELETE", "/job/other/pe/0/export/q", **bearer("ops"))
    reported = await guarded("GET", f"/explain?import={IMPORT_KEY}", **bearer("job"))

    codes = [{one["code"] for one in found.body["findings"]} for found in both]
    assert codes[0] - codes[1] == {"PropertyTypesDiffer"}
    assert [one["message"] for one in reported.body["lint"]] == [
        "nothing in the scope Default may be imported from the namespace default"
    ]


async def test_nobody_learns_what_a_change_does_where_they_do_not_read(guarded: Rest) -> None:
    change = manifest("Export", "feed", "trades", properties={})
    theirs = {**change, "metadata": {"namespace": "lab"}}
    gone = {"kind": "Export", "namespace": "lab", "job": "feed", "port": "trades"}
    mine = await guarded("POST", "/whatif", {"resources": [change]}, **bearer("job"))
    put = await guarded("POST", "/whatif", {"resources": [theirs]}, **bearer("job"))
    cut = await guarded("POST", "/whatif", {"delete": [gone]}, **bearer("job"))

    assert [route["reason"] for route in mine.body["cut"]] == ["SubscriptionUnknown"]
    assert (put.status, put.code) == (403, "NotYours")
    assert (cut.status, cut.code) == (403, "NotYours")


async def test_an_explanation_has_the_health_of_the_ports(pair: Rest) -> None:
    failed = {"reason": "DataLoss", "message": "A query failed. Start it again."}
    found = []
    for health in ({"imports": {"trades": failed}}, {}):
        await pair("PUT", "/job/alerts/pe/0/report", {"health": health})
        found.append((await pair("GET", f"/explain?import={IMPORT_KEY}")).body)
    problem = {"kind": "Import", "port": IMPORT_KEY, **failed}
    assert [one["problems"] for one in found] == [[problem], []]
    assert found[0]["text"].splitlines()[-1] == (
        f"! Import {IMPORT_KEY}: DataLoss: A query failed. Start it again."
    )
    assert "DataLoss" not in found[1]["text"]
