"""A driver that is killed while rows wait, after rows came out, and while a table changes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from support.driver import side_table
from support.driver.process import run_driver
from support.sides.cases import Case, load
from support.sides.rates import put_rates
from support.sides.spark import Seen, write

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
        run_driver("sides", folder, 1 + turn, killed=True)
    run_driver("sides", folder, 2)
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
    expect = {name: case["expect"].get(name) for name in ("out", "any order")}
    assert seen.differences({**case, "expect": expect}, BUCKETS) == []


@pytest.mark.long
@pytest.mark.parametrize("when", ["changed", "announced"])
def test_a_kill_while_a_table_changes_shows_a_window_the_version_of_then(
    spark: SparkSession, tmp_path: Path, when: str
) -> None:
    """The window that was killed sees the old version again; what waited comes with the new one."""
    (tmp_path / "in").mkdir()
    for number, (names, currencies) in enumerate([("ab", "EUR USD"), ("c", "EUR"), ("d", "EUR")]):
        rows = pa.table({"id": list(names), "currency": currencies.split()})
        path = tmp_path / "in" / f"{number}.parquet"
        pq.write_table(rows, path)
        os.utime(path, (number + 1, number + 1))
    put_rates(tmp_path / "rates", EUR=1.0)
    (tmp_path / "case").write_text(json.dumps(when))
    run_driver("side_table", tmp_path, 1, killed=True)
    side_table.run(spark, tmp_path)
    found = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("out-*.json")}
    assert found == {
        "out-0-0": [["a", 1.0, "v1"]],
        "out-1-0": [["c", 1.0, "v1"]],
        "out-1-1": [["c", 1.0, "v1"]],
        "out-2-0": [["b", 3.0, "v2"], ["d", 2.0, "v2"]],
    }


@pytest.mark.long
def test_a_row_that_waits_is_there_after_a_kill(tmp_path: Path) -> None:
    """C-52: A is still there, the row still waits, and comes out once."""
    check(tmp_path, "C-52", None, [1])


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "pieces", "kills"),
    [
        ("C-52", None, [0, 1, 2]),
        ("C-53", None, [1]),
        ("C-53", None, [1, 2]),
        ("C-54", 2, [0, 1]),
        ("C-54", 3, [1, 2, 3]),
        ("W-1", None, [4, 5, 6]),
    ],
)
def test_kills_change_nothing_that_comes_out(
    tmp_path: Path, name: str, pieces: int | None, kills: list[int]
) -> None:
    """C-52 to C-54, each with another number of cores, and so of tasks, after each kill.

    In W-1 each kill comes while rows that have waited are released.
    """
    check(tmp_path, name, pieces, kills)
