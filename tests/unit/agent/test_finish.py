"""The end of a stream: said once, kept, and taken back by whoever publishes after all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from streambroker_core.errors import StreambrokerError
from streambroker_core.ledger.publisher import LEASE_SECONDS
from streambroker_core.ledger.retention import RetentionLimits
from support.agents.exports import Bench, bench, rows


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Bench]:
    with bench(tmp_path) as one:
        yield one


def finish(made: Bench, query: str | None = "q", run: str | None = "r") -> None:
    made.export.publisher.finish(query=query, run=run)


def test_an_end_is_reported_and_outlives_the_agent(made: Bench) -> None:
    made.publish(0, rows(0, 3))
    assert not made.export.state.ended()
    notified = made.notified
    finish(made)
    assert made.notified == notified + 1
    assert made.export.state.ended()
    assert made.export.status()["ended"]
    assert made.reopen().state.ended()


def test_a_batch_that_is_repeated_leaves_the_end_and_a_new_one_takes_it_back(made: Bench) -> None:
    made.publish(0, rows(0, 3))
    finish(made)
    made.admit(0)
    assert not made.commit(0, made.stage(0, rows(0, 3)))["published"]
    made.commit(1)
    assert made.export.state.ended()
    made.publish(2, rows(3, 3))
    assert not made.export.state.ended()
    assert not made.reopen().state.ended()
    finish(made)
    assert made.export.state.ended()


def test_a_successor_takes_the_end_back_with_its_first_epoch(made: Bench) -> None:
    made.publish(0, rows(0, 3))
    finish(made)
    made.now += LEASE_SECONDS
    made.admit(0, query="other")
    stage = made.stage(0, rows(0, 3), query="other")
    assert made.export.state.ended()
    made.commit(0, stage, query="other")
    assert not made.export.state.ended()


def test_an_end_outlives_the_epochs(made: Bench) -> None:
    made.publish(0, rows(0, 3))
    finish(made)
    made.export.set_limits(RetentionLimits(max_bytes=1, max_age=0))
    made.now += 1
    made.export.tick()
    assert not made.export.state.ledger.streams[made.stream].epochs
    assert made.export.state.ended()
    assert made.reopen().state.ended()


def test_an_export_ends_that_never_had_a_row(made: Bench) -> None:
    finish(made, query=None, run=None)
    assert made.export.state.ended()
    assert made.reopen().state.ended()
    made.publish(0, rows(0, 1))
    assert not made.export.state.ended()


@pytest.mark.parametrize(
    ("query", "run", "code"), [("other", "r", "PublisherInUse"), ("q", "r", "Fenced")]
)
def test_another_query_or_an_earlier_run_says_no_end(
    made: Bench, query: str, run: str, code: str
) -> None:
    made.publish(0, rows(0, 1))
    made.publish(1, rows(1, 1), run="r2")
    with pytest.raises(StreambrokerError) as refused:
        finish(made, query, run)
    assert refused.value.code == code
    assert not made.export.state.ended()
    finish(made, "q", "r2")
    assert made.export.state.ended()


def test_an_end_does_not_give_back_a_lease_or_take_one(made: Bench) -> None:
    made.publish(0, rows(0, 1))
    finish(made)
    made.reopen()
    assert "occupied" in made.admit(0, query="other")
    made.export.publisher.end_publisher_lease("q")
    finish(made)
    made.reopen()
    assert made.admit(0, query="other") == {"admitted": True}
