"""What a plan takes of epochs with control tuples: for readers of control, and for others."""

from __future__ import annotations

from streambroker_core.control.tuples import MAX_BYTES, MAX_TUPLES
from streambroker_core.control.tuples.window_bounds import ControlHead
from streambroker_core.ledger.epochs import Epoch
from streambroker_core.ledger.ledger import Ledger
from streambroker_core.ledger.plan import Plan
from streambroker_core.wire.agent_rpc.peer import PlannedRange
from support.core.ledgers import QUERY, ask, ledger, put

NONE = frozenset[str]()
ENDS, BEGINS = frozenset({"end"}), frozenset({"begin"})


def control(
    made: Ledger,
    stream: str = "s",
    *,
    end: frozenset[str] = NONE,
    begin: frozenset[str] = NONE,
    tuples: int = 1,
    size: int = 10,
    rows: int = 10,
    own: bool = False,
) -> None:
    """Publish an epoch with control tuples; ``own`` is one of the agent's own, without rows."""
    if stream not in made.streams:
        made.open(stream)
    number = made.streams[stream].next
    epoch = Epoch(
        number=number,
        rows=0 if own else rows,
        bytes=100,
        published=0.0,
        query="" if own else QUERY,
        batch=-1 if own else number,
        control=ControlHead(number=number, begin=begin, end=end, tuples=tuples, bytes=size),
    )
    made.publish(stream, epoch)


def taken(answer: Plan) -> dict[str, tuple[int, int]]:
    return {p.stream: (p.from_, p.next) for p in answer.planned}


def test_a_reader_of_control_gets_no_epoch_behind_one_that_ends_a_window() -> None:
    made = ledger()
    put(made, "s", 2)
    control(made, end=ENDS)
    put(made, "s", 2)
    assert taken(made.planner.plan(ask(control=NONE), 0)) == {"s": (0, 3)}
    assert taken(made.planner.plan(ask({"s": 3}, control=NONE), 0)) == {"s": (3, 5)}
    assert taken(made.planner.plan(ask(reader="other"), 0)) == {"s": (0, 5)}


def test_a_mergeable_type_does_not_cut() -> None:
    made = ledger()
    control(made, end=ENDS)
    control(made, end=ENDS)
    assert taken(made.planner.plan(ask(control=ENDS), 0)) == {"s": (0, 2)}


def test_a_begin_stands_at_the_beginning_of_a_window() -> None:
    made = ledger()
    put(made, "s", 2)
    control(made, begin=BEGINS)
    put(made, "s", 1)
    assert taken(made.planner.plan(ask(control=NONE), 0)) == {"s": (0, 2)}
    assert taken(made.planner.plan(ask({"s": 2}, control=NONE), 0)) == {"s": (2, 4)}


def test_what_cuts_within_a_stream_cuts_between_it_and_its_successor() -> None:
    made = ledger()
    control(made, "a", end=ENDS)
    put(made, "b", 1)
    control(made, "c", begin=BEGINS)
    assert taken(made.planner.plan(ask(control=NONE), 0)) == {"a": (0, 1)}
    assert taken(made.planner.plan(ask({"a": 1}, has_opened=True, control=NONE), 0)) == {
        "b": (0, 1)
    }
    later = made.planner.plan(ask({"a": 1, "b": 1}, has_opened=True, control=NONE), 0)
    assert taken(later) == {"c": (0, 1)}
    assert taken(made.planner.plan(ask(reader="other"), 0)) == {
        "a": (0, 1),
        "b": (0, 1),
        "c": (0, 1),
    }


def test_a_window_holds_so_many_tuples_and_bytes() -> None:
    made = ledger()
    for _ in range(3):
        control(made, tuples=6, size=60)
    few = made.planner.plan(ask(control=NONE, tuples=12), 0)
    assert (taken(few), few.tuples, few.payload) == ({"s": (0, 2)}, 12, 120)
    assert taken(made.planner.plan(ask(control=NONE, payload=119), 0)) == {"s": (0, 1)}
    assert taken(made.planner.plan(ask(control=NONE, tuples=5), 0)) == {"s": (0, 0)}
    assert taken(made.planner.plan(ask(reader="rows", tuples=1), 0)) == {"s": (0, 3)}


def test_an_epoch_with_more_tuples_than_any_window_takes_comes_alone() -> None:
    made = ledger()
    for _ in range(2):
        control(made, tuples=MAX_TUPLES + 1)
    assert taken(made.planner.plan(ask(control=NONE), 0)) == {"s": (0, 1)}
    assert taken(made.planner.plan(ask(control=NONE, at_least_one=False), 0)) == {"s": (0, 0)}
    assert taken(made.planner.plan(ask(control=NONE, tuples=MAX_TUPLES - 1), 0)) == {"s": (0, 0)}
    assert taken(made.planner.plan(ask(control=NONE, payload=MAX_BYTES - 1), 0)) == {"s": (0, 0)}


