"""The page of a cluster: two replicas behind one Service, and the rights of a real API server."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from console.browser import WAIT_MS, Console
from console.service import Service
from support.agents.agents import AgentProcess, Publishing, rows
from support.agents.connected import Connected
from support.clusters.api_server import ApiServer, running_api_server
from support.clusters.calls import allowed, declare_role, make_account, manifest, token_of
from support.clusters.programs import assets
from support.clusters.replicas import SignedAgent, declare, make_key, operator
from support.processes.waiting import until

expect.set_options(timeout=WAIT_MS)
START_S = 60.0
STREAMS = "streambroker.io"
LISTS = allowed((STREAMS, "exports", "list"), (STREAMS, "imports", "list"))
READS = LISTS + allowed((STREAMS, "exports", "get"), (STREAMS, "imports", "get"))
RIGHTS = {
    "stranger": [],
    "half": READS[:1],
    "reader": READS,
    "peeker": READS + allowed((STREAMS, "exports/peek", "get")),
}
"""Accounts in the namespace ``default``, each with what it may do there."""
NAMES = ("secret-feed", "row 9")
"""A job and a row: what only callers with rights may see."""


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with running_api_server(assets(), tmp_path_factory.mktemp("cluster")) as server:
        yield server


class EventRequests:
    """The requests of a page for events: what each sends as the last event that it received."""

    def __init__(self, page: Any) -> None:
        self.last_ids: list[str] = []
        page.on("request", self._see)

    def _see(self, request: Any) -> None:
        if "/events?" in request.url:
            self.last_ids.append(request.headers.get("last-event-id", ""))


def is_stream(response: Any) -> bool:
    return "/events?" in response.url and response.status == 200


def test_a_page_goes_on_at_the_other_replica_when_its_own_is_killed(
    api: ApiServer, browser: Any, tmp_path: Path
) -> None:
    namespace = "streams"
    api.create_namespace(namespace)
    make_key(api, namespace)
    make_account(api, namespace, "reader")
    declare_role(api, namespace, "reader", READS)
    declare(api, namespace)
    with (
        operator(api, tmp_path, namespace) as first,
        operator(api, tmp_path, namespace) as second,
        Service(first.url, second.url) as service,
    ):
        console = Console(browser, service.url)
        events = EventRequests(console.page)
        console.sign_in_with(token_of(api, namespace, "reader"))
        expect(console.page.get_by_text("2 jobs, 1 route")).to_be_visible()
        assert service.connections[1] == 0
        assert events.last_ids == [""]

        with console.page.expect_response(is_stream, timeout=3 * WAIT_MS):
            first.kill()
        expect(console.page.get_by_text("Live", exact=True)).to_be_visible()
        assert events.last_ids[-1] != ""
        requests = len(events.last_ids)

        late = manifest("Import", "late", job="late", port="in", subscription='kind == "trade"')
        done = api.kubectl("apply", "-n", namespace, "-f", "-", stdin=json.dumps(late))
        assert done.returncode == 0, done.stderr
        expect(console.page.get_by_text("3 jobs, 2 routes")).to_be_visible()

        entries = console.page.get_by_role("navigation", name="Jobs").get_by_role("button")
        for name in ("alerts", "feed", "late"):
            expect(console.job(name)).to_have_count(1)
        expect(entries).to_have_count(3)
        canvas = console.page.get_by_test_id("canvas").element_handle()
        console.page.wait_for_function("box => Object.keys(box.places()).length === 3", arg=canvas)
        assert len(events.last_ids) == requests, "the page follows one stream"
        assert service.connections[1] > 0
        console.close()
    assert console.problems == []
    assert console.elsewhere == []


@pytest.fixture
def tokens(api: ApiServer) -> dict[str, str]:
    for name, rules in RIGHTS.items():
        make_account(api, "default", name)
        declare_role(api, "default", name, rules)
    return {name: token_of(api, "default", name) for name in RIGHTS}


@pytest.fixture
def cluster(api: ApiServer, tmp_path: Path) -> Iterator[str]:
    """The address of a broker; the agent of the job secret-feed has ten rows."""
    make_key(api, "default")
    with operator(api, tmp_path, "default") as broker:
        token = {"STREAMBROKER_TOKEN": SignedAgent(api, "default", "secret-feed").token}
        agent = AgentProcess(tmp_path / "feed", "secret-feed", broker=broker.url, environment=token)
        try:
            agent.start()
            Connected.declare(agent, "export", "trades", properties={"kind": "trade"})
            until(lambda: agent.status()["exports"], 2 * START_S, "the export at its agent")
            Publishing(agent).publish(0, rows(0, 10))
            yield broker.url
        finally:
            agent.kill()


def test_the_page_shows_what_the_api_server_lets_its_caller_read(
    browser: Any, cluster: str, tokens: dict[str, str]
) -> None:
    seen = {name: texts_of(browser, cluster, token) for name, token in tokens.items()}
    found = {who: [name for name in NAMES if name in text] for who, text in seen.items()}

    assert found == {
        "stranger": [],
        "half": [],
        "reader": ["secret-feed"],
        "peeker": ["secret-feed", "row 9"],
    }
    assert "NotYours" in seen["reader"]


def texts_of(browser: Any, url: str, token: str) -> str:
    """Return what all views show, also to a caller who skips the form for signing in."""
    console = Console(browser, url)
    page = console.page
    page.goto(f"{url}/ui/")
    page.evaluate("token => sessionStorage.setItem('streambroker.token', token)", token)
    found = ""
    for view in ("topology", "port", "why", "rows"):
        console.open(view)
        expect(page.get_by_role("status", name="Loading")).to_have_count(0)
        expect(page.locator("main")).to_contain_text(re.compile(r"\w"))
        found += console.text()
    console.open("rows?export=default/secret-feed/0/trades")
    expect(page.get_by_role("status", name="Loading")).to_have_count(0)
    peek = page.get_by_role("button", name="Peek")
    if peek.count():
        with page.expect_response("**/rows?*"):
            peek.click()
        expect(page.get_by_role("button", name="Peek")).to_be_enabled()
        found += str(page.locator("main").inner_text())
    console.close()
    assert console.problems == []
    return found
