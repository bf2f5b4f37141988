"""What may be removed, who is asked first, and who keeps an export waiting."""

from __future__ import annotations

import pytest

from streambroker_core.ledger.ledger import Ledger
from streambroker_core.ledger.losses import DataLossError
from streambroker_core.ledger.planner import MAX_READERS, ReadersExceededError
from streambroker_core.ledger.retention import Lag, RetentionLimits
from streambroker_core.ledger.routes import MAX_CUT, NotRoutedError
from support.core.ledgers import IMPORT, ask, ledger, planned, put, retained


def test_planned_epochs_stay_through_size_age_removal_of_the_route_and_policy() -> None:
    made = ledger(max_bytes=100, max_age=5.0)
    put(made, "A", 6)
    made.planner.plan(ask(budget=200), 0)
    made.set_routes({IMPORT: "drop"})
    made.set_routes({})
    made.retention.sweep(300)
    assert retained(made) == [0, 1]


def test_a_plan_is_released_when_it_is_acknowledged() -> None:
    made = ledger(max_bytes=100)
    made.set_routes({IMPORT: "drop"})
    put(made, "A", 4)
    made.planner.plan(ask(policy="drop", budget=200), 0)
    made.retention.sweep(0)
    assert retained(made) == [0, 1, 3]
    made.planner.plan(ask({"A": 2}, policy="drop", has_opened=True), 0)
    made.retention.sweep(0)
    assert retained(made) == [3]


def test_a_plan_is_released_after_lease_and_grace() -> None:
    made = ledger(max_bytes=100, grace=10)
    made.set_routes({IMPORT: "drop"})
    put(made, "A", 3)
    made.planner.plan(ask(policy="drop", lease=5), 0)
    made.retention.sweep(15)
    assert retained(made) == [0, 1, 2]
    made.retention.sweep(15.1)
    assert retained(made) == [2]


def test_a_sign_of_life_keeps_the_claims() -> None:
    made = ledger(max_bytes=100, grace=10)
    put(made, "A", 3)
    made.planner.plan(ask(lease=5), 0)
    made.claims.renew("r", 100)
    made.claims.renew("nobody", 100)
    made.retention.sweep(109)
    assert retained(made) == [0, 1, 2]


def test_a_reader_that_left_in_order_keeps_its_claims_for_grace() -> None:
    made = ledger(max_bytes=100, grace=10)
    put(made, "A", 3)
    made.planner.plan(ask(lease=5), 0)
    made.claims.end_lease("r", 1)
    made.retention.sweep(11)
    assert retained(made) == [0, 1, 2]
    made.retention.sweep(11.1)
    assert retained(made) == [2]


def test_a_reader_without_route_claims_its_plan_only() -> None:
    made = ledger(max_bytes=100)
    put(made, "A", 4)
    made.planner.plan(ask(budget=100), 0)
    assert made.retention.held_bytes(0) == 400
    made.set_routes({})
    assert made.retention.held_bytes(0) == 0
    made.retention.sweep(0)
    assert retained(made) == [0, 3]


def test_a_reader_without_route_is_given_nothing_new() -> None:
    made = ledger()
    put(made, "A", 2)
    made.planner.plan(ask(budget=100), 0)
    made.set_routes({})
    answer = made.planner.plan(ask({"A": 1}, has_opened=True), 0)
    assert (answer.planned, answer.routed) == ((), False)
    assert answer.finished == (("A", 0, 1),)


def test_an_import_that_the_table_never_had_keeps_its_route() -> None:
    made = Ledger(RetentionLimits())
    put(made, "A", 2)
    made.planner.plan(ask(), 0)
    made.set_routes({"default/other/0/in": "wait"})
    assert made.planner.plan(ask({"A": 1}, has_opened=True), 0).routed


def test_a_returned_latest_route_goes_on_at_the_end() -> None:
    made = ledger()
    put(made, "A", 2)
    made.planner.plan(ask(start="latest"), 0)
    put(made, "A", 1)
    made.set_routes({})
    put(made, "A", 2)
    made.set_routes({IMPORT: "wait"})
    put(made, "A", 1)
    (plan,) = made.planner.plan(ask({"A": 2}, start="latest", has_opened=True), 0).planned
    assert (plan.from_, plan.next, plan.has_gap, plan.dropped) == (5, 6, True, (0, 0))


