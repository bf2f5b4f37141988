"""Cases of side inputs as data, run on the operators of core.

A case is one line of a file in ``tests/cases/side``; its form is told in the README there. What
comes is fed in windows, cut in any way, to any number of buckets; each window is run twice from
the state before it, and has to do the same both times.
"""

from __future__ import annotations

import itertools
import json
import zlib
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from streambroker_core.control.operators.operator import Window
from streambroker_core.control.tuples import ControlTuple, Delivery
from streambroker_core.side import (
    Enrich,
    SideComplete,
    SideInput,
    SideJoin,
    SideOperator,
    SideVersion,
    TableCache,
    Views,
    fixed,
    sessions,
    sliding,
)
from streambroker_core.side.join.views import ListView, MapView, MultimapView, SingletonView
from streambroker_core.side.state.layout import build_layout
from streambroker_core.side.windows import GLOBAL, GLOBAL_START, SECOND, EventTimeWindows

CASES = Path(__file__).parents[2] / "cases" / "side"
MAIN = "main"
PLACE = "n"
BUCKET = "at bucket"
"""The bucket in which a row came out, where the runner tells it."""
_TYPES = {
    "string": pa.string(),
    "long": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "time": pa.timestamp("us", "UTC"),
}
Rows = list[dict[str, Any]]
Feed = list[list[Any]]
Case = dict[str, Any]


def load() -> list[Case]:
    return [
        case
        for path in sorted(CASES.glob("*.json"))
        for case in json.loads(path.read_text("utf-8"))
    ]


def schema_of(columns: dict[str, str]) -> pa.Schema:
    return pa.schema([(name, _TYPES[type_]) for name, type_ in columns.items()])


def windows_of(given: dict[str, Any] | None) -> EventTimeWindows:
    if given is None:
        return GLOBAL
    if "fixed" in given:
        return fixed(given["fixed"])
    return sliding(*given["sliding"]) if "sliding" in given else sessions(given["sessions"])


def side_of(name: str, given: dict[str, Any]) -> SideInput:
    given = _tuples(given)
    given["schema"] = schema_of(given.pop("columns"))
    given["windows"] = windows_of(given.get("windows"))
    return SideInput(name=name, **given)


def join_of(case: Case) -> SideJoin:
    main = _tuples(case["main"])
    main["schema"] = schema_of({**main.pop("columns"), PLACE: "long"})
    windows = main.pop("windows", None)
    return SideJoin(
        inputs=tuple(side_of(name, given) for name, given in case.get("sides", {}).items()),
        enrich=tuple(Enrich(**_tuples(one)) for one in case.get("enrich", ())),
        windows=None if windows is None else windows_of(windows),
        order=case.get("order", "arrival"),
        **main,
    )


def _tuples(given: dict[str, Any]) -> dict[str, Any]:
    """Return a mapping with tuples where JSON has lists."""
    return {key: _tuple(value) for key, value in given.items()}


def _tuple(value: Any) -> Any:
    return tuple(map(_tuple, value)) if isinstance(value, list) else value


def see(case: Case) -> Callable[[pa.RecordBatch, Views], pa.RecordBatch]:
    """Return a function that tells of each row what it sees of each side input, as JSON."""
    by = case.get("see") or {}

    def function(batch: pa.RecordBatch, views: Views) -> pa.RecordBatch:
        seen = [
            json.dumps(
                {
                    name: _seen(view, [row[c] for c in by.get(name, ())])
                    for name, view in views.items()
                }
            )
            for row in batch.to_pylist()
        ]
        start = None if views.window is None else views.window[0] / SECOND
        window = pa.repeat(pa.scalar(start, pa.float64()), len(seen))
        made = batch.append_column("window", window)
        return made.append_column("sees", pa.array(seen, pa.string()))

    return function


def _seen(view: Any, by: list[Any]) -> Any:
    if isinstance(view, SingletonView):
        return view.value
    if isinstance(view, ListView):
        return list(view)
    assert isinstance(view, MapView | MultimapView)
    if by:
        return view.get(tuple(by))
    return {str(key): value for key, value in view.items()}


def group(case: Case) -> Callable[[pa.RecordBatch, Views], pa.RecordBatch]:
    """Return a function that tells of each call its key, its window, its rows and what they see."""
    names = [*case["main"].get("key", ()), "id", "window", "sees"]

    def function(batch: pa.RecordBatch, views: Views) -> pa.RecordBatch:
        assert views.window is not None
        seen = {name: _seen(view, []) for name, view in views.items()}
        ids = ",".join(batch["id"].to_pylist())
        row = [*views.key, ids, views.window[0] / SECOND, json.dumps(seen)]
        types = [batch[name].type for name in names[:-3]] + [pa.string(), pa.float64(), pa.string()]
        columns = [pa.array([value], type_) for value, type_ in zip(row, types, strict=True)]
        return pa.RecordBatch.from_arrays(columns, names=names)

    return function


