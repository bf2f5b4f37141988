"""A call that its sender has given up, and that the exporter gets to after a later one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pe_agent.agent.server.caller_checks import BodyInvalidError
from pe_agent.agent.server.peer_plans import to_response
from pe_agent.transport.flight_errors import AgentRefusedError
from streambroker_core.errors import StreambrokerError
from streambroker_core.ledger.planner import OvertakenError
from streambroker_core.wire.agent_rpc.codec import to_json
from support.agents import exports, imports
from support.agents.exports import plan_one
from support.agents.imports import A, away
from support.agents.rpc import parse_plan_request

Body = dict[str, Any]


class Both:
    """An importer and its one exporter; ``late`` has the calls that the network holds back."""

    def __init__(self, importer: imports.Bench, exporter: exports.Bench) -> None:
        self.importer, self.exporter = importer, exporter
        self.late: list[Callable[[], Body]] = []
        importer.replies[A] = self.perform
        importer.connect(A)

    def perform(self, body: Body) -> Body:
        """Do at the exporter what the importer's last call asks."""
        action = self.importer.asked[-1][0]
        try:
            return self._plan(body) if action == "peer.plan" else self._replan(body)
        except StreambrokerError as error:
            raise AgentRefusedError(error.code, str(error)) from error

    def _plan(self, body: Body) -> Body:
        ask = parse_plan_request(body, "peer.plan", policy="wait", granted=True)
        found = plan_one(self.exporter.export, ask, filter_=body["filter"], columns=body["columns"])
        return dict(to_json(to_response(found)))

    def _replan(self, body: Body) -> Body:
        ask = parse_plan_request(body, "peer.replan", policy="wait", granted=True)
        again = self.exporter.export.plans.register_plan(
            ask,
            {s: (r[0], r[1]) for s, r in body["ranges"].items()},
            filter_=body["filter"],
            columns=body["columns"],
        )
        return {"blocks": again.blocks, "gone": again.missing}

    def hold_back(self, body: Body) -> Body:
        """Let the importer give a call up that goes on at the exporter."""
        how = self._plan if self.importer.asked[-1][0] == "peer.plan" else self._replan
        self.late.append(lambda: how(body))
        return away(body)

    def next(self, start: Body | None) -> Body | None:
        self.importer.host.state.peers._away.clear()
        found: Body | None = self.importer.next(start, max_bytes=1)["offset"]
        return found

    def cut(self, start: Body, end: Body) -> list[Body]:
        found: list[Body] = self.importer.cut(start, end)["slices"]
        return found

    def place(self) -> tuple[int, tuple[int, int] | None]:
        """Return position and plan of the reader as the exporter has them."""
        reader = next(iter(self.exporter.export.state.ledger.readers.values()))
        cursor = reader.cursors[self.exporter.stream]
        return cursor.next, cursor.planned


@pytest.fixture
def both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Both]:
    with exports.bench(tmp_path / "exporter") as exporter:
        exporter.export.set_routes({"default/alerts/0/in": "wait"})
        made = Both(imports.bench(tmp_path, monkeypatch), exporter)
        for batch in range(4):
            exporter.publish(batch, exports.rows(batch, 1))
        yield made


def given(both: Both, start: Body | None) -> Body:
    found = both.next(start)
    assert found is not None
    return found


def test_a_plan_that_comes_late_does_not_take_the_reader_back(both: Both) -> None:
    first = given(both, None)
    both.importer.replies[A] = both.hold_back
    assert both.next(first) is None
    both.importer.replies[A] = both.perform
    second = given(both, first)
    third = given(both, second)
    assert both.place() == (2, (2, 3))

    with pytest.raises(OvertakenError):
        both.late[0]()
    assert both.place() == (2, (2, 3))
    assert len(both.cut(second, third)) == 1


def test_what_a_late_plan_would_have_unpinned_is_not_dropped(both: Both) -> None:
    both.exporter.export.set_routes({"default/alerts/0/in": "drop"})
    first = given(both, None)
    both.importer.replies[A] = both.hold_back
    assert both.next(first) is None
    both.importer.replies[A] = both.perform
    end = given(both, given(both, first))
    with pytest.raises(OvertakenError):
        both.late[0]()
    both.exporter.limit(max_bytes=1)

    assert list(both.exporter.export.state.ledger.streams[both.exporter.stream].epochs) == [2, 3]
    assert both.place() == (2, (2, 3))
    assert end["dropped"] == {}


def test_a_plan_registered_again_too_late_does_not_take_the_reader_back(both: Both) -> None:
    first = given(both, None)
    second = given(both, first)
    both.importer.replies[A] = both.hold_back
    with pytest.raises(StreambrokerError):
        both.cut(first, second)
    both.importer.replies[A] = both.perform
    both.cut(first, second)
    given(both, second)
    with pytest.raises(OvertakenError):
        both.late[0]()
    assert both.place() == (2, (2, 3))


def test_a_reader_whose_agent_starts_again_is_heard_and_the_agent_before_no_more(
    both: Both,
) -> None:
    first = given(both, None)
    second = given(both, first)
    both.importer.replies[A] = both.hold_back
    assert both.next(second) is None
    both.importer.replies[A] = both.perform
    both.importer.store.close()
    both.importer.open()
    both.importer.connect(A)
    third = given(both, given(both, first))  # its checkpoint was older, too
    assert both.place() == (2, (2, 3))
    given(both, third)
    with pytest.raises(OvertakenError):
        both.late[0]()
    assert both.place() == (3, (3, 4))


def test_what_a_late_call_says_of_an_older_checkpoint_is_not_counted(both: Both) -> None:
    first = given(both, None)
    second = given(both, first)
    both.importer.replies[A] = both.hold_back
    assert both.next(second) is None
    both.importer.replies[A] = both.perform
    both.importer.store.close()
    both.importer.open()
    both.importer.connect(A)
    given(both, first)
    with pytest.raises(OvertakenError):
        both.late[0]()
    assert both.exporter.export.status()["readers"][first["reader"]]["delivered"] == 1
    assert both.place() == (1, (1, 2))


def test_who_has_no_capability_cannot_overtake_anybody(both: Both) -> None:
    first = given(both, None)
    body = {**both.importer.asked[-1][1], "call": ["another", 1 << 60], "ranges": {}}
    both.exporter.export.plans.register_plan(
        parse_plan_request(body, "peer.replan", policy="wait", granted=False),
        {},
        filter_=None,
        columns=None,
    )
    assert given(both, first)["reader"] == first["reader"]


def test_an_agent_that_does_not_number_its_calls_is_served_as_before(both: Both) -> None:
    first = given(both, None)
    body = {k: v for k, v in both.importer.asked[-1][1].items() if k != "call"}
    assert parse_plan_request(body, "peer.plan").call is None
    assert both._plan(body)["planned"]
    assert given(both, first)


@pytest.mark.parametrize("call", ["x", [1, "x"], ["x"], ["x", -1], ["x", True], ["x" * 65, 1], {}])
def test_a_number_that_is_none_is_refused(both: Both, call: object) -> None:
    given(both, None)
    body = {**both.importer.asked[-1][1], "call": call}
    with pytest.raises(BodyInvalidError, match="call"):
        parse_plan_request(body, "peer.plan")