def test_an_epoch_larger_than_a_batch_is_planned_beside_other_control() -> None:
    made = ledger()
    control(made, tuples=1)
    assert taken(made.planner.plan(ask(control=NONE, budget=1, tuples=5), 0)) == {"s": (0, 1)}


def test_epochs_without_rows_are_nothing_to_a_reader_without_control() -> None:
    made = ledger()
    put(made, "s", 1)
    control(made, end=ENDS, own=True)
    control(made, end=ENDS, own=True)
    first = made.planner.plan(ask(), 0)
    assert (taken(first), first.rowless_streams) == ({"s": (0, 1)}, (("s", 3),))
    nothing = made.planner.plan(ask({"s": 1}), 0)
    assert (taken(nothing), nothing.rowless_streams, nothing.bytes) == (
        {"s": (1, 1)},
        (("s", 3),),
        0,
    )
    put(made, "s", 1)
    assert taken(made.planner.plan(ask({"s": 1}), 0)) == {"s": (1, 4)}
    assert taken(made.planner.plan(ask(reader="control", control=NONE), 0)) == {"s": (0, 2)}


def test_epochs_without_rows_are_planned_before_they_fill_the_log() -> None:
    made = ledger(max_bytes=1000)
    put(made, "s", 1)
    for _ in range(2):
        control(made, own=True)
    assert taken(made.planner.plan(ask(), 0)) == {"s": (0, 1)}
    control(made, own=True)
    assert taken(made.planner.plan(ask({"s": 1}), 0)) == {"s": (1, 4)}


def test_a_reader_of_rows_is_not_behind_for_epochs_without_any() -> None:
    made = ledger()
    put(made, "s", 1)
    control(made, own=True)
    made.planner.plan(ask({"s": 1}), 0)
    made.planner.plan(ask({"s": 1}, reader="control", control=NONE), 0)
    lags = {r.id: made.retention.lag(r) for r in made.readers.values()}
    assert (lags["r"].epochs, lags["r"].bytes, lags["r"].since) == (0, 0, None)
    assert (lags["control"].epochs, lags["control"].bytes) == (1, 100)


def test_rowless_ends_of_a_stream_do_not_hide_its_successor() -> None:
    made = ledger()
    put(made, "a", 1)
    control(made, "a", end=ENDS, own=True)
    put(made, "b", 1)
    assert taken(made.planner.plan(ask(), 0)) == {"a": (0, 2), "b": (0, 1)}


def test_the_last_batch_of_a_plan_is_one_of_a_query() -> None:
    made = ledger()
    put(made, "s", 2)
    control(made, own=True)
    answer = made.planner.plan(ask(control=NONE), 0)
    assert (taken(answer), answer.last) == ({"s": (0, 3)}, (QUERY, 1))
    control(made, own=True)
    assert made.planner.plan(ask({"s": 3}, control=NONE), 0).last is None


def test_a_batch_that_was_read_is_passed_over_also_behind_a_tuple_from_outside() -> None:
    made = ledger()
    put(made, "new", 1, batch=5)
    control(made, "new", own=True)
    put(made, "new", 1, batch=6)
    put(made, "new", 1, batch=7)
    read = {"lost": 9}
    first = made.planner.plan(
        ask(read, own_streams=frozenset({"lost"}), has_opened=True, last=(QUERY, 6), control=NONE),
        0,
    )
    assert taken(first) == {"new": (1, 2)}
    later = made.planner.plan(ask({"new": 2}, has_opened=True, last=(QUERY, 6), control=NONE), 0)
    assert taken(later) == {"new": (3, 4)}
    assert [p.duplicates for p in later.planned] == [(1, 10)]


def test_a_tuple_from_outside_alone_says_nothing_of_what_a_lost_log_had() -> None:
    made = ledger()
    control(made, "new", own=True)
    asked = ask(
        {"lost": 9}, own_streams=frozenset({"lost"}), has_opened=True, last=(QUERY, 6), control=NONE
    )
    assert made.planner.plan(asked, 0).planned == ()
    put(made, "new", 1, batch=7)
    assert taken(made.planner.plan(asked, 0)) == {"new": (0, 2)}


def test_the_ledger_knows_which_readers_read_control() -> None:
    made = ledger()
    put(made, "s", 1)
    made.planner.plan(ask(reader="a"), 0)
    made.planner.plan(ask(reader="b", control=NONE), 0)
    assert {r.id: r.control for r in made.readers.values()} == {"a": False, "b": True}
    assert isinstance(made.planner.plan(ask(reader="a"), 0).planned[0], PlannedRange)
