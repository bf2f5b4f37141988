"""Plan requests that come while another is in flight go together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pe_agent.agent.imports.plan_batches import PlanBatches
from pe_agent.transport.flight_errors import AgentRefusedError, AgentUnreachableError
from streambroker_core.errors import StreambrokerError
from streambroker_core.ledger.losses import DataLossError
from streambroker_core.ledger.plan import Plan, PlanRequest
from streambroker_core.ledger.planner import OvertakenError
from streambroker_core.wire.agent_rpc.codec import decode, to_json
from streambroker_core.wire.agent_rpc.peer import (
    PeerPlan,
    PeerPlans,
    Planned,
    PlanResult,
    PlansMade,
)
from support.agents.exports import IMPORT, Bench, plan_one, rows
from support.processes.waiting import until

AT = "grpc+tcp://exporter:1"


def _request(reader: str, *, budget: int = 1) -> PeerPlan:
    return PeerPlan(
        export="default/feed/0/trades",
        import_=f"default/alerts/0/{reader}",
        reader=reader,
        lease=5.0,
        positions={"s": 3},
        filter=None,
        columns=["n"],
        call=("incarnation", 1),
        budget=budget,
    )


class Exporter:
    """Answers requests; the first one waits until ``released``."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.released = threading.Event()
        self.answer: Callable[[PeerPlans], PlansMade] = _answer_all

    def call(self, action: str, **body: Any) -> dict[str, Any]:
        body.pop("timeout")
        self.calls.append((action, body))
        if len(self.calls) == 1:
            self.released.wait(30.0)
        if action == "peer.plan":
            return dict(to_json(_planned()))
        return dict(to_json(self.answer(decode(PeerPlans, body))))

    def readers(self) -> list[list[str]]:
        """Return the readers of each request."""
        return [
            [r.reader for g in decode(PeerPlans, body).groups for r in g.readers]
            if action == "peer.plans"
            else [body["reader"]]
            for action, body in self.calls
        ]


def _planned() -> Planned:
    return Planned(planned=(), bytes=0, last=None, routed=True)


def _answer_all(request: PeerPlans) -> PlansMade:
    readers = [r for group in request.groups for r in group.readers]
    return PlansMade(
        plans=[_planned()], results=[PlanResult(pass_=f"pass of {r.reader}") for r in readers]
    )


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[Exporter]:
    """An exporter's agent in place of the connection to it."""
    one = Exporter()
    monkeypatch.setattr("pe_agent.agent.imports.plan_batches.AgentClient", lambda _: one)
    yield one
    one.released.set()


def _is_queued(batches: PlanBatches, count: int) -> bool:
    return len(batches._queues[AT]) == count


def _send_behind_first(exporter: Exporter, requests: list[PeerPlan]) -> list[Future[Planned]]:
    """Send requests while a first one is in flight, and let that one end."""
    batches = PlanBatches()
    with ThreadPoolExecutor(len(requests) + 1) as pool:
        pool.submit(batches.send, AT, _request("first"))
        until(lambda: exporter.calls, 30.0, "the first request")
        sent = []
        for n, request in enumerate(requests):
            sent.append(pool.submit(batches.send, AT, request))
            until(partial(_is_queued, batches, n + 1), 30.0, "a queued request")
        exporter.released.set()
    return sent


def test_requests_behind_one_in_flight_are_one_call(exporter: Exporter) -> None:
    sent = _send_behind_first(exporter, [_request("a"), _request("b", budget=2), _request("c")])
    assert exporter.readers() == [["first"], ["a", "c", "b"]]
    assert [f.result().pass_ for f in sent] == ["pass of a", "pass of b", "pass of c"]


def test_a_refused_reader_leaves_the_others_of_its_batch_alone(exporter: Exporter) -> None:
    def refuse_b(request: PeerPlans) -> PlansMade:
        made = _answer_all(request)
        refused = PlanResult(code="Revoked", error="b is revoked")
        return PlansMade(plans=made.plans, results=[made.results[0], refused])

    exporter.answer = refuse_b
    good, bad = _send_behind_first(exporter, [_request("a"), _request("b")])
    assert good.result().pass_ == "pass of a"
    with pytest.raises(AgentRefusedError, match="b is revoked") as caught:
        bad.result()
    assert caught.value.code == "Revoked"


def test_an_exporter_without_the_action_gets_single_requests(exporter: Exporter) -> None:
    def refuse(_: PeerPlans) -> PlansMade:
        raise AgentRefusedError("BodyInvalid", "there is no action 'peer.plans'")

    exporter.answer = refuse
    sent = _send_behind_first(exporter, [_request("a"), _request("b")])
    assert [f.result().routed for f in sent] == [True, True]
    assert [len(readers) for readers in exporter.readers()] == [1, 2, 1, 1]


