"""Who is away for longer than a restart takes: what waits, what is lost, and what is said."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.cuts.cast import Cast
from support.cuts.plays import Away, Lost, Unreached
from support.cuts.points import AGENT, DRIVER, WORKER

LEAVING = [
    ("between two blocks in the task", WORKER),
    ("plan saved, not answered", AGENT),
    ("offset in the checkpoint, before partitions", DRIVER),
    ("in the sink, before the commit log", DRIVER),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "victim"),
    [
        pytest.param(*row, id=": ".join(row), marks=() if n == 0 else pytest.mark.long)
        for n, row in enumerate(LEAVING)
    ],
)
def test_an_importer_that_is_away_within_grace_is_waited_for_and_loses_nothing(
    new_cast: Callable[[], Cast], step: str, victim: str
) -> None:
    play = Away(new_cast(), step, victim)
    play.run()
    play.check()
    play.passed()


@pytest.mark.long
def test_an_importer_that_is_away_for_longer_than_grace_learns_what_it_lost(
    new_cast: Callable[[], Cast],
) -> None:
    """Its planned batch is gone as well; the exporter has waited for grace and no longer."""
    play = Lost(new_cast(), "between two blocks in the task", WORKER, grace="1s")
    play.run()

    stream, first, next_ = play.planned()[-1]
    assert f"epochs {first} to {next_ - 1} of stream {stream} are gone" in play.failure
    play.passed()


@pytest.mark.long
@pytest.mark.parametrize(
    ("step", "says"),
    [
        ("partitions answered, before the tasks", "Epochs {first} to {last} of stream {stream}"),
        ("before read", "Epochs {first} to {last} of stream {stream}"),
        ("plan asked again", "epochs {first} to {last} of stream {stream}"),
    ],
)
def test_a_query_that_cannot_reach_the_exporter_says_where_it_is_and_what_is_not_read(
    new_cast: Callable[[], Cast], step: str, says: str
) -> None:
    play = Unreached(new_cast(), step)
    play.run()
    play.check()

    (failure,) = play.importing.failures
    found = {says.format(first=f, last=n - 1, stream=s) for s, f, n in play.planned()}
    assert any(text in failure for text in found), (failure, found)
    assert play.cast.exporter.location in failure
    assert "AgentUnreachable" in failure
    play.passed()
