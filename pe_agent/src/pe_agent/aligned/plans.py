"""What Spark makes of a projection: whether a control row would come out of it as it went in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PER_ROW = frozenset({"Project", "Filter"})


def is_plain_projection(made: DataFrame, of: DataFrame) -> bool:
    """Whether a frame is a projection of another one, and makes one row of each."""
    base = _nodes(of._jdf.queryExecution().analyzed())
    found = _nodes(made._jdf.queryExecution().analyzed())
    more = found[: len(found) - len(base)]
    return bool(more) and set(more) <= _PER_ROW and found[len(more) :] == base


def _nodes(plan: Any) -> list[str]:
    """Return the kinds of a plan's nodes, from the top down, the first child of each."""
    kinds = []
    while True:
        kinds.append(str(plan.getClass().getSimpleName()))
        children = plan.children()
        if not children.size():
            return kinds
        plan = children.apply(0)
