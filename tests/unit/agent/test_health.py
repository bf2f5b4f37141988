"""What an agent reports of the health of its ports, and when a problem is over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pe_agent.agent.agent import Agent
from pe_agent.agent.broker.reporter import build_report
from pe_agent.agent.imports.readers import ImportReader
from pe_agent.agent.reports.health import (
    LOSS_SECONDS,
    RECOVERED_SECONDS,
    REFUSED_SECONDS,
    SIDE_WAIT_SECONDS,
    PortProblems,
)
from pe_agent.agent.state.store import Store
from streambroker_core.model import PeKey
from streambroker_core.wire.agent_rpc.job import QueryBegin, QueryEnd
from streambroker_core.wire.agent_rpc.reader import ReaderLeave
from streambroker_core.wire.reports.health import PortId, write_health

TRADES: PortId = ("Import", "trades")


class Bench:
    """The problems of one agent, whose clock is put forward by hand."""

    def __init__(self, directory: Path) -> None:
        self.store = Store(directory / "state.sqlite")
        self.now = 0.0
        self.runs: set[str] = set()
        self.changes = 0
        self.has_room = False
        self.open()

    def open(self) -> None:
        self.problems = PortProblems(
            self.store,
            lambda _: self.runs,
            lambda: self.has_room,
            lambda: self.now,
            lambda: 1_764_482_400.0 + self.now,
        )
        self.problems.on_change = self.count

    def count(self) -> None:
        self.changes += 1

    def fail(self, code: str = "DataLoss", message: str = "Epochs 0 to 3 are gone.") -> None:
        self.problems.note_failure([TRADES], code, message)

    def run(self, seconds: float, *runs: str) -> None:
        """Let runs live for some seconds, as ticks see them."""
        self.runs = set(runs)
        self.problems.tick()
        self.now += seconds
        self.problems.tick()

    def reasons(
        self,
        exports: dict[str, Any] | None = None,
        readers: dict[str, Any] | None = None,
        sides: Any = (),
    ) -> dict[PortId, str]:
        health = self.problems.health(exports or {}, readers or {}, sides)
        return {port: state.reason for port, state in health.problems.items()}


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Bench]:
    one = Bench(tmp_path)
    yield one
    one.store.close()


def test_a_failed_query_is_a_problem_until_a_later_run_has_lived_for_a_while(made: Bench) -> None:
    made.fail()
    (state,) = made.problems.health({}, {}).problems.values()
    assert state.reason == "DataLoss"
    assert state.message == (
        "A query that reads it failed at 2025-11-30 06:00:00 UTC: Epochs 0 to 3 are gone. This is"
        " over once a query has run for 30 s, or has ended without an error."
    )
    made.run(RECOVERED_SECONDS - 1, "second")
    assert made.reasons() == {TRADES: "DataLoss"}
    made.run(1, "second")
    assert made.reasons() == {}
    assert made.changes == 2, "one report when it begins, one when it ends"


def test_a_query_that_fails_again_and_again_is_one_problem(made: Bench) -> None:
    made.fail()
    before = made.problems.health({}, {})
    for number in range(5):
        made.run(RECOVERED_SECONDS - 1, f"run {number}")
        made.fail(message="Other epochs are gone.")
        made.run(1)
    assert made.problems.health({}, {}) == before
    assert made.changes == 1


@pytest.mark.parametrize("code", ["Failed", "QueryFailed"])
def test_a_driver_that_does_not_know_the_cause_leaves_what_the_agent_has_noted(
    made: Bench, code: str
) -> None:
    made.fail("DataLoss")
    made.fail(code, "The log of the job has the error.")

    assert made.reasons() == {TRADES: "DataLoss"}


def test_a_later_run_that_ends_well_is_the_end_of_a_failure_however_short_it_was(
    made: Bench,
) -> None:
    made.runs = {"another"}
    made.problems.note_failure([TRADES], "DataLoss", "It failed.", "failed")
    for run in ("failed", "another"):
        made.problems.note_end([TRADES], run)
    made.problems.note_end([("Export", "trades")], "later")
    assert made.reasons() == {TRADES: "DataLoss"}
    made.problems.note_end([TRADES], "later")
    made.open()
    assert made.reasons() == {}
    assert made.changes == 2


def test_a_reader_too_many_is_a_problem_until_there_is_room(made: Bench) -> None:
    made.fail("ReadersExceeded")
    made.run(10 * LOSS_SECONDS)
    (state,) = made.problems.health({}, {}).problems.values()
    assert state.reason == "ReadersExceeded"
    assert state.message.endswith("This is over once another reader is accepted.")
    made.has_room = True
    made.run(0)
    assert made.reasons() == {}


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    made = Agent(PeKey.parse("default/alerts/0"), tmp_path, progress=lambda *_: None)
    yield made
    made.close()


def claim(agent: Agent, reader: str, session: str, frame: str | None) -> None:
    """Let a reader read the import, as a call for its next offset does."""
    key = "default/alerts/0/trades"
    claimed = agent.imports.state.readers.claim(reader, key, session, renewals=None)
    assert isinstance(claimed, ImportReader)
    claimed.frame = frame
    agent.imports.queries.begin_call(frame, key, reader)


def begin(agent: Agent, run: str) -> None:
    begin = QueryBegin(query="q", run=run, exports=["out"], frames=["f"], foreign=False)
    agent.imports.queries.begin(begin)


def end(agent: Agent, run: str, code: str = "") -> list[str]:
    """End a run; return the ports that have a problem then."""
    agent.end_query(QueryEnd(query="q", run=run, exports=["out"], code=code, message="It failed."))
    health = agent.problems.health({}, {})
    return sorted(f"{kind}/{port}" for kind, port in health.problems)


def test_a_query_that_ends_well_ends_the_failure_of_what_it_reads_and_publishes(
    agent: Agent,
) -> None:
    begin(agent, "first")
    claim(agent, "r", "session 1", "f")
    both = ["Export/out", "Import/trades"]
    assert end(agent, "first", "QueryFailed") == both
    begin(agent, "second")
    claim(agent, "r", "session 1", "f")
    assert end(agent, "first") == both
    begin(agent, "third")
    claim(agent, "r", "session 1", "f")
    assert end(agent, "third") == []


def test_a_query_that_ran_beside_the_failed_one_does_not_end_its_failure(agent: Agent) -> None:
    other = QueryBegin(query="other", run="other", exports=[], frames=["g"], foreign=False)
    agent.imports.queries.begin(other)
    claim(agent, "s", "session 2", "g")
    begin(agent, "first")
    claim(agent, "r", "session 1", "f")
    end(agent, "first", "QueryFailed")
    agent.end_query(QueryEnd(query="other", run="other"))
    assert ("Import", "trades") in agent.problems.health({}, {}).problems


@pytest.mark.parametrize(("frame", "left"), [(None, []), ("f", ["trades"])])
def test_a_reader_without_spark_that_leaves_has_ended_well(
    agent: Agent, frame: str | None, left: list[str]
) -> None:
    agent.problems.note_failure([TRADES], "DataLoss", "It failed.")
    claim(agent, "r", "session 1", frame)
    agent.end_reader(ReaderLeave(reader="r", session="session 1"))
    assert [port for _, port in agent.problems.health({}, {}).problems] == left


def test_an_agent_has_room_for_a_reader_once_one_has_left(agent: Agent) -> None:
    readers = agent.imports.state.readers
    readers.max_readers = 1
    claim(agent, "r", "session 1", None)
    assert not readers.has_room()
    agent.end_reader(ReaderLeave(reader="r", session="session 1"))
    assert readers.has_room()


def test_another_query_that_went_on_all_the_time_does_not_end_a_failure(made: Bench) -> None:
    made.runs = {"another"}
    made.fail()
    made.run(10 * RECOVERED_SECONDS, "another")
    assert made.reasons() == {TRADES: "DataLoss"}
    made.run(RECOVERED_SECONDS, "another", "second")
    assert made.reasons() == {}


def test_a_failure_outlives_the_agent(made: Bench) -> None:
    made.fail()
    made.open()
    assert made.reasons() == {TRADES: "DataLoss"}
    made.run(RECOVERED_SECONDS, "second")
    made.open()
    assert made.reasons() == {}


def test_lost_rows_are_a_problem_for_an_hour_after_the_last(made: Bench) -> None:
    made.problems.note_loss("trades", (1, 10))
    made.run(LOSS_SECONDS - 1)
    made.problems.note_loss("trades", (3, 30))
    made.run(LOSS_SECONDS - 1)
    assert made.reasons() == {TRADES: "RowsLost"}
    made.run(1)
    assert made.reasons() == {}
    assert made.problems.losses == {"trades": 2}


@pytest.mark.parametrize(("rows", "words"), [(30, "30 rows"), (None, "an unknown number of rows")])
def test_lost_rows_outlive_the_agent_with_their_number(
    made: Bench, rows: int | None, words: str
) -> None:
    made.problems.note_loss("trades", (3, rows))
    made.open()
    (state,) = made.problems.health({}, {}).problems.values()
    assert f"by now 3 epochs with {words}." in state.message
    made.run(LOSS_SECONDS)
    made.open()
    assert made.reasons() == {}


def reader(seconds: float, *, alive: bool = True) -> dict[str, Any]:
    refused = {"default/feed/0/trades": "there are 1,000 readers."}
    refusals = {"default/feed/0/trades": ["ReadersExceeded", seconds]}
    return {
        "import": "default/alerts/0/trades",
        "alive": alive,
        "refused": refused,
        "refusals": refusals,
    }


def test_an_export_that_refuses_a_reader_for_long_is_a_problem_of_the_import(made: Bench) -> None:
    assert made.reasons(readers={"r": reader(REFUSED_SECONDS)}) == {TRADES: "ReadersExceeded"}
    assert made.reasons(readers={"r": reader(REFUSED_SECONDS - 1)}) == {}
    assert made.reasons(readers={"r": reader(REFUSED_SECONDS, alive=False)}) == {}


def test_damage_and_failing_uploads_are_problems_of_the_export(made: Bench) -> None:
    storage = {"bytes": 5, "seconds": 3.0, "error": "s3://rows: it fails.", "superseded": False}
    export: dict[str, Any] = {"damaged": [], "storage": None, "durability": "local"}
    found = [
        made.reasons(exports={"default/feed/0/trades": {**export, **one}})
        for one in (
            {},
            {"damaged": ["s/1.segment"]},
            {"storage": storage},
            {"storage": {**storage, "error": None}},
            {"durability": "stored"},
        )
    ]
    port: PortId = ("Export", "trades")
    assert found == [
        {},
        {port: "LogDamaged"},
        {port: "StorageUnavailable"},
        {},
        {port: "StorageMissing"},
    ]


def test_rows_that_wait_long_for_a_side_input_are_a_problem_of_what_the_query_reads(
    made: Bench,
) -> None:
    side = {"operator": "join", "input": "rates", "waitingSeconds": SIDE_WAIT_SECONDS}
    quick = {**side, "waitingSeconds": SIDE_WAIT_SECONDS - 1}
    none = {**side, "waitingSeconds": None}
    found = [
        made.reasons(sides=[(one, {"trades"})])
        for one in (side, quick, none, {**side, "input": "main"})
    ]
    assert found == [{TRADES: "SideInputWaits"}, {}, {}, {}]


def test_failed_rules_are_a_problem_of_the_imports_that_are_read(made: Bench) -> None:
    readers = {"r": reader(0.0), "s": {**reader(0.0, alive=False), "import": "default/alerts/0/x"}}
    rules = {f"rule {n}" for n in range(7)}
    health = made.problems.health({}, readers, (), {"patterns": rules})
    ((port, state),) = health.problems.items()
    assert (port, state.reason) == (TRADES, "RuleFailed")
    assert "operator patterns" in state.message
    assert "rule 0, rule 1, rule 2, rule 3, rule 4, …" in state.message
    assert made.reasons(readers=readers) == {}


def test_a_report_has_the_health_and_cuts_messages_before_ports(made: Bench) -> None:
    for number in range(300):
        made.problems.note_failure([("Import", f"in{number}")], "DataLoss", "e" * 500)
    health = write_health(made.problems.health({}, {}))
    report = build_report({"exports": {}, "imports": {"readers": {}}, "health": health})
    assert len(report["health"]["imports"]) == 300
    assert {one["reason"] for one in report["health"]["imports"].values()} == {"DataLoss"}
    assert max(len(one["message"]) for one in report["health"]["imports"].values()) < 500
