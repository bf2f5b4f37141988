"""Exports that have ended, as a reader sees them."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pe_agent.agent.imports.peer_agents import PeerAgents, _Watch
from pe_agent.agent.notifier import Notifier
from pe_agent.datasource.options import Options
from pe_agent.datasource.source import ExportRefusesError, StreambrokerStreamReader
from pe_agent.transport.agent_client import AgentClient
from streambroker_core.errors import StreambrokerError
from support.agents.imports import A, B, Bench, answer, away, bench, plan, refused
from support.agents.rpc import ask
from support.agents.sources import SCHEMA
from support.processes.waiting import until

SECONDS = 10.0


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return bench(tmp_path, monkeypatch)


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return the exports that have said so."""
    said: set[str] = set()
    monkeypatch.setattr(PeerAgents, "has_ended", lambda _, export: export in said)
    return said


def is_ended(made: Bench, start: dict[str, Any]) -> bool:
    reported = made.next(start)
    found: bool = made.host.status()["readers"][start["reader"]]["ended"]
    assert found == bool(reported.get("ended"))
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
    reported: dict[str, Any] = {"query": "q", "run": "r", "exports": [], "foreign": False}
    reported["frames"] = ["f1", "f2"]
    ask(made.host.begin_query, reported)
    ended.add(A)
    assert made.next(one, frame="f1")["ended"]
    assert ask(made.host.begin_query, reported) == {"ended": False}
    assert made.next(two, frame="f2", aside=True, **{"import": "too"})["ended"]
    assert ask(made.host.begin_query, reported) == {"ended": True}
    assert ask(made.host.begin_query, {**reported, "foreign": True}) == {"ended": False}


def test_an_end_and_what_comes_after_it_are_news(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PeerAgents, "_watch", lambda *_: None)
    news, says = Notifier(), {"ended": True}

    class Agent(AgentClient):
        def call(self, action: str, *, timeout: float = 10.0, **body: Any) -> dict[str, Any]:
            return {"exports": {A: {"heads": {"s": 1}, **says}}}

    peers = PeerAgents(news, dict, tuple)
    watched = _Watch("grpc+tcp://a:1", {A: {"default/alerts/0/in": "cap"}})
    seen = 0
    for said, news_of in ((True, True), (True, False), (False, True), (True, True)):
        says["ended"] = said
        peers._watch_once(Agent("grpc+tcp://a:1"), watched)
        assert peers.has_ended(A) is said
        now = news.version(("default/alerts/0/in",))
        assert (now > seen) is news_of
        seen = now


