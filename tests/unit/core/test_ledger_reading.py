"""Where a reader begins, what it is given next, and what it acknowledges."""

from __future__ import annotations

import pytest

from streambroker_core.ledger.ledger import Ledger
from streambroker_core.ledger.losses import DataLossError
from streambroker_core.ledger.retention import RetentionLimits
from support.core.ledgers import IMPORT, QUERY, ask, ledger, planned, put, retained


def test_a_latest_reader_begins_behind_the_last_epoch() -> None:
    made = ledger()
    put(made, "A", 3)
    assert planned(made.planner.plan(ask(start="latest"), 0)) == {"A": (3, 3)}
    put(made, "A")
    assert planned(made.planner.plan(ask({"A": 3}, start="latest", has_opened=True), 0)) == {
        "A": (3, 4)
    }


def test_a_latest_reader_connected_before_the_first_epoch_reads_it() -> None:
    made = ledger()
    assert made.planner.plan(ask(start="latest"), 0).planned == ()
    put(made, "A", 2)
    assert planned(made.planner.plan(ask(start="latest"), 0)) == {"A": (0, 2)}


def test_epochs_are_held_for_a_reader_connected_before_the_first_of_them() -> None:
    made = ledger(max_bytes=150)
    made.planner.plan(ask(start="latest"), 0)
    put(made, "A", 4)
    assert made.retention.sweep(0) == {}
    assert made.retention.held_bytes(0) == 400


def test_a_latest_reader_begins_with_the_newest_of_several_streams() -> None:
    made = ledger()
    put(made, "A", 3)
    put(made, "B", 2)
    assert planned(made.planner.plan(ask(start="latest"), 0)) == {"B": (2, 2)}
    assert made.retention.held_bytes(0) == 0


def test_an_earliest_reader_begins_with_the_oldest_retained_epoch() -> None:
    made = ledger(max_bytes=250)
    put(made, "A", 5)
    made.retention.sweep(0)
    assert planned(made.planner.plan(ask(), 0)) == {"A": (3, 5)}


def test_an_answer_that_was_lost_is_given_again() -> None:
    made = ledger()
    put(made, "A", 2)
    made.planner.plan(ask(start="latest"), 0)
    put(made, "A", 2)
    assert planned(made.planner.plan(ask(start="latest"), 0)) == {"A": (2, 4)}


def test_a_successor_is_read_from_its_first_epoch_after_the_predecessor() -> None:
    made = ledger()
    put(made, "A", 3)
    made.planner.plan(ask(), 0)
    put(made, "B", 2)
    first = made.planner.plan(ask({"A": 1}, has_opened=True, budget=150), 0)
    assert planned(first) == {"A": (1, 2)}
    both = made.planner.plan(ask({"A": 2}, has_opened=True), 0)
    assert planned(both) == {"A": (2, 3), "B": (0, 2)}
    assert list(planned(both)) == ["A", "B"]


def test_a_known_reader_reads_a_stream_over_a_lost_log_from_its_first_epoch() -> None:
    made = ledger()
    put(made, "B", 3)
    answer = made.planner.plan(ask({"gone": 7}, start="latest", has_opened=True), 0)
    assert planned(answer) == {"B": (0, 3)}


def test_a_drained_stream_is_not_planned_again() -> None:
    made = ledger()
    put(made, "A", 2)
    made.planner.plan(ask(), 0)
    put(made, "B", 1)
    assert planned(made.planner.plan(ask({"A": 2, "B": 1}, has_opened=True), 0)) == {"B": (1, 1)}


def test_an_older_checkpoint_that_does_not_know_the_successor_reads_it_from_its_beginning() -> None:
    made = ledger()
    put(made, "A", 2)
    made.planner.plan(ask(), 0)
    put(made, "B", 3)
    made.planner.plan(ask({"A": 2}, has_opened=True), 0)
    made.planner.plan(ask({"A": 2, "B": 3}, has_opened=True), 0)
    assert planned(made.planner.plan(ask({"A": 1}, has_opened=True), 0)) == {
        "A": (1, 2),
        "B": (0, 3),
    }


