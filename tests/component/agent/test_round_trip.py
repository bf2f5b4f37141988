"""Rows go through two real agents and come out filtered, cut to columns, once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from support.agents.agents import Pair, Publishing, Reading, error_code, pair, rows

FILTERED = {"filter": "n % 3 == 0"}
SMALL = 20_000
PORTS = (
    "plain",
    "filtered",
    "blocks",
    "again",
    "differs",
    "fenced",
    "shared",
    "released",
    "missing",
    "empty",
    "twice",
    "dropping",
    "waiting",
    "columns",
    "early",
    "filling",
)


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    only = {
        "filtered": FILTERED,
        "blocks": FILTERED,
        "dropping": {"policy": "drop", "max_bytes": SMALL, **FILTERED},
        "waiting": {"max_bytes": SMALL},
        "filling": {"max_bytes": SMALL},
        "early": {"start": "latest"},
    }
    directory: Path = tmp_path_factory.mktemp("agents")
    yield from pair(directory, ports=PORTS, only=only)


def query(agents: Pair, port: str, name: str = "query-1", run: str = "run-1") -> Publishing:
    return Publishing(agents.exporter, port=port, query=name, run=run)


def wide(first: int, count: int) -> pa.RecordBatch:
    """Return rows of about 1 KB each."""
    batch = rows(first, count)
    return batch.set_column(1, "name", pa.array(["x" * 1000] * count))


def test_rows_come_out_in_order_and_once(agents: Pair) -> None:
    publisher, reader = query(agents, "plain"), Reading(agents.importer, port="plain")
    start = reader.open()
    publisher.publish(0, rows(0, 5), rows(5, 5))
    end = reader.end(start)
    assert reader.read(start, end) == list(range(10))
    publisher.publish(1, rows(10, 5))
    later = reader.end(end)
    assert reader.read(end, later) == list(range(10, 15))
    assert reader.next(later)["offset"] is None
    assert reader.read(end, later) == list(range(10, 15))


def test_a_latest_reader_opened_before_the_first_epoch_reads_it(agents: Pair) -> None:
    reader = Reading(agents.importer, port="early")
    start = reader.open()
    query(agents, "early").publish(0, rows(0, 2))
    query(agents, "early").publish(1, rows(2, 2))
    assert reader.read(start, reader.end(start)) == [0, 1, 2, 3]


def test_filter_and_columns_are_applied_at_the_exporter_and_counted(agents: Pair) -> None:
    reader = Reading(agents.importer, port="filtered", columns=("n",))
    start = reader.open()
    assert start["filter"] == "n % 3 == 0"
    query(agents, "filtered").publish(0, rows(0, 10), rows(10, 10))
    end = reader.end(start)
    (ticket,) = reader.slices(start, end)
    batches = reader.batches(ticket)
    assert [b.schema.names for b in batches] == [["n"], ["n"]]
    assert [n for b in batches for n in b.column("n").to_pylist()] == [0, 3, 6, 9, 12, 15, 18]
    reader.next(end)
    status = agents.exporter.reader_status(end["reader"], "filtered")
    assert (status["delivered"], status["filtered"]) == (7, 13)


def test_a_block_of_which_no_row_passes_is_sent_empty_so_that_blocks_can_be_counted(
    agents: Pair,
) -> None:
    reader = Reading(agents.importer, port="blocks")
    start = reader.open()
    query(agents, "blocks").publish(0, rows(1, 2), rows(3, 2), rows(7, 2))
    end = reader.end(start)
    (ticket,) = reader.slices(start, end)
    assert [b.column("n").to_pylist() for b in reader.batches(ticket)] == [[], [3], []]
    assert [b.column("n").to_pylist() for b in reader.batches(ticket, skip=1)] == [[3], []]
    assert reader.batches(ticket, skip=3) == []


def test_a_batch_published_twice_is_one_epoch(agents: Pair) -> None:
    publisher = query(agents, "again")
    first = publisher.publish(0, rows(0, 3))
    assert first["published"]
    again = query(agents, "again", run="run-2")
    assert again.publish(0, rows(0, 3)) == {"published": False, "epoch": None, "stream": None}
    (stream,) = agents.exporter.export_status("again")["streams"].values()
    assert (stream["next"], stream["rows"]) == (1, 3)


def test_a_batch_that_comes_again_with_other_rows_is_refused(agents: Pair) -> None:
    publisher = query(agents, "differs")
    publisher.publish(0, rows(0, 3))
    assert error_code(lambda: publisher.publish(0, rows(0, 4))) == "BatchDiffers"
    publisher.ddl = "`n` bigint, `name` int"
    assert error_code(lambda: publisher.admit(0)) == "BatchDiffers"
    (stream,) = agents.exporter.export_status("differs")["streams"].values()
    assert stream["next"] == 1


def test_an_old_run_is_fenced_at_every_door(agents: Pair) -> None:
    old, new = query(agents, "fenced"), query(agents, "fenced", run="run-2")
    assert old.admit(0) == {"admitted": True}
    stage = old.stage(0, rows(0, 3))
    assert new.admit(0) == {"admitted": True}
    assert error_code(lambda: old.admit(0)) == "Fenced"
    assert error_code(lambda: old.stage(0, rows(0, 3))) == "NotAdmitted"
    assert error_code(lambda: old.commit(0, [stage])) == "Fenced"
    assert agents.exporter.export_status("fenced")["publisher"]["batch"] is None
    assert new.commit(0, [new.stage(0, rows(0, 4))])["published"]


def test_a_second_query_waits_and_is_refused_once_the_first_shows_life(agents: Pair) -> None:
    first, second = query(agents, "shared"), query(agents, "shared", "query-2")
    first.publish(0, rows(0, 3))
    occupied = second.admit(0)["occupied"]
    assert occupied["holder"] == "query-1"
    assert 0 < occupied["seconds"] <= 30
    assert second.admit(0, renewed=occupied["renewed"])["occupied"] == {
        **occupied,
        "seconds": pytest.approx(occupied["seconds"], abs=2),
    }
    agents.exporter.client.call("publisher.renew", export="shared", query="query-1")
    code = error_code(lambda: second.admit(0, renewed=occupied["renewed"]))
    assert code == "PublisherInUse"


def test_a_second_query_takes_over_from_one_that_renounced_in_a_successor(agents: Pair) -> None:
    first, second = query(agents, "released"), query(agents, "released", "query-2")
    reader = Reading(agents.importer, port="released")
    start = reader.open()
    first.publish(0, rows(0, 3))
    agents.exporter.client.call("publisher.renounce", export="released", query="query-1")
    second.publish(0, rows(100, 3))
    end = reader.end(start)
    assert len(end["streams"]) == 2
    assert sorted(reader.read(start, end)) == [0, 1, 2, 100, 101, 102]
    assert end["last"] == {f"{agents.exporter.pe}/released": ["query-2", 0]}


def test_a_publish_that_names_a_stage_nobody_has_publishes_nothing(agents: Pair) -> None:
    publisher = query(agents, "missing")
    publisher.admit(0)
    stage = publisher.stage(0, rows(0, 3))
    ghost = {**stage, "stage": "0123456789abcdef"}
    assert error_code(lambda: publisher.commit(0, [stage, ghost])) == "StageMissing"
    wrong = {**stage, "crc": stage["crc"] ^ 1}
    assert error_code(lambda: publisher.commit(0, [wrong])) == "StageMissing"
    assert publisher.commit(0, [stage])["epoch"] == 0


def test_aborted_stages_are_gone_and_an_abort_after_the_publish_changes_nothing(
    agents: Pair,
) -> None:
    publisher = query(agents, "twice")
    publisher.admit(0)
    stage = publisher.stage(0, rows(0, 3))
    abort: dict[str, Any] = {
        "export": "twice",
        "query": "query-1",
        "run": "run-1",
        "batch": 0,
        "stages": [stage["stage"]],
    }
    agents.exporter.client.call("publisher.abort", **abort)
    assert error_code(lambda: publisher.commit(0, [stage])) == "StageMissing"
    stage = publisher.publish(0, rows(0, 3))
    agents.exporter.client.call("publisher.abort", **abort)
    reader = Reading(agents.importer, port="twice")
    assert reader.read(None, reader.end(None)) == [0, 1, 2]


def test_a_batch_without_rows_makes_no_epoch(agents: Pair) -> None:
    publisher = query(agents, "empty")
    assert publisher.commit(0, []) == {"published": True, "epoch": None, "stream": None}
    assert publisher.commit(0, [])["published"] is False
    assert agents.exporter.export_status("empty")["streams"] == {}
    assert publisher.publish(1, rows(0, 1))["epoch"] == 0


def test_rows_of_other_columns_are_refused_and_nothing_of_them_is_kept(agents: Pair) -> None:
    publisher = query(agents, "columns")
    publisher.publish(0, rows(0, 1))
    publisher.admit(1)
    strange = pa.RecordBatch.from_pydict({"other": [1.5]})
    assert error_code(lambda: publisher.stage(1, strange)) == "SchemaMismatch"
    stage = publisher.stage(1, rows(1, 1))
    assert publisher.commit(1, [stage])["epoch"] == 1


def test_a_full_log_names_its_holder_and_is_released_by_the_acknowledgement(agents: Pair) -> None:
    publisher, reader = query(agents, "waiting"), Reading(agents.importer, port="waiting")
    start = reader.open()
    batch = 0
    while "waiting" not in (answer := publisher.admit(batch)):
        publisher.commit(batch, [publisher.stage(batch, wide(batch * 5, 5))])
        batch += 1
    (holder,) = answer["waiting"]["holders"]
    assert holder["reader"] == start["reader"]
    assert holder["import"] == f"{agents.importer.pe}/waiting"
    assert holder["bytes"] >= answer["waiting"]["limit"] == SMALL
    end = reader.end(start)
    assert "waiting" in publisher.admit(batch)
    reader.next(end)
    assert publisher.admit(batch) == {"admitted": True}


def test_a_replay_of_a_published_batch_does_not_wait_for_room(agents: Pair) -> None:
    publisher, reader = query(agents, "filling"), Reading(agents.importer, port="filling")
    reader.open()
    publisher.publish(0, wide(0, 30))
    assert "waiting" in publisher.admit(1)
    again = query(agents, "filling", run="run-2")
    assert again.publish(0, wide(0, 30))["published"] is False


def test_what_was_published_is_delivered_filtered_or_dropped(agents: Pair) -> None:
    publisher, reader = query(agents, "dropping"), Reading(agents.importer, port="dropping")
    position = reader.open()
    for batch in range(3):
        publisher.publish(batch, wide(batch * 10, 10))
    end = reader.end(position)
    for batch in range(3, 9):
        publisher.publish(batch, wide(batch * 10, 10))
    got = reader.read(position, end)
    last = reader.end(end)
    got += reader.read(end, last)
    reader.next(last)
    status = agents.exporter.reader_status(last["reader"], "dropping")
    dropped_epochs, dropped_rows = status["dropped"]
    assert dropped_epochs > 0
    assert dropped_rows == 10 * dropped_epochs
    assert status["delivered"] == len(got)
    assert status["delivered"] + status["filtered"] + dropped_rows == 90
    assert [sum(n) for n in zip(*last["dropped"].values(), strict=True)] == status["dropped"]
