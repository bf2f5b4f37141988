"""Checks of the plan that Spark makes of a projection: whether control rows pass unchanged."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from pe_agent.spark.connect_plans import analyzed_nodes, find_messages
from pe_agent.spark.session import is_connect

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

_PER_ROW = frozenset({"Project", "Filter"})


def is_plain_projection(projection: DataFrame, source: DataFrame) -> bool:
    """Return whether a frame is a projection of another one that makes one row of each row."""
    base, nodes = _node_classes(source), _node_classes(projection)
    more = nodes[: len(nodes) - len(base)]
    return bool(more) and set(more) <= _PER_ROW and nodes[len(more) :] == base


def python_functions(projection: DataFrame, source: DataFrame) -> list[str]:
    """Return the names of the Python functions that a projection of a frame calls."""
    if is_connect(projection.sparkSession):
        return list((_connect_functions(projection) - _connect_functions(source)).elements())
    base, nodes = _plan_nodes(source), _plan_nodes(projection)
    names: list[str] = []
    for plan in nodes[: len(nodes) - len(base)]:
        for expression in _iterate(plan.expressions()):
            _add_functions(expression, names)
    return names


def _connect_functions(frame: DataFrame) -> Counter[str]:
    calls = find_messages(frame, "CommonInlineUserDefinedFunction")
    return Counter(call.function_name for call in calls)


def _add_functions(expression: Any, names: list[str]) -> None:
    if _node_class(expression) == "PythonUDF":
        names.append(str(expression.name()))
    for child in _iterate(expression.children()):
        _add_functions(child, names)


def _plan_nodes(frame: DataFrame) -> list[Any]:
    plan: Any = frame._jdf.queryExecution().analyzed()
    nodes: list[Any] = []
    while True:
        nodes.append(plan)
        children = plan.children()
        if not children.size():
            return nodes
        plan = children.apply(0)


def _iterate(sequence: Any) -> Iterator[Any]:
    return (sequence.apply(at) for at in range(sequence.size()))


def _node_classes(frame: DataFrame) -> list[str]:
    if is_connect(frame.sparkSession):
        return analyzed_nodes(frame)
    return [_node_class(plan) for plan in _plan_nodes(frame)]


def _node_class(node: Any) -> str:
    return str(node.getClass().getSimpleName())