def test_epochs_published_again_over_a_lost_log_are_passed_over_and_counted() -> None:
    made = ledger()
    put(made, "B", batch=99, rows=3)
    put(made, "B", batch=100, rows=4)
    put(made, "B", batch=101)
    answer = made.planner.plan(ask({"gone": 101}, has_opened=True, last=("query-1", 100)), 0)
    (plan,) = answer.planned
    assert (plan.from_, plan.next, plan.duplicates, plan.has_gap) == (2, 3, (2, 7), True)
    assert plan.dropped == (0, 0)


def test_epochs_of_another_query_are_never_taken_for_duplicates() -> None:
    made = ledger()
    put(made, "B", batch=1, query="query-2")
    answer = made.planner.plan(ask({"gone": 101}, has_opened=True, last=("query-1", 100)), 0)
    assert planned(answer) == {"B": (0, 1)}


def test_what_is_left_out_as_duplicate_can_be_acknowledged_alone() -> None:
    made = ledger()
    put(made, "B", batch=5)
    (plan,) = made.planner.plan(ask(has_opened=True, last=("query-1", 5)), 0).planned
    assert (plan.from_, plan.next, plan.duplicates) == (1, 1, (1, 10))
    made.planner.plan(ask({"B": 1}, has_opened=True), 0)
    assert made.retention.held_bytes(0) == 0


def test_the_answer_names_the_last_batch_of_the_plan() -> None:
    made = ledger()
    put(made, "A", 3)
    assert made.planner.plan(ask(budget=250), 0).last == ("query-1", 1)
    assert made.planner.plan(ask({"A": 3}, has_opened=True), 0).last is None


def test_the_budget_cuts_a_plan_between_epochs() -> None:
    made = ledger()
    put(made, "A", 5)
    answer = made.planner.plan(ask(budget=299), 0)
    assert planned(answer) == {"A": (0, 2)}
    assert answer.bytes == 200


def test_an_epoch_larger_than_the_budget_is_planned_alone() -> None:
    made = ledger()
    put(made, "A", 2, bytes_=900)
    assert planned(made.planner.plan(ask(budget=1), 0)) == {"A": (0, 1)}
    assert planned(made.planner.plan(ask(budget=1, at_least_one=False), 0)) == {"A": (0, 0)}


def test_available_now_ends_at_its_limits() -> None:
    made = ledger()
    put(made, "A", 4)
    limited = ask({"A": 1}, has_opened=True, limit={"A": 3})
    assert planned(made.planner.plan(limited, 0)) == {"A": (1, 3)}
    put(made, "B", 1)
    done = ask({"A": 3}, has_opened=True, limit={"A": 3})
    assert planned(made.planner.plan(done, 0)) == {"A": (3, 3)}


def test_positions_of_other_exports_are_passed_over() -> None:
    made = ledger()
    put(made, "A", 2)
    assert planned(made.planner.plan(ask({"elsewhere": 70}), 0)) == {"A": (0, 2)}


def test_acknowledged_epochs_are_reported_once() -> None:
    made = ledger()
    put(made, "A", 3)
    made.planner.plan(ask(), 0)
    assert made.planner.plan(ask({"A": 2}, has_opened=True), 0).finished == (("A", 0, 2),)
    assert made.planner.plan(ask({"A": 2}, has_opened=True), 0).finished == ()


def test_a_reader_ahead_of_the_log_is_refused_and_nothing_changes() -> None:
    made = ledger()
    put(made, "A", 3)
    made.planner.plan(ask(), 0)
    put(made, "B", 1)
    made.planner.plan(ask({"A": 1}, has_opened=True), 0)
    with pytest.raises(DataLossError, match="older copy") as caught:
        made.planner.plan(ask({"A": 2, "B": 9}, has_opened=True), 0)
    assert (caught.value.stream, caught.value.first) == ("B", 1)
    assert made.readers["r"].cursors["A"].next == 1


