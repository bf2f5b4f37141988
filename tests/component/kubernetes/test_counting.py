"""How `make e2e` counts rows: its judge, and the programs that it changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.clusters.pods import Filter, Row, explained, prepared, row

ROWS = 4_000


def dear(each: Row) -> bool:
    return each[2] > 80


def cheap(each: Row) -> bool:
    return each[2] <= 20


def every(_: Row) -> bool:
    return True


HISTORY: list[Filter | None] = [dear, None, cheap]


def came() -> list[Row]:
    """Return what comes if the route is away from row 1000 to row 1499."""
    before = [row(number) for number in range(1_000) if dear(row(number))]
    return before + [row(number) for number in range(1_500, ROWS) if cheap(row(number))]


def test_rows_that_a_history_of_filters_lets_through_are_explained() -> None:
    assert explained(came(), HISTORY, ROWS) == (True, "")


@pytest.mark.parametrize(
    ("rows", "history", "exported", "problem"),
    [
        (came()[:-1], HISTORY, ROWS, "did not come"),
        (came()[1:], HISTORY, ROWS, "(8, 'AAPL', 96) came"),
        (came()[:5] + came()[6:], HISTORY, ROWS, "came; one of"),
        (sorted([*came(), row(1_200)]), HISTORY, ROWS, "(1203, 'IBM', 11) did not come"),
        ([(5, "IBM", 85), *came()[1:]], HISTORY, ROWS, "came for"),
        (came(), [dear, cheap], ROWS, "did not come"),
        (came(), [*HISTORY, every], ROWS, "not the last"),
        (came(), HISTORY, ROWS - 300, "never exported"),
    ],
    ids=[
        "the last one lost",
        "the first one lost",
        "one in the middle lost",
        "one from the time without a route",
        "one changed",
        "a cut that was none",
        "a filter that never held",
        "more than was exported",
    ],
)
def test_a_row_too_few_or_too_many_is_reported(
    rows: list[Row], history: list[Filter | None], exported: int, problem: str
) -> None:
    fine, said = explained(rows, history, exported)
    assert not fine
    assert problem in said


def test_the_programs_of_the_example_can_be_changed_so_that_rows_are_counted(
    tmp_path: Path,
) -> None:
    folder = prepared(tmp_path / "example")
    for name in ("feed.py", "alerts.py"):
        compile((folder / name).read_text(), name, "exec")