def test_a_returned_earliest_route_goes_on_at_its_position() -> None:
    made = ledger()
    put(made, "A", 4)
    made.planner.plan(ask(), 0)
    made.planner.plan(ask({"A": 1}, has_opened=True), 0)
    made.set_routes({})
    made.set_routes({IMPORT: "wait"})
    (plan,) = made.planner.plan(ask({"A": 3}, has_opened=True), 0).planned
    assert (plan.from_, plan.next, plan.has_gap) == (3, 4, False)


def test_neither_a_plan_registered_again_nor_a_cut_reader_says_where_it_begins_again() -> None:
    made = ledger()
    put(made, "A", 2)
    made.planner.plan(ask(), 0)
    made.planner.register_plan(ask(start="latest", has_opened=True), {"A": (0, 2)}, 0)
    made.set_routes({})
    made.planner.plan(ask({"A": 2}, start="latest", has_opened=True), 0)
    put(made, "A", 2)
    made.set_routes({IMPORT: "wait"})
    (plan,) = made.planner.plan(ask({"A": 2}, has_opened=True), 0).planned
    assert (plan.from_, plan.next, plan.has_gap) == (2, 4, False)


def test_a_returned_earliest_route_whose_position_is_gone_begins_at_what_is_left() -> None:
    made = ledger(max_bytes=200)
    put(made, "A", 1)
    made.planner.plan(ask(), 0)
    made.planner.plan(ask({"A": 1}, has_opened=True), 0)
    made.set_routes({})
    put(made, "A", 5)
    made.retention.sweep(0)
    made.set_routes({IMPORT: "wait"})
    (plan,) = made.planner.plan(ask({"A": 1}, has_opened=True), 0).planned
    assert (plan.from_, plan.next, plan.dropped) == (4, 6, (0, 0))


def test_a_returned_latest_route_does_not_read_a_successor_made_meanwhile() -> None:
    made = ledger()
    put(made, "A", 2)
    made.planner.plan(ask(start="latest"), 0)
    made.set_routes({})
    put(made, "B", 3)
    made.set_routes({IMPORT: "wait"})
    put(made, "B", 1)
    plans = planned(made.planner.plan(ask({"A": 2}, start="latest", has_opened=True), 0))
    assert plans["B"] == (3, 4)


def test_drop_takes_the_oldest_unplanned_epochs_of_that_reader_alone() -> None:
    made = Ledger(RetentionLimits(max_bytes=300))
    made.set_routes({"slow": "drop", "fast": "wait"})
    put(made, "A", 3)
    made.planner.plan(ask(reader="d", import_="slow", policy="drop", budget=100), 0)
    made.planner.plan(ask(reader="w", import_="fast"), 0)
    put(made, "A", 3)
    made.retention.sweep(0)
    assert retained(made) == [0, 1, 2, 3, 4, 5]
    made.planner.plan(ask({"A": 5}, reader="w", import_="fast", has_opened=True), 0)
    made.retention.sweep(0)
    assert retained(made) == [0, 4, 5]
    (plan,) = made.planner.plan(
        ask({"A": 1}, reader="d", import_="slow", policy="drop", has_opened=True), 0
    ).planned
    assert (plan.from_, plan.next, plan.dropped) == (4, 6, (3, 30))


def test_what_was_dropped_is_a_distance_so_asking_twice_counts_once() -> None:
    made = ledger(max_bytes=100)
    made.set_routes({IMPORT: "drop"})
    put(made, "A", 1)
    made.planner.plan(ask(policy="drop"), 0)
    put(made, "A", 4, rows=3)
    made.planner.plan(ask({"A": 1}, policy="drop", has_opened=True, budget=100), 0)
    made.retention.sweep(0)
    asked = ask({"A": 2}, policy="drop", has_opened=True)
    first = made.planner.plan(asked, 0).planned
    assert first == made.planner.plan(asked, 0).planned
    assert first[0].dropped == (2, 6)


def test_the_newest_epoch_is_not_taken_by_size() -> None:
    made = ledger(max_bytes=100)
    made.set_routes({IMPORT: "drop"})
    put(made, "A", 2, bytes_=500)
    made.retention.sweep(0)
    assert retained(made) == [1]


