"""Every cell of the REST table, over a real server and a real file."""

from __future__ import annotations

import asyncio
from typing import Any

from support.brokers.brokers import EXPORT, IMPORT, Answer, Rest, bearer

X = "/job/feed/pe/0/export/trades"
I = "/job/alerts/pe/0/import/trades"  # noqa: E741
FAILING = {"error": "it fails."}
AGENT = {"instance": "0123456789abcdef", "location": "grpc+tcp://127.0.0.1:4711", "hint": None}


def ports(answer: Any, kind: str) -> list[str]:
    return [route["export"] + ">" + route["import"] for route in answer.body["routes"][kind]]


ROUTE = "default/feed/0/trades>default/alerts/0/trades"


async def test_declaring_answers_identity_version_and_routes(rest: Rest) -> None:
    first = await rest("PUT", X, EXPORT)
    second = await rest("PUT", I, IMPORT)

    assert (first.status, first.body["generation"], first.body["version"]) == (201, 1, 1)
    assert first.headers["ETag"] == f'"{first.body["uid"]}.1"'
    assert (second.status, ports(second, "added")) == (201, [ROUTE])


async def test_declaring_again_replaces_and_equal_content_changes_nothing(pair: Rest) -> None:
    again = await pair("PUT", X, EXPORT)
    other = await pair("PUT", X, {**EXPORT, "congestionPolicy": "drop"})

    assert (again.status, again.body["generation"], again.body["changed"]) == (200, 1, False)
    assert (other.status, other.body["generation"]) == (200, 2)
    assert other.body["uid"] == again.body["uid"]
    assert ports(other, "kept") == [ROUTE]
    assert other.body["routes"]["kept"][0]["policy"] == "drop"


async def test_a_whole_manifest_can_be_declared(rest: Rest) -> None:
    manifest: dict[str, Any] = {
        "apiVersion": "streambroker.io/v1alpha1",
        "kind": "Export",
        "metadata": {"name": "my-trades"},
        "spec": {**EXPORT, "job": "feed", "port": "trades"},
    }
    assert (await rest("PUT", X, manifest)).status == 201
    shown = await rest("GET", X)
    assert shown.body["metadata"]["name"] == "my-trades"

    elsewhere = await rest("PUT", X, {**manifest, "spec": {**manifest["spec"], "job": "b"}})
    assert (elsewhere.status, elsewhere.body["path"]) == (422, "spec.job")
    wrong = await rest("PUT", I, manifest)
    assert (wrong.status, wrong.body["path"]) == (422, "kind")


async def test_a_stream_id_that_is_taken_is_stored_with_a_warning(rest: Rest) -> None:
    first = await rest("PUT", X, {"streamId": "nyse"})
    second = await rest("PUT", "/job/feed/pe/0/export/more", {"streamId": "nyse"})

    assert (first.status, first.body.get("warnings")) == (201, None)
    assert (second.status, second.body["warnings"]) == (
        201,
        [
            "It is stored, but not accepted (StreamIdTaken): the stream id 'nyse' is held by an"
            " older Export of the same application and job, Export default/feed-0-trades."
        ],
    )


async def test_a_resource_is_shown_with_its_status(pair: Rest) -> None:
    export, import_ = await pair("GET", X), await pair("GET", I)

    assert export.body["spec"]["properties"] == {"kind": "trade", "level": 5}
    assert export.body["status"]["topMatches"] == ["default/alerts/0/trades"]
    assert import_.body["spec"]["filter"] == "price > 10.0"
    assert import_.body["status"]["matches"] == 1
    for answer, path in ((export, X), (import_, I)):
        same = await pair("GET", path, If_None_Match=answer.headers["ETag"])
        assert same.status == 304


async def polled(rest: Rest, ended: str | None = None, **headers: Any) -> Answer:
    """Poll as the exporter's agent does that runs its view."""
    view = (await rest("GET", "/job/feed/pe/0", **headers)).headers["ETag"]
    said: dict[str, Any] = {} if ended is None else {"Ended": ended}
    return await rest("GET", "/job/feed/pe/0", If_None_Match=view, **said, **headers)


async def ends(rest: Rest, **headers: Any) -> list[bool]:
    """Return whether the export has ended, as its resource and as the list says."""
    one, several = await rest("GET", X, **headers), await rest("GET", "/exports", **headers)
    return [found["status"]["ended"] for found in (one.body, *several.body["items"])]


