"""Any graph, partitioning, cut into batches and crash: operators see what the model says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from streambroker_core.control.aligned import Outcome
from streambroker_core.control.cutting import epochs_of_window, head_of
from streambroker_core.control.packing import sequence
from streambroker_core.control.rows import Placed
from streambroker_core.control.tuples import Delivery
from support.aligned import (
    SOURCE,
    Edge,
    Entry,
    Graph,
    Node,
    Plant,
    Row,
    Turn,
    Wild,
    at_time,
    chain,
    note,
    sink,
)
from support.aligned_model import simulate

BY_NODES = [Delivery.BEGIN, Delivery.IMMEDIATE, Delivery.END_WINDOW]


@st.composite
def nodes(draw: st.DrawFn, name: str) -> Node:
    answer = draw(st.sampled_from([None, "forward", "block", "repeat", "new"]))
    return Node(
        name=name,
        inputs=draw(st.sampled_from([("in",), ("x", "y")])),
        outputs=draw(st.sampled_from([("out",), ("out", "two")])),
        buckets=draw(st.sampled_from([1, 1, 2, 3, 5])),
        answer=answer,
        emits=tuple(draw(st.sets(st.sampled_from(["begin", "row", "end"]), max_size=2))),
        delivery=draw(st.sampled_from(BY_NODES)),
        once=draw(st.booleans()),
        keyed=draw(st.booleans()),
    )


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    made: list[Node] = []
    edges: set[Edge] = set()
    ordered: list[Edge] = []
    for at in range(draw(st.integers(1, 4))):
        node = draw(nodes(f"n{at}"))
        outputs = [(SOURCE, "out"), *((one.name, tag) for one in made for tag in one.outputs)]
        for port in node.inputs:
            for source, output in draw(st.lists(st.sampled_from(outputs), min_size=1, max_size=2)):
                edge = Edge(source=source, output=output, target=node.name, port=port)
                if edge not in edges:
                    edges.add(edge)
                    ordered.append(edge)
        made.append(node)
    return Graph(nodes=tuple(made), edges=tuple(ordered))


ROW = st.tuples(st.integers(0, 5), st.integers(0, 40), st.integers(0, 20))


@st.composite
def windows(draw: st.DrawFn) -> list[Turn]:
    out, watermark = [], None
    for number in range(1, draw(st.integers(1, 4)) + 1):
        rows: list[tuple[Row, ...]] = []
        placed: list[Placed] = []
        for partition in range(draw(st.integers(1, 3))):
            rows.append(tuple(draw(st.lists(ROW, max_size=6))))
            for seq in range(draw(st.integers(0, 3))):
                delivery = draw(st.sampled_from(list(Delivery)))
                plain = Delivery.END_WINDOW if delivery is Delivery.AT_TIME else delivery
                control = note(f"c{partition}_{seq}", plain, partition, number, seq)
                if delivery is Delivery.AT_TIME:
                    control = at_time(control, draw(st.integers(0, 25)))
                at = draw(st.integers(0, len(rows[-1])))
                placed.append((sequence(part=partition, number=at), control))
        if draw(st.booleans()):
            watermark = max(watermark or 0, draw(st.integers(0, 25)))
        out.append(
            Turn(number=number, rows=tuple(rows), control=tuple(placed), watermark=watermark)
        )
    return out


def check(graph: Graph, script: list[Turn], seed: int) -> None:
    assert Plant(graph, Wild(seed)).run(script).log == simulate(graph, script)


@settings(max_examples=30)
@given(graph=graphs(), script=windows(), seed=st.integers(0, 2**32))
def test_operators_see_what_the_model_says(graph: Graph, script: list[Turn], seed: int) -> None:
    check(graph, script, seed)


@pytest.mark.long
@pytest.mark.parametrize("part", range(10))
@settings(
    max_examples=2_000,
    phases=(Phase.generate, Phase.target),
    suppress_health_check=list(HealthCheck),
)
@given(graph=graphs(), script=windows(), seed=st.integers(0, 2**32))
def test_operators_see_what_the_model_says_in_20_000_graphs(
    part: int, graph: Graph, script: list[Turn], seed: int
) -> None:
    check(graph, script, seed + part)


def results(plant: Plant) -> dict[tuple[str, int], Outcome]:
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
    heads = [head_of(number, given) for number, given in enumerate(controls)]
    script, first = list[Turn](), 0
    while first < len(epochs):
        until = first + epochs_of_window(heads[first : first + most])
        rows, placed = list[Row](), list[Placed]()
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
