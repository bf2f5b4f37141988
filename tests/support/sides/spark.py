"""Cases of side inputs on Spark: several in one query, each an operator of its own.

A file is a micro-batch. Time is moved by one more side input, ``clock``, which nobody waits for:
its rows have the watermark that a case tells, and all other watermarks lie far behind.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's users write it

from pe_agent.aligned.data import ControlFrame, OutputFrame
from pe_agent.aligned.plan import StreamPlan
from pe_agent.aligned.runtime import progress_messages as runtime_notes
from pe_agent.aligned.runtime.frames import CONTROL, PROGRESS, ROWS, encode_control, read_ipc
from pe_agent.side.tables.versions import version_path
from pe_agent.streams.side_input import Given
from streambroker.operators import OperatorOptions, OperatorStream, Stream, stream
from streambroker.side import SideInputs, Table, Views
from streambroker_core.control.tuples import ControlTuple, Delivery
from streambroker_core.side import SideComplete, SideVersion
from streambroker_core.side.errors import SideRowError
from streambroker_core.side.join.enrich import enriched_schema
from streambroker_core.side.join.function_calls import Result
from streambroker_core.side.windows import SECOND
from support.aligned.spark import SHUFFLE, configured, drain
from support.sides.cases import (
    BUCKET,
    MAIN,
    PLACE,
    Case,
    Feed,
    Run,
    batch_of,
    change,
    control_of,
    cut,
    differences,
    group,
    join_of,
    product,
    schema_of,
    see,
    spans,
    windows_of,
)
from support.spark.feeds import put_file

CLOCK = "clock"
FAR = "1000000 seconds"
POLICY = "spark.sql.streaming.multipleWatermarkPolicy"
BODY = "case string, port string, body string, _control binary"
_DDL = {
    "string": "string",
    "long": "bigint",
    "double": "double",
    "boolean": "boolean",
    "time": "timestamp",
}
_SAID = {"complete": SideComplete, "version": SideVersion}


@dataclass
class Part:
    """One micro-batch of a case: its rows, what is said behind them, and where time goes then."""

    rows: Feed = field(default_factory=list)
    said: ControlTuple | None = None
    clock: float | None = None


def parts_of(case: Case, pieces: int | None) -> list[list[Part]]:
    """Return the micro-batches of a case between changes of its watermark."""
    found: list[list[Part]] = []
    mark = None
    for span in spans(case["feed"]):
        if found and span.watermark != mark:
            found[-1][-1].clock = span.watermark
            found.append([])
        mark = span.watermark
        if not found:
            found.append([])
        for entries in cut(span.entries, pieces):
            found[-1] += _parts(entries)
    return found


def _parts(entries: Feed) -> list[Part]:
    """Cut entries behind each control tuple: it is delivered at the end of its window."""
    found = [Part()]
    for port, what, place in entries:
        if port in _SAID:
            found[-1].said = control_of(_SAID[port](**what), place, Delivery.END_WINDOW)
            found.append(Part())
        else:
            found[-1].rows.append([port, what])
    return found if found[-1].rows or len(found) == 1 else found[:-1]


def marks(case: Case) -> tuple[float, ...]:
    """Return the watermarks of a case; cases with the same ones can share a query."""
    return tuple(what for port, what in case["feed"] if port == "watermark")


def write(folder: Path, cases: Sequence[Case], pieces: int | None) -> None:
    """Write the micro-batches of cases, those between two watermarks side by side."""
    folder.mkdir(parents=True)
    every = [parts_of(case, pieces) for case in cases]
    number = 0
    for span in range(len(every[0])):
        for turn in range(max(len(one[span]) for one in every)):
            rows: list[tuple[str, str, str | None, bytes | None]] = []
            for case, one in zip(cases, every, strict=True):
                last = turn == max(len(each[span]) for each in every) - 1
                here = one[span][turn] if turn < len(one[span]) else Part()
                clock = one[span][-1].clock if last else None
                rows += _lines(case, here, clock)
            put_file(folder, f"{number}", _table(rows), order=number)
            number += 1


def _lines(
    case: Case, part: Part, clock: float | None
) -> Iterator[tuple[str, str, str | None, bytes | None]]:
    for port, row in part.rows:
        yield case["id"], port, _body(case, port, row), None
    if part.said is not None:
        yield case["id"], "control", None, encode_control(part.said)
    if clock is not None:
        yield case["id"], CLOCK, json.dumps({"t": _time(clock), "v": 0, PLACE: 10**9}), None


def _body(case: Case, port: str, row: dict[str, Any]) -> str:
    types = _columns(case, port)
    values = {name: _time(v) if types[name] == "time" else v for name, v in row.items()}
    return json.dumps(values)


def _columns(case: Case, port: str) -> dict[str, str]:
    if port.startswith("first."):
        return _columns(case["first"], port[6:])
    of = case["main"] if port == MAIN else case["sides"][port]
    return {**of["columns"], PLACE: "long"}


def _time(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    return at.isoformat()


def _table(rows: list[tuple[str, str, str | None, bytes | None]]) -> pa.Table:
    kinds = {**dict.fromkeys(("case", "port", "body"), pa.string()), CONTROL: pa.binary()}
    columns = [pa.array([row[at] for row in rows], kind) for at, kind in enumerate(kinds.values())]
    return pa.Table.from_arrays(columns, schema=pa.schema(kinds))


# -- a case as a user would write it ---------------------------------------------------------


class Fed:
    """Makes streams of a case from the files."""

    def __init__(self, frame: DataFrame, case: Case, folder: Path) -> None:
        self._frame = frame.where(F.col("case") == case["id"])
        self._case, self._folder = case, folder

    def port(self, port: str, of: dict[str, Any]) -> Stream:
        columns = {**of["columns"], PLACE: "long"}
        ddl = ", ".join(f"`{name}` {_DDL[kind]}" for name, kind in columns.items())
        rows = self._frame.where(F.col("port") == port)
        made = stream(rows.select(F.from_json("body", ddl).alias("r")).select("r.*"))
        time = of.get("event_time")
        return made if time is None else made.with_watermark(time, of.get("delay", FAR))

    def control(self) -> Stream:
        frame = self._frame.where(F.col("port") == "control").select(CONTROL)
        spark = self._frame.sparkSession
        return Stream(StreamPlan(spark=spark, control_frames=(ControlFrame(frame=frame),)))

    def table(self, name: str, given: dict[str, Any]) -> Table:
        """Return a table whose versions have the names of the case."""
        folder = self._folder / self._case["id"] / name
        folder.mkdir(parents=True)
        schema = schema_of(given["columns"])
        for version, rows in self._case["tables"][name].items():
            if isinstance(rows, str):
                version_path(folder, version).write_text(rows)
                continue
            batch = batch_of(rows, schema)
            with pa.ipc.new_file(str(version_path(folder, version)), schema) as writer:
                writer.write_batch(batch)
        return _Versioned(folder, schema, self)


class _Versioned(Table):
    def __init__(self, place: Path, schema: pa.Schema, fed: Fed) -> None:
        self.folder, self.schema, self.every, self.name = place, schema, None, place.name
        store: Any = SimpleNamespace(path=place, version_source=lambda spark: fed.control().plan)
        self.store = store

    def bind(self, side: Any) -> None:
        del side


def sides_of(case: Case, fed: Fed, prefix: str = "", to: Stream | None = None) -> SideInputs:
    own = dict(case["main"])
    main = fed.port(prefix + MAIN, own)
    if own.get("key"):
        main = main.key_by(*own["key"])
    if case["feed"] and any(port in _SAID for port, _ in case["feed"]):
        main = main.union(fed.control())
    given = {
        name: _given(name, side, case, fed, prefix, to) for name, side in case["sides"].items()
    }
    if marks(case):
        clock = {"columns": {"t": "time", "v": "long"}, "event_time": "t", "delay": "0 seconds"}
        source = fed.port(CLOCK, clock)
        given[CLOCK] = Given(
            source=source,
            kind="singleton",
            settings={"ready": "not required", "value": "v", "default": None},
        )
    names = ("lateness", "max_waiting_rows")
    made = main.join_side(**given).options(
        order=case.get("order", "arrival"), **{n: own[n] for n in names if n in own}
    )
    if (windows := own.get("windows")) is not None:
        made = made.window(*([windows["fixed"]] if "fixed" in windows else windows["sliding"]))
    for one in case.get("enrich", ()):
        made = made.enrich(
            one["input"],
            on=one.get("on", ()),
            columns=one.get("columns", ()),
            names=dict(one.get("names", ())),
            missing=one.get("missing"),
            version=one.get("version"),
        )
    return made


def _given(
    name: str, side: dict[str, Any], case: Case, fed: Fed, prefix: str, to: Stream | None
) -> Given:
    own = ("kind", "columns", "windows", "event_time", "static")
    settings = {one: value for one, value in side.items() if one not in own}
    settings["windows"] = windows_of(side.get("windows"))
    taken = (*side.get("key", ()), side.get("event_time"), side.get("deleted"))
    settings.setdefault("value", [one for one in side["columns"] if one not in taken])
    if side.get("static"):
        return Given(source=fed.table(name, side), kind=side["kind"], settings=settings)
    if to is not None and case["first"]["to"] == name:
        return Given(source=to, kind=side["kind"], settings=settings)
    return Given(source=fed.port(prefix + name, side), kind=side["kind"], settings=settings)


def made_of(case: Case, fed: Fed, buckets: int) -> OperatorStream:
    """Return the operator of a case; its first one is before it, if it has one."""
    to = None
    if (first := case.get("first")) is not None:
        earlier = {**first, "id": case["id"], "feed": []}
        to = sides_of(earlier, fed, "first.").to_stream(
            name=f"{case['id']}-first", options=OperatorOptions(order_by=PLACE)
        )
    sides, join = sides_of(case, fed, to=to), join_of(case)
    options = OperatorOptions(
        metrics=True,
        buckets=case["expect"].get("only", {}).get("buckets", buckets),
        order_by=PLACE if join.order == "arrival" else None,
    )
    settings: dict[str, Any] = {"name": str(case["id"]), "options": options}
    word = case.get("function", "see")
    if word is None:
        return sides.to_stream(**settings)
    if join.grouped:
        more = [("id", pa.string()), ("window", pa.float64()), ("sees", pa.string())]
        grouped = pa.schema([*(join.schema.field(name) for name in join.key), *more])
        return sides.apply(Grouped(case), grouped, **settings)
    functions = {"change": change, "product": product, "see": see(case)}
    schema = enriched_schema(join)
    if word == "see":
        schema = schema.append(pa.field("window", pa.float64()))
        schema = schema.append(pa.field("sees", pa.string()))
    return sides.map_batches(functions[word], schema, **settings)


class Grouped:
    """Calls the function of grouped cases, as ``apply`` hands things over."""

    def __init__(self, case: Case) -> None:
        self._case = case

    def __call__(
        self, key: tuple[Any, ...], window: tuple[int, int], rows: pa.RecordBatch, views: Views
    ) -> Result:
        assert (key, window) == (views.key, views.window)
        return group(self._case)(rows, views)


# -- running ---------------------------------------------------------------------------------


def run_on_spark(
    spark: SparkSession,
    folder: Path,
    cases: Sequence[Case],
    *,
    pieces: int | None,
    partitions: int,
    buckets: int = 4,
) -> dict[str, Seen]:
    """Run cases with the same watermarks in one query; return what came out of each."""
    write(folder / "in", cases, pieces)
    frame = (
        spark.readStream.schema(BODY).option("maxFilesPerTrigger", 1).parquet(str(folder / "in"))
    )
    found = {case["id"]: Seen() for case in cases}
    frames = []
    for case in cases:
        data = made_of(case, Fed(frame, case, folder / "tables"), buckets).plan.data
        assert isinstance(data, OutputFrame)
        frames.append(data.frame.withColumn("case", F.lit(case["id"])))
    every = frames[0]
    for one in frames[1:]:
        every = every.union(one)

    def take(batch: DataFrame, window: int) -> None:
        del window
        for row in sorted(batch.collect(), key=lambda row: (row.bucket, row.seq)):
            found[row.case].take(row)

    with configured(spark, {SHUFFLE: str(partitions), POLICY: "max"}):
        drain(every.writeStream.foreachBatch(take), folder / "checkpoint")
    return found


def _without(name: str, text: str) -> str:
    """Return a JSON object without what the test has added to it."""
    return json.dumps({key: value for key, value in json.loads(text).items() if key != name})


@dataclass
class Seen:
    """What came out of a case, and the last figures of each bucket."""

    run: Run = field(default_factory=Run)
    figures: dict[tuple[int, str], dict[str, Any]] = field(default_factory=dict)
    held: dict[int, int | None] = field(default_factory=dict)

    def take(self, row: Any) -> None:
        if row.kind == PROGRESS:
            for note in runtime_notes.decode(row.payload):
                if isinstance(note, runtime_notes.WatermarkHold):
                    self.held[note.bucket] = note.at
        elif row.kind == ROWS:
            for batch in read_ipc(bytes(row.payload)):
                self._rows(row.output, row.bucket, batch.to_pylist())

    def _rows(self, output: str, bucket: int, rows: list[dict[str, Any]]) -> None:
        if output == "figures":
            for row in rows:
                self.figures[bucket, row["input"]] = row
            return
        for row in rows:
            if "sees" in row:
                row["sees"] = _without(CLOCK, row["sees"])
            if row.get("code") == SideRowError.code:  # in core the rows of sides have no order
                row["row"] = _without(PLACE, row["row"])
            self.run.out[output].append({**row, BUCKET: bucket})

    def differences(self, case: Case, buckets: int) -> list[str]:
        expect = dict(case["expect"])
        problems = []
        for name, value in expect.pop("figures", {}).items():
            input_, _, figure = name.rpartition(".")
            every = {at: row for at, row in self.figures.items() if input_ in ("", at[1])}
            got = [row[figure] for row in every.values()]
            if (max(got) if input_ else sum(got)) != value:
                problems.append(f"{name}: expected {value}, got {got}")
        stalls = expect.pop("stalls", [])
        for name in {stall["input"] for stall in stalls}:
            rows = sum(r["waiting_rows"] for at, r in self.figures.items() if at[1] == name)
            if rows != sum(stall["rows"] for stall in stalls if stall["input"] == name):
                problems.append(f"stalls of {name}: expected {stalls}, got {rows}")
        if "held" in expect:
            held = min((at for at in self.held.values() if at is not None), default=None)
            if (None if held is None else held / SECOND) != expect.pop("held"):
                problems.append(f"held: got {held}")
        problems += differences({**case, "expect": expect}, self.run, places=False, buckets=buckets)
        return problems
