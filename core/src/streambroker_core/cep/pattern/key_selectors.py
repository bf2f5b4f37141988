"""Keys of rules: columns, or expressions over them; by default the key of the stream."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, TypeAlias

from streambroker_core.errors import FilterError
from streambroker_core.expression import parse, tree
from streambroker_core.expression.evaluate import Fetch, Row, compile_fetch, compile_test

Selector: TypeAlias = "tuple[str, ...]"
"""Parts of a key: column names or expressions."""

_OPERANDS = (tree.Name, tree.Subscript, tree.Negate, tree.Invert, tree.Arithmetic)


@lru_cache(maxsize=1_024)
def key_expression(text: str) -> tuple[Fetch, frozenset[str]]:
    """Return the function that computes a part of a key from a row, and the columns that it reads.

    Raises:
        FilterError: the text is not an expression, or reads no column.
    """
    node: Any
    try:
        node = parse(text, "filter").tree
    except FilterError as error:
        try:
            node = parse(f"({text}) == 0", "filter").tree
        except FilterError:
            raise error from None
        node = node.left if isinstance(node, tree.Comparison) else node
    names = frozenset() if node is None else tree.names(node)
    if not names:
        raise FilterError(
            position={"line": 1, "column": 1, "offset": 0},
            found=f"`{text}`",
            expected="a column, or an expression over columns",
            hint=None,
        )
    return (compile_fetch if isinstance(node, _OPERANDS) else compile_test)(node), names


def compute_key(selector: Selector, row: Row) -> list[Any]:
    """Return the key of a row; a part that cannot be computed is None.

    Raises:
        FilterError: a part is neither a field nor an expression.
    """
    return [row[part] if part in row else key_expression(part)[0](row) for part in selector]


def selector_text(selector: Selector) -> str:
    """Return a selector as a text."""
    return json.dumps(list(selector), separators=(",", ":"))
