"""Words that the vocabulary avoids get fewer, never more."""

from __future__ import annotations

import ast

import pytest

from support.contracts import vocabulary


def test_no_word_to_avoid_occurs_more_often_than_is_stored() -> None:
    stored = vocabulary.read()["counts"]
    found = vocabulary.count()

    assert vocabulary.risen(stored, found) == []
    assert found == stored, f"counts have fallen, store them: {vocabulary.COMMAND}"


@pytest.mark.parametrize(
    ("stored", "found", "number"),
    [
        ({}, {"core-docstrings": {"tell": 1}}, 1),
        ({"core-docstrings": {"tell": 1}}, {"core-docstrings": {"tell": 2, "say": 1}}, 2),
        ({"core-docstrings": {"tell": 2}}, {"core-docstrings": {"tell": 1}}, 0),
    ],
)
def test_a_count_that_rises_is_named(
    stored: dict[str, dict[str, int]], found: dict[str, dict[str, int]], number: int
) -> None:
    assert len(vocabulary.risen(stored, found)) == number


def test_words_are_found_in_names_docstrings_and_messages_but_not_in_quoted_names() -> None:
    code = '''
def tell_reader(heard):
    """Tell it, as `told` does."""
    raise ValueError("nobody said so")
'''
    found = [
        (place.kind, place.word) for place in vocabulary.places_in("core", "x.py", ast.parse(code))
    ]

    assert found == [
        ("identifiers", "tell"),
        ("identifiers", "hear"),
        ("docstrings", "tell"),
        ("messages", "nobody"),
        ("messages", "say"),
    ]
