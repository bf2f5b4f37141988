"""The control tuples of an epoch: each once, in order, within limits, read as they were written."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streambroker_core.control.tuples import (
    MAX_PAYLOAD,
    MAX_TUPLES,
    ControlError,
    ControlLimitError,
    ControlTuple,
    Delivery,
    IdentityError,
    Target,
    make_logged_tuple,
)
from streambroker_core.control.tuples import epoch_control as placing
from streambroker_core.control.tuples.epoch_control import (
    IndexedControl,
    decode,
    deduplicate_indexed,
    encode,
    parse_indexed,
)
from streambroker_core.control.tuples.request import ControlRequest, parse_control_request
from streambroker_core.errors import FormatTooNewError, ManifestError

EMITTED = st.builds(
    make_logged_tuple,
    st.sampled_from(["a", "b"]),
    st.integers(0, 5),
    type_=st.sampled_from(["set", "end"]),
    text=st.sampled_from(["null", '{"x":1}', '"\\u00e9"']),
    delivery=st.sampled_from([Delivery.BEGIN, Delivery.IMMEDIATE, Delivery.END_WINDOW]),
    target=st.builds(Target, operator=st.sampled_from([None, "op"])),
)


def one(seq: int = 0, text: str = "null", log: str = "log") -> ControlTuple:
    return make_logged_tuple(log, seq, type_="set", text=text)


def test_of_copies_the_first_place_counts_and_places_come_in_order() -> None:
    placed = deduplicate_indexed(
        [(4, one(1)), (2, one(1)), (3, one(0)), (1, one(0, log="a"))], 5, "it", "q"
    )
    assert [(at, c.id) for at, c in placed] == [(1, "a/0"), (2, "log/1"), (3, "log/0")]


def test_at_one_place_tuples_stay_in_the_order_of_their_emission() -> None:
    given = [(1, one(0, log="q.b.10")), (1, one(0, log="q.a.2")), (0, one(1, log="q.c.2"))]
    placed = deduplicate_indexed(given, 1, "it", "q")
    assert [c.emitter for _, c in placed] == ["q.c.2", "q.b.10", "q.a.2"]


def test_a_place_is_within_its_epoch_and_its_end_is() -> None:
    assert deduplicate_indexed([(5, one())], 5, "it", "q") == [(5, one())]
    with pytest.raises(ControlError, match="after 6 rows of batch 3, which has 5"):
        deduplicate_indexed([(6, one())], 5, "batch 3", "q")


def test_two_tuples_with_one_identity_are_refused() -> None:
    with pytest.raises(IdentityError, match="log/0"):
        deduplicate_indexed([(0, one()), (0, one(text="1"))], 0, "it", "q")


def test_an_epoch_has_so_many_tuples_and_so_many_bytes() -> None:
    full = [(0, one(n, log="q.log")) for n in range(MAX_TUPLES)]
    assert len(deduplicate_indexed(full, 0, "it", "q")) == MAX_TUPLES
    with pytest.raises(ControlLimitError, match=r"it has 10001 new .* 10000 are from q\.log"):
        deduplicate_indexed([*full, (0, one(0, log="q.a"))], 0, "it", "q")
    passed_on = [(0, one(n)) for n in range(MAX_TUPLES)]
    assert len(deduplicate_indexed([*full, *passed_on], 0, "it", "q")) == 2 * MAX_TUPLES
    large = '"' + "x" * (MAX_PAYLOAD - 2) + '"'
    fits = placing.MAX_EPOCH_BYTES // MAX_PAYLOAD
    assert deduplicate_indexed([(0, one(n, large, "q.log")) for n in range(fits)], 0, "it", "q")
    with pytest.raises(ControlLimitError, match="the limit is 10000 tuples"):
        deduplicate_indexed([(0, one(n, large, "q.log")) for n in range(fits + 1)], 0, "it", "q")
    assert deduplicate_indexed([(0, one(n, large)) for n in range(fits + 1)], 0, "it", "q")
    with pytest.raises(ControlLimitError, match="log/0 of it has a payload of 1048577 bytes"):
        deduplicate_indexed([(0, one(0, large + " "))], 0, "it", "q")


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 9), EMITTED), max_size=5))
def test_what_is_written_is_read(placed: list[IndexedControl]) -> None:
    assert decode(encode(placed)) == placed
    assert parse_indexed(json.loads(encode(placed))["tuples"]) == placed


def test_a_newer_form_is_refused_by_name() -> None:
    with pytest.raises(FormatTooNewError, match="control tuples of an epoch"):
        decode(b'{"v": 2, "tuples": []}')


@pytest.mark.parametrize(
    "data", [b"[]", b"x", b'{"v":1}', b'{"v":1,"tuples":3}', b'{"v":1,"tuples":[[true,{}]]}',
             b'{"v":1,"tuples":[[0]]}', b'{"v":1,"tuples":[[0,7]]}']
)  # fmt: skip
def test_what_is_damaged_is_refused(data: bytes) -> None:
    with pytest.raises(ControlError):
        decode(data)


@pytest.mark.parametrize(
    ("given_", "why"),
    [
        ({}, "type is required"),
        ({"type": "set", "delivery": "SOON"}, "delivery"),
        ({"type": "set", "at": 3}, "at needs AT_TIME"),
        ({"type": "set", "delivery": "AT_TIME"}, "at is required with AT_TIME"),
        ({"type": "set", "id": "mine"}, "id"),
        ({"type": "set", "target": {"who": "x"}}, "who"),
        ({"type": "set", "payload": float("nan")}, "payload"),
    ],
)
def test_what_cannot_be_emitted_is_refused_with_the_field(given_: dict[str, Any], why: str) -> None:
    with pytest.raises(ManifestError) as caught:
        parse_control_request(given_)
    assert why in str(caught.value)


def test_a_payload_that_is_too_large_is_refused() -> None:
    with pytest.raises(ControlLimitError, match="the payload of a control tuple set"):
        parse_control_request({"type": "set", "payload": "x" * MAX_PAYLOAD})


def test_an_emission_gets_its_identity_from_the_log_that_takes_it() -> None:
    asked = {"type": "set", "payload": {"x": 1}, "delivery": "AT_TIME", "at": -5,
             "target": {"operator": "op", "key": ["k", 1]}}  # fmt: skip
    emission = parse_control_request(asked)
    assert emission.encode() == asked
    named = emission.with_identity("log", 7)
    assert (named.id, named.emitter, named.seq, named.epoch) == ("log/7", "log", 7, 0)
    assert (named.payload, named.at, named.target.key) == ({"x": 1}, -5, ("k", 1))


def test_a_request_without_a_delivery_is_for_the_end_of_the_window() -> None:
    assert parse_control_request({"type": "set"}) == ControlRequest(
        type="set", text="null", delivery=Delivery.END_WINDOW
    )
