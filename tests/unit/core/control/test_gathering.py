"""Rows that are packed many at once are the rows that were given, in their order."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streambroker_core.control.operators.operator import OperatorError
from streambroker_core.control.runtime.buckets import Layout
from streambroker_core.control.runtime.ordering import sort_rows
from streambroker_core.control.runtime.packing import by_bucket, consecutive_numbers, unpack
from streambroker_core.control.runtime.row_packer import RowPacker

KEYED = Layout(port="in", buckets=3, key=(("k", pa.int64()),))


def batch(*keys: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"k": pa.array(keys, pa.int64())})


def packed(gathering: RowPacker, pieces: list[tuple[int, list[int]]]) -> list[pa.RecordBatch]:
    given = [one for seq, keys in pieces for one in gathering.add(batch(*keys), seq)]
    return [*given, *gathering.flush()]


def rows_of(given: list[pa.RecordBatch]) -> dict[int, list[tuple[int, int]]]:
    """Return sequences and keys of each bucket, in order."""
    found: dict[int, list[pa.RecordBatch]] = {}
    for one in given:
        for bucket, row in by_bucket(one):
            rows = unpack(row).rows
            assert rows is not None
            assert row.seq == rows.column(0)[0].as_py()
            found.setdefault(bucket, []).append(rows)
    return {
        bucket: list(zip(*sort_rows("in", some).to_pydict().values(), strict=True))
        for bucket, some in found.items()
    }


@settings(max_examples=40)
@given(
    keys=st.lists(st.lists(st.integers(0, 9), max_size=5), max_size=8),
    order=st.randoms(use_true_random=False),
    rows=st.integers(1, 12),
)
def test_pieces_make_no_difference(keys: list[list[int]], order: object, rows: int) -> None:
    pieces, seq = list[tuple[int, list[int]]](), 0
    for some in keys:
        pieces.append((seq, some))
        seq += len(some)
    order.shuffle(pieces)  # type: ignore[attr-defined]
    whole = RowPacker(KEYED)
    whole_rows = [key for some in keys for key in some]
    expected = [*whole.add(batch(*whole_rows), 0), *whole.flush()]
    assert rows_of(packed(RowPacker(KEYED, rows=rows), pieces)) == rows_of(expected)


def test_rows_wait_until_there_are_enough_of_them_or_enough_bytes() -> None:
    few = RowPacker(KEYED, rows=4)
    assert list(few.add(batch(1, 2, 3), 0)) == []
    (whole,) = few.add(batch(4), 3)
    assert sum(row.n for _, row in by_bucket(whole)) == 4
    assert list(few.flush()) == []
    small = RowPacker(KEYED, size=2 * 8)
    assert [len(list(small.add(batch(1), seq))) for seq in range(4)] == [0, 1, 0, 1]


def test_each_bucket_has_one_packed_row_of_many_pieces() -> None:
    (whole,) = packed(RowPacker(KEYED), [(seq * 10, list(range(10))) for seq in range(100)])
    assert sorted(bucket for bucket, _ in by_bucket(whole)) == [0, 1, 2]


def test_two_rows_with_one_place_are_refused() -> None:
    gathering = RowPacker(KEYED)
    list(gathering.add(batch(1, 2), consecutive_numbers(0, 2)))
    list(gathering.add(batch(3), 1))
    with pytest.raises(OperatorError, match="does not increase from row to row"):
        list(gathering.flush())