async def test_an_export_has_ended_as_its_agent_tells_until_it_tells_no_more(pair: Rest) -> None:
    before = await pair("GET", X)
    said = [await ends(pair)]
    for reported in ("trades", "other,trades,*", None):
        assert (await polled(pair, reported)).status == 304
        said.append(await ends(pair))
        shown = await pair("GET", X)
        same = await pair("GET", X, If_None_Match=before.headers["ETag"])
        assert same.status == (200 if reported else 304)
        assert shown.body["metadata"]["generation"] == 1

    assert said == [[False] * 2, [True] * 2, [True] * 2, [False] * 2]
    assert "ended" not in (await pair("GET", I)).body["status"]


async def test_damage_that_an_agent_reports_is_in_its_export_until_it_reports_none(
    pair: Rest,
) -> None:
    hole = "epochs 3 to 5 of stream s (30 rows) are missing"
    shown = []
    for damaged in ([hole, "s/0000000007.segment"], []):
        body = {"exports": {"trades": {"damaged": damaged}}}
        assert (await pair("PUT", "/job/feed/pe/0/report", body)).status == 200
        one, several = await pair("GET", X), await pair("GET", "/exports")
        shown += [x["status"].get("damaged") for x in (one.body, *several.body["items"])]
    assert shown == [f"{hole}; s/0000000007.segment."] * 2 + [None] * 2


async def test_uploads_that_an_agent_reports_are_in_its_export(pair: Rest) -> None:
    shown = []
    ports: list[dict[str, Any]] = [{}, *({"storage": one} for one in ({}, FAILING, {}))]
    for port in ports:
        report = {"exports": {"trades": port}}
        assert (await pair("PUT", "/job/feed/pe/0/report", report)).status == 200
        one, several = await pair("GET", X), await pair("GET", "/exports")
        stored = [x["status"].get("stored") for x in (one.body, *several.body["items"])]
        shown.append([None if each is None else each["reason"] for each in stored])
    assert shown == [
        [reason] * 2 for reason in (None, "UpToDate", "StorageUnavailable", "UpToDate")
    ]


async def test_the_version_that_an_agent_reports_is_in_its_export_and_no_other_change(
    pair: Rest,
) -> None:
    shown = []
    second = {"number": 2, "since": "2026-11-30T06:00:00Z"}
    for version in (None, {"number": 1}, {"number": 1}, second, second):
        port = {} if version is None else {"schemaVersion": version}
        report = {"exports": {"trades": port}}
        assert (await pair("PUT", "/job/feed/pe/0/report", report)).status == 200
        one = await pair("GET", X)
        shown.append((one.body["status"].get("schemaVersion"), one.headers["ETag"]))
    wrong = {"exports": {"trades": {"schemaVersion": {"number": 2, "since": "yesterday"}}}}
    refused = await pair("PUT", "/job/feed/pe/0/report", wrong)

    assert [version for version, _ in shown] == [None, *([{"number": 1}] * 2), second, second]
    assert len({tag for _, tag in shown}) == 3
    assert (refused.status, refused.body["code"]) == (422, "ManifestInvalid")
    assert (await pair("GET", X)).body["status"]["schemaVersion"] == second


async def test_an_export_that_demands_storage_and_has_none_lacks_it(pair: Rest) -> None:
    await pair("PUT", "/job/feed/pe/0/report", {"exports": {"trades": {}}})
    await pair("PUT", X, {**EXPORT, "durability": "stored"})
    assert (await pair("GET", X)).body["status"]["stored"]["reason"] == "StorageMissing"


async def test_a_lag_that_grows_is_no_change_of_the_export(pair: Rest) -> None:
    tags = []
    for seconds in (0, 30, 70, 90, 700):
        uploads = {"bytes": 1_000 * seconds, "seconds": seconds}
        report = {"exports": {"trades": {"storage": uploads}}}
        assert (await pair("PUT", "/job/feed/pe/0/report", report)).status == 200
        tags.append((await pair("GET", X)).headers["ETag"])
    assert len(set(tags[:2])) == len(set(tags[2:4])) == 1
    assert len(set(tags)) == 3


async def test_who_looks_at_a_view_without_having_one_says_nothing_of_ends(pair: Rest) -> None:
    await polled(pair, "trades")
    await pair("GET", "/job/feed/pe/0")

    assert await ends(pair) == [True, True]


async def test_of_ports_that_are_not_named_among_very_many_nothing_is_said(pair: Rest) -> None:
    await polled(pair, "trades")
    await polled(pair, "other,*")
    said = [await ends(pair)]
    await polled(pair, "other")
    said.append(await ends(pair))

    assert said == [[True, True], [False, False]]


