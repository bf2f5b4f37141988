"""In how many queries an operator may run."""

from __future__ import annotations

from pe_agent.aligned.queries.query_listener import QueryStarts, find_refused


def test_there_may_be_as_many_queries_as_frames_were_given_out() -> None:
    starts = {"one": QueryStarts(allowed=1), "two": QueryStarts(allowed=2)}

    assert find_refused(starts, "Project one", "a") is None
    assert find_refused(starts, "Project two", "b") is None
    assert find_refused(starts, "Union one two", "c") == "one"
    assert find_refused(starts, "Project two", "d") == "two"


def test_a_query_that_is_started_again_is_the_same_one() -> None:
    starts = {"one": QueryStarts(allowed=1)}

    assert [find_refused(starts, "one", query) for query in "aaba"] == [None, None, "one", None]


def test_queries_without_operators_are_nobodys_business() -> None:
    starts = {"one": QueryStarts(allowed=1)}

    assert find_refused(starts, "Project rate", "a") is None
    assert starts["one"].queries == set()
