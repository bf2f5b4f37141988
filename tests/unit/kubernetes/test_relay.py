"""What replicas tell each other: only who has the secret is heard, and only for a moment."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from streambroker_core.model import PeKey
from streambroker_core.wire.broker.ended_exports import EndedExports, make_ended_exports
from streambroker_core.wire.reports.rule_status import RuleStatus
from streambroker_core.wire.reports.schema_status import NO_VERSION, SchemaStatus
from streambroker_core.wire.reports.storage_status import StorageStatus
from streambroker_operator.errors import RequestError
from streambroker_operator.kubernetes.replicas import report_relay as relay
from streambroker_operator.kubernetes.replicas.agent_reports import (
    AgentReport,
    DamageReport,
    EndsReport,
    RulesReport,
    SchemaReport,
    StorageReport,
    ViewReport,
)
from support.core.resources import pe

SECRET, NOW = b"s" * 32, 1_000.0
FEED, ALERTS = pe("default/feed/0"), pe("default/alerts/0")


def reported(at: float = NOW, runs: Any = None) -> bytes:
    return json.dumps(
        {"at": at, "runs": {str(FEED): ["v1", 0.5, "first"]} if runs is None else runs}
    ).encode()


def read(
    body: bytes, secret: bytes = SECRET, scheme: str = "Replica"
) -> list[tuple[PeKey, AgentReport]]:
    shown = relay.sign(secret, body).replace("Replica", scheme)
    return relay.read_reports(SECRET, shown, body, NOW)


def with_ends(ended: Any) -> bytes:
    return json.dumps({"at": NOW, "runs": {}, "ended": ended}).encode()


def test_a_replica_is_heard() -> None:
    ended = {str(FEED): ["trades,*", 0.25, "first"], str(ALERTS): ["", 0.5, "second"]}
    some = EndedExports(ports=frozenset({"trades"}), more=True)

    assert read(reported()) == [(FEED, ViewReport("v1", ago_s=0.5, instance="first"))]
    assert read(with_ends(ended)) == [
        (FEED, EndsReport(some, ago_s=0.25, instance="first")),
        (ALERTS, EndsReport(EndedExports(), ago_s=0.5, instance="second")),
    ]


@pytest.mark.compatibility(
    "reports between replicas",
    "an older replica sends no ends",
)
def test_a_replica_of_an_older_release_says_nothing_of_ends() -> None:
    assert [type(report) for _, report in read(reported())] == [ViewReport]


@pytest.mark.parametrize("shown", ["", "Replica", "Replica 00", "Bearer token"])
def test_who_shows_no_proof_is_refused(shown: str) -> None:
    with pytest.raises(RequestError) as raised:
        relay.read_reports(SECRET, shown, reported(), NOW)

    assert raised.value.status == 401


def test_another_secret_or_another_body_is_refused() -> None:
    with pytest.raises(RequestError):
        read(reported(), secret=b"t" * 32)
    with pytest.raises(RequestError):
        relay.read_reports(SECRET, relay.sign(SECRET, reported()), reported(runs={}), NOW)


@pytest.mark.parametrize("at", [NOW - 61, NOW + 61])
def test_what_was_reported_long_ago_is_refused(at: float) -> None:
    with pytest.raises(RequestError):
        read(reported(at))


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"[]", b"{}"),
        *(reported(runs=runs) for runs in ([1], {"a/b": ["v", 0, ""]}, {str(FEED): "v"})),
        reported(runs={str(FEED): ["v1", 0.5]}),
        *(with_ends(ended) for ended in ([1], {"a/b": ["x", 0, ""]}, {str(FEED): "x"})),
        with_ends({str(FEED): ["no port", 0.5, ""]}),
    ],
)
def test_what_cannot_be_read_is_refused(body: bytes) -> None:
    with pytest.raises(RequestError):
        read(body)


async def test_a_leader_that_cannot_be_informed_is_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    one = relay.ReportRelay(SECRET, lambda: "http://127.0.0.1:1")
    async with aiohttp.ClientSession(trust_env=False) as session:
        for _ in range(2):
            one.note(FEED, ViewReport("v1"))
            await one._send(session)

    assert caplog.text.count("which agents poll this replica") == 1


class Leader:
    """Takes what it is told, as an older release reads it too."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.reported: list[tuple[PeKey, AgentReport]] = []

    async def take(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.bodies.append(json.loads(body))
        self.reported = relay.read_reports(
            SECRET, request.headers["Authorization"], body, self.bodies[-1]["at"]
        )
        return web.Response(status=204)


@asynccontextmanager
async def relay_to(
    leader: Leader,
) -> AsyncIterator[tuple[relay.ReportRelay, aiohttp.ClientSession]]:
    app = web.Application()
    app.router.add_post(relay.PATH, leader.take)
    async with TestServer(app) as server, aiohttp.ClientSession(trust_env=False) as session:
        yield relay.ReportRelay(SECRET, lambda: str(server.make_url("")).rstrip("/"), str), session


async def test_the_last_word_of_an_agent_is_reported_beside_the_view_that_it_runs() -> None:
    leader, ended = Leader(), EndedExports(ports=frozenset({"trades"}))
    async with relay_to(leader) as (one, session):
        one.note(FEED, ViewReport("v1", ago_s=0.5))
        one.note(FEED, EndsReport(EndedExports()))
        one.note(FEED, EndsReport(ended))
        await one._send(session)

    ((who, report),) = [
        reported for reported in leader.reported if isinstance(reported[1], EndsReport)
    ]
    assert isinstance(report, EndsReport)
    assert (who, report.ends, report.instance) == (FEED, ended, str(FEED))
    assert 0 <= report.ago_s < 10
    ((name, (version, since, _)),) = leader.bodies[0]["runs"].items()
    assert (name, version) == (str(FEED), "v1")
    assert since >= 0.5


async def test_damage_is_reported_with_its_age_and_the_instance_that_reported_it() -> None:
    leader, harm = Leader(), {"trades": "epochs 3 to 5 are missing."}
    async with relay_to(leader) as (one, session):
        one.note(FEED, DamageReport({}))
        one.note(FEED, DamageReport(harm))
        await one._send(session)

    ((who, report),) = leader.reported
    assert isinstance(report, DamageReport)
    assert (who, report.damaged, report.instance) == (FEED, harm, str(FEED))
    assert 0 <= report.ago_s < 10


async def test_uploads_are_reported_with_those_of_agents_without_storage() -> None:
    leader = Leader()
    uploads = {"trades": StorageStatus(seconds=60, error="it fails."), "quotes": StorageStatus()}
    uploads["news"] = StorageStatus(exists=False)
    async with relay_to(leader) as (one, session):
        one.note(FEED, StorageReport(uploads))
        await one._send(session)

    ((who, report),) = leader.reported
    assert isinstance(report, StorageReport)
    assert (who, report.storage, report.instance) == (FEED, uploads, str(FEED))


async def test_versions_are_relayed_with_those_of_agents_that_have_none() -> None:
    leader, second = Leader(), SchemaStatus(number=2, since="2026-11-30T06:00:00Z")
    schemas = {"trades": second, "quotes": SchemaStatus(number=1), "news": NO_VERSION}
    async with relay_to(leader) as (one, session):
        one.note(FEED, SchemaReport(schemas))
        await one._send(session)

    ((who, report),) = leader.reported
    assert isinstance(report, SchemaReport)
    assert (who, report.schemas, report.instance) == (FEED, schemas, str(FEED))


async def test_many_long_words_are_reported_in_several_bodies_that_are_taken() -> None:
    leader = Leader()
    most = make_ended_exports(f"p{n:062}" for n in range(100))
    async with relay_to(leader) as (one, session):
        for n in range(relay.ENDS_AT_ONCE + 1):
            one.note(pe(f"default/feed-{n}/0"), EndsReport(most))
        while one._pending[EndsReport]:
            await one._send(session)

    assert [len(body["ended"]) for body in leader.bodies] == [relay.ENDS_AT_ONCE, 1]


async def test_of_rules_each_report_is_reported_by_itself_with_whether_it_is_all() -> None:
    leader, reported = Leader(), {"dear": RuleStatus(version=1, state="active", matches=7)}
    async with relay_to(leader) as (one, session):
        one.note(FEED, RulesReport(reported, True))
        one.note(ALERTS, RulesReport(reported, False))
        await one._send(session)

    assert leader.reported == [
        (FEED, RulesReport(reported, True)),
        (ALERTS, RulesReport(reported, False)),
    ]
