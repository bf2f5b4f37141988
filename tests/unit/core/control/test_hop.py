"""Operators in a chain that share one hop: each sees what it sees behind a shuffle of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streambroker_core.control.operators.operator import Operator, OperatorError
from streambroker_core.control.operators.typed_operator import TypedOperator
from streambroker_core.control.runtime.buckets import Layout, bucket_for_key
from streambroker_core.control.runtime.hop import Handover, find_obstacle
from streambroker_core.control.runtime.packing import Arrival
from streambroker_core.control.runtime.runner import WindowResult
from support.aligned.draws import nodes, windows
from support.aligned.graphs import Graph, Note, Plant, SharedPlant, Turn, Wild, chain
from support.aligned.model import simulate
from support.aligned.window import rows, run, stage, window

KEYED = Layout(port="in", buckets=4, key=(("k", pa.int64()),))


@st.composite
def chains(draw: st.DrawFn) -> Graph:
    """Draw two to four operators that may share a hop; with one bucket any operators may."""
    buckets = draw(st.sampled_from([1, 2, 3, 5]))
    drawn = [draw(nodes(f"n{at}")) for at in range(draw(st.integers(2, 4)))]
    made = [
        replace(one, inputs=("in",), outputs=("out",), buckets=buckets, keyed=True) for one in drawn
    ]
    if buckets > 1:
        made[:-1] = [replace(one, answer=None, emits=()) for one in made[:-1]]
    return chain(*made)


def last_of(plant: Plant) -> dict[int, WindowResult]:
    """Return what windows of the last operator came to, without the number of copies."""
    last = plant.graph.nodes[-1].name
    return {
        bucket: replace(one, control={})
        for (name, bucket), one in plant.outcomes.items()
        if name == last
    }


@settings(max_examples=60)
@given(graph=chains(), script=windows(), seed=st.integers(0, 2**32))
def test_a_shared_hop_does_what_the_model_and_separate_hops_do(
    graph: Graph, script: list[Turn], seed: int
) -> None:
    script = [replace(turn, watermark=None) for turn in script]
    shared = SharedPlant(graph, Wild(seed)).run(script)
    separate = Plant(graph, Wild(seed)).run(script)
    assert shared.log == simulate(graph, script) == separate.log
    assert last_of(shared) == last_of(separate)
    assert {where: kept for where, kept in shared.state.items() if kept} == separate.state


class Stays(Operator):
    stays_in_bucket = True

    def process(self, port: str, batch: pa.RecordBatch) -> None:
        self.emit(batch)


def test_operators_share_a_hop_where_no_bucket_needs_what_another_emits() -> None:
    class Held(Stays):
        def held_at(self) -> int | None:
            return None

    class Typed(Stays, TypedOperator):
        """Forwards or consumes control by bucket."""

    other = replace(KEYED, key=(("v", pa.int64()),))
    spread, single = replace(KEYED, key=()), replace(KEYED, buckets=1)
    cases: list[tuple[type[Operator], Layout, Layout, str | None]] = [
        (Stays, KEYED, KEYED, None),
        (Stays, KEYED, replace(KEYED, port="x", nulls=True), None),
        (Operator, KEYED, KEYED, "does not declare stays_in_bucket"),
        (Held, KEYED, KEYED, "holds rows back for event time"),
        (Typed, KEYED, KEYED, "handles control tuples"),
        (Stays, KEYED, other, "has another key"),
        (Stays, spread, KEYED, "has another key"),
        (Stays, spread, spread, "has no key"),
        (Stays, single, KEYED, "has another number of buckets"),
        (Typed, single, replace(other, buckets=1), None),
        (Stays, replace(spread, buckets=1), single, None),
    ]
    for kind, layout, following, obstacle in cases:
        assert find_obstacle(kind(), {"in": layout}, following) == obstacle
    side = {"in": KEYED, "side": Layout(port="side", buckets=4, broadcast=True)}
    assert find_obstacle(Stays(), side, KEYED) is None


def handed(layout: Layout, output: str = "out") -> tuple[Handover, list[Arrival]]:
    """Return what an operator that has received some rows in one bucket hands over."""
    schema = pa.schema([("k", pa.int64())])
    handover = Handover(output, schema, layout, lambda emitted: emitted.cast(schema))
    return handover, handover.arrivals(run(Stays, rows(5, 6, 7)), 0)


def test_a_row_that_leaves_its_bucket_is_refused_with_the_remedy() -> None:
    handover, (arrival,) = handed(KEYED)
    assert arrival.rows is not None
    assert arrival.rows.column("k").to_pylist() == [5, 6, 7]
    own = {key: bucket_for_key((key,), KEYED) for key in (5, 6, 7)}
    assert len(set(own.values())) > 1
    at = {bucket: list[Arrival]() for bucket in own.values()}
    for number, bucket in enumerate(own.values()):
        one = replace(arrival, rows=arrival.rows.slice(number, 1))
        at[bucket] = [*at[bucket], one]
    handover.check(at)
    with pytest.raises(OperatorError, match=r"k \d leaves its bucket .* stays_in_bucket = False"):
        handover.check({own[5]: [arrival]})


def test_another_output_hands_over_nothing_and_reserved_names_are_refused() -> None:
    assert handed(KEYED, "other")[1] == []
    with pytest.raises(OperatorError, match="have a column _seq"):
        Handover("out", pa.schema([("_seq", pa.int64())]), KEYED, lambda emitted: emitted)


def test_an_operator_that_shares_its_hop_emits_no_control_tuple() -> None:
    class Emits(Stays):
        def end_window(self) -> None:
            self.emit_control(Note(name="a"))

    one: Any = {"of": stage(1, shared=True)}
    assert len(run(Emits, rows(1), **one).emitted) == 2
    four: Any = {"of": stage(4, shared=True), "at": window(buckets=4)}
    with pytest.raises(OperatorError, match="stays_in_bucket = False"):
        run(Emits, **four)
