"""Payloads are dataclasses that come back equal, and what cannot is refused by type and field."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any, ClassVar
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streambroker_core.control.tuples import ControlError, ControlTuple, Delivery
from streambroker_core.control.tuples.payloads import (
    Codec,
    Payloads,
    default_delivery,
    encode,
    list_mergeable,
    type_name,
)


@dataclass(frozen=True)
class Part:
    name: str
    size: int = 0


@dataclass(frozen=True)
class Whole:
    text: str
    number: int
    share: float
    flag: bool
    data: bytes
    when: datetime
    parts: list[Part]
    pair: tuple[int, str]
    many: tuple[int, ...]
    table: dict[str, float]
    part: Part | None = None
    anything: Any = None
    extra: Mapping[str, Sequence[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Mark:
    control_type: ClassVar[str] = "watermark"
    mergeable: ClassVar[bool] = True
    at: int


def sent(payload: object) -> ControlTuple:
    kind, text = encode(payload)
    return received(kind, text)


def received(kind: str, text: str) -> ControlTuple:
    return ControlTuple(
        type=kind,
        id="e/1/0",
        delivery=Delivery.IMMEDIATE,
        epoch=1,
        emitter="e",
        seq=0,
        text=text,
    )


PARTS = st.builds(Part, name=st.text(), size=st.integers(-(1 << 63), (1 << 63) - 1))
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
WHOLES = st.builds(
    Whole,
    text=st.text(),
    number=st.integers(-(1 << 63), (1 << 63) - 1),
    share=FLOATS,
    flag=st.booleans(),
    data=st.binary(),
    when=st.datetimes(timezones=st.just(UTC)),
    parts=st.lists(PARTS, max_size=3),
    pair=st.tuples(st.integers(0, 9), st.text()),
    many=st.lists(st.integers(0, 9), max_size=3).map(tuple),
    table=st.dictionaries(st.text(), FLOATS, max_size=3),
    part=st.none() | PARTS,
    anything=st.none() | st.booleans() | st.lists(st.text(), max_size=2),
    extra=st.dictionaries(st.text(), st.lists(st.integers(0, 9), max_size=2), max_size=2),
)


@given(whole=WHOLES)
def test_a_payload_comes_back_equal(whole: Whole) -> None:
    assert Payloads([Whole]).decode(sent(whole)) == whole


def test_equal_payloads_have_equal_text() -> None:
    assert encode(Part(name="ü", size=1)) == ("Part", '{"name":"\\u00fc","size":1}')


def test_the_type_has_the_name_that_the_class_gives_it() -> None:
    assert type_name(Mark) == "watermark"
    assert Payloads([Mark]).decode(sent(Mark(at=3))) == Mark(at=3)
    assert list_mergeable([Mark, Part]) == {"watermark"}


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ({"a": 1}, "has to be a dataclass, not builtins.dict"),
        (Part, "has to be a dataclass, not builtins.type"),
        (Part(name=object()), "Part.name holds a builtins.object, which cannot be written"),  # type: ignore[arg-type]
        (Part(name="a", size=1 << 63), "Part.size is 9223372036854775808, which is not an int64"),
        (Part(name="\ud800"), "Part.name holds half of a surrogate pair"),
        (Part(name=datetime(2020, 1, 1)), "Part.name is a time without a zone"),  # type: ignore[arg-type]  # noqa: DTZ001
        (Part(name=float("nan")), "Part.name is nan, which JSON cannot hold"),  # type: ignore[arg-type]
        (Part(name=[1, {2: 3}]), r"Part.name\[1\] has the key 2, which is not a text"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_written_is_refused_by_type_and_field(payload: object, message: str) -> None:
    with pytest.raises(ControlError, match=message):
        encode(payload)


def test_a_payload_that_is_part_of_itself_is_refused() -> None:
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(ControlError, match="nested deeper than 32"):
        encode(Part(name=loop))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("Other", "{}", "has type Other, which is not known to this receiver; it knows Part"),
        ("Part", "[]", "Part has to be an object, not a list"),
        ("Part", "{}", "Part.name is missing"),
        ("Part", '{"name":1}', "Part.name has to be a text, not an integer"),
        ("Part", '{"name":"a","size":true}', "Part.size has to be an integer, not a boolean"),
        ("Part", '{"name":"a","size":1.5}', "Part.size has to be an integer, not a number"),
        ("Part", '{"name":"a","new":1}', "Part has the field new, which its type here does not"),
        ("Part", '{"name":null}', "Part.name has to be a text, not null"),
    ],
)
def test_what_does_not_fit_is_refused_where_it_is_received(
    kind: str, text: str, message: str
) -> None:
    with pytest.raises(ControlError, match=message):
        Payloads([Part]).decode(received(kind, text))


def test_nested_places_are_named() -> None:
    good = sent(
        Whole(
            text="",
            number=0,
            share=0.0,
            flag=False,
            data=b"",
            when=datetime(2020, 1, 1, tzinfo=UTC),
            parts=[],
            pair=(1, ""),
            many=(),
            table={},
        )
    )
    for old, new, message in (
        ('"parts":[]', '"parts":[{"name":"a"},3]', r"Whole.parts\[1\] has to be an object"),
        ('"share":0.0', '"share":true', "Whole.share has to be a number, not a boolean"),
        ('"pair":[1,""]', '"pair":[1]', "Whole.pair has 1 entries, not 2"),
        ('"data":""', '"data":"!"', "Whole.data has to be bytes in base64"),
        ('"when":"2020', '"when":"x2020', "Whole.when has to be a time as ISO 8601"),
        ('"table":{}', '"table":{"k":"v"}', "Whole.table.k has to be a number, not a text"),
        ('"many":[]', '"many":{}', "Whole.many has to be a list, not an object"),
    ):
        assert old in good.text
        with pytest.raises(ControlError, match=message):
            Payloads([Whole]).decode(received("Whole", good.text.replace(old, new)))


def test_two_types_with_one_name_and_types_that_are_no_dataclasses_are_refused() -> None:
    @dataclass
    class Other:
        control_type: ClassVar[str] = "Part"

    with pytest.raises(ControlError, match="two payload types have the name Part"):
        Payloads([Part, Other])
    with pytest.raises(ControlError, match="payload type int is not a dataclass"):
        Payloads([int])


def test_a_type_that_refuses_its_values_is_heard() -> None:
    with pytest.raises(ControlError, match="Checked is rejected by its type: x is negative"):
        Payloads([Checked]).decode(received("Checked", '{"x":-1}'))


@dataclass
class Checked:
    x: int

    def __post_init__(self) -> None:
        if self.x < 0:
            raise ValueError("x is negative")


@dataclass(frozen=True)
class Named(Mark):
    control_type: ClassVar[str] = "named"
    name: str | None = None


@dataclass
class Open:
    at: int


@dataclass(frozen=True)
class Listed:
    ats: list[int]


def test_only_payloads_that_cannot_change_are_given_twice() -> None:
    known = Payloads([Mark, Named, Open, Listed])
    for payload in (Mark(1), Named(1), Open(1), Listed([1])):
        control = sent(payload)
        first, again = known.decode(control), known.decode(control)
        assert first == again == payload
        assert (first is again) == isinstance(payload, Mark)


def test_equal_texts_of_two_types_are_two_payloads() -> None:
    known = Payloads([Mark, Named])
    found = [known.decode(received(kind, '{"at":1}')) for kind in ("watermark", "named")]
    assert [type(one) for one in found] == [Mark, Named]


class Side(Enum):
    BUY = "buy"
    SELL = "sell"


class Rank(IntEnum):
    FIRST = 1


class Odd(Enum):
    PAIR = (1, 2)


@dataclass(frozen=True)
class Order:
    side: Side
    rank: Rank
    price: Decimal
    day: date
    lasts: timedelta
    number: UUID
    tags: set[str]
    fixed: frozenset[int]
    before: Side | None = None


ORDERS = st.builds(
    Order,
    side=st.sampled_from(Side),
    rank=st.sampled_from(Rank),
    price=st.decimals(allow_nan=False, allow_infinity=False),
    day=st.dates(),
    lasts=st.timedeltas(timedelta(days=-9999), timedelta(days=9999)),
    number=st.uuids(),
    tags=st.sets(st.text(st.characters(exclude_categories=["Cs"]))),
    fixed=st.frozensets(st.integers(-(1 << 63), (1 << 63) - 1)),
    before=st.none() | st.sampled_from(Side),
)


@given(ORDERS)
def test_enums_decimals_dates_durations_uuids_and_sets_come_back_equal(order: Order) -> None:
    found = Payloads([Order]).decode(sent(order))
    assert found == order
    assert [type(one) for one in vars(found).values()] == [
        type(one) for one in vars(order).values()
    ]


def test_the_text_of_an_order_is_what_other_jobs_have_to_read() -> None:
    order = Order(
        side=Side.BUY,
        rank=Rank.FIRST,
        price=Decimal("1.10"),
        day=date(2013, 1, 2),
        lasts=timedelta(seconds=90),
        number=UUID(int=1),
        tags={"b", "a"},
        fixed=frozenset({10, 9}),
    )
    assert encode(order)[1] == (
        '{"before":null,"day":"2013-01-02","fixed":[10,9],"lasts":"PT90S",'
        '"number":"00000000-0000-0000-0000-000000000001","price":"1.10","rank":1,"side":"buy",'
        '"tags":["a","b"]}'
    )


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("side", "hold", "Order.side has to be a Side"),
        ("price", "much", "Order.price has to be a Decimal"),
        ("day", 7, "Order.day has to be a date"),
        ("lasts", "long", "Order.lasts has to be a timedelta"),
        ("number", "1", "Order.number has to be a UUID"),
        ("tags", "a", r"Order.tags has to be a list, not a text"),
        ("tags", [1], r"Order.tags\[0\] has to be a text"),
    ],
)
def test_a_text_that_is_no_such_value_is_refused_by_its_field(
    name: str, value: Any, message: str
) -> None:
    good = Order(
        side=Side.BUY, rank=Rank.FIRST, price=Decimal(1), day=date(2013, 1, 2),
        lasts=timedelta(0), number=UUID(int=1), tags=set(), fixed=frozenset(),
    )  # fmt: skip
    text = json.dumps({**sent(good).payload, name: value})
    with pytest.raises(ControlError, match=message):
        Payloads([Order]).decode(received("Order", text))


@dataclass(frozen=True)
class Anything:
    value: Any


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.int64(7), "7"),
        (np.uint8(7), "7"),
        (np.float32(0.5), "0.5"),
        (np.float64(0.5), "0.5"),
        (np.bool_(True), "true"),
        (np.str_("a"), '"a"'),
    ],
)
def test_a_scalar_of_numpy_is_written_as_pythons_own(value: Any, text: str) -> None:
    assert encode(Anything(value))[1] == f'{{"value":{text}}}'


@pytest.mark.parametrize("value", [np.array([1]), np.datetime64("now", "ns"), Odd.PAIR, object()])
def test_any_other_object_is_refused_and_the_codec_named(value: Any) -> None:
    with pytest.raises(ControlError, match=r"Anything\.value holds a .*name a Codec for it"):
        encode(Anything(value))


class Point:
    def __init__(self, x: int, y: int) -> None:
        self.x, self.y = x, y


@dataclass(frozen=True)
class Moved:
    to: Point
    via: list[Point]


POINT = Codec(Point, lambda one: [one.x, one.y], lambda pair: Point(*pair))


def test_a_codec_of_the_receiver_reads_what_one_of_the_emitter_wrote() -> None:
    kind, text = encode(Moved(Point(1, 2), [Point(3, 4)]), [POINT])
    assert text == '{"to":[1,2],"via":[[3,4]]}'
    found = Payloads([Moved], [POINT]).decode(received(kind, text))
    assert [found.to.y, found.via[0].x] == [2, 3]
    with pytest.raises(ControlError, match=r"Moved\.to has a type that payloads cannot have"):
        Payloads([Moved]).decode(received(kind, text))
    with pytest.raises(ControlError, match=r"Moved\.to is rejected by the codec of Point"):
        Payloads([Moved], [POINT]).decode(received(kind, '{"to":[1],"via":[]}'))


def test_a_whole_payload_may_have_a_codec() -> None:
    kind, text = encode(Point(1, 2), [POINT])
    assert (kind, text) == ("Point", "[1,2]")
    assert Payloads([Point], [POINT]).decode(received(kind, text)).y == 2
    with pytest.raises(ControlError, match="Point is not a dataclass"):
        Payloads([Point])
    with pytest.raises(ControlError, match=r"has to be a tuple of Codec"):
        Payloads([Point], POINT)  # type: ignore[arg-type]


@dataclass(frozen=True)
class AtBegin:
    delivery: ClassVar[Delivery] = Delivery.BEGIN


@dataclass(frozen=True)
class ByContent:
    urgent: bool

    def delivery(self) -> Delivery | str:
        return Delivery.IMMEDIATE if self.urgent else "BEGIN"


@dataclass(frozen=True)
class Parcel:
    delivery: str = "by post"


@pytest.mark.parametrize(
    ("payload", "delivery"),
    [
        (AtBegin(), Delivery.BEGIN),
        (ByContent(True), Delivery.IMMEDIATE),
        (ByContent(False), Delivery.BEGIN),
        (Parcel(), Delivery.END_WINDOW),
        (Mark(1), Delivery.END_WINDOW),
        ({"type": "T", "delivery": "BEGIN"}, Delivery.BEGIN),
        ({"type": "T"}, Delivery.END_WINDOW),
    ],
)
def test_a_type_may_declare_its_delivery(payload: Any, delivery: Delivery) -> None:
    assert default_delivery(payload) is delivery
