"""The disk of an export is bounded: what no epoch and no batch under way needs is given back."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from pe_agent.agent.exports.stream.block_reader import BlockReader, ReadRequest
from pe_agent.log.frames import Address
from support.agents.exports import DDL, Bench, bench, rows
from support.core.counting import lines

SEGMENT = 1 << 16
BATCH = 100_000
"""Bytes of the rows of one batch, more than a segment."""


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Bench]:
    with bench(tmp_path, segment_bytes=SEGMENT) as one:
        yield one


def disk(made: Bench) -> int:
    """Return the bytes of all segments as the file system has them."""
    return sum(p.stat().st_size for p in (made.directory / "log").rglob("*.segment"))


def bound(max_bytes: int, batch: int = BATCH) -> int:
    """Return what an export may take: its limit, one batch and two segments, with their heads."""
    return max_bytes + batch * 21 // 20 + 2 * (SEGMENT + 4096)


def wide(first: int) -> pa.RecordBatch:
    return rows(first, BATCH // 1000, size=1000)


def read_all(made: Bench, epochs: range) -> list[list[int]]:
    """Plan and read the epochs as a reader does, and return column ``n`` of each."""
    made.plan()
    request = ReadRequest(
        reader="reader",
        stream=made.stream,
        pieces=tuple((e, 0, 1) for e in epochs),
        filter=None,
        columns=None,
    )
    return [
        batch.column("n").to_pylist()
        for batch, _ in BlockReader().read_batches(made.export.plans, request)
    ]


def test_batches_that_are_aborted_give_their_disk_back(made: Bench) -> None:
    made.limit(max_bytes=1 << 20)
    made.publish(0, rows(0, 1))
    for _ in range(40):
        made.admit(1)
        stages = [made.stage(1, wide(0))["stage"]]
        made.export.publisher.abort(query="q", run="r", batch=1, stages=stages)
        assert disk(made) <= bound(1000)
    made.reopen()
    assert disk(made) <= bound(1000)
    assert read_all(made, range(1)) == [[0]]


def test_runs_that_end_before_their_commit_give_their_disk_back(made: Bench) -> None:
    made.limit(max_bytes=1 << 20)
    for attempt in range(40):
        made.admit(0, run=f"r{attempt}")
        made.stage(0, wide(0), run=f"r{attempt}")
        assert disk(made) <= bound(0)
    made.reopen()
    assert disk(made) <= bound(0)


def test_tasks_that_break_off_give_their_disk_back(made: Bench) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield wide(0)
        raise ConnectionError("the task is gone")

    made.limit(max_bytes=1 << 20)
    made.admit(0)
    for _ in range(40):
        with pytest.raises(ConnectionError):
            made.export.publisher.stage(
                query="q", run="r", batch=0, ddl=DDL, schema=wide(0).schema, batches=broken()
            )
        assert disk(made) <= bound(0)


def test_what_was_aborted_does_not_come_back_with_a_restart(made: Bench) -> None:
    made.admit(0)
    stage = made.stage(0, rows(0, 1))["stage"]
    made.export.publisher.abort(query="q", run="r", batch=0, stages=[stage])
    made.reopen()
    assert made.export.state.streams[made.stream].stages == {}


def test_an_abort_takes_the_whole_batch_also_what_the_driver_did_not_hear_of(made: Bench) -> None:
    made.admit(0)
    made.stage(0, rows(0, 1))
    made.export.publisher.abort(query="q", run="r", batch=0, stages=[])
    assert made.export.state.streams[made.stream].stages == {}


def test_an_abort_of_another_run_or_batch_takes_nothing_of_this_one(made: Bench) -> None:
    made.admit(0, run="old")
    made.admit(0, run="r")
    stage = made.stage(0, rows(0, 1))
    made.export.publisher.abort(query="q", run="old", batch=0, stages=[])
    made.export.publisher.abort(query="other", run="r", batch=0, stages=[])
    made.export.publisher.abort(query="q", run="r", batch=1, stages=[])
    assert made.commit(0, stage)["published"]


def test_small_epochs_between_large_failures_do_not_keep_their_segments(made: Bench) -> None:
    made.limit(max_bytes=1 << 20)
    for batch in range(30):
        made.publish(batch, rows(batch, 1))
        made.admit(batch + 1)
        stage = made.stage(batch + 1, rows(0, 55, size=1000))["stage"]
        made.export.publisher.abort(query="q", run="r", batch=batch + 1, stages=[stage])
        assert disk(made) <= bound(1000 * (batch + 1), 55_000)
    assert read_all(made, range(30)) == [[n] for n in range(30)]
    made.reopen()
    assert disk(made) <= bound(30_000, 55_000)
    assert read_all(made, range(30)) == [[n] for n in range(30)]


def test_a_damaged_block_keeps_its_segment_and_makes_nobody_write_the_others_again(
    made: Bench,
) -> None:
    made.limit(max_bytes=1 << 20)
    for batch in range(3):
        made.publish(batch, rows(batch, 1))
    stream = made.export.state.streams[made.stream]
    damage(made, stream.manifests[1].log_blocks[0].address)
    for batch in range(3, 30):
        made.admit(batch)
        stage = made.stage(batch, rows(0, 55, size=1000))["stage"]
        made.export.publisher.abort(query="q", run="r", batch=batch, stages=[stage])
        made.publish(batch, rows(batch, 1))
        assert disk(made) <= bound(1000 * (batch + 1), 55_000) + SEGMENT
    size = sum(s.bytes for s in stream.log.segments())
    stream.compactor.run()
    assert sum(s.bytes for s in stream.log.segments()) == size
    stream.remove([1])
    assert stream.manifests[0].log_blocks[0].address.segment > 1
    assert disk(made) <= bound(30_000, 55_000)


def damage(made: Bench, address: Address) -> None:
    """Change a byte of a frame's rows on the disk."""
    (path,) = (made.directory / "log").rglob(f"{address.segment:010d}.segment")
    with path.open("r+b") as file:
        file.seek(address.offset + address.length - 40)
        file.write(b"\xff\xff\xff\xff")