async def test_an_end_that_cannot_be_read_is_refused_and_changes_nothing(pair: Rest) -> None:
    await polled(pair, "trades")
    answer = await polled(pair, "trades,no port")

    assert (answer.status, answer.code) == (400, "HeaderInvalid")
    assert "'no port'" in answer.body["detail"]
    assert await ends(pair) == [True, True]


async def test_of_another_job_nobody_says_that_an_export_has_ended(guarded: Rest) -> None:
    job, ops = bearer("job"), bearer("ops")
    await polled(guarded, "trades", **ops)
    refused = await guarded("GET", "/job/feed/pe/0", **job, If_None_Match='"x"', Ended="other")

    assert refused.status == 200
    assert await ends(guarded, **ops) == [True, True]


async def test_a_pe_that_was_withdrawn_has_no_ended_exports_any_more(pair: Rest) -> None:
    await polled(pair, "trades")
    for method, path, body in (
        ("DELETE", X, None),
        ("DELETE", "/job/feed/pe/0", None),
        ("PUT", X, EXPORT),
    ):
        assert (await pair(method, path, body)).status in (200, 201, 204)

    assert await ends(pair) == [False, False]


async def test_withdrawing_cuts_routes_and_the_pe_stays_known(pair: Rest) -> None:
    gone = await pair("DELETE", X)

    assert gone.status == 200
    assert gone.body["routes"]["cut"][0]["reason"] == "ExportRemoved"
    assert (await pair("GET", X)).code == "UnknownPort"
    view = await pair("GET", "/job/feed/pe/0")
    assert (view.status, view.body["exports"]) == (200, {})
    assert (await pair("DELETE", I)).status == 200
    assert (await pair("DELETE", I)).code == "UnknownPort"


async def test_a_view_has_an_etag_and_is_not_sent_again(pair: Rest) -> None:
    view = await pair("GET", "/job/alerts/pe/0")
    again = await pair("GET", "/job/alerts/pe/0", If_None_Match=view.headers["ETag"])
    weak = await pair("GET", "/job/alerts/pe/0", If_None_Match=f'"x", W/{view.headers["ETag"]}')
    other = await pair("GET", "/job/alerts/pe/0", If_None_Match='"other"')

    assert view.headers["ETag"] == f'"{view.body["version"]}"'
    assert view.body["imports"]["trades"]["routes"][0]["export"] == "default/feed/0/trades"
    assert (again.status, again.body) == (304, None)
    assert weak.status == 304
    assert other.status == 200


async def test_a_known_pe_without_matches_has_an_empty_view(rest: Rest) -> None:
    await rest("PUT", I, IMPORT)
    await rest("PUT", "/job/idle/pe/3", AGENT)
    alerts, idle = await rest("GET", "/job/alerts/pe/0"), await rest("GET", "/job/idle/pe/3")

    assert (alerts.status, alerts.body["imports"]["trades"]["routes"]) == (200, [])
    assert (idle.status, idle.body["exports"], idle.body["imports"]) == (200, {}, {})


async def test_a_long_poll_ends_with_the_change(pair: Rest) -> None:
    view = await pair("GET", "/job/alerts/pe/0")
    waiting = asyncio.ensure_future(
        pair("GET", "/job/alerts/pe/0?wait=30s", If_None_Match=view.headers["ETag"])
    )
    await pair("GET", "/pes")
    assert not waiting.done()
    await pair("PUT", f"{I}/filter", {"filter": "price > 20.0"})
    changed = await asyncio.wait_for(waiting, 5.0)

    assert changed.status == 200
    assert changed.body["imports"]["trades"]["filter"] == "price > 20.0"


async def test_a_long_poll_without_a_change_ends_with_304(pair: Rest) -> None:
    view = await pair("GET", "/job/alerts/pe/0")
    waited = await pair("GET", "/job/alerts/pe/0?wait=20ms", If_None_Match=view.headers["ETag"])

    assert waited.status == 304
    assert (await pair("GET", "/job/alerts/pe/0?wait=30s")).status == 200


async def test_registering_gives_the_same_key_again_and_importers_the_location(pair: Rest) -> None:
    first = await pair("PUT", "/job/feed/pe/0", AGENT)
    again = await pair("PUT", "/job/feed/pe/0", AGENT)
    other = await pair("PUT", "/job/feed/pe/0", {**AGENT, "instance": "fedcba9876543210"})
    view = await pair("GET", "/job/alerts/pe/0")

    assert first.status == 200
    assert len(bytes.fromhex(first.body["key"])) == 32
    assert first.body == again.body
    assert first.body["key"] != other.body["key"]
    (route,) = view.body["imports"]["trades"]["routes"]
    assert route["location"] == "grpc+tcp://127.0.0.1:4711"
    assert route["capability"]


