"""Which call for news waits when a query has several, and what a full export holds back."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pe_agent.agent.imports import backpressure as gates
from streambroker_core.ledger.retention import BlockingReader
from streambroker_core.wire.agent_rpc.codec import decode
from streambroker_core.wire.agent_rpc.job import QueryBegin
from support.agents.imports import A, Bench, answer, bench, plan
from support.agents.rpc import ask
from support.processes.waiting import until

LONG = 60.0
SECONDS = 10.0
PE = "default/alerts/0"


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Return a bench on which a call that waits does so for longer than any test."""
    monkeypatch.setattr(gates, "MAX_WAIT_SECONDS", LONG)
    monkeypatch.setattr(gates, "MAX_WAIT_WITH_OTHERS", 0.0)
    monkeypatch.setattr("pe_agent.agent.imports.offset_planner.MAX_WAIT_SECONDS", LONG)
    made = bench(tmp_path, monkeypatch)
    made.connect(A, ports=("in", "too"))
    made.replies[A] = lambda _: answer()
    return made


def begin(made: Bench, *frames: str, query: str | None = "q", **more: Any) -> None:
    reported = {"query": query, "run": "r", "exports": [], "foreign": False, **more}
    made.host.queries.begin(decode(QueryBegin, {**reported, "frames": list(frames)}))


class Asked:
    """A call for the next offset, in a thread; ``end`` waits for its answer."""

    def __init__(self, made: Bench, start: dict[str, Any], **request: Any) -> None:
        self._made = made
        self._answers: list[dict[str, Any]] = []
        self._thread = threading.Thread(
            target=lambda: self._answers.append(made.next(start, **request)), daemon=True
        )
        self._thread.start()

    def waits_for(self, *keys: str) -> None:
        wanted = frozenset(f"{PE}/{key}" for key in keys)
        until(lambda: wanted in self._made.news.waiters(), SECONDS, f"a wait for {keys}")

    def end(self) -> dict[str, Any]:
        self._thread.join(SECONDS)
        assert self._answers, "it waits on"
        return self._answers[0]


def opened(made: Bench, port: str = "in") -> dict[str, Any]:
    """Return the offset of a reader that has opened its route."""
    found: dict[str, Any] = made.next(None, **{"import": port})["offset"]
    return found


def test_of_two_imports_of_a_query_the_last_asked_waits_for_news_of_both(made: Bench) -> None:
    one, two = opened(made), opened(made, "too")
    begin(made, "f1", "f2")
    for _ in range(2):
        assert made.next(one, frame="f1") == {"offset": None, "together": True}
        last = Asked(made, two, frame="f2", **{"import": "too"})
        last.waits_for("in", "too")
        made.news.notify(f"{PE}/in")
        assert last.end() == {"offset": None, "together": True}


def test_news_that_come_before_the_last_is_asked_are_not_waited_for(made: Bench) -> None:
    one, two = opened(made), opened(made, "too")
    begin(made, "f1", "f2")
    made.next(one, frame="f1")
    made.news.notify(f"{PE}/in")
    assert Asked(made, two, frame="f2", **{"import": "too"}).end() == {
        "offset": None,
        "together": True,
    }


def test_the_last_does_not_wait_where_one_before_has_something_to_read(made: Bench) -> None:
    one, two = opened(made), opened(made, "too")
    begin(made, "f1", "f2")
    made.replies[A] = lambda _: answer(plan("s", 0, 2))
    assert made.next(one, frame="f1")["offset"] is not None
    made.replies[A] = lambda _: answer()
    assert Asked(made, two, frame="f2", **{"import": "too"}).end() == {
        "offset": None,
        "together": True,
    }


def test_a_query_with_one_import_waits_and_one_beside_other_streams_hardly_does(
    made: Bench,
) -> None:
    one = opened(made)
    begin(made, "f1")
    alone = Asked(made, one, frame="f1")
    alone.waits_for("in")
    made.replies[A] = lambda _: answer(plan("s", 0, 2))
    made.news.notify(f"{PE}/in")
    assert alone.end()["offset"] is not None
    made.replies[A] = lambda _: answer()
    begin(made, "f1", foreign=True)
    assert Asked(made, one, frame="f1").end() == {"offset": None}


def test_a_query_that_is_about_to_start_is_the_one_that_then_runs(made: Bench) -> None:
    begin(made, "f1", query=None, exports=["out"])
    begin(made, "f1", exports=["out"])
    assert made.host.status()["queries"] == {
        "q": {"exports": ["out"], "imports": 1, "foreign": False, "gated": False}
    }
    ask(made.host.queries.end, {"query": "q", "run": "another"})
    assert made.host.status()["queries"]
    ask(made.host.queries.end, {"query": "q", "run": "r"})
    assert made.host.status()["queries"] == {}


def test_a_frame_of_two_queries_and_one_of_none_wait_as_long_as_they_ask_for(
    made: Bench,
) -> None:
    one = opened(made)
    begin(made, "f1", query="q", exports=["out"])
    begin(made, "f1", query="p")
    made.holders["out"] = [BlockingReader(reader="other", import_="x/y/0/z", bytes=1, away=0)]
    for frame in ("f1", "f2", None):
        assert Asked(made, one, frame=frame, wait=0).end() == {"offset": None}


