"""A driver in a process group of its own, for tests that kill it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.cut_points import search_path

SECONDS = 100.0
TESTS = Path(__file__).parents[1]


def start(module: str, folder: Path, *arguments: object) -> int:
    """Run ``python -m MODULE FOLDER ARGUMENTS…``; return how it ended.

    The id of its process is in ``driver`` when ``begin`` is there; what it says is in ``said``.
    """
    before = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([search_path(held=False), *([before] if before else [])])
    with (folder / "said").open("ab") as said:
        driver = subprocess.Popen(
            [sys.executable, "-m", module, str(folder), *map(str, arguments)],
            cwd=TESTS,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=said,
            env={**os.environ, "PYTHONPATH": path},
        )
    (folder / "driver").write_text(str(driver.pid))
    (folder / "begin").touch()
    return driver.wait(SECONDS)
