"""What views answer: defaults, keys that were deleted, and keys that could never be there."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from streambroker_core.side import Enrich, SideInput, SideJoin, SideOperator
from streambroker_core.side.errors import (
    NoValueError,
    ReadOnlyViewError,
    SideDefinitionError,
    SideSchemaError,
    SideTooLargeError,
)
from streambroker_core.side.join.static_table import build_content
from streambroker_core.side.join.views import Views, make_view
from support.sides.cases import Runner

RATES = pa.schema([("currency", pa.string()), ("rate", pa.float64()), ("bank", pa.string())])


def view(*rows: tuple[Any, ...], schema: pa.Schema = RATES, **reported: Any) -> Any:
    known = {"name": "rates", "kind": "map", "key": ("currency",), "static": True}
    side = SideInput(**{**known, "schema": schema, **reported})
    columns: list[Any] = list(zip(*rows, strict=True)) if rows else [[] for _ in schema]
    table = pa.table([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema)
    return make_view(side, build_content(side, table), "v1")


def texts(*keys: str | None) -> pa.Array:
    return pa.array(keys, pa.string())


def test_the_default_of_a_map_stands_for_keys_that_it_has_not() -> None:
    with_default = view(("EUR", 1.5, "ECB"), value="rate", default=0.5)
    assert with_default["USD"] == 0.5
    assert with_default.get("USD", 9.0) == 0.5
    assert with_default.lookup(texts("EUR", "USD", None)).to_pylist() == [1.5, 0.5, 0.5]
    without = view(("EUR", 1.5, "ECB"), value="rate")
    with pytest.raises(KeyError, match="USD"):
        without["USD"]
    assert without.get("USD", 9.0) == 9.0


def test_a_default_with_names_gives_each_value_its_own() -> None:
    found = view(("EUR", 1.5, "ECB"), default={"rate": 0.5, "bank": "none"})
    assert found.lookup(texts("EUR", "USD"), name="bank").to_pylist() == ["ECB", "none"]
    known, (rate, bank) = found.columns(texts("USD"), names=["rate", "bank"])
    assert (known.to_pylist(), rate.to_pylist(), bank.to_pylist()) == ([False], [0.5], ["none"])
    assert found["USD"] == {"rate": 0.5, "bank": "none"}


def test_an_empty_singleton_has_its_own_default_or_the_one_that_is_asked_for() -> None:
    reported: dict[str, Any] = {"kind": "singleton", "key": (), "value": "rate"}
    own = view(default=0.5, **reported)
    assert (own.empty, own.value, own.get(9.0)) == (True, 0.5, 0.5)
    none = view(**reported)
    assert none.get(9.0) == 9.0
    with pytest.raises(NoValueError, match="`rates` has no value for this window"):
        _ = none.value
    there = view(("EUR", 1.5, "ECB"), **reported)
    assert (there.empty, there.value, there.get(9.0)) == (False, 1.5, 1.5)


@pytest.mark.parametrize(
    "reported", [{"keyed": True}, {"update": "latest"}], ids=["keyed", "latest"]
)
def test_a_deleted_key_has_no_value_whatever_stands_in_the_row_that_deletes_it(
    reported: dict[str, Any],
) -> None:
    """Such keys stay known, with that row."""
    columns = [("k", pa.string()), ("t", pa.timestamp("us", "UTC")), ("gone", pa.bool_())]
    schema = pa.schema([*columns, ("v", pa.int64())])
    side = SideInput(
        name="x", kind="map", schema=schema, key=("k",), deleted="gone", event_time="t", **reported
    )
    main = pa.schema([("id", pa.string()), ("k", pa.string()), ("n", pa.int64())])
    enrich = Enrich(input="x", on=("k",), missing="null")
    join = SideJoin(schema=main, inputs=(side,), enrich=(enrich,), key=("k",))
    runner = Runner(lambda: SideOperator(join))
    feed: list[list[Any]] = [
        ["x", {"k": "a", "t": 1, "gone": False, "v": 1}],
        ["x", {"k": "a", "t": 2, "gone": True, "v": 7}],
        ["x", {"k": "b", "t": 2, "gone": False, "v": 2}],
        *(["main", {"id": k, "k": k, "n": 0}] for k in "ab"),
    ]
    runner.window(feed, watermark=None, now=0)
    assert [row["v"] for row in runner.run.out["out"]] == [None, 2]


def test_keys_that_could_never_be_there_are_refused_and_not_just_missing() -> None:
    """A look-up by fewer parts, or by another type, would find nothing and say nothing."""
    schema = pa.schema([("k", pa.string()), ("d", pa.string()), ("v", pa.int64())])
    found = view(("a", "b", 1), schema=schema, key=("k", "d"), value="v")
    assert found.lookup(texts("a"), texts("b")).to_pylist() == [1]
    with pytest.raises(SideSchemaError, match="looked up by string, and their key is: k string, d"):
        found.lookup(texts("a"))
    with pytest.raises(SideSchemaError, match="looked up by 'a', and their key"):
        found.get("a")
    with pytest.raises(SideSchemaError, match="looked up by string, int64, and their key"):
        found.contains(texts("a"), pa.array([1]))


DECIMALS = pa.schema([("k", pa.decimal128(10, 2)), ("v", pa.int64())])


def test_decimals_meet_at_one_scale_and_no_other() -> None:
    """1.50 and 1.5000 are texts that differ, so such columns never equal each other."""
    found = view((Decimal("1.50"), 1), schema=DECIMALS, key=("k",), value="v")
    same, other = (pa.array([Decimal("1.5")], pa.decimal128(12, scale)) for scale in (2, 4))
    assert found.lookup(same).to_pylist() == [1]
    assert found.lookup(same.dictionary_encode()).to_pylist() == [1]
    with pytest.raises(SideSchemaError, match=r"decimal128\(12, 4\), and their key is: k decimal"):
        found.lookup(other)
    side = SideInput(name="rates", kind="map", key=("k",), schema=DECIMALS)
    main = pa.schema([("amount", pa.decimal128(12, 4))])
    enrich = Enrich(input="rates", on=("amount",))
    with pytest.raises(SideDefinitionError, match=r"amount is decimal128\(12, 4\) .*cast one"):
        SideOperator(SideJoin(schema=main, inputs=(side,), enrich=(enrich,)))


class Large:
    """A table with more text in a column than one Arrow array can have."""

    schema, nbytes = RATES, 3 << 30

    def combine_chunks(self) -> Large:
        return self

    def to_batches(self) -> list[pa.RecordBatch]:
        return [pa.RecordBatch.from_pylist([], schema=RATES)] * 2


def test_a_table_that_arrow_cannot_make_one_is_refused_and_not_cut_off() -> None:
    side = SideInput(name="rates", kind="map", key=("currency",), schema=RATES, static=True)
    with pytest.raises(SideTooLargeError, match="bytes of texts in one column: 3,221,225,472"):
        build_content(side, Large())


def test_what_a_function_does_to_a_value_is_not_for_the_next_row() -> None:
    lists = pa.schema([("v", pa.list_(pa.int64()))])
    reported: dict[str, Any] = {"kind": "singleton", "key": (), "schema": lists, "value": "v"}
    found = view(([1],), **reported)
    found.value.append(99)
    assert found.value == [1]
    own = view(default={"rate": 0.5, "bank": "none"})
    own["USD"]["rate"] = 99.0
    assert own["USD"] == own.get("CHF") == {"rate": 0.5, "bank": "none"}
    none = view(default={"v": [0]}, **{**reported, "value": None})
    none.value["v"].append(99)
    assert none.value == {"v": [0]}


def test_views_of_a_call_are_as_read_only_as_each_of_them() -> None:
    views = Views({"rates": view()}, None)
    with pytest.raises(ReadOnlyViewError, match="`rates` is read-only"):
        del views["rates"]
    with pytest.raises(ReadOnlyViewError, match="`window` is read-only"):
        views.window = (0, 1)
    assert views.window is None
