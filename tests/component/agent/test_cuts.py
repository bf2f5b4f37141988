"""The kill table: at each step of the protocol one process is killed, and every row is counted."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Sequence

import pytest

from support.cuts.cast import Cast, Play
from support.cuts.plays import Lagging
from support.cuts.points import (
    AGENT,
    BROKER,
    DRIVER,
    DROPPING,
    EXPORTING,
    FAILING,
    FEED_AGENT,
    FEED_DRIVER,
    FEED_WORKER,
    IMPORTING,
    STEPS,
    WORKER,
    find,
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

STAGING = [s for s, step in EXPORTING.items() if step.where in (FEED_AGENT, FEED_WORKER)][1:-6]
READING = [s for s, step in IMPORTING.items() if step.where == WORKER]
READING += ["read asked", "between two blocks of a read"]
VICTIMS: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "exporting": (list(EXPORTING), (FEED_DRIVER, FEED_AGENT, BROKER)),
    "staging": (STAGING, (FEED_WORKER,)),
    "failing": (list(FAILING), (FEED_DRIVER, FEED_AGENT)),
    "importing": (list(IMPORTING), (DRIVER, AGENT, FEED_AGENT, BROKER)),
    "reading": (READING, (WORKER,)),
}
TABLE = [(step, v) for steps, victims in VICTIMS.values() for step in steps for v in victims]
LAGGING = [
    *((step, v) for step in DROPPING for v in (FEED_AGENT, FEED_DRIVER, DRIVER)),
    *(
        (step, victim)
        for step in (
            "acknowledged, before the plan",
            "planned, before the reader is saved",
            "plan saved, not answered",
            "offset made, not answered",
            "offset in the checkpoint, before partitions",
            "planned again, not answered",
            "between two blocks of a read",
        )
        for victim in (FEED_AGENT, AGENT, DRIVER)
    ),
]
LAGGING_ALWAYS = [("epochs taken out of the log", FEED_AGENT)]


def named(rows: Sequence[tuple[str, str]], always: Collection[tuple[str, str]]) -> list[object]:
    return [
        pytest.param(*row, id=": ".join(row), marks=() if row in always else pytest.mark.long)
        for row in rows
    ]


@pytest.mark.parametrize(("step", "victim"), named(TABLE, ALWAYS))
def test_every_row_is_there_once_whichever_process_is_killed_at(
    new_cast: Callable[[], Cast], step: str, victim: str
) -> None:
    # One epoch to a batch, where the reading is cut: so there are as many batches as epochs.
    reading = {"maxBytesPerBatch": "1"} if step in IMPORTING else {}
    fails = ["task", 1] if step in FAILING else None
    play = Play(new_cast(), step, victim, reading=reading, fails=fails)
    play.run()
    play.check()
    play.check_lives(failing=int(step in FAILING and victim != FEED_DRIVER))
    play.passed()


STRAGGLING = [
    ("before admission", FEED_DRIVER),
    ("between two blocks of a stage", FEED_AGENT),
    ("published, before the stages are swept", FEED_AGENT),
    ("published, not answered", FEED_DRIVER),
]


@pytest.mark.parametrize(("step", "victim"), named(STRAGGLING, STRAGGLING[-1:]))
def test_an_attempt_that_comes_after_its_batch_adds_nothing_whichever_process_is_killed_at(
    new_cast: Callable[[], Cast], step: str, victim: str
) -> None:
    play = Play(new_cast(), step, victim, stragglers=True)
    play.run()
    play.check()
    play.passed()


@pytest.mark.long
@pytest.mark.parametrize("what", ["task", "commit"])
def test_a_batch_that_failed_once_is_there_once(new_cast: Callable[[], Cast], what: str) -> None:
    """Spark aborts it, and makes it again when the query is started again."""
    play = Play(new_cast(), "aborted, not answered", BROKER, fails=[what, 1])
    play.run()
    play.check()
    play.check_lives(failing=1)
    play.passed()


@pytest.mark.parametrize(("step", "victim"), named(LAGGING, LAGGING_ALWAYS))
def test_every_row_is_delivered_filtered_or_dropped_whichever_process_is_killed_at(
    new_cast: Callable[[], Cast], step: str, victim: str
) -> None:
    play = Lagging(new_cast(), step, victim)
    play.run()
    play.check()
    play.check_lives()
    play.passed()


def test_each_row_that_is_always_run_is_one_of_the_table() -> None:
    assert set(TABLE) >= ALWAYS
    assert set(LAGGING) >= set(LAGGING_ALWAYS)


@pytest.mark.parametrize("name", STEPS)
def test_each_step_is_a_call_of_the_product_or_of_what_stands_in_for_spark(name: str) -> None:
    module, _, path = STEPS[name].call.partition(":")
    _, _, call = find(importlib.import_module(module), path)
    assert callable(getattr(call, "__func__", call))
