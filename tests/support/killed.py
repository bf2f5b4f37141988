"""A driver in a process group of its own, for tests that kill it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SECONDS = 100.0
TESTS = Path(__file__).parents[1]


def start(module: str, folder: Path, cores: int) -> int:
    """Run ``python -m MODULE FOLDER CORES``; return how it ended.

    The id of its process is in ``driver`` when ``begin`` is there; what it says is in ``said``.
    """
    before = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([str(TESTS), *([before] if before else [])])
    with (folder / "said").open("ab") as said:
        driver = subprocess.Popen(
            [sys.executable, "-m", module, str(folder), str(cores)],
            cwd=TESTS,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=said,
            env={**os.environ, "PYTHONPATH": path},
        )
    (folder / "driver").write_text(str(driver.pid))
    (folder / "begin").touch()
    return driver.wait(SECONDS)