def test_a_replayed_plan_is_pinned_again_after_a_crash() -> None:
    made = ledger(max_bytes=150, grace=10)
    put(made, "A", 4)
    made.planner.plan(ask(), 0)
    made.readers.clear()
    made.planner.register_plan(ask({"A": 1}), {"A": (1, 3)}, 0)
    made.set_routes({})
    made.retention.sweep(5)
    assert made.planner.is_planned("r", "A", 1, 5)
    assert made.planner.is_planned("r", "A", 2, 5)
    assert not made.planner.is_planned("r", "A", 3, 5)
    assert not made.planner.is_planned("other", "A", 1, 5)
    assert retained(made)[:2] == [1, 2]


def test_a_replay_of_epochs_that_are_gone_is_data_loss_under_drop_too() -> None:
    made = ledger(max_bytes=150)
    made.set_routes({IMPORT: "drop"})
    put(made, "A", 4)
    made.retention.sweep(0)
    with pytest.raises(DataLossError, match="planned by a batch in the checkpoint"):
        made.planner.register_plan(ask({"A": 0}, policy="drop"), {"A": (0, 2)}, 0)
    assert made.readers == {}


def test_a_replay_of_a_stream_that_is_unknown_is_data_loss() -> None:
    with pytest.raises(DataLossError):
        ledger().planner.register_plan(ask({"A": 0}), {"A": (0, 2)}, 0)


def test_a_reader_that_comes_and_is_refused_has_not_come() -> None:
    made = ledger()
    put(made, "A", 3)
    for call in (
        lambda: made.planner.plan(ask({"A": 4}, has_opened=True), 0),
        lambda: made.planner.plan(ask({"A": 1}, has_opened=True, limit={"A": "two"}), 0),
        lambda: made.planner.register_plan(ask({"A": 4}), {"A": (1, 2)}, 0),
    ):
        with pytest.raises((DataLossError, TypeError)):
            call()
        assert made.readers == {}
        assert made.retention.held_bytes(0) == 0


def test_a_reader_that_is_known_stays_when_it_is_refused() -> None:
    made = ledger()
    put(made, "A", 3)
    made.planner.plan(ask({"A": 1}, has_opened=True), 0)
    with pytest.raises(DataLossError):
        made.planner.plan(ask({"A": 4}, has_opened=True), 0)
    assert made.retention.held_bytes(0) == 200


def test_a_wait_reader_away_for_longer_than_grace_is_informed_of_its_loss() -> None:
    made = ledger(max_bytes=150, grace=10)
    put(made, "A", 3)
    made.planner.plan(ask(lease=5, budget=100), 0)
    put(made, "A", 3)
    made.retention.sweep(14)
    assert retained(made) == [0, 1, 2, 3, 4, 5]
    made.retention.sweep(16)
    assert retained(made) == [5]
    with pytest.raises(DataLossError) as caught:
        made.planner.plan(ask({"A": 1}, has_opened=True), 17)
    assert (caught.value.first, caught.value.last) == (1, 5)


def test_a_reader_of_a_drained_and_removed_stream_is_still_informed_of_its_loss() -> None:
    made = ledger(max_bytes=100, grace=10)
    put(made, "A", 3)
    made.planner.plan(ask(lease=5, budget=100), 0)
    put(made, "B", 1)
    made.retention.sweep(100)
    assert retained(made, "A") == []
    assert made.claims.is_unread("A")
    with pytest.raises(DataLossError):
        made.planner.plan(ask({"A": 1}, has_opened=True), 101)


def test_a_stream_that_every_reader_has_finished_is_not_wanted() -> None:
    made = ledger()
    put(made, "A", 2)
    made.planner.plan(ask(), 0)
    put(made, "B", 1)
    assert made.claims.is_unread("A")
    made.planner.plan(ask({"A": 2, "B": 0}, has_opened=True), 0)
    assert not made.claims.is_unread("A")
    made.forget_stream("A")
    assert planned(made.planner.plan(ask({"A": 2, "B": 0}, has_opened=True), 0)) == {"B": (0, 1)}


