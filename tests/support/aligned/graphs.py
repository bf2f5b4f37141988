"""Graphs of aligned operators, run in memory: packed, shuffled, cut and crashed as a test wants.

A graph's nodes stand in the order in which they run. ``SOURCE`` is a node that is fed by a script:
per window and source partition a text of tokens, ``D7`` a row, ``I(a)``, ``E(a)``, ``B(a)`` and
``T5(a)`` control tuples that are immediate, at the end, at the beginning and at event time 5.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, zip_longest
from random import Random
from typing import TypeVar

import pyarrow as pa

from streambroker_core.control.operators.operator import Blobs, Changes, Input, Operator, Window
from streambroker_core.control.runtime.buckets import Layout
from streambroker_core.control.runtime.control_rows import PositionedControl
from streambroker_core.control.runtime.emitter import EmittedControl, Stage
from streambroker_core.control.runtime.hop import Handover
from streambroker_core.control.runtime.packing import (
    Arrival,
    Packed,
    by_bucket,
    pack,
    pack_control,
    sequence,
)
from streambroker_core.control.runtime.runner import AlignedRunner, AppliedControl, WindowResult
from streambroker_core.control.tuples import ControlTuple, Delivery, Limits
from support.aligned.window import apply

QUERY = "q"
SOURCE = "S"
ROWS = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("t", pa.int64())])

Row = tuple[int, int, int]
"""Key, value, event time."""
Entry = tuple[str, ...]
"""What an operator saw: ``("row", port, value)``, ``("control", port, id)``, ``("begin",)``, …"""
Log = dict[tuple[str, int], list[tuple[int, tuple[Entry, ...]]]]
"""By node and bucket: the windows it ran, and what it saw in each."""
Given = Packed | Arrival
_Any = TypeVar("_Any")

_TOKEN = re.compile(r"D(\d+)(?:@(\d+))?|([BIE]|T(\d+))\((\w+)\)")
_DELIVERY = {"B": Delivery.BEGIN, "I": Delivery.IMMEDIATE, "E": Delivery.END_WINDOW}


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """The payload of all control tuples of these tests."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """An operator that does what it is told.

    Attributes:
        answer: None for one that knows nothing of control; ``forward``, ``block``, ``repeat``
            (emits the tuple again and keeps it) or ``new`` (emits another with its payload).
        emits: points at which it emits a tuple of its own: ``begin``, ``end``, or ``row`` after
            each row whose value ends with 0.
        delivery: of these.
        keyed: rows are spread by ``k``; else by their sequence.
        stays: it declares ``stays_in_bucket``.
    """

    name: str
    inputs: tuple[str, ...] = ("in",)
    outputs: tuple[str, ...] = ("out",)
    buckets: int = 1
    answer: str | None = None
    emits: tuple[str, ...] = ()
    delivery: Delivery = Delivery.END_WINDOW
    once: bool = False
    keyed: bool = True
    stays: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """An output of a node that feeds a port of another."""

    source: str
    target: str
    output: str = "out"
    port: str = "in"


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]

    def node(self, name: str) -> Node:
        return next(one for one in self.nodes if one.name == name)

    def into(self, name: str) -> list[tuple[int, Edge]]:
        """Return the edges that lead to a node, with their rank in the union of their port."""
        ranks: Counter[str] = Counter()
        found = []
        for edge in self.edges:
            if edge.target == name:
                found.append((ranks[edge.port], edge))
                ranks[edge.port] += 1
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One window's input; event time ``watermark`` has passed when it begins."""

    number: int
    rows: tuple[tuple[Row, ...], ...]
    control: tuple[PositionedControl, ...]
    watermark: int | None = None


def note(name: str, delivery: Delivery, partition: int, window: int, seq: int) -> ControlTuple:
    """Return a control tuple as a source emits it."""
    emitter = f"{SOURCE}.{partition}"
    return ControlTuple(
        type="Note",
        id=f"{emitter}/{window}/{seq}",
        delivery=delivery,
        epoch=window,
        emitter=emitter,
        seq=seq,
        text=f'{{"name":"{name}"}}',
    )


