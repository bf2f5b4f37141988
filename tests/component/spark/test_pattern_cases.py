"""Pattern cases on Spark: all events in one window, and one in each, with a restart between.

All cases run in one query: each has a rule, and a key, and times of its own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from pe_agent.aligned import Stream
from pe_agent.cep import PatternProcessor, PatternStream, pattern_processors
from support import cases, pattern_cases
from support.pattern_spark import Given, Play

FILE = Path(__file__).parents[2] / "cases" / "cep.json"
BEGIN = datetime(2026, 1, 1, tzinfo=timezone.utc)
BETWEEN = timedelta(days=1)
"""Event time between two cases."""
SAMPLE = 12
DDL = (
    "t timestamp, i bigint, id bigint, name string, price double, type string, volume double,"
    " case string, part string"
)
SCHEMA = pa.schema(
    [
        ("t", pa.timestamp("us", "UTC")),
        ("i", pa.int64()),
        ("id", pa.int64()),
        ("name", pa.string()),
        ("price", pa.float64()),
        ("type", pa.string()),
        ("volume", pa.float64()),
        ("case", pa.string()),
        ("part", pa.string()),
    ]
)


def fits(case: dict[str, Any]) -> bool:
    """Whether a case can share a query: it goes on in time behind its events, or does not care."""
    alone = case.get("steps") or case.get("tie_break") or case.get("time") != "event"
    if alone or case.get("expected_error") or not pattern_cases.goes_through_windows(case):
        return False
    times = [event["t"] for event in case["events"]]
    windows = case.get("within_ms") or case.get("within_previous_current_ms")
    sorts = case["kind"] == "pipeline" or times == sorted(times)
    return sorts and bool(case.get("end_of_input") or not windows)


def chosen() -> list[dict[str, Any]]:
    """Return those of whole pipelines, and others spread over the file, short ones first."""
    found = [case for case in cases.load(FILE) if fits(case)]
    whole = [case for case in found if case["kind"] == "pipeline"]
    others = [case for case in found if case["kind"] != "pipeline" and len(case["events"]) < 8]
    return [*whole, *others[:: max(1, len(others) // SAMPLE)][:SAMPLE]]


CASES = chosen()


def rows(case: dict[str, Any], number: int) -> list[dict[str, Any]]:
    made = []
    for event in sorted(case["events"], key=lambda event: event["t"]):
        time = BEGIN + number * BETWEEN + timedelta(milliseconds=event["t"])
        part = str(event[case["key_by"]]) if case.get("key_by") else ""
        made.append({**pattern_cases.row_of(event), "t": time, "case": case["id"], "part": part})
    return made


def end() -> dict[str, Any]:
    return {"t": BEGIN + (len(CASES) + 1) * BETWEEN, "case": "end", "part": "", "name": "end"}


def play(spark: SparkSession, folder: Path) -> Play:
    def make(stream: Stream, first: Sequence[Any]) -> PatternStream:
        return pattern_processors(
            stream, Given(first), control=folder / "rules", key=["case", "part"], event_time="t",
            watermark="0 seconds", buckets=4,
        )  # fmt: skip

    return Play(spark, folder, make, ddl=DDL, schema=SCHEMA)


def problems(played: Play) -> list[str]:
    """Return what is wrong in any case."""
    found = []
    for case in CASES:
        mine = [
            {k: [one["i"] for one in taken] for k, taken in json.loads(row["events"]).items()}
            for row in played.told()
            if row["rule"] == case["id"] and json.loads(row["key"])[0] == case["id"]
        ]
        plain = {**case, "emitted_at_event": None, "ordered": False}
        differs = pattern_cases.compared(plain, [(one, None) for one in mine], None)
        found += [f"{case['id']} ({case['name']}): {one}" for one in differs]
    return found


def rules() -> list[PatternProcessor]:
    return [
        PatternProcessor(id=case["id"], version=1, pattern=pattern_cases.pattern_of(case))
        for case in CASES
    ]


def test_there_are_cases_of_both_kinds() -> None:
    assert SAMPLE < len(CASES) < 2 * SAMPLE
    assert sum(len(case["expected"]) for case in CASES) > SAMPLE


def test_cases_in_one_window(spark: SparkSession, tmp_path: Path) -> None:
    played = play(spark, tmp_path)
    played.start(rules())
    played.rows([*(row for n, case in enumerate(CASES) for row in rows(case, n)), end()])
    played.stop()
    assert problems(played) == []


@pytest.mark.long
def test_cases_with_one_event_in_each_window_and_a_restart(
    spark: SparkSession, tmp_path: Path
) -> None:
    played = play(spark, tmp_path)
    played.start(rules())
    half = len(CASES) // 2
    for number, case in enumerate(CASES):
        for place, row in enumerate(rows(case, number)):
            if (number, place) == (half, 1):
                played.stop()
                played.start(rules())
            played.rows([row], wait=number == half)
    played.rows([end()])
    played.stop()
    assert problems(played) == []