def test_age_takes_what_nobody_claims() -> None:
    made = ledger(max_age=10.0)
    put(made, "A", 2, now=0)
    put(made, "A", 1, now=8)
    made.retention.sweep(10.5)
    assert retained(made) == [2]


def test_age_takes_nothing_that_a_wait_reader_has_not_finished() -> None:
    made = ledger(max_age=10.0)
    put(made, "A", 3, now=0)
    made.planner.plan(ask(lease=1000), 0)
    made.retention.sweep(500)
    assert retained(made) == [0, 1, 2]


def test_without_wait_reader_nothing_is_held_and_nobody_waits() -> None:
    made = ledger(max_bytes=100)
    put(made, "A", 9)
    assert made.retention.held_bytes(0) == 0
    assert made.retention.blocking_readers(0) == []


def test_a_full_log_names_the_readers_that_hold_it_slowest_first() -> None:
    made = Ledger(RetentionLimits(max_bytes=300, grace=60))
    made.set_routes({"a": "wait", "b": "wait", "c": "drop", "d": "wait"})
    put(made, "A", 4)
    for reader, at in (("a", 3), ("b", 1), ("c", 0), ("d", 4)):
        policy = "drop" if reader == "c" else "wait"
        made.planner.plan(ask({"A": at}, reader=reader, import_=reader, policy=policy, lease=5), 0)
    holders = made.retention.blocking_readers(7)
    assert [(h.reader, h.import_, h.bytes, h.away) for h in holders] == [
        ("b", "b", 300, 2.0),
        ("a", "a", 100, 2.0),
    ]


def test_a_log_is_full_at_its_limit_and_free_below() -> None:
    made = ledger(max_bytes=300)
    put(made, "A", 3)
    made.planner.plan(ask(), 0)
    assert made.retention.blocking_readers(0)
    made.planner.plan(ask({"A": 1}, has_opened=True), 0)
    assert made.retention.blocking_readers(0) == []


def test_a_change_to_drop_frees_the_export() -> None:
    made = ledger(max_bytes=100)
    put(made, "A", 3)
    made.planner.plan(ask(), 0)
    assert made.retention.blocking_readers(0)
    made.set_routes({IMPORT: "drop"})
    assert made.retention.blocking_readers(0) == []


def test_a_loss_agreed_under_drop_does_not_stop_a_reader_that_waits_later() -> None:
    made = ledger(max_bytes=100)
    made.set_routes({IMPORT: "drop"})
    put(made, "A", 1)
    made.planner.plan(ask(policy="drop"), 0)
    put(made, "A", 4)
    made.retention.sweep(0)
    made.set_routes({IMPORT: "wait"})
    (plan,) = made.planner.plan(ask({"A": 1}, has_opened=True), 0).planned
    assert (plan.from_, plan.next, plan.dropped) == (4, 5, (3, 30))


def test_a_loss_after_the_change_back_to_wait_is_not_agreed() -> None:
    made = ledger(max_bytes=100, grace=10)
    made.set_routes({IMPORT: "drop"})
    put(made, "A", 1)
    made.planner.plan(ask(policy="drop", lease=5), 0)
    made.set_routes({IMPORT: "wait"})
    put(made, "A", 3)
    made.retention.sweep(100)
    with pytest.raises(DataLossError):
        made.planner.plan(ask({"A": 1}, has_opened=True), 100)


def test_a_new_earliest_reader_does_not_stop_at_what_was_gone_before_it_came() -> None:
    made = Ledger(RetentionLimits(max_bytes=100))
    made.set_routes({"old": "drop", IMPORT: "wait"})
    put(made, "A", 1)
    made.planner.plan(ask(reader="o", import_="old", policy="drop"), 0)
    put(made, "A", 4)
    made.retention.sweep(0)
    assert retained(made) == [0, 4]
    assert planned(made.planner.plan(ask(), 0)) == {"A": (0, 1)}
    (plan,) = made.planner.plan(ask({"A": 1}, has_opened=True), 0).planned
    assert (plan.from_, plan.next, plan.dropped) == (4, 5, (3, 30))


def test_the_ledger_remembers_the_readers_seen_last() -> None:
    made = ledger()
    for number in range(MAX_READERS + 1):
        made.planner.plan(ask(reader=f"r{number}"), float(number))
    assert len(made.readers) == MAX_READERS
    assert "r0" not in made.readers
    assert f"r{MAX_READERS}" in made.readers


