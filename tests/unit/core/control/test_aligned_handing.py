"""The runner: whom it hands a control tuple, by address and by type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from streambroker_core.control.operators.operator import Operator
from streambroker_core.control.operators.typed_operator import TypedOperator, handles
from streambroker_core.control.runtime.buckets import Layout, bucket_for_key
from streambroker_core.control.runtime.emitter import Stage
from streambroker_core.control.runtime.packing import by_bucket, pack_control
from streambroker_core.control.runtime.runner import AlignedRunner, ControlCounts, WindowResult
from streambroker_core.control.tuples import (
    ControlError,
    ControlTuple,
    Delivery,
    Target,
    UndeliverableError,
)
from support.aligned.window import (
    Seeing,
    control,
    emitted,
    run,
    sent,
    stage,
    window,
)

KEYED = Layout(port="in", buckets=4, key=(("k", pa.int64()),))


@pytest.fixture(autouse=True)
def _forget() -> None:
    Seeing.seen.clear()


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
    at = bucket_for_key([7], KEYED)
    assert given_to(Target()) == ([0, 1, 2, 3], 0)
    assert given_to(Target(operator="op")) == ([0, 1, 2, 3], 0)
    assert given_to(Target(operator="other")) == ([], 1)
    assert given_to(Target(operator="op", bucket=2)) == ([2], 0)
    assert given_to(Target(bucket=2)) == ([2], 0)
    assert given_to(Target(bucket=9)) == ([], 1)
    assert given_to(Target(key=(7,))) == ([at], 0)
    assert given_to(Target(operator="op", key=(7,))) == ([at], 0)
    assert given_to(Target(operator="op"), Operator) == ([], 1)
    assert given_to(Target(key=("x",))) == ([], 1)
    assert given_to(Target(key=(7, 8))) == ([], 1)


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


@dataclass
class Bad:
    file: object


class Breaking(TypedOperator):
    @handles(Open)
    def open(self, port: str, payload: Open, control: ControlTuple) -> bool:
        self.emit_control(Bad(file=object()))
        return True


OPEN: dict[str, Any] = {"type": "Open", "text": '{"path":"f"}'}
LATER: dict[str, Any] = {"delivery": Delivery.AT_TIME, "at": 5}


@pytest.mark.parametrize(
    ("one", "why"),
    [
        (control(type="Close", text='{"path":"f"}'), "which is not known to this receiver"),
        (control(type="Open", text='{"file":"f"}'), "Open has the field file"),
        (control(type="Open", text='{"path":3}', delivery=Delivery.BEGIN), "Open.path"),
        (control(**OPEN, target=Target(operator="op", bucket=9)), "bucket 9, and there are 4"),
        (control(**OPEN, target=Target(operator="op", bucket=9, key=(7,))), "bucket 9, and there"),
        (
            control(**OPEN, **LATER, target=Target(operator="op", key=("x",))),
            "does not fit column k",
        ),
    ],
)  # fmt: skip
def test_a_tuple_that_nobody_can_be_handed_fails_the_window_or_passes_the_operator(
    one: ControlTuple, why: str
) -> None:
    class Strict(Typed):
        strict = True

    def ran(of: Stage) -> WindowResult:
        runner = AlignedRunner(Strict, of, layouts={"in": KEYED})
        packed = [row for at, row in by_bucket(pack_control([(0, one)], "in", 4)) if at == 1]
        return runner.run(window(bucket=1, buckets=4), packed, {})

    Typed.seen.clear()
    with pytest.raises(UndeliverableError, match=f"{why}.*on_invalid='pass'"):
        ran(stage(4))
    outcome = ran(stage(4, pass_invalid=True))
    assert (emitted(outcome), outcome.applied, Typed.seen) == ([one], (), [])
    assert outcome.control[one.delivery] == ControlCounts(received=1, refused=1, emitted=1)
    (reported,) = outcome.refused
    assert why in reported
    assert "on_invalid" not in reported
    assert [name for name in outcome.changes if name != "~meta"] == []


def test_what_an_operator_does_wrongly_itself_fails_the_window_all_the_same() -> None:
    with pytest.raises(ControlError, match=r"Bad\.file") as error:
        run(Breaking, sent(control(**OPEN)), of=stage(pass_invalid=True))
    assert not isinstance(error.value, UndeliverableError)


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
