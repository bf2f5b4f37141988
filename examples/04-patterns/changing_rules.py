"""Rules in a directory that change while a query runs.

Departures of flights come as files, an hour in each, and the rules of the directory look for
delays that grow. After two hours somebody writes a new version of a rule, adds another one, and one
that cannot be. The query runs on; each rule holds in all partitions from one window on.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

import streambroker as sb
from streambroker.operators import OperatorOptions
from streambroker.patterns import DirectoryDiscoverer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DDL = "time timestamp, tail string, delay bigint"
COLUMNS = pa.schema(
    [("time", pa.timestamp("us", "UTC")), ("tail", pa.string()), ("delay", pa.int64())]
)
MIDNIGHT = datetime(2013, 1, 1, tzinfo=UTC)
HOURS = [
    {"N1": [20, 35, 5], "N2": [0, 10, 40]},
    {"N1": [10, 30, 31], "N2": [5, 5, 5]},
    {"N1": [10, 30, 31], "N2": [70, 0, 20]},
    {"N1": [0, 0, 0], "N2": [90, 95, 0]},
]
"""Delays in minutes of each aircraft, hour by hour."""


def rule(name: str, version: int, *conditions: str) -> dict[str, Any]:
    """Return a rule: conditions that follow each other within two hours."""
    stages: list[dict[str, Any]] = [
        {"name": f"flight{place}", "where": text, **({"join": "followed_by"} if place else {})}
        for place, text in enumerate(conditions)
    ]
    pattern = {"within": "2h", "skip": {"strategy": "skip_past_last"}, "stages": stages}
    return {"id": name, "version": version, "pattern": pattern}


BEFORE = [rule("grows", 1, "delay >= 10", "delay > last(flight0.delay)")]
AFTER = [
    rule("grows", 2, "delay >= 10", "delay > last(flight0.delay)", "delay > last(flight1.delay)"),
    rule("late", 1, "delay >= 60"),
    rule("broken", 1, "delay >="),
]


def write(file: Path, text: bytes) -> None:
    """Write a file under another name, then rename it: nobody reads half of it."""
    hidden = file.with_name(f".{file.name}")
    hidden.write_bytes(text)
    hidden.rename(file)


def flights(hour: int) -> pa.Table:
    """Return the departures of an hour, and of nobody's when it ends."""
    rows = [
        {"time": MIDNIGHT + timedelta(hours=hour, minutes=20 * place), "tail": tail, "delay": delay}
        for tail, delays in HOURS[hour].items()
        for place, delay in enumerate(delays)
    ]
    ends = MIDNIGHT + timedelta(hours=hour, minutes=59)
    return pa.Table.from_pylist([*rows, {"time": ends, "tail": "", "delay": 0}], schema=COLUMNS)


def run(spark: SparkSession, folder: Path) -> dict[str, list[Any]]:
    """Return the delays of the matches of each rule and version, and which rules were refused."""
    rules, source = folder / "rules", folder / "in"
    rules.mkdir()
    source.mkdir()
    write(rules / "all.json", json.dumps(BEFORE).encode())
    frame = spark.readStream.schema(DDL).option("maxFilesPerTrigger", 1).parquet(str(source))
    made = (
        sb.stream(frame)
        .with_watermark("time", "0 seconds")
        .match_rules(
            DirectoryDiscoverer(rules, interval=0.1),
            key="tail",
            control_file=folder / "control",
            options=OperatorOptions(buckets=4),
        )
    )
    found: dict[str, list[list[Any]]] = {}

    def take(frames: dict[str, DataFrame], window: int) -> None:
        for row in frames["matches"].collect():
            events = [event for taken in row["events"].values() for event in taken]
            delays = [event["delay"] for event in sorted(events, key=lambda one: one["time"])]
            found.setdefault(f"{row['rule']} {row['version']}", []).append(delays)

    query = made.foreach_batch(take, checkpoint=folder / "checkpoint")
    for hour in range(len(HOURS)):
        if hour == 2:
            write(rules / "all.json", json.dumps(AFTER).encode())
            await_rules(made.rules.current_pattern_processors, len(AFTER) - 1)
        sink = pa.BufferOutputStream()
        pq.write_table(flights(hour), sink)
        write(source / f"{hour}.parquet", sink.getvalue().to_pybytes())
        query.processAllAvailable()
    refused = [one.rule for one in made.rules.outcomes() if one.change == "refused"]
    query.stop()
    return {**{name: sorted(told) for name, told in sorted(found.items())}, "refused": refused}


def await_rules(current: Callable[[], Iterable[object]], count: int) -> None:
    """Wait until there are so many rules."""
    deadline = time.monotonic() + 30
    while len(list(current())) != count:
        if time.monotonic() > deadline:
            raise TimeoutError("the rules were not taken in")
        time.sleep(0.05)


if __name__ == "__main__":
    from streambroker.testing import SMALL, session

    with tempfile.TemporaryDirectory(prefix="streambroker-example-") as place:
        started = session("patterns", conf=SMALL)
        print(run(started, Path(place)))
        started.stop()
    sys.exit(0)
