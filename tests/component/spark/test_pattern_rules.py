"""Rules that change while a query runs on Spark: D-1 to D-17 of the dynamic patterns.

All scenarios run in one query, each with letters, rules and users of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from streambroker.operators import OperatorOptions, Stream
from streambroker.patterns import PatternStream, explain
from support.patterns.spark import Given, Play, letters

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
WINDOWS = 3
SECONDS = 100
"""Event time between two windows."""

Event = tuple[Any, ...]
"""Letter, and user and item where they matter."""


def at(window: int, place: int = 0) -> datetime:
    return BEGIN + timedelta(seconds=SECONDS * window + place)


def rule(name: str, word: str, version: int = 1, **fields: Any) -> dict[str, Any]:
    """Return the rule of letters that follow each other, others between them or not."""
    scenario = name.split(".", maxsplit=1)[0]
    stages = [{"name": one, "where": f'n == "{scenario}{one}"'} for one in word]
    for stage in stages[1:]:
        stage["join"] = "followed_by"
    return {"id": name, "version": version, "pattern": {"stages": stages}, **fields}


@dataclass(frozen=True)
class Scenario:
    """What happens to some rules.

    Attributes:
        rules: the wanted rules of each window; the last ones stay.
        events: of each window.
        matches: rule, version and letters.
        refused: reasons by rule, of the last update.
    """

    rules: Sequence[Sequence[dict[str, Any]]]
    events: Sequence[str | Sequence[Event]]
    matches: Sequence[tuple[str, int, str]] = ()
    refused: dict[str, str] = field(default_factory=dict)


MIDDLE = at(1, 50).isoformat()
SCENARIOS = {
    "d1": Scenario([[rule("d1.r", "AC")]], ["AC"], [("d1.r", 1, "AC")]),
    "d2": Scenario(
        [[rule("d2.r", "AC")], [rule("d2.r", "AC"), rule("d2.s", "AC")]],
        ["A", "CAC"],
        [("d2.r", 1, "AC"), ("d2.r", 1, "AC"), ("d2.s", 1, "AC")],
    ),
    "d3": Scenario(
        [[rule("d3.r", "AC")], [rule("d3.r", "ABC", 2)]],
        ["A", "CBC", "ABC"],
        [("d3.r", 2, "ABC")],
    ),
    "d4": Scenario([[rule("d4.r", "AC")]] * 2, ["A", "C"], [("d4.r", 1, "AC")]),
    "d5": Scenario([[rule("d5.r", "AC")], []], ["A", "C", "C"]),
    "d6": Scenario([[]], ["AC", "AC"]),
    "d7": Scenario(
        [[rule("d7.r", "AC"), rule("d7.s", "AC", key=["item"])]],
        [
            [("A", "d7u", "d7i"), ("A", "d7v", "d7j")],
            [("C", "d7u", "d7k"), ("C", "d7w", "d7i")],
        ],
        [("d7.r", 1, "AC"), ("d7.s", 1, "AC")],
    ),
    "d8": Scenario(
        [[rule("d8.r", "AC"), rule("d8.s", "AC", scheduled=MIDDLE)]],
        ["A", "C" + "." * 55 + "A", "C"],
        [("d8.r", 1, "AC"), ("d8.r", 1, "AC"), ("d8.s", 1, "AC")],
    ),
    "d9": Scenario(
        [[rule("d9.r", "AC", scheduled="2001-01-01T00:00:00Z")]], ["AC"], [("d9.r", 1, "AC")]
    ),
    "d10": Scenario([[rule("d10.r", "ABC")]], ["A", "B", "A"]),
    "d11": Scenario(
        [
            [rule("d11.r", "AC")],
            [
                rule("d11.r", "AC"),
                rule("d11.s", "AC", pattern={"stages": [{"name": "A", "where": "n =="}]}),
                rule("d11.t", "AC", function="nobody"),
                rule("d11.u", "AC", key=["nobody"]),
                rule("d11.v", "C", key=["n"]),
                rule("d11.y", "AC", pattern={"stages": [{"name": "A", "where": "user > 5"}]}),
                rule("d11.w", "AC", pattern={"skip": {"strategy": "skip_to_last", "stage": "x"},
                                             "stages": [{"name": "A"}]}),
            ],
        ],
        ["A", "C"],
        [("d11.r", 1, "AC")],
        {
            "d11.s": "Invalid",
            "d11.t": "FunctionUnknown",
            "d11.u": "KeyUnknown",
            "d11.v": "KeyNotCopied",
            "d11.w": "Invalid",
            "d11.y": "Invalid",
        },
    ),
    "d13": Scenario(
        [[rule("d13.r", "AC", 2)], [rule("d13.r", "A", 1)]],
        ["A", "C"],
        [("d13.r", 2, "AC")],
        {"d13.r": "VersionTooLow"},
    ),
}  # fmt: skip


def wanted(window: int) -> list[dict[str, Any]]:
    """Return the rules that there are to be in a window."""
    return [
        one
        for scenario in SCENARIOS.values()
        for one in scenario.rules[min(window, len(scenario.rules) - 1)]
    ]


def events(window: int) -> list[dict[str, Any]]:
    """Return the rows of a window."""
    rows = []
    for name, scenario in SCENARIOS.items():
        given = scenario.events[window] if window < len(scenario.events) else ""
        for place, one in enumerate(given):
            letter, user, item = one if isinstance(one, tuple) else (one, name, name)
            rows.append({"t": at(window, place), "n": name + letter, "user": user, "item": item})
    rows.append({"t": at(window, SECONDS - 1), "n": "end", "user": "end", "item": "end"})
    return sorted(rows, key=lambda row: row["t"])


def play(spark: SparkSession, folder: Path, delay: str = "0 seconds") -> Play:
    control = folder / "rules"

    def make(stream: Stream, first: Sequence[Any]) -> PatternStream:
        return (
            stream.key_by("user")
            .with_watermark("t", delay)
            .match_rules(Given(first), control_file=control, options=OperatorOptions(buckets=4))
        )

    return Play(spark, folder, make)


def run(played: Play, *, single: bool = False, restart: Sequence[int] = ()) -> dict[str, str]:
    """Run all windows; return the reasons for which rules were refused in the second."""
    refused: dict[str, str] = {}
    for window in range(WINDOWS):
        if window == 0:
            played.start(wanted(0))
        elif window in restart:
            played.stop()
            played.start(wanted(window))
        else:
            played.rules.on_pattern_processors_updated(wanted(window))
        if window == 1:
            assert played.made is not None
            outcomes = played.made.rules.outcomes()
            refused = {one.rule: one.reason for one in outcomes if one.change == "refused"}
        rows = events(window)
        for part in [[row] for row in rows if not row["n"].endswith(".")] if single else [rows]:
            played.rows(part)
    return refused


WAYS: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "stopped and started with other rules": {"restart": (1, 2)},
}
EXPECTED = Counter(one for scenario in SCENARIOS.values() for one in scenario.matches)
NEW_KEY = Counter([("d11.v", 1, "C")])
"""Of a key that came later: rows are copied for it once the query starts anew."""


def found(played: Play) -> Counter[tuple[str, int, str]]:
    rows = played.output()
    return Counter((row["rule"], row["version"], letters(row)) for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize(
    "way",
    [pytest.param("as it comes", marks=pytest.mark.long), "stopped and started with other rules"],
)
def test_rules_come_change_and_go_while_rows_flow(
    spark: SparkSession, tmp_path: Path, way: str
) -> None:
    """D-1 to D-11, D-13 and D-16; by users and, in the same query, by items."""
    played = play(spark, tmp_path)
    refused = run(played, **WAYS[way])
    assert found(played) == EXPECTED + (NEW_KEY if "restart" in WAYS[way] else Counter())
    expected = {k: v for one in SCENARIOS.values() for k, v in one.refused.items()}
    if way != "as it comes":  # a query that starts anew copies rows for the keys that it finds
        expected = {k: v for k, v in expected.items() if v != "KeyNotCopied"}
    assert refused == expected
    assert played.output("errors") == []
    played.stop()
    standing = explain(spark, played.checkpoint, "d10.r")
    assert {key: [str(one) for one in runs] for key, runs in standing.items()} == {
        ("d10",): [
            'taken: A 1, B 1; waits for `C` (`C`: n == "d10C")',
            'taken: A 1; waits for `B` (`B`: n == "d10B")',
        ]
    }
    assert explain(spark, played.checkpoint, "d5.r") == {}


@pytest.mark.long
def test_one_event_in_each_window_comes_to_the_same(spark: SparkSession, tmp_path: Path) -> None:
    """Scenarios have events at the same second; one at the watermark is late."""
    played = play(spark, tmp_path, "1 second")
    run(played, single=True)
    assert found(played) == EXPECTED
    played.stop()
