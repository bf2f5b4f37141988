"""A driver in a process group of its own, for tests that kill it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from support.cuts.points import VARIABLE, Cut, search_path
from support.processes.waiting import until

SECONDS = 100.0
TESTS = Path(__file__).parents[2]


def start(
    module: str,
    folder: Path,
    *arguments: object,
    cuts: Path | None = None,
    step: str | None = None,
) -> int:
    """Run ``python -m MODULE FOLDER ARGUMENTS…``; return how it ended.

    The id of its process is in ``driver`` when ``begin`` is there; what it says is in
    ``describe_progress``.

    Args:
        module: the driver.
        folder: its folder.
        arguments: what else it is told.
        cuts: a folder through which processes of its job are held at steps of ``cut_points``.
        step: one of them; the driver is killed when a process is there.
    """
    armed = None if cuts is None or step is None else Cut(cuts, step)
    before = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([search_path(held=cuts is not None), *([before] if before else [])])
    held = {} if cuts is None else {VARIABLE: str(cuts)}
    with (folder / "said").open("ab") as said:
        driver = subprocess.Popen(
            [sys.executable, "-m", module, str(folder), *map(str, arguments)],
            cwd=TESTS,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=said,
            env={**os.environ, "PYTHONPATH": path, **held},
        )
    (folder / "driver").write_text(str(driver.pid))
    (folder / "begin").touch()
    return driver.wait(SECONDS) if armed is None else _killed(driver, armed)


def _killed(driver: subprocess.Popen[bytes], armed: Cut) -> int:
    """Kill a driver at a step; return how it ended."""
    ended = "the driver is at its step, or has ended"
    until(lambda: driver.poll() is not None or armed.reached() is not None, SECONDS, ended)
    if driver.poll() is None:
        os.killpg(driver.pid, signal.SIGKILL)
    armed.disarm()
    return driver.wait(SECONDS)
