"""The runner: what an operator may emit, what may arrive, what is counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from streambroker_core.control.operators.operator import Input, Operator, OperatorError
from streambroker_core.control.runtime.buckets import Layout
from streambroker_core.control.runtime.emitter import EmittedRows
from streambroker_core.control.runtime.packing import by_bucket, pack
from streambroker_core.control.runtime.runner import AlignedRunner, ControlCounts
from streambroker_core.control.tuples import (
    ControlError,
    ControlLimitError,
    ControlTuple,
    Delivery,
    Limits,
    Target,
    make_logged_tuple,
    sort_key,
)
from support.aligned.graphs import Note
from support.aligned.window import (
    Seeing,
    batch,
    control,
    emitted,
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


def test_rows_and_immediate_tuples_get_numbers_of_their_bucket_and_output() -> None:
    class Two(Operator):
        outputs = ("a", "b")

        def process(self, port: str, batch: pa.RecordBatch) -> None:
            self.emit(batch)
            self.emit(batch.slice(0, 1), "b")
            self.emit_control(control(7, delivery=Delivery.IMMEDIATE))
            self.emit(batch, "a")

    outcome = AlignedRunner(Two, stage(4)).run(
        window(bucket=3, buckets=4), rows(1, 2, 3, buckets=4)[:1], {}
    )
    n = outcome.rows_in
    base = 3 << 40
    reported = [
        (one.output, one.seq - base if isinstance(one, EmittedRows) else one.position - base)
        for one in outcome.emitted
    ]
    assert reported == [("a", 0), ("b", 0), ("a", n), ("b", 1), ("a", n + 1)]
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


@pytest.mark.parametrize("given", ["BEGIN", "AT_TIME", Delivery.END_WINDOW])
def test_a_delivery_may_be_given_by_its_name(given: Delivery | str) -> None:
    at = 5 if given == "AT_TIME" else None

    class Emitting(Operator):
        def begin_window(self) -> None:
            self.emit_control(Note(name="it"), delivery=given, at=at)

    (one,) = emitted(run(Emitting))
    assert one.delivery is (Delivery[given] if isinstance(given, str) else given)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"delivery": "LATER"}, "is 'LATER': it has to be BEGIN, IMMEDIATE, END_WINDOW, AT_TIME"),
        ({"delivery": "begin"}, "is 'begin'"),
        ({"delivery": 1}, "is 1"),
        ({"delivery": Note}, "is <class"),
        ({"delivery": "AT_TIME"}, "is required with AT_TIME and allowed only there"),
        ({"delivery": "AT_TIME", "at": 1.5}, "has event time 1.5: it has to be a whole number"),
        ({"delivery": "AT_TIME", "at": 1 << 63}, "has to be a whole number"),
        ({"target": "op"}, "the target of a control tuple is 'op'"),
        ({"target": None}, "the target of a control tuple is None"),
    ],
)
def test_what_no_tuple_can_have_is_refused_by_name_where_it_is_emitted(
    more: dict[str, Any], message: str
) -> None:
    where: list[str] = []

    class Emitting(Operator):
        def begin_window(self) -> None:
            with pytest.raises(ControlError, match=message):
                self.emit_control(Note(name="it"), **more)
            where.append("here")

    run(Emitting)
    assert where == ["here"]


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
        (lambda it: it.emit(batch(a=[1]), ["out"]), "has no output \\[.out.\\]; it has out"),
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


def test_an_operator_that_says_neither_true_nor_false_is_reported() -> None:
    class Forgetful(Operator):
        def process_control(self, port: str, control: ControlTuple) -> bool:
            return None  # type: ignore[return-value]

    with pytest.raises(OperatorError, match="returned None for T: return False to forward it"):
        run(Forgetful, sent(control()))


def test_inputs_and_outputs_need_names_of_their_own() -> None:
    class Same(Operator):
        inputs = (Input(name="a"), Input(name="a"))

    class Nameless(Operator):
        outputs = ("",)

    for kind in (Same, Nameless):
        with pytest.raises(OperatorError, match="each needs a name of its own"):
            AlignedRunner(kind, stage())


def test_rows_for_another_port_or_number_of_buckets_are_refused() -> None:
    with pytest.raises(OperatorError, match="operator op has no input other; it has in"):
        run(Operator, rows(1, port="other"))
    with pytest.raises(OperatorError, match="packed for 2 buckets, and operator op has 1"):
        run(Operator, rows(1, buckets=2))
    with pytest.raises(OperatorError, match="bucket 1 of 1 for operator op"):
        run(Operator, at=window(bucket=1))
    mixed = [*rows(1), *(one for _, one in by_bucket(pack(batch(k=[1]), KEYED, 1)))]
    with pytest.raises(OperatorError, match=r"packed as mix64-1;1;sequence and as mix64-1;1;k"):
        run(Operator, mixed)


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


OTHER = control(9)


class TwoOutputs(Operator):
    outputs = ("a", "b")

    def process_control(self, port: str, control: ControlTuple) -> bool:
        return False


class Twice(TwoOutputs):
    def process_control(self, port: str, control: ControlTuple) -> bool:
        self.emit_control(OTHER, output="b")
        return False


class Again(TwoOutputs):
    def process_control(self, port: str, control: ControlTuple) -> bool:
        self.emit_control(control, output="b")
        return True


@dataclass(frozen=True)
class Made:
    number: int


class Making(TwoOutputs):
    def end_window(self) -> None:
        for number in range(2):
            self.emit_control(Made(number=number))


def test_a_runner_that_does_not_report_delivers_and_counts_the_same() -> None:
    given = sent(control(0), control(1))
    reported = AlignedRunner(Seeing, stage()).run(window(), given, {})
    quiet = AlignedRunner(Seeing, stage(), report=False).run(window(), given, {})
    assert (len(reported.applied), quiet.applied) == (2, ())
    assert (quiet.control, quiet.emitted) == (reported.control, reported.emitted)


def test_windows_with_as_many_other_tuples_are_distinguished() -> None:
    for first in (0, 2, 0):
        run(Seeing, [*sent(control(first)), *sent(control(first + 1))])
    assert [seen for _, seen in Seeing.seen] == [f"e/1/{n}" for n in (0, 1, 2, 3, 0, 1)]


def test_limits_may_be_set_for_an_operator() -> None:
    small = stage(limits=Limits(tuples=1))
    one, other = (replace(control(seq), emitter=f"{small.query}.before.0") for seq in (0, 1))
    assert run(Seeing, sent(one), of=small).applied
    assert len(emitted(run(TwoOutputs, sent(one), of=small))) == 2
    with pytest.raises(ControlLimitError, match="the limit is 1 tuples"):
        run(Seeing, sent(one, other), of=small)
    with pytest.raises(ControlLimitError, match="emits more control tuples in window"):
        run(Making, sent(one), of=small)


def test_what_a_query_was_sent_and_passes_on_is_not_limited() -> None:
    small = stage(limits=Limits(tuples=2, bytes=30))
    given = sent(*(control(seq) for seq in range(50)))
    assert len(run(Seeing, given, of=small).applied) == 50
    assert len(emitted(run(TwoOutputs, given, of=small))) == 100
    assert len(emitted(run(Again, given, of=small))) == 50
    own = replace(control(50), emitter=f"{small.query}.before.0")
    assert len(run(Making, [*given, *sent(own)], of=small).applied) == 51
    with pytest.raises(ControlError, match="a payload may have 1 to 1048576 bytes, not 1048577"):
        Limits(payload=1_048_577)


def test_what_stands_in_a_control_log_has_its_identity_from_there() -> None:
    one = make_logged_tuple("log-7", 12, type_="T", text='{"x":1}')
    assert (one.id, one.emitter, one.epoch, one.seq) == ("log-7/12", "log-7", 0, 12)
    assert one.delivery is Delivery.BEGIN
    later = make_logged_tuple("log-7", 13, type_="T", text="{}", delivery=Delivery.AT_TIME, at=5)
    assert sorted([later, one], key=sort_key) == [one, later]


def test_time_that_passes_behind_the_rows_holds_to_the_end_of_the_window() -> None:
    reported: list[tuple[str, int | None]] = []

    class Telling(Operator):
        def process(self, port: str, batch: pa.RecordBatch) -> None:
            reported.append(("process", self.window.watermark))

        def end_window(self) -> None:
            reported.append(("end", self.window.watermark))

        def wake_at(self) -> int | None:
            reported.append(("wake", self.window.watermark))
            return None

    given = replace(window(), watermark=3, later=7)
    outcome = AlignedRunner(Telling, stage(given.buckets)).run(given, rows(1), {})
    assert reported == [("process", 3), ("end", 7), ("wake", 7)]
    assert outcome.watermark == 7
