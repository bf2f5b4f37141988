from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from streambroker_core.cep import Pattern, PatternError, Skip
from streambroker_core.cep.nfa.value_codec import ValueReader, ValueWriter
from streambroker_core.cep.pattern.rule import PatternProcessor
from streambroker_core.cep.pattern.run_limits import RunLimits
from streambroker_core.cep.rules.document import read_pattern, read_rule, write_pattern, write_rule
from streambroker_core.cep.rules.document_schema import RULE_SCHEMA
from streambroker_core.control.operators.operator import StateError
from streambroker_core.errors import ManifestError
from support.patterns.cases import pattern_of
from support.patterns.examples import patterns

CASES = json.loads((Path(__file__).parents[3] / "cases" / "cep.json").read_text())
RUNNING = [case for case in CASES if "expected_error" not in case]
VALIDATOR = jsonschema.Draft202012Validator(RULE_SCHEMA)
RULE = """
id: cheap-then-dear
version: 3
key: user
scheduled: 2026-11-22T12:00:00Z
function: alert
onError: disable
keepMatches: true
limits: {runs: 50, policy: refuse}
numbered: true
labels: {team: fraud}
pattern:
  skip: {strategy: skip_to_first, stage: dear, throwOnMiss: true}
  stages:
    - name: cheap
      where: price < 10
      times: {from: 2, inner: strict, gap: 1m}
      greedy: true
      until: 'kind == "end"'
    - name: dear
      join: followed_by
      where: price > sum(cheap.price)
      withinPrevious: 5s
    - join: next
      times: 2
      group:
        - name: x
        - name: y
          join: followed_by_any
          where: {all: ["v > 1", {function: odd}]}
      or:
        - [{name: x}, {name: z, join: next}]
        - [{name: z}]
      within: 10m
"""


def odd(row: Any, run: Any) -> bool:
    return bool(row["v"] % 2)


def same_rule() -> PatternProcessor:
    group = Pattern.either(
        Pattern.begin("x").followed_by_any("y").where("v > 1").where(odd),
        Pattern.begin("x").next("z"),
        Pattern.begin("z"),
    )
    skip = Skip(strategy="skip_to_first", stage="dear", throw_on_miss=True)
    pattern = (
        Pattern.begin("cheap", skip=skip)
        .where("price < 10").times_or_more(2, gap="1m").consecutive().greedy()
        .until('kind == "end"')
        .followed_by("dear").where("price > sum(cheap.price)").within("5s", "previous_and_current")
        .next(group).times(2).within("10m")
    )  # fmt: skip
    return PatternProcessor(
        id="cheap-then-dear", version=3, pattern=pattern, key=("user",),
        scheduled=1795348800 * 10**6, function="alert", on_error="disable", keep_matches=True,
        limits=RunLimits(runs=50, policy="refuse"), labels={"team": "fraud"}, numbered=True,
    )  # fmt: skip


def test_a_document_and_python_say_the_same() -> None:
    rule = read_rule(yaml.safe_load(RULE), {"odd": odd})

    assert rule == same_rule()
    assert read_rule(write_rule(rule), {"odd": odd}) == rule


def test_what_is_written_fits_the_schema_and_json() -> None:
    document = write_rule(same_rule())

    VALIDATOR.validate(document)
    assert json.loads(json.dumps(document)) == document


@settings(max_examples=100)
@given(pattern=patterns())
def test_any_pattern_is_read_as_it_was_written(pattern: Pattern) -> None:
    document = write_pattern(pattern)

    VALIDATOR.validate({"id": "r", "version": 1, "pattern": document})
    assert read_pattern(document) == pattern


@pytest.mark.parametrize("case", RUNNING, ids=lambda case: case["id"])
def test_the_pattern_of_every_case_is_read_as_it_was_written(case: dict[str, Any]) -> None:
    pattern = pattern_of(case)

    assert read_pattern(json.loads(json.dumps(write_pattern(pattern)))) == pattern


