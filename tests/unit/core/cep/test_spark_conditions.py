"""Conditions in Spark's SQL, and the spellings of Java."""

from __future__ import annotations

import pytest

import streambroker as sb
from streambroker_core.cep.pattern.conditions import TextCondition
from streambroker_core.cep.pattern.errors import ConditionError, PatternError
from streambroker_core.cep.pattern.rule import PatternProcessor
from streambroker_core.cep.rules.document import read_rule, write_rule
from streambroker_core.cep.rules.rule_set import RuleContext, RuleSet
from streambroker_core.model.schema import Column

TRANSLATED = {
    "type = 'A' AND v > 3": 'type == "A" && (v > 3 || v != v)',
    "v NOT IN (1, 2) OR x IS NOT NULL": "!(v == 1 || v == 2) || has(x)",
    "v NOT BETWEEN -1 AND 2.5": "!((v >= -1 || v != v) && v <= 2.5)",
    "name NOT LIKE '%a'": '!endsWith(name, "a")',
    "name LIKE 'it''s%'": 'startsWith(name, "it\'s")',
    "st.x <> 1": "!(st.x == 1)",
    "`v` % 3 = 1": "v % 3 == 1",
    "v % 3 > 1": "v % 3 > 1",
    "v * 2.0e0 < 5": "v * 2.0 < 5",
    "flag": "flag",
}
REFUSED = {
    "v + 1 > 2": "overflow raise or wrap in Spark",
    "v / 2 > 1": "divides integers as doubles",
    "v % 0 = 1": "only a positive whole number",
    "v % w = 1": "only a positive whole number",
    "v = NULL": "a comparison with NULL is never true",
    "v IN (1, NULL)": "a comparison with NULL is never true",
    "v > 9007199254740993": "Spark rounds 9007199254740993",
    "v > 9007199254740993.5": "Spark rounds integers",
    "name LIKE 'a_b'": "`%` at its ends alone",
    "SUM(v) > 1": "`sum` has no equal here",
    "`a b` = 1": "cannot be named in a condition",
    "`a.b` = 1": "cannot be named in a condition",
    "1 = 1": "only a column or arithmetic is compared",
    "TRUE": "True is not a condition",
}


def rule(condition: TextCondition) -> PatternProcessor:
    return PatternProcessor(id="r", version=1, pattern=sb.Pattern.begin("a").where(condition))


@pytest.mark.parametrize("text", TRANSLATED)
def test_sql_is_translated_to_the_language_of_conditions(text: str) -> None:
    condition = sb.sql(text)
    assert str(condition) == TRANSLATED[text]
    assert read_rule(write_rule(rule(condition))).pattern == rule(condition).pattern


@pytest.mark.parametrize("text", REFUSED)
def test_what_spark_means_otherwise_is_refused_with_the_reason(text: str) -> None:
    with pytest.raises(PatternError, match="is not translated") as refused:
        sb.sql(text)
    assert REFUSED[text] in str(refused.value)
    assert "or as a Python function" in str(refused.value)


@pytest.mark.parametrize("text", ["v =", "CAST(v AS INT) = 1", 'name = "A"', "", "v = 1; v"])
def test_sql_that_cannot_be_read_is_refused_with_the_place(text: str) -> None:
    with pytest.raises(ConditionError, match=r"at line 1, column .* expected a condition in SQL"):
        sb.sql(text)


@pytest.mark.parametrize(("kind", "change"), [("bigint", "added"), ("double", "refused")])
def test_columns_that_are_compared_need_types_of_one_kind(kind: str, change: str) -> None:
    pattern = sb.Pattern.begin("a").where("n > 1").where(sb.sql("n < other"))
    given = PatternProcessor(id="r", version=1, pattern=pattern)
    schema = Column("n", "int"), Column("other", kind)
    _, (outcome,) = RuleSet().apply_update([given], RuleContext(schema=schema))
    assert outcome.change == change
    assert ("expected columns of one kind" in (outcome.message or "")) == (change == "refused")


@pytest.mark.parametrize(
    ("java", "python"),
    {
        "followedBy": "followed_by",
        "followedByAny": "followed_by_any",
        "notNext": "not_next",
        "notFollowedBy": "not_followed_by",
        "oneOrMore": "one_or_more",
        "timesOrMore": "times_or_more",
        "allowCombinations": "allow_combinations",
        "or": "or_",
    }.items(),
)
def test_a_java_spelling_answers_with_the_one_in_use(java: str, python: str) -> None:
    with pytest.raises(AttributeError, match=rf"^a pattern has no {java}; write {python}\.$"):
        getattr(sb.Pattern.begin("a"), java)


def test_another_unknown_method_has_no_hint() -> None:
    assert not hasattr(sb.Pattern.begin("a"), "__deepcopy__")
    with pytest.raises(AttributeError, match=r"^a pattern has no sideways\.$"):
        sb.Pattern.begin("a").sideways  # noqa: B018
