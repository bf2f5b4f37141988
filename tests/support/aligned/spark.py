"""Graphs of aligned operators on Spark, fed by a script, and what their operators saw.

Each turn of a script is one micro-batch. How its rows and control tuples are spread over tasks and
cut into Arrow batches is drawn from a seed, copies of control tuples among it.
"""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pe_agent.aligned.data import RowsFrame
from pe_agent.aligned.plan import StreamPlan
from pe_agent.aligned.runtime.frames import encode_control
from pe_agent.datasource.schemas import as_arrow_schema
from streambroker.operators import Operator, OperatorOptions, OperatorStream, Stream, apply
from streambroker_core.control.operators.operator import Changes
from streambroker_core.control.runtime.packing import sequence
from streambroker_core.control.tuples import Limits
from support.aligned.graphs import SOURCE, Aware, Entry, Graph, Log, Node, Row, Scripted, Turn

DDL = "k bigint, v bigint, t timestamp, _seq bigint, _control binary"
SCHEMA = as_arrow_schema(DDL)
IN_ORDER = -1
"""A seed with which each task has its rows in their order, as files have them."""
SHUFFLE = "spark.sql.shuffle.partitions"


def renumbered(script: Sequence[Turn], passed: int | None = None) -> list[Turn]:
    """Return the turns with Spark's numbers of batches; with a last one without rows, if told."""
    out = [replace(turn, number=at) for at, turn in enumerate(script)]
    if passed is not None:
        out.append(Turn(number=len(out), rows=((),), control=(), watermark=passed))
    return out


class Script(DataSource):
    """``format("script")``: a pickled list of turns, one for each micro-batch."""

    @classmethod
    def name(cls) -> str:
        return "script"

    def schema(self) -> str:
        return DDL

    def streamReader(self, schema: Any) -> ScriptReader:  # noqa: N802
        del schema
        options = self.options
        return ScriptReader(options["path"], int(options["tasks"]), int(options["seed"]))


class Part(InputPartition):
    def __init__(self, batches: list[list[tuple[int, Row | bytes]]]) -> None:
        self.batches = batches


class ScriptReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, path: str, tasks: int, seed: int) -> None:
        self._turns: list[Turn] = pickle.loads(Path(path).read_bytes())
        self._tasks, self._seed = tasks, seed

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"next": 0}

    def latestOffset(self, start: Mapping[str, int], limit: Any) -> dict[str, int]:  # noqa: N802
        del limit
        return {"next": min(start["next"] + 1, len(self._turns))}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """All is there."""

    def partitions(self, start: Mapping[str, int], end: Mapping[str, int]) -> list[InputPartition]:
        if start == end:
            return []
        (turn,) = self._turns[start["next"] : end["next"]]
        random = Random(f"{self._seed}/{turn.number}")
        tasks: list[list[tuple[int, Row | bytes]]] = [[] for _ in range(self._tasks)]
        for part, rows in enumerate(turn.rows):
            for number, row in enumerate(rows):
                random.choice(tasks).append((sequence(part=part, number=number), row))
        for position, control in turn.control:
            for task in random.choices(tasks, k=random.choice((1, 1, 3))):
                task.append((position, encode_control(control)))
        if self._seed == IN_ORDER:
            for task in tasks:
                task.sort(key=lambda one: (one[0], isinstance(one[1], tuple)))
            return [Part([task]) for task in tasks if task]
        return [Part(_cut(task, random)) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Part)
        for batch in partition.batches:
            yield pa.RecordBatch.from_pylist([_row(*one) for one in batch], schema=SCHEMA)


def _cut(
    task: list[tuple[int, Row | bytes]], random: Random
) -> list[list[tuple[int, Row | bytes]]]:
    random.shuffle(task)
    cut = random.randrange(len(task) + 1)
    return [one for one in (task[:cut], task[cut:]) if one]


def _row(seq: int, what: Row | bytes) -> dict[str, Any]:
    if isinstance(what, bytes):
        return {"k": None, "v": None, "t": None, "_seq": seq, "_control": what}
    time = datetime.fromtimestamp(what[2] / 1_000_000, UTC)
    return {"k": what[0], "v": what[1], "t": time, "_seq": seq, "_control": None}


