"""One export on its log and store: what it decides is what it does, also over a restart."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pe_agent.agent.exports.export_state import steady_clock
from pe_agent.agent.exports.publisher import NotAdmittedError, StageMissingError
from pe_agent.agent.exports.stream.stream_directory import StreamDirectory
from pe_agent.agent.state.store import Store
from pe_agent.log.errors import LogCorrupt
from streambroker_core.errors import StreambrokerError
from streambroker_core.ledger.losses import DataLossError
from streambroker_core.ledger.publisher import LEASE_SECONDS, BatchDiffersError
from streambroker_core.ledger.routes import NotRoutedError
from support.agents.exports import DDL, Bench, bench, killed_in, rows


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Bench]:
    with bench(tmp_path) as one:
        yield one


@pytest.fixture
def cramped(tmp_path: Path) -> Iterator[Bench]:
    """An export whose log has a segment for each frame, so that removed epochs are gone."""
    with bench(tmp_path, segment_bytes=64) as one:
        yield one


def test_streams_keep_their_order_when_old_ones_are_gone(made: Bench) -> None:
    made.limit(max_bytes=1)
    for batch in range(4):
        made.publish(batch, rows(batch, 1), query=f"q{batch}")
        made.now += LEASE_SECONDS
    newest = made.stream
    assert list(made.export.state.streams) == [newest]
    for batch in range(4, 6):
        made.admit(batch, query=f"q{batch}")
        made.stage(batch, rows(batch, 1), query=f"q{batch}")
        made.now += LEASE_SECONDS
    order = list(made.export.state.streams)
    assert len(order) == 3
    made.reopen()
    assert list(made.export.state.streams) == order


def test_a_stream_that_a_reader_has_not_finished_is_remembered_without_its_epochs(
    cramped: Bench,
) -> None:
    made = cramped
    made.limit(max_bytes=1, grace=10)
    made.route("wait")
    made.publish(0, rows(0, 5))
    made.publish(1, rows(5, 5))
    first = made.stream
    made.plan()
    made.plan({first: 1})
    made.now += 100
    made.publish(2, rows(10, 1), query="other")
    made.export.tick()
    assert first not in made.export.state.streams
    assert not (made.directory / "log" / first).exists()
    made.reopen()
    with pytest.raises(DataLossError):
        made.plan({first: 1})


def test_a_finished_predecessor_is_deleted_from_disk(made: Bench) -> None:
    made.limit(max_bytes=1)
    made.publish(0, rows(0, 5))
    first = made.stream
    made.now += LEASE_SECONDS
    made.publish(0, rows(10, 1), query="other")
    assert first not in made.export.state.streams
    assert [p.name for p in (made.directory / "log").iterdir()] == [made.stream]
    made.reopen()
    assert list(made.export.state.streams) == [made.stream]


def logs(made: Bench) -> list[str]:
    return [p.name for p in (made.directory / "log").iterdir()]


def test_the_directory_of_a_stream_that_was_not_opened_to_the_end_is_removed_at_the_next_start(
    made: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.admit(0)
    with killed_in(monkeypatch, StreamDirectory, "forget_orphan"):
        made.stage(0, rows(0, 5))
    assert len(logs(made)) == 1
    made.reopen()
    assert logs(made) == []
    made.publish(0, rows(0, 5))
    stream = made.stream
    made.reopen()
    assert logs(made) == [stream]


def test_the_directory_of_a_stream_that_was_being_removed_is_removed_at_the_next_start(
    made: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.limit(max_bytes=1)
    made.publish(0, rows(0, 5))
    made.now += LEASE_SECONDS
    made.admit(0, query="other")
    stage = made.stage(0, rows(10, 1), query="other")
    with killed_in(monkeypatch, shutil, "rmtree"):
        made.commit(0, stage, query="other")
    assert len(logs(made)) == 2
    made.reopen()
    assert logs(made) == [made.stream]


def test_a_directory_that_the_store_does_not_know_is_left_alone(made: Bench) -> None:
    made.publish(0, rows(0, 5))
    aside = made.directory / "log" / "0123456789abcdef"
    shutil.copytree(made.directory / "log" / made.stream, aside)
    made.reopen()
    assert aside.exists()


def test_the_end_of_a_removed_stream_is_known_where_only_its_log_knew_it(cramped: Bench) -> None:
    made = cramped
    made.limit(max_bytes=1, grace=10)
    made.route("wait")
    made.publish(0, rows(0, 5))
    made.publish(1, rows(5, 5))
    first = made.stream
    made.plan()
    made.plan({first: 1}, reader="behind")
    made.plan({first: 2})
    made.store.write("UPDATE streams SET next = 0, rows = 0")
    made.reopen()
    made.now += 100
    made.publish(0, rows(10, 1), query="other")
    made.export.tick()
    assert first not in made.export.state.streams
    made.reopen()
    assert made.export.state.ledger.streams[first].next == 2
    assert made.export.epochs.published_rows == 11


def test_rows_published_never_become_fewer_also_once_a_stream_is_forgotten(made: Bench) -> None:
    made.limit(max_bytes=1)
    made.publish(0, rows(0, 5))
    first = made.stream
    made.now += LEASE_SECONDS
    made.publish(0, rows(10, 3), query="other")
    assert first not in made.export.state.ledger.streams
    for _ in range(2):
        assert made.export.epochs.published_rows == 8
        made.reopen()
    made.publish(1, rows(13, 1), query="other")
    assert made.export.epochs.published_rows == 9


def test_every_row_is_delivered_filtered_or_dropped_also_when_the_agent_restarts(
    cramped: Bench,
) -> None:
    made = cramped
    made.limit(max_bytes=1)
    made.route("drop")
    made.publish(0, rows(0, 4), rows(4, 4))
    made.plan(filter_="n % 2 == 0")
    for batch in range(1, 5):
        made.publish(batch, rows(100 * batch, 10 + batch))
    made.reopen()
    made.plan({made.stream: 1}, filter_="n % 2 == 0")
    status = made.export.status()["readers"]["reader"]
    assert (status["delivered"], status["filtered"]) == (4, 4)
    made.reopen()
    made.plan({made.stream: 5}, filter_="n % 2 == 0")
    status = made.export.status()["readers"]["reader"]
    assert status["dropped"] == [3, 11 + 12 + 13]
    assert status["delivered"] + status["filtered"] == 8 + 14


def test_a_replay_from_an_older_checkpoint_counts_once(made: Bench) -> None:
    made.route("wait")
    made.publish(0, rows(0, 4))
    made.publish(1, rows(4, 4))
    made.plan()
    made.plan({made.stream: 2})
    made.plan({made.stream: 1})
    made.plan({made.stream: 2})
    assert made.export.status()["readers"]["reader"]["delivered"] == 8


def test_epochs_that_a_reader_had_from_a_lost_log_are_counted_as_duplicates(made: Bench) -> None:
    made.route("wait")
    made.publish(6, rows(0, 4))
    made.publish(7, rows(4, 5))
    answer = made.plan({"lost": 7}, last=("q", 6))
    assert [(p.from_, p.next, p.duplicates) for p in answer.planned] == [(1, 2, (1, 4))]
    made.plan({made.stream: 2})
    status = made.export.status()["readers"]["reader"]
    assert (status["duplicates"], status["delivered"]) == ([1, 4], 5)


def test_a_failing_state_file_after_the_manifest_does_not_publish_twice(
    made: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.admit(0)
    stage = made.stage(0, rows(0, 4))

    def full(*_: object) -> None:
        raise OSError("database or disk is full")

    monkeypatch.setattr(made.store, "write", full)
    with pytest.raises(OSError, match="disk is full"):
        made.commit(0, stage)
    monkeypatch.undo()
    assert made.commit(0, stage)["published"] is False
    assert made.export.state.heads() == {made.stream: 1}
    made.reopen()
    assert made.export.state.heads() == {made.stream: 1}
    assert made.commit(0, stage)["published"] is False


def test_the_publishers_lease_begins_again_after_a_restart(made: Bench) -> None:
    made.publish(0, rows(0, 1))
    made.now += LEASE_SECONDS + 1
    made.reopen()
    assert "occupied" in made.admit(0, query="other")
    made.export.publisher.end_publisher_lease("q")
    made.reopen()
    assert made.admit(0, query="other") == {"admitted": True}


def test_fences_and_batches_outlive_a_restart(made: Bench) -> None:
    made.publish(0, rows(0, 1), run="r1")
    made.admit(1, run="r2")
    made.reopen()
    with pytest.raises(Exception, match="replaced by a newer run"):
        made.admit(1, run="r1")
    with pytest.raises(BatchDiffersError):
        made.publish(0, rows(0, 2), run="r2")


def test_a_query_that_comes_back_is_known_after_a_restart(made: Bench) -> None:
    made.publish(5, rows(0, 1))
    made.now += LEASE_SECONDS
    made.publish(0, rows(0, 1), query="other")
    made.now += 2 * LEASE_SECONDS
    made.reopen()
    made.now += 2 * LEASE_SECONDS
    assert made.publish(5, rows(0, 1), run="r2")["published"] is False


def test_stages_of_other_runs_and_published_batches_are_forgotten(made: Bench) -> None:
    made.admit(0, run="r1")
    old = made.stage(0, rows(0, 1), run="r1")
    made.admit(0, run="r2")
    made.commit(0, made.stage(0, rows(0, 2), run="r2"), run="r2")
    assert made.export.state.streams[made.stream].stages == {}
    made.reopen()
    assert made.export.state.streams[made.stream].stages == {}
    made.admit(1, run="r2")
    with pytest.raises(StageMissingError):
        made.commit(1, old, run="r2")


def test_a_stage_that_breaks_off_is_not_kept(made: Bench) -> None:
    made.admit(0)

    def broken() -> Iterator[object]:
        yield rows(0, 1)
        raise ConnectionError("the task is gone")

    with pytest.raises(ConnectionError):
        made.export.publisher.stage(
            query="q",
            run="r",
            batch=0,
            ddl=DDL,
            schema=rows(0, 1).schema,
            batches=broken(),
        )
    assert made.export.state.streams[made.stream].stages == {}


def test_rows_that_come_after_the_publish_are_refused(made: Bench) -> None:
    made.publish(0, rows(0, 1))
    with pytest.raises(NotAdmittedError):
        made.stage(0, rows(0, 1))


def test_unpublished_stages_do_not_count_as_held(made: Bench) -> None:
    made.limit(max_bytes=2000)
    made.route("wait")
    made.plan()
    made.admit(0)
    first = made.stage(0, rows(0, 100))
    second = made.stage(0, rows(100, 100))
    assert made.admit(0) == {"admitted": True}
    made.commit(0, first, second)
    assert "waiting" in made.admit(1)


def test_an_admitted_batch_may_overshoot_and_the_next_one_waits(made: Bench) -> None:
    made.limit(max_bytes=10)
    made.route("wait")
    made.plan()
    made.publish(0, rows(0, 100))
    answer = made.admit(1)
    assert answer["waiting"]["limit"] == 10
    assert [h["reader"] for h in answer["waiting"]["holders"]] == ["reader"]
    with pytest.raises(NotAdmittedError):
        made.stage(1, rows(0, 1))


def test_a_publish_a_route_and_an_acknowledgement_are_news(made: Bench) -> None:
    before = made.notified
    made.route("wait")
    made.plan()
    made.publish(0, rows(0, 1))
    assert made.notified > before
    made.plan({made.stream: 0})
    before = made.notified
    made.plan({made.stream: 1})
    assert made.notified == before + 1


def test_a_stream_is_safe_on_disk_before_anything_is_staged_in_it(
    made: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    plain = Store.transaction

    def noted(store: Store, *, durable: bool = False) -> object:
        seen.append(durable)
        return plain(store, durable=durable)

    monkeypatch.setattr(Store, "transaction", noted)
    made.admit(0)
    made.stage(0, rows(0, 1))
    assert seen == [True]


def test_leases_run_on_a_clock_that_cannot_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    before = steady_clock()
    monkeypatch.setattr("time.time", lambda: 0.0)
    assert before <= steady_clock() < before + 60


def test_dropped_rows_are_exact_though_the_epochs_around_the_position_are_gone(
    cramped: Bench,
) -> None:
    made = cramped
    made.limit(max_bytes=1)
    made.route("drop")
    made.publish(0, rows(0, 8))
    made.plan()
    made.plan({made.stream: 1})
    for batch in range(1, 6):
        made.publish(batch, rows(100 * batch, 10 + batch))
    made.reopen()
    assert 0 not in made.export.state.ledger.streams[made.stream].epochs
    (plan,) = made.plan({made.stream: 1}).planned
    assert plan.dropped == (4, 11 + 12 + 13 + 14)


def test_after_a_restart_rows_are_counted_exactly_from_each_place_of_a_reader(
    cramped: Bench,
) -> None:
    made = cramped
    made.limit(max_bytes=1)
    made.route("drop")
    made.publish(0, rows(0, 8))
    made.plan()
    made.publish(1, rows(0, 9))
    made.plan({made.stream: 1})
    for batch in range(2, 5):
        made.publish(batch, rows(100 * batch, 10 + batch))
    made.export.set_routes({})
    made.route("drop")
    places = made.export.state.ledger.readers["reader"].referenced_epochs(made.stream)
    assert places == {0, 1, 2, 4}
    for batch in range(5, 9):
        made.publish(batch, rows(100 * batch, 10 + batch))
    before = made.export.state.ledger.streams[made.stream]
    made.reopen()
    after = made.export.state.ledger.streams[made.stream]
    assert after is not before
    assert all(after.has_sum(place) for place in places)
    assert [after.rows_before(n) for n in places] == [before.rows_before(n) for n in places]


def test_what_was_dropped_counts_once_when_an_older_checkpoint_comes_back(made: Bench) -> None:
    made.limit(max_bytes=1)
    made.route("drop")
    made.publish(0, rows(0, 8))
    made.plan()
    for batch in range(1, 4):
        made.publish(batch, rows(100 * batch, 10))
    made.plan({made.stream: 1})
    for _ in range(2):
        made.plan({made.stream: 4})
        made.plan({made.stream: 1})
    made.plan({made.stream: 4})
    assert made.export.status()["readers"]["reader"]["dropped"] == [2, 20]
    assert made.export.status()["readers"]["reader"]["delivered"] == 18


def test_a_block_that_became_unreadable_does_not_keep_its_reader_from_acknowledging(
    made: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.route("wait")
    made.publish(0, rows(0, 4))
    made.plan(filter_="n > 1")

    def damaged(*_: object) -> int:
        raise LogCorrupt(Path("segment"), offset=7, reason="checksum")

    monkeypatch.setattr("pe_agent.agent.exports.stream.delivery_counts.count_passing_rows", damaged)
    made.plan({made.stream: 1}, filter_="n > 1")

    status = made.export.status()["readers"]["reader"]
    assert (status["delivered"], status["filtered"]) == (4, 0)
    assert status["positions"] == {made.stream: 1}


def test_a_late_attempt_of_a_published_batch_does_not_disturb_the_batch_under_way(
    made: Bench,
) -> None:
    made.route("wait")
    made.plan()
    made.publish(0, rows(0, 1))
    made.admit(1)
    first = made.stage(1, rows(1, 1))
    made.limit(max_bytes=10)
    assert made.admit(0) == {"admitted": True}
    late = made.stage(0, rows(0, 1))
    assert list(made.export.state.streams[made.stream].stages) == [first["stage"]]
    second = made.stage(1, rows(2, 1))
    assert made.admit(1) == {"admitted": True}
    assert made.commit(0, late)["published"] is False
    third = made.stage(1, rows(3, 1))
    assert made.commit(1, first, second, third)["published"]


def test_a_straggler_that_asked_before_its_batch_was_published_is_discarded_at_once(
    made: Bench,
) -> None:
    made.admit(0)
    winner = made.stage(0, rows(0, 3))

    def slow() -> Iterator[pa.RecordBatch]:
        yield rows(0, 1)
        made.commit(0, winner)
        made.admit(1)

    with pytest.raises(StreambrokerError, match="discarded"):
        made.export.publisher.stage(
            query="q", run="r", batch=0, ddl=DDL, schema=rows(0, 1).schema, batches=slow()
        )
    assert made.export.state.streams[made.stream].stages == {}
    assert made.stage(1, rows(3, 1))["rows"] == 1


def test_rows_of_a_replayed_batch_are_compared_and_not_kept(made: Bench) -> None:
    made.publish(0, rows(0, 3))
    made.admit(0, run="r2")
    with pytest.raises(BatchDiffersError):
        made.commit(0, made.stage(0, rows(0, 2), run="r2"), run="r2")
    again = made.stage(0, rows(0, 3), run="r2")
    assert made.commit(0, again, run="r2")["published"] is False
    assert made.export.state.streams[made.stream].stages == {}


def test_tasks_of_many_threads_stage_while_stragglers_come(
    made: Bench, request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(partial(sys.setswitchinterval, sys.getswitchinterval()))
    sys.setswitchinterval(1e-5)
    made.publish(0, rows(0, 1))
    made.admit(1)

    def late(_: int) -> None:
        made.admit(0)
        made.stage(0, rows(0, 1))

    def task(number: int) -> dict[str, Any]:
        made.admit(1)
        return made.stage(1, *(rows(10 * number + i, 1) for i in range(5)))

    with ThreadPoolExecutor(8) as pool:
        stragglers = [pool.submit(late, n) for n in range(40)]
        stages = list(pool.map(task, range(40)))
        for one in stragglers:
            one.result()
    assert made.commit(1, *stages)["published"]
    assert made.export.state.ledger.streams[made.stream].epochs[1].rows == 200


def test_a_gap_in_batch_ids_is_counted_and_logged_once_also_over_a_restart(
    made: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    made.publish(0, rows(0, 1))
    made.commit(1)
    made.publish(2, rows(1, 1))
    assert made.export.status()["publisher"]["gaps"] == 0
    made.publish(5, rows(2, 1))
    made.publish(5, rows(2, 1))
    notified = [r.getMessage() for r in caplog.records if "follows batch" in r.getMessage()]
    assert notified == [
        "batch 5 of export default/feed/0/trades follows batch 2: was the checkpoint restored?"
    ]
    made.reopen()
    assert made.export.status()["publisher"]["gaps"] == 2


def test_what_replays_read_again_is_not_kept_in_memory(made: Bench) -> None:
    made.route("wait")
    for batch in range(3):
        made.publish(batch, rows(batch, 1))
    made.plan(filter_="n > 0")
    for _ in range(2):
        for epoch in range(3):
            made.export.plans.count_block("reader", made.stream, epoch, 0, 1)
        made.plan({made.stream: 3}, filter_="n > 0")
        assert not made.export.state.deliveries.passed_rows["reader"][made.stream]
        made.replan({made.stream: (0, 3)}, filter_="n > 0")
    assert made.export.status()["readers"]["reader"]["delivered"] == 3


def test_a_lossy_reader_goes_on_and_what_it_lost_is_counted_once(cramped: Bench) -> None:
    made = cramped
    made.limit(max_bytes=1, grace=10)
    made.route("wait")
    made.publish(0, rows(0, 8))
    made.plan()
    made.plan({made.stream: 1})
    made.now += 100
    for batch in range(1, 5):
        made.publish(batch, rows(100 * batch, 10))
    with pytest.raises(DataLossError):
        made.plan({made.stream: 1})
    for _ in range(2):
        (plan,) = made.plan({made.stream: 1}, skip_lost=True).planned
        assert (plan.from_, plan.lost) == (4, (3, 30))
        made.reopen()
        made.plan({made.stream: 5}, skip_lost=True)
    figures = made.export.status()["readers"]["reader"]
    assert (figures["lost"], figures["dropped"], figures["delivered"]) == ([3, 30], [0, 0], 18)


def test_a_plan_of_which_epochs_are_gone_is_cut_without_them(cramped: Bench) -> None:
    made = cramped
    made.limit(max_bytes=10**6, grace=10)
    made.route("wait")
    for batch in range(4):
        made.publish(batch, rows(batch, 2))
    made.plan()
    made.now += 100
    made.limit(max_bytes=1, grace=10)
    whole = {made.stream: (0, 4), "other": (0, 1)}
    with pytest.raises(DataLossError):
        made.replan(whole)
    again = made.replan(whole, skip_lost=True)
    assert again.missing == {made.stream: [(0, 3, 6)], "other": [(0, 1, None)]}
    assert {s: list(epochs) for s, epochs in again.blocks.items()} == {
        made.stream: [3],
        "other": [],
    }


def test_an_agent_that_starts_again_remembers_which_imports_were_cut(made: Bench) -> None:
    made.route("wait")
    made.publish(0, rows(0, 3))
    made.export.set_routes({})
    for _ in range(2):
        made.reopen()
        assert not made.plan().routed
        with pytest.raises(NotRoutedError):
            made.replan({made.stream: (0, 1)}, reader="another")
    made.route("wait")
    made.reopen()
    assert made.plan(reader="third").routed
