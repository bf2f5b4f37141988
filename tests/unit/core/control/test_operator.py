"""The base of operators does nothing, and lets nothing out of a window."""

from __future__ import annotations

import pytest

from streambroker_core.control.operators.operator import Operator, OperatorError, Window
from streambroker_core.control.tuples import ControlTuple, Delivery, sort_key

WINDOW = Window(number=3, time=0, watermark=None, bucket=0, buckets=4)


def control(emitter: str = "q.op.0", epoch: int = 1, seq: int = 0) -> ControlTuple:
    return ControlTuple(
        type="T",
        id=f"{emitter}/{epoch}/{seq}",
        delivery=Delivery.END_WINDOW,
        epoch=epoch,
        emitter=emitter,
        seq=seq,
        text='{"x":[1]}',
    )


def test_an_operator_that_overrides_nothing_passes_control_on_and_keeps_nothing() -> None:
    operator = Operator()
    assert operator.process_control("in", control()) is False
    assert operator.snapshot() == {}
    assert operator.wake_at() is None
    assert operator.held_at() is None


def test_an_emission_outside_of_a_window_is_refused() -> None:
    operator = Operator()
    for emit in (lambda: operator.emit(None), lambda: operator.emit_control(control())):
        with pytest.raises(OperatorError, match="Operator emits outside of a window"):
            emit()
    operator.bind(WINDOW, None)
    with pytest.raises(OperatorError):
        operator.emit(None)


def test_tuples_are_ordered_by_epoch_then_emitter_then_sequence_and_buckets_as_numbers() -> None:
    ordered = [
        control("q.op.10", 1, 0),
        control("log", 2, 1),
        control("q.op.2", 2, 0),
        control("q.op.2", 2, 10),
        control("q.op.10", 2, 0),
    ]
    assert sorted(ordered[2:] + ordered[:2], key=sort_key) == ordered


def test_a_payload_changed_by_one_receiver_is_whole_for_the_next() -> None:
    one = control()
    one.payload["x"].append(2)
    assert one.payload == {"x": [1]}