async def test_a_pe_is_withdrawn_when_it_has_no_ports(pair: Rest) -> None:
    assert (await pair("DELETE", "/job/feed/pe/0")).code == "PortsRemain"
    await pair("DELETE", X)

    assert (await pair("DELETE", "/job/feed/pe/0")).status == 204
    assert (await pair("GET", "/job/feed/pe/0")).code == "UnknownPE"


async def test_properties_are_read_set_merged_and_removed(pair: Rest) -> None:
    assert (await pair("GET", f"{X}/properties")).body == {"kind": "trade", "level": 5}
    merged = await pair("PATCH", f"{X}/properties", {"level": None, "hot": True})
    assert ports(merged, "kept") == [ROUTE]
    assert (await pair("GET", f"{X}/properties")).body == {"kind": "trade", "hot": True}
    removed = await pair("DELETE", f"{X}/properties?name=kind&name=hot")
    assert removed.body["routes"]["cut"][0]["reason"] == "SubscriptionUnknown"
    assert (await pair("GET", f"{X}/properties")).body == {}
    added = await pair("PUT", f"{X}/properties", {"kind": "trade", "level": 2.0})
    assert ports(added, "added") == [ROUTE]
    assert (await pair("GET", f"{X}/properties")).body == {"kind": "trade", "level": 2}
    await pair("DELETE", f"{X}/properties")
    assert (await pair("GET", f"{X}/properties")).body == {}


async def test_removing_properties_is_all_or_nothing(pair: Rest) -> None:
    refused = await pair("DELETE", f"{X}/properties?name=level&name=nope")

    assert (refused.status, refused.code) == (404, "UnknownProperty")
    assert (await pair("GET", f"{X}/properties")).body == {"kind": "trade", "level": 5}


async def test_one_bad_property_leaves_all_as_they_were(pair: Rest) -> None:
    for method in ("PUT", "PATCH"):
        refused = await pair(method, f"{X}/properties", {"kind": "quote", "mixed": [1, "x"]})
        assert (refused.status, refused.code, refused.body["property"]) == (
            422,
            "PropertyInvalid",
            "mixed",
        )

    assert (await pair("GET", X)).body["metadata"]["generation"] == 1


async def test_a_single_property_is_read_set_and_removed(pair: Rest) -> None:
    assert (await pair("GET", f"{X}/property/kind")).body == "trade"
    assert (await pair("PUT", f"{X}/property/venue", "N")).status == 201
    assert (await pair("PUT", f"{X}/property/venue", ["N", "Q"])).status == 200
    assert (await pair("GET", f"{X}/property/venue")).body == ["N", "Q"]
    assert (await pair("DELETE", f"{X}/property/venue")).status == 200

    for method in ("GET", "DELETE"):
        assert (await pair(method, f"{X}/property/venue")).code == "UnknownProperty"


async def test_a_filter_is_read_set_and_cleared(pair: Rest) -> None:
    assert (await pair("GET", f"{I}/filter")).body == {"filter": "price > 10.0"}
    changed = await pair("PUT", f"{I}/filter", {"filter": "price > 20.0"})
    assert ports(changed, "kept") == [ROUTE]
    await pair("PUT", f"{I}/filter", "price > 30.0")
    assert (await pair("GET", f"{I}/filter")).body == {"filter": "price > 30.0"}
    await pair("PUT", f"{I}/filter", data=b"price > 40.0", Content_Type="text/plain")
    assert (await pair("GET", f"{I}/filter")).body == {"filter": "price > 40.0"}
    for empty in ({"filter": ""}, {"filter": None}, "  ", None):
        await pair("PUT", f"{I}/filter", {"filter": "price > 1.0"})
        await pair("PUT", f"{I}/filter", empty)
        assert (await pair("GET", f"{I}/filter")).body == {"filter": None}


async def test_setting_a_subscription_keeps_filter_and_scope(rest: Rest) -> None:
    await rest("PUT", I, {**IMPORT, "applicationScope": "Lab"})
    await rest("PUT", f"{I}/subscription", {"subscription": 'kind == "quote"'})
    spec = (await rest("GET", I)).body["spec"]

    assert spec["subscription"] == 'kind == "quote"'
    assert (spec["filter"], spec["applicationScope"]) == ("price > 10.0", "Lab")
    shown = await rest("GET", f"{I}/subscription")
    assert shown.body == {"subscription": 'kind == "quote"'}


