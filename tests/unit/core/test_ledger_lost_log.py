"""What a reader is told when the exporter has lost the log it was reading."""

from __future__ import annotations

from typing import Any

import pytest

from streambroker_core.ledger.losses import DataLossError
from streambroker_core.ledger.plan import PlanRequest
from support.core.ledgers import IMPORT, QUERY, ask, ledger, planned, put


def returning(batch: int, **more: Any) -> PlanRequest:
    """Return what a reader asks that has read a stream "A" up to batch ``batch`` of `QUERY`."""
    return ask(
        {"A": batch + 1}, has_opened=True, own_streams=frozenset({"A"}), last=(QUERY, batch), **more
    )


def test_a_reader_goes_on_where_the_new_stream_begins_with_the_batch_after_its_last() -> None:
    made = ledger()
    put(made, "B", batch=5)
    assert planned(made.planner.plan(returning(4), 0)) == {"B": (0, 1)}


def test_a_reader_goes_on_behind_batches_that_are_published_again() -> None:
    made = ledger()
    for batch in (3, 4, 5):
        put(made, "B", batch=batch)
    assert planned(made.planner.plan(returning(4), 0)) == {"B": (2, 3)}


def test_a_wait_reader_stops_where_batches_may_have_been_lost_unread() -> None:
    made = ledger()
    put(made, "B", batch=6)
    with pytest.raises(DataLossError, match=r"from 5 on of stream A.*lost its log.*batch 6"):
        made.planner.plan(returning(4), 0)


def test_a_wait_reader_stops_where_another_query_publishes_now() -> None:
    made = ledger()
    put(made, "B", batch=5, query="other")
    with pytest.raises(DataLossError, match="of query other"):
        made.planner.plan(returning(4), 0)


def test_a_drop_reader_goes_on_whatever_was_lost() -> None:
    made = ledger()
    made.set_routes({IMPORT: "drop"})
    put(made, "B", batch=6)
    assert planned(made.planner.plan(returning(4), 0)) == {"B": (0, 1)}


def test_nothing_is_decided_before_something_new_is_published() -> None:
    made = ledger()
    put(made, "B", batch=4)
    assert made.planner.plan(returning(4), 0).planned == ()
    put(made, "B", batch=5)
    assert planned(made.planner.plan(returning(4), 0)) == {"B": (1, 2)}


def test_a_stream_that_was_read_to_its_end_and_removed_is_not_lost() -> None:
    made = ledger()
    put(made, "A", 5)
    made.open("B")
    made.forget_stream("A")
    put(made, "B", batch=9)
    assert planned(made.planner.plan(returning(4), 0)) == {"B": (0, 1)}


def test_a_reader_that_has_gone_on_is_not_asked_again() -> None:
    made = ledger()
    put(made, "B", batch=5)
    made.planner.plan(returning(4), 0)
    put(made, "B", batch=8)
    again = ask(
        {"A": 5, "B": 1}, has_opened=True, own_streams=frozenset({"A", "B"}), last=(QUERY, 5)
    )
    assert planned(made.planner.plan(again, 0)) == {"B": (1, 2)}


def test_streams_of_other_exports_are_nobodys_loss() -> None:
    made = ledger()
    put(made, "B", batch=9)
    assert planned(made.planner.plan(ask({"X": 3}, has_opened=True), 0)) == {"B": (0, 1)}


def test_a_new_reader_of_an_import_that_was_cut_gets_nothing_until_it_is_back() -> None:
    made = ledger()
    put(made, "A", 2)
    made.set_routes({})
    assert not made.planner.plan(ask(), 0).routed
    made.set_routes({IMPORT: "wait"})
    assert made.planner.plan(ask(), 0).routed


def test_a_wait_reader_of_a_lost_log_holds_what_comes_after_it() -> None:
    made = ledger(max_bytes=200)
    made.open("B")
    assert made.planner.plan(returning(4), 0).planned == ()
    for batch in range(5, 9):
        put(made, "B", batch=batch)
    assert [holder.reader for holder in made.retention.blocking_readers(0)] == ["r"]
    assert planned(made.planner.plan(returning(4), 0)) == {"B": (0, 4)}
