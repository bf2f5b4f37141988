"""The kill table: at each step of the protocol one process is killed, and every row is counted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.cast import Cast, Play
from support.cut_points import (
    AGENT,
    BROKER,
    DRIVER,
    EXPORTING,
    FAILING,
    FEED_AGENT,
    FEED_DRIVER,
    FEED_WORKER,
    IMPORTING,
    STEPS,
    WORKER,
)

ALWAYS = {
    ("between two blocks of a stage", FEED_AGENT),
    ("stage answered, before the task ends", FEED_WORKER),
    ("epoch on the disk, before the store", FEED_AGENT),
    ("published, not answered", FEED_DRIVER),
    ("published, not answered", BROKER),
    ("planned, before the reader is saved", FEED_AGENT),
    ("plan saved, not answered", AGENT),
    ("between two blocks of a read", FEED_AGENT),
    ("between two blocks in the task", WORKER),
    ("in the sink, before the commit log", DRIVER),
}
"""One row per kind of step and per process; the whole table is long."""

VICTIMS = {
    **{step: (FEED_DRIVER, FEED_WORKER, FEED_AGENT) for step in EXPORTING},
    **{step: (FEED_DRIVER, FEED_AGENT) for step in FAILING},
    **{step: (DRIVER, AGENT, FEED_AGENT) for step in IMPORTING},
}
READS = (
    "before read",
    "read asked",
    "between two blocks of a read",
    "between two blocks in the task",
    "all read, before the sink",
    "in the task's file of the sink",
)
TABLE = [
    *((step, victim) for step, victims in VICTIMS.items() for victim in victims),
    *((step, WORKER) for step in READS),
    *((step, BROKER) for step in STEPS if step not in FAILING),
]


@pytest.fixture(scope="module")
def cast(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cast]:
    cast = Cast(tmp_path_factory.mktemp("cuts"))
    yield cast
    cast.end()


def named(rows: list[tuple[str, str]]) -> list[object]:
    return [
        pytest.param(
            number, *row, id=": ".join(row), marks=() if row in ALWAYS else pytest.mark.long
        )
        for number, row in enumerate(rows)
    ]


@pytest.mark.parametrize(("number", "step", "victim"), named(TABLE))
def test_every_row_is_there_once_whoever_is_killed_at(
    cast: Cast, number: int, step: str, victim: str
) -> None:
    play = Play(cast, step, victim, port=f"row-{number}")
    play.run()
    play.check()
    play.check_lives()


def test_the_rows_of_every_run_are_rows_of_the_table() -> None:
    assert set(TABLE) >= ALWAYS