def test_an_epoch_out_of_order_is_a_fault_of_the_caller() -> None:
    made = ledger()
    put(made, "A", 2)
    with pytest.raises(ValueError, match="epoch 0 after 1"):
        made.publish("A", made.streams["A"].epochs[0])


def test_a_returned_earliest_route_does_not_stop_at_a_gap_behind_what_is_left() -> None:
    made = Ledger(RetentionLimits(max_bytes=100))
    made.set_routes({"other": "drop", IMPORT: "wait"})
    put(made, "A", 1)
    made.planner.plan(ask(reader="o", import_="other", policy="drop"), 0)
    made.planner.plan(ask(), 0)
    made.planner.plan(ask({"A": 0}, has_opened=True), 0)
    made.set_routes({"other": "drop"})
    put(made, "A", 4)
    made.retention.sweep(0)
    assert retained(made) == [0, 4]
    made.set_routes({"other": "drop", IMPORT: "wait"})
    (plan,) = made.planner.plan(ask({"A": 1}, has_opened=True), 0).planned
    assert (plan.from_, plan.next) == (4, 5)


def test_a_returned_latest_route_does_not_hold_what_it_will_not_read() -> None:
    made = ledger()
    put(made, "A", 1)
    made.planner.plan(ask(start="latest"), 0)
    made.set_routes({})
    put(made, "A", 4)
    made.set_routes({IMPORT: "wait"})
    assert made.retention.held_bytes(0) == 0


def test_a_reader_without_route_keeps_its_plan_until_it_is_finished() -> None:
    made = ledger(max_bytes=100)
    put(made, "A", 5)
    made.planner.plan(ask(budget=300), 0)
    made.set_routes({})
    made.planner.plan(ask({"A": 1}, has_opened=True), 0)
    made.retention.sweep(0)
    assert retained(made) == [0, 1, 2, 4]
    made.planner.plan(ask({"A": 3}, has_opened=True), 0)
    made.retention.sweep(0)
    assert retained(made) == [4]


def test_lag_is_what_is_retained_and_not_finished_and_nothing_without_a_route() -> None:
    made = ledger()
    put(made, "A", 4)
    made.planner.plan(ask(budget=100), 0)
    made.planner.plan(ask({"A": 1}, budget=100), 0)
    reader = made.readers["r"]

    assert made.retention.lag(reader) == Lag(3, 30, 300, 0.0)
    put(made, "B", 2, bytes_=7, now=5.0)
    assert made.retention.lag(reader) == Lag(5, 50, 314, 0.0)
    made.planner.plan(ask({"A": 4, "B": 1}), 6)
    assert made.retention.lag(reader) == Lag(1, 10, 7, 5.0)
    made.set_routes({})
    assert made.retention.lag(reader) == Lag(0, 0, 0, None)


def test_what_a_drop_reader_has_lost_is_no_lag() -> None:
    made = ledger(max_bytes=100)
    made.set_routes({IMPORT: "drop"})
    put(made, "A", 5)
    made.planner.plan(ask(policy="drop", budget=100), 0)
    made.retention.sweep(0)
    made.planner.plan(
        ask({"A": 1}, policy="drop", has_opened=True, budget=1, at_least_one=False), 0
    )
    made.retention.sweep(0)

    assert retained(made) == [4]
    assert made.retention.lag(made.readers["r"]) == Lag(1, 10, 100, 0.0)


def test_a_cut_reader_registers_again_what_it_was_given_and_no_more() -> None:
    made = ledger()
    put(made, "A", 4)
    made.planner.plan(ask(budget=200), 0)
    made.set_routes({})
    for ranges in ({"A": (0, 3)}, {"A": (2, 3)}, {"A": (1, 2), "B": (0, 1)}):
        if "B" in ranges and "B" not in made.streams:
            put(made, "B", 1)
        with pytest.raises(NotRoutedError, match=r"no longer has a route .* epochs below"):
            made.planner.register_plan(ask(), ranges, 0)
    assert made.readers["r"].cursors["A"].planned == (0, 2)
    made.planner.register_plan(ask({"A": 1}), {"A": (1, 2)}, 0)
    made.planner.register_plan(ask({"A": 0}), {"A": (0, 2)}, 0)
    assert made.planner.is_planned("r", "A", 1, 0)