def turns(*windows: str | Sequence[str], watermarks: Sequence[int | None] = ()) -> list[Turn]:
    """Read a script: windows from 1 on, each a text or one text per source partition."""
    out = []
    for number, texts in enumerate(windows, 1):
        rows, placed = [], []
        for partition, text in enumerate([texts] if isinstance(texts, str) else texts):
            of, control = _read(text, partition, number)
            rows.append(of)
            placed += control
        watermark = watermarks[number - 1] if watermarks else None
        out.append(
            Turn(number=number, rows=tuple(rows), control=tuple(placed), watermark=watermark)
        )
    return out


def _read(
    text: str, partition: int, window: int
) -> tuple[tuple[Row, ...], list[PositionedControl]]:
    rows, placed = list[Row](), list[PositionedControl]()
    for found in _TOKEN.finditer(text):
        value, time, kind, at, name = found.groups()
        if value is not None:
            rows.append((int(value), int(value), int(time or 0)))
            continue
        control = note(
            name, _DELIVERY.get(kind, Delivery.END_WINDOW), partition, window, len(placed)
        )
        if at is not None:
            control = at_time(control, int(at))
        placed.append((sequence(part=partition, number=len(rows)), control))
    return tuple(rows), placed


def at_time(control: ControlTuple, at: int) -> ControlTuple:
    return replace(control, delivery=Delivery.AT_TIME, at=at)


class Scripted(Operator):
    """Does what its node says and writes down what it sees; counts rows in its state."""

    def __init__(self, node: Node, seen: list[Entry], fail_at: int | None = None) -> None:
        self.inputs = tuple(Input(name=port) for port in node.inputs)
        self.outputs = node.outputs
        self.stays_in_bucket = node.stays  # type: ignore[misc]
        self._node, self._seen, self._fail_at = node, seen, fail_at
        self._count = 0
        self._steps = 0

    def restore(self, version: int, blobs: Blobs) -> None:
        assert version == self.state_version
        self._count = int(blobs["count"])

    def snapshot(self) -> Changes:
        return {"count": str(self._count).encode()}

    def begin_window(self) -> None:
        self._saw("begin")
        self._emit_at("begin")

    def advance(self, time: int) -> None:
        self._saw("advance", str(time))

    def process(self, port: str, batch: pa.RecordBatch) -> None:
        first = 0
        for at, value in enumerate(batch.column("v").to_pylist()):
            self._count += 1
            self._saw("row", port, str(value))
            if "row" in self._node.emits and value % 10 == 0:
                self._pass(batch.slice(first, at + 1 - first))
                self._emit_at("row")
                first = at + 1
        self._pass(batch.slice(first))

    def _pass(self, batch: pa.RecordBatch) -> None:
        for output in self.outputs:
            self.emit(batch, output)

    def end_window(self) -> None:
        self._emit_at("end")
        self._saw("end")

    def answer(self, port: str, control: ControlTuple) -> bool:
        self._saw("control", port, control.id)
        if self._node.answer == "repeat":
            self.emit_control(control)
        if self._node.answer == "new":
            self.emit_control(Note(name=control.payload["name"]), delivery=self._node.delivery)
        return self._node.answer != "forward"

    def _emit_at(self, point: str) -> None:
        if point in self._node.emits:
            once = point if self._node.once else None
            self.emit_control(Note(name=point), delivery=self._node.delivery, once=once)

    def _saw(self, *entry: str) -> None:
        if self._fail_at is not None and self._steps == self._fail_at:
            raise Crash
        self._steps += 1
        self._seen.append(entry)


class Aware(Scripted):
    def process_control(self, port: str, control: ControlTuple) -> bool:
        return self.answer(port, control)


class Crash(Exception):  # noqa: N818  -- what happened, as a test says it
    """The process of a bucket died in the middle of a window."""


class Steady:
    """Where batches are cut, the order of arrival, partitions and crashes: nothing differs."""

    def cuts(self, rows: int) -> list[int]:
        del rows
        return []

    def shuffled(self, given: list[_Any]) -> list[_Any]:
        return given

    def partitions(self) -> int:
        return 1

    def crash(self) -> int | None:
        """Return after how many steps a bucket is to crash."""
        return None


