"""Room between places: rows that a function makes fit in where those were that it was given."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streambroker_core.control.operators.operator import OperatorError
from streambroker_core.control.runtime.packing import consecutive_numbers, sequence
from streambroker_core.control.runtime.spacing import (
    derive_positions,
    position_before,
    slot_bits,
    space_positions,
)

BASE = sequence(rank=2, part=7)


@settings(max_examples=80, deadline=None)
@given(
    rows=st.integers(1, 60),
    cuts=st.sets(st.integers(1, 59), max_size=4),
    counts=st.lists(st.lists(st.integers(0, 9), min_size=5, max_size=5), min_size=1, max_size=3),
)
def test_however_often_rows_are_made_again_runs_and_tuples_between_them_keep_their_order(
    rows: int, cuts: set[int], counts: list[list[int]]
) -> None:
    bits = slot_bits(rows)
    at = sorted(one for one in cuts if one < rows)
    bounds = [0, *at, rows]
    runs = [
        space_positions(consecutive_numbers(BASE + low, high - low), bits)
        for low, high in pairwise(bounds)
    ]
    tuples = [position_before(BASE + one, bits, number) for one in at for number in (0, 1)]
    for times in counts:
        runs = [
            derive_positions(run, len(run) * many, "f") if len(run) else run
            for run, many in zip(runs, times, strict=False)
        ]
        for number, run in enumerate(runs):
            found = run.to_pylist()
            assert found == sorted(set(found))
            assert all(tuples[2 * number - 1] < place for place in found if number)
            assert all(place < tuples[2 * number] for place in found if number < len(at))
    assert all(
        BASE <= place < sequence(rank=2, part=8) for run in runs for place in run.to_pylist()
    )


def test_tuples_in_front_of_one_row_have_places_of_their_own() -> None:
    bits = slot_bits(3)
    (row,) = space_positions(pa.array([BASE + 1]), bits).to_pylist()
    places = [position_before(BASE + 1, bits, number) for number in range(3)]
    assert places == sorted(set(places))
    assert places[-1] < row
    assert position_before(BASE + 3, bits) > space_positions(pa.array([BASE + 2]), bits)[0].as_py()


def test_more_rows_than_there_is_room_for_are_refused_by_name() -> None:
    bits = slot_bits((1 << 36) - 1)
    assert bits == 4
    one = space_positions(pa.array([BASE]), bits)
    assert len(derive_positions(one, 4, "f")) == 4
    with pytest.raises(OperatorError, match="f returned 5 rows for 1, and there is no room"):
        derive_positions(one, 5, "f")
