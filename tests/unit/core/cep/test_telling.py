"""What is told as JSON: each match as if it were written by itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streambroker_core.cep.engine.active_rule import RuleResult
from streambroker_core.cep.engine.outputs import OutputWriter
from streambroker_core.cep.nfa.matcher import PatternMatch, events_by_stage
from streambroker_core.cep.pattern.match_buffer import Event, RunNode
from streambroker_core.cep.pattern.rule import PatternProcessor

NAMES = ("a", 'b "quoted"', "c")
VALUES = st.one_of(
    st.integers(-9, 9), st.sampled_from(['},{"n":1', "}", '"', "\\"]), st.none(), st.booleans()
)
FIELDS = st.one_of(VALUES, st.lists(st.fixed_dictionaries({"n": VALUES}), max_size=3))
ROWS: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.fixed_dictionaries({"n": FIELDS, "v": FIELDS}),
    st.fixed_dictionaries({"m": FIELDS}),
    st.just({}),
)


def no_rule(name: str, version: int) -> PatternProcessor:
    raise AssertionError(f"{name}, {version} is asked for")


def reported(nodes: list[RunNode]) -> list[dict[str, list[Any]]]:
    """What a teller writes of the matches that end with nodes."""
    results = [RuleResult("r", 1, (), PatternMatch(node, NAMES, 0, 0), 0) for node in nodes]
    ((_, batch),) = OutputWriter({}).write(results, no_rule).batches
    return [json.loads(text) for text in batch.column("events").to_pylist()]


def alone(node: RunNode) -> dict[str, list[Mapping[str, Any]]]:
    """The same, stage by stage."""
    stages = events_by_stage(node, NAMES).items()
    return {stage: [event.row for event in events] for stage, events in stages}


@given(
    st.lists(ROWS, min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2), st.integers(-1, 9)), min_size=1),
    st.integers(0, 9),
)
def test_runs_with_a_common_past_are_reported_as_if_they_were_alone(
    rows: list[dict[str, Any]], steps: list[tuple[int, int, int]], cut: int
) -> None:
    events = [Event(number, number, row) for number, row in enumerate(rows)]
    nodes: list[RunNode] = []
    for event, stage, before in steps:
        known = nodes[before % len(nodes)] if nodes and before >= 0 else None
        nodes.append(RunNode(events[event % len(events)], stage, known))
    first, second = nodes[:cut], nodes[cut:]
    for part in (first, second, nodes):  # again what was told before
        if part:
            assert reported(part) == [alone(node) for node in part]


def test_stages_are_reported_in_the_order_of_the_pattern_where_a_group_comes_back() -> None:
    rows = [Event(n, n, {"n": n}) for n in range(4)]
    node: RunNode | None = None
    for event, stage in zip(rows, (0, 1, 0, 1), strict=True):
        node = RunNode(event, stage, node)
    assert node is not None
    (found,) = reported([node])
    assert found == {"a": [{"n": 0}, {"n": 2}], 'b "quoted"': [{"n": 1}, {"n": 3}]}
    assert list(found) == ["a", 'b "quoted"']


@pytest.mark.parametrize("count", [1, 5])
def test_rows_that_hold_the_end_of_one_and_the_begin_of_the_next_are_reported_whole(
    count: int,
) -> None:
    rows = [{"n": [{"n": 1}, {"n": 2}], "v": '},{"n":'} for _ in range(count)]
    nodes = [RunNode(Event(n, n, row), 0, None) for n, row in enumerate(rows)]
    assert [each["a"] for each in reported(nodes)] == [[row] for row in rows]
