"""Exports that have ended, as a reader sees them."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pe_agent.agent.importing.peers import Peers, _Watched
from pe_agent.agent.news import News
from pe_agent.client import AgentClient
from pe_agent.datasource.options import Options
from pe_agent.datasource.source import StreambrokerStreamReader
from support.imports import A, B, Bench, answer, away, bench, plan, refused
from support.sources import SCHEMA
from support.waiting import until

SECONDS = 10.0


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return bench(tmp_path, monkeypatch)


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return the exports that have said so."""
    said: set[str] = set()
    monkeypatch.setattr(Peers, "ended", lambda _, export: export in said)
    return said


def is_ended(made: Bench, start: dict[str, Any]) -> bool:
    told = made.next(start)
    found: bool = made.host.status()["readers"][start["reader"]]["ended"]
    assert found == bool(told.get("ended"))
    return found


def test_a_reader_has_ended_when_all_exports_have_and_all_is_read(
    made: Bench, ended: set[str]
) -> None:
    made.connect(A, B)
    made.replies[A] = lambda _: answer(plan("s", 0, 2))
    made.replies[B] = lambda _: answer()
    first = made.offset()
    ended.add(A)
    made.replies[A] = lambda _: answer(plan("s", 2, 2))
    assert not is_ended(made, first)
    ended.add(B)
    assert is_ended(made, first)
    made.replies[B] = lambda _: answer(plan("t", 0, 1))
    assert not is_ended(made, first)
    made.replies[B] = lambda _: answer()
    ended.remove(B)
    assert not is_ended(made, first)


@pytest.mark.parametrize("reply", [away, refused("CapabilityInvalid")])
def test_a_reader_has_not_ended_while_an_exporter_gives_nothing(
    made: Bench, ended: set[str], reply: Any
) -> None:
    made.connect(A)
    made.replies[A] = lambda _: answer(plan("s", 0, 2))
    first = made.offset()
    ended.add(A)
    made.replies[A] = reply
    assert not is_ended(made, first)


def test_an_import_without_routes_has_not_ended(made: Bench, ended: set[str]) -> None:
    made.connect()
    assert not is_ended(made, made.offset())


def test_a_query_has_ended_when_all_its_readers_have(made: Bench, ended: set[str]) -> None:
    made.connect(A, ports=("in", "too"))
    made.replies[A] = lambda _: answer()
    one, two = made.offset(), made.next(None, **{"import": "too"})["offset"]
    told: dict[str, Any] = {"query": "q", "run": "r", "export": None, "foreign": False}
    told["frames"] = ["f1", "f2"]
    made.host.begin_query(told)
    ended.add(A)
    assert made.next(one, frame="f1")["ended"]
    assert made.host.begin_query(told) == {"ended": False}
    assert made.next(two, frame="f2", aside=True, **{"import": "too"})["ended"]
    assert made.host.begin_query(told) == {"ended": True}
    assert made.host.begin_query({**told, "foreign": True}) == {"ended": False}


def test_an_end_and_what_comes_after_it_are_news(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Peers, "_watch", lambda *_: None)
    news, says = News(), {"ended": True}

    class Agent(AgentClient):
        def call(self, action: str, *, timeout: float = 10.0, **body: Any) -> dict[str, Any]:
            return {"exports": {A: {"heads": {"s": 1}, **says}}}

    peers = Peers(news, dict, tuple)
    watched = _Watched("grpc+tcp://a:1", {A: {"default/alerts/0/in": "cap"}})
    seen = 0
    for said, news_of in ((True, True), (True, False), (False, True), (True, True)):
        says["ended"] = said
        peers._watch_once(Agent("grpc+tcp://a:1"), watched)
        assert peers.ended(A) is said
        now = news.seen(("default/alerts/0/in",))
        assert (now > seen) is news_of
        seen = now


def test_a_run_to_the_end_waits_until_all_exports_have_ended(
    made: Bench, ended: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Own:
        """The own agent, which is the bench."""

        def __init__(self, *_: object) -> None:
            pass

        def call(self, action: str, *, timeout: float = 10.0, **body: Any) -> dict[str, Any]:
            return made.host.next(body) if action == "reader.next" else {}

    monkeypatch.setattr("pe_agent.datasource.source.AgentClient", Own)
    made.connect(A)
    made.replies[A] = lambda _: answer(plan("s", 0, 2))
    source = StreambrokerStreamReader(SCHEMA, Options("in", "own", "", stop_at_end=True))
    source.prepareForTriggerAvailableNow()
    end = source.latestOffset(source.initialOffset(), ReadAllAvailable())
    made.replies[A] = lambda _: answer(plan("s", 2, 2))
    later: list[dict[str, Any]] = []
    waits = threading.Thread(
        target=lambda: later.append(source.latestOffset(end, ReadAllAvailable())), daemon=True
    )
    waits.start()
    until(made.news.waiting, SECONDS, "it waits")
    made.replies[A] = lambda _: answer(plan("s", 2, 3))
    made.news.tell("default/alerts/0/in")
    waits.join(SECONDS)
    assert [o["streams"]["s"]["next"] for o in later] == [3]
    made.replies[A] = lambda _: answer(plan("s", 3, 3))
    ended.add(A)
    assert source.latestOffset(later[0], ReadAllAvailable()) == later[0]
    source.stop()