class Wild(Steady):
    """All may differ from run to run without a change of the result."""

    def __init__(self, seed: int, *, crashes: bool = True) -> None:
        self._random, self._crashes = Random(seed), crashes

    def cuts(self, rows: int) -> list[int]:
        return sorted(self._random.choices(range(rows + 1), k=self._random.randrange(4)))

    def shuffled(self, given: list[_Any]) -> list[_Any]:
        self._random.shuffle(given)
        return given

    def partitions(self) -> int:
        return self._random.choice((1, 2, 3, 4))

    def crash(self) -> int | None:
        return self._random.randrange(8) if self._crashes and self._random.random() < 0.3 else None


@dataclass
class Plant:
    """Runs a graph window by window on ``AlignedRunner``, with state in a dict."""

    graph: Graph
    chance: Steady = field(default_factory=Steady)
    limits: Limits = field(default_factory=Limits)
    log: Log = field(default_factory=dict)
    applied: list[tuple[str, AppliedControl]] = field(default_factory=list)
    outcomes: dict[tuple[str, int], WindowResult] = field(default_factory=dict)
    state: dict[tuple[str, int], dict[str, bytes]] = field(default_factory=dict)
    wakes: dict[tuple[str, int], int | None] = field(default_factory=dict)
    before: int | None = None

    def run(self, windows: Iterable[Turn]) -> Plant:
        for turn in windows:
            self.outcomes = {}
            for node in self.graph.nodes:
                for bucket, packed in self._arrivals(node, turn).items():
                    self._window(node, bucket, turn, packed)
            self.before = turn.watermark
        return self

    def _arrivals(self, node: Node, turn: Turn) -> dict[int, list[Given]]:
        arrived: dict[int, list[Given]] = {}
        for rank, edge in self.graph.into(node.name):
            layout = layout_of(node, edge.port)
            for batch in self._sent(edge, layout, turn, sequence(rank=rank)):
                for bucket, one in by_bucket(batch):
                    arrived.setdefault(bucket, []).append(one)
        for (name, bucket), wake in self.wakes.items():
            if name == node.name and due(wake, turn.watermark):
                arrived.setdefault(bucket, [])
        return {at: self.chance.shuffled(arrived[at]) for at in sorted(arrived)}

    def _sent(self, edge: Edge, layout: Layout, turn: Turn, base: int) -> Iterator[pa.RecordBatch]:
        tasks: dict[int, list[PositionedControl]] = {}
        if edge.source == SOURCE:
            for partition, rows in enumerate(turn.rows):
                first = base + sequence(part=partition)
                yield from self._packed(as_batch(rows), layout, first)
            for at, (position, control) in enumerate(turn.control):
                tasks.setdefault(at % 2, []).append((base + position, control))
        partitions = self.chance.partitions()
        for (name, bucket), outcome in self.outcomes.items():
            for one in outcome.emitted if name == edge.source else ():
                if one.output != edge.output:
                    continue
                if isinstance(one, EmittedControl):
                    placed = (base + one.position, one.control)
                    tasks.setdefault(bucket % partitions, []).append(placed)
                else:
                    yield from self._packed(one.batch, layout, base + one.seq)
        for sent in tasks.values():
            yield pack_control(sent, edge.port, layout.buckets)

    def _packed(self, batch: pa.RecordBatch, layout: Layout, seq: int) -> Iterator[pa.RecordBatch]:
        first = 0
        for cut in [*self.chance.cuts(batch.num_rows), batch.num_rows]:
            yield pack(batch.slice(first, cut - first), layout, seq + first)
            first = cut

    def _window(self, node: Node, bucket: int, turn: Turn, packed: list[Given]) -> None:
        where = (node.name, bucket)
        blobs = self.state.setdefault(where, {})
        before = dict(blobs)
        crash = self.chance.crash()
        if crash is not None:
            try:
                again = self._run(node, bucket, turn, packed, [], crash)
            except Crash:
                again = None
            assert blobs == before, "a window that failed has changed state"
        seen: list[Entry] = []
        outcome = self._run(node, bucket, turn, self.chance.shuffled(packed), seen)
        if crash is not None and again is not None:
            assert again == outcome, "a replayed window came to something else"
        self.state[where] = apply(blobs, outcome)
        self.outcomes[where] = outcome
        self.wakes[where] = outcome.wake_at
        self.applied += [(node.name, one) for one in outcome.applied]
        self.log.setdefault(where, []).append((turn.number, tuple(seen)))

    def _stage(self, node: Node) -> Stage:
        return Stage(query=QUERY, operator=node.name, buckets=node.buckets, limits=self.limits)

    def _run(
        self,
        node: Node,
        bucket: int,
        turn: Turn,
        packed: Sequence[Given],
        seen: list[Entry],
        fail_at: int | None = None,
    ) -> WindowResult:
        kind = Scripted if node.answer is None else Aware
        runner = AlignedRunner(
            lambda: kind(node, seen, fail_at),
            self._stage(node),
            layouts={port: layout_of(node, port) for port in node.inputs},
        )
        watermark, later = in_turn(self.graph, node, self.before, turn.watermark)
        window = Window(
            number=turn.number,
            time=turn.number * 1_000_000,
            watermark=watermark,
            bucket=bucket,
            buckets=node.buckets,
            later=later,
        )
        return runner.run(window, packed, self.state[node.name, bucket])


