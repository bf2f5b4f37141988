"""How long an export has waited: the time between one vain admission and the next."""

from __future__ import annotations

from pe_agent.agent.exports.backpressure import RETRY_WINDOW_SECONDS, WaitTimes


def test_a_wait_lasts_from_the_first_vain_admission_to_the_one_that_is_given() -> None:
    waits = WaitTimes()
    waits.note_attempt(10.0, ["a"])
    assert waits.since(10.5) == 10.0
    waits.note_attempt(11.0, ["a", "b"])
    waits.note_attempt(12.0, ["a"])
    waits.note_attempt(12.5, [])
    assert waits.since(12.5) is None
    assert waits.seconds == 2.5
    assert (waits.seconds_for("a"), waits.seconds_for("b"), waits.seconds_for("c")) == (
        2.5,
        1.0,
        0.0,
    )


def test_tasks_that_wait_at_once_wait_once() -> None:
    waits = WaitTimes()
    for step in range(11):
        for _task in range(4):
            waits.note_attempt(100 + step / 10, ["a"])
    assert round(waits.seconds, 6) == 1.0


def test_who_asks_no_more_has_ended_the_wait() -> None:
    waits = WaitTimes()
    waits.note_attempt(10.0, ["a"])
    waits.note_attempt(11.0, ["a"])
    assert waits.since(11.0 + RETRY_WINDOW_SECONDS) == 10.0
    assert waits.since(11.1 + RETRY_WINDOW_SECONDS) is None
    waits.note_attempt(100.0, ["a"])
    assert waits.since(100.0) == 100.0
    assert waits.seconds == 1.0


def test_a_reader_that_is_forgotten_takes_its_figure_with_it() -> None:
    waits = WaitTimes()
    waits.note_attempt(10.0, ["a"])
    waits.note_attempt(11.0, [])
    waits.forget("a")
    waits.forget("b")
    assert (waits.seconds_for("a"), waits.seconds) == (0.0, 1.0)
