"""An older copy of an exporter's log is restored, and its query goes on where its checkpoint is."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streambroker_core.ledger.losses import DataLossError
from streambroker_core.ledger.plan import Plan
from support.agents.exports import Bench, rows


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path / "agent")
    made.open()
    made.route()
    yield made
    made.close()


def publish(made: Bench, first: int, last: int) -> None:
    """Publish batches ``first`` to ``last``, two rows each."""
    for batch in range(first, last + 1):
        made.publish(batch, rows(10 * batch, 2))


def copied(made: Bench, first: int, last: int) -> str:
    """Publish further batches, and put back what there was before; return the stream's id."""
    copy = made.directory.with_name("copy")
    made.close()
    shutil.copytree(made.directory, copy)
    made.open()
    made.route()
    publish(made, first, last)
    stream = made.stream
    made.close()
    shutil.rmtree(made.directory)
    shutil.copytree(copy, made.directory)
    made.open()
    made.route()
    return stream


def ask(made: Bench, position: int, *, lossy: bool = False, **more: Any) -> Plan:
    """Ask as a reader that has read the first stream's epochs below ``position``."""
    first = next(iter(made.export.state.streams))
    positions = {first: position, **more}
    last = ("q", position - 1)
    return made.plan(positions, own_streams=frozenset(positions), last=last, skip_lost=lossy)


def batches(made: Bench, answer: Plan) -> list[int]:
    """Return the batches of the epochs that an answer plans."""
    return [
        made.export.state.streams[p.stream].manifests[n].batch
        for p in answer.planned
        for n in range(p.from_, p.next)
    ]


def test_a_batch_that_follows_missing_ones_opens_a_successor(made: Bench) -> None:
    publish(made, 0, 2)
    old = copied(made, 3, 5)
    publish(made, 6, 7)
    assert made.stream != old
    reported = made.export.status()
    assert (reported["streams"][old]["sealed"], reported["gaps"]) == (True, 3)
    assert [m.batch for m in made.export.state.streams[made.stream].manifests.values()] == [6, 7]


def test_a_batch_that_follows_opens_none(made: Bench) -> None:
    publish(made, 0, 2)
    made.commit(3)
    made.reopen()
    publish(made, 4, 4)
    assert list(made.export.state.streams) == [made.stream]
    assert made.export.status()["gaps"] == 0


def test_a_reader_that_is_behind_the_copy_reads_what_is_there_and_stops(made: Bench) -> None:
    publish(made, 0, 2)
    old = copied(made, 3, 5)
    publish(made, 6, 8)
    assert batches(made, ask(made, 2)) == [2]
    for _ in range(2):
        with pytest.raises(DataLossError, match=f"from 3 on of stream {old} .*batches 3 to 5 .*q"):
            ask(made, 3)
    made.reopen()
    made.route()
    with pytest.raises(DataLossError, match="batches 3 to 5"):
        ask(made, 3)


def test_a_reader_that_had_read_what_is_missing_stops_where_the_copy_ends(made: Bench) -> None:
    publish(made, 0, 2)
    old = copied(made, 3, 5)
    publish(made, 6, 11)
    with pytest.raises(DataLossError, match=f"epochs 3 to 5 of stream {old}"):
        ask(made, 6)
    assert batches(made, ask(made, 6, lossy=True)) == [6, 7, 8, 9, 10, 11]
    lost = [p.lost for p in ask(made, 6, lossy=True).planned]
    assert lost == [(0, 0)] * len(lost)


def test_a_lossy_reader_is_informed_of_the_batches_that_it_has_not_read(made: Bench) -> None:
    publish(made, 0, 2)
    copied(made, 3, 5)
    publish(made, 6, 7)
    answer = ask(made, 3, lossy=True)
    assert batches(made, answer) == [6, 7]
    assert answer.planned[-1].lost == (3, None)
    again = ask(made, 3, lossy=True, **{made.stream: 2})
    assert [p.lost for p in again.planned if p.stream == made.stream] == [(0, 0)]


def test_who_begins_to_read_afterwards_misses_nothing(made: Bench) -> None:
    publish(made, 0, 2)
    copied(made, 3, 5)
    publish(made, 6, 7)
    assert batches(made, made.plan()) == [0, 1, 2, 6, 7]


def test_batches_without_rows_that_follow_missing_ones_hide_nothing(made: Bench) -> None:
    publish(made, 0, 2)
    copied(made, 3, 5)
    made.commit(6)
    made.reopen()
    made.route()
    publish(made, 7, 7)
    with pytest.raises(DataLossError, match="continues with batch 7"):
        ask(made, 3)


def test_batches_without_rows_are_no_gap_while_another_query_publishes(made: Bench) -> None:
    publish(made, 0, 0)
    made.now += 60
    made.publish(0, rows(0, 2), query="other")
    made.commit(1)
    made.reopen()
    made.now += 60
    made.publish(2, rows(20, 2))
    assert made.export.status()["gaps"] == 0


def test_the_end_of_an_older_copy_is_no_place_to_read_beyond(made: Bench) -> None:
    publish(made, 0, 2)
    copied(made, 3, 5)
    with pytest.raises(DataLossError, match=r"epochs 3 to 5 .* planned by a batch"):
        made.replan({made.stream: (1, 6)})
    replanned = made.replan({made.stream: (1, 6)}, skip_lost=True)
    assert list(replanned.blocks[made.stream]) == [1, 2]
    assert replanned.missing == {made.stream: [(3, 6, None)]}


def test_what_nobody_can_have_planned_costs_no_time(made: Bench) -> None:
    """A range is looked at by what is retained of it, however long it is."""
    publish(made, 0, 2)
    end = 10**15
    with pytest.raises(DataLossError):
        made.replan({made.stream: (1, end)})
    replanned = made.replan({made.stream: (1, end), "unknown": (0, end)}, skip_lost=True)
    assert list(replanned.blocks[made.stream]) == [1, 2]
    assert replanned.missing == {made.stream: [(3, end, None)], "unknown": [(0, end, None)]}
    made.plan({made.stream: end}, skip_lost=True)
    reported = made.export.status()["readers"]["reader"]
    assert (reported["delivered"], reported["lost"]) == (4, [end - 3, 0])
