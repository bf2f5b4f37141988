"""The watch of other agents: whose readers it carries."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pe_agent.agent.imports.peer_agents import PeerAgents, _Watch
from pe_agent.agent.notifier import Notifier
from pe_agent.agent.server.caller_checks import MAX_PEER_BODY
from pe_agent.transport.agent_client import AgentClient
from streambroker_core.model import PeKey, PortKey
from streambroker_core.wire.broker.view import ImportPort, ImportRoute, View

EXPORT = "default/feed/0/trades"
LOCATION = "grpc+tcp://127.0.0.1:1"


class Recorder(AgentClient):
    """An agent that answers with fixed heads and notes what it was asked."""

    def __init__(self) -> None:
        super().__init__(LOCATION)
        self.asked: list[dict[str, Any]] = []
        self.heads: dict[str, int] | None = {"s": 3}
        self.ended = False

    def call(self, action: str, *, timeout: float = 10.0, **body: Any) -> dict[str, Any]:
        self.asked.append(body)
        if self.heads is None:
            return {"exports": {e: {"error": "not mine"} for e in body["exports"]}}
        return {"exports": {e: {"heads": self.heads, "ended": self.ended} for e in body["exports"]}}


def view(*ports: str, location: str = LOCATION) -> View:
    route = ImportRoute(export=PortKey.parse(EXPORT), uid="e", location=location, capability="cap")
    return View(
        pe=PeKey.parse("default/alerts/0"),
        imports={port: ImportPort(uid=port, routes=(route,)) for port in ports},
    )


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """Watch by hand instead of in a thread."""
    monkeypatch.setattr(PeerAgents, "_watch", lambda *_: None)
    return Recorder()


def watch(peers: PeerAgents, client: AgentClient, location: str = LOCATION) -> _Watch:
    one: _Watch = peers._watches[location, 0]
    peers._watch_once(client, one)
    return one


def test_the_readers_of_all_imports_of_one_export_keep_their_leases(watched: Recorder) -> None:
    alive = {"default/alerts/0/a": ["r1"], "default/alerts/0/b": ["r2", "r3"]}
    peers = PeerAgents(
        Notifier(), lambda: alive, tuple, lambda reader, export: f"{reader} {export}"
    )
    peers.apply_view(view("a", "b"))
    watch(peers, watched)
    asked = watched.asked[0]["exports"][EXPORT]
    assert asked["imports"] == {
        import_: {"capability": "cap", "readers": {r: f"{r} {EXPORT}" for r in readers}}
        for import_, readers in alive.items()
    }


def test_heads_that_moved_are_news_and_heads_that_did_not_are_none(watched: Recorder) -> None:
    news = Notifier()
    peers = PeerAgents(news, dict, tuple)
    peers.apply_view(view("a"))
    before = news.version(("default/alerts/0/a",))
    watch(peers, watched)
    assert (peers.heads(EXPORT), news.version(("default/alerts/0/a",))) == ({"s": 3}, before + 1)
    watch(peers, watched)
    assert news.version(("default/alerts/0/a",)) == before + 1
    assert watched.asked[1]["exports"][EXPORT]["heads"] == {"s": 3}


def test_an_exporter_learns_what_is_known_of_an_end_so_that_it_answers_what_differs(
    watched: Recorder,
) -> None:
    """What is no longer answered is not known: else a refusal would differ again and again."""
    peers = PeerAgents(Notifier(), dict, tuple)
    peers.apply_view(view("a"))
    reported: list[bool] = []
    for heads, watched.ended in (
        ({"s": 3}, False),
        ({"s": 3}, True),
        (None, True),
        ({"s": 3}, False),
    ):
        watched.heads = heads
        watch(peers, watched)
        reported.append(watched.asked[-1]["exports"][EXPORT]["ended"])
        assert peers.has_ended(EXPORT) is (watched.ended and heads is not None)
    assert reported == [False, False, True, False]


def test_a_route_that_is_gone_is_watched_no_more(watched: Recorder) -> None:
    peers = PeerAgents(Notifier(), dict, tuple)
    peers.apply_view(view("a"))
    one = watch(peers, watched)
    peers.apply_view(view())
    assert one.stopped.is_set()
    assert peers.heads(EXPORT) is None
    peers.apply_view(view("a"))
    assert watch(peers, watched) is not one


def test_a_reader_keeps_its_lease_where_its_route_is_gone_until_it_has_finished(
    watched: Recorder,
) -> None:
    left = [(LOCATION, EXPORT, "default/alerts/0/a")]
    peers = PeerAgents(Notifier(), lambda: {"default/alerts/0/a": ["r1"]}, lambda: left)
    peers.apply_view(view("a"))
    one = watch(peers, watched)
    peers.apply_view(view())
    assert watch(peers, watched) is one
    assert watched.asked[-1]["exports"][EXPORT]["imports"] == {
        "default/alerts/0/a": {"capability": None, "readers": {"r1": None}}
    }
    left.clear()
    peers.refresh()
    assert one.stopped.is_set()


MOVED = "grpc+tcp://127.0.0.1:2"


def test_the_old_address_of_an_exporter_that_moved_is_watched_no_more(watched: Recorder) -> None:
    left = [(LOCATION, EXPORT, "default/alerts/0/a")]
    peers = PeerAgents(Notifier(), dict, lambda: left)
    peers.apply_view(view("a"))
    one = watch(peers, watched)
    peers.note_away(LOCATION, "gone")
    peers.apply_view(view("a", location=MOVED))
    assert one.stopped.is_set()
    assert list(peers._watches) == [(MOVED, 0)]
    assert peers.away() == {}


@pytest.mark.parametrize("heads", [None, {"s": 2}], ids=["refuses", "has an older log"])
def test_who_has_the_old_address_of_an_exporter_now_says_nothing_of_it(
    watched: Recorder, heads: dict[str, int] | None
) -> None:
    peers = PeerAgents(Notifier(), dict, tuple)
    peers.apply_view(view("a"))
    old = watch(peers, watched)
    peers.apply_view(view("a", location=MOVED))
    watch(peers, watched, MOVED)
    watched.heads = heads
    peers._watch_once(watched, old)
    assert peers.heads(EXPORT) == {"s": 3}


def test_an_agent_that_refuses_is_not_away_and_is_asked_again(watched: Recorder) -> None:
    peers = PeerAgents(Notifier(), dict, tuple)
    peers.apply_view(view("a"))
    watched.heads = None
    assert peers._watch_once(watched, peers._watches[LOCATION, 0]) is False
    assert (peers.away(), peers.is_away(LOCATION)) == ({}, False)
    assert peers.refusals() == {EXPORT: "not mine"}
    watched.heads = {"s": 3}
    assert peers._watch_once(watched, peers._watches[LOCATION, 0]) is True
    assert peers.refusals() == {}


def test_what_is_read_at_one_agent_is_divided_into_watches_that_it_takes(
    watched: Recorder,
) -> None:
    exports = [f"default/feed/0/trades-{n:03}" for n in range(200)]
    routes = tuple(
        ImportRoute(export=PortKey.parse(e), uid=e, location=LOCATION, capability="c" * 2048)
        for e in exports
    )
    alive = {"default/alerts/0/a": [f"{n:032}" for n in range(10)]}
    peers = PeerAgents(Notifier(), lambda: alive, tuple, lambda *_: "p" * 64)
    peers.apply_view(
        View(pe=PeKey.parse("default/alerts/0"), imports={"a": ImportPort(uid="a", routes=routes)})
    )
    assert len(peers._watches) == 4
    for n in range(4):
        peers._watch_once(watched, peers._watches[LOCATION, n])
    assert sorted(e for asked in watched.asked for e in asked["exports"]) == exports
    assert max(len(json.dumps(asked)) for asked in watched.asked) < MAX_PEER_BODY
    peers.apply_view(view("a"))
    assert [*peers._watches] == [(LOCATION, 0)]
