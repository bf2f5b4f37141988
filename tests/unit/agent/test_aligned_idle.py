"""Which time has passed where a stream is idle."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from pe_agent.aligned.runtime import progress_messages as notes
from pe_agent.aligned.runtime.idleness import EventTimeReporter, InputTiming, active_watermark
from pe_agent.aligned.runtime.state_store import BucketState, read_bucket_state
from streambroker_core.control.runtime.packing import PACKED, pack_watermark

SECOND = 1_000_000
PACES = {
    "main": InputTiming(delay=2 * SECOND),
    "side": InputTiming(delay=0, idle_after=10 * SECOND),
}


def known(*latest: tuple[str, int, int]) -> BucketState:
    """Return what a bucket knows of inputs: their event times, and when these came."""
    own = BucketState()
    for port, at, now in latest:
        own.apply_progress(notes.LatestEventTime(port=port, at=at * SECOND), now * SECOND)
    return read_bucket_state(own.write(), "operator")


@pytest.mark.parametrize(
    ("latest", "now", "expected"),
    [
        ([("main", 50, 0), ("side", 20, 0)], 9, None),
        ([("main", 50, 0), ("side", 20, 0)], 10, 48),
        ([("main", 50, 0), ("main", 40, 5), ("side", 20, 0)], 10, 48),
        ([("main", 50, 0), ("side", 20, 0), ("side", 21, 5)], 14, None),
        ([("main", 50, 99), ("side", 20, 0)], 100, 48),
        ([("side", 20, 0)], 100, None),
    ],
    ids=["rows came", "idle", "late rows", "rows came again", "main goes on", "no main rows"],
)
def test_an_idle_input_does_not_hold_the_time_of_the_others(
    latest: list[tuple[str, int, int]], now: int, expected: int | None
) -> None:
    own = known(*latest)
    found = active_watermark(own.input_times, PACES, now * SECOND)
    assert found == (None if expected is None else expected * SECOND)


def test_an_input_without_any_row_is_idle_from_the_first_window_on() -> None:
    own = known(("main", 50, 0))
    assert active_watermark(own.input_times, PACES, 3 * SECOND) is None
    again = read_bucket_state(own.write(), "operator")
    assert active_watermark(again.input_times, PACES, 12 * SECOND) is None
    assert active_watermark(again.input_times, PACES, 13 * SECOND) == 48 * SECOND


def test_inputs_that_are_all_idle_pass_no_time() -> None:
    paces = {port: InputTiming(delay=0, idle_after=SECOND) for port in ("main", "side")}
    own = known(("main", 50, 0), ("side", 20, 0))
    assert active_watermark(own.input_times, paces, 100 * SECOND) is None


def test_a_task_reports_its_latest_event_time_to_every_bucket_and_the_clock() -> None:
    batches = [pack_watermark(7), pack_watermark(None), pack_watermark(5)]
    zoned = [
        pa.field(f.name, pa.timestamp("us", "CET")) if f.name == "event_time" else f for f in PACKED
    ]
    as_spark = [one.cast(pa.schema([f.with_nullable(True) for f in zoned])) for one in batches]
    found = list(EventTimeReporter("side", 3)(as_spark))
    assert found[:3] == batches
    assert {one.schema for one in found} == {PACKED}
    rows: list[dict[str, Any]] = pa.Table.from_batches(found[3:]).to_pylist()
    assert [row["bucket"] for row in rows] == [-1, 0, 1, 2]
    assert all(row["n"] == notes.PROGRESS_ROW and row["event_time"] is None for row in rows)
    assert {tuple(notes.decode(row["payload"])) for row in rows} == {
        (notes.LatestEventTime(port="side", at=7),)
    }


def test_a_task_without_event_times_reports_none() -> None:
    assert (
        list(EventTimeReporter("side", 3)([pa.RecordBatch.from_pylist([], schema=PACKED)]))[1:]
        == []
    )
