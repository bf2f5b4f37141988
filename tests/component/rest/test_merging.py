"""Merge patches, conditions, and the methods that every path takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.brokers.brokers import Rest, running_broker

X = "/job/feed/pe/0/export/trades"
I = "/job/alerts/pe/0/import/trades"  # noqa: E741
PE = "/job/feed/pe/0"
AGENT = {"instance": "0123456789abcdef", "location": "grpc+tcp://127.0.0.1:4711", "hint": None}
READ = (
    "/exports", "/imports", "/pes", "/routes", PE, X, f"{X}/properties", f"{X}/property/kind",
    I, f"{I}/filter", f"{I}/subscription", f"{I}/streams",
)  # fmt: skip


@pytest.fixture
def rest(pair: Rest) -> Rest:
    return pair


async def merge(rest: Rest, path: str, patch: Any, **headers: str) -> Any:
    kind = "application/merge-patch+json"
    return await rest("PATCH", path, patch, data=None, Content_Type=kind, **headers)


async def spec(rest: Rest, path: str) -> Any:
    return (await rest("GET", path)).body["spec"]


async def test_a_patch_of_an_import_changes_what_it_names_and_nothing_else(rest: Rest) -> None:
    before = await spec(rest, I)
    patched = await merge(rest, I, {"filter": "price > 20.0", "onCongestion": "drop"})

    assert (patched.status, patched.body["generation"]) == (200, 2)
    assert patched.body["routes"]["kept"][0]["policy"] == "drop"
    assert await spec(rest, I) == {**before, "filter": "price > 20.0", "onCongestion": "drop"}


async def test_null_in_a_patch_brings_the_default_back(rest: Rest) -> None:
    await merge(rest, X, {"allowFilter": False, "buffer": {"maxBytes": "1Mi"}})
    assert (await spec(rest, X))["buffer"] == {"maxBytes": "1Mi", "grace": "10m"}
    await merge(rest, X, {"allowFilter": None, "buffer": {"maxBytes": None}})

    shown = await spec(rest, X)
    assert (shown["allowFilter"], shown["buffer"]["maxBytes"]) == (True, "1Gi")


async def test_a_patch_can_turn_an_export_by_properties_into_one_by_name(rest: Rest) -> None:
    neither = await merge(rest, X, {"properties": None})
    named = await merge(rest, X, {"properties": None, "streamId": "s"})

    assert (neither.status, neither.body["path"]) == (422, "spec.streamId")
    assert named.body["routes"]["cut"][0]["reason"] == "ExportedByName"
    assert "properties" not in await spec(rest, X)


async def test_a_patch_of_the_whole_manifest_may_name_the_resource(rest: Rest) -> None:
    whole = {"metadata": {"name": "mine"}, "spec": {"properties": {"level": 6}}}
    assert (await merge(rest, X, whole)).status == 200
    shown = (await rest("GET", X)).body
    assert shown["metadata"]["name"] == "mine"
    assert shown["spec"]["properties"] == {"kind": "trade", "level": 6}

    other = await merge(rest, X, {"metadata": {"name": "another"}})
    assert (other.status, other.code) == (409, "PortTaken")


async def test_a_patch_that_changes_nothing_keeps_the_generation(rest: Rest) -> None:
    same = await merge(rest, X, {"spec": {"allowFilter": True}})

    assert (same.body["generation"], same.body["changed"]) == (1, False)
    assert "name" not in same.body


@pytest.mark.parametrize(
    ("patch", "path"),
    [
        ([], ""),
        ("text", ""),
        (None, ""),
        ({"speed": 1}, "spec.speed"),
        ({"pe": 3}, "spec.pe"),
        ({"kind": "Import"}, "kind"),
        ({"kind": []}, "kind"),
        ({"spec": None}, "spec"),
        ({"application": {"name": 5}}, "spec.application.name"),
    ],
)
async def test_a_bad_patch_is_refused_with_its_place(rest: Rest, patch: Any, path: str) -> None:
    refused = await merge(rest, X, patch)

    assert (refused.status, refused.code, refused.body["path"]) == (422, "ManifestInvalid", path)
    assert (await rest("GET", X)).body["metadata"]["generation"] == 1


async def test_a_patch_nested_too_deep_is_refused(rest: Rest) -> None:
    deep = b'{"a":' * 900 + b"1" + b"}" * 900
    refused = await rest("PATCH", X, data=deep)

    assert (refused.status, refused.code) == (422, "ManifestInvalid")


async def test_a_patch_of_what_is_not_there_is_refused(rest: Rest) -> None:
    assert (await merge(rest, X + "2", {"allowFilter": False})).code == "UnknownPort"
    assert (await merge(rest, I, {"subscription": "a =="})).code == "SubscriptionInvalid"


async def test_a_patch_keeps_its_condition(rest: Rest) -> None:
    etag = (await rest("GET", X)).headers["ETag"]
    first = await merge(rest, X, {"allowFilter": False}, If_Match=etag)
    second = await merge(rest, X, {"allowFilter": True}, If_Match=etag)

    assert (first.status, second.code) == (200, "ConditionFailed")


async def test_whatever_is_read_has_an_etag_and_is_not_sent_again(rest: Rest) -> None:
    for path in READ:
        found = await rest("GET", path)
        etag = found.headers["ETag"]
        again = await rest("GET", path, If_None_Match=etag)
        any_ = await rest("GET", path, If_None_Match="*")
        other = await rest("GET", path, If_None_Match='"other"')
        unlike = await rest("GET", path, If_Match='"other"')
        like = await rest("GET", path, If_Match=etag)

        assert (again.status, again.body, again.headers["ETag"]) == (304, None, etag), path
        assert (any_.status, other.status, like.status) == (304, 200, 200), path
        assert unlike.code == "ConditionFailed", path


async def test_a_resource_that_gets_a_name_is_sent_again(rest: Rest) -> None:
    etag = (await rest("GET", X)).headers["ETag"]
    await merge(rest, X, {"metadata": {"name": "prices"}})
    again = await rest("GET", X, If_None_Match=etag)

    assert (again.status, again.body["metadata"]["name"]) == (200, "prices")


async def test_the_etag_of_a_list_changes_with_what_is_listed(rest: Rest) -> None:
    for path in ("/exports", "/routes"):
        etag = (await rest("GET", path)).headers["ETag"]
        await rest("PATCH", f"{X}/properties", {"kind": path})

        assert (await rest("GET", path, If_None_Match=etag)).status == 200, path


async def test_the_etag_of_a_resource_tells_of_its_status_but_a_change_needs_only_its_spec(
    rest: Rest,
) -> None:
    before = (await rest("GET", I)).headers["ETag"]
    await rest("DELETE", X)
    changed = await rest("GET", I, If_None_Match=before)
    assert (changed.status, changed.body["status"]["matches"]) == (200, 0)

    assert (await rest("PUT", f"{I}/filter", "price > 1.0", If_Match=before)).status == 200


async def test_conditions_hold_for_every_change_of_a_pe(rest: Rest) -> None:
    assert (await rest("PUT", PE, AGENT, If_None_Match="*")).code == "ConditionFailed"
    assert (await rest("PUT", PE, AGENT, If_Match='"other"')).code == "ConditionFailed"
    assert (await rest("PUT", "/job/new/pe/0", AGENT, If_Match="*")).code == "ConditionFailed"
    assert (await rest("PUT", "/job/new/pe/0", AGENT, If_None_Match="*")).status == 200
    etag = (await rest("GET", "/job/new/pe/0")).headers["ETag"]
    assert (await rest("DELETE", "/job/new/pe/0", If_Match='"other"')).code == "ConditionFailed"
    assert (await rest("DELETE", "/job/new/pe/0", If_Match=etag)).status == 204


async def test_nothing_is_changed_that_must_not_exist(rest: Rest) -> None:
    for method, path in (("DELETE", X), ("PATCH", X), ("PUT", f"{X}/property/a")):
        refused = await rest(method, path, {}, If_None_Match="*")
        assert refused.code == "ConditionFailed", (method, path)

    assert (await rest("GET", X)).body["metadata"]["generation"] == 1


async def test_head_answers_as_get_does_without_a_body(rest: Rest) -> None:
    for path in (*READ, "/events"):
        head = await rest("HEAD", path)
        assert (head.status, head.body) == (200, None), path
        if path != "/events":
            assert head.headers["ETag"] == (await rest("GET", path)).headers["ETag"], path

    missing = await rest("HEAD", X + "2")
    assert (missing.status, missing.body) == (404, None)


async def test_options_say_what_a_path_takes(rest: Rest) -> None:
    resource = await rest("OPTIONS", X)
    list_ = await rest("OPTIONS", "/exports")

    assert (resource.status, resource.body) == (204, None)
    assert resource.headers["Allow"] == "DELETE, GET, HEAD, OPTIONS, PATCH, PUT"
    assert resource.headers["Accept-Patch"] == "application/merge-patch+json"
    assert (list_.status, list_.headers["Allow"]) == (204, "GET, HEAD, OPTIONS")
    assert (await rest("OPTIONS", "/nothing")).status == 404


async def test_a_resource_does_not_grow_piece_by_piece_beyond_what_a_request_may_have(
    tmp_path: Path,
) -> None:
    async with running_broker(tmp_path / "broker.db") as (_, rest):
        port = "/job/feed/pe/0/export/grown"
        await rest("PUT", port, {"properties": {}})
        statuses = []
        for number in range(12):
            value = [f"{number:02d}{item:016d}" for item in range(250)]
            answer = await rest("PUT", f"{port}/property/p{number}", value)
            statuses.append(answer.status)
        whole = await rest("GET", port)
        again = await rest("PUT", port, whole.body)
        asked = {**whole.body, "spec": {**whole.body["spec"]}}
        asked["spec"]["properties"] = {
            **asked["spec"]["properties"],
            "more": ["x" * 200 + str(item) for item in range(60)],
        }
        forecast = await rest("POST", "/whatif", {"resources": [asked]})

    assert statuses[:9] == [201] * 9
    assert statuses[-1] == 422
    assert answer.body["code"] == "ManifestInvalid"
    assert "bytes as JSON" in answer.body["detail"]
    assert again.status == 200
    assert [problem["code"] for problem in forecast.body["problems"]] == ["ManifestInvalid"]
