"""User-defined control tuples, scenario by scenario: graph and input, and what an aware sink sees.

``P`` knows nothing of control, ``Q`` takes it. Rows are ``D1``, control tuples ``I(a)`` immediate,
``E(a)`` at the end of the window, ``B(a)`` at its beginning, ``T5(a)`` at event time 5.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pytest

from streambroker_core.control.operators.operator import (
    Blobs,
    Changes,
    Operator,
    OperatorError,
    Window,
)
from streambroker_core.control.runtime.emitter import EmittedControl, EmittedRows, Stage
from streambroker_core.control.runtime.packing import Packed, by_bucket, pack, pack_control
from streambroker_core.control.runtime.runner import AlignedRunner
from streambroker_core.control.tuples import (
    ControlError,
    ControlLimitError,
    ControlTuple,
    Delivery,
    Limits,
)
from support.aligned.graphs import (
    SOURCE,
    Edge,
    Graph,
    Node,
    Note,
    Plant,
    Wild,
    as_batch,
    chain,
    layout_of,
    names_of,
    note,
    reported,
    sink,
    turns,
)
from support.aligned.model import simulate

SEEDS = range(4)


def p(name: str = "P", buckets: int = 1) -> Node:
    return Node(name=name, buckets=buckets)


def q(answer: str, buckets: int = 1, **more: object) -> Node:
    return Node(name="Q", buckets=buckets, answer=answer, **more)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Graph and script; what the sink sees by window (and bucket, if it has several)."""

    id: str
    graph: Graph
    script: Sequence[str | Sequence[str]]
    sees: Sequence[str]
    watermarks: Sequence[int | None] = ()


CHAINS = [
    Scenario(
        id="A-1 immediate keeps its place",
        graph=chain(p(), sink()),
        script=["D1 I(a) D2"],
        sees=["D1 a D2"],
    ),
    Scenario(
        id="A-2 end comes after all data",
        graph=chain(p(), sink()),
        script=["D1 E(a) D2"],
        sees=["D1 D2 a"],
    ),
    Scenario(
        id="A-3 the window stays the same over many hops",
        graph=chain(p("P1"), p("P2"), sink()),
        script=["E(a) D1", "D2"],
        sees=["D1 a", "D2"],
    ),
    Scenario(
        id="A-4 both kinds, each in its order",
        graph=chain(p(), sink()),
        script=["E(a) I(b) E(c) I(d)"],
        sees=["b d a c"],
    ),
    Scenario(
        id="A-6 copies of partitions are one, at the end",
        graph=chain(p(buckets=2), sink()),
        script=["D1 D2 E(a)"],
        sees=["D1 D2 a"],
    ),
    Scenario(
        id="A-7 copies of partitions are one, at the first place",
        graph=chain(p(buckets=2), sink()),
        script=["I(a)"],
        sees=["a"],
    ),
    Scenario(
        id="A-8 partitions behind partitions",
        graph=chain(p("P1", 3), p("P2", 2), sink()),
        script=["E(a) I(b)"],
        sees=["b a"],
    ),
    Scenario(
        id="A-10 equal payloads of two sources are two",
        graph=chain(p(), sink()),
        script=[["E(a)", "E(a)"]],
        sees=["a a"],
    ),
    Scenario(
        id="A-11 false: it goes on",
        graph=chain(q("forward"), sink()),
        script=["D1 E(a)"],
        sees=["D1 a"],
    ),
    Scenario(
        id="A-12 true without emission: it ends there",
        graph=chain(q("block"), sink()),
        script=["D1 E(a) I(b)"],
        sees=["D1"],
    ),
    Scenario(
        id="A-13 true and emitted again",
        graph=chain(q("repeat"), sink()),
        script=["D1 E(a)"],
        sees=["D1 a"],
    ),
    Scenario(
        id="A-14 emitted again by two keeps its identity: one",
        graph=chain(q("repeat", 2), sink()),
        script=["E(a) I(b)"],
        sees=["b a"],
    ),
    Scenario(
        id="A-18 what nothing is connected to does no harm",
        graph=chain(q("forward", outputs=("out", "loose")), sink()),
        script=["D1 E(a)"],
        sees=["D1 a"],
    ),
    Scenario(
        id="A-19 control without data",
        graph=chain(p(), sink()),
        script=["E(a)", "I(b)"],
        sees=["a", "b"],
    ),
    Scenario(
        id="A-29 forwarding does not go round: there is no edge back",
        graph=chain(q("forward"), sink()),
        script=["E(a)", "D1"],
        sees=["a", "D1"],
    ),
    Scenario(
        id="begin comes before all data",
        graph=chain(p(buckets=2), sink()),
        script=["D1 D2 B(a)", "B(b) B(c) D3"],
        sees=["a D1 D2", "b c D3"],
    ),
    Scenario(
        id="at event time: when the watermark has passed, not before",
        graph=chain(sink()),
        script=["D1 T5(a)", "D2", "D3", "D4"],
        watermarks=[None, 4, 5, 6],
        sees=["D1", "D2", "a D3", "D4"],
    ),
    Scenario(
        id="at event time: without rows, by the watermark alone; by time, not by arrival",
        graph=chain(p(), sink()),
        script=["T9(b) T5(a)", ""],
        watermarks=[None, 10],
        sees=["", "a b"],
    ),
    Scenario(
        id="at a time that has passed already: in the same window",
        graph=chain(p(), sink()),
        script=["D1", "D2 T5(a)"],
        watermarks=[5, 5],
        sees=["D1", "a D2"],
    ),
    Scenario(
        id="at a time that passes with the window: behind what the operator before lets out",
        graph=chain(p(), sink()),
        script=["D1", "D2 T5(a)"],
        watermarks=[None, 5],
        sees=["D1", "D2 a"],
    ),
]


