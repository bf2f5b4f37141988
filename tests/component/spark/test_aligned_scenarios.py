"""Control tuples on Spark: what operators see is what the model says, however Spark cuts it.

The scenarios are those of the core's tests; here several stand in one script, a window each.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's users write it

from streambroker_core.control.tuples import Delivery
from support.aligned.draws import graphs, windows
from support.aligned.graphs import (
    SOURCE,
    Edge,
    Graph,
    Node,
    Turn,
    chain,
    names_of,
    reported,
    sink,
    turns,
)
from support.aligned.model import simulate
from support.aligned.spark import IN_ORDER, ends, on_spark, renumbered, run, scripted, seen

CHAIN = turns(
    "D1 I(a) D2 E(b)",
    "E(c) I(d) E(e) I(f)",
    ["E(g) D3", "E(g) D4"],
    "B(h) D6 D7 D8 D9 I(i)",
)


LONG = pytest.mark.long


SPREAD = pytest.mark.parametrize(
    ("tasks", "partitions"),
    [pytest.param(1, 1, marks=LONG), (2, 2), pytest.param(4, 4, marks=LONG)],
)


@SPREAD
def test_a_chain_sees_what_the_model_says(
    spark: SparkSession, tmp_path: Path, tasks: int, partitions: int
) -> None:
    """A-1 to A-4, A-6 to A-10, A-19, A-20 and A-28."""
    graph = chain(Node(name="P1", buckets=3), Node(name="P2", buckets=2), sink(2))
    script = renumbered(CHAIN)
    source = scripted(spark, tmp_path, script, tasks=tasks, seed=tasks)
    nodes = on_spark(graph, source, tmp_path / "seen")
    query = run(nodes["sink"], tmp_path / "ck", partitions=partitions)
    assert seen(tmp_path / "seen", query) == simulate(graph, script)


FUSED = ("where", "operator")


@pytest.mark.parametrize("way", FUSED)
@pytest.mark.parametrize("partitions", [1, 2, 4])
@pytest.mark.parametrize("tasks", [pytest.param(1, id="in-one-batch"), 3])
@pytest.mark.long
def test_deliveries_do_not_depend_on_partitions_batches_and_shuffles(
    spark: SparkSession, tmp_path: Path, way: str, partitions: int, tasks: int
) -> None:
    """A-28: what does not know of control runs in the same task, or behind a shuffle."""
    script = renumbered(CHAIN)
    graph = chain(Node(name="P"), sink(2))
    source = scripted(
        spark, tmp_path, script, tasks=tasks, seed=IN_ORDER if tasks == 1 else partitions
    )
    if way == "where":
        source = source.where("v > 0").select("*").with_columns({"v": F.col("v") + 0})
    nodes = on_spark(graph if way == "operator" else chain(sink(2)), source, tmp_path / "seen")
    query = run(nodes["sink"], tmp_path / "ck", partitions=partitions)
    of_sink = {where: found for where, found in simulate(graph, script).items() if "sink" in where}
    log = seen(tmp_path / "seen", query)
    assert {where: found for where, found in log.items() if "sink" in where} == of_sink


@pytest.mark.slow
@pytest.mark.parametrize("cut", [pytest.param(1, marks=LONG), 3])
def test_a_stream_cut_into_windows_keeps_its_order(
    spark: SparkSession, tmp_path: Path, cut: int
) -> None:
    """One batch or many: rows and tuples of a stream come in the same order."""
    epochs = ["D1 I(a) D2 D3", "I(b) D4 D5", "D6 I(c) D7 E(d)"]
    script = renumbered(turns(*epochs) if cut == len(epochs) else turns(" ".join(epochs)))
    source = scripted(spark, tmp_path, script, tasks=3, seed=cut)
    nodes = on_spark(chain(Node(name="P"), sink()), source, tmp_path / "seen")
    log = seen(tmp_path / "seen", run(nodes["sink"], tmp_path / "ck"))
    words = reported(log, names_of(script))
    assert " ".join(words[window] for window in sorted(words)) == "D1 a D2 D3 b D4 D5 D6 c D7 d"


@pytest.mark.long
@settings(max_examples=12, phases=(Phase.generate,), suppress_health_check=list(HealthCheck))
@given(graph=graphs(), script=windows(timed=False), drawn=st.tuples(*[st.integers(1, 4)] * 3))
def test_any_graph_and_partitioning_gives_what_the_model_says(
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
    graph: Graph,
    script: list[Turn],
    drawn: tuple[int, int, int],
) -> None:
    assume(copies(graph) <= 8)
    graph = replace(graph, nodes=tuple(replace(node, keyed=True) for node in graph.nodes))
    script, (tasks, partitions, seed) = renumbered(script), drawn
    folder = tmp_path_factory.mktemp("drawn")
    source = scripted(spark, folder, script, tasks=tasks, seed=seed)
    nodes = on_spark(graph, source, folder / "seen")
    query = run(ends(nodes, last_of(graph)), folder / "ck", partitions=partitions)
    assert seen(folder / "seen", query) == simulate(graph, script)


def last_of(graph: Graph) -> list[str]:
    """Return the nodes that feed no other."""
    feeding = {edge.source for edge in graph.edges}
    return [node.name for node in graph.nodes if node.name not in feeding]


def copies(graph: Graph) -> int:
    """Return how often operators stand in Spark's plan, which is a tree."""
    count: dict[str, int] = {}
    for node in graph.nodes:
        count[node.name] = 1 + sum(count.get(edge.source, 0) for _, edge in graph.into(node.name))
    return sum(count[name] for name in last_of(graph))


