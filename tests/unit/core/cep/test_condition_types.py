"""The types of conditions: a rule whose condition does not fit the columns is refused."""

from __future__ import annotations

import pyarrow as pa
import pytest

from streambroker_core.cep import Pattern
from streambroker_core.cep.operator import PatternOperator
from streambroker_core.cep.pattern.rule import PatternProcessor
from streambroker_core.cep.rules.rule_set import RuleContext, RuleSet
from streambroker_core.model.schema import parse_ddl
from support.patterns.cases import compiled
from support.patterns.windows import Bucket

TYPES = parse_ddl("v bigint, n string, p double, t timestamp, l array<string>")
FIRST = PatternProcessor(id="r0", version=1, pattern=Pattern.begin("a"))


@pytest.mark.parametrize(
    ("condition", "says"),
    [
        ('v > "text"', "found"),
        ("n > 5", "found"),
        ('sum(a.v) > "x"', "found"),
        ("sum(a.n) > 5", "`sum(a.n)` of type string, expected a column of numbers"),
        ("last(a.n) > 5", "found"),
        ("previous(v) == n", "found"),
        ("count(a) == n", "found"),
        ("t > 5", "found"),
        ("v > 1 || n == 2", "found"),
        ("max(a.m) > 5", "unknown column `m`"),
    ],
)
@pytest.mark.parametrize("where", ["condition", "until"])
def test_a_condition_of_another_type_is_refused_on_every_stage(
    condition: str, says: str, where: str
) -> None:
    pattern = Pattern.begin("a").where("v > 0").followed_by("b").one_or_more()
    pattern = pattern.where(condition) if where == "condition" else pattern.until(condition)
    wanted = PatternProcessor(id="r1", version=1, pattern=pattern)

    rules, outcomes = RuleSet().apply_update([FIRST, wanted], RuleContext(schema=TYPES))

    assert list(rules) == [FIRST]
    (refused,) = (each for each in outcomes if each.change == "refused")
    assert refused.reason == "Invalid"
    assert refused.message.startswith("stage `b`: ")
    assert says in refused.message


def test_conditions_of_fitting_types_are_taken() -> None:
    text = (
        'v > 1 && n == "x" && p < sum(a.v) && avg(a.p) > 2 && previous(n) != first(a.n)'
        ' && count(a) < 5 && timestamp() > 0 && "x" in l && has(t)'
    )
    pattern = Pattern.begin("a").where("v > 0").followed_by("b").where(text)
    pattern = pattern.where(lambda row, run: True)

    _, (outcome,) = RuleSet().apply_update(
        [PatternProcessor(id="r1", version=1, pattern=pattern)], RuleContext(schema=TYPES)
    )

    assert outcome.change == "added", outcome


def test_a_field_of_a_struct_can_be_asked_for() -> None:
    schema = pa.schema(
        [("t", pa.int64()), ("user", pa.string()), ("st", pa.struct([("x", pa.int64())]))]
    )
    pattern = Pattern.begin("a").where("st.x > 5").followed_by("b")
    pattern = pattern.where("st.x > last(a.t) && st.x < sum(a.st.x) && previous(st.x) == 7")
    wanted = PatternProcessor(id="r1", version=1, pattern=pattern)
    types = parse_ddl("t bigint, user string, st struct<x: bigint>")
    rules, (outcome,) = RuleSet().apply_update([wanted], RuleContext(schema=types))
    assert outcome.change == "added", outcome
    dicts = [{"t": t, "user": "u", "st": st} for t, st in ((1, {"x": 4}), (2, {"x": 7}), (3, None))]
    dicts.append({"t": 4, "user": "u", "st": {"x": 3}})
    b = Bucket(lambda: PatternOperator(event_time="t", key=("user",), maker=compiled))
    b.window([pa.RecordBatch.from_pylist(dicts, schema=schema)], rules=rules)

    (row,) = b.window(watermark=4).of("matches")

    assert [e["t"] for events in row["events"].values() for e in events] == [2, 4]
    assert RuleSet.read(rules.document()) == rules
    for text, why in {
        "st.y > 5": "it has x",
        "sum(a.st.y) > 5": "it has x",
        'st.x == "a"': "found",
        "no.x > 5": "unknown column `no`",
    }.items():
        bad = PatternProcessor(id="r1", version=1, pattern=Pattern.begin("a").where(text))
        _, (refused,) = RuleSet().apply_update([bad], RuleContext(schema=types))
        assert (refused.change, refused.reason) == ("refused", "Invalid")
        assert why in refused.message