def change(batch: pa.RecordBatch, views: Views) -> pa.RecordBatch:
    """Try to change the first view."""
    views[next(iter(views))]["x"] = 1
    return batch


def product(batch: pa.RecordBatch, views: Views) -> list[pa.RecordBatch]:
    """Return each row once for each value of view ``x``, its ``v`` multiplied by it."""
    values = list(views["x"])
    at = batch.schema.get_field_index("v")
    return [batch.set_column(at, "v", pc.multiply(batch.column(at), value)) for value in values]


@dataclass
class Run:
    """What came out of an operator.

    Attributes:
        out: rows of each output, in the order of windows and, in them, buckets.
        ended: the operator of each bucket that had a window, as its last one left it.
        held: after each window, the event time at which the watermark of what follows is held.
        written: bytes of state written in each window.
    """

    out: dict[str, list[dict[str, Any]]] = field(
        default_factory=lambda: {"out": [], "errors": [], "late": []}
    )
    ended: list[SideOperator] = field(default_factory=list)
    held: list[int | None] = field(default_factory=list)
    written: list[int] = field(default_factory=list)

    def note(self, ended: dict[int, SideOperator]) -> None:
        self.ended = [ended[bucket] for bucket in sorted(ended)]
        held = [one.held_at() for one in self.ended]
        self.held.append(min((each for each in held if each is not None), default=None))


class Sink:
    """Takes what an operator emits."""

    dead_letters = None

    def __init__(self) -> None:
        self.given: list[tuple[str | None, pa.RecordBatch]] = []

    def emit(self, batch: pa.RecordBatch, output: str | None) -> None:
        self.given.append((output or "out", batch))

    def emit_control(self, *_: Any, **__: Any) -> ControlTuple:
        raise AssertionError("an operator with side inputs emits no control")


def control_of(
    said: SideComplete | SideVersion, number: int = 0, delivery: Delivery = Delivery.IMMEDIATE
) -> ControlTuple:
    """Return a control tuple as a control log delivers it."""
    kind, text = type(said).__name__, json.dumps(asdict(said))
    place: dict[str, Any] = {"id": f"log/{number}", "epoch": 0, "emitter": "log", "seq": number}
    return ControlTuple(type=kind, delivery=delivery, text=text, **place)


def bucket_of(row: dict[str, Any], key: Iterable[str], buckets: int) -> int:
    """Return the bucket of a row; rows without a key are spread by their place."""
    parts = [row.get(name) for name in key] or [row[PLACE]]
    return zlib.crc32(repr(parts).encode()) % buckets


