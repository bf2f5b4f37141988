"""The cases of patterns through `AlignedRunner`: packed, in buckets, restored in each window."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.core import cases
from support.patterns import cases as pattern_cases

FILE = Path(__file__).parents[3] / "cases" / "cep.json"
CASES = [case for case in cases.load(FILE) if pattern_cases.goes_through_windows(case)]


def test_most_cases_can_be_run_in_windows() -> None:
    assert len(CASES) > 80


@pytest.mark.parametrize(
    "copied", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["rows", "copies"]
)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_a_case_gives_the_same_through_the_runner(case: dict[str, Any], copied: bool) -> None:
    assert pattern_cases.failure_through_runner(case, copied=copied) is None


def test_a_step_may_have_the_end_of_time_as_its_watermark() -> None:
    a = {"field": "name", "op": "==", "value": "a"}
    stages = [
        {"name": "s", "contiguity": "begin", "condition": a, "quantifier": {"kind": "one"}},
        {"name": "n", "contiguity": "notFollowedBy", "condition": a | {"value": "b"},
         "quantifier": {"kind": "one"}, "within_first_last_ms": 5},
    ]  # fmt: skip
    case = {
        "id": "own", "kind": "operator", "time": "event", "pattern": stages, "within_ms": 5,
        "events": [{"i": 0, "t": 1, "id": 1, "name": "a", "price": 1.0}],
        "steps": [{"event": 0}, {"watermark": "+inf"}],
        "expected": [{"s": [0]}],
    }  # fmt: skip
    assert pattern_cases.failure(case) is None
