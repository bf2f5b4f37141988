"""A soak on a slow machine: starts have no limit, and its end none while rows are still read."""

from __future__ import annotations

import itertools
import math
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import soak
from support.agents import agents
from support.processes import jobs
from support.processes.jobs import Child
from support.processes.waiting import first_line, until


@pytest.mark.parametrize(("text", "line"), [("print('ready')", "ready\n"), ("", "")])
def test_without_a_limit_a_process_that_ends_is_not_waited_for(text: str, line: str) -> None:
    with subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True) as one:
        assert one.stdout is not None
        assert first_line(one.stdout, math.inf, "a line") == line


def test_a_job_that_ends_before_it_is_ready_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "START_SECONDS", math.inf)
    child = Child(["-c", "print('no')"], tmp_path / "out", "ready")
    with pytest.raises(AssertionError, match=r"ended with 0: no"):
        child.await_ready()


def test_a_wait_goes_on_while_there_is_progress_and_ends_without() -> None:
    left, calls = [1, 2, 3], itertools.count()

    def reached() -> int:
        return left.pop() if left else 0

    with pytest.raises(AssertionError, match=r"not within 0\.0 s: all"):
        until(lambda: next(calls) < 0, 0.0, "all", pause_s=0.0, progress=reached)
    assert (left, next(calls)) == ([], 4)


def test_a_soak_sets_no_limit_to_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []

    class Run:
        def __init__(self, *_: Any, **__: Any) -> None:
            seen.extend([agents.START_SECONDS, jobs.START_SECONDS])

        def run(self) -> dict[str, Any]:
            return {}

    for module in (agents, jobs):
        monkeypatch.setattr(module, "START_SECONDS", module.START_SECONDS)
    monkeypatch.setattr(soak, "Soak", Run)
    monkeypatch.setattr(sys, "argv", ["soak.py", "--minutes", "1"])
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert soak.main() == 0
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == [math.inf, math.inf]