@pytest.mark.parametrize("one", CHAINS, ids=lambda one: one.id)
def test_a_scenario(one: Scenario) -> None:
    script = turns(*one.script, watermarks=one.watermarks)
    names = names_of(script)
    for plant in (Plant(one.graph), *(Plant(one.graph, Wild(seed)) for seed in SEEDS)):
        seen = reported(plant.run(script).log, names)
        assert [seen.get(turn.number) for turn in script] == list(one.sees)
        assert plant.log == simulate(one.graph, script)


def test_a5_what_is_emitted_at_begin_middle_and_end_is_received_in_that_window() -> None:
    for delivery in (Delivery.BEGIN, Delivery.IMMEDIATE, Delivery.END_WINDOW):
        source = Node(name="Q", emits=("begin", "row", "end"), answer="forward", delivery=delivery)
        plant = Plant(chain(source, sink())).run(turns("D10 D1 D20 D2", "D3"))
        for window, count in ((1, 4), (2, 2)):
            seen = dict(plant.log["sink", 0])[window]
            got = [entry[2] for entry in seen if entry[0] == "control"]
            assert got == [f"q.Q.0/{window}/{seq}" for seq in range(count)]
            where = [entry[0] for entry in seen]
            if delivery is Delivery.IMMEDIATE and window == 1:
                expected = "begin control row control row row control row control end"
                assert where == expected.split()


def test_a9_every_partition_gets_it_once_also_without_data() -> None:
    script = turns("D1 E(a) I(b)")
    for seed in SEEDS:
        plant = Plant(chain(p(), sink(3)), Wild(seed)).run(script)
        words = [reported(plant.log, names_of(script), bucket=at)[1].split() for at in range(3)]
        assert [[word for word in one if word in "ab"] for one in words] == [["b", "a"]] * 3
        assert sorted(word for one in words for word in one if word == "D1") == ["D1"]


def test_a14_new_tuples_of_two_are_two_and_emitted_once_are_one() -> None:
    for once, count in ((False, 2), (True, 1)):
        two = q("block", 2, emits=("begin",), once=once)
        plant = Plant(chain(two, sink())).run(turns("E(a)"))
        assert len(reported(plant.log, {})[1].split()) == count


