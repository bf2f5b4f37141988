"""The importing side: what becomes of exporters' answers in a reader's offset."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path
from typing import Any

import pytest

from pe_agent.agent.imports.available_now import RoutesUnknownError
from pe_agent.agent.imports.peer_agents import PeerAgents
from pe_agent.agent.imports.readers import ReaderInUseError
from pe_agent.agent.state.declarations import PortNotDeclaredError
from pe_agent.transport.flight_errors import AgentRefusedError, AgentUnreachableError
from streambroker_core.ledger.offset import Offset, ranges
from streambroker_core.ledger.planner import ReadersExceededError
from streambroker_core.ledger.routes import NotRoutedError
from streambroker_core.wire.agent_rpc.peer import ExportHead
from streambroker_core.wire.broker.view import ImportRoute, with_version
from support.agents.imports import A, B, Bench, Reply, answer, away, bench, plan, refused
from support.agents.rpc import ask
from support.processes.waiting import until


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return bench(tmp_path, monkeypatch)


def test_the_first_offset_names_the_reader_also_while_nobody_is_connected(made: Bench) -> None:
    made.declared.add("in")
    first = made.offset()
    assert len(first["reader"]) == 32
    assert (first["streams"], first["last"]) == ({}, {})
    assert made.next(first) == {"offset": None}


def test_a_route_without_stream_is_open_from_then_on(made: Bench) -> None:
    made.connect(A)
    made.replies[A] = lambda _: answer()
    first = made.offset()
    assert first["last"] == {A: None}
    made.replies[A] = lambda body: answer(plan("s", 0, 2))
    made.offset(first)
    assert made.asked[-1][1]["known"] is True


def test_a_route_that_is_cut_at_the_exporter_is_not_open(made: Bench) -> None:
    made.connect(A)
    made.replies[A] = lambda _: answer(routed=False)
    assert made.offset()["last"] == {}


def test_a_plan_becomes_positions_and_the_last_batch_is_reported_the_next_time(made: Bench) -> None:
    made.connect(A)
    made.replies[A] = lambda _: answer(plan("s", 3, 5))
    first = made.offset()
    assert first["streams"] == {"s": {"from": 3, "next": 5}}
    assert first["last"] == {A: ["q", 4]}
    made.replies[A] = lambda _: answer(plan("s", 5, 5))
    assert made.next(first) == {"offset": None}
    _, body = made.asked[-1]
    assert (body["positions"], body["last"]) == ({"s": 5}, ("q", 4))


@pytest.mark.parametrize("reply", [away, refused("CapabilityInvalid"), refused("NotRouted")])
def test_an_exporter_that_is_away_or_refuses_leaves_its_streams_as_they_are(
    made: Bench, reply: Reply
) -> None:
    made.connect(A, B)
    made.replies[A] = lambda _: answer(plan("s", 0, 2))
    made.replies[B] = lambda _: answer(plan("t", 0, 2))
    first = made.offset()
    made.replies[A] = reply
    made.replies[B] = lambda _: answer(plan("t", 2, 3))
    later = made.offset(first)
    assert later["streams"]["s"] == first["streams"]["s"]
    assert later["streams"]["t"] == {"from": 0, "next": 3}


def test_a_loss_at_the_exporter_stops_the_query(made: Bench) -> None:
    made.connect(A)
    made.replies[A] = refused("DataLoss")
    with pytest.raises(AgentRefusedError) as caught:
        made.next(None)
    assert caught.value.code == "DataLoss"


def test_duplicates_alone_move_the_offset_so_that_they_can_be_let_go(made: Bench) -> None:
    made.connect(A)
    made.replies[A] = lambda _: answer(plan("s", 0, 0))
    first = made.offset()
    made.replies[A] = lambda _: answer(plan("s", 2, 2, duplicates=[2, 9], moved=True))
    later = made.offset(first)
    assert later["streams"] == {"s": {"from": 2, "next": 2}}


def test_a_new_filter_is_a_new_offset_without_news(made: Bench) -> None:
    made.connect(A)
    made.replies[A] = lambda _: answer(plan("s", 0, 1))
    first = made.offset()
    made.connect(A, filter_="n > 1")
    made.replies[A] = lambda _: answer(plan("s", 1, 1))
    later = made.offset(first)
    assert later == {**first, "filter": "n > 1"}


def test_what_changes_elsewhere_is_no_reason_for_a_batch(made: Bench) -> None:
    made.connect(A)
    made.replies[A] = lambda _: answer(plan("s", 0, 1))
    first = made.offset()
    made.replies[A] = lambda _: answer(plan("s", 1, 1))
    for ports in (("in", "too"), ("in",), ("in", "other")):
        before = made.routes.view
        made.connect(A, ports=ports)
        assert made.routes.view != before
        assert made.next(first) == {"offset": None}


def test_a_change_is_reported_with_the_first_epoch_that_is_read_under_it(made: Bench) -> None:
    made.connect(A, B)
    made.replies[A] = lambda _: answer(plan("s", 0, 1))
    made.replies[B] = lambda _: answer(plan("t", 4, 6))
    first = made.offset()
    assert made.host.status()["readers"][first["reader"]]["pinned"]["from"] == {}
    made.connect(A, B, filter_="n > 1")
    made.replies[A] = lambda _: answer(plan("s", 1, 3))
    made.replies[B] = lambda _: answer(plan("t", 9, 9, lost=[3, 3], moved=True))
    later = made.offset(first)
    began = {A: {"s": 1}, B: {"t": 9}}
    assert made.host.status()["readers"][first["reader"]]["pinned"]["from"] == began
    assert ranges(Offset.decode(first), Offset.decode(later)) == {"s": (1, 3)}
    made.store.close()
    made.open()
    made.connect(A, B, filter_="n > 1")
    made.replies[A] = lambda _: answer(plan("s", 3, 4))
    made.replies[B] = lambda _: answer(plan("t", 9, 9))
    after = made.offset(later)
    assert made.host.status()["readers"][first["reader"]]["pinned"]["from"] == began
    made.replies[A] = lambda _: answer(plan("s", 4, 4))
    made.next(after, columns=["n", "name"])
    began = {A: {"s": 4}, B: {"t": 9}}
    assert made.host.status()["readers"][first["reader"]]["pinned"]["from"] == began


def test_an_idle_exporter_is_asked_once_for_an_acknowledgement_and_then_no_more(
    made: Bench,
) -> None:
    made.connect(A)
    made.replies[A] = lambda _: answer(plan("s", 0, 1))
    first = made.offset()
    made.known[A] = {"s": 1}
    made.replies[A] = lambda _: answer(plan("s", 1, 1))
    made.asked.clear()
    for _ in range(3):
        assert made.next(first) == {"offset": None}
    assert len(made.asked) == 1
    made.known[A] = {"s": 2}
    made.next(first)
    assert len(made.asked) == 2


def test_exporters_share_the_budget_of_a_batch(made: Bench) -> None:
    made.connect(A, B)
    made.replies[A] = lambda body: answer(plan("s", 0, 1), size=body["budget"] - 10)
    made.replies[B] = lambda _: answer(plan("t", 0, 1), size=1)
    made.offset()
    assert [body["budget"] for _, body in made.asked] == [50, 60]


def test_an_import_that_nobody_declared_is_refused_once_there_is_a_view(made: Bench) -> None:
    assert made.offset()["reader"]
    made.connect(A)
    with pytest.raises(PortNotDeclaredError, match="import default/alerts/0/other does not exist"):
        made.next(None, **{"import": "other"})


def test_a_lease_is_given_to_one_process_at_a_time(made: Bench) -> None:
    made.declared.add("in")
    first = made.offset()
    busy = made.next(first, session="two")["busy"]
    assert made.host.state.readers.renew(first["reader"], "one")
    assert not made.host.state.readers.renew(first["reader"], "two")
    with pytest.raises(ReaderInUseError):
        made.next(first, session="two", renewals=busy["renewals"])


def test_a_checkpoint_is_of_one_import(made: Bench) -> None:
    """Also after the agent was started again."""
    made.connect(A, ports=("in", "other"))
    made.replies[A] = lambda _: answer(plan("s", 0, 1))
    end = made.offset()
    asked = len(made.asked)
    for _ in range(2):
        for use in (made.next, lambda e, **more: made.cut(None, e, **more)):
            with pytest.raises(NotRoutedError, match="import default/alerts/0/in, not of default"):
                use(end, **{"import": "other"})
        made.host.state.peers.close()
        made.store.close()
        made.open()
    assert len(made.asked) == asked
    assert made.next(end) == {"offset": None}


def test_slices_are_the_same_whenever_they_are_cut_and_by_whom(made: Bench) -> None:
    made.connect(A, B)
    made.replies[A] = lambda _: answer(plan("s", 0, 2))
    made.replies[B] = lambda _: answer(plan("t", 0, 1))
    end = made.offset()
    sizes = {"s": {"0": [[5, 20 << 20], [5, 20 << 20]], "1": [[1, 10]]}, "t": {"0": [[2, 20]]}}

    def blocks(body: dict[str, Any]) -> dict[str, Any]:
        return {"blocks": {s: sizes[s] for s in body["ranges"]}}

    made.replies = {A: blocks, B: blocks}
    request = {"import": "in", "session": "one", "start": None, "end": end}
    cut = ask(made.host.slices.plan_slices, request)["slices"]
    assert [(s["export"], s["pieces"]) for s in cut] == [
        (A, [[0, 0, 1]]),
        (A, [[0, 1, 2], [1, 0, 1]]),
        (B, [[0, 0, 1]]),
    ]
    made.store.close()
    made.open()
    made.connect()
    again = ask(made.host.slices.plan_slices, request)["slices"]
    assert [dict(s) for s in again] == [dict(s) for s in cut]


def test_a_revocation_stops_what_is_planned_and_leaves_the_rest_of_the_import(made: Bench) -> None:
    made.connect(A, B)
    made.replies[A] = lambda _: answer(plan("s", 0, 2))
    made.replies[B] = lambda _: answer(plan("t", 0, 1))
    end = made.offset()
    made.replies[A] = refused("Revoked")
    made.replies[B] = lambda _: {"blocks": {"t": {"0": [[1, 1]]}}}
    with pytest.raises(AgentRefusedError) as caught:
        ask(
            made.host.slices.plan_slices,
            {"import": "in", "session": "one", "start": None, "end": end},
        )
    assert caught.value.code == "Revoked"
    made.replies[B] = lambda _: answer(plan("t", 1, 2))
    later = made.offset(end)
    assert (later["streams"]["s"], later["streams"]["t"]["next"]) == (end["streams"]["s"], 2)


def test_a_stream_that_no_exporter_has_is_waited_for_by_name(made: Bench) -> None:
    made.connect(A)
    made.replies[A] = lambda _: answer(plan("s", 0, 2))
    end = made.offset()
    end = {**end, "streams": {"elsewhere": {"from": 0, "next": 2}}}
    request = {"import": "in", "session": "one", "start": None, "end": end}
    with pytest.raises(AgentUnreachableError, match="has stream elsewhere"):
        ask(made.host.slices.plan_slices, request)
    made.known[A] = {"elsewhere": 2}
    made.replies[A] = lambda _: {"blocks": {"elsewhere": {"0": [[1, 1]], "1": [[1, 1]]}}}
    assert len(ask(made.host.slices.plan_slices, request)["slices"]) == 1


def located(made: Bench, end: dict[str, Any]) -> object:
    request = {"export": A, "stream": "s", "reader": end["reader"]}
    return ask(made.host.slices.locate, request)["location"]


def test_a_plan_is_read_where_the_exporter_is_now(made: Bench) -> None:
    made.connect(A)
    made.replies[A] = lambda _: answer(plan("s", 0, 1))
    end = made.offset()
    assert located(made, end) == "grpc+tcp://a:1"
    view = made.routes.view
    assert view is not None
    route = dataclasses.replace(view.imports["in"].routes[0], location="grpc+tcp://moved:2")
    port = dataclasses.replace(view.imports["in"], routes=(route,))
    made.routes.apply(with_version(dataclasses.replace(view, imports={"in": port})))
    assert located(made, end) == "grpc+tcp://moved:2"
    made.connect()
    assert located(made, end) == "grpc+tcp://a:1"


@pytest.mark.parametrize("seen", ["planned", "cut"])
def test_an_exporter_that_moved_is_remembered_where_it_was_seen_last(
    made: Bench, seen: str
) -> None:
    made.connect(A)
    made.replies[A] = lambda _: answer(plan("s", 0, 1), plan("t", 0, 1))
    end = made.offset()
    view = made.routes.view
    assert view is not None
    route = dataclasses.replace(view.imports["in"].routes[0], location="grpc+tcp://moved:2")
    port = dataclasses.replace(view.imports["in"], routes=(route,))
    made.routes.apply(with_version(dataclasses.replace(view, imports={"in": port})))
    if seen == "planned":
        made.replies[A] = lambda _: answer(plan("t", 1, 2))
        made.offset(end)
    else:
        made.replies[A] = lambda _: {"blocks": {"s": {}, "t": {}}}
        made.cut(None, end)
    for _ in range(2):
        assert made.host.state.readers.renew(end["reader"], "one")
        assert made.host.state.readers.unfinished() == [
            ("grpc+tcp://moved:2", A, "default/alerts/0/in")
        ]
        made.host.state.peers.close()
        made.store.close()
        made.open()


def test_an_exporter_that_is_away_is_not_asked_and_the_others_are(
    made: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.connect(A, B)
    made.replies[B] = lambda _: answer(plan("t", 0, 1))
    monkeypatch.setattr(PeerAgents, "is_away", lambda _, location: location == "grpc+tcp://a:1")
    first = made.offset()

    assert [body["export"] for _, body in made.asked] == [B]
    assert set(first["streams"]) == {"t"}


def test_a_call_that_was_given_up_asks_no_further_exporter(made: Bench) -> None:
    made.connect(A, B)
    made.replies[A] = made.replies[B] = lambda _: answer()
    first = made.offset()
    made.asked.clear()
    again: list[threading.Thread] = []

    def asks_meanwhile(_: dict[str, Any]) -> dict[str, Any]:
        later = threading.Thread(target=made.next, args=(first,))
        later.start()
        again.append(later)
        reader = made.host.state.readers[first["reader"]]
        until(lambda: reader.calls == 3, 10, "the later call waits its turn")
        made.replies[B] = lambda _: answer()
        return answer(plan("t", 0, 1))

    made.replies[B] = asks_meanwhile
    assert made.next(first) == {"offset": None}
    again[0].join(10)

    assert [body["export"] for _, body in made.asked] == [B, A, B]


@pytest.mark.parametrize("routed", [True, False])
def test_of_the_calls_that_wait_their_turn_only_the_newest_asks(
    made: Bench, monkeypatch: pytest.MonkeyPatch, routed: bool
) -> None:
    """Which of them gets the turn first is nobody's choice: a lock is not first come, first served.

    A call that gives way does not say that all is read, either.
    """
    monkeypatch.setattr(PeerAgents, "has_ended", lambda *_: True)
    made.connect(A)
    made.replies[A] = lambda _: answer(plan("s", 0, 1))
    first = made.offset()
    if not routed:
        made.connect()
    reader = made.host.state.readers[first["reader"]]
    made.asked.clear()
    answers: dict[int, dict[str, Any]] = {}

    def call(budget: int) -> threading.Thread:
        thread = threading.Thread(
            target=lambda: answers.update({budget: made.next(first, max_bytes=budget)})
        )
        thread.start()
        return thread

    made.replies[A] = lambda _: answer(plan("s", 1, 2))
    before = reader.calls
    with reader.call_lock:
        calls = []
        for number in range(1, 4):
            calls.append(call(100 + number))
            until(lambda: reader.calls == before + number, 10, "it waits its turn")  # noqa: B023
    for one in calls:
        one.join(10)

    assert [body["budget"] for _, body in made.asked] == [103 if routed else 0]
    assert answers[101] == answers[102] == {"offset": None}
    assert (answers[103]["offset"] is not None) is routed
    assert not reader.ended


def test_a_first_call_that_is_repeated_is_the_same_reader(made: Bench) -> None:
    made.declared.add("in")
    one = made.next(None, mint="a" * 32)["offset"]
    two = made.next(None, mint="a" * 32)["offset"]

    assert one["reader"] == two["reader"] == "a" * 32


def test_a_lease_goes_on_after_the_agent_was_started_again(made: Bench) -> None:
    made.connect(A)
    made.replies[A] = lambda _: answer(plan("s", 0, 1))
    reader = made.offset()["reader"]
    made.host.state.peers.close()
    made.store.close()
    made.open()

    assert made.host.state.readers.renew(reader, "one")
    assert made.host.state.readers.alive() == {"default/alerts/0/in": [reader]}
    assert not made.host.state.readers.renew(reader, "two")


@pytest.mark.parametrize("unaware", [lambda _: answer(routed=True), refused("CapabilityInvalid")])
def test_an_exporter_whose_route_is_gone_hears_once_how_far_the_reader_came(
    made: Bench, unaware: Reply
) -> None:
    made.connect(A)
    made.replies[A] = lambda _: answer(plan("s", 0, 1))
    first = made.offset()
    unfinished = [("grpc+tcp://a:1", A, "default/alerts/0/in")]
    made.connect()
    assert made.host.state.readers.unfinished() == unfinished
    made.asked.clear()
    made.replies[A] = unaware
    assert made.next(first) == {"offset": None}
    assert made.host.state.readers.unfinished() == unfinished, (
        "its agent does not know of the cut yet"
    )
    made.replies[A] = lambda _: answer(routed=False)
    assert made.next(first) == {"offset": None}
    assert made.next(first) == {"offset": None}

    assert [body["positions"] for _, body in made.asked] == [{"s": 1}, {"s": 1}]
    assert [body["capability"] for _, body in made.asked] == [None, None]
    assert made.host.state.readers.unfinished() == []


def test_a_plan_that_is_read_again_is_unfinished_again(made: Bench) -> None:
    made.connect(A)
    made.replies[A] = lambda _: answer(plan("s", 0, 1))
    first = made.offset()
    made.connect()
    made.replies[A] = lambda _: answer(routed=False)
    made.next(first)
    assert made.host.state.readers.unfinished() == []
    made.replies[A] = lambda _: {"blocks": {"s": {"0": [[1, 1]]}}}
    ask(
        made.host.slices.plan_slices,
        {"import": "in", "session": "one", "start": None, "end": first},
    )

    assert made.host.state.readers.unfinished() != []


def test_a_change_is_applied_although_an_exporter_is_away(
    made: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.connect(A, B, filter_="n > 1")
    made.replies[B] = lambda _: answer(plan("t", 0, 1))
    monkeypatch.setattr(PeerAgents, "is_away", lambda _, location: location == "grpc+tcp://a:1")
    reader = made.offset()["reader"]

    assert made.host.status()["readers"][reader]["pinned"]["filter"] == "n > 1"


def test_what_an_absent_exporter_has_is_left_for_the_next_run(
    made: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.connect(A, B)

    def fetch(_: PeerAgents, route: ImportRoute, import_: str) -> ExportHead:
        if str(route.export) == A:
            raise AgentUnreachableError("gone")
        return ExportHead(heads={"t": 7}, ended=True)

    monkeypatch.setattr(PeerAgents, "fetch_heads", fetch)
    found = {"heads": {"t": 7}, "missing": [A], "ended": [B], "control": 0}
    assert ask(made.host.available_now.heads, {"import": "in"}) == found
    assert made.host.status()["missing"] == {"in": [A]}


def test_a_run_waits_for_its_routes_and_then_for_their_agents(
    made: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    away_for = [2]

    def fetch(_: PeerAgents, route: ImportRoute, import_: str) -> ExportHead:
        away_for[0] -= 1
        if away_for[0] >= 0:
            raise AgentUnreachableError("not yet")
        return ExportHead(heads={"s": 7})

    monkeypatch.setattr(PeerAgents, "fetch_heads", fetch)
    monkeypatch.setattr("pe_agent.agent.imports.available_now.RETRY_SECONDS", 0.01)
    found: list[dict[str, Any]] = []
    request = {"import": "in", "wait": 10.0}
    asked = threading.Thread(
        target=lambda: found.append(ask(made.host.available_now.heads, request))
    )
    asked.start()
    until(made.news.waiters, 10, "it waits for the view")
    made.connect(A)
    asked.join(10)
    assert found == [{"heads": {"s": 7}, "missing": [], "ended": [], "control": 0}]


def test_without_routes_there_is_no_run(made: Bench) -> None:
    made.declared.add("in")
    with pytest.raises(RoutesUnknownError):
        ask(made.host.available_now.heads, {"import": "in"})


def test_who_is_silent_below_the_limit_is_named(made: Bench) -> None:
    made.connect(A, B)
    made.replies[A] = lambda _: answer(plan("s", 0, 2))
    made.replies[B] = away
    first = made.offset()
    made.replies[A] = lambda _: answer(plan("s", 2, 2))
    assert made.next(first, limit={"s": 2}) == {"offset": None}
    assert made.next(first, limit={"s": 2, "t": 1}) == {"offset": None, "behind": [B]}
    made.replies[A] = away
    assert made.next(first, limit={"s": 2}) == {"offset": None}
    assert made.next(first, limit={"s": 3}) == {"offset": None, "behind": [A]}


@pytest.mark.parametrize("how", ["misfit", "refusal"])
def test_who_refuses_below_the_limit_is_named_with_its_reason(made: Bench, how: str) -> None:
    made.connect(A, B)
    misfit = {**answer(plan("s", 0, 0)), "misfits": ["no column 'n'"]}
    made.replies[A] = (lambda _: misfit) if how == "misfit" else refused("CapabilityInvalid")
    made.replies[B] = lambda body: answer(plan("t", body["positions"].get("t", 0), 2))
    first = made.next(None, limit={"s": 2, "t": 2})["offset"]
    why = "no column 'n'" if how == "misfit" else "no"
    reported = {"offset": None, "behind": [A], "refused": {A: why}}
    assert made.next(first, limit={"s": 2, "t": 2}) == reported
    assert made.next(first, limit={"t": 2}) == {"offset": None}
    made.connect(B)
    assert made.next(first, limit={"s": 2, "t": 2}) == {"offset": None}, "its route is cut"


def test_readers_that_have_been_away_longest_are_forgotten_beyond_a_limit(
    made: Bench,
) -> None:
    made.readers.max_readers = 3
    made.connect(A)
    made.replies[A] = lambda _: answer(plan("s", 0, 1))
    for number in range(5):
        made.next(None, mint=f"{number:032d}", session=str(number))
        made.host.leave(f"{number:032d}", str(number)) if number != 1 else None

    left = {f"{number:032d}" for number in (1, 3, 4)}
    assert set(made.host.status()["readers"]) == left
    assert set(made.store.states("own_readers", "id")) == left


def test_a_reader_beyond_the_limit_is_refused_while_all_others_live(
    made: Bench,
) -> None:
    made.readers.max_readers = 3
    made.connect(A)
    made.replies[A] = lambda _: answer(plan("s", 0, 1))
    for number in range(3):
        made.next(None, mint=f"{number:032d}", session=str(number))
    with pytest.raises(ReadersExceededError, match="3 readers"):
        made.next(None, mint=f"{3:032d}", session="3")
    assert set(made.host.status()["readers"]) == {f"{number:032d}" for number in range(3)}
    made.host.leave(f"{1:032d}", "1")
    made.next(None, mint=f"{3:032d}", session="3")
    assert f"{1:032d}" not in made.host.status()["readers"]


def test_an_offset_comes_with_the_heads_of_its_streams(made: Bench) -> None:
    """Epochs without a row for the reader are not ahead of it."""
    made.connect(A, B)
    made.replies[A] = lambda _: answer(plan("s", 0, 2))
    made.replies[B] = lambda _: answer(plan("t", 0, 2))
    made.known[A] = {"s": 5}

    found = made.next(made.offset())

    assert found["heads"] == {"s": 5, "t": 2}
