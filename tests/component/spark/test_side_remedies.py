"""What is refused in a job says what to call there, and doing that succeeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from streambroker.operators import Stream, stream
from streambroker.side import SideInputs, Views, side_list, side_map
from streambroker_core.errors import StreambrokerError
from streambroker_core.side import fixed

DELAY = "1 second"
Define = Callable[[Stream, Stream], SideInputs]


def grouped(key: Any, window: Any, rows: pa.RecordBatch, views: Views) -> pa.RecordBatch:
    del key, window, views
    return rows


def sided(main: Stream, side: Stream, **settings: Any) -> SideInputs:
    return main.join_side(x=side_map(side, key="value", **settings))


def source(spark: SparkSession) -> Stream:
    frame = spark.readStream.format("rate").load()
    return stream(frame.selectExpr("timestamp", "value", "value AS v"))


def timed(one: Stream) -> Stream:
    return one.with_watermark("timestamp", DELAY)


BY_TIME = {"order": "event time"}


@pytest.mark.parametrize(
    ("wrong", "says", "right"),
    [
        (
            lambda main, side: sided(timed(main), side).options(**BY_TIME),
            "with_watermark",
            lambda main, side: sided(timed(main), timed(side)).options(**BY_TIME),
        ),
        (
            lambda main, side: sided(main, timed(side)).options(**BY_TIME),
            "with_watermark",
            lambda main, side: sided(timed(main), timed(side)).options(**BY_TIME),
        ),
        (
            lambda main, side: sided(main, side, update="latest"),
            "with_watermark",
            lambda main, side: sided(main, timed(side), update="latest"),
        ),
        (
            lambda main, side: sided(main, side, windows=fixed(1)),
            "with_watermark",
            lambda main, side: sided(timed(main), timed(side), windows=fixed(1)),
        ),
        (
            lambda main, side: sided(main, timed(side), windows=fixed(1)),
            "with_watermark",
            lambda main, side: sided(timed(main), timed(side), windows=fixed(1)),
        ),
        (
            lambda main, side: sided(main, side, update="latest", event_time="timestamp"),
            r"with_watermark\('timestamp', delay\)",
            lambda main, side: sided(main, timed(side), update="latest"),
        ),
        (
            lambda main, side: sided(main, side, keyed=True),
            r"key_by\('value'\)",
            lambda main, side: sided(main.key_by("value"), side, keyed=True),
        ),
        (
            lambda main, side: main.join_side(x=side_list(side, update="replace")),
            "ready='complete'",
            lambda main, side: main.join_side(
                x=side_list(side, update="replace", ready="complete")
            ),
        ),
    ],
)
def test_what_a_refusal_in_a_job_says_to_call_succeeds(
    spark: SparkSession, wrong: Define, says: str, right: Define
) -> None:
    def made(define: Define) -> SideInputs:
        return define(source(spark), source(spark))

    with pytest.raises(StreambrokerError, match=says):
        made(wrong).to_stream()
    made(right).to_stream()


def test_a_group_without_windows_says_how_to_cut_them(spark: SparkSession) -> None:
    sides = sided(timed(source(spark)), timed(source(spark)))
    columns = "timestamp timestamp, value bigint, v bigint"
    with pytest.raises(StreambrokerError, match=r"call window\(seconds\) before apply"):
        sides.apply(grouped, columns)
    sides.window(1).apply(grouped, columns)