def test_sums_of_removed_epochs_outlive_them() -> None:
    made = ledger(max_bytes=100)
    made.set_routes({IMPORT: "drop"})
    put(made, "A", 5, rows=7)
    made.retention.sweep(0)
    assert made.streams["A"].rows_between(1, 4) == 21
    assert made.streams["A"].bytes_from(4) == 100


def test_a_position_learned_again_after_a_restart_counts_exactly() -> None:
    made = ledger()
    made.open("A")
    stream = made.streams["A"]
    stream.skip_to(10, 100)
    assert stream.rows_between(4, 10) == 0
    stream.restore_sum(4, 37)
    assert stream.rows_between(4, 10) == 63
    stream.restore_sum(12, 5)
    assert stream.rows_between(10, 10) == 0


def test_limits_have_the_defaults_of_the_manifest() -> None:
    assert RetentionLimits() == RetentionLimits(max_bytes=1 << 30, max_age=None, grace=600.0)


def test_one_budget_holds_for_all_streams_of_the_export() -> None:
    made = ledger()
    put(made, "A", 1)
    made.planner.plan(ask(), 0)
    put(made, "B", 3)
    two = made.planner.plan(ask({"A": 0}, has_opened=True, budget=200), 0)
    assert planned(two) == {"A": (0, 1), "B": (0, 1)}
    one = made.planner.plan(ask({"A": 0}, has_opened=True, budget=100), 0)
    assert planned(one) == {"A": (0, 1), "B": (0, 0)}


def test_an_earliest_reader_passes_over_streams_of_which_nothing_is_left() -> None:
    made = ledger(max_bytes=100, grace=10)
    put(made, "A", 1)
    made.planner.plan(ask(reader="away"), 0)
    put(made, "B", 2)
    made.retention.sweep(100)
    assert (retained(made, "A"), retained(made, "B")) == ([], [1])
    (plan,) = made.planner.plan(ask(), 100).planned
    assert (plan.stream, plan.from_, plan.next, plan.dropped) == ("B", 1, 2, (0, 0))


def cut_and_back(start: str, before: int) -> Ledger:
    """Return a ledger whose reader read so many epochs; two more came without its route."""
    made = ledger()
    if before:
        put(made, "A", before)
    made.planner.plan(ask(start=start), 0)
    if before:
        made.planner.plan(ask({"A": before}, start=start, has_opened=True), 0)
    made.set_routes({})
    put(made, "A", 2)
    made.set_routes({IMPORT: "wait"})
    put(made, "A", 1)
    return made


@pytest.mark.parametrize(("start", "expected"), [("earliest", (0, 3)), ("latest", (2, 3))])
@pytest.mark.parametrize("evicted", [False, True])
def test_a_reader_that_read_nothing_may_forget_that_it_opened_the_export(
    start: str, expected: tuple[int, int], evicted: bool
) -> None:
    for known in (True, False) if not evicted else (False,):
        made = cut_and_back(start, 0)
        if evicted:
            del made.readers["r"]
            expected = expected if start == "earliest" else (3, 3)
        assert planned(made.planner.plan(ask(start=start, has_opened=known), 0)) == {"A": expected}


def test_what_a_reader_has_read_and_forgotten_the_place_of_its_last_batch_tells() -> None:
    known = cut_and_back("earliest", 4).planner.plan(ask(has_opened=True, last=(QUERY, 3)), 0)
    assert planned(known) == {"A": (4, 7)}
    assert known.planned[0].duplicates == (4, 40)
    forgetful = cut_and_back("earliest", 4).planner.plan(ask(), 0)
    assert planned(forgetful) == {"A": (0, 7)}, "so what was read stays known"


def test_a_plan_is_read_for_as_long_as_grace_lasts_and_again_once_it_is_registered() -> None:
    made = ledger(grace=10)
    put(made, "A", 2)
    made.planner.plan(ask(lease=5), 0)
    assert made.planner.is_planned("r", "A", 0, 15)
    assert not made.planner.is_planned("r", "A", 0, 15.5)
    made.planner.register_plan(ask(lease=5), {"A": (0, 2)}, 20)
    assert made.planner.is_planned("r", "A", 0, 25)
