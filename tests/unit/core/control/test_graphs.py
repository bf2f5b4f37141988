"""Any graph, partitioning, cut into batches and crash: operators see what the model says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from streambroker_core.control.runtime.control_rows import PositionedControl
from streambroker_core.control.runtime.runner import WindowResult
from streambroker_core.control.tuples import Delivery
from streambroker_core.control.tuples.window_bounds import count_window_epochs, make_control_head
from support.aligned.draws import ROW, graphs, windows
from support.aligned.graphs import (
    Entry,
    Graph,
    Plant,
    Row,
    Turn,
    Wild,
    chain,
    note,
    sink,
)
from support.aligned.model import simulate


def check(graph: Graph, script: list[Turn], seed: int) -> None:
    assert Plant(graph, Wild(seed)).run(script).log == simulate(graph, script)


@settings(max_examples=30)
@given(graph=graphs(), script=windows(), seed=st.integers(0, 2**32))
def test_operators_see_what_the_model_says(graph: Graph, script: list[Turn], seed: int) -> None:
    check(graph, script, seed)


@pytest.mark.long
@pytest.mark.parametrize("part", range(10))
@settings(
    max_examples=500,
    phases=(Phase.generate, Phase.target),
    suppress_health_check=list(HealthCheck),
)
@given(graph=graphs(), script=windows(), seed=st.integers(0, 2**32))
def test_operators_see_what_the_model_says_in_5_000_graphs(
    part: int, graph: Graph, script: list[Turn], seed: int
) -> None:
    check(graph, script, seed + part)


def results(plant: Plant) -> dict[tuple[str, int], WindowResult]:
    """Return what windows came to, without the number of copies, which is that of partitions."""
    return {where: replace(one, control={}) for where, one in plant.outcomes.items()}


@settings(max_examples=12)
@given(graph=graphs(), script=windows(), seeds=st.tuples(*[st.integers(0, 2**32)] * 2))
def test_how_rows_arrive_changes_neither_what_is_emitted_nor_the_state(
    graph: Graph, script: list[Turn], seeds: tuple[int, int]
) -> None:
    one, other = (Plant(graph, Wild(seed)).run(script) for seed in seeds)
    assert one.state == other.state
    assert results(one) == results(other)
    assert one.applied == other.applied


EPOCHS = st.lists(
    st.tuples(
        st.lists(ROW, max_size=4),
        st.lists(st.sampled_from([d for d in Delivery if d is not Delivery.AT_TIME]), max_size=2),
    ),
    max_size=6,
)


def seen_of_stream(
    epochs: list[tuple[list[Row], list[Delivery]]], most: int
) -> dict[int, list[Entry]]:
    """Return what the buckets of an operator see of a stream, read ``most`` epochs at once."""
    controls = [
        [note("c", one, 0, number, seq) for seq, one in enumerate(deliveries)]
        for number, (_, deliveries) in enumerate(epochs)
    ]
    heads = [make_control_head(number, given) for number, given in enumerate(controls)]
    script, first = list[Turn](), 0
    while first < len(epochs):
        until = first + count_window_epochs(heads[first : first + most])
        rows, placed = list[Row](), list[PositionedControl]()
        for number in range(first, until):
            middle = len(rows) + len(epochs[number][0]) // 2
            rows += epochs[number][0]
            placed += [(middle, one) for one in controls[number]]
        script.append(Turn(number=len(script), rows=(tuple(rows),), control=tuple(placed)))
        first = until
    log = Plant(chain(sink(3)), Wild(most)).run(script).log
    return {
        bucket: [entry for _, seen in windows for entry in seen if len(entry) > 1]
        for (_, bucket), windows in log.items()
    }


@settings(max_examples=12)
@given(epochs=EPOCHS, most=st.integers(1, 5))
def test_how_a_stream_is_cut_into_windows_changes_no_order_of_rows_and_tuples(
    epochs: list[tuple[list[Row], list[Delivery]]], most: int
) -> None:
    assert seen_of_stream(epochs, most) == seen_of_stream(epochs, 1)