def test_a15_both_outputs_get_what_goes_on() -> None:
    two = q("forward", outputs=("left", "right"))
    graph = Graph(
        nodes=(two, Node(name="L", answer="block"), Node(name="R", answer="block")),
        edges=(
            Edge(source=SOURCE, target="Q"),
            Edge(source="Q", output="left", target="L"),
            Edge(source="Q", output="right", target="R"),
        ),
    )
    script = turns("D1 E(a)")
    plant = Plant(graph).run(script)
    assert [reported(plant.log, names_of(script), node) for node in "LR"] == [{1: "D1 a"}] * 2


def diamond(port: str, *inputs: str) -> Graph:
    return Graph(
        nodes=(p("P1"), p("P2"), sink(1, *inputs)),
        edges=(
            Edge(source=SOURCE, target="P1"),
            Edge(source=SOURCE, target="P2"),
            Edge(source="P1", target="sink", port=inputs[0]),
            Edge(source="P2", target="sink", port=port),
        ),
    )


def test_a16_a_diamond_into_one_port_delivers_once_and_into_two_once_per_port() -> None:
    script = turns("E(a) I(b)")
    for graph, sees in ((diamond("x", "x"), "b a"), (diamond("y", "x", "y"), "b b a a")):
        for seed in SEEDS:
            plant = Plant(graph, Wild(seed)).run(script)
            assert reported(plant.log, names_of(script)) == {1: sees}


def test_a17_the_end_waits_for_the_data_of_all_ports() -> None:
    graph = Graph(
        nodes=(p("X"), q("block"), sink(1, "x", "y")),
        edges=(
            Edge(source=SOURCE, target="X"),
            Edge(source=SOURCE, target="Q"),
            Edge(source="X", target="sink", port="x"),
            Edge(source="Q", target="sink", port="y"),
        ),
    )
    script = turns("E(a) D1 D2")
    assert reported(Plant(graph).run(script).log, names_of(script)) == {1: "D1 D2 D1 D2 a"}


def test_a20_the_same_identity_in_a_later_window_is_delivered_again() -> None:
    script = turns("E(a)", "E(b)")
    again = [script[0], type(script[1])(number=2, rows=((),), control=script[0].control)]
    plant = Plant(chain(p(), sink())).run(again)
    assert reported(plant.log, names_of(script)) == {1: "a", 2: "a"}


WINDOW = Window(number=1, time=1_000_000, watermark=None, bucket=0, buckets=1)


def rows(*values: int) -> list[Packed]:
    layout = layout_of(Node(name="n"), "in")
    batch = as_batch([(value, value, 0) for value in values])
    return [one for _, one in by_bucket(pack(batch, layout, 0))]


def controls(count: int, text: str = "x", *, query: str | None = None) -> list[Packed]:
    """Return tuples for the input of an operator, emitted by one before it in a query."""
    placed = [(0, note(text, Delivery.END_WINDOW, 0, 1, seq)) for seq in range(count)]
    if query is not None:
        placed = [(at, replace(one, emitter=f"{query}.before.0")) for at, one in placed]
    return [one for _, one in by_bucket(pack_control(placed, "in", 1))]


def test_a21_an_emission_from_another_thread_is_refused() -> None:
    threads = iter([1, 1, 2, 1, 2])

    class Escaping(Operator):
        def process(self, port: str, batch: pa.RecordBatch) -> None:
            self.emit(batch)
            self.emit(batch)

    runner = AlignedRunner(
        Escaping, Stage(query="q", operator="op", buckets=1), thread=lambda: next(threads)
    )
    with pytest.raises(OperatorError, match="operator op emits from another thread"):
        runner.run(WINDOW, rows(1), {})

    class Telling(Operator):
        def begin_window(self) -> None:
            self.emit_control(Note(name="a"))

    runner = AlignedRunner(
        Telling, Stage(query="q", operator="op", buckets=1), thread=lambda: next(threads)
    )
    with pytest.raises(OperatorError, match="another thread"):
        runner.run(WINDOW, rows(1), {})