def minimal(**fields: Any) -> dict[str, Any]:
    return {"id": "r", "version": 1, "pattern": {"stages": [{"name": "a"}]}, **fields}


def stage(**fields: Any) -> dict[str, Any]:
    return minimal(pattern={"stages": [{"name": "a", **fields}]})


REFUSED = [
    ([], "The document has to be a mapping, not []."),
    ({"version": 1, "pattern": {}}, "id is missing."),
    (minimal(version="1"), "version has to be a whole number, not '1'."),
    (minimal(colour=1), "colour is not known; the fields here are id, version,"),
    (minimal(pattern={"stages": []}), "pattern.stages needs at least one stage."),
    (minimal(pattern={"stages": "a"}), "pattern.stages has to be a list, not 'a'."),
    (minimal(pattern={"stages": [{}]}), "pattern.stages[0] needs either `name` or `group`."),
    (stage(**{"or": [[{"name": "b"}]]}), "pattern.stages[0].or needs a group before it."),
    (minimal(pattern={"stages": [{"group": [{"name": "a"}], "or": []}]}),
     "pattern.stages[0].or needs at least one alternative."),
    (minimal(pattern={"stages": [{"group": [{"name": "a"}], "or": [[{}]]}]}),
     "pattern.stages[0].or[0][0] needs either `name` or `group`."),
    (minimal(numbered="yes"), "numbered has to be true or false, not 'yes'."),
    (stage(join="next"), "pattern.stages[0].join is for stages behind the first."),
    (minimal(pattern={"stages": [{"name": "a"}, {"name": "b"}]}),
     "pattern.stages[1].join has to be one of next,"),
    (stage(where={"function": "f"}),
     "pattern.stages[0].where.function is `f`, which the job has not registered; it has none."),
    (stage(where={"any": ["v > 1"], "all": []}),
     "pattern.stages[0].where needs one of `function`, `all` and `any`."),
    (stage(times={"from": 1, "inner": "loose"}),
     "pattern.stages[0].times.inner has to be one of relaxed,"),
    (stage(optional="yes"), "pattern.stages[0].optional has to be true or false, not 'yes'."),
    (minimal(scheduled="tomorrow"), "scheduled has to be a time with its zone,"),
    (minimal(scheduled="2026-01-01T00:00:00"), "scheduled has to be a time with its zone,"),
]  # fmt: skip


@pytest.mark.parametrize(("document", "message"), REFUSED)
def test_a_document_with_a_bad_field_is_refused_and_names_its_path(
    document: Any, message: str
) -> None:
    with pytest.raises(ManifestError) as caught:
        read_rule(document)

    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    "fields",
    [
        {"id": " "},
        {"version": -1},
        {"onError": "stop"},
        {"limits": {"policy": "all"}},
        {"limits": {"runs": 0}},
    ],
)
def test_a_rule_that_cannot_be_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(PatternError):
        read_rule(minimal(**fields))


@pytest.mark.parametrize("document", [document for document, _ in REFUSED[:11]])
def test_what_the_schema_refuses_reading_refuses(document: Any) -> None:
    assert not VALIDATOR.is_valid(document)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
    | st.binary() | st.decimals(allow_nan=False) | st.dates() | st.datetimes()
    | st.datetimes(timezones=st.just(UTC)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


@given(value=values)
def test_a_value_is_read_as_it_was_written(value: Any) -> None:
    out = ValueWriter()
    out.write_value(value)

    assert ValueReader(out.to_bytes()).read_value() == value


@given(data=st.binary(max_size=30))
def test_bytes_that_are_no_value_are_refused(data: bytes) -> None:
    with suppress(StateError):
        ValueReader(data).read_value()


def test_a_limit_that_is_not_given_is_the_ordinary_one() -> None:
    assert read_rule(minimal(limits={"policy": "refuse"})).limits.runs == RunLimits().runs
    assert read_rule(minimal(limits={"runs": None})).limits.runs is None
