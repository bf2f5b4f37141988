"""On each path, control tuples are handed over in the order in which they were emitted."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from streambroker_core.control.operators.operator import Operator, Window
from streambroker_core.control.runtime.control_rows import PositionedControl
from streambroker_core.control.runtime.emitter import EmittedControl, Stage
from streambroker_core.control.runtime.packing import by_bucket, pack_control
from streambroker_core.control.runtime.runner import AlignedRunner
from streambroker_core.control.tuples import ControlTuple, Delivery
from support.aligned.graphs import Edge, Graph, Node, Note, Plant, Wild, at_time, chain, note, turns

SEEDS = range(3)
BUCKETS = 3


def node(name: str, *emits: str, delivery: Delivery, answer: str | None = "forward") -> Node:
    return Node(name=name, buckets=BUCKETS, answer=answer, emits=emits, delivery=delivery)


def handed(graph: Graph, script: Sequence[str], bucket: int = 0) -> list[list[str]]:
    """Return what the last node is handed in each window; the same for any spread and order."""
    found = []
    for seed in SEEDS:
        log = Plant(graph, Wild(seed)).run(turns(*script)).log
        windows = [seen for _, seen in log[graph.nodes[-1].name, bucket]]
        found.append([[e[-1] for e in seen if e[0] == "control"] for seen in windows])
    assert found.count(found[0]) == len(found)
    return found[0]


def positions(of: list[str], *names: str) -> list[list[int]]:
    """Return where the tuples of each emitter are."""
    return [[at for at, one in enumerate(of) if one.startswith(f"q.{name}.")] for name in names]


@pytest.mark.parametrize("delivery", [Delivery.END_WINDOW, Delivery.BEGIN])
def test_what_an_operator_forwards_comes_before_what_it_emits_later(delivery: Delivery) -> None:
    """An operator is told of the end of a file, and then of the end of the batch behind it."""
    graph = chain(
        node("z", "begin", delivery=delivery),
        node("m", "end", delivery=delivery),
        node("a", "end", delivery=delivery),
        Node(name="sink", answer="block"),
    )
    (seen,) = handed(graph, ["D1 D2 D3"])
    z, m, a = positions(seen, "z", "m", "a")
    assert max(z) < min(m) <= max(m) < min(a)


def test_what_an_operator_emits_before_it_forwards_comes_before() -> None:
    end = Delivery.END_WINDOW
    graph = chain(
        node("a", "end", delivery=end),
        node("z", "begin", delivery=end),
        Node(name="sink", answer="block"),
    )
    (seen,) = handed(graph, ["D1 D2 D3"])
    a, z = positions(seen, "a", "z")
    assert max(z) < min(a), "each bucket of z emits in begin_window, and forwards at the end"


def test_a_tuple_that_is_emitted_when_another_is_handed_over_comes_before_it_goes_on() -> None:
    class Announce(Operator):
        def process_control(self, port: str, control: ControlTuple) -> bool:
            self.emit_control(Note(name="before"))
            self.emit_control(control)
            self.emit_control(Note(name="after"))
            return True

    given = [note("one", Delivery.END_WINDOW, 0, 1, 0), note("two", Delivery.END_WINDOW, 0, 1, 1)]
    found = emitted(Announce, [(at, one) for at, one in enumerate(given)])
    names = [one.payload["name"] for _, one in sorted(found, key=lambda it: it[0])]
    assert names == ["before", "one", "after", "before", "two", "after"]


def emitted(make: type[Operator], given: list[PositionedControl]) -> list[PositionedControl]:
    runner = AlignedRunner(make, Stage(query="q", operator="a", buckets=1))
    window = Window(number=1, time=0, watermark=None, bucket=0, buckets=1)
    packed = [one for _, one in by_bucket(pack_control(given, "in", 1))]
    out = runner.run(window, packed, {}).emitted
    return [(one.position, one.control) for one in out if isinstance(one, EmittedControl)]


def test_at_one_place_between_rows_immediate_tuples_are_in_the_order_of_emission() -> None:
    class Mark(Operator):
        def process_control(self, port: str, control: ControlTuple) -> bool:
            self.emit_control(Note(name="first"), delivery="IMMEDIATE")
            self.emit_control(control)
            self.emit_control(Note(name="last"), delivery="IMMEDIATE")
            return True

        def process(self, port: str, batch: pa.RecordBatch) -> None:
            self.emit(batch)

    found = emitted(Mark, [(0, note("it", Delivery.IMMEDIATE, 0, 1, 0))])
    assert [one.payload["name"] for _, one in sorted(found, key=lambda it: it[0])] == [
        "first", "it", "last",
    ]  # fmt: skip
    assert len({position for position, _ in found}) == 3


def test_tuples_of_one_event_time_come_in_the_order_in_which_they_arrived_also_from_state() -> None:
    given = [at_time(note(name, Delivery.END_WINDOW, 9 - at, 1, 0), 5) for at, name in
             enumerate("cab")]  # fmt: skip
    seen: list[str] = []

    class Late(Operator):
        def process_control(self, port: str, control: ControlTuple) -> bool:
            seen.append(control.payload["name"])
            return True

    runner = AlignedRunner(Late, Stage(query="q", operator="a", buckets=1))
    packed = [one for _, one in by_bucket(pack_control(list(enumerate(given)), "in", 1))]
    more = at_time(note("0", Delivery.END_WINDOW, 0, 2, 0), 5)
    later = [one for _, one in by_bucket(pack_control([(0, more)], "in", 1))]
    first = Window(number=1, time=0, watermark=None, bucket=0, buckets=1)
    state = {k: v for k, v in runner.run(first, packed, {}).changes.items() if v is not None}
    runner.run(Window(number=2, time=0, watermark=5, bucket=0, buckets=1), later, state)
    assert seen == ["c", "a", "b", "0"]


def test_over_two_ways_to_one_port_a_tuple_has_its_first_position() -> None:
    end = Delivery.END_WINDOW
    graph = Graph(
        nodes=(
            node("z", "begin", delivery=end),
            node("a", "end", delivery=end),
            Node(name="sink", answer="block"),
        ),
        edges=(
            Edge(source="S", target="z"),
            Edge(source="z", target="a"),
            Edge(source="a", target="sink"),
            Edge(source="z", target="sink"),
        ),
    )
    (seen,) = handed(graph, ["D1 D2"])
    z, a = positions(seen, "z", "a")
    assert len(seen) == len(set(seen))
    assert max(z) < min(a)
