"""The rules of a job over REST: documents in, manifests with what has become of them out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from streambroker.patterns import HttpDiscoverer, PatternProcessorManager
from support.brokers.brokers import Rest, bearer, running_broker

JOB = "/api/jobs/alerts/patterns"
DEAR = f"{JOB}/dear"
PATTERN = {"stages": [{"name": "a", "where": "price > 10"}]}
RULE = {"version": 1, "pattern": PATTERN}
AGENT = {"instance": "0123456789abcdef", "location": "grpc+tcp://127.0.0.1:4711", "hint": None}
PE = "/job/alerts/pe/0"


async def test_a_rule_is_created_replaced_shown_and_deleted(rest: Rest) -> None:
    made = await rest("PUT", DEAR, RULE)
    same = await rest("PUT", DEAR, RULE)
    other = await rest("PUT", DEAR, {**RULE, "version": 2})
    shown = await rest("GET", DEAR)

    assert (made.status, made.body["created"], made.body["generation"]) == (201, True, 1)
    assert (same.status, same.body["changed"]) == (200, False)
    assert (other.body["generation"], other.body["uid"]) == (2, made.body["uid"])
    assert shown.body["spec"] == {"job": "alerts", "id": "dear", "version": 2, "pattern": PATTERN}
    assert shown.body["metadata"]["name"] == "alerts.dear"
    assert shown.body["status"] == {
        "accepted": True,
        "reason": "Accepted",
        "message": "",
        "state": "unknown",
    }
    assert (await rest("DELETE", DEAR)).status == 200
    assert (await rest("GET", DEAR)).status == 404
    assert (await rest("DELETE", DEAR)).body["code"] == "UnknownRule"


async def test_the_rules_of_a_job_are_listed_by_id_and_those_of_no_job_are_none(rest: Rest) -> None:
    for name in ("b", "a"):
        await rest("PUT", f"{JOB}/{name}", RULE)
    await rest("PUT", "/api/jobs/other/patterns/c", RULE)

    found = await rest("GET", JOB)

    assert [one["spec"]["id"] for one in found.body["patterns"]] == ["a", "b"]
    assert (await rest("GET", "/api/jobs/nobody/patterns")).body == {"patterns": []}
    assert (await rest("GET", JOB, If_None_Match=found.headers["ETag"])).status == 304


@pytest.mark.parametrize(
    ("body", "code", "where"),
    [
        ({"version": 1}, "ManifestInvalid", "pattern"),
        ({**RULE, "version": "1"}, "ManifestInvalid", "version"),
        ({**RULE, "colour": 1}, "ManifestInvalid", "colour"),
        ({**RULE, "job": "other"}, "ManifestInvalid", "job"),
        ({**RULE, "id": "other"}, "ManifestInvalid", "id"),
        ({**RULE, "enable": -1}, "ManifestInvalid", "enable"),
        ({**RULE, "pattern": {"stages": [{"name": "a"}, {"name": "a", "join": "next"}]}},
         "PatternInvalid", "stage `a`"),
        ({**RULE, "pattern": {"stages": [{"name": "a", "where": "x >"}]}},
         "ConditionInvalid", "pattern.stages[0].where, line 1"),
        ({**RULE, "labels": {"a": "x" * 50_000}}, "ManifestInvalid", "spec"),
        ([RULE], "ManifestInvalid", ""),
    ],
)  # fmt: skip
async def test_a_rule_that_cannot_be_run_is_refused_with_its_place_and_changes_nothing(
    rest: Rest, body: Any, code: str, where: str
) -> None:
    await rest("PUT", DEAR, RULE)

    refused = await rest("PUT", DEAR, body)

    assert (refused.status, refused.body["code"]) == (422, code)
    assert where in refused.body["detail"]
    assert (await rest("GET", DEAR)).body["spec"]["version"] == 1
    assert (await rest("GET", DEAR)).body["metadata"]["generation"] == 1


@pytest.mark.parametrize("name", ["-a", "a%2Fb", "a b", "a" * 254])
async def test_an_id_that_cannot_stand_in_an_address_is_refused(rest: Rest, name: str) -> None:
    assert (await rest("PUT", f"{JOB}/{name}", RULE)).status in (404, 422)
    assert (await rest("GET", f"{JOB}/{name}")).status == 404


async def test_a_whole_manifest_names_the_resource(rest: Rest) -> None:
    manifest = {
        "apiVersion": "streambroker.io/v1alpha1",
        "kind": "PatternProcessor",
        "metadata": {"name": "mine"},
        "spec": {"job": "alerts", "id": "dear", **RULE},
    }
    assert (await rest("PUT", DEAR, manifest)).status == 201
    shown = (await rest("GET", DEAR)).body
    again = await rest("PUT", DEAR, shown)
    wrong = await rest("PUT", f"{JOB}/other", manifest)

    assert shown["metadata"]["name"] == "mine"
    assert again.body["changed"] is False
    assert (wrong.status, wrong.body["path"]) == (422, "spec.id")
    elsewhere = {**manifest, "metadata": {"name": "mine", "namespace": "lab"}}
    refused = [await rest("PUT", DEAR, body) for body in (elsewhere, {**manifest, "spek": 1})]
    assert [(one.status, one.body["path"]) for one in refused] == [
        (422, "metadata.namespace"),
        (422, "spek"),
    ]


async def test_conditions_guard_every_change(rest: Rest) -> None:
    made = await rest("PUT", DEAR, RULE, If_None_Match="*")
    tag = (await rest("GET", DEAR)).headers["ETag"]
    late = await rest("PUT", DEAR, {**RULE, "version": 2}, If_Match='"old.1"')
    again = await rest("PUT", DEAR, RULE, If_None_Match="*")
    gone = await rest("DELETE", DEAR, If_Match='"old.1"')
    done = await rest("PUT", DEAR, {**RULE, "version": 2}, If_Match=tag)
    enabled = await rest("POST", f"{DEAR}/enable", If_Match=made.headers["ETag"])

    assert [late.status, again.status, gone.status] == [412, 412, 412]
    assert (done.status, done.body["generation"]) == (200, 2)
    assert enabled.status == 412


async def test_enabling_is_counted_and_outlives_a_new_document(rest: Rest) -> None:
    await rest("PUT", DEAR, RULE)

    first = await rest("POST", f"{DEAR}/enable")
    await rest("POST", f"{DEAR}/enable")
    await rest("PUT", DEAR, {**RULE, "version": 2})

    assert (first.status, first.body["generation"]) == (200, 2)
    assert (await rest("GET", DEAR)).body["spec"]["enable"] == 2
    assert (await rest("POST", f"{JOB}/nobody/enable")).status == 404


async def test_a_request_that_is_repeated_is_done_once(rest: Rest) -> None:
    await rest("PUT", DEAR, RULE)
    for _ in range(2):
        answer = await rest("POST", f"{DEAR}/enable", Request_Id="one")

    assert answer.headers["Replayed"] == "true"
    assert (await rest("GET", DEAR)).body["spec"]["enable"] == 1


async def test_rules_go_to_the_agents_of_the_job_with_their_view(rest: Rest) -> None:
    await rest("PUT", PE, AGENT)
    before = await rest("GET", PE)
    await rest("PUT", DEAR, RULE)
    after = await rest("GET", PE, If_None_Match=before.headers["ETag"])

    assert before.body["patterns"] == []
    assert after.body["patterns"] == [
        {"id": "dear", "document": {"id": "dear", **RULE}, "enable": 0, "problem": ""}
    ]
    assert after.body["point"] == before.body["point"]


async def test_what_agents_report_is_the_status_and_a_refusal_of_the_job_counts(rest: Rest) -> None:
    await rest("PUT", PE, AGENT)
    await rest("PUT", DEAR, RULE)
    reported = {"version": 1, "state": "active", "since": 12, "buckets": 3, "of": 4, "matches": 5}
    await rest("PUT", f"{PE}/report", {"patterns": {"rules": {"dear": reported}}})
    active = (await rest("GET", DEAR)).body["status"]
    refusal = {"refused": 2, "reason": "VersionTooLow", "message": "version 1 is lower"}
    await rest("PUT", f"{PE}/report", {"patterns": {"rules": {"dear": {**reported, **refusal}}}})
    refused = (await rest("GET", DEAR)).body["status"]

    assert active == {
        "accepted": True, "reason": "Accepted", "message": "", "state": "active", "version": 1,
        "scheduled": None, "since": 12, "buckets": 3, "of": 4, "matches": 5, "errors": 0,
    }  # fmt: skip
    assert (refused["accepted"], refused["reason"]) == (False, "VersionTooLow")
    assert (refused["state"], refused["since"]) == ("active", 12)


async def test_what_an_agent_has_reported_goes_with_its_pe(rest: Rest) -> None:
    await rest("PUT", PE, AGENT)
    await rest("PUT", DEAR, RULE)
    await rest("PUT", f"{PE}/report", {"patterns": {"rules": {"dear": {"state": "disabled"}}}})
    before = (await rest("GET", DEAR)).body["status"]["state"]
    assert (await rest("DELETE", PE)).status == 204

    assert (before, (await rest("GET", DEAR)).body["status"]["state"]) == ("disabled", "unknown")


async def test_of_very_many_rules_several_reports_tell(rest: Rest) -> None:
    await rest("PUT", PE, AGENT)
    for name in ("a", "b"):
        await rest("PUT", f"{JOB}/{name}", RULE)
        body = {"patterns": {"rules": {name: {"version": 1, "state": "active"}}, "more": True}}
        await rest("PUT", f"{PE}/report", body)

    states = [one["status"]["state"] for one in (await rest("GET", JOB)).body["patterns"]]
    await rest("PUT", f"{PE}/report", {"patterns": {"rules": {}}})
    gone = [one["status"]["state"] for one in (await rest("GET", JOB)).body["patterns"]]

    assert (states, gone) == (["active", "active"], ["unknown", "unknown"])


async def test_a_job_changes_its_own_rules_and_no_others(guarded: Rest) -> None:
    own = await guarded("PUT", DEAR, RULE, **bearer("job"))
    other = await guarded("PUT", "/api/jobs/feed/patterns/dear", RULE, **bearer("job"))
    reading = await guarded("GET", "/api/jobs/feed/patterns", **bearer("job"))
    elsewhere = await guarded("GET", f"{JOB}?namespace=lab", **bearer("job"))

    assert [own.status, other.status, reading.status, elsewhere.status] == [201, 403, 200, 403]


async def test_rules_outlive_a_restart_of_the_broker(tmp_path: Path) -> None:
    for number in range(2):
        async with running_broker(tmp_path / "broker.db") as (_, rest):
            if not number:
                await rest("PUT", DEAR, RULE)
                await rest("PUT", PE, AGENT)
            view = await rest("GET", PE)
            assert [one["id"] for one in view.body["patterns"]] == ["dear"]


async def test_the_list_is_one_that_a_discoverer_reads(rest: Rest) -> None:
    import asyncio

    await rest("PUT", DEAR, RULE)
    discoverer = HttpDiscoverer(f"{rest.url}{JOB}")
    manager = PatternProcessorManager(lambda rules: None)

    first = await asyncio.to_thread(discoverer.initial_pattern_processors)
    manager.on_pattern_processors_updated(first)
    changed = await asyncio.to_thread(discoverer.check_pattern_processor_update)

    assert [one.id for one in manager.current_pattern_processors()] == ["dear"]
    assert not changed