@dataclass
class SharedPlant(Plant):
    """Runs a chain in one hop: the operators of a bucket hand over what they emit."""

    def run(self, windows: Iterable[Turn]) -> Plant:
        nodes = self.graph.nodes
        for turn in windows:
            self.outcomes = {}
            given = self._arrivals(nodes[0], turn)
            for node, following in zip_longest(nodes, nodes[1:]):
                for bucket, arrived in given.items():
                    self._window(node, bucket, turn, arrived)
                if following is not None:
                    handover = Handover("out", ROWS, layout_of(following, "in"), lambda rows: rows)
                    handed = {
                        bucket: handover.arrivals(self.outcomes[node.name, bucket], bucket)
                        for bucket in given
                    }
                    handover.check(handed)
                    given = {bucket: [*some] for bucket, some in handed.items() if some}
        return self

    def _stage(self, node: Node) -> Stage:
        return replace(super()._stage(node), shared=node is not self.graph.nodes[-1])


def due(wake: int | None, watermark: int | None) -> bool:
    """Whether a bucket gets a window without anything that arrived."""
    return wake is not None and watermark is not None and wake <= watermark


def in_turn(
    graph: Graph, node: Node, before: int | None, now: int | None
) -> tuple[int | None, int | None]:
    """Return what has passed before the rows of a window, and what passes behind them.

    An operator behind another hears of time together with what comes out of that one.
    """
    behind = any(edge.source != SOURCE for _, edge in graph.into(node.name))
    return (before, now) if behind and before != now else (now, None)


def layout_of(node: Node, port: str) -> Layout:
    key = (("k", pa.int64()),) if node.keyed else ()
    return Layout(port=port, buckets=node.buckets, key=key)


def as_batch(rows: Sequence[Row]) -> pa.RecordBatch:
    columns = [pa.array([row[at] for row in rows], pa.int64()) for at in range(3)]
    return pa.RecordBatch.from_arrays(columns, schema=ROWS)


def chain(*nodes: Node) -> Graph:
    """Return a graph in which each node feeds the next; the source feeds the first."""
    names = [SOURCE, *(one.name for one in nodes)]
    return Graph(
        nodes=nodes, edges=tuple(Edge(source=low, target=high) for low, high in pairwise(names))
    )


def sink(buckets: int = 1, *inputs: str) -> Node:
    return Node(name="sink", buckets=buckets, answer="block", inputs=inputs or ("in",))


def reported(
    log: Log, names: Mapping[str, str], node: str = "sink", bucket: int = 0
) -> dict[int, str]:
    """Return by window what a bucket saw, as text: ``D1 a D2``, names for identities."""
    out = {}
    for window, entries in log.get((node, bucket), ()):
        words = []
        for kind, *rest in entries:
            if kind == "row":
                words.append(f"D{rest[1]}")
            elif kind == "control":
                words.append(names.get(rest[1], rest[1]))
        out[window] = " ".join(words)
    return out


def names_of(windows: Iterable[Turn]) -> dict[str, str]:
    return {one.id: one.payload["name"] for turn in windows for _, one in turn.control}