def test_a22_after_a_crash_before_the_checkpoint_the_same_identities_come_again() -> None:
    graph, script = chain(p(), q("forward", emits=("end",)), sink()), turns("D1 E(a)", "E(b)")
    plant = Plant(graph).run(script[:1])
    effects = {(one.window, one.id): one for _, one in plant.applied}
    lost = Plant(graph).run(script[:1])
    assert lost.applied == plant.applied
    effects.update({(one.window, one.id): one for _, one in lost.applied})
    assert sorted(effects) == [(1, "S.0/1/0"), (1, "q.Q.0/1/0")]


@pytest.mark.parametrize("crash", range(6))
def test_a23_a_crash_in_the_middle_changes_nothing_and_the_replay_delivers_once(
    crash: int,
) -> None:
    class CrashAt(Wild):
        def crash(self) -> int | None:
            return crash

    graph, script = chain(p(buckets=2), q("forward", 2), sink()), turns("E(a) D1 D2 I(b)")
    plant = Plant(graph, CrashAt(crash)).run(script)
    assert Counter(reported(plant.log, names_of(script))[1].split()) == Counter(
        ["D1", "D2", "a", "b"]
    )
    assert plant.log == simulate(graph, script)


def test_a24_with_another_number_of_partitions_from_window_to_window_it_comes_once() -> None:
    class Growing(Wild):
        count = 0

        def partitions(self) -> int:
            self.count += 1
            return 2 + self.count % 2

    graph, script = chain(p(buckets=6), sink()), turns("E(a) D1", "E(b) D2", "E(c)")
    plant = Plant(graph, Growing(1)).run(script)
    assert reported(plant.log, names_of(script)) == {1: "D1 a", 2: "D2 b", 3: "c"}


def test_a25_a_payload_that_cannot_be_written_is_refused_where_it_is_emitted() -> None:
    @dataclass
    class Handle:
        path: str
        file: object

    class Emitting(Operator):
        def begin_window(self) -> None:
            self.emit_control(Handle(path="f", file=object()))

    runner = AlignedRunner(Emitting, Stage(query="q", operator="op", buckets=1))
    with pytest.raises(ControlError, match=r"Handle\.file holds a builtins\.object, which cannot"):
        runner.run(WINDOW, rows(1), {})


@dataclass(frozen=True)
class SetX:
    x: int


class Multiplying(Operator):
    """Emits rows times a property that control tuples set; keeps it in its state."""

    x = 1

    def restore(self, version: int, blobs: Blobs) -> None:
        self.x = int(blobs["x"])

    def snapshot(self) -> Changes:
        return {"x": str(self.x).encode()}

    def process(self, port: str, batch: pa.RecordBatch) -> None:
        self.emit(pa.RecordBatch.from_pydict({"x": [self.x] * batch.num_rows}))

    def process_control(self, port: str, control: ControlTuple) -> bool:
        self.x = control.payload["x"]
        return False


def test_a26_a_property_changes_between_two_windows_in_every_partition() -> None:
    runner = AlignedRunner(Multiplying, Stage(query="q", operator="op", buckets=4))
    layout = layout_of(Node(name="n", buckets=4), "in")
    state: dict[int, dict[str, bytes]] = {at: {} for at in range(4)}
    change = ControlTuple(
        type="SetX",
        id="S.0/5/0",
        delivery=Delivery.END_WINDOW,
        epoch=5,
        emitter="S.0",
        seq=0,
        text='{"x":2}',
    )
    used: dict[int, set[int]] = {}
    for number in range(4, 8):
        batches = [pack(as_batch([(k, k, 0) for k in range(40)]), layout, 0)]
        if number == 5:
            batches.append(pack_control([(3, change)], "in", 4))
        for bucket in range(4):
            packed = [one for batch in batches for at, one in by_bucket(batch) if at == bucket]
            window = Window(number=number, time=0, watermark=None, bucket=bucket, buckets=4)
            outcome = runner.run(window, packed, state[bucket])
            state[bucket].update({name: blob for name, blob in outcome.changes.items() if blob})
            for one in outcome.emitted:
                if isinstance(one, EmittedRows):
                    used.setdefault(number, set()).update(one.batch.column("x").to_pylist())
    assert used == {4: {1}, 5: {1}, 6: {2}, 7: {2}}


