"""Rows by a key: whichever rows are asked for, each has the key that it has among all."""

from __future__ import annotations

import pyarrow as pa
import pytest

from streambroker_core.cep.engine.key_columns import key_columns
from streambroker_core.cep.engine.key_store import encode_key
from streambroker_core.cep.engine.row_view import OrderedRows, RowView, to_python_values
from streambroker_core.cep.pattern.key_selectors import Selector

COUNT = 12
BATCH = pa.RecordBatch.from_pydict(
    {
        "k": [number % 5 for number in range(COUNT)],
        "n": [None if number % 4 == 3 else "uv"[number % 2] for number in range(COUNT)],
        "f": [(0.0, -0.0, float("nan"), 1.5)[number % 4] for number in range(COUNT)],
    }
)
SELECTORS: list[Selector] = [
    (),
    ("k",),
    ("n",),
    ("f",),
    ("k", "n"),
    ("n", "n"),
    ("k % 2",),
    ("k % 2", "n"),
]


def places(selector: Selector) -> list[bytes]:
    """Return the key of each row, made by itself."""
    columns = [column.to_pylist() for column in key_columns(BATCH, selector)]
    return [encode_key(selector, [column[row] for column in columns]) for row in range(COUNT)]


def rows(given: pa.Array | None = None) -> OrderedRows:
    """Return the rows; copies made for one key if their places are given."""
    numbers = pa.array(range(COUNT), pa.int64())
    return OrderedRows(BATCH, numbers, numbers, numbers, 0, key_bytes=given)


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("selector", SELECTORS, ids=str)
def test_rows_have_the_same_key_however_many_are_asked_for(
    selector: Selector, copied: bool, many: bool
) -> None:
    wanted = places(selector)
    view = RowView(rows(pa.array(wanted, pa.binary()) if copied else None), selector, read_all=many)
    for asked in ([], [7], [1, 3, 11], list(range(COUNT)), [2, 10]):
        chosen = view.select(pa.array(asked, pa.uint64()))
        assert [chosen.keys.key_at(code) for code in chosen.codes] == [wanted[row] for row in asked]
        assert (chosen.indices, chosen.seqs, chosen.times) == (asked, asked, asked)


@pytest.mark.parametrize("selector", [("k",), ("k", "n")], ids=str)
def test_keys_of_all_rows_are_made_when_half_of_them_were_asked_for(selector: Selector) -> None:
    view = RowView(rows(), selector)
    whole = [view.select(pa.array(asked, pa.uint64())).keys for asked in ([1, 5], [2, 3, 4], [9])]
    assert len(whole[0].codes) == 2
    assert len(whole[1].codes) == 3
    assert whole[2] is view.keys
    assert len(view.keys.codes) == COUNT


def test_an_expression_is_asked_of_all_rows_so_that_its_values_are_of_one_type() -> None:
    view = RowView(rows(), ("k % 2",))
    assert view.select(pa.array([1], pa.uint64())).keys is view.keys


@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Paris"])
@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_instants_are_read_as_arrow_reads_them(unit: str, zone: str | None) -> None:
    steps = [None, 0, -1, 1, 1_700_000_000, -62_135_596_800, 253_402_300_799]
    column = pa.array(steps, pa.int64()).cast(pa.timestamp(unit, zone)).slice(1)

    if zone == "Europe/Paris":  # the last instant is of the year 10,000 there
        column = column.slice(0, 4)
    read = to_python_values(column)

    assert read == column.to_pylist()
    assert [str(each) for each in read] == [str(each) for each in column.to_pylist()]


def test_an_instant_of_no_year_is_refused_as_arrow_refuses_it() -> None:
    column = pa.array([2**62], pa.int64()).cast(pa.timestamp("us"))

    with pytest.raises(OverflowError, match="out of range"):
        to_python_values(column)
