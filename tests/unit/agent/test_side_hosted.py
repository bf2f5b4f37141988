"""What Spark's tasks make of side inputs: ticks, requests, figures, joined rows."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from pe_agent.side.operator import (
    METRICS_OUTPUT,
    WATERMARK_CAUSE,
    SideOperatorFactory,
    SparkSideOperator,
)
from pe_agent.side.row_functions import OwnKeysFunction, RowJoiner
from pe_agent.side.tables.cache import CachedTables
from pe_agent.side.tables.versions import REQUESTS
from pe_agent.streams.side_input import side_map, side_singleton
from pe_agent.streams.side_inputs import SideInputs
from pe_agent.streams.stream import Stream
from streambroker_core.control.operators.operator import Window
from streambroker_core.control.tuples import (
    ControlTuple,
    Delivery,
    SideTick,
    UndeliverableError,
    make_logged_tuple,
)
from streambroker_core.control.tuples.payloads import encode
from streambroker_core.side import (
    Enrich,
    SideInput,
    SideJoin,
    SideOperator,
    SideRefresh,
    Views,
    fixed,
)
from streambroker_core.side.errors import SideDefinitionError
from streambroker_core.side.join.static_table import build_content
from streambroker_core.side.join.views import make_view
from streambroker_core.side.state.layout import build_layout
from support.sides.cases import Runner, Sink, batch_of
from support.sides.rates import RecordingAgent

RATES = pa.schema([("currency", pa.string()), ("rate", pa.float64())])
TRADES = pa.schema([("id", pa.string()), ("currency", pa.string())])


def made(folders: dict[str, str], **reported: Any) -> tuple[Any, Sink]:
    rates = SideInput(name="rates", kind="map", key=("currency",), schema=RATES, **reported)
    shape = build_layout(SideJoin(schema=TRADES, inputs=(rates,)))
    make = SideOperatorFactory(
        shape=shape, function=None, tables=CachedTables(folders=folders), emits_metrics=True
    )
    operator, sink = make(), Sink()
    operator.bind(Window(number=7, time=90_000_000, watermark=None, bucket=0, buckets=1), sink)
    operator.begin_window()
    return operator, sink


def control(payload: object) -> ControlTuple:
    kind, text = encode(payload)
    return make_logged_tuple("log", 1, type_=kind, text=text, delivery=Delivery.BEGIN)


def test_a_tick_ends_here_and_other_control_goes_on() -> None:
    operator, _ = made({})
    assert operator.process_control("main", control(SideTick(1)))
    assert not operator.process_control("main", control(SideRefresh(input="planes")))


def test_a_request_of_another_form_is_refused() -> None:
    operator, _ = made({})
    wrong = make_logged_tuple("log", 1, type_="SideRefresh", text="[]", delivery=Delivery.BEGIN)
    with pytest.raises(UndeliverableError, match="is no SideRefresh"):
        operator.process_control("main", wrong)


def test_a_request_reaches_anyone_who_reads_the_table_once(tmp_path: Path) -> None:
    operator, _ = made({"rates": str(tmp_path)}, static=True)
    for _ in range(2):
        assert operator.process_control("main", control(SideRefresh(input="rates")))
    assert len(list((tmp_path / REQUESTS).iterdir())) == 1


def test_figures_tell_what_waits_and_for_what() -> None:
    operator, sink = made({})
    operator.process("main", batch_of([{"id": "m1", "currency": "EUR"}], TRADES))
    operator.end_window()
    ((output, batch),) = sink.given
    assert output == METRICS_OUTPUT
    rates, main = batch.to_pylist()
    assert (rates["input"], rates["waiting_rows"], rates["entries"]) == ("rates", 1, 0)
    assert rates["stall"].startswith("1 row waits for side input `rates`")
    assert (main["input"], main["waiting_rows"], main["stall"]) == ("main", 0, None)


def test_the_agent_is_informed_with_each_window_also_without_that_output() -> None:
    rates = SideInput(name="rates", kind="map", key=("currency",), schema=RATES, keyed=True)
    join = SideJoin(schema=TRADES, inputs=(rates,), key=("currency",))
    reported, sink = RecordingAgent(), Sink()
    made = SparkSideOperator(
        build_layout(join),
        None,
        CachedTables(),
        emits_metrics=False,
        reporter=reported,  # type: ignore[arg-type]
    )
    made.bind(Window(number=7, time=90_000_000, watermark=None, bucket=3, buckets=4), sink)
    made.begin_window()
    made.process("main", batch_of([{"id": "m1", "currency": "EUR"}], TRADES))
    made.process("rates", batch_of([{"currency": "USD", "rate": 1.5}], RATES))
    made.end_window()
    ((bucket, window, (side, main)),) = reported.given
    assert (bucket, window, side.operator, side.input) == (3, 7, "join", "rates")
    assert (side.keyed, side.waiting_rows, side.entries, side.rows) == (True, 1, 1, 1)
    assert (side.waiting_since, side.size > 0) == (90_000_000, True)
    (stall,) = side.stalls
    assert stall.cause == "for their keys in side input `rates`"
    assert (main.input, main.waiting_rows, main.stalls) == ("main", 0, ())
    assert sink.given == []


def test_rows_that_wait_for_their_turn_are_reported_of_the_main_input() -> None:
    columns = [("k", pa.string()), ("t", pa.timestamp("us", "UTC"))]
    rates = SideInput(
        name="rates", kind="map", key=("k",), schema=pa.schema(columns), event_time="t", value="k"
    )
    join = SideJoin(schema=pa.schema(columns), inputs=(rates,), event_time="t", order="event time")
    reported, sink = RecordingAgent(), Sink()
    made = SparkSideOperator(
        build_layout(join),
        None,
        CachedTables(),
        emits_metrics=True,
        reporter=reported,  # type: ignore[arg-type]
    )
    made.bind(Window(number=7, time=90_000_000, watermark=None, bucket=0, buckets=4), sink)
    made.begin_window()
    made.process("main", batch_of([{"k": "a", "t": 1.0}, {"k": "b", "t": 2.0}], join.schema))
    made.end_window()
    ((_, _, (_, main)),) = reported.given
    assert (main.waiting_rows, main.waiting_bytes > 0) == (2, True)
    assert [(one.cause, one.rows) for one in main.stalls] == [(WATERMARK_CAUSE, 2)]
    ((_, batch),) = sink.given
    assert [row["waiting_rows"] for row in batch.to_pylist()] == [0, 2]


def test_of_many_windows_those_are_reported_for_which_most_rows_wait() -> None:
    """Thousands may be waited for, and each of them would be a sentence."""
    columns = [("k", pa.string()), ("t", pa.timestamp("us", "UTC"))]
    rates = SideInput(
        name="rates", kind="map", key=("k",), schema=pa.schema(columns), event_time="t", value="k",
        windows=fixed(10),
    )  # fmt: skip
    join = SideJoin(schema=pa.schema(columns), inputs=(rates,), event_time="t")
    reported, sink = RecordingAgent(), Sink()
    made = SparkSideOperator(
        build_layout(join),
        None,
        CachedTables(),
        emits_metrics=True,
        reporter=reported,  # type: ignore[arg-type]
    )
    made.bind(Window(number=7, time=90_000_000, watermark=None, bucket=0, buckets=4), sink)
    made.begin_window()
    rows = [{"k": "a", "t": 10.0 * window} for window in range(1, 9) for _ in range(window)]
    made.process("main", batch_of(rows, join.schema))
    made.end_window()
    ((_, _, (side, _)),) = reported.given
    assert (side.waiting_rows, [one.rows for one in side.stalls]) == (36, [8, 7, 6, 5, 4])
    assert "window 1970-01-01T00:01:20Z" in side.stalls[0].cause
    ((_, batch),) = sink.given
    assert batch.to_pylist()[0]["stall"].count("rows wait for side input") == 5


@pytest.mark.parametrize(
    ("kind", "how", "expected"),
    [
        ("map", "left", [("1", 1.5), ("2", None), ("3", 1.5)]),
        ("map", "inner", [("1", 1.5), ("3", 1.5)]),
        ("multimap", "left", [("1", 1.0), ("1", 1.5), ("2", None), ("3", 1.0), ("3", 1.5)]),
        ("multimap", "inner", [("1", 1.0), ("1", 1.5), ("3", 1.0), ("3", 1.5)]),
    ],
)
def test_rows_are_joined_with_each_value_of_their_key(
    kind: Any, how: str, expected: list[tuple[str, float | None]]
) -> None:
    side = SideInput(name="rates", kind=kind, key=("currency",), schema=RATES, static=True)
    table = pa.table({"currency": ["EUR", "EUR", "USD"], "rate": [1.0, 1.5, 2.0]}, schema=RATES)
    views = Views({"rates": make_view(side, build_content(side, table), "v1")}, None)
    batch = pa.record_batch({"id": ["1", "2", "3"], "currency": ["EUR", None, "EUR"]})
    join = RowJoiner("rates", ("currency",), ("rate",), kind == "multimap", how == "inner")
    rows = join(batch, views).to_pylist()
    assert [(row["id"], row["rate"]) for row in rows] == expected
    again: Any = OwnKeysFunction(join)(batch, views)
    assert again.to_pylist() == rows
    assert OwnKeysFunction(join).own_keys, "its caller reads this attribute"


@pytest.mark.parametrize("how", ["left", "inner"])
def test_a_join_waits_for_the_key_of_each_row_and_loses_none_to_a_load_of_several(
    how: str,
) -> None:
    rates = SideInput(name="rates", kind="map", key=("currency",), schema=RATES)
    wait = Enrich(input="rates", on=("currency",), only_wait=True)
    join = SideJoin(schema=TRADES, inputs=(rates,), enrich=(wait,), key=("currency",))
    joined = OwnKeysFunction(
        RowJoiner("rates", ("currency",), ("rate",), False, is_inner=how == "inner")
    )
    runner = Runner(lambda: SideOperator(join, joined), twice=False)
    trades = [["main", {"id": id_, "currency": id_}] for id_ in "cabx"]
    runner.window(trades, watermark=None, now=0)
    runner.window(
        [["rates", {"currency": id_, "rate": 1.0}] for id_ in "abc"], watermark=None, now=1
    )
    assert [row["id"] for row in runner.run.out["out"]] == ["c", "a", "b"]
    runner.window([], watermark=None, now=60)
    rest = [(row["id"], row["rate"]) for row in runner.run.out["out"][3:]]
    assert rest == ([("x", None)] if how == "left" else [])
    assert [row["id"] for row in runner.run.out["late"]] == ["x"]


def test_settings_that_are_not_known_are_named() -> None:
    given = side_map(None, key="k", updates="refuse")  # type: ignore[arg-type]
    with pytest.raises(
        SideDefinitionError, match="updates is not a setting; there are: key, value"
    ):
        given.define("rates", None)
    with pytest.raises(SideDefinitionError, match="a str, not a stream; make it a table"):
        side_singleton("rates").plan("rates")  # type: ignore[arg-type]
    nothing: Any = None
    sides = SideInputs(main=nothing, sources={}, make_rows=nothing, make_operator=nothing)
    with pytest.raises(SideDefinitionError, match="late is not an option; there are: order"):
        sides.options(late=3)


@pytest.mark.parametrize("method", ["join_side", "with_side_inputs"])
@pytest.mark.parametrize("source", [pa.table({"k": [1]}), "rates", None])
@pytest.mark.filterwarnings("ignore:Stream.with_side_inputs is deprecated:DeprecationWarning")
def test_a_source_without_a_kind_is_refused_with_the_kinds_there_are(
    method: str, source: object
) -> None:
    nothing: Any = None
    why = (
        rf"`rates`: a {type(source).__name__} without a kind, which decides how rows see it; write"
        r" rates=side_map\(…, key=…\) .* side_multimap\(.* side_singleton\(.* side_list\("
    )
    with pytest.raises(SideDefinitionError, match=why):
        getattr(Stream(nothing), method)(rates=source)


@pytest.mark.parametrize("timeout", ["90 seconds", "1m30s", timedelta(seconds=90), 90, 90.0])
def test_the_time_limit_of_a_side_input_is_any_duration(timeout: Any) -> None:
    columns = StructType().add("currency", "string").add("rate", "double")
    plan: Any = SimpleNamespace(schema=lambda: columns, event_time=None)
    nothing: Any = None
    given = side_map(nothing, key="currency", timeout=timeout)
    assert given.define("rates", plan).timeout == 90.0


def test_a_time_limit_that_is_no_duration_is_refused_with_the_forms() -> None:
    given = side_map(None, key="currency", timeout="soon")  # type: ignore[arg-type]
    with pytest.raises(SideDefinitionError, match="'soon' is not a valid timeout; write a time"):
        given.define("rates", None)
