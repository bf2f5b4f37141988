"""Dropping rows in the JVM, before Spark passes them to Python, which is the largest cost.

Python applies the full filter again. So the condition here may pass more rows than the filter, but
never fewer.
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
"""Up to this bound float64 represents every integer exactly."""


def prefilter(
    frame: DataFrame, row_filter: str, time: tuple[str, str], control_column: str
) -> DataFrame | None:
    """Return a frame without most of the rows that a filter drops; all of them advance the time.

    Args:
        frame: the rows.
        row_filter: the filter.
        time: column with the event time, and the delay of its watermark in Spark's format.
        control_column: column that is null in data rows; control rows, if there are any, pass.

    Returns:
        The frame with its watermark; None if Spark cannot evaluate the filter, or cannot set the
        watermark here.
    """
    from pyspark.sql import functions

    name, delay = time
    columns = frame.schema
    if columns[name].dataType != TimestampType() or _has_watermark(columns):
        return None
    condition = column_condition(parse(row_filter, "filter").tree, columns)
    if condition is None:
        return None
    # Spark evaluates any other condition before the watermark; only one on the event time stays.
    condition = condition | (_column(name) < functions.timestamp_micros(functions.lit(-(2**62))))
    if control_column in columns.names:
        condition = condition | _column(control_column).isNotNull()
    return frame.withWatermark(name, delay).where(condition)


def column_condition(node: tree.Predicate | None, columns: StructType) -> Column | None:
    """Return a condition that is true of all rows for which a predicate is; None for any row."""
    from pyspark.sql import functions

    match node:
        case tree.Boolean():
            return functions.lit(node.value)
        case tree.And() | tree.Or():
            conditions = [column_condition(each, columns) for each in node.items]
            known = [each for each in conditions if each is not None]
            if isinstance(node, tree.And):
                return reduce(operator.and_, known) if known else None
            return reduce(operator.or_, known) if len(known) == len(conditions) else None
        case tree.Name():
            return _compare(node, "==", True, columns)
        case tree.Has():
            return _column(node.name).isNotNull()
        case tree.Comparison():
            test = tree.operand_test_for(node, desired=True)
            return None if test is None else _compare(test.subject, test.op, test.value, columns)
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
    """Return the comparison of a column with a literal, if Spark also compares by exact value."""
    from pyspark.sql import functions

    if not isinstance(subject, tree.Name):
        return None
    kind = columns[subject.name].dataType
    if not _is_comparable(kind, op, value):
        return None
    compared: Column = _OPERATORS[op](_column(subject.name), functions.lit(value))
    return compared


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