def scripted(
    spark: SparkSession, folder: Path, script: Sequence[Turn], *, tasks: int = 2, seed: int = 0
) -> Stream:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "script"
    path.write_bytes(pickle.dumps(list(script)))
    spark.dataSource.register(Script)
    frame = (
        spark.readStream.format("script")
        .option("path", str(path))
        .option("tasks", str(tasks))
        .option("seed", str(seed))
        .load()
    )
    return Stream(StreamPlan(spark=spark, data=RowsFrame(frame=frame, mixed=True)))


class Recorded(Scripted):
    """Writes down what it saw in a file for each window."""

    def __init__(self, node: Node, folder: str) -> None:
        self.words: list[Entry] = []
        super().__init__(node, self.words)
        self._folder = folder

    def snapshot(self) -> Changes:
        at = self.window
        path = Path(self._folder) / f"{self._node.name}-{at.bucket}-{at.number}.json"
        hidden = path.with_name(f".{path.name}.{os.getpid()}")
        hidden.write_text(json.dumps(self.words))
        hidden.rename(path)
        return super().snapshot()


class AwareRecorded(Recorded, Aware):
    """The same, and takes control tuples."""


def made(node: Node, folder: str) -> Operator:
    return (Recorded if node.answer is None else AwareRecorded)(node, folder)


def on_spark(
    graph: Graph, source: Stream, folder: Path, **settings: Any
) -> dict[str, OperatorStream]:
    folder.mkdir(parents=True, exist_ok=True)
    out: dict[str, OperatorStream] = {}
    for node in graph.nodes:
        ports: dict[str, Stream] = {}
        for _, edge in graph.into(node.name):
            feed = source if edge.source == SOURCE else out[edge.source].outputs[edge.output]
            known = ports.get(edge.port)
            ports[edge.port] = feed if known is None else known.union(feed)
        if node.keyed:
            ports = {port: one.key_by("k") for port, one in ports.items()}
        out[node.name] = apply(
            partial(made, node, str(folder)),
            ports,
            name=node.name,
            schemas=dict.fromkeys(node.outputs, "k bigint, v bigint, t timestamp"),
            options=OperatorOptions(buckets=node.buckets, limits=settings.get("limits", Limits())),
        )
    return out


def run(stream: Stream, checkpoint: Path, *, partitions: int = 2) -> str:
    """Run a stream to the end of its script; return the query's id."""
    with configured(stream.spark, {SHUFFLE: str(partitions)}):
        return drain(stream.to_df().writeStream.format("noop"), checkpoint)


@contextmanager
def configured(spark: SparkSession, conf: Mapping[str, str]) -> Iterator[None]:
    """Set what a query is started with, for the length of a block."""
    before = {name: spark.conf.get(name) for name in conf}
    for name, value in conf.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, former in before.items():
            spark.conf.set(name, str(former))


def drain(writer: DataStreamWriter, checkpoint: Path) -> str:
    """Run a query to the end of what there is; return its id."""
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    return str(query.id)


def collected(frame: DataFrame, checkpoint: Path) -> dict[int, list[tuple[Any, ...]]]:
    """Run a frame to the end of what there is; return its rows by window."""
    found: dict[int, list[tuple[Any, ...]]] = {}

    def take(batch: DataFrame, number: int) -> None:
        found[number] = [tuple(row) for row in batch.collect()]

    drain(frame.writeStream.foreachBatch(take), checkpoint)
    return found


def seen(folder: Path, query: str) -> Log:
    """Return what operators have written down, with ``q`` for the query's id."""
    log: Log = {}
    found = []
    for path in folder.glob("*.json"):
        node, bucket, window = path.stem.rsplit("-", 2)
        entries = json.loads(path.read_text().replace(query, "q"))
        found.append((node, int(bucket), int(window), tuple(map(tuple, entries))))
    for name, number, at, words in sorted(found):
        log.setdefault((name, number), []).append((at, words))
    return log


def ends(nodes: Mapping[str, OperatorStream], names: Sequence[str]) -> Stream:
    first, *others = (nodes[name] for name in names)
    return first.union(*others)