class Runner:
    """An operator over windows and buckets, with the state between them.

    As a runtime does, it gives a bucket a window only if something came for it, or is due.
    """

    def __init__(
        self, make: Callable[[], SideOperator], buckets: int = 1, *, twice: bool = True
    ) -> None:
        self._make, self._buckets, self._twice = make, buckets, twice
        self.blobs: list[dict[str, bytes]] = [{} for _ in range(buckets)]
        self.run = Run()
        self._ended: dict[int, SideOperator] = {}
        self._number = 0
        self._sequence = itertools.count()
        self.join = make().join

    def window(self, feed: Feed, *, watermark: float | None, now: float, at: int = 0) -> Rows:
        """Run a window of entries in their order, and return the rows of ``out``.

        Args:
            feed: ``[port, row]``, ``["complete", {…}]`` or ``["version", {…}]``.
            watermark: in seconds.
            now: the pinned clock in seconds.
            at: what the rows that come out are marked with.
        """
        self._number += 1
        before = len(self.run.out["out"])
        written = 0
        for bucket in range(self._buckets):
            window = Window(
                number=self._number,
                time=round(now * SECOND),
                watermark=None if watermark is None else round(watermark * SECOND),
                bucket=bucket,
                buckets=self._buckets,
            )
            mine = [entry for entry in feed if self._is_of(entry, bucket)]
            if mine or self._is_due(bucket, window):
                written += self._run(bucket, window, mine, at)
        self.run.written.append(written)
        self.run.note(self._ended)
        return self.run.out["out"][before:]

    def _is_due(self, bucket: int, window: Window) -> bool:
        last = self._ended.get(bucket)
        if last is None:
            return False
        wake, timeout = last.wake_at(), last.timeout_at()
        return (wake is not None and window.watermark is not None and wake <= window.watermark) or (
            timeout is not None and timeout <= window.time
        )

    def _run(self, bucket: int, window: Window, feed: Feed, at: int) -> int:
        """Run a window of a bucket, keep its state, and return the bytes written."""
        operator, sink, changes = self._once(bucket, window, feed)
        if self._twice:
            _, again, same = self._once(bucket, window, feed)
            assert changes == same
            assert _shown(sink) == _shown(again)
        for name, data in changes.items():
            if data is None:
                del self.blobs[bucket][name]
            else:
                self.blobs[bucket][name] = data
        self._ended[bucket] = operator
        for output, rows in _shown(sink):
            self.run.out[output] += [{**row, "at": at} for row in rows]
        return sum(len(data) for data in changes.values() if data is not None)

    def _is_of(self, entry: list[Any], bucket: int) -> bool:
        port, row = entry[:2]
        if port in ("complete", "version"):
            return True
        assert port in (MAIN, *(one.name for one in self.join.inputs)), port
        if port == MAIN:
            return bucket_of(row, self.join.key, self._buckets) == bucket
        side = self.join.input(port)
        return not side.keyed or bucket_of(row, side.key, self._buckets) == bucket

    def _once(
        self, bucket: int, window: Window, feed: Feed
    ) -> tuple[SideOperator, Sink, dict[str, bytes | None]]:
        operator, sink = self._make(), Sink()
        operator.bind(window, sink)
        if self.blobs[bucket]:
            operator.restore(operator.state_version, dict(self.blobs[bucket]))
        operator.begin_window()
        if window.watermark is not None:
            operator.advance(window.watermark)
        for port, rows in _runs(feed):
            if port in ("complete", "version"):
                kind = SideComplete if port == "complete" else SideVersion
                for said in rows:
                    control = control_of(kind(**said), next(self._sequence))
                    assert operator.process_control(said["input"], control)
            else:
                operator.process(port, batch_of(rows, schema_at(operator.join, port)))
        operator.end_window()
        changes = operator.snapshot()
        operator.bind(window, None)
        return operator, sink, changes


def schema_at(join: SideJoin, port: str) -> pa.Schema:
    return join.schema if port == MAIN else join.input(port).schema


