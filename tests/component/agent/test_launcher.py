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


@pytest.mark.parametrize("disk", ["kept", "lost"])
def test_an_agent_that_was_killed_is_started_again_on_its_port_with_its_token(
    start: Start, tmp_path: Path, disk: str
) -> None:
    process = start()
    before = read_address(tmp_path / "home")
    assert before is not None
    if disk == "lost":
        (tmp_path / "home").rename(tmp_path / "away")
    os.kill(before["pid"], signal.SIGKILL)

    def again() -> bool:
        now = read_address(tmp_path / "home")
        try:
            answers = process.client.call("status")["pe"] == "default/feed/0"
        except AgentUnreachableError:
            return False
        return answers and now is not None and now["pid"] != before["pid"]

    until(again, SECONDS, "an answer of another process")
    now = read_address(tmp_path / "home")
    assert now is not None
    assert (now["location"], now["token"]) == (before["location"], before["token"])


def test_an_agent_is_restarted_while_a_callback_waits_for_its_server(
    start: Start, tmp_path: Path
) -> None:
    process, waits, over = start(), threading.Event(), threading.Event()

    def callback() -> None:
        waits.set()
        over.wait(4 * SECONDS)

    process.beat_callbacks.append(callback)
    assert waits.wait(SECONDS)
    before = read_address(tmp_path / "home")
    assert before is not None
    os.kill(before["pid"], signal.SIGKILL)

    def again() -> bool:
        now = read_address(tmp_path / "home")
        return now is not None and now["pid"] != before["pid"]

    until(again, SECONDS, "another process")
    over.set()


def test_a_stop_does_not_wait_for_an_agent_that_is_being_restarted(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, tried = start(), threading.Event()
    before = read_address(tmp_path / "home")
    assert before is not None
    restarted: set[int] = set()

    def unanswered(self: AgentProcess, pid: int) -> None:
        restarted.add(pid)
        tried.set()

    monkeypatch.setattr(AgentProcess, "_connect_if_serving", unanswered)
    os.kill(before["pid"], signal.SIGKILL)
    assert tried.wait(SECONDS)
    process.stop(end_agent=False)

    assert not [thread.name for thread in process._threads if thread.is_alive()]
    # It would serve on for its linger, which a later stop does not reach while it starts.
    for pid in restarted:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
