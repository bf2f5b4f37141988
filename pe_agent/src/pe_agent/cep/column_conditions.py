"""Columns of PySpark as conditions of patterns, of a classic session or of Spark Connect.

Importing this module registers them.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

from pyspark.sql import Column

from streambroker_core.cep.pattern.conditions import TextCondition, to_condition
from streambroker_core.cep.pattern.errors import PatternError
from streambroker_core.cep.pattern.pattern import Pattern
from streambroker_core.cep.sql.spark_conditions import (
    Call,
    Literal,
    Name,
    SparkNode,
    parse_sql,
    translate,
)

__all__ = ["Pattern"]

_PART = re.compile(r"`([^`]*)`|([^`.]+)")
_PLAIN = (bool, int, float, str, Decimal, type(None))
_DAYS = ("date", "timestamp", "timestamp_ntz", "day_time_interval", "year_month_interval")
"""Literals that Spark Connect sends as integers."""


@to_condition.register(Column)
def column_to_condition(column: Column, stage: str | None = None) -> TextCondition:
    """Return a condition with the meaning of a column.

    Raises:
        PatternUnsupportedError: there is none.
        ConditionError: SQL in the column cannot be read.
    """
    given: Any = column
    try:
        if hasattr(column, "_jc"):
            return translate(_from_jvm(given._jc.node()), str(column))
        return translate(_from_proto(given.to_plan(None)), str(column))
    except PatternError as error:
        raise type(error)(error.problem, stage=stage, remedy=error.remedy) from None


def _from_jvm(node: Any) -> SparkNode:
    """Read a column's node of a classic session."""
    kind = node.getClass().getSimpleName()
    match kind:
        case "UnresolvedAttribute":
            return Name.of(_items(node.nameParts()))
        case "ExpressionColumnNode" if _is_column(node.expression()):
            return Name.of([node.expression().name()])
        case "Literal":
            return _to_literal(node.value(), "literal")
        case "UnresolvedFunction":
            return Call(node.functionName(), tuple(map(_from_jvm, _items(node.arguments()))))
        case "UnresolvedExtractValue":
            return _to_field(_from_jvm(node.child()), _from_jvm(node.extraction()))
        case "SqlExpression":
            return parse_sql(node.expression())
        case "Alias":
            return _from_jvm(node.child())
        case _:
            return Call(kind.lower(), ())


def _items(sequence: Any) -> list[Any]:
    return [sequence.apply(at) for at in range(sequence.size())]


def _is_column(expression: Any) -> bool:
    return bool(expression.getClass().getSimpleName() == "AttributeReference")


def _from_proto(plan: Any) -> SparkNode:
    """Read an expression of Spark Connect's protocol."""
    kind = plan.WhichOneof("expr_type")
    node = getattr(plan, kind)
    match kind:
        case "unresolved_attribute":
            parts = _PART.findall(node.unparsed_identifier)
            return Name.of(quoted or plain for quoted, plain in parts)
        case "literal":
            kind = node.WhichOneof("literal_type")
            value = getattr(node, kind)
            return _to_literal(Decimal(value.value) if kind == "decimal" else value, kind)
        case "unresolved_function":
            return Call(node.function_name, tuple(map(_from_proto, node.arguments)))
        case "unresolved_extract_value":
            return _to_field(_from_proto(node.child), _from_proto(node.extraction))
        case "expression_string":
            return parse_sql(node.expression)
        case "alias":
            return _from_proto(node.expr)
        case _:
            return Call(kind, ())


def _to_literal(value: Any, kind: str) -> SparkNode:
    if kind == "null":
        return Literal(None)
    if kind in _DAYS or not isinstance(value, _PLAIN):
        return Call(f"a {kind} of type {type(value).__name__}", ())
    return Literal(value)


def _to_field(child: SparkNode, extraction: SparkNode) -> SparkNode:
    """Return a field of a struct by its name; an element of an array is refused."""
    match child, extraction:
        case Name(path), Literal(str() as field):
            return Name(f"{path}.{Name.of([field]).path}")
    return Call("an element of an array or map", ())
