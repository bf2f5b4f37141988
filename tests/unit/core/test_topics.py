from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streambroker_core.errors import TopicError
from streambroker_core.model.topics import is_valid_pattern, is_valid_topic, topic_matches

levels = st.lists(st.text("ab", max_size=2), min_size=1, max_size=4)


def test_an_invalid_pattern_is_an_error_and_not_a_mismatch() -> None:
    with pytest.raises(TopicError, match="`a/#/b` is not a topic pattern"):
        topic_matches("a/#/b", "a/b")


def test_a_name_of_levels_is_valid_and_a_wildcard_is_no_name() -> None:
    assert is_valid_topic("a//b")
    assert not is_valid_topic("a/+")
    assert is_valid_pattern("a/+/#")
    assert not is_valid_pattern("")


@given(levels)
def test_a_topic_is_a_filter_for_itself_alone(parts: list[str]) -> None:
    topic = "/".join(parts) or "a"

    assert topic_matches(topic, topic)
    assert not topic_matches(topic, f"{topic}/x")


@given(levels, st.data())
def test_a_plus_stands_for_exactly_one_level(parts: list[str], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(parts) - 1))
    wildcard = "/".join([*parts[:place], "+", *parts[place + 1 :]])

    assert topic_matches(wildcard, "/".join(parts))
    assert not topic_matches(wildcard, "/".join([*parts, "x"]))


@given(levels, levels)
def test_a_hash_stands_for_its_parent_and_all_below(above: list[str], below: list[str]) -> None:
    covered = "/".join([*above, "#"])

    assert topic_matches(covered, "/".join(above))
    assert topic_matches(covered, "/".join([*above, *below]))
    assert not topic_matches(covered, "/".join([*above[:-1], "x", *below]))
