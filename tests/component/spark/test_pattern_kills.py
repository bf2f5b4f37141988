"""A driver that is killed while a rule changes: the change comes whole, and in one window."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.driver.patterns import CALM, SENT, TORN, WINDOW

SECONDS = 100.0
TESTS = Path(__file__).parents[2]


def start(folder: Path, way: str) -> int:
    """Run a driver; return how it ended."""
    before = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([str(TESTS), *([before] if before else [])])
    with (folder / "said").open("ab") as said:
        driver = subprocess.run(
            [sys.executable, "-m", "support.driver.patterns", str(folder), way],
            cwd=TESTS,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=said,
            env={**os.environ, "PYTHONPATH": path},
            timeout=SECONDS,
            check=False,
        )
    return driver.returncode


@pytest.mark.parametrize("way", [pytest.param(TORN, marks=pytest.mark.long),
                                 pytest.param(SENT, marks=pytest.mark.long),
                                 pytest.param(WINDOW, marks=pytest.mark.long)])  # fmt: skip
def test_a_kill_while_a_rule_changes_changes_nothing(tmp_path: Path, way: str) -> None:
    """D-3 and D-10: no match of A and C, whether the change was half written, sent, or applied."""
    assert start(tmp_path, way) == -9, (tmp_path / "said").read_text()[-4000:]
    assert start(tmp_path, CALM) == 0, (tmp_path / "said").read_text()[-4000:]
    assert json.loads((tmp_path / "out").read_text()) == [["r", 2, "ABC"]]
