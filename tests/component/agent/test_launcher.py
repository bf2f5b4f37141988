"""The driver's side of an agent: started, adopted, waited for, started again."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pe_agent.agent.process import read_address
from pe_agent.job.agent import agent_process as launcher
from pe_agent.job.agent.agent_process import AgentFailedError, AgentProcess
from pe_agent.job.agent.shard_agents import ShardAgentProcesses, ShardAgentsInvalidError
from pe_agent.transport.flight_errors import AgentUnreachableError
from streambroker_core.model import PeKey
from support.processes.waiting import until

SECONDS = 30.0
Start = Callable[..., AgentProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start, or adopt, the agent of a job in one data directory."""
    started: list[AgentProcess] = []

    def one(job: str = "feed", pe: int = 0) -> AgentProcess:
        process = AgentProcess(
            PeKey("default", job, pe),
            tmp_path / (f"pe-{pe}" if pe else "home"),
            broker=None,
            linger=20,
            host="127.0.0.1",
            port=0,
        )
        started.append(process)
        return process

    yield one
    for process in started:
        process.stop(end_agent=True)


def test_an_agent_that_lives_is_adopted(start: Start) -> None:
    first = start()
    second = start()
    assert second.client.location == first.client.location


def test_an_agent_that_is_only_just_starting_is_waited_for(start: Start, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    found: list[AgentProcess] = []
    with (home / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        thread = threading.Thread(target=lambda: found.append(start()))
        thread.start()
        log = home / "agent.log"
        until(lambda: log.exists() and "HomeInUse" in log.read_text(), SECONDS, "a first try")
    thread.join(SECONDS)

    assert found[0].client.call("status")["pe"] == "default/feed/0"


def test_an_agent_that_gets_on_with_its_recovery_is_waited_for_beyond_the_time_limit(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "ADOPT_SECONDS", 1.0)
    home = tmp_path / "home"
    home.mkdir()
    found: list[AgentProcess | AgentFailedError] = []

    def wait() -> None:
        try:
            found.append(start())
        except AgentFailedError as error:
            found.append(error)

    tries = home / "agent.log"
    read = itertools.count()
    with (home / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        thread = threading.Thread(target=wait)
        thread.start()
        begun = time.monotonic()

        def waited() -> bool:
            reported = {"stream": "s", "done": next(read), "total": 10_000}
            fresh = home / "recovering.new"
            fresh.write_text(json.dumps(reported))
            fresh.replace(home / "recovering.json")
            refused = tries.exists() and tries.read_text().count("HomeInUse") >= 2
            return refused and time.monotonic() > begun + 2

        until(waited, 4 * SECONDS, "tries beyond the time limit")
        assert not found
    thread.join(2 * SECONDS)

    assert isinstance(found[0], AgentProcess), found[0]
    assert found[0].client.call("status")["pe"] == "default/feed/0"
    assert not (home / "recovering.json").exists()


def test_the_directory_of_another_job_that_runs_is_refused_at_once(start: Start) -> None:
    start()
    with pytest.raises(AgentFailedError, match="in use by the agent of default/feed/0"):
        start("other")


def test_an_agent_that_was_killed_is_started_again_on_its_port(
    start: Start, tmp_path: Path
) -> None:
    process = start()
    before = read_address(tmp_path / "home")
    assert before is not None
    os.kill(before["pid"], signal.SIGKILL)

    def again() -> bool:
        now = read_address(tmp_path / "home")
        try:
            answers = process.client.call("status")["pe"] == "default/feed/0"
        except AgentUnreachableError:
            return False
        return answers and now is not None and now["pid"] != before["pid"]

    until(again, SECONDS, "an answer of another process")
    assert process.client.location == before["location"]


@pytest.mark.slow
def test_the_home_learns_its_fellows_also_after_one_of_them_was_started_again(
    start: Start,
) -> None:
    home = start()
    fellows = ShardAgentProcesses(home, lambda number: start(pe=number), 2)

    def known() -> dict[str, bool]:
        reported = home.client.call("status")["fellows"]
        return {pe: one["active"] for pe, one in reported.items() if one["away"] is None}

    assert list(home.client.call("status")["fellows"]) == ["default/feed/1", "default/feed/2"]
    before = fellows.processes[0].client
    os.kill((read_address(fellows.processes[0].home) or {})["pid"], signal.SIGKILL)
    until(lambda: fellows.processes[0].client is not before, SECONDS, "it runs again")
    until(lambda: len(known()) == 2, SECONDS, "both answer the home")

    # Else the other one would be told again of who was started again, maybe only now.
    home.beat_callbacks.clear()
    fellows.report()
    ShardAgentProcesses(home, lambda number: start(pe=number), 0)
    until(lambda: not known(), SECONDS, "those that hold nothing are forgotten")


@pytest.mark.slow
def test_an_agent_that_does_not_start_takes_its_fellows_with_it(start: Start) -> None:
    home = start()
    found: list[AgentProcess] = []

    def one(number: int) -> AgentProcess:
        if number == 2:
            raise AgentFailedError("no second one")
        found.append(start(pe=number))
        return found[-1]

    with pytest.raises(AgentFailedError, match="no second one"):
        ShardAgentProcesses(home, one, 2)
    assert read_address(found[0].home) is None
    assert home.client.call("status")["fellows"] == {}


@pytest.mark.slow
def test_fellows_that_run_elsewhere_are_taken_if_they_are_of_the_job(start: Start) -> None:
    home, one, stranger = start(), start(pe=1), start(job="other", pe=2)

    def fellows(*elsewhere: AgentProcess) -> ShardAgentProcesses:
        return ShardAgentProcesses(home, lambda _: start(), 0, [p.client for p in elsewhere])

    for wrong in ((stranger,), (home,), (one, one)):
        with pytest.raises(ShardAgentsInvalidError, match="have to belong to that job"):
            fellows(*wrong)
    assert home.client.call("status")["fellows"] == {}
    fellows(one).stop(end_agent=True)
    assert list(home.client.call("status")["fellows"]) == ["default/feed/1"]
    assert one.client.call("status")["pe"] == "default/feed/1"
