"""Which rows push-down may leave out, of streams whose columns filters do not know."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    DataType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pe_agent.cep.pattern_plan import _PatternInput
from streambroker_core.cep import Pattern
from streambroker_core.cep.pattern.rule import PatternProcessor
from streambroker_core.cep.rules.rule_set import RuleSet


def relevance(*more: StructField) -> Any:
    columns = (StructField("t", TimestampType()), StructField("n", StringType()), *more)
    stream: Any = SimpleNamespace(
        event_time=("t", "1 second"), schema=lambda: StructType(list(columns))
    )
    made = _PatternInput(
        plan=stream,
        key=(),
        columns=None,
        conditions={},
        match_functions={},
        event_time="t",
        tie_break=None,
        has_timeouts=True,
    )
    pattern = Pattern.begin("a").where('n == "A"').followed_by("b").where('n == "B"')
    rules, _ = RuleSet().apply_update([PatternProcessor(id="r", version=1, pattern=pattern)])
    return made.relevance_function(())(rules)


def test_a_column_that_filters_do_not_know_lets_all_rows_come() -> None:
    assert relevance().filter is not None
    assert relevance(StructField("x", StructType([StructField("a-b", StringType())]))).filter
    nested: DataType = StringType()
    for _ in range(200):
        nested = ArrayType(nested)
    odd = relevance(StructField("x", nested))
    assert odd.filter is None
    assert "filters do not support a type of the columns: Invalid schema at line 1" in odd.why
