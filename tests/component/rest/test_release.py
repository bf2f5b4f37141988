"""Giving back what was changed, where there is nobody to give it back to."""

from __future__ import annotations

import pytest

from support.brokers.brokers import Rest

FEED, ALERTS = "/job/feed/pe/0/export/trades", "/job/alerts/pe/0/import/trades"


@pytest.mark.parametrize("path", [FEED, ALERTS])
async def test_a_file_declares_all_that_is_in_it(pair: Rest, path: str) -> None:
    before = await pair("GET", path)
    answer = await pair("POST", path + "/release")
    assert (answer.status, answer.code) == (409, "NotDeclared")
    assert "`streambroker apply -f FILE`. The broker's page" in answer.body["detail"]
    assert "`GET /history` show its last changes" in answer.body["detail"]
    assert (await pair("GET", path)).body == before.body


async def test_a_port_that_is_not_there_is_not_released(pair: Rest) -> None:
    answer = await pair("POST", "/job/alerts/pe/0/import/nothing/release")
    assert (answer.status, answer.code) == (404, "UnknownPort")


async def test_a_release_is_conditional_like_any_change(pair: Rest) -> None:
    answer = await pair("POST", ALERTS + "/release", If_Match='"other.1"')
    assert (answer.status, answer.code) == (412, "ConditionFailed")


@pytest.mark.parametrize("force", ["true", "false"])
async def test_force_means_nothing_where_nobody_else_declares(pair: Rest, force: str) -> None:
    answer = await pair("PUT", f"{ALERTS}/filter?force={force}", "price > 3.0")
    assert answer.status == 200
    assert "warnings" not in answer.body


async def test_force_is_true_or_false(pair: Rest) -> None:
    answer = await pair("PUT", ALERTS + "/filter?force=1", "price > 3.0")
    assert (answer.status, answer.code) == (400, "QueryInvalid")


@pytest.mark.parametrize(
    ("owners", "path"),
    [
        ("me", "metadata.ownerReferences"),
        (["me"], "metadata.ownerReferences[0]"),
        ([{"kind": "Job"}], "metadata.ownerReferences[0].apiVersion"),
        ([{"of": "it"}], "metadata.ownerReferences[0].of"),
        (
            [{"apiVersion": "v1", "kind": "Pod", "name": "feed-driver", "uid": "0-1"}],
            "metadata.ownerReferences[0].kind",
        ),
    ],
)
async def test_owner_references_have_their_form(pair: Rest, owners: object, path: str) -> None:
    manifest = (await pair("GET", FEED)).body
    del manifest["status"]
    manifest["metadata"] = {"name": manifest["metadata"]["name"], "ownerReferences": owners}
    answer = await pair("PUT", FEED, manifest)
    assert (answer.status, answer.body["path"]) == (422, path)
