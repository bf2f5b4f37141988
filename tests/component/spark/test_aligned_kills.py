"""A driver that is killed in the middle of a window: the window runs again and comes out once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from support.aligned_driver import run
from support.killed import start

DRIVER = "support.aligned_driver"


def rows(folder: Path) -> dict[int, list[list[int]]]:
    found = {int(path.stem): json.loads(path.read_text()) for path in folder.glob("out/*.json")}
    return dict(sorted(found.items()))


def killed(folder: Path, windows: list[int]) -> dict[int, list[list[int]]]:
    """Run to the end, killed once in each of the windows, and after each with more cores."""
    folder.mkdir()
    (folder / "windows").write_text(json.dumps(windows))
    for turn, _ in enumerate(windows):
        assert start(DRIVER, folder, 1 + turn) == -9
    assert start(DRIVER, folder, 2) == 0, (folder / "said").read_text()[-4000:]
    return rows(folder)


def unharmed(spark: SparkSession, folder: Path) -> dict[int, list[list[int]]]:
    folder.mkdir()
    run(spark, folder, [], tasks=3)
    return rows(folder)


def test_a_kill_in_the_middle_of_a_window_changes_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A-22 and A-23: the window runs again, with the same identities, state and rows."""
    calm, wild = unharmed(spark, tmp_path / "calm"), killed(tmp_path / "wild", [1])
    assert wild == calm
    assert [sorted(value for _, value, _ in found) for found in calm.values()] == [
        [1, 2, 3],
        [4, 5, 6],
        [70, 80],
        [180],
    ]


@pytest.mark.long
@pytest.mark.parametrize("windows", [[0], [2], [3], [1, 2], [0, 1, 2, 3]])
def test_kills_in_any_windows_change_nothing(
    spark: SparkSession, tmp_path: Path, windows: list[int]
) -> None:
    """A-22 to A-24: with another number of cores, and so of tasks, after each kill."""
    assert killed(tmp_path / "wild", windows) == unharmed(spark, tmp_path / "calm")
