"""Spark's filters of a batch read as filters of this project, where both mean the same.

Null is unknown in both. What differs is left to Spark: NaN is the largest number to it, and
compares as in IEEE 754 here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pyspark.sql import datasource as spark
from pyspark.sql.types import (
    BooleanType,
    ByteType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
)

from streambroker_core.errors import ExpressionError
from streambroker_core.expression import parse, tree
from streambroker_core.expression.printer import print_tree

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
"""Spark fails the read of a source that takes filters while this setting of a session is off."""
_COMPARISONS: dict[type[spark.Filter], tree.ComparisonOp] = {
    spark.EqualTo: "==",
    spark.GreaterThan: ">",
    spark.GreaterThanOrEqual: ">=",
    spark.LessThan: "<",
    spark.LessThanOrEqual: "<=",
}
_TESTS: dict[type[spark.Filter], tree.StringFunction] = {
    spark.StringStartsWith: "startsWith",
    spark.StringEndsWith: "endsWith",
    spark.StringContains: "contains",
}
_BITS = {ByteType: 8, ShortType: 16, IntegerType: 32, LongType: 64}
_ABOVE = (">", ">=")


def split_filters(
    filters: Sequence[spark.Filter], columns: StructType, own: str | None
) -> tuple[str | None, list[spark.Filter]]:
    """Return one filter for exporters, and the filters that are left to Spark.

    Args:
        filters: what Spark pushes; a row has to pass all of them.
        columns: of the read.
        own: filter that has to fit into one text with it, or None.
    """
    items: list[tree.Predicate] = []
    left: list[spark.Filter] = []
    for one in filters:
        node = _predicate(one, columns)
        if node is not None and _fits([*items, node], own):
            items.append(node)
        else:
            left.append(one)
    return (_text(items) if items else None), left


def _fits(items: Sequence[tree.Predicate], own: str | None) -> bool:
    """Return whether the language can express the conjunction with the other filter."""
    text = _text(items)
    try:
        parse(text if own is None else f"({own}) && {text}", "filter")
        return parse(print_tree(items[-1]), "filter").tree == items[-1]  # unlike a column `true`
    except ExpressionError:
        return False


def _text(items: Sequence[tree.Predicate]) -> str:
    return " && ".join(f"({print_tree(item)})" for item in items)


def _predicate(pushed: spark.Filter, columns: StructType) -> tree.Predicate | None:
    if isinstance(pushed, spark.Not):
        child = _predicate(pushed.child, columns)
        return None if child is None else tree.Not(child)
    path: tuple[str, ...] = getattr(pushed, "attribute", ())
    if len(path) != 1 or path[0] not in columns.names:
        return None
    name, kind = path[0], columns[path[0]].dataType
    match pushed:
        case spark.IsNotNull():
            return tree.Has(name)
        case spark.IsNull():
            return tree.Not(tree.Has(name))
        case spark.EqualNullSafe(value=None):
            return tree.Not(tree.Has(name))
        case spark.EqualNullSafe(value=value):
            equal = _compare(name, kind, "==", value)
            return None if equal is None else tree.And((tree.Has(name), equal))
        case spark.In(value=values):
            return _any_of([_compare(name, kind, "==", value) for value in values])
        case spark.StringStartsWith() | spark.StringEndsWith() | spark.StringContains():
            known = kind == StringType()
            test = tree.StringTest(_TESTS[type(pushed)], tree.Name(name), pushed.value)
            return test if known else None
        case _ if type(pushed) in _COMPARISONS:
            compared: Any = pushed
            return _compare(name, kind, _COMPARISONS[type(pushed)], compared.value)
    return None


def _any_of(items: Sequence[tree.Predicate | None]) -> tree.Predicate | None:
    known = [item for item in items if item is not None]
    if not known or len(known) < len(items):
        return None
    return known[0] if len(known) == 1 else tree.Or(tuple(known))


def _compare(name: str, kind: Any, op: tree.ComparisonOp, value: Any) -> tree.Predicate | None:
    literal = _literal(kind, op, value)
    return None if literal is None else tree.Comparison(op, tree.Name(name), literal)


def _literal(kind: Any, op: str, value: Any) -> tree.Operand | None:
    if isinstance(value, bool):
        exact = isinstance(kind, BooleanType) and op == "=="
        return tree.Boolean(value) if exact else None
    if isinstance(value, str):
        return tree.Text(value) if kind == StringType() else None
    if isinstance(value, int) and type(kind) in _BITS:
        half = 1 << _BITS[type(kind)] - 1
        return tree.Integer(value) if -half <= value < half else None
    if isinstance(value, float) and isinstance(kind, FloatType | DoubleType):
        return tree.Float(value) if math.isfinite(value) and op not in _ABOVE else None
    return None