def test_all_readers_of_a_batch_learn_that_its_response_is_lost(exporter: Exporter) -> None:
    def lose(_: PeerPlans) -> PlansMade:
        raise AgentUnreachableError("gone")

    exporter.answer = lose
    for sent in _send_behind_first(exporter, [_request("a"), _request("b")]):
        with pytest.raises(AgentUnreachableError, match="gone"):
            sent.result()


# -- at the exporter -----------------------------------------------------------------------------

_REQUESTS = st.lists(
    st.builds(
        lambda reader, call, position, budget, policy: (reader, call, position, budget, policy),
        st.sampled_from("abc"),
        st.integers(1, 4),
        st.integers(0, 5),
        st.sampled_from([1, 1 << 20]),
        st.sampled_from(["wait", "drop"]),
    ),
    min_size=1,
    max_size=6,
)


def _ledger_requests(stream: str, drawn: list[tuple[Any, ...]]) -> list[PlanRequest]:
    return [
        PlanRequest(
            reader=reader,
            import_=IMPORT,
            policy=policy,
            start="earliest",
            positions={stream: position} if position else {},
            own_streams=frozenset([stream] if position else []),
            budget=budget,
            call=("incarnation", call),
        )
        for reader, call, position, budget, policy in drawn
    ]


def _plan_single(bench: Bench, request: PlanRequest) -> Plan | StreambrokerError:
    try:
        return plan_one(bench.export, request, filter_=None, columns=None)
    except StreambrokerError as error:
        return error


def _shown(outcome: Plan | Exception, stream: str) -> str:
    return repr(outcome).replace(stream, "stream")


def _readers(bench: Bench, stream: str) -> list[str]:
    found = bench.store.query("SELECT id, state FROM readers ORDER BY id")
    return [repr(row).replace(stream, "stream") for row in found]


@settings(max_examples=40, deadline=None)
@given(st.lists(_REQUESTS, min_size=1, max_size=3))
def test_a_batch_gives_what_single_calls_give(
    tmp_path_factory: pytest.TempPathFactory, drawn: list[list[tuple[Any, ...]]]
) -> None:
    place: Path = tmp_path_factory.mktemp("batch")
    single, together = Bench(place / "single"), Bench(place / "together")
    streams = []
    for bench in (single, together):
        bench.open()
        for n in range(4):
            bench.publish(n, rows(n, 2))
        streams.append(next(iter(bench.export.state.streams)))
    for part in drawn:
        alone = [_plan_single(single, r) for r in _ledger_requests(streams[0], part)]
        batched = together.export.plans.plan_all(
            _ledger_requests(streams[1], part), filter_=None, columns=None
        )
        assert [_shown(o, streams[1]) for o in batched] == [_shown(o, streams[0]) for o in alone]
        assert _readers(together, streams[1]) == _readers(single, streams[0])
    single.close()
    together.close()


def test_an_overtaken_call_leaves_the_others_of_its_batch_alone(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.open()
    bench.publish(0, rows(0, 2))
    stream = next(iter(bench.export.state.streams))
    drawn = [("a", 2, 0, 1, "wait"), ("a", 1, 0, 1, "wait"), ("b", 1, 0, 1, "wait")]
    first, late, other = bench.export.plans.plan_all(
        _ledger_requests(stream, drawn), filter_=None, columns=None
    )
    assert isinstance(late, OvertakenError)
    assert isinstance(first, Plan)
    assert first == other
    bench.close()


def test_readers_at_one_position_share_a_plan_and_others_get_their_own(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.open()
    for n in range(3):
        bench.publish(n, rows(n, 2))
    stream = next(iter(bench.export.state.streams))
    for call in (1, 2):
        drawn = [(r, call, at, 1, "wait") for r, at in (("a", 1), ("b", 1), ("c", 2))]
        first, same, ahead = bench.export.plans.plan_all(
            _ledger_requests(stream, drawn), filter_=None, columns=None
        )
    assert isinstance(first, Plan)
    assert isinstance(ahead, Plan)
    assert same is first
    assert (first.planned[0].next, ahead.planned[0].next) == (2, 3)
    bench.close()


def test_a_reader_that_drops_shares_no_plan_with_one_that_waits(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.open()
    for n in range(4):
        bench.publish(n, rows(n, 2))
    stream = next(iter(bench.export.state.streams))
    for call in (1, 2):
        drawn = [(policy, call, 1, 1, policy) for policy in ("drop", "wait")]
        plans = bench.export.plans.plan_all(
            _ledger_requests(stream, drawn), filter_=None, columns=None
        )
        bench.now += 1000  # both are away for longer than grace
        bench.limit(max_bytes=1)
    dropping, waiting = plans
    assert isinstance(dropping, Plan)
    assert dropping.planned[0].dropped[0] > 0
    assert isinstance(waiting, DataLossError)
    bench.close()