@pytest.mark.slow
@SPREAD
def test_answers_and_emissions_come_as_the_model_says(
    spark: SparkSession, tmp_path: Path, tasks: int, partitions: int
) -> None:
    """A-5 and A-11 to A-15: forwarded, blocked, emitted again, new; at begin, row and end."""
    answers = {
        "forward": Node(name="forward", buckets=2, answer="forward", outputs=("out", "loose")),
        "block": Node(name="block", answer="block"),
        "repeat": Node(name="repeat", buckets=2, answer="repeat"),
        "new": Node(name="new", buckets=2, answer="new", delivery=Delivery.IMMEDIATE),
        "emit": Node(name="emit", answer="forward", emits=("begin", "row", "end")),
        "once": Node(name="once", buckets=2, answer="block", emits=("end",), once=True),
    }
    graph = Graph(
        nodes=(*answers.values(), sink(2, *answers)),
        edges=(
            *(Edge(source=SOURCE, target=name) for name in answers),
            *(Edge(source=name, target="sink", port=name) for name in answers),
        ),
    )
    script = renumbered(turns("D10 D1 E(a) I(b) D20 D2", "E(c)"))
    source = scripted(spark, tmp_path, script, tasks=tasks, seed=tasks)
    nodes = on_spark(graph, source, tmp_path / "seen")
    query = run(nodes["sink"], tmp_path / "ck", partitions=partitions)
    assert seen(tmp_path / "seen", query) == simulate(graph, script)


@SPREAD
def test_a_diamond_delivers_once_per_port_after_the_rows_of_both(
    spark: SparkSession, tmp_path: Path, tasks: int, partitions: int
) -> None:
    """A-16 and A-17: two ways into one port, and into two ports."""
    graph = Graph(
        nodes=(
            Node(name="P1"),
            Node(name="P2", buckets=2),
            replace(sink(1), name="one"),
            replace(sink(2, "x", "y"), name="two"),
        ),
        edges=(
            Edge(source=SOURCE, target="P1"),
            Edge(source=SOURCE, target="P2"),
            Edge(source="P1", target="one"),
            Edge(source="P2", target="one"),
            Edge(source=SOURCE, target="two", port="x"),
            Edge(source="P2", target="two", port="y"),
        ),
    )
    script = renumbered(turns("E(a) D1 I(b) D2", "D3"))
    source = scripted(spark, tmp_path, script, tasks=tasks, seed=tasks)
    nodes = on_spark(graph, source, tmp_path / "seen")
    query = run(ends(nodes, ["one", "two"]), tmp_path / "ck", partitions=partitions)
    log = seen(tmp_path / "seen", query)
    assert log == simulate(graph, script)
    assert reported(log, names_of(script), "one")[0].split().count("a") == 1
    assert reported(log, names_of(script), "two")[0].split().count("a") == 2


@pytest.mark.slow
@SPREAD
def test_tuples_wait_for_their_event_time_also_behind_an_operator(
    spark: SparkSession, tmp_path: Path, tasks: int, partitions: int
) -> None:
    """AT_TIME: by Spark's watermark, in the batch without rows that follows the last one, too.

    And at two inputs with an event time each, in the same query.
    """
    behind = chain(Node(name="P", buckets=2), sink(2))
    ports = [Edge(source=SOURCE, target="two", port=port) for port in ("x", "y")]
    graph = Graph(
        nodes=(*behind.nodes, replace(sink(2, "x", "y"), name="two")),
        edges=(*behind.edges, *ports),
    )
    times = {0: None, 1: 5_000, 2: 5_000, 3: 6_000}
    script = [
        replace(turn, watermark=times[turn.number])
        for turn in renumbered(
            turns("D1@5000 T5500(a) T9000(b)", "D2@4000 T1000(c)", "D3@6000", "D4@12000")
        )
    ]
    source = scripted(spark, tmp_path, script, tasks=tasks, seed=tasks)
    nodes = on_spark(graph, source.with_watermark("t", "0 seconds"), tmp_path / "seen")
    query = run(ends(nodes, ["sink", "two"]), tmp_path / "ck", partitions=partitions)
    log = seen(tmp_path / "seen", query)
    assert log == simulate(graph, renumbered(script, passed=12_000))
    words = reported(log, names_of(script))
    assert {window: one for window, one in words.items() if "b" in one} == {4: "b"}
