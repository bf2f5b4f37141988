"""In how many queries an operator may run."""

from __future__ import annotations

from pe_agent.aligned.queries.start_guard import Starts, refused


def test_there_may_be_as_many_queries_as_frames_were_given_out() -> None:
    starts = {"one": Starts(allowed=1), "two": Starts(allowed=2)}

    assert refused(starts, "Project one", "a") is None
    assert refused(starts, "Project two", "b") is None
    assert refused(starts, "Union one two", "c") == "one"
    assert refused(starts, "Project two", "d") == "two"


def test_a_query_that_is_started_again_is_the_same_one() -> None:
    starts = {"one": Starts(allowed=1)}

    assert [refused(starts, "one", query) for query in "aaba"] == [None, None, "one", None]


def test_queries_without_operators_are_nobodys_business() -> None:
    starts = {"one": Starts(allowed=1)}

    assert refused(starts, "Project rate", "a") is None
    assert starts["one"].queries == set()