def test_a_query_that_nobody_tells_of_any_more_is_forgotten(
    made: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = opened(made)
    monkeypatch.setattr(gates, "LEASE_SECONDS", -1.0)
    begin(made, "f1")
    assert Asked(made, one, frame="f1", wait=0).end() == {"offset": None}
    assert made.host.status()["queries"] == {}


def held_by(
    reader: str, import_: str = "default/other/0/in", size: int = 10
) -> list[BlockingReader]:
    return [BlockingReader(reader=reader, import_=import_, bytes=size, away=0)]


def test_while_its_export_is_full_a_query_acknowledges_and_is_given_nothing(
    made: Bench,
) -> None:
    one = opened(made)
    begin(made, "f1", exports=["out"])
    made.replies[A] = lambda body: answer(plan("s", 2, 2 if body["limit"] == {} else 4))
    one = {**one, "streams": {"s": {"from": 0, "next": 2}}}
    made.holders["out"] = held_by("other")
    gated = Asked(made, one, frame="f1")
    gated.waits_for("in", "out")
    assert made.asked[-1][1]["positions"] == {"s": 2}
    assert made.host.status()["queries"]["q"]["gated"] is True
    made.holders.clear()
    made.news.notify(f"{PE}/out")
    assert gated.end()["offset"]["streams"]["s"]["next"] == 4
    assert made.host.status()["queries"]["q"]["gated"] is False


def test_a_query_with_several_exports_is_given_nothing_while_any_of_them_is_full(
    made: Bench,
) -> None:
    one = opened(made)
    begin(made, "f1", exports=["out", "more"])
    made.replies[A] = lambda body: answer(plan("s", 2, 2 if body["limit"] == {} else 4))
    one = {**one, "streams": {"s": {"from": 0, "next": 2}}}
    made.holders["more"] = held_by("other")
    gated = Asked(made, one, frame="f1")
    gated.waits_for("in", "out", "more")
    made.holders["out"], made.holders["more"] = held_by("third"), []
    made.news.notify(f"{PE}/more")
    gated.waits_for("in", "out", "more")
    made.holders.clear()
    made.news.notify(f"{PE}/out")
    assert gated.end()["offset"]["streams"]["s"]["next"] == 4


def test_a_gated_call_says_for_which_export_also_in_a_run_with_a_limit(
    made: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = opened(made)
    begin(made, "f1", exports=["out"])
    made.holders["out"] = held_by("other")
    limited = Asked(made, one, frame="f1", limit={"s": 4})
    limited.waits_for("in", "out")
    made.holders.clear()
    made.news.notify(f"{PE}/out")
    assert limited.end() == {"offset": None, "together": True}
    made.holders["out"] = held_by("other")
    monkeypatch.setattr(gates, "MAX_WAIT_SECONDS", 0.0)
    assert made.next(one, frame="f1", limit={"s": 4})["gated"] == "out"


def test_what_is_planned_in_the_checkpoint_is_cut_although_the_export_is_full(
    made: Bench,
) -> None:
    made.replies[A] = lambda _: answer(plan("s", 0, 1))
    end = opened(made)
    begin(made, "f1", exports=["out"])
    made.holders["out"] = held_by("other")
    made.replies[A] = lambda _: {"blocks": {"s": {"0": [[1, 1]]}}}
    assert len(made.cut(None, end)["slices"]) == 1


def test_a_query_that_waits_for_itself_is_let_through_to_be_refused(made: Bench) -> None:
    one = opened(made)
    begin(made, "f1", exports=["out"])
    made.holders["out"] = held_by("other") + held_by(one["reader"])
    made.replies[A] = lambda body: answer(plan("s", 0, 0 if body["limit"] == {} else 4))
    assert made.next(one, frame="f1")["offset"]["streams"]["s"]["next"] == 4


def test_a_query_in_a_ring_is_let_through_to_be_refused(made: Bench) -> None:
    one = opened(made)
    begin(made, "f1", exports=["out"])
    (holder,) = held_by("other", "default/third/0/in")
    made.holders["out"] = [replace(holder, ring=("default/third/0/out",))]
    made.replies[A] = lambda body: answer(plan("s", 0, 0 if body["limit"] == {} else 4))
    assert made.next(one, frame="f1")["offset"]["streams"]["s"]["next"] == 4


def test_for_what_a_query_waits_is_known_of_each_of_its_readers(
    made: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gates, "MAX_WAIT_SECONDS", 0.0)
    one = opened(made)
    begin(made, "f1", exports=["out"])
    queries, asked = made.host.queries, []

    def chain(port: str, query: str, gated: bool) -> list[str]:
        asked.append((port, query, gated))
        return ["default/alerts/0/out"]

    queries.find_wait_chain = chain
    made.holders["out"] = held_by("other")
    assert made.next(one, frame="f1")["gated"] == "out"
    reported = queries.wait_chains([one["reader"], "unknown"])
    assert reported == {one["reader"]: ["default/alerts/0/out"]}
    assert asked == [("out", "q", True)]


def test_a_job_that_stands_still_for_itself_is_let_through_to_be_refused(
    made: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = opened(made)
    begin(made, "f1", exports=["out"])
    monkeypatch.setattr(gates, "MAX_WAIT_SECONDS", 0.0)
    monkeypatch.setattr(gates, "STUCK_SECONDS", -1.0)
    made.holders["out"] = held_by("other", "default/alerts/0/too") + held_by("third")
    assert made.next(one, frame="f1")["gated"] == "out"
    made.holders["out"] = held_by("other", "default/alerts/1/too")
    made.replies[A] = lambda body: answer(plan("s", 0, 0 if body["limit"] == {} else 4))
    assert made.next(one, frame="f1")["offset"]["streams"]["s"]["next"] == 4
    monkeypatch.setattr(gates, "STUCK_SECONDS", LONG)
    made.holders["out"] = held_by("other", "default/alerts/1/too", size=9)
    assert "gated" in made.next({**one, "streams": {"s": {"from": 0, "next": 0}}}, frame="f1")
