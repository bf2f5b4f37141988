"""The runner: what it refuses, whom it hands a tuple, what it keeps, what it counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from streambroker_core.control.aligned import AlignedRunner, ControlCounts, Outcome
from streambroker_core.control.buckets import Layout, bucket_of_key
from streambroker_core.control.emitting import EmittedControl, EmittedRows, Stage
from streambroker_core.control.operator import (
    Blobs,
    Changes,
    Input,
    Operator,
    OperatorError,
    StateError,
    Window,
)
from streambroker_core.control.packing import Packed, by_bucket, pack, pack_control
from streambroker_core.control.rows import Placed
from streambroker_core.control.tuples import (
    ControlError,
    ControlLimitError,
    ControlTuple,
    Delivery,
    Limits,
    Target,
    logged,
    order_of,
)
from streambroker_core.control.typed import TypedOperator, handles

KEYED = Layout(port="in", buckets=4, key=(("k", pa.int64()),))


def stage(buckets: int = 1, **more: Any) -> Stage:
    return Stage(query="q", operator="op", buckets=buckets, **more)


def window(
    number: int = 1, *, bucket: int = 0, buckets: int = 1, watermark: int | None = None
) -> Window:
    return Window(number=number, time=0, watermark=watermark, bucket=bucket, buckets=buckets)


def batch(**columns: list[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def rows(*values: int, port: str = "in", buckets: int = 1, seq: int = 0) -> list[Packed]:
    layout = Layout(port=port, buckets=buckets)
    return [one for _, one in by_bucket(pack(batch(k=list(values)), layout, seq))]


def control(seq: int = 0, **more: Any) -> ControlTuple:
    fields: dict[str, Any] = {
        "type": "T",
        "id": f"e/1/{seq}",
        "delivery": Delivery.END_WINDOW,
        "epoch": 1,
        "emitter": "e",
        "seq": seq,
    }
    return ControlTuple(**{**fields, **more})


def sent(*given: ControlTuple | Placed, port: str = "in") -> list[Packed]:
    placed = [one if isinstance(one, tuple) else (0, one) for one in given]
    return [one for at, one in by_bucket(pack_control(placed, port, 1)) if at == 0]


class Seeing(Operator):
    """Writes down what it sees, in a list that the class holds."""

    seen: ClassVar[list[Any]] = []

    def process(self, port: str, batch: pa.RecordBatch) -> None:
        self.seen.append((port, batch.column(0).to_pylist()))

    def process_control(self, port: str, control: ControlTuple) -> bool:
        self.seen.append((port, control.id))
        return True


@pytest.fixture(autouse=True)
def _forget() -> None:
    Seeing.seen.clear()


def run(
    make: Callable[[], Operator],
    packed: Iterable[Packed] = (),
    *,
    blobs: Blobs | None = None,
    at: Window | None = None,
    of: Stage | None = None,
) -> Outcome:
    return AlignedRunner(make, of or stage()).run(at or window(), packed, blobs or {})


def emitted(outcome: Outcome) -> list[ControlTuple]:
    return [one.control for one in outcome.emitted if isinstance(one, EmittedControl)]


# Emitting.


def test_rows_get_numbers_of_their_bucket_and_output_and_tuples_stand_before_the_next_row() -> None:
    class Two(Operator):
        outputs = ("a", "b")

        def process(self, port: str, batch: pa.RecordBatch) -> None:
            self.emit(batch)
            self.emit(batch.slice(0, 1), "b")
            self.emit_control(control(7))
            self.emit(batch, "a")

    outcome = AlignedRunner(Two, stage(4)).run(
        window(bucket=3, buckets=4), rows(1, 2, 3, buckets=4)[:1], {}
    )
    n = outcome.rows_in
    base = 3 << 40
    told = [
        (one.output, one.seq - base if isinstance(one, EmittedRows) else one.position - base)
        for one in outcome.emitted
    ]
    assert told == [("a", 0), ("b", 0), ("a", n), ("b", 1), ("a", n)]
    assert outcome.rows_out == 2 * n + 1


def test_an_identity_is_made_of_query_operator_bucket_window_and_running_number() -> None:
    @dataclass
    class Mark:
        x: int = 1

    class Emitting(Operator):
        def begin_window(self) -> None:
            self.emit_control(Mark())
            self.emit_control(Mark(), delivery=Delivery.AT_TIME, at=5)

        def end_window(self) -> None:
            self.emit_control(Mark(), once="done", target=Target(operator="x"))

    runner = AlignedRunner(Emitting, stage(4))
    first, second, third = emitted(runner.run(window(9, bucket=2, buckets=4), [], {}))
    assert (first.id, first.epoch, first.emitter, first.seq) == ("q.op.2/9/0", 9, "q.op.2", 0)
    assert (second.id, second.seq, second.at) == ("q.op.2/9/1", 1, 5)
    assert (third.id, third.emitter, third.target.operator) == ("q.op.*/9/done", "q.op.*", "x")


def test_a_tuple_emitted_again_stays_what_it_was() -> None:
    received = control(target=Target(operator="later"))

    class Again(Operator):
        def process_control(self, port: str, control: ControlTuple) -> bool:
            assert self.emit_control(control, delivery=Delivery.IMMEDIATE) == control
            return False

    assert emitted(run(Again, sent(control()))) == [control()]
    assert emitted(run(Operator, sent(received))) == [received]


@pytest.mark.parametrize("once", ["", "a/b", "12"])
def test_a_name_for_once_that_could_be_another_identity_is_refused(once: str) -> None:
    @dataclass
    class Mark:
        x: int = 1

    class Emitting(Operator):
        def begin_window(self) -> None:
            self.emit_control(Mark(), once=once)

    with pytest.raises(ControlError, match="has to be a name without '/', and not a number"):
        run(Emitting)


class Bad(Operator):
    """Does one wrong thing."""

    wrong: ClassVar[Callable[[Operator], Any]]

    def begin_window(self) -> None:
        type(self).wrong(self)


def twice(operator: Operator) -> None:
    operator.emit(batch(a=[1]))
    operator.emit(batch(b=[1]))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda it: it.emit(batch(a=[1]), "late"), "operator op has no output late; it has out"),
        (lambda it: it.emit_control(control(), output="x"), "operator op has no output x"),
        (twice, "with the columns b int64 to output out, and before with a int64"),
    ],
)
def test_a_wrong_emission_is_refused(wrong: Callable[[Operator], None], message: str) -> None:
    Bad.wrong = wrong
    with pytest.raises(OperatorError, match=message):
        run(Bad)


def test_after_the_window_an_operator_emits_nothing_also_if_it_failed() -> None:
    kept: list[Operator] = []

    class Kept(Operator):
        def begin_window(self) -> None:
            kept.append(self)
            if self.window.number == 2:
                raise ValueError

    run(Kept)
    with pytest.raises(ValueError):  # noqa: PT011 -- a bare one, from the operator above
        run(Kept, at=window(2))
    for operator in kept:
        with pytest.raises(OperatorError, match="outside of a window"):
            operator.emit(batch(a=[1]))


def test_an_operator_that_says_neither_true_nor_false_is_told() -> None:
    class Forgetful(Operator):
        def process_control(self, port: str, control: ControlTuple) -> bool:
            return None  # type: ignore[return-value]

    with pytest.raises(OperatorError, match="returned None for T: return False to let it go on"):
        run(Forgetful, sent(control()))


def test_inputs_and_outputs_need_names_of_their_own() -> None:
    class Same(Operator):
        inputs = (Input(name="a"), Input(name="a"))

    class Nameless(Operator):
        outputs = ("",)

    for kind in (Same, Nameless):
        with pytest.raises(OperatorError, match="each needs a name of its own"):
            AlignedRunner(kind, stage())


# Arriving.


def test_rows_for_another_port_or_number_of_buckets_are_refused() -> None:
    with pytest.raises(OperatorError, match="operator op has no input other; it has in"):
        run(Operator, rows(1, port="other"))
    with pytest.raises(OperatorError, match="packed for 2 buckets, and operator op has 1"):
        run(Operator, rows(1, buckets=2))
    with pytest.raises(OperatorError, match="bucket 1 of 1 for operator op"):
        run(Operator, at=window(bucket=1))
    mixed = [*rows(1), *(one for _, one in by_bucket(pack(batch(k=[1]), _keyed(1), 1)))]
    with pytest.raises(OperatorError, match=r"packed as mix64-1;1;sequence and as mix64-1;1;k"):
        run(Operator, mixed)


def _keyed(buckets: int) -> Layout:
    return Layout(port="in", buckets=buckets, key=(("k", pa.int64()),))


def test_two_tuples_with_one_identity_that_differ_are_refused() -> None:
    both = [*sent(control(text="1")), *sent(control(text="2"))]
    with pytest.raises(ControlError, match="two control tuples have the identity e/1/0 and differ"):
        run(Operator, both)


def test_copies_that_differ_only_in_their_running_number_are_one() -> None:
    both = [*sent(control()), *sent(control(seq=0, epoch=1))]
    outcome = run(Seeing, both)
    assert Seeing.seen == [("in", "e/1/0")]
    assert outcome.control[Delivery.END_WINDOW] == ControlCounts(
        received=1, duplicates=1, delivered=1
    )


class Ports(Seeing):
    inputs = (Input(name="side"), Input(name="in"))


def test_ports_are_processed_in_their_order() -> None:
    run(Ports, [*rows(1, 2), *rows(7, port="side")])
    assert Seeing.seen == [("side", [7]), ("in", [1, 2])]


def test_ends_of_several_ports_are_in_the_order_of_their_identity() -> None:
    given = [*sent(control(1), control(3)), *sent(control(2), control(3), port="side")]
    run(Ports, given)
    assert Seeing.seen == [
        ("in", "e/1/1"),
        ("side", "e/1/2"),
        ("side", "e/1/3"),
        ("in", "e/1/3"),
    ]


def test_merged_by_a_column_ports_are_mixed_and_immediate_tuples_have_no_place() -> None:
    merged = stage(order_by="k")
    run(Ports, [*rows(1, 3), *rows(2, 3, port="side")], of=merged)
    assert Seeing.seen == [("in", [1]), ("side", [2, 3]), ("in", [3])]
    immediate = sent(control(delivery=Delivery.IMMEDIATE))
    with pytest.raises(ControlError, match="IMMEDIATE, and the inputs of operator op are merged"):
        run(Ports, immediate, of=merged)
    assert emitted(run(Operator, immediate, of=merged)) == [control(delivery=Delivery.IMMEDIATE)]


# Addressing.


def given_to(target: Target, make: Callable[[], Operator] = Seeing) -> tuple[list[int], int]:
    """Return the buckets that were handed the tuple, and how many copies went on."""
    runner = AlignedRunner(make, stage(4), layouts={"in": KEYED})
    packed = pack_control([(0, control(target=target))], "in", 4)
    buckets, copies = [], 0
    for bucket, one in by_bucket(packed):
        outcome = runner.run(window(bucket=bucket, buckets=4), [one], {})
        buckets += [it.bucket for it in outcome.applied]
        copies += len(emitted(outcome))
    return buckets, copies


def test_an_addressed_tuple_is_handed_to_whom_it_is_meant_for_and_passed_on_by_others() -> None:
    at = bucket_of_key([7], KEYED)
    assert given_to(Target()) == ([0, 1, 2, 3], 0)
    assert given_to(Target(operator="op")) == ([0, 1, 2, 3], 0)
    assert given_to(Target(operator="other")) == ([], 1)
    assert given_to(Target(operator="op", bucket=2)) == ([2], 0)
    assert given_to(Target(bucket=2)) == ([2], 0)
    assert given_to(Target(bucket=9)) == ([], 1)
    assert given_to(Target(key=(7,))) == ([at], 0)
    assert given_to(Target(operator="op", key=(7,))) == ([at], 0)
    assert given_to(Target(operator="op"), Operator) == ([], 1)


def test_an_address_that_the_named_operator_does_not_have_is_refused() -> None:
    with pytest.raises(ControlError, match="addressed to operator op, bucket 4, and there are 4"):
        given_to(Target(operator="op", bucket=4))
    with pytest.raises(ControlError, match="does not fit column k"):
        given_to(Target(operator="op", key=("x",)))
    with pytest.raises(ControlError, match=r"operator op, key \[7\], and no input has a key"):
        run(Seeing, sent(control(target=Target(operator="op", key=(7,)))))
    assert emitted(run(Seeing, sent(control(target=Target(key=(7,))))))


def test_a_tuple_for_a_time_waits_only_where_it_is_meant_for() -> None:
    at_time = control(delivery=Delivery.AT_TIME, at=5, target=Target(operator="other"))
    outcome = run(Seeing, sent(at_time))
    assert emitted(outcome) == [at_time]
    assert (outcome.wake_at, outcome.changes) == (None, {})


# State.


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


def apply(blobs: dict[str, bytes], outcome: Outcome) -> dict[str, bytes]:
    after = {**blobs, **{name: blob for name, blob in outcome.changes.items() if blob}}
    for name, blob in outcome.changes.items():
        if blob is None:
            del after[name]
    return after


def test_state_goes_from_window_to_window_and_only_what_changed_is_written() -> None:
    first = run(Counting, rows(1, 2))
    assert sorted(first.changes) == ["count", "~meta"]
    blobs = apply({}, first)
    second = run(Counting, rows(3), blobs=blobs, at=window(2))
    assert second.changes == {"count": b"3"}


def test_an_operator_without_state_writes_nothing() -> None:
    assert run(Operator, rows(1)).changes == {}


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
        (b'"v":1', b'"v":2', "has form 2, of a newer release"),
        (b'"operator":"op"', b'"operator":"x"', "is that of operator x"),
        (b'"buckets":1', b'"buckets":2', "has 2 buckets and the query 1"),
        (b"mix64-1", b"mix32-1", "has its keys hashed by mix32-1"),
        (b"{", b"", "is damaged"),
    ):
        other = {**blobs, "~meta": blobs["~meta"].replace(old, new, 1)}
        assert other != blobs
        with pytest.raises(StateError, match=message):
            run(Counting, blobs=other)


def test_rows_with_another_key_than_that_of_the_state_are_refused() -> None:
    blobs = apply({}, run(Counting, rows(1, 2)))
    keyed = [one for _, one in by_bucket(pack(batch(k=[1]), _keyed(1), 0))]
    with pytest.raises(
        StateError, match="input in spread as mix64-1;1;sequence and the query as mix64-1;1;k:int64"
    ):
        run(Counting, keyed, blobs=blobs)


def test_names_of_blobs_begin_with_a_letter() -> None:
    class Own(Operator):
        def snapshot(self) -> Changes:
            return {"~meta": b""}

    with pytest.raises(StateError, match="names begin with a letter"):
        run(Own)


# Time.


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


def test_of_those_that_wait_there_may_be_as_many_as_in_a_window() -> None:
    small, blobs = stage(limits=Limits(tuples=2)), dict[str, bytes]()
    for number in (1, 2):
        one = sent(control(number, delivery=Delivery.AT_TIME, at=number))
        blobs = apply(blobs, run(Seeing, one, of=small, blobs=blobs, at=window(number)))
    one = sent(control(3, delivery=Delivery.AT_TIME, at=3))
    with pytest.raises(ControlLimitError, match=r"3 control tuples wait .* operator op, the limit"):
        run(Seeing, one, of=small, blobs=blobs, at=window(3))


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


# Types.


@dataclass
class Open:
    path: str


@dataclass
class Close:
    path: str


class Typed(TypedOperator):
    seen: ClassVar[list[Any]] = []

    @handles(Open)
    def open(self, port: str, payload: Open, control: ControlTuple) -> bool:
        self.seen.append((port, payload, control.id))
        return True


class Further(Typed):
    strict = True

    @handles(Close)
    def close(self, port: str, payload: Close, control: ControlTuple) -> bool:
        self.seen.append(payload)
        return False


def test_each_type_has_its_method_and_other_types_go_on() -> None:
    Typed.seen.clear()
    opened = control(1, type="Open", text='{"path":"f"}')
    closed = control(2, type="Close", text='{"path":"f"}')
    assert emitted(run(Typed, sent(opened, closed))) == [closed]
    assert Typed.seen == [("in", Open(path="f"), "e/1/1")]
    assert emitted(run(Further, sent(opened, closed))) == [closed]
    assert Typed.seen[1:] == [("in", Open(path="f"), "e/1/1"), Close(path="f")]


def test_a_strict_operator_refuses_types_that_it_does_not_know() -> None:
    with pytest.raises(ControlError, match=r"has type T, which is not known .* knows Close, Open"):
        run(Further, sent(control()))


def test_two_methods_for_one_type_are_refused_where_the_class_is_made() -> None:
    with pytest.raises(ControlError, match="has two methods for Open"):

        class Twice(TypedOperator):
            @handles(Open)
            def one(self, port: str, payload: Open, control: ControlTuple) -> bool:
                return True

            @handles(Open)
            def two(self, port: str, payload: Open, control: ControlTuple) -> bool:
                return True


def test_a_typed_operator_without_methods_passes_all_on() -> None:
    class Plain(TypedOperator):
        pass

    assert emitted(run(Plain, sent(control()))) == [control()]


# Counting and reporting.


def test_control_is_counted_by_delivery_and_apart_from_rows() -> None:
    class Some(Operator):
        def process_control(self, port: str, control: ControlTuple) -> bool:
            return control.seq == 1

    given = [
        control(0),
        control(1),
        control(2, delivery=Delivery.IMMEDIATE),
        control(3, delivery=Delivery.AT_TIME, at=9),
    ]
    outcome = run(Some, [*rows(1, 2, 3), *sent(*given), *sent(given[0])])
    assert (outcome.rows_in, outcome.rows_out) == (3, 0)
    assert outcome.control == {
        Delivery.BEGIN: ControlCounts(),
        Delivery.IMMEDIATE: ControlCounts(received=1, delivered=1, emitted=1),
        Delivery.END_WINDOW: ControlCounts(received=2, duplicates=1, delivered=2, emitted=1),
        Delivery.AT_TIME: ControlCounts(received=1, waiting=1),
    }


def test_what_was_applied_is_reported_with_window_bucket_and_whether_it_went_on() -> None:
    outcome = AlignedRunner(Seeing, stage(4)).run(
        window(6, bucket=2, buckets=4), sent(control()), {}
    )
    (applied,) = outcome.applied
    assert (applied.id, applied.type, applied.port) == ("e/1/0", "T", "in")
    assert (applied.bucket, applied.window, applied.forwarded) == (2, 6, False)


def test_limits_may_be_set_for_an_operator() -> None:
    small = stage(limits=Limits(tuples=1))
    assert run(Seeing, sent(control(0)), of=small).applied
    with pytest.raises(ControlLimitError, match="the limit is 1 tuples"):
        run(Seeing, sent(control(0), control(1)), of=small)
    with pytest.raises(ControlError, match="a payload may have 1 to 1048576 bytes, not 1048577"):
        Limits(payload=1_048_577)


def test_what_stands_in_a_control_log_has_its_identity_from_there() -> None:
    one = logged("log-7", 12, type_="T", text='{"x":1}')
    assert (one.id, one.emitter, one.epoch, one.seq) == ("log-7/12", "log-7", 0, 12)
    assert one.delivery is Delivery.BEGIN
    later = logged("log-7", 13, type_="T", text="{}", delivery=Delivery.AT_TIME, at=5)
    assert sorted([later, one], key=order_of) == [one, later]
