"""REST over a real API server: what a caller is told of fields that others declare, too."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from streambroker_core.board import Board, ImportApplied
from streambroker_core.model import PortKey
from streambroker_core.wire.manifests.ports import read_manifest
from streambroker_operator.agents.hint_sender import HintSender
from streambroker_operator.rest.app import create_app
from streambroker_operator.runtime.runtime import Runtime
from support.brokers.brokers import Rest
from support.brokers.commands import Cli
from support.clusters.api_server import ApiServer
from support.clusters.writes import ALERTS, FEED, Others, Replica

TRADES = {**FEED, "properties": {"kind": "trade"}}
WANTED = {**ALERTS, "subscription": 'kind == "trade"'}


class Served:
    """A broker over the API server; `look` is its feed."""

    def __init__(self, replica: Replica, runtime: Runtime, rest: Rest) -> None:
        self.replica, self.runtime, self.rest = replica, runtime, rest

    async def __call__(self, method: str, path: str, body: Any = None, **headers: Any) -> Any:
        mark = "&" if "?" in path else "?"
        where = f"{path}{mark}namespace={self.replica.namespace}"
        return await self.rest(method, where, body, **headers)

    def look(self) -> None:
        self.replica.look(self.runtime.feed.deliver)


@asynccontextmanager
async def served(api: ApiServer, namespace: str) -> AsyncIterator[Served]:
    board, sender = Board(), HintSender()
    replica = Replica(api, namespace, board=board)
    runtime = Runtime(replica.store, sender, board)
    runtime.feed.start()
    runner = web.AppRunner(create_app(runtime), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        async with aiohttp.ClientSession() as session:
            yield Served(replica, runtime, Rest(url, session))
    finally:
        runtime.publisher.close()
        await runner.cleanup()
        sender.close()
        await replica.close()


@pytest.fixture
async def broker(api: ApiServer, namespace: str) -> AsyncIterator[Served]:
    async with served(api, namespace) as found:
        yield found


@pytest.fixture
def others(api: ApiServer, namespace: str, tmp_path: Path) -> Others:
    return Others(api, namespace, tmp_path)


EXPORT, IMPORT = "/job/feed/pe/0/export/trades", "/job/alerts/pe/0/import/trades"


async def test_before_the_feed_has_listed_nothing_is_answered(broker: Served) -> None:
    answer = await broker("GET", IMPORT)
    assert (answer.status, answer.code) == (503, "NotSynced")


async def test_a_change_is_in_the_views_when_it_is_answered_and_reported_once(
    broker: Served, others: Others
) -> None:
    others.declare("Export", TRADES)
    others.declare("Import", WANTED)
    broker.look()
    point, count = broker.runtime.board.point, broker.runtime.change_log.count
    answer = await broker("PUT", IMPORT + "/filter", {"filter": "price > 2.0"})
    assert (answer.status, answer.body["changed"]) == (200, True)
    assert [route["filter"] for route in answer.body["routes"]["kept"]] == ["price > 2.0"]
    view = await broker("GET", "/job/feed/pe/0")
    assert view.body["exports"]["trades"]["routes"][0]["filter"] == "price > 2.0"
    assert broker.runtime.board.point == point
    names = [change.name for change in broker.runtime.change_log.events_after(count, 10) or []]
    assert (names.count("import"), names.count("route-changed")) == (1, 1)
    count = broker.runtime.change_log.count
    broker.look()
    assert broker.runtime.change_log.count == count
    assert broker.runtime.board.point > point


async def test_a_field_of_a_manifest_is_refused_then_taken_by_force_then_released(
    broker: Served, others: Others
) -> None:
    others.declare("Import", {**WANTED, "filter": "price > 1.0"})
    broker.look()
    refused = await broker("PUT", IMPORT + "/filter", "price > 2.0")
    assert (refused.status, refused.code) == (409, "OwnedByOther")
    assert (refused.body["owner"], refused.body["field"]) == ("gitops", "filter")
    assert [one["owner"] for one in refused.body["conflicts"]] == ["gitops"]
    wrong = await broker("PUT", IMPORT + "/filter?force=yes", "price > 2.0")
    assert (wrong.status, wrong.code) == (400, "QueryInvalid")
    taken = await broker("PUT", IMPORT + "/filter?force=true", "price > 2.0")
    assert taken.status == 200
    assert 'declared by "gitops"' in taken.body["warnings"][0]
    released = await broker("POST", IMPORT + "/release")
    assert (released.status, released.body["changed"]) == (200, True)
    assert (await broker("GET", IMPORT + "/filter")).body == {"filter": None}
    again = await broker("POST", IMPORT + "/release")
    assert (again.status, again.body["changed"]) == (200, False)


async def test_properties_are_set_one_by_one_and_only_those_that_are_ours_go(
    broker: Served, others: Others
) -> None:
    others.declare("Export", TRADES)
    broker.look()
    for name, value in {"limit": 6, "venue": "x"}.items():
        answer = await broker("PUT", f"{EXPORT}/property/{name}", value)
        assert (answer.status, answer.body["changed"]) == (201, True)
    found = (await broker("GET", EXPORT + "/properties")).body
    assert found == {"kind": "trade", "limit": 6, "venue": "x"}
    answer = await broker("PATCH", EXPORT + "/properties", {"limit": 7, "venue": None})
    assert answer.status == 200
    found = (await broker("GET", EXPORT + "/properties")).body
    assert found == {"kind": "trade", "limit": 7}
    kept = await broker("DELETE", EXPORT + "/property/kind")
    assert (kept.status, kept.code) == (409, "OwnedByOther")
    all_of_them = await broker("DELETE", EXPORT + "/properties")
    assert (all_of_them.status, all_of_them.body["field"]) == (409, "properties.kind")
    assert (await broker("DELETE", EXPORT + "/properties?name=limit")).status == 200
    assert (await broker("GET", EXPORT + "/properties")).body == {"kind": "trade"}


async def test_a_merge_patch_touches_what_it_names(broker: Served, others: Others) -> None:
    others.declare("Export", TRADES)
    broker.look()
    others.declare("Export", {**TRADES, "allowFilter": False})
    answer = await broker("PATCH", EXPORT, {"congestionPolicy": "drop", "buffer": {"maxAge": "1h"}})
    assert answer.status == 200
    spec = others.live("Export", "feed")["spec"]
    assert (spec["congestionPolicy"], spec["buffer"]) == ("drop", {"maxAge": "1h"})
    assert spec["allowFilter"] is False, "what the broker has not heard of yet stays"


async def test_a_condition_is_held_against_what_is_there_now(
    broker: Served, others: Others
) -> None:
    others.declare("Import", WANTED)
    broker.look()
    tag = (await broker("GET", IMPORT)).headers["ETag"]
    others.declare("Import", {**WANTED, "start": "earliest"})
    stale = await broker("PUT", IMPORT + "/filter", "price > 2.0", If_Match=tag)
    assert (stale.status, stale.code) == (412, "ConditionFailed")
    assert "filter" not in others.live("Import", "alerts")["spec"]
    unborn = await broker("PUT", IMPORT, WANTED, If_None_Match="*")
    assert unborn.status == 412


async def test_a_resource_is_declared_owned_and_withdrawn_by_rest(
    broker: Served, others: Others, namespace: str
) -> None:
    broker.look()
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "feed", "uid": "0-1"}
    manifest = {
        "apiVersion": "streambroker.io/v1alpha1",
        "kind": "Export",
        "metadata": {"name": "feed", "namespace": namespace, "ownerReferences": [owner]},
        "spec": TRADES,
    }
    made = await broker("PUT", EXPORT, manifest)
    assert (made.status, made.body["created"]) == (201, True)
    assert others.live("Export", "feed")["metadata"]["ownerReferences"] == [owner]
    assert (await broker("PUT", EXPORT, manifest)).body["changed"] is False
    refused = await broker("POST", EXPORT + "/release")
    assert (refused.status, refused.code) == (409, "NotDeclared")
    gone = await broker("DELETE", EXPORT)
    assert gone.status == 200
    assert (await broker("GET", EXPORT)).status == 404
    assert others.live("Export", "feed") is None


async def test_several_changes_are_tried_before_the_first_is_made(
    broker: Served, others: Others, namespace: str
) -> None:
    others.declare("Import", {**WANTED, "filter": "price > 1.0"})
    broker.look()
    wanted = [
        others.manifest("Export", TRADES),
        others.manifest("Import", {**WANTED, "filter": "price > 2.0"}),
    ]
    refused = await broker("POST", "/apply", {"resources": wanted})
    assert (refused.status, refused.code) == (409, "OwnedByOther")
    assert others.live("Export", "feed") is None
    good = [others.manifest("Export", TRADES), others.manifest("Import", WANTED)]
    del good[1]["spec"]["subscription"]
    made = await broker("POST", "/apply", {"resources": [good[0]]})
    assert [one["became"] for one in made.body["results"]] == ["created"]


async def test_changes_of_others_are_reported_to_those_who_follow(
    broker: Served, others: Others, api: ApiServer
) -> None:
    others.declare("Export", TRADES)
    broker.look()
    count = broker.runtime.change_log.count
    others.declare("Import", WANTED)
    broker.look()
    api.request("DELETE", others.path("Export", "feed"))
    broker.look()
    reported = broker.runtime.change_log.events_after(count, 20) or []
    names = [change.name for change in reported]
    assert names[0] == "import"
    assert names.index("route-cut") > names.index("route-added")


async def test_an_event_of_the_feed_is_reported_as_what_it_is(
    broker: Served, others: Others
) -> None:
    document = others.declare("Import", WANTED)
    broker.look()
    count = broker.runtime.change_log.count
    changed = others.declare("Import", {**WANTED, "filter": "price > 1.0"})
    resource = read_manifest(changed)
    version = int(changed["metadata"]["resourceVersion"])
    for _ in range(2):
        broker.runtime.feed.deliver(ImportApplied(import_=resource, version=version))  # type: ignore[arg-type]
    reported = broker.runtime.change_log.events_after(count, 20) or []
    assert [change.name for change in reported].count("import") == 1
    assert document["metadata"]["uid"] == resource.uid
    key = PortKey.parse(f"{broker.replica.namespace}/alerts/0/trades")
    stored = broker.runtime.store.get("Import", key)
    assert stored is not None
    assert stored.version == version


async def test_the_command_line_takes_by_force_and_gives_back(
    broker: Served, others: Others, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    others.declare("Import", {**WANTED, "filter": "price > 1.0"})
    broker.look()
    cli, where = Cli(broker.rest, capsys, tmp_path), ("-n", broker.replica.namespace)
    code, _, err = await cli("set-filter", "alerts/0/trades", "price > 2.0", *where)
    assert code == 1
    assert 'declared by "gitops"' in err
    code, out, err = await cli("set-filter", "alerts/0/trades", "price > 2.0", "--force", *where)
    assert (code, "filter set" in out) == (0, True)
    assert 'note: `filter` of Import alerts was declared by "gitops"' in err
    code, out, _ = await cli("release", "import/alerts", *where)
    assert code == 0
    assert out.startswith(f"import {broker.replica.namespace}/alerts/0/trades released")
    assert "filter" not in others.live("Import", "alerts")["spec"]
    code, out, _ = await cli("release", "alerts/0/trades", *where)
    assert (code, "unchanged" in out) == (0, True)
    code, _, err = await cli("release", "pe/alerts/0", *where)
    assert (code, "A PE has nothing to release" in err) == (2, True)
