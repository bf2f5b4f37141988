"""The runner: state that goes from window to window, and what waits for its time."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import pyarrow as pa
import pytest

from streambroker_core.control.operators.operator import (
    Blobs,
    Changes,
    Input,
    Operator,
    OperatorError,
    StateError,
)
from streambroker_core.control.runtime.buckets import Layout
from streambroker_core.control.runtime.packing import by_bucket, pack
from streambroker_core.control.tuples import (
    ControlError,
    ControlLimitError,
    Delivery,
    Limits,
)
from support.aligned.window import (
    Seeing,
    apply,
    batch,
    control,
    rows,
    run,
    sent,
    stage,
    window,
)

KEYED = Layout(port="in", buckets=1, key=(("k", pa.int64()),))


@pytest.fixture(autouse=True)
def _forget() -> None:
    Seeing.seen.clear()


class Counting(Operator):
    state_version: ClassVar[int] = 2
    count = 0

    def restore(self, version: int, blobs: Blobs) -> None:
        assert sorted(blobs) == ["count"]
        assert len(blobs) == 1
        assert "~meta" not in blobs
        assert blobs.get("~meta") is None
        self.count = int(blobs["count"]) * (10 if version == 1 else 1)

    def snapshot(self) -> Changes:
        return {"count": str(self.count).encode()}

    def process(self, port: str, batch: pa.RecordBatch) -> None:
        self.count += batch.num_rows


def test_state_goes_from_window_to_window_and_only_what_changed_is_written() -> None:
    first = run(Counting, rows(1, 2))
    assert sorted(first.changes) == ["count", "~meta"]
    blobs = apply({}, first)
    second = run(Counting, rows(3), blobs=blobs, at=window(2))
    assert second.changes == {"count": b"3"}


def test_an_operator_without_state_writes_nothing() -> None:
    assert run(Operator, rows(1)).changes == {}


@pytest.mark.compatibility(
    "state of an operator",
    "an older `state_version` is given to the operator; a newer one is refused",
)
def test_state_of_an_older_version_is_given_to_the_operator_and_a_newer_is_refused() -> None:
    blobs = apply({}, run(Counting, rows(1, 2)))
    old = {**blobs, "~meta": blobs["~meta"].replace(b'"state":2', b'"state":1')}
    assert run(Counting, rows(1), blobs=old).changes["count"] == b"21"
    new = {**blobs, "~meta": blobs["~meta"].replace(b'"state":2', b'"state":3')}
    with pytest.raises(StateError, match="has version 3 and the operator reads up to 2"):
        run(Counting, blobs=new)


def test_state_of_another_checkpoint_is_refused() -> None:
    blobs = apply({}, run(Counting, rows(1, 2)))
    for old, new, message in (
        (b'"v":2', b'"v":3', "has form 3, of a newer release"),
        (b'"operator":"op"', b'"operator":"x"', "belongs to operator x"),
        (b'"buckets":1', b'"buckets":2', "has 2 buckets and the query 1"),
        (b"mix64-1", b"mix32-1", "has its keys hashed by mix32-1"),
        (b"{", b"", "is damaged"),
        (b'"layouts"', b'"other"', "is damaged: KeyError"),
    ):
        other = {**blobs, "~meta": blobs["~meta"].replace(old, new, 1)}
        assert other != blobs
        with pytest.raises(StateError, match=message):
            run(Counting, blobs=other)


def test_rows_with_another_key_than_that_of_the_state_are_refused() -> None:
    blobs = apply({}, run(Counting, rows(1, 2)))
    keyed = [one for _, one in by_bucket(pack(batch(k=[1]), KEYED, 0))]
    with pytest.raises(
        StateError,
        match="input in distributed as mix64-1;1;sequence and the query as mix64-1;1;k:int64",
    ):
        run(Counting, keyed, blobs=blobs)


def test_a_tuple_that_waits_at_an_input_that_is_gone_is_not_lost_in_silence() -> None:
    class Renamed(Seeing):
        inputs = (Input(name="new"),)

    blobs = apply({}, run(Seeing, sent(control(delivery=Delivery.AT_TIME, at=5))))
    with pytest.raises(StateError, match="tuples that wait at input in, which the operator does"):
        run(Renamed, blobs=blobs)


def test_an_operator_does_not_emit_while_it_is_restored() -> None:
    class Early(Counting):
        def restore(self, version: int, blobs: Blobs) -> None:
            assert self.window.number == 2
            self.emit(batch(k=[1]))

    blobs = apply({}, run(Early, rows(1)))
    with pytest.raises(OperatorError, match="Early emits outside of a window"):
        run(Early, rows(1), blobs=blobs, at=window(2))


def test_an_operator_is_restored_only_from_what_it_wrote() -> None:
    class Stateless(Seeing):
        def restore(self, version: int, blobs: Blobs) -> None:
            self.seen.append("restored")

    blobs = apply({}, run(Stateless, sent(control(delivery=Delivery.AT_TIME, at=5))))
    run(Stateless, rows(1), blobs=blobs, at=window(2))
    assert Seeing.seen == [("in", [1])]


def test_names_of_blobs_begin_with_a_letter() -> None:
    class Own(Operator):
        def snapshot(self) -> Changes:
            return {"~meta": b""}

    with pytest.raises(StateError, match="names begin with a letter"):
        run(Own)


def test_a_waiting_tuple_is_in_the_state_wakes_its_bucket_and_is_forgotten_once_delivered() -> None:
    at_time = control(delivery=Delivery.AT_TIME, at=5)
    first = run(Seeing, sent(at_time), at=window(watermark=3))
    assert (first.wake_at, Seeing.seen) == (5, [])
    assert first.control[Delivery.AT_TIME].waiting == 1
    blobs = apply({}, first)
    again = run(Seeing, sent(at_time), at=window(2, watermark=4), blobs=blobs)
    assert (again.wake_at, again.changes) == (5, {})
    last = run(Seeing, at=window(3, watermark=5), blobs=blobs)
    assert (last.wake_at, Seeing.seen) == (None, [("in", "e/1/0")])
    assert last.changes["~waiting"] is None
    assert "~waiting" not in apply(blobs, last)


def test_of_those_that_wait_from_window_to_window_there_may_be_as_many_as_the_limit() -> None:
    small, blobs = stage(limits=Limits(tuples=2)), dict[str, bytes]()
    for number in (1, 2, 3):
        one = sent(control(number, delivery=Delivery.AT_TIME, at=number))
        blobs = apply(blobs, run(Seeing, one, of=small, blobs=blobs, at=window(number)))
    waits = r"3 control tuples of earlier windows wait .* operator op, the limit is 2.* for 3"
    with pytest.raises(ControlLimitError, match=waits):
        run(Seeing, of=small, blobs=blobs, at=window(4))
    assert run(Seeing, of=small, blobs=blobs, at=window(4, watermark=1)).wake_at == 2


def test_any_number_may_come_with_a_window_to_wait_for_the_next() -> None:
    small, blobs = stage(limits=Limits(tuples=2)), dict[str, bytes]()
    for number in range(1, 4):
        seqs = range(10 * number, 10 * number + 5)
        given = sent(*(control(seq, delivery=Delivery.AT_TIME, at=number) for seq in seqs))
        at = window(number, watermark=number - 1)
        blobs = apply(blobs, run(Seeing, given, of=small, blobs=blobs, at=at))
    assert len(Seeing.seen) == 10


def test_another_tuple_with_the_identity_of_one_that_waits_is_refused() -> None:
    one = control(delivery=Delivery.AT_TIME, at=5)
    blobs = apply({}, run(Seeing, sent(one)))
    for other in (replace(one, at=6), replace(one, text="1")):
        with pytest.raises(ControlError, match="two control tuples have the identity e/1/0"):
            run(Seeing, sent(other), blobs=blobs, at=window(2))


class Advancing(Seeing):
    def advance(self, time: int) -> None:
        self.seen.append(("advance", time))


def test_time_passes_step_by_step_with_the_tuples_of_each_step_between() -> None:
    given = [control(seq, delivery=Delivery.AT_TIME, at=at) for seq, at in enumerate((7, 5, 9, 5))]
    outcome = run(Advancing, [*sent(*given), *rows(1)], at=window(watermark=8))
    assert Seeing.seen == [
        ("advance", 5),
        ("in", "e/1/1"),
        ("in", "e/1/3"),
        ("advance", 7),
        ("in", "e/1/0"),
        ("advance", 8),
        ("in", [1]),
    ]
    assert outcome.wake_at == 9


def test_time_does_not_go_back_for_a_tuple_whose_time_has_passed() -> None:
    blobs = apply({}, run(Advancing, rows(1), at=window(watermark=8)))
    Seeing.seen.clear()
    late = sent(control(delivery=Delivery.AT_TIME, at=5))
    run(Advancing, late, at=window(2, watermark=8), blobs=blobs)
    assert Seeing.seen == [("in", "e/1/0"), ("advance", 8)]
    with pytest.raises(OperatorError, match="watermark of operator op went back from 8 to 7"):
        run(Advancing, at=window(3, watermark=7), blobs=blobs)


def test_what_waits_holds_the_watermark_and_what_is_due_wakes_the_bucket() -> None:
    class Holding(Operator):
        def held_at(self) -> int | None:
            return 4

        def wake_at(self) -> int | None:
            return 6

    outcome = run(Holding, at=window(watermark=9))
    assert (outcome.watermark, outcome.held_at, outcome.wake_at) == (3, 4, 6)
    assert run(Holding).watermark is None
    assert run(Operator, at=window(watermark=9)).watermark == 9
