"""What an export tells of its readers: how far behind, how full of them, what was sent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pe_agent.agent.exports.stream.block_reader import BlockReader, ReadRequest
from streambroker_core.ledger.publisher import LEASE_SECONDS
from support.agents.exports import Bench, bench, rows


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Bench]:
    with bench(tmp_path) as one:
        yield one


def reader(made: Bench) -> dict[str, Any]:
    (figures,) = made.export.status()["readers"].values()
    return dict(figures)


def read(made: Bench, epoch: int, filter_: str | None = None) -> int:
    wanted = ReadRequest(
        reader="reader",
        stream=made.stream,
        pieces=((epoch, 0, 1),),
        filter=filter_,
        columns=None,
    )
    return sum(batch.num_rows for batch, _ in BlockReader().read_batches(made.export.plans, wanted))


def test_lag_is_reported_in_epochs_rows_bytes_and_seconds(made: Bench) -> None:
    made.route("wait")
    for batch in range(3):
        made.publish(batch, rows(10 * batch, 4 + batch))
        made.now += 10
    made.plan(budget=1)
    held = made.export.state.ledger.streams[made.stream]
    figures = reader(made)
    assert figures["lag"] == [3, held.bytes]
    assert (figures["lagRows"], figures["lagSeconds"]) == (15, 30.0)
    made.plan({made.stream: 1})
    made.now += 5
    figures = reader(made)
    assert figures["lag"] == [2, held.bytes_from(1)]
    assert (figures["lagRows"], figures["lagSeconds"]) == (11, 25.0)
    made.plan({made.stream: 3})
    figures = reader(made)
    assert (figures["lag"], figures["lagRows"], figures["lagSeconds"]) == ([0, 0], 0, 0.0)


def test_a_reader_that_finishes_no_epoch_although_some_wait_is_stalled_for_that_time(
    made: Bench,
) -> None:
    made.route("wait")
    made.plan(lease=200)
    made.now += 100
    assert reader(made)["stalledSeconds"] == 0.0
    made.publish(0, rows(0, 1))
    made.publish(1, rows(0, 1))
    made.now += 7
    assert reader(made)["stalledSeconds"] == 7.0
    made.plan(budget=1, lease=200)
    made.now += 3
    assert reader(made)["stalledSeconds"] == 10.0
    made.plan({made.stream: 1}, lease=200)
    made.now += 5
    assert reader(made)["stalledSeconds"] == 5.0
    made.now += 200
    assert reader(made)["stalledSeconds"] == 0.0


def test_congestion_is_the_share_of_the_log_that_a_reader_has_to_read(made: Bench) -> None:
    made.route("wait")
    made.publish(0, rows(0, 50))
    made.plan(budget=1)
    size = made.export.state.ledger.streams[made.stream].bytes
    for limit, congestion in ((size * 10, 10), (size * 2, 50), (size, 100), (size // 3, 100)):
        made.limit(max_bytes=limit)
        assert reader(made)["congestion"] == congestion
    made.plan({made.stream: 1})
    assert reader(made)["congestion"] == 0


def test_what_is_sent_counts_each_time_and_what_is_delivered_once(made: Bench) -> None:
    made.route("wait")
    made.publish(0, rows(0, 10))
    made.plan(filter_="n > 6")
    assert [read(made, 0, "n > 6") for _ in range(2)] == [3, 3]
    sent = reader(made)
    assert sent["sentRows"] == 6
    assert 0 < sent["sentBytes"] < 2 * made.export.state.ledger.streams[made.stream].bytes
    made.plan({made.stream: 1}, filter_="n > 6")
    made.reopen()
    made.route("wait")
    after = reader(made)
    assert (after["delivered"], after["filtered"]) == (3, 7)
    assert (after["sentRows"], after["sentBytes"]) == (6, sent["sentBytes"])


def test_since_when_a_plan_is_pinned_is_reported_until_it_is_finished(made: Bench) -> None:
    made.route("wait")
    made.publish(0, rows(0, 1))
    made.now = 1_000_000.0
    made.plan()
    assert reader(made)["plannedSince"] == "1970-01-12T13:46:40Z"
    made.now += 100
    made.plan()
    made.replan({made.stream: (0, 1)})
    assert reader(made)["plannedSince"] == "1970-01-12T13:46:40Z"
    made.publish(1, rows(0, 1))
    made.plan({made.stream: 1})
    assert reader(made)["plannedSince"] == "1970-01-12T13:48:20Z"
    made.plan({made.stream: 2})
    assert reader(made)["plannedSince"] is None


def test_a_plan_that_grace_has_ended_is_counted_once(made: Bench) -> None:
    made.limit(grace=10)
    made.route("wait")
    made.publish(0, rows(0, 1))
    made.plan(lease=5.0)
    made.now += 14
    made.export.tick()
    assert (reader(made)["releasedPlans"], reader(made)["plannedSince"] is None) == (0, False)
    made.now += 2
    made.export.tick()
    made.export.tick()
    assert (reader(made)["releasedPlans"], reader(made)["plannedSince"]) == (1, None)
    made.reopen()
    made.limit(grace=10)
    assert reader(made)["releasedPlans"] == 1
    made.replan({made.stream: (0, 1)}, lease=5.0)
    assert reader(made)["plannedSince"] is not None
    made.now += 16
    made.export.tick()
    assert reader(made)["releasedPlans"] == 2


def test_a_wait_is_reported_with_its_begin_its_length_and_its_readers(made: Bench) -> None:
    made.limit(max_bytes=1)
    made.route("wait")
    made.publish(0, rows(0, 4))
    made.plan()
    status = made.export.status()
    assert (status["waitingSince"], status["waitedSeconds"]) == (None, 0)
    for _ in range(11):
        assert "waiting" in made.admit(1)
        made.now += 0.5
    status = made.export.status()
    assert status["waitingSince"] == "1970-01-01T00:16:40Z"
    assert status["waitedSeconds"] == 5.0
    assert reader(made)["blockedSeconds"] == 5.0
    made.plan({made.stream: 1})
    assert made.admit(1) == {"admitted": True}
    status = made.export.status()
    assert (status["waitingSince"], status["waitedSeconds"]) == (None, 5.5)


def test_published_rows_are_counted_over_streams_and_restarts(made: Bench) -> None:
    made.publish(0, rows(0, 4))
    made.publish(2, rows(4, 4))
    made.now += LEASE_SECONDS
    made.publish(0, rows(8, 2), query="other")
    assert (made.export.status()["publishedRows"], made.export.status()["gaps"]) == (10, 1)
    made.reopen()
    assert made.export.status()["publishedRows"] == 10
    made.publish(1, rows(10, 1), query="other")
    assert made.export.status()["publishedRows"] == 11
