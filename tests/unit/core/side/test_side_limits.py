"""Limits of a side input and of rows that wait: each says what, how much, and what to do."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from streambroker_core.side import Enrich, SideInput, SideJoin, SideOperator
from streambroker_core.side.errors import SideTooLargeError
from streambroker_core.side.join.static_table import build_content
from support.sides.cases import Runner

RATES = pa.schema([("currency", pa.string()), ("rate", pa.float64())])
TRADES = pa.schema([("id", pa.string()), ("currency", pa.string()), ("n", pa.int64())])
TIMED = pa.schema([*TRADES, ("t", pa.timestamp("us", "UTC"))])


def rates(**reported: Any) -> SideInput:
    known = {"name": "rates", "kind": "map", "key": ("currency",), "schema": RATES}
    return SideInput(**{**known, **reported})


def values(count: int) -> list[list[Any]]:
    return [["rates", {"currency": f"c{n:05}", "rate": n}] for n in range(count)]


def trades(count: int) -> list[list[Any]]:
    return [["main", {"id": f"m{n}", "currency": "EUR", "n": n, "t": 10}] for n in range(count)]


def run(join: SideJoin, *windows: list[list[Any]]) -> Runner:
    runner = Runner(lambda: SideOperator(join), twice=False)
    for feed in windows:
        runner.window(feed, watermark=None, now=0)
    return runner


def test_values_of_a_stream_have_a_limit_of_bytes_also_while_they_are_staged() -> None:
    says = r"`rates`: bytes of its values in one bucket: [\d,]+, the limit is 1,000; give it a key"
    with pytest.raises(SideTooLargeError, match=says):
        run(SideJoin(schema=TRADES, inputs=(rates(max_bytes=1000),)), values(100))
    with pytest.raises(SideTooLargeError, match=says):
        run(SideJoin(schema=TRADES, inputs=(rates(max_bytes=1000, ready="complete"),)), values(100))


def test_values_are_counted_over_windows_and_what_replaces_another_counts_once() -> None:
    join = SideJoin(schema=TRADES, inputs=(rates(max_entries=10),))
    assert run(join, values(10), values(10)).run.out["out"] == []
    with pytest.raises(SideTooLargeError, match=r"values in one bucket: 11, the limit is 10"):
        run(join, values(6), values(11))


def test_a_window_above_a_limit_keeps_nothing() -> None:
    runner = run(SideJoin(schema=TRADES, inputs=(rates(max_entries=10),)), values(6))
    before = [dict(blobs) for blobs in runner.blobs]
    with pytest.raises(SideTooLargeError):
        runner.window(values(11), watermark=None, now=0)
    assert runner.blobs == before


def test_rows_that_wait_have_a_limit_of_bytes() -> None:
    join = SideJoin(schema=TRADES, inputs=(rates(),), max_waiting_bytes=1000)
    says = (
        r"`rates`: bytes of rows that wait in one bucket: [\d,]+, the limit is 1,000; is its stream"
        r" running\? Set timeout=, or ready='not required', or raise the limit"
    )
    with pytest.raises(SideTooLargeError, match=says):
        run(join, trades(200))


def test_rows_that_wait_for_keys_and_for_their_turn_count_too() -> None:
    enrich = (Enrich(input="rates", on=("currency",), missing="wait"),)
    join = SideJoin(schema=TRADES, inputs=(rates(),), enrich=enrich, max_waiting_rows=3)
    with pytest.raises(SideTooLargeError, match="rows that wait in one bucket: 4, the limit is 3"):
        run(join, values(1), trades(4))
    side = rates(schema=pa.schema([*RATES, ("t", pa.timestamp("us", "UTC"))]), event_time="t")
    timed = SideJoin(
        schema=TIMED, inputs=(side,), event_time="t", order="event time", max_waiting_rows=3
    )
    with pytest.raises(SideTooLargeError, match="`main`: rows that wait in one bucket: 4"):
        run(timed, trades(4))


def test_a_version_of_a_table_has_a_limit_of_bytes() -> None:
    table = pa.table({"currency": [f"c{n}" for n in range(100)], "rate": [1.0] * 100})
    says = r"bytes of a version: [\d,]+, the limit is 1,000; raise the limit"
    with pytest.raises(SideTooLargeError, match=says):
        build_content(rates(static=True, max_bytes=1000), table)