def batch_of(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    """Return rows as Arrow; times are told in seconds."""
    arrays = []
    for one in schema:
        values = [row.get(one.name) for row in rows]
        if pa.types.is_timestamp(one.type):
            values = [None if v is None else round(v * SECOND) for v in values]
        arrays.append(pa.array(values, one.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _runs(feed: Feed) -> list[tuple[str, list[Any]]]:
    """Return neighbours of one port together."""
    found: list[tuple[str, list[Any]]] = []
    for port, row, *_ in feed:
        if not found or found[-1][0] != port:
            found.append((port, []))
        found[-1][1].append(row)
    return found


def _shown(sink: Sink) -> list[tuple[str, list[dict[str, Any]]]]:
    return [(output or "out", batch.to_pylist()) for output, batch in sink.given]


@dataclass
class Span:
    """Entries under one watermark and one pinned clock, from a place in the feed on."""

    watermark: float | None
    now: float
    place: int
    entries: Feed = field(default_factory=list)


def spans(feed: Feed) -> list[Span]:
    """Return the feed between changes of watermark and clock; each entry with its place."""
    found = [Span(None, 0.0, 0)]
    for place, (port, what) in enumerate(feed):
        last = found[-1]
        if port == "watermark":
            found.append(Span(what, last.now, place))
        elif port == "clock":
            found.append(Span(last.watermark, what, place))
        elif port in ("complete", "version"):
            last.entries.append([port, what, place])
        else:
            last.entries.append([port, {**what, PLACE: place}, place])
    return found


def cut(entries: Feed, pieces: int | None) -> list[Feed]:
    """Return entries in so many pieces; None for one each."""
    count = max(1, len(entries)) if pieces is None else pieces
    size = -(-len(entries) // count) or 1
    return [entries[at : at + size] for at in range(0, len(entries), size)] or [[]]


def tables_of(case: Case) -> TableCache | None:
    """Return the versions of static tables of a case."""
    tables = case.get("tables")
    if tables is None:
        return None

    def read(name: str, version: str) -> pa.Table:
        rows = tables[name][version]
        if isinstance(rows, str):
            raise OSError(rows)
        schema = schema_of(case["sides"][name]["columns"])
        return pa.Table.from_batches([batch_of(rows, schema)])

    return TableCache(read)


def maker_of(case: Case) -> Callable[[], SideOperator]:
    """Return what makes the operator of a case; its definition is checked here, once."""
    functions = {"change": change, "product": product, "see": see(case), "group": group(case)}
    word = case.get("function", "see")
    function = None if word is None else functions[word]
    shape, tables = build_layout(join_of(case)), tables_of(case)
    return lambda: SideOperator(shape, function, tables)


def run(case: Case, *, pieces: int | None = 1, buckets: int = 1, twice: bool = True) -> Run:
    """Run a case, each span of its feed cut into pieces.

    Where it has another operator that comes first, what that gives is fed to the side input that
    it names.
    """
    return run_by(case, lambda part: Runner(maker_of(part), buckets, twice=twice), pieces=pieces)


def run_by(case: Case, make: Callable[[Case], Any], *, pieces: int | None) -> Run:
    """Run a case with what runs windows: a `Runner`, or what has its ``window`` and ``run``."""
    runner, first = make(case), case.get("first")
    earlier = None if first is None else make(first)
    for span in spans(case["feed"]):
        for part in cut(span.entries, pieces):
            moment: dict[str, Any] = {"watermark": span.watermark, "now": span.now}
            moment["at"] = part[-1][2] if part else span.place
            mine = [entry for entry in part if not entry[0].startswith("first.")]
            if earlier is not None and first is not None:
                its = [[e[0][6:], *e[1:]] for e in part if e[0].startswith("first.")]
                given = earlier.window(its, **moment)
                mine = [[first["to"], row, moment["at"]] for row in given] + mine
            runner.window(mine, **moment)
    found: Run = runner.run
    return found


def differences(case: Case, found: Run, *, places: bool, buckets: int) -> list[str]:
    """Return what a run gave that the case does not expect."""
    expected = case["expect"]
    key = case["main"].get("key", [])
    problems = []
    for output in ("out", "errors", "late"):
        want = [dict(row) for row in expected.get(output, [])]
        if output not in expected and output == "out":
            continue
        got = [_like(row, want) for row in found.out[output]]
        if not places or not all("at" in row for row in want):
            for row in (*want, *got):
                row.pop("at", None)
        if sorted(map(repr, map(_sorted, want))) != sorted(map(repr, map(_sorted, got))):
            problems.append(f"{output}: expected {want}, got {got}")
        elif output == "out" and not expected.get("any order"):
            for name, group in _groups(got, found.out[output], key, buckets).items():
                ids = [_sorted(row) for row in want if _sorted(row) in [_sorted(g) for g in group]]
                if ids != [_sorted(row) for row in group]:
                    problems.append(f"{output} of {name}: expected the order {ids}, got {group}")
    return problems + _figures(expected, found)


def _like(row: dict[str, Any], want: Rows) -> dict[str, Any]:
    """Return the fields of a row that are compared; what is seen is read from JSON."""
    names = {name for one in want for name in one} or {"id"}
    shown = {name: value for name, value in row.items() if name in names}
    if shown.get("window") is not None:
        shown["window"] = round(shown["window"])
    if "sees" in shown:
        shown["sees"] = json.loads(shown["sees"])
    return shown


def _groups(got: Rows, whole: Rows, key: list[str], buckets: int) -> dict[str, Rows]:
    groups: dict[str, Rows] = {}
    for shown, row in zip(got, whole, strict=True):
        parts = [row.get(name) for name in key]
        bucket = row.get(BUCKET, bucket_of(row, key, buckets))
        name = f"key {parts}, window {row.get('window')}, bucket {bucket}"
        groups.setdefault(name, []).append(shown)
    return groups


def _sorted(row: dict[str, Any]) -> Any:
    return json.loads(json.dumps(row, sort_keys=True, default=str))


def _figures(expected: dict[str, Any], found: Run) -> list[str]:
    """Compare figures, what is held and what stalls at the end; those of all buckets together."""
    problems = []
    every = [one.metrics() for one in found.ended]
    for name, value in expected.get("figures", {}).items():
        input_, _, figure = name.rpartition(".")
        got = [(one["inputs"][input_] if input_ else one)[figure] for one in every]
        if (max(got) if input_ else sum(got)) != value:
            problems.append(f"{name}: expected {value}, got {got}")
    if "held" in expected:
        held = found.held[-1]
        if (None if held is None else held / SECOND) != expected["held"]:
            problems.append(f"held: expected {expected['held']}, got {held}")
    for stall in expected.get("stalls", ()):
        stalls: list[dict[str, Any]] = [
            {
                "input": operator.join.inputs[s.input].name,
                "window": _seconds(s.window),
                "rows": s.rows,
            }
            for operator in found.ended
            for s in operator.stalls()
        ]
        rows = sum(int(s["rows"]) for s in stalls if {**s, "rows": 0} == {**stall, "rows": 0})
        if rows != stall["rows"]:
            problems.append(f"stalls: expected {stall}, got {stalls}")
    return problems


def _seconds(start: int) -> float | None:
    return None if start == GLOBAL_START else start / SECOND
