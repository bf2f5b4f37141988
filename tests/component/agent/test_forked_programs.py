"""A forked agent or broker is one that was started: in what it prints, and in how it ends."""

from __future__ import annotations

import math
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from support.processes.forks import AGENT, CLI, ForkedProgram, program

Ended = tuple[int, str, str]


def run(command: Sequence[str], *, fresh: bool, **environment: str) -> Ended:
    process = program(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        environment={**os.environ, **environment},
        fresh=fresh,
    )
    assert isinstance(process, ForkedProgram) != fresh
    out, err = process.communicate(timeout=30.0)
    return process.wait(), out, err


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ((*AGENT, "--help"), 0),
        ((*AGENT, "--home"), 2),
        ((*CLI, "version", "--client"), 0),
        ((*CLI, "up", "--port", "x"), 2),
        ((*CLI, "get", "exports", "--url", "http://127.0.0.1:1"), 4),
    ],
)
def test_it_prints_and_ends_as_a_process_that_was_started(
    command: Sequence[str], code: int
) -> None:
    forked, started = (run(command, fresh=fresh, COLUMNS="100") for fresh in (False, True))
    assert forked == started
    assert started[0] == code


def test_its_end_by_a_signal_is_reported(tmp_path: Path) -> None:
    command = [*CLI, "up", "--db", str(tmp_path / "b.db"), "--port", "0"]
    process = program(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("streambroker listening")
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.kill()
    assert process.wait(math.inf) == -signal.SIGKILL
    process.communicate(timeout=30.0)


def test_it_has_the_environment_that_it_was_given(tmp_path: Path) -> None:
    agent = [*AGENT, "--home", str(tmp_path / "a"), "--job", "feed"]
    code, _, errors = run(agent, fresh=False, STREAMBROKER_METRICS_PORT="x")
    assert code == 2
    assert "argument --metrics-port: invalid int value: 'x'" in errors


def test_it_is_not_forked_if_it_looks_elsewhere_for_modules(tmp_path: Path) -> None:
    process = program(
        [*CLI, "--help"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        environment={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert isinstance(process, subprocess.Popen)
    assert process.wait(30.0) == 0
