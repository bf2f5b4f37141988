from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.core import cases

FILES = sorted((Path(__file__).parents[2] / "cases").glob("*.json"))
CASES = [case for path in FILES for case in cases.load(path)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_the_language_answers_as_its_cases_say(case: dict[str, Any]) -> None:
    assert cases.failure(case) is None


def test_every_case_has_an_id_of_its_own() -> None:
    assert len({case["id"] for case in CASES}) == len(CASES) > 800


def test_a_wrong_expectation_is_reported_with_what_came_instead(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cases.json"
    case = {"id": "x1", "kind": "subscription", "expression": "a == 1", "properties": {"a": 1}}
    path.write_text(json.dumps([case | {"expected": False}, case | {"expected": True}]))

    status = cases.main([str(path)])

    assert status == 1
    assert capsys.readouterr().out.splitlines() == [
        'x1: expected False, got True: "a == 1"',
        "1 passed, 1 failed",
    ]


def test_kinds_that_are_not_known_are_counted_and_extensions_are_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cases.json"
    known = {"id": "x1", "kind": "topic-name", "expression": "a", "expected": True}
    path.write_text(
        json.dumps([known, known | {"kind": "pattern"}, known | {"class": "extension"}])
    )

    status = cases.main([str(path)])

    assert status == 1
    assert capsys.readouterr().out == "1 passed, 0 failed, 1 unsupported\n"


def test_a_class_of_reject_expects_a_refusal() -> None:
    case = {"id": "x1", "class": "reject", "kind": "parse-subscription", "expected": "error"}

    assert cases.failure(case | {"expression": "a =="}) is None
    assert cases.failure(case | {"expression": "a == 1"}) is not None
