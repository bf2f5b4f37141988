"""Leaving rows out in the JVM, before Spark hands them to Python, which costs most of all.

What is left out here is left out of a filter that is asked again in Python, so the condition may
let more rows pass than the filter does, and never fewer.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import (
    BooleanType,
    ByteType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from streambroker_core.expression import parse, tree

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_MAX_EXACT_FLOAT = 2**53
"""Up to here every whole number is one of float64."""


def prefilter(
    frame: DataFrame, row_filter: str, time: tuple[str, str], control_column: str
) -> DataFrame | None:
    """Return a frame without most of the rows that a filter refuses; time passes by all of them.

    Args:
        frame: the rows.
        row_filter: the filter.
        time: column with the event time, and the delay of its watermark as Spark writes it.
        control_column: column that is null in rows; others stay, where it is there.

    Returns:
        With a watermark; None if Spark cannot be asked, or cannot have the watermark here.
    """
    from pyspark.sql import functions

    name, delay = time
    columns = frame.schema
    if columns[name].dataType != TimestampType() or _has_watermark(columns):
        return None
    found = column_condition(parse(row_filter, "filter").tree, columns)
    if found is None:
        return None
    # A condition on the event time is the only one that Spark does not ask before the watermark.
    found = found | (_column(name) < functions.timestamp_micros(functions.lit(-(2**62))))
    if control_column in columns.names:
        found = found | _column(control_column).isNotNull()
    return frame.withWatermark(name, delay).where(found)


def column_condition(node: tree.Predicate | None, columns: StructType) -> Column | None:
    """Return a condition that is true of all rows of which a predicate is; None for any row.

    Args:
        node: the predicate.
        columns: of the rows.
    """
    from pyspark.sql import functions

    match node:
        case tree.Boolean():
            return functions.lit(node.value)
        case tree.And() | tree.Or():
            asked = [column_condition(each, columns) for each in node.items]
            found = [each for each in asked if each is not None]
            if isinstance(node, tree.And):
                return reduce(operator.and_, found) if found else None
            return reduce(operator.or_, found) if len(found) == len(asked) else None
        case tree.Name():
            return _compare(node, "==", True, columns)
        case tree.Has():
            return _column(node.name).isNotNull()
        case tree.Comparison():
            told = tree.operand_test_for(node, desired=True)
            return None if told is None else _compare(told.subject, told.op, told.value, columns)
        case tree.Membership(item=item, container=tree.ListLiteral(items=items)):
            one_of = tuple(tree.Comparison("==", item, each) for each in items)
            return column_condition(tree.Or(one_of), columns)
        case tree.StringTest(subject=tree.Name(name=name)) if (
            columns[name].dataType == StringType()
        ):
            matched: Column = getattr(_column(name), node.function.lower())(node.text)
            return matched
        case _:
            return None


def _compare(subject: tree.Operand, op: str, value: Any, columns: StructType) -> Column | None:
    """Return how a column compares with a literal, where Spark compares by exact value, too."""
    from pyspark.sql import functions

    if not isinstance(subject, tree.Name):
        return None
    kind = columns[subject.name].dataType
    if not _is_comparable(kind, op, value):
        return None
    found: Column = _OPERATORS[op](_column(subject.name), functions.lit(value))
    return found


def _is_comparable(kind: DataType, op: str, value: Any) -> bool:
    if isinstance(value, bool):
        return isinstance(kind, BooleanType) and op in ("==", "!=")
    if isinstance(value, str):
        return kind == StringType()
    if isinstance(kind, FloatType | DoubleType):
        return isinstance(value, float) or abs(value) <= _MAX_EXACT_FLOAT
    return isinstance(kind, ByteType | ShortType | IntegerType | LongType)


def _column(name: str) -> Column:
    from pyspark.sql import functions

    return functions.col(f"`{name}`")


def _has_watermark(columns: StructType) -> bool:
    return any("spark.watermarkDelayMs" in each.metadata for each in columns)
