"""Cases as they stand in files: what patterns may not be, and how a file of others is run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.core import cases
from support.patterns import cases as pattern_cases

TRUE = {"true": True}
A = {"field": "name", "op": "==", "value": "a"}


def stage(name: str, contiguity: str = "begin", **fields: Any) -> dict[str, Any]:
    return {"name": name, "contiguity": contiguity, "condition": TRUE, **fields}


def group(*stages: dict[str, Any], contiguity: str = "begin", **fields: Any) -> dict[str, Any]:
    return {"group": list(stages), "contiguity": contiguity, "condition": None, **fields}


def case(*pattern: dict[str, Any], wanted: str | None = None, **fields: Any) -> dict[str, Any]:
    found = {"id": "x", "name": "x", "kind": "compile", "pattern": list(pattern), **fields}
    return found if wanted is None else {**found, "expected_error": wanted}


def calls(*given: list[Any]) -> dict[str, Any]:
    return stage("a", calls=list(given))


MORE = {"kind": "at_least", "min": 1, "inner": "relaxed"}
OPTIONAL = {"kind": "one", "optional": True}
MALFORMED = "malformed_pattern"
REFUSED: list[tuple[str, list[dict[str, Any]], dict[str, Any]]] = [
    ("invalid_argument", [calls(["times", 0])], {}),
    ("invalid_argument", [calls(["times", 3, 2])], {}),
    ("invalid_argument", [calls(["times", -1, 2])], {}),
    ("invalid_argument", [calls(["timesOrMore", 0])], {}),
    (MALFORMED, [calls(["times", 2], ["timesOrMore", 2])], {}),
    (MALFORMED, [calls(["oneOrMore"], ["oneOrMore", 5])], {}),
    (MALFORMED, [calls(["until"])], {}),
    (MALFORMED, [calls(["times", 2], ["until"])], {}),
    (MALFORMED, [calls(["oneOrMore"], ["until"], ["until"])], {}),
    (MALFORMED, [calls(["consecutive"])], {}),
    (MALFORMED, [calls(["allowCombinations"])], {}),
    (MALFORMED, [calls(["oneOrMore"], ["consecutive"], ["allowCombinations"])], {}),
    (MALFORMED, [calls(["greedy"])], {}),
    (MALFORMED, [calls(["oneOrMore"], ["allowCombinations"], ["greedy"])], {}),
    (MALFORMED, [calls(["optional"], ["optional"])], {}),
    (MALFORMED, [calls(["notNext"], ["oneOrMore"])], {}),
    (MALFORMED, [calls(["followedBy", "a"])], {}),
    (MALFORMED, [stage("a:b")], {}),
    (MALFORMED, [stage("a"), stage("x", "notFollowedBy")], {}),
    (MALFORMED, [stage("a"), stage("x", "notNext", quantifier=OPTIONAL), stage("b", "next")], {}),
    (MALFORMED, [stage("a"), stage("x", "notNext", quantifier=MORE), stage("b", "next")], {}),
    ("unsupported_pattern",
     [stage("a", quantifier=OPTIONAL), stage("x", "notNext"), stage("b", "next")], {}),
    ("unsupported_pattern",
     [stage("a", quantifier={**MORE, "optional": True}), stage("x", "notFollowedBy"),
      stage("b", "next")], {}),
    (MALFORMED, [group(stage("a"), stage("b", "next")), stage("a", "next")], {}),
    (MALFORMED, [group(stage("a"), stage("b", "next"), calls=[["where"]])], {}),
    (MALFORMED, [group(stage("a"), stage("b", "next"), calls=[["or"]])], {}),
    (MALFORMED, [group(stage("a"), stage("b", "next"), calls=[["subtype"]])], {}),
    (MALFORMED, [group(stage("a"), quantifier={**MORE, "greedy": True})], {}),
    (MALFORMED,
     [stage("a", quantifier={**MORE, "greedy": True}), stage("b", "next", quantifier=OPTIONAL)],
     {}),
    (MALFORMED, [stage("a")], {"skip": {"strategy": "skip_to_first", "stage": "b"}}),
    (MALFORMED, [group(stage("a")), stage("b", "next")],
     {"skip": {"strategy": "skip_to_last", "stage": "a"}}),
    (MALFORMED,
     [stage("a"), stage("b", "next", within_previous_current_ms=6, within_first_last_ms=5)], {}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("wanted", "pattern", "fields"), REFUSED, ids=[str(n) for n in range(len(REFUSED))]
)
def test_what_a_pattern_may_not_be_is_refused_when_it_is_defined(
    wanted: str, pattern: list[dict[str, Any]], fields: dict[str, Any]
) -> None:
    assert pattern_cases.failure(case(*pattern, wanted=wanted, **fields)) is None
    assert pattern_cases.failure(case(*pattern, **fields)) is not None


@pytest.mark.parametrize(
    ("pattern", "window"),
    [
        ([calls(["oneOrMore", 5], ["until"], ["optional"], ["greedy"])], 0),
        ([calls(["timesOrMore", 2, 5], ["consecutive"])], 0),
        ([calls(["times", 2, 3, 5], ["greedy"])], 0),
        ([calls(["times", 0, 2])], 0),
        ([calls(["subtype"], ["or", A], ["within", 7])], 7),
        ([calls(["next"], ["followedByAny", "b"], ["within", 9])], 9),
        ([stage("a", within_first_last_ms=9), stage("b", "next", within_first_last_ms=5)], 5),
        ([stage("a"), stage("x", "notFollowedBy", within_first_last_ms=5)], 5),
        ([stage("a"), stage("x", "notNext")], 0),
        ([group(stage("a"), stage("b", "next"), quantifier={**MORE, "optional": True})], 0),
    ],
)
def test_what_a_pattern_may_be_is_taken_with_its_window(
    pattern: list[dict[str, Any]], window: int
) -> None:
    assert pattern_cases.failure(case(*pattern, expected_window_ms=window)) is None
    assert pattern_cases.failure(case(*pattern, expected_window_ms=window + 1)) is not None


def test_a_case_that_cannot_be_run_fails_and_the_next_one_is_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [
        case(calls(["sometimes"])),
        case(stage("a:b"), **{"class": "reject"}),
        case(stage("a:b"), **{"class": "extension"}),
        case(stage("a"), expected_can_match_empty=False),
        case(stage("a", quantifier=OPTIONAL), expected_can_match_empty=True),
        case(stage("a"), kind="unheard of"),
    ]
    (tmp_path / "some.json").write_text(json.dumps(given))

    assert cases.main([str(tmp_path / "some.json")]) == 1

    first, last = capsys.readouterr().out.splitlines()
    assert first == "x: KeyError: 'sometimes'"
    assert last == "3 passed, 1 failed, 1 unsupported"
