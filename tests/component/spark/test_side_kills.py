"""A driver that is killed while rows wait, and after rows came out: each comes out once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.killed import start
from support.sides import Case, load
from support.sides_spark import Seen, write

DRIVER = "support.side_driver"
BUCKETS = 3
CASES = {case["id"]: case for case in load()}


def run(folder: Path, case: Case, pieces: int | None, kills: list[int]) -> dict[int, list[Any]]:
    """Run a case, killed once in each of some windows, with more cores after each kill.

    Returns:
        By window, what it gave, each time.
    """
    write(folder / "in", [case], pieces)
    (folder / "case").write_text(json.dumps({"case": case, "kills": kills, "buckets": BUCKETS}))
    for turn, _ in enumerate(kills):
        assert start(DRIVER, folder, 1 + turn) == -9
    assert start(DRIVER, folder, 2) == 0, (folder / "said").read_text()[-4000:]
    found: dict[int, list[Any]] = {}
    for path in sorted(folder.glob("out-*.json")):
        window = int(path.stem.split("-")[1])
        found.setdefault(window, []).append(json.loads(path.read_text()))
    return found


def check(folder: Path, name: str, pieces: int | None, kills: list[int]) -> None:
    case = CASES[name]
    found = run(folder, case, pieces, kills)
    seen = Seen()
    for window, turns in sorted(found.items()):
        assert len(turns) == (2 if window in kills else 1)
        assert all(turn == turns[0] for turn in turns)
        for output, rows in turns[0].items():
            seen.run.out[output] += rows
    expect = {"out": case["expect"]["out"]}
    assert seen.differences({**case, "expect": expect}, BUCKETS) == []


@pytest.mark.long
def test_a_row_that_waits_is_there_after_a_kill(tmp_path: Path) -> None:
    """C-52: A is still there, the row still waits, and comes out once."""
    check(tmp_path, "C-52", None, [1])


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "pieces", "kills"),
    [
        ("C-52", None, [0, 1, 2]),
        ("C-53", None, [1]),
        ("C-53", None, [1, 2]),
        ("C-54", 2, [0, 1]),
        ("C-54", 3, [1, 2, 3]),
    ],
)
def test_kills_change_nothing_that_comes_out(
    tmp_path: Path, name: str, pieces: int | None, kills: list[int]
) -> None:
    """C-52 to C-54, each with another number of cores, and so of tasks, after each kill."""
    check(tmp_path, name, pieces, kills)