def test_a27_a_file_is_closed_after_its_rows_and_before_those_of_the_next() -> None:
    script = turns("D1 D2 E(f1)", "D3 E(f2) D4")
    for seed in SEEDS:
        plant = Plant(chain(p(buckets=3), sink()), Wild(seed)).run(script)
        words = [reported(plant.log, names_of(script))[at].split() for at in (1, 2)]
        assert [sorted(words[0][:-1]), words[0][-1]] == [["D1", "D2"], "f1"]
        assert [sorted(words[1][:-1]), words[1][-1]] == [["D3", "D4"], "f2"]


def test_a28_one_batch_in_one_partition_and_many_in_many_deliver_the_same() -> None:
    graph = chain(p("P1", 3), q("forward", 4, emits=("row", "end")), sink(2))
    script = turns(["D10 I(a) D11 E(b)", "D20 D21 I(c)"], ["D30", "B(d) D31"])
    steady = Plant(graph).run(script)
    for seed in range(10):
        wild = Plant(graph, Wild(seed)).run(script)
        assert (wild.log, wild.state, wild.applied) == (steady.log, steady.state, steady.applied)


def test_a30_ten_thousand_in_a_window_work_and_one_more_is_refused_by_name() -> None:
    seen: list[str] = []

    class Counting(Operator):
        def process_control(self, port: str, control: ControlTuple) -> bool:
            seen.append(control.id)
            return False

    runner = AlignedRunner(Counting, Stage(query="q", operator="op", buckets=1))
    outcome = runner.run(WINDOW, controls(10_000, query="q"), {})
    assert seen == [f"S.0/1/{seq}" for seq in range(10_000)]
    assert sum(isinstance(one, EmittedControl) for one in outcome.emitted) == 10_000
    with pytest.raises(ControlLimitError, match=r"input in of operator op has 10001 .* from q\.be"):
        runner.run(WINDOW, controls(10_001, query="q"), {})


def test_a30_what_a_query_catches_up_with_is_not_refused_however_much_its_sources_bring() -> None:
    class Forwarding(Operator):
        def process_control(self, port: str, control: ControlTuple) -> bool:
            return False

    runner = AlignedRunner(Forwarding, Stage(query="q", operator="op", buckets=1))
    outcome = runner.run(WINDOW, controls(20_001), {})
    assert sum(isinstance(one, EmittedControl) for one in outcome.emitted) == 20_001


def test_a30_bytes_are_limited_too_on_arrival_and_at_emission() -> None:
    stage = Stage(query="q", operator="op", buckets=1, limits=Limits(bytes=100, payload=40))
    with pytest.raises(ControlLimitError, match="the limit is 10000 tuples, 100 bytes"):
        AlignedRunner(Operator, stage).run(WINDOW, controls(10, query="q"), {})

    class Emitting(Operator):
        names: tuple[str, ...] = ("short",) * 7

        def begin_window(self) -> None:
            for name in self.names:
                self.emit_control(Note(name=name))

    with pytest.raises(ControlLimitError, match="emits more control tuples in window 1"):
        AlignedRunner(Emitting, stage).run(WINDOW, rows(1), {})

    class Large(Emitting):
        names = ("x" * 50,)

    with pytest.raises(ControlLimitError, match="payload of control tuple Note has 61 bytes"):
        AlignedRunner(Large, stage).run(WINDOW, rows(1), {})


def test_a17_the_engines_own_marks_never_reach_an_operator() -> None:
    script = turns("D1 E(a)", "D2", watermarks=[1, 2])
    plant = Plant(chain(p(), sink())).run(script)
    assert {one.id for _, one in plant.applied} == {"S.0/1/0"}
