"""The examples of Apex's control tuples, as they are, in the session of the tests."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from originals import end_of_file, generator
from pyspark.sql import SparkSession

COUNTS = [4, 10, 14]
"""How many rows there have been after each window."""
LINES_THERE = 65
"""Lines of the original: its tuple 25, its generator 20, its receiver 20; without the graph."""


@pytest.mark.parametrize(
    "immediate",
    [
        pytest.param(False, id="end_window", marks=pytest.mark.slow),
        pytest.param(True, id="immediate"),
    ],
)
def test_one_generator_counts_over_all_windows_and_each_receiver_gets_each_count(
    spark: SparkSession, tmp_path: Path, immediate: bool
) -> None:
    """A-5, A-9: also a receiver that has no rows."""
    found = generator.run(spark, tmp_path, immediate=immediate, before=1, behind=8)
    for window, (count, seen) in enumerate(zip(COUNTS, found.values(), strict=True)):
        assert [bucket for bucket, *_ in seen] == list(range(8)), window
        assert {of for _, of, _ in seen} == {count}
        assert sum(rows for *_, rows in seen) == count


@pytest.mark.slow
@pytest.mark.parametrize("immediate", [False, True], ids=["end_window", "immediate"])
def test_each_of_two_generators_sends_its_own_count(
    spark: SparkSession, tmp_path: Path, immediate: bool
) -> None:
    """A-1, A-2, A-10: at once is before the rows of the second, the end behind all rows."""
    found = generator.run(spark, tmp_path, immediate=immediate, before=2, behind=1)
    for count, seen in zip(COUNTS, found.values(), strict=True):
        assert len(seen) == 2
        assert sum(of for _, of, _ in seen) == count
        first, last = sorted(rows for *_, rows in seen)
        assert last == count
        assert (first < count) == immediate


@pytest.mark.slow
def test_each_file_is_closed_with_its_own_lines(spark: SparkSession, tmp_path: Path) -> None:
    """A-27. The original has this use as prose alone, so its lines cannot be counted."""
    found = end_of_file.run(spark, tmp_path)
    assert found == {"f1": ["A", "B", "C"], "f2": ["D"], "f3": ["E", "F"]}


def _program_lines(path: Path, names: set[str]) -> Iterator[int]:
    """Yield the lines of some classes, without docstrings and blank lines."""
    text = path.read_text()
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef) and node.name in names:
            documented = {
                line
                for one in ast.walk(node)
                if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)
                for line in range(one.lineno, (one.end_lineno or 0) + 1)
            }
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            for line in range(first, (node.end_lineno or 0) + 1):
                if line not in documented and text.splitlines()[line - 1].strip():
                    yield line


def test_the_classes_have_at_most_half_of_the_lines_of_the_original() -> None:
    path = Path(generator.__file__)
    here = len(list(_program_lines(path, {"Counted", "Generator", "Receiver"})))
    assert 20 < here <= LINES_THERE // 2