def test_who_may_not_open_an_export_registers_again_what_was_given_and_no_more() -> None:
    made = ledger()
    put(made, "A", 4)
    made.planner.plan(ask(budget=200), 0)
    with pytest.raises(NotRoutedError):
        made.planner.register_plan(ask(granted=False), {"A": (0, 3)}, 0)
    made.planner.register_plan(ask(granted=False), {"A": (0, 2)}, 0)
    made.planner.register_plan(ask(), {"A": (0, 3)}, 0)
    assert made.planner.is_planned("r", "A", 2, 0)


def test_a_cut_reader_gets_nothing_by_a_position_it_has_never_reached() -> None:
    made = ledger()
    put(made, "A", 4)
    made.planner.plan(ask(budget=100), 0)
    made.set_routes({})
    made.planner.plan(ask({"A": 4}, has_opened=True), 0)
    with pytest.raises(NotRoutedError):
        made.planner.register_plan(ask({"A": 4}, has_opened=True), {"A": (1, 4)}, 0)
    assert not made.planner.is_planned("r", "A", 1, 0)


def test_a_new_reader_of_a_cut_import_registers_nothing() -> None:
    made = ledger()
    put(made, "A", 1)
    made.set_routes({})
    with pytest.raises(NotRoutedError):
        made.planner.register_plan(ask(), {"A": (0, 1)}, 0)
    assert "r" not in made.readers


def test_a_reader_whose_route_returned_registers_what_it_likes() -> None:
    made = ledger()
    put(made, "A", 4)
    made.planner.plan(ask(budget=100), 0)
    made.set_routes({})
    made.set_routes({IMPORT: "wait"})
    made.planner.register_plan(ask(), {"A": (0, 4)}, 0)
    made.set_routes({})
    made.planner.register_plan(ask(), {"A": (0, 4)}, 0)


def full(policy: str = "wait", *, lease: float = 5.0) -> Ledger:
    """Return a ledger with as many readers as there may be, each with a plan of five epochs."""
    made = ledger(max_bytes=100, grace=10)
    made.set_routes({IMPORT: policy})
    put(made, "A", 5)
    for number in range(MAX_READERS):
        made.planner.plan(ask(reader=f"r{number}", policy=policy, lease=lease + number / 1e6), 0)
    return made


def test_one_reader_too_many_is_refused_by_name_and_nobody_loses_its_claims() -> None:
    made = full()
    for call in (
        lambda: made.planner.plan(ask(reader="late"), 1),
        lambda: made.planner.register_plan(ask(reader="late"), {"A": (0, 1)}, 1),
    ):
        with pytest.raises(ReadersExceededError, match=f"{MAX_READERS:,} readers"):
            call()
    assert "late" not in made.readers
    assert len(made.readers) == MAX_READERS
    assert made.planner.evicted == []
    made.retention.sweep(1)
    assert retained(made) == [0, 1, 2, 3, 4]
    assert made.planner.plan(ask({"A": 1}, reader="r0", has_opened=True), 1).planned


def test_readers_that_are_away_keep_their_place_for_as_long_as_their_claims() -> None:
    made = full()
    with pytest.raises(ReadersExceededError):
        made.planner.plan(ask(reader="late"), 15)
    made.planner.plan(ask(reader="late"), 15.0000015)
    assert made.planner.evicted == ["r0"]


def test_a_drop_reader_keeps_its_place_while_it_lives_or_has_planned() -> None:
    made = full("drop")
    with pytest.raises(ReadersExceededError):
        made.planner.plan(ask(reader="late", policy="drop"), 6)
    made.planner.plan(ask({"A": 5}, reader="r7", policy="drop", has_opened=True, lease=5), 6)
    with pytest.raises(ReadersExceededError):
        made.planner.plan(ask(reader="late", policy="drop"), 7)
    made.planner.plan(ask(reader="late", policy="drop"), 12)
    assert made.planner.evicted == ["r7"]


def test_of_too_many_cut_imports_those_that_were_cut_first_are_forgotten() -> None:
    made = ledger()
    made.routes.restore_cut(f"import{n}" for n in range(MAX_CUT))
    made.set_routes({})
    cut = list(made.routes.cut)
    assert (len(cut), cut[0], cut[-1]) == (MAX_CUT, "import1", IMPORT)
    made.set_routes({"import5": "wait"})
    assert "import5" not in made.routes.cut
