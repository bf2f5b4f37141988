"""Rules behind a URL: conditional requests, servers that are away, and answers that are none."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from pe_agent.transport.tokens import Token
from streambroker.patterns import DiscoveryError, HttpDiscoverer, PatternProcessorManager

PATTERN = {"stages": [{"name": "a", "where": 'n == "A"'}]}


def document(name: str, version: int = 1) -> dict[str, Any]:
    return {"id": name, "version": version, "pattern": PATTERN}


class Server:
    """Answers what it is told to, and keeps what it is asked."""

    def __init__(self) -> None:
        self.status, self.body, self.headers = 200, b"[]", dict[str, str]()
        self.asked: list[dict[str, str]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append({k.lower(): v for k, v in self.headers.items()})
                known = outer.headers.get("ETag")
                same = known is not None and self.headers.get("If-None-Match") == known
                self.send_response(304 if same else outer.status)
                for name, value in outer.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                if not same:
                    self.wfile.write(outer.body)

            def log_message(self, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/rules"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def answer(self, value: Any, **headers: str) -> None:
        self.status, self.headers = 200, {k.replace("_", "-"): v for k, v in headers.items()}
        self.body = value if isinstance(value, bytes) else json.dumps(value).encode()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()
    yield found
    found.close()


def rules_of(manager: PatternProcessorManager) -> list[tuple[str, int]]:
    return [(rule.id, rule.version) for rule in manager.current_pattern_processors()]


def started(discoverer: HttpDiscoverer) -> PatternProcessorManager:
    manager = PatternProcessorManager(lambda rules: None)
    manager.on_pattern_processors_updated(discoverer.initial_pattern_processors())
    return manager


def test_rules_are_asked_for_with_their_tag_and_taken_when_it_is_another(server: Server) -> None:
    server.answer([document("a")], ETag='"1"')
    discoverer = HttpDiscoverer(server.url)
    manager = started(discoverer)

    discoverer.poll(manager)
    same = rules_of(manager)
    server.answer([document("a", 2), document("b")], ETag='"2"')
    discoverer.poll(manager)

    assert same == [("a", 1)]
    assert rules_of(manager) == [("a", 2), ("b", 1)]
    assert [each.get("if-none-match") for each in server.asked] == [None, '"1"', '"1"']


@pytest.mark.parametrize(
    ("body", "content"),
    [
        (json.dumps(document("a")).encode(), "application/json"),
        (json.dumps({"patterns": [document("a")], "more": 1}).encode(), "application/json"),
        (b"id: a\nversion: 1\npattern:\n  stages: [{name: a}]\n", "application/yaml"),
    ],
)
def test_one_rule_a_list_in_an_object_and_yaml_are_read(
    server: Server, body: bytes, content: str
) -> None:
    server.answer(body, Content_Type=content)

    assert rules_of(started(HttpDiscoverer(server.url))) == [("a", 1)]


def test_an_answer_without_a_tag_is_compared(server: Server) -> None:
    server.answer([document("a")])
    discoverer = HttpDiscoverer(server.url)
    started(discoverer)

    same = discoverer.check_pattern_processor_update()
    server.answer([document("a", 2)])

    assert not same
    assert discoverer.check_pattern_processor_update()


def test_an_item_that_is_no_rule_is_refused_alone(server: Server) -> None:
    server.answer([document("a"), "b", {"id": "c", "version": 1}])
    manager = started(HttpDiscoverer(server.url))

    assert rules_of(manager) == [("a", 1)]
    refused = {each.rule: each.message for each in manager.reports() if each.reason}
    assert refused.keys() == {"number 1", "c"}
    assert "'b', not a mapping" in refused["number 1"]


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (503, b"", "answers 503"),
        (404, b"[]", "answers 404"),
        (302, b"", "answers 302"),
        (200, b"{", "cannot be read"),
        (200, b"\xff", "not UTF-8"),
    ],
)
def test_a_server_that_cannot_be_read_keeps_the_rules_and_says_so(
    server: Server, status: int, body: bytes, why: str
) -> None:
    server.answer([document("a")], ETag='"1"')
    discoverer = HttpDiscoverer(server.url, interval=1.0)
    manager = started(discoverer)

    server.answer(body, Location="http://127.0.0.1:1/")
    server.status = status
    discoverer.poll(manager)

    assert rules_of(manager) == [("a", 1)]
    assert why in str(discoverer.problem)
    server.answer([document("a")], ETag='"1"')
    discoverer.poll(manager)
    assert discoverer.problem is None


def test_the_first_rules_have_to_be_there() -> None:
    closed = Server()
    closed.close()

    with pytest.raises(DiscoveryError, match="does not answer"):
        HttpDiscoverer(closed.url).initial_pattern_processors()


def test_a_server_that_is_away_is_asked_more_rarely_up_to_a_limit(server: Server) -> None:
    server.answer([])
    discoverer = HttpDiscoverer(server.url, interval=2.0)
    manager = started(discoverer)
    server.status = 500
    pauses = [discoverer.pause()]
    for _ in range(9):
        discoverer.poll(manager)
        pauses.append(discoverer.pause())

    server.status, server.headers = 503, {"Retry-After": "299"}
    discoverer.poll(manager)
    reported = discoverer.pause()
    server.answer([])
    discoverer.poll(manager)

    assert pauses == [2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 300.0, 300.0]
    assert reported == 300.0
    assert discoverer.pause() == 2.0


def test_a_server_may_ask_for_a_longer_pause(server: Server) -> None:
    server.answer([], Retry_After="77")
    server.status = 429
    discoverer = HttpDiscoverer(server.url, interval=1.0)
    discoverer.poll(PatternProcessorManager(lambda rules: None))

    assert discoverer.pause() == 77.0


def test_a_token_is_shown(server: Server) -> None:
    HttpDiscoverer(server.url, token=Token("letmein")).initial_pattern_processors()

    assert server.asked[0]["authorization"] == "Bearer letmein"


@pytest.mark.parametrize("url", ["file:///etc/rules", "rules.json", "http:///rules"])
def test_other_addresses_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match="not an address of rules"):
        HttpDiscoverer(url)
