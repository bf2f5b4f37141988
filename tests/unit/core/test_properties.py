from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streambroker_core.errors import PropertyError
from streambroker_core.model.properties import INT64_MAX, INT64_MIN, normalise


@pytest.mark.parametrize(
    ("given_value", "kept"),
    [
        (5, 5),
        (5.0, 5),
        (-0.0, 0),
        (5.5, 5.5),
        (1e18, 10**18),
        (True, True),
        ("", ""),
        ([], []),
        ([1.0, 2.5], [1, 2.5]),
        (("a", "b"), ["a", "b"]),
        ([True, False], [True, False]),
        (INT64_MAX, INT64_MAX),
        (float(INT64_MIN), INT64_MIN),
    ],
)
def test_values_are_kept_in_one_form(given_value: Any, kept: Any) -> None:
    (value,) = normalise({"a": given_value}).values()

    assert value == kept
    assert type(value) is type(kept)


def test_null_means_absent() -> None:
    assert normalise({"a": None, "b": 1}) == {"b": 1}


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("inf"),
        2**63,
        -(2**63) - 1,
        1e19,
        float(2**63),
        [1, "a"],
        [True, 1],
        [None],
        [[1]],
        [2**63],
        {"a": 1},
        b"x",
        1j,
        "\ud800",
    ],
)
def test_values_that_cannot_be_kept_are_refused_by_name(value: Any) -> None:
    with pytest.raises(PropertyError, match="`price`") as caught:
        normalise({"price": value})

    assert caught.value.name == "price"
    assert caught.value.code == "PropertyInvalid"


@pytest.mark.parametrize("name", ["", "a-b", "1a", "a.b", "é", "a\n", "in", "true", "false"])
def test_names_that_no_expression_could_write_are_refused(name: str) -> None:
    with pytest.raises(PropertyError):
        normalise({name: 1})


@given(
    st.dictionaries(st.sampled_from("abc"), st.none() | st.floats(-1e15, 1e15) | st.integers(-9, 9))
)
def test_what_is_normal_stays_as_it_is(values: dict[str, Any]) -> None:
    once = normalise(values)

    assert normalise(once) == once
