"""Graphs and scripts of aligned operators, drawn by hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from streambroker_core.control.runtime.control_rows import PositionedControl
from streambroker_core.control.runtime.packing import sequence
from streambroker_core.control.tuples import Delivery
from support.aligned.graphs import SOURCE, Edge, Graph, Node, Row, Turn, at_time, note

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
    """Draw up to four nodes, each fed by the source and those before it."""
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
def windows(draw: st.DrawFn, *, timed: bool = True) -> list[Turn]:
    out, watermark = [], None
    deliveries = [one for one in Delivery if timed or one is not Delivery.AT_TIME]
    for number in range(1, draw(st.integers(1, 4)) + 1):
        rows: list[tuple[Row, ...]] = []
        placed: list[PositionedControl] = []
        for partition in range(draw(st.integers(1, 3))):
            rows.append(tuple(draw(st.lists(ROW, max_size=6))))
            for seq in range(draw(st.integers(0, 3))):
                delivery = draw(st.sampled_from(deliveries))
                plain = Delivery.END_WINDOW if delivery is Delivery.AT_TIME else delivery
                control = note(f"c{partition}_{seq}", plain, partition, number, seq)
                if delivery is Delivery.AT_TIME:
                    control = at_time(control, draw(st.integers(0, 25)))
                at = draw(st.integers(0, len(rows[-1])))
                placed.append((sequence(part=partition, number=at), control))
        if timed and draw(st.booleans()):
            watermark = max(watermark or 0, draw(st.integers(0, 25)))
        out.append(
            Turn(number=number, rows=tuple(rows), control=tuple(placed), watermark=watermark)
        )
    return out
