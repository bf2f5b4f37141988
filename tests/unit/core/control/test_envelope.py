"""A control tuple comes back equal from JSON and from Arrow; what is newer or wrong is refused."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streambroker_core.control.runtime.control_rows import from_batch, schema, to_batch
from streambroker_core.control.tuples import ControlError, ControlTuple, Delivery, Target
from streambroker_core.control.tuples.envelope import decode, encode
from streambroker_core.errors import FormatTooNewError, ManifestError
from streambroker_core.wire.encoding.canonical import canonical

WORDS = st.text(min_size=1, max_size=8)
NUMBERS = st.integers(0, (1 << 63) - 1)
TARGETS = st.builds(
    Target,
    operator=st.none() | WORDS,
    bucket=st.none() | st.integers(0, 1 << 20),
    key=st.none()
    | st.lists(st.text() | st.integers(-9, 9) | st.booleans(), min_size=1, max_size=3).map(tuple),
)
PAYLOADS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@st.composite
def controls(draw: st.DrawFn) -> ControlTuple:
    delivery = draw(st.sampled_from(list(Delivery)))
    return ControlTuple(
        type=draw(WORDS),
        id=draw(WORDS),
        delivery=delivery,
        at=draw(st.integers(-(1 << 60), 1 << 60)) if delivery is Delivery.AT_TIME else None,
        epoch=draw(NUMBERS),
        emitter=draw(WORDS),
        seq=draw(NUMBERS),
        text=canonical(draw(PAYLOADS)).decode(),
        target=draw(TARGETS),
    )


@given(control=controls())
def test_it_comes_back_from_json(control: ControlTuple) -> None:
    assert decode(json.loads(canonical(encode(control)))) == control


@given(placed=st.lists(st.tuples(NUMBERS, controls()), max_size=4))
def test_they_come_back_from_arrow_in_order(placed: list[tuple[int, ControlTuple]]) -> None:
    assert from_batch(to_batch(placed)) == placed


GOOD: dict[str, Any] = {
    "v": 1,
    "type": "T",
    "id": "e/1/0",
    "delivery": "END_WINDOW",
    "epoch": 1,
    "emitter": "e",
    "seq": 0,
    "payload": {"x": 1},
}


def test_the_json_form_is_as_documented() -> None:
    control = decode(GOOD)
    assert (control.type, control.delivery, control.payload) == (
        "T",
        Delivery.END_WINDOW,
        {"x": 1},
    )
    assert encode(control) == GOOD


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"v": None}, "v is required"),
        ({"v": "1"}, "v has to be an integer"),
        ({"type": ""}, "type is empty"),
        ({"id": 3}, "id has to be a text"),
        ({"delivery": "LATER"}, "delivery is 'LATER'; it has to be BEGIN or IMMEDIATE or"),
        ({"delivery": "AT_TIME"}, "at is required with AT_TIME"),
        ({"at": 3}, "at needs AT_TIME"),
        ({"epoch": -1}, "epoch is -1, which is not from 0"),
        ({"seq": None}, "seq is required"),
        ({"payload": float("nan")}, "payload cannot be written as JSON"),
        ({"payload": "x" * (1 << 20)}, "payload has 1048578 bytes, the limit is 1048576"),
        ({"target": {"who": "x"}}, "target.who is not known here"),
        ({"target": {"key": [[]]}}, "target.key holds"),
        ({"more": 1}, "more is not known here"),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        decode({**GOOD, **change})


def test_a_newer_form_is_refused_by_name_whatever_else_it_has() -> None:
    with pytest.raises(FormatTooNewError, match=r"v is 2: a control tuple of a newer release"):
        decode({"v": 2, "unheard": []})
    newer = to_batch([(0, decode(GOOD))]).replace_schema_metadata({"streambroker.control": "2"})
    with pytest.raises(FormatTooNewError, match="a control tuple of a newer release"):
        from_batch(newer)


def test_rows_that_were_changed_on_the_way_are_no_control_tuples() -> None:
    good = to_batch([(0, decode(GOOD))])
    for changed in (
        good.drop_columns(["seq"]),
        good.replace_schema_metadata(None),
        pa.RecordBatch.from_pydict({"x": [1]}),
    ):
        with pytest.raises(ControlError, match="changed a control column"):
            from_batch(changed)
    bad = good.to_pylist()
    for field, value in (("delivery", "LATER"), ("target", "{"), ("target", '{"who":1}')):
        batch = pa.RecordBatch.from_pylist([{**bad[0], field: value}], schema=schema())
        with pytest.raises(ControlError, match="control tuple e/1/0 cannot be read"):
            from_batch(batch)


def test_a_time_belongs_to_at_time_alone() -> None:
    control = decode(GOOD)
    for delivery, at in ((Delivery.AT_TIME, None), (Delivery.IMMEDIATE, 3)):
        with pytest.raises(ControlError, match="is required with AT_TIME and allowed only there"):
            ControlTuple(
                type="T", id="i", delivery=delivery, at=at, epoch=0, emitter="e", seq=control.seq
            )