async def test_streams_are_names_or_a_subscription(pair: Rest) -> None:
    shown = await pair("GET", f"{I}/streams")
    assert shown.body == {"applicationScope": "Default", "subscription": 'kind == "trade"'}
    named = {"streams": [{"applicationName": "market.Feed", "streamId": "s"}]}
    cut = await pair("PUT", f"{I}/streams", named)
    assert cut.body["routes"]["cut"][0]["reason"] == "ExportedByProperties"
    assert (await pair("GET", f"{I}/streams")).body == {"applicationScope": "Default", **named}
    assert (await pair("GET", f"{I}/filter")).body == {"filter": "price > 10.0"}
    for method, body in (("GET", None), ("PUT", "a == 1")):
        assert (await pair(method, f"{I}/subscription", body)).code == "WrongKind"
    back = await pair("PUT", f"{I}/streams", {"subscription": 'kind == "trade"'})
    assert ports(back, "added") == [ROUTE]


async def test_lists_show_everything_of_a_namespace(pair: Rest) -> None:
    await pair("PUT", "/job/feed/pe/0/export/trades?namespace=lab", EXPORT)
    exports, imports = await pair("GET", "/exports"), await pair("GET", "/imports")
    pes, routes = await pair("GET", "/pes"), await pair("GET", "/routes")
    everywhere = await pair("GET", "/exports?namespace=*")

    assert [item["spec"]["port"] for item in exports.body["items"]] == ["trades"]
    assert imports.body["items"][0]["status"]["matches"] == 1
    assert [(item["job"], item["exports"]) for item in pes.body["items"]] == [
        ("alerts", []),
        ("feed", ["trades"]),
    ]
    assert [item["filter"] for item in routes.body["items"]] == ["price > 10.0"]
    assert [i["metadata"]["namespace"] for i in everywhere.body["items"]] == ["default", "lab"]


async def test_namespaces_are_apart(pair: Rest) -> None:
    lab = await pair("PUT", f"{I}?namespace=lab", IMPORT)

    assert ports(lab, "added") == []
    assert (await pair("GET", f"{X}?namespace=lab")).code == "UnknownPE"


async def test_conditions_are_kept(pair: Rest) -> None:
    assert (await pair("PUT", X, EXPORT, If_None_Match="*")).status == 412
    assert (await pair("PUT", I + "2", IMPORT, If_None_Match="*")).status == 201
    assert (await pair("PUT", I + "3", IMPORT, If_Match="*")).status == 412
    etag = (await pair("GET", X)).headers["ETag"]
    for method, path, body in (
        ("PUT", X, EXPORT),
        ("DELETE", X, None),
        ("PUT", f"{X}/properties", {}),
        ("PATCH", f"{X}/properties", {"a": 1}),
        ("DELETE", f"{X}/properties", None),
        ("PUT", f"{X}/property/a", 1),
        ("DELETE", f"{X}/property/kind", None),
        ("PUT", f"{I}/filter", ""),
        ("PUT", f"{I}/subscription", "a == 1"),
        ("PUT", f"{I}/streams", {}),
    ):
        refused = await pair(method, path, body, If_Match='"another.1"')
        assert (refused.status, refused.code) == (412, "ConditionFailed"), (method, path)
    assert (await pair("GET", X)).headers["ETag"] == etag

    changed = await pair("PUT", f"{X}/properties", {"kind": "x"}, If_Match=etag)
    assert changed.status == 200
    stale = await pair("PUT", f"{X}/properties", {}, If_Match=etag)
    assert stale.status == 412


async def test_a_filter_that_suits_no_match_is_refused_and_one_that_suits_some_is_not(
    pair: Rest,
) -> None:
    refused = await pair("PUT", f"{I}/filter", {"filter": "size > 1"})
    assert (refused.status, refused.code) == (422, "FilterInvalid")
    assert refused.body["position"] == {"line": 1, "column": 1, "offset": 0}
    assert refused.body["found"]
    assert refused.body["expected"]
    assert "hint" in refused.body
    sized = {**EXPORT, "schema": [{"name": "size", "type": "bigint"}]}
    await pair("PUT", "/job/other/pe/0/export/trades", sized)
    accepted = await pair("PUT", f"{I}/filter", {"filter": "size > 1"})

    assert accepted.status == 200
    assert accepted.body["routes"]["cut"][0]["reason"] == "FilterInvalid"
    view = await pair("GET", "/job/alerts/pe/0")
    (pair_refused,) = view.body["imports"]["trades"]["refused"]
    assert (pair_refused["export"], pair_refused["reason"]) == (
        "default/feed/0/trades",
        "FilterInvalid",
    )