def test_a_read_under_way_goes_on_where_its_epoch_was_moved_to(made: Bench) -> None:
    made.limit(max_bytes=1 << 20)
    for batch in range(4):
        made.publish(batch, rows(10 * batch, 1), rows(10 * batch + 1, 1))
        made.admit(batch + 1)
        made.stage(batch + 1, rows(0, 55, size=1000))
    made.plan()
    request = ReadRequest(
        reader="reader",
        stream=made.stream,
        pieces=tuple((e, 0, 2) for e in range(4)),
        filter=None,
        columns=None,
    )
    reading = BlockReader().read_batches(made.export.plans, request)
    seen = [next(reading)[0].column("n").to_pylist()]
    before = made.export.state.streams[made.stream].manifests[0]
    made.publish(4, rows(40, 1))
    for run in ("r5", "r6", "r7"):
        made.admit(5, run=run)
        made.stage(5, wide(0), run=run)
    assert made.export.state.streams[made.stream].manifests[0] != before
    seen += [batch.column("n").to_pylist() for batch, _ in reading]
    assert seen == [[10 * e + i] for e in range(4) for i in range(2)]


def test_epochs_of_few_rows_count_with_all_they_take(made: Bench) -> None:
    made.limit(max_bytes=200_000)
    for batch in range(600):
        made.publish(batch, rows(batch, 1))
    assert disk(made) <= bound(200_000, 1000)


def test_a_batch_beyond_the_hard_limit_is_refused_with_sizes(
    made: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pe_agent.agent.exports import publisher as publishing_side

    monkeypatch.setattr(publishing_side, "BATCH_BYTES", 250_000)
    made.limit(max_bytes=10)
    made.admit(0)
    first, second = made.stage(0, wide(0)), made.stage(0, wide(100))
    refused = r"batch 0 .* 2[0-9]{2},[0-9]{3} bytes .* 250,000"
    with pytest.raises(publishing_side.StageTooLargeError, match=refused):
        made.stage(0, wide(200))
    assert made.commit(0, first, second)["published"]
    made.limit(max_bytes=1 << 20)
    made.admit(1)
    assert made.commit(1, *(made.stage(1, wide(0)) for _ in range(4)))["published"]


def test_a_stage_that_is_discarded_under_way_ends_its_task(made: Bench) -> None:
    made.admit(0)

    def slow() -> Iterator[pa.RecordBatch]:
        yield rows(0, 1)
        made.admit(0, run="newer")
        yield rows(1, 1)

    with pytest.raises(Exception, match="discarded"):
        made.export.publisher.stage(
            query="q", run="r", batch=0, ddl=DDL, schema=rows(0, 1).schema, batches=slow()
        )
    assert made.export.state.streams[made.stream].stages == {}


def test_an_epoch_is_removed_at_the_same_cost_among_many(tmp_path: Path) -> None:
    costs = []
    for count in (20, 400):
        directory = tmp_path / str(count)
        directory.mkdir()
        with bench(directory) as made:
            for batch in range(count):
                made.publish(batch, rows(batch, 1))
            stream = made.export.state.streams[made.stream]
            costs.append(lines(partial(stream.remove, [0])))
    assert costs[0] == costs[1]