@pytest.fixture
def own(made: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let sources ask the bench as their own agent."""

    class Own:
        def __init__(self, *_: object) -> None:
            pass

        def call(self, action: str, *, timeout: float = 10.0, **body: Any) -> dict[str, Any]:
            return ask(made.host.next_offset, body) if action == "reader.next" else {}

    monkeypatch.setattr("pe_agent.datasource.source.AgentClient", Own)
    monkeypatch.setattr("pe_agent.datasource.source.PREFETCH_WAIT_SECONDS", 0.01)


def to_the_end(reconnect: float = SECONDS, **options: Any) -> StreambrokerStreamReader:
    how = Options("in", "own", "", stop_at_end=True, reconnect=reconnect, **options)
    return StreambrokerStreamReader(SCHEMA, how)


@pytest.mark.usefixtures("own")
def test_a_run_to_the_end_waits_until_all_exports_have_ended(
    made: Bench, ended: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pe_agent.datasource.source.PREFETCH_WAIT_SECONDS", 1.0)
    made.connect(A)
    made.replies[A] = lambda _: answer(plan("s", 0, 2))
    source = to_the_end()
    source.prepareForTriggerAvailableNow()
    end = source.latestOffset(source.initialOffset(), ReadAllAvailable())
    made.replies[A] = lambda _: answer(plan("s", 2, 2))
    later: list[dict[str, Any]] = []
    waits = threading.Thread(
        target=lambda: later.append(source.latestOffset(end, ReadAllAvailable())), daemon=True
    )
    waits.start()
    until(made.news.waiters, SECONDS, "it waits")
    made.replies[A] = lambda _: answer(plan("s", 2, 3))
    made.news.notify("default/alerts/0/in")
    waits.join(SECONDS)
    assert [o["streams"]["s"]["next"] for o in later] == [3]
    made.replies[A] = lambda _: answer(plan("s", 3, 3))
    ended.add(A)
    assert source.latestOffset(later[0], ReadAllAvailable()) == later[0]
    source.stop()


def misfit(_: dict[str, Any]) -> dict[str, Any]:
    return {**answer(), "misfits": ["no column"]}


def not_read(made: Bench, why: str) -> None:
    """Let A refuse when it is asked for a plan."""
    made.replies[A] = {"misfit": misfit, "revoked": refused("Revoked")}[why]


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("why", ["misfit", "revoked"])
def test_a_run_to_the_end_fails_when_there_is_nothing_left_but_what_refuses(
    made: Bench, ended: set[str], why: str
) -> None:
    made.connect(A, B)
    not_read(made, why)
    made.replies[B] = lambda _: answer(plan("t", 0, 2))
    source = to_the_end(reconnect=0.2)
    source.prepareForTriggerAvailableNow()
    end = source.latestOffset(source.initialOffset(), ReadAllAvailable())
    made.replies[B] = lambda _: answer()
    ended.add(B)
    with pytest.raises(ExportRefusesError, match=f"{A}: no"):
        source.latestOffset(end, ReadAllAvailable())
    source.stop()


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("goes_on", ["another", "silent"])
def test_a_run_to_the_end_waits_for_others_whatever_refuses(
    made: Bench, ended: set[str], goes_on: str
) -> None:
    """One that is not there, or has not ended, may have more to give."""
    made.connect(A, B)
    made.replies[A], made.replies[B] = misfit, lambda _: answer()
    source = to_the_end(reconnect=0.1)
    source.prepareForTriggerAvailableNow()
    later: list[object] = []

    def ask() -> None:
        try:
            later.append(source.latestOffset(first, ReadAllAvailable()))
        except StreambrokerError as error:
            later.append(error)

    first = source.latestOffset(source.initialOffset(), ReadAllAvailable())
    if goes_on == "silent":
        ended.add(B)
        made.replies[B] = away
    waits = threading.Thread(target=ask, daemon=True)
    waits.start()
    waits.join(1.0)
    assert later == []
    ended.add(B)
    made.replies[B] = lambda _: answer()
    waits.join(SECONDS)
    assert [type(found) for found in later] == [ExportRefusesError]
    source.stop()


@pytest.mark.usefixtures("own")
def test_a_refusal_that_passes_does_not_end_the_run(made: Bench, ended: set[str]) -> None:
    made.connect(A)
    made.replies[A], asked = misfit, len(made.asked)
    source = to_the_end()
    source.prepareForTriggerAvailableNow()
    first = source.latestOffset(source.initialOffset(), ReadAllAvailable())
    found: list[Any] = []
    waits = threading.Thread(
        target=lambda: found.append(source.latestOffset(first, ReadAllAvailable())), daemon=True
    )
    waits.start()
    until(lambda: len(made.asked) > asked + 3, SECONDS, "it asks again")
    made.replies[A] = lambda _: answer(plan("s", 0, 2))
    waits.join(SECONDS)
    assert found[0]["streams"]["s"]["next"] == 2
    source.stop()


QUERY: dict[str, Any] = {"query": "q", "run": "r", "exports": [], "foreign": False}


def asked_for(source: StreambrokerStreamReader, start: dict[str, Any], seconds: float) -> Any:
    """Return what a query that goes on meets, asking at once again for so long."""
    stop = time.monotonic() + seconds
    while time.monotonic() < stop:
        try:
            if (found := source.latestOffset(start, ReadAllAvailable())) != start:
                return found
        except StreambrokerError as error:
            return error
    return None


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("stops", [True, False])
def test_a_query_that_stops_at_the_end_fails_when_only_what_refuses_is_left(
    made: Bench, ended: set[str], stops: bool
) -> None:
    made.connect(A)
    made.replies[A] = misfit
    ask(made.host.begin_query, {**QUERY, "frames": ["f"]})
    how = Options("in", "own", "", stop_at_end=stops, reconnect=0.2, frame="f")
    source = StreambrokerStreamReader(SCHEMA, how)
    first = source.latestOffset(source.initialOffset(), ReadAllAvailable())
    met = asked_for(source, first, SECONDS if stops else 1.0)
    assert isinstance(met, ExportRefusesError) == stops
    assert ask(made.host.begin_query, {**QUERY, "frames": ["f"]}) == {"ended": False}
    source.stop()


def test_such_a_query_reads_its_other_imports_to_their_end_before(
    made: Bench, ended: set[str]
) -> None:
    made.connect(A, ports=("in", "too"))
    made.replies[A] = lambda body: misfit(body) if body["import"].endswith("/in") else answer()
    ask(made.host.begin_query, {**QUERY, "frames": ["f", "g"]})
    one, two = made.offset(), made.next(None, **{"import": "too"})["offset"]
    assert "left" not in made.next(one, frame="f")
    assert "left" not in made.next(two, frame="g", aside=True, **{"import": "too"})
    assert "left" not in made.next(one, frame="f")
    ended.add(A)
    assert made.next(two, frame="g", aside=True, **{"import": "too"})["ended"]
    reported = made.next(one, frame="f")
    assert (reported["left"] > 0, list(reported["refused"])) == (True, [A])
    ask(made.host.begin_query, {**QUERY, "frames": ["f", "g"], "foreign": True})
    assert "left" not in made.next(one, frame="f")
