"""A driver that is killed in the middle of a window: the window runs again and comes out once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SECONDS = 100.0
TESTS = Path(__file__).parents[2]


def start(folder: Path, cores: int) -> int:
    """Run a driver in a process group of its own; return how it ended."""
    with (folder / "said").open("ab") as said:
        driver = subprocess.Popen(
            [sys.executable, "-m", "support.aligned_driver", str(folder), str(cores)],
            cwd=TESTS,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=said,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *_before()])},
        )
    (folder / "driver").write_text(str(driver.pid))
    (folder / "begin").touch()
    return driver.wait(SECONDS)


def _before() -> list[str]:
    before = os.environ.get("PYTHONPATH")
    return [before] if before else []


def rows(folder: Path) -> dict[int, list[list[int]]]:
    found = {int(path.stem): json.loads(path.read_text()) for path in folder.glob("out/*.json")}
    return dict(sorted(found.items()))


def killed(folder: Path, windows: list[int]) -> dict[int, list[list[int]]]:
    """Run to the end, killed once in each of the windows, and after each with more cores."""
    folder.mkdir()
    (folder / "windows").write_text(json.dumps(windows))
    for turn, _ in enumerate(windows):
        assert start(folder, 1 + turn) == -9
    assert start(folder, 2) == 0, (folder / "said").read_text()[-4000:]
    return rows(folder)


def test_a_kill_in_the_middle_of_a_window_changes_nothing(tmp_path: Path) -> None:
    """A-22 and A-23: the window runs again, with the same identities, state and rows."""
    calm, wild = killed(tmp_path / "calm", []), killed(tmp_path / "wild", [1])
    assert wild == calm
    assert [sorted(value for _, value, _ in found) for found in calm.values()] == [
        [1, 2, 3],
        [4, 5, 6],
        [70, 80],
        [180],
    ]


@pytest.mark.long
@pytest.mark.parametrize("windows", [[0], [2], [3], [1, 2], [0, 1, 2, 3]])
def test_kills_in_any_windows_change_nothing(tmp_path: Path, windows: list[int]) -> None:
    """A-22 to A-24: with another number of cores, and so of tasks, after each kill."""
    assert killed(tmp_path / "wild", windows) == killed(tmp_path / "calm", [])
