"""Marking of the error position of an expression in the text of the error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from streambroker_client.errors import BrokerRefusedError
from streambroker_core.errors import ExpressionError, pointer_lines

_FIELD_BY_CODE = {"SubscriptionInvalid": "subscription", "FilterInvalid": "filter"}


@contextmanager
def mark_expression_errors(texts: Mapping[str, Any]) -> Iterator[None]:
    """Add the line of the expression and a caret to an error about it, which is raised again.

    ``texts`` are the expressions, by ``subscription`` and ``filter``.
    """
    try:
        yield
    except (ExpressionError, BrokerRefusedError) as error:
        position = (
            error.position if isinstance(error, ExpressionError) else error.problem.get("position")
        )
        text = texts.get(_FIELD_BY_CODE.get(error.code, ""))
        error.args = ("\n".join([str(error), *pointer_lines(text, position)]),)
        raise
