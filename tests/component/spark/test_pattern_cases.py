"""Pattern cases on Spark: all events in one window, and one in each, with a restart between.

All cases run in one query: each has a rule, and a key, and times of its own. Cases of an operator
say when the watermark moves and when the query is started again; a row of nobody moves it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pe_agent.datasource.schemas import as_arrow_schema
from streambroker.operators import OperatorOptions, Stream
from streambroker.patterns import PatternProcessor, PatternStream
from support.core import cases
from support.patterns import cases as pattern_cases
from support.patterns.spark import Given, Play

FILE = Path(__file__).parents[2] / "cases" / "cep.json"
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
BETWEEN = timedelta(days=1)
"""Event time between two cases."""
DELAY = timedelta(hours=1)
"""So much later rows may come where steps say when the watermark moves."""
SAMPLE = 12
DDL = (
    "t timestamp, i bigint, id bigint, name string, price double, type string, volume double,"
    " case string, part string, tie double"
)
SCHEMA = as_arrow_schema(DDL)


def fits(case: dict[str, Any]) -> bool:
    """Whether a case can share a query: it goes on in time behind its events, or does not care."""
    alone = case.get("time") != "event"
    if alone or case.get("expected_error") or not pattern_cases.goes_through_windows(case):
        return False
    times = [event["t"] for event in case["events"]]
    windows = case.get("within_ms") or case.get("within_previous_current_ms")
    if case.get("steps"):
        return bool(case["pattern"][-1]["contiguity"] != "notFollowedBy")
    sorts = case["kind"] == "pipeline" or times == sorted(times)
    return sorts and bool(case.get("end_of_input") or not windows)


def chosen() -> list[dict[str, Any]]:
    """Return those of whole pipelines, and others spread over the file, short ones first."""
    found = [case for case in cases.load(FILE) if fits(case)]
    whole = [case for case in found if case["kind"] in ("pipeline", "operator")]
    others = [case for case in found if case not in whole and len(case["events"]) < 8]
    return [*whole, *others[:: max(1, len(others) // SAMPLE)][:SAMPLE]]


CASES = chosen()
CLOCKED = [
    case
    for case in cases.load(FILE)
    if (case["kind"], case.get("time")) == ("pipeline", "processing")
]
STEPPED = [case for case in CASES if case.get("steps")]
OTHERS = [case for case in CASES if not case.get("steps")]


def at(number: int, milliseconds: int) -> datetime:
    """Return a time of a case."""
    return BEGIN + number * BETWEEN + timedelta(milliseconds=milliseconds)


def row(case: dict[str, Any], number: int, event: dict[str, Any]) -> dict[str, Any]:
    return {
        **pattern_cases.row_of(event),
        "t": at(number, event["t"]),
        "case": case["id"],
        "part": str(event[case["key_by"]]) if case.get("key_by") else "",
        "tie": float(event[case["tie_break"]["field"]]) if case.get("tie_break") else 0.0,
    }


def rows(case: dict[str, Any], number: int) -> list[dict[str, Any]]:
    """Return events in order, those of an operator as they come, none that is late."""
    events = {event["i"]: event for event in case["events"]}
    order = sorted(case["events"], key=lambda event: event["t"])
    if case.get("steps"):
        order = [events[step["event"]] for step in case["steps"] if "event" in step]
    return [row(case, number, event) for event in order if event["i"] not in case.get("late", ())]


def end() -> dict[str, Any]:
    return {"t": BEGIN + (len(CASES) + 1) * BETWEEN, "case": "end", "part": "", "name": "end"}


def play(spark: SparkSession, folder: Path, watermark: timedelta = timedelta(0)) -> Play:
    def make(stream: Stream, first: Sequence[Any]) -> PatternStream:
        return stream.with_watermark("t", f"{watermark.seconds} seconds").match_rules(
            Given(first),
            control_file=folder / "rules",
            key=["case", "part"],
            tie_break="tie",
            options=OperatorOptions(buckets=4),
        )

    return Play(spark, folder, make, ddl=DDL, schema=SCHEMA)


def problems(played: Play, of: Sequence[dict[str, Any]] = CASES) -> list[str]:
    """Return what is wrong in any case."""
    found = []
    for case in of:
        mine = [
            {stage: [one["i"] for one in taken] for stage, taken in row["events"].items()}
            for row in played.output()
            if row["rule"] == case["id"] and row["key"]["case"] == case["id"]
        ]
        plain = {**case, "emitted_at_event": None, "ordered": False}
        differs = pattern_cases.compared(plain, [(one, None) for one in mine], None)
        found += [f"{case['id']} ({case['name']}): {one}" for one in differs]
    return found


def rules(of: Sequence[dict[str, Any]] = CASES) -> list[PatternProcessor]:
    return [
        PatternProcessor(id=case["id"], version=1, pattern=pattern_cases.pattern_of(case))
        for case in of
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
    played.start(rules(OTHERS))
    half = len(OTHERS) // 2
    for number, case in enumerate(OTHERS):
        for place, one in enumerate(rows(case, number)):
            if (number, place) == (half, 1):
                played.stop()
                played.start(rules(OTHERS))
            played.rows([one], wait=number == half)
    played.rows([end()])
    played.stop()
    assert problems(played, OTHERS) == []


@pytest.mark.long
@pytest.mark.parametrize(
    "single", [False, True], ids=["as few windows as can be", "one event each"]
)
def test_cases_of_an_operator_step_by_step(
    spark: SparkSession, tmp_path: Path, single: bool
) -> None:
    """Rows in the order in which they come, late ones told, the watermark and restarts as said."""
    played = play(spark, tmp_path, DELAY)
    played.start(rules(STEPPED))
    for number, case in enumerate(STEPPED):
        events = {event["i"]: event for event in case["events"]}
        given: list[dict[str, Any]] = []
        for step in case["steps"]:
            if "event" in step:
                given.append(row(case, number, events[step["event"]]))
            elif step.get("watermark", "-inf") != "-inf":
                given.append({**end(), "t": at(number, step["watermark"]) + DELAY})
            if given and (single or "event" not in step):
                played.rows(given)
                given = []
            if "restart" in step:
                played.stop()
                played.start(rules(STEPPED))
    played.rows([end()])
    played.stop()
    assert problems(played, STEPPED) == []
    late = [(one["case"], one["i"]) for one in played.output("late")]
    assert late == [(case["id"], i) for case in STEPPED for i in case.get("late", ())]


@pytest.mark.slow
def test_cases_in_processing_time(spark: SparkSession, tmp_path: Path) -> None:
    """Their windows are so wide that the clock of the machine will do, or there are none."""

    def make(stream: Stream, first: Sequence[Any]) -> PatternStream:
        return stream.match_rules(
            Given(first),
            control_file=tmp_path / "rules",
            key=["case", "part"],
            options=OperatorOptions(buckets=4),
        )

    played = Play(spark, tmp_path, make, ddl=DDL, schema=SCHEMA)
    played.start(rules(CLOCKED))
    longest = max(len(case["events"]) for case in CLOCKED)
    for low, high in ((0, 1), (1, longest)):
        played.rows(
            [
                row(case, number, event)
                for number, case in enumerate(CLOCKED)
                for event in case["events"][low:high]
            ]
        )
    played.stop()
    assert len(CLOCKED) > 1
    assert problems(played, CLOCKED) == []


def test_there_are_cases_of_an_operator_with_all_kinds_of_steps() -> None:
    kinds = {kind for case in STEPPED for step in case["steps"] for kind in step}
    assert kinds == {"event", "watermark", "restart"}
    assert any(case.get("late") for case in STEPPED)
    assert any(case.get("tie_break") for case in STEPPED)
