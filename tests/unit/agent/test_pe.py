"""What a PE of a job tells its agent, from whichever thread."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

import pe_agent
from pe_agent.job import query_monitor
from pe_agent.job.arguments import ArgumentError
from pe_agent.job.query_monitor import QueryMonitor
from pe_agent.pe import PE
from pe_agent.spark.query_sources import Sources
from pe_agent.transport.flight_errors import AgentUnreachableError
from streambroker_core.model import PeKey


class EndedQuery:
    """A query that is found ended; who asks first is answered once another thread has come, too."""

    def __init__(self) -> None:
        self.id, self.runId = "query-1", "run-1"
        self.asked = threading.Event()
        self.met = threading.Event()

    @property
    def isActive(self) -> bool:  # noqa: N802 (Spark's name)
        if self.asked.is_set():
            self.met.set()
        self.asked.set()
        self.met.wait(10.0)
        return False


class Lock:
    """A lock that tells when somebody has to wait for it."""

    def __init__(self, waits: threading.Event) -> None:
        self._lock, self._waits = threading.Lock(), waits

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self._waits.set()
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_an_ended_query_gives_its_lease_back_once_when_a_beat_and_a_stop_meet() -> None:
    calls: list[tuple[str, dict[str, Any]]] = []
    client = SimpleNamespace(call=lambda name, **said: calls.append((name, said)))
    process = SimpleNamespace(beat_callbacks=[], client=client, stop=lambda end_agent: None)
    pe = PE(cast(Any, None), PeKey("default", "job", 0), cast(Any, process), None, {})
    query = EndedQuery()
    pe.context.queries.add(("out",), cast(Any, query), Sources())
    pe.context.queries._beat_lock = cast(Any, Lock(query.met))

    beat = threading.Thread(target=process.beat_callbacks[0])
    beat.start()
    assert query.asked.wait(10.0)
    pe.stop()
    beat.join(10.0)

    assert query.met.is_set(), "they have not met"
    assert [name for name, _ in calls] == ["query.end", "publisher.renounce"]
    assert calls[1][1] == {"export": "out", "query": "query-1"}


def test_a_stop_leaves_a_session_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_monitor, "RELEASE_SECONDS", 0.1)
    answered, stopped = threading.Event(), threading.Event()

    class Hanging:
        id, runId = "query-1", "run-1"  # noqa: N815 (Spark's names)

        @property
        def isActive(self) -> bool:  # noqa: N802 (Spark's name)
            return answered.wait(60.0)

    client = SimpleNamespace(call=lambda name, **arguments: None)
    process = SimpleNamespace(
        beat_callbacks=[], client=client, stop=lambda end_agent: stopped.set()
    )
    pe = PE(cast(Any, None), PeKey("default", "job", 0), cast(Any, process), None, {})
    pe.context.queries.add(("out",), cast(Any, Hanging()), Sources())
    try:
        pe.stop()
        assert stopped.is_set()
        assert not answered.is_set()
    finally:
        answered.set()


@pytest.mark.parametrize("agents", [0, 2, [("grpc://127.0.0.1:1", "token")]])
def test_several_agents_for_a_job_are_refused_with_the_successor(agents: Any) -> None:
    with (
        pytest.warns(DeprecationWarning, match="streambroker.start"),
        pytest.raises(ArgumentError, match="durability='stored'"),
    ):
        pe_agent.start(cast(Any, None), job="feed", agents=agents)


class RunningQuery:
    """A query that runs until it is stopped."""

    id, runId, isActive = "query-1", "run-1", True  # noqa: N815 (Spark's names)

    def __init__(self) -> None:
        self.stopped = threading.Event()

    def stop(self) -> None:
        self.stopped.set()


def test_a_query_whose_imports_have_ended_is_stopped_if_it_is_to_be() -> None:
    client = SimpleNamespace(call=lambda name, **_: {"ended": name == "query.begin"})
    queries = QueryMonitor(cast(Any, None), lambda: cast(Any, client))
    on, to_end = RunningQuery(), RunningQuery()
    queries.add((), cast(Any, on), Sources(("f1",), False, False))
    queries.add((), cast(Any, to_end), Sources(("f2",), False, True))
    assert to_end.stopped.wait(10.0)
    assert not on.stopped.is_set()


class FailedQuery:
    """A query that an exception of a Python worker has ended."""

    isActive = False  # noqa: N815 (Spark's name)

    def __init__(self, last_line: str) -> None:
        self.id, self.runId = "query-1", "run-1"
        self._last_line = last_line

    def exception(self) -> Exception:
        """Return what Spark does: the traceback of the worker in a long text."""
        return RuntimeError(
            "Job aborted.\nTraceback (most recent call last):\n"
            f'  File "/home/job/app.py", line 7, in price\n    fail()\n{self._last_line}\n'
        )


@pytest.mark.parametrize(
    ("last_line", "code", "message"),
    [
        (
            "streambroker_core.ledger.planner.DataLossError: epochs 0 to 3 are gone.",
            "DataLoss",
            "epochs 0 to 3 are gone.",
        ),
        (
            "pe_agent.transport.flight_errors.AgentRefusedError: epochs are gone.\nin all\n"
            "Error code: DataLoss",
            "DataLoss",
            "epochs are gone.\nin all",
        ),
        (
            "pe_agent.transport.flight_errors.AgentRefusedError: it cannot be.",
            "QueryFailed",
            "AgentRefusedError at /home/job/app.py:7, in price. The log of the job has the error."
            " Correct the cause.",
        ),
        (
            "ValueError: card 4711 is blocked",
            "QueryFailed",
            "ValueError at /home/job/app.py:7, in price. The log of the job has the error. Correct"
            " the cause.",
        ),
    ],
)
def test_a_failed_query_is_reported_with_its_code_and_without_values_of_rows(
    last_line: str, code: str, message: str
) -> None:
    calls: list[tuple[str, dict[str, Any]]] = []

    def call(name: str, **said: Any) -> dict[str, Any]:
        calls.append((name, said))
        return {"ended": False}

    client = SimpleNamespace(call=call)
    queries = QueryMonitor(cast(Any, None), lambda: cast(Any, client))
    queries.add(("out",), cast(Any, FailedQuery(last_line)), Sources())
    queries.beat()
    (end,) = [said for name, said in calls if name == "query.end"]
    assert (end["exports"], end["code"], end["message"]) == (["out"], code, message)


def test_the_end_of_a_query_is_reported_again_until_the_agent_has_answered() -> None:
    ends: list[str] = []
    away = True

    def call(name: str, **said: Any) -> dict[str, Any]:
        if away:
            raise AgentUnreachableError("the agent does not answer")
        ends.extend([said["code"]] if name == "query.end" else [])
        return {"ended": False}

    client = SimpleNamespace(call=call)
    queries = QueryMonitor(cast(Any, None), lambda: cast(Any, client))
    queries.add((), cast(Any, FailedQuery("ValueError: no")), Sources())
    with pytest.raises(AgentUnreachableError):
        queries.beat()
    away = False
    queries.beat()
    queries.beat()
    assert ends == ["QueryFailed"]


def test_a_query_that_ends_well_is_reported_also_if_it_only_publishes() -> None:
    calls: list[tuple[str, dict[str, Any]]] = []
    client = SimpleNamespace(call=lambda name, **said: calls.append((name, said)))
    queries = QueryMonitor(cast(Any, None), lambda: cast(Any, client))
    ended = RunningQuery()
    ended.isActive = False
    queries.add(("out",), cast(Any, ended), Sources())
    queries.beat()
    (end,) = [said for name, said in calls if name == "query.end"]
    assert (end["run"], end["exports"], end.get("code")) == ("run-1", ["out"], None)
