"""A driver in a process group of its own: how a test runs it, and how it is killed from inside."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.cuts.points import VARIABLE, Cut, search_path
from support.processes.waiting import until

SECONDS = 250.0
"""Limit for one driver, which takes 35 s on a slow machine with nothing else to do."""
PRINTING = 5.0
TESTS = Path(__file__).parents[2]


def run_driver(
    name: str,
    folder: Path,
    *arguments: object,
    killed: bool = False,
    cuts: Path | None = None,
    step: str | None = None,
) -> None:
    """Run ``python -m support.driver NAME FOLDER ARGUMENTS…`` to its end, which may be a kill.

    Through folder ``cuts`` processes of its job are held at steps of the protocol; the driver is
    killed when one of them is at ``step``.
    """
    armed = None if cuts is None or step is None else Cut(cuts, step)
    before = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([search_path(held=cuts is not None), *([before] if before else [])])
    held = {} if cuts is None else {VARIABLE: str(cuts)}
    errors = folder / "driver.err"
    with errors.open("ab") as output:
        driver = subprocess.Popen(
            [sys.executable, "-m", "support.driver", name, str(folder), *map(str, arguments)],
            cwd=TESTS,
            start_new_session=True,
            stdout=output,
            stderr=output,
            env={**os.environ, "PYTHONPATH": path, **held},
        )
    if armed is not None:
        _kill_at(driver, armed)
    try:
        code = driver.wait(SECONDS)
    except subprocess.TimeoutExpired:
        _kill_with_stacks(driver)
        raise AssertionError(errors.read_text()[-50000:]) from None
    assert code == (-signal.SIGKILL if killed else 0), errors.read_text()[-4000:]


def _kill_with_stacks(driver: subprocess.Popen[bytes]) -> None:
    """Let a driver and its JVM print what their threads do, then kill both."""
    os.killpg(driver.pid, signal.SIGQUIT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        driver.wait(PRINTING)
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()


def _kill_at(driver: subprocess.Popen[bytes], armed: Cut) -> None:
    ended = "the driver is at its step, or has ended"
    until(lambda: driver.poll() is not None or armed.reached() is not None, SECONDS, ended)
    if driver.poll() is None:
        os.killpg(driver.pid, signal.SIGKILL)
    armed.disarm()


def kill_driver(folder: Path) -> None:
    """Kill the driver of a folder; a task may do so, too."""
    os.killpg(int((folder / "driver").read_text()), signal.SIGKILL)


def kill_once(folder: Path, name: str) -> None:
    """Kill the driver of a folder, unless it was killed under this name before."""
    mark = folder / f"killed-{name}"
    if not mark.exists():
        mark.touch()
        kill_driver(folder)


def write_window(folder: Path, window: int, rows: Any) -> int:
    """Write what a window gives, each time; return how often it gave something before."""
    turn = len(list(folder.glob(f"out-{window}-*")))
    (folder / f"out-{window}-{turn}.json").write_text(json.dumps(rows, default=str))
    return turn
