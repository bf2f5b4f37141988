"""Plans of frames of Spark Connect: as the client sends them, and as the server analyses them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ANALYZED = re.compile(
    r"== Analyzed Logical Plan ==\n.*?\n(?P<tree>\S.*?)\n\s*== Optimized Logical Plan ==", re.DOTALL
)
_NODE = re.compile(r"^(?:[ :]*[+:]- )?~?(?P<name>[A-Z]\w*)", re.MULTILINE)
"""The tree draws ``+-`` or ``:-`` before a child, and Spark marks streaming nodes with ``~``."""


def find_messages(frame: DataFrame, name: str) -> list[Any]:
    """Return the messages of one type in the plan that the client sends for a frame."""
    plan: Any = frame
    return list(_find(plan._plan.to_proto(plan.sparkSession.client), name))


def analyzed_nodes(frame: DataFrame) -> list[str]:
    """Return the class names of the nodes of the analysed plan, each before its children."""
    plan: Any = frame
    found = _ANALYZED.search(plan._explain_string(extended=True))
    return [] if found is None else _NODE.findall(found["tree"])


def _find(message: Any, name: str) -> Iterator[Any]:
    if message.DESCRIPTOR.name == name:
        yield message
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for one in [value] if hasattr(value, "DESCRIPTOR") else value:
            yield from _find(one, name)
