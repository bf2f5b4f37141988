"""What a graph of aligned operators has to do, said as simply as can be: the oracle of the runner.

Rows one by one in Python lists, no Arrow but for the hash of a key or a place. Past an operator
that does not take control the first bucket forwards a tuple. Whatever the runner does to be fast or
to survive, its operators have to see the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from streambroker_core.control.runtime.buckets import assign_buckets
from streambroker_core.control.runtime.packing import sequence
from streambroker_core.control.tuples import ControlTuple, Delivery
from support.aligned.graphs import (
    QUERY,
    SOURCE,
    Entry,
    Graph,
    Log,
    Node,
    Row,
    Turn,
    as_batch,
    due,
    in_turn,
    layout_of,
)

Sent = tuple[str, int, Row | ControlTuple]
"""Output, place, and what was sent.

An ``IMMEDIATE`` tuple has a place among the rows; that of any other says when it was sent.
"""


def simulate(graph: Graph, windows: Iterable[Turn]) -> Log:
    """Return what each bucket of each node sees, window by window."""
    log: Log = {}
    waiting: dict[tuple[str, int], dict[tuple[str, str], ControlTuple]] = {}
    clocks: dict[tuple[str, int], int] = {}
    before: int | None = None
    for turn in windows:
        sent: dict[str, list[Sent]] = {SOURCE: _source(turn)}
        for node in graph.nodes:
            sent[node.name] = []
            arrived = _arrived(graph, node, sent)
            for bucket in range(node.buckets):
                held = waiting.setdefault((node.name, bucket), {})
                wake = min((one.at for one in held.values() if one.at is not None), default=None)
                mine = arrived[bucket]
                if any(mine.values()) or due(wake, turn.watermark):
                    times = in_turn(graph, node, before, turn.watermark)
                    clock = clocks.get((node.name, bucket))
                    one = _Window(node, bucket, turn, held, clock, times)
                    one.run(mine)
                    if turn.watermark is not None:
                        clocks[node.name, bucket] = turn.watermark
                    sent[node.name] += one.sent
                    log.setdefault((node.name, bucket), []).append((turn.number, tuple(one.seen)))
        before = turn.watermark
    return log


def _source(turn: Turn) -> list[Sent]:
    sent: list[Sent] = [
        ("out", sequence(part=partition, number=number), row)
        for partition, rows in enumerate(turn.rows)
        for number, row in enumerate(rows)
    ]
    return sent + [("out", position, control) for position, control in turn.control]


Arrived = dict[str, list[tuple[int, Row | ControlTuple]]]


def _arrived(graph: Graph, node: Node, sent: dict[str, list[Sent]]) -> list[Arrived]:
    """Return by bucket and port what comes: rows to one bucket, control to all."""
    out: list[Arrived] = [{port: [] for port in node.inputs} for _ in range(node.buckets)]
    for rank, edge in graph.into(node.name):
        layout = layout_of(node, edge.port)
        for output, place, what in sent[edge.source]:
            at = sequence(rank=rank) + place
            if output != edge.output:
                continue
            if isinstance(what, ControlTuple):
                for one in out:
                    one[edge.port].append((at, what))
            else:
                found = assign_buckets(as_batch([what]), layout, pa.array([at], pa.int64()))
                out[found[0].as_py()][edge.port].append((at, what))
    return out


def _once(given: Sequence[tuple[int, Row | ControlTuple]]) -> list[tuple[int, ControlTuple]]:
    """Return each tuple once, at its first place."""
    first: dict[str, tuple[int, ControlTuple]] = {}
    for place, what in sorted(given, key=lambda one: one[0]):
        if isinstance(what, ControlTuple):
            first.setdefault(what.id, (place, what))
    return list(first.values())


def _rank(control: ControlTuple) -> tuple[object, ...]:
    *stem, last = control.emitter.split(".")
    number = int(last) if last.isdigit() else -1
    return (control.epoch, ".".join(stem), number, control.seq, control.id)


@dataclass
class _Window:
    node: Node
    bucket: int
    turn: Turn
    held: dict[tuple[str, str], ControlTuple]
    clock: int | None
    times: tuple[int | None, int | None]
    seen: list[Entry] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._place = dict.fromkeys(self.node.outputs, sequence(part=self.bucket))
        self._number = 0
        self._known: set[str] = set()
        self._enter(0)

    def _enter(self, moment: int, number: int = 0) -> None:
        self._when, self._gone = (moment << 53) + (number << 24), dict.fromkeys(Delivery, 0)

    def run(self, arrived: Arrived) -> None:
        self.seen.append(("begin",))
        self._emit_at("begin")
        unique = {port: _once(given) for port, given in arrived.items()}
        for number, (port, control) in enumerate(self._all(unique, Delivery.BEGIN)):
            self._enter(1, number)
            self._control(port, control)
        self._enter(2)
        for port, control in self._all(unique, Delivery.AT_TIME):
            if self.node.answer is None:
                self._send(control)
            else:
                self.held[port, control.id] = control
        self._pass(self.times[0])
        for port, given in arrived.items():
            items: list[tuple[tuple[object, ...], Row | ControlTuple]] = [
                ((place, 1), what) for place, what in given if not isinstance(what, ControlTuple)
            ]
            items += [
                ((place, 0, *_rank(one)), one)
                for place, one in unique[port]
                if one.delivery is Delivery.IMMEDIATE
            ]
            for _, what in sorted(items, key=lambda item: item[0]):
                if isinstance(what, ControlTuple):
                    self._control(port, what)
                else:
                    self._row(port, what)
        self._pass(self.times[1])
        for number, (port, control) in enumerate(self._all(unique, Delivery.END_WINDOW)):
            self._enter(3, number)
            self._control(port, control)
        self._enter(4)
        self._emit_at("end")
        self.seen.append(("end",))

    def _all(
        self, unique: dict[str, list[tuple[int, ControlTuple]]], delivery: Delivery
    ) -> list[tuple[str, ControlTuple]]:
        found = [
            (place, _rank(one), at, port, one)
            for at, port in enumerate(unique)
            for place, one in unique[port]
            if one.delivery is delivery
        ]
        return [(port, one) for *_, port, one in sorted(found, key=lambda it: it[:3])]

    def _pass(self, now: int | None) -> None:
        if now is None:
            return
        passed = -(1 << 62) if self.clock is None else self.clock
        ready = sorted(
            (
                (one.at, port, one)
                for (port, _), one in self.held.items()
                if one.at is not None and one.at <= now
            ),
            key=lambda it: it[0],
        )
        for at, port, control in ready:
            if at > passed:
                self.seen.append(("advance", str(at)))
                passed = at
            self._control(port, control)
            del self.held[port, control.id]
        self.seen.append(("advance", str(now)))
        self.clock = now

    def _row(self, port: str, row: Row) -> None:
        self.seen.append(("row", port, str(row[1])))
        for output in self.node.outputs:
            self.sent.append((output, self._place[output], row))
            self._place[output] += 1
        if row[1] % 10 == 0:
            self._emit_at("row")

    def _control(self, port: str, control: ControlTuple) -> None:
        answer = self.node.answer
        if answer is not None:
            self.seen.append(("control", port, control.id))
        if answer == "new":
            self._emit(None, control.text)
        if answer in (None, "forward", "repeat"):
            self._send(control)

    def _emit_at(self, point: str) -> None:
        if point in self.node.emits:
            self._emit(point if self.node.once else None, f'{{"name":"{point}"}}')

    def _emit(self, once: str | None, text: str) -> None:
        emitter = f"{QUERY}.{self.node.name}.{'*' if once else self.bucket}"
        self._send(
            new=ControlTuple(
                type="Note",
                id=f"{emitter}/{self.turn.number}/{once or self._number}",
                delivery=self.node.delivery,
                epoch=self.turn.number,
                emitter=emitter,
                seq=0 if once else self._number,
                text=text,
            )
        )
        self._number += 0 if once else 1

    def _send(self, passed: ControlTuple | None = None, *, new: ControlTuple | None = None) -> None:
        control = new or passed
        assert control is not None
        if control.id in self._known or (self.node.answer is None and passed and self.bucket):
            return
        self._known.add(control.id)
        place = self._when + self._gone[control.delivery] + (1 if passed else 0)
        for output in self.node.outputs:
            if control.delivery is Delivery.IMMEDIATE:
                place = self._place[output]
                self._place[output] += 1
            self.sent.append((output, place, control))
        if passed:
            self._gone[control.delivery] += 2
