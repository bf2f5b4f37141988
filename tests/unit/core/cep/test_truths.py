"""The commonest conditions are decided by a way of their own: to the same answers."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from types import SimpleNamespace
from typing import Any, cast

import pytest

from streambroker_core.cep.nfa.condition_bits import _compile_term_comparison, _EventFields
from streambroker_core.cep.pattern.conditions import TextCondition, to_condition
from streambroker_core.cep.pattern.match_buffer import Event

VALUES: list[Any] = [
    *(None, True, False, 0, 1, 500, 2**70, 1.5, 0.0, float("nan"), float("inf")),
    *(Decimal(499), "x", b"x", [1], datetime(2026, 1, 1, tzinfo=UTC)),
]


@pytest.mark.parametrize("operation", ["<", "<=", ">", ">=", "==", "!="])
@pytest.mark.parametrize("number", ["500", "0", "1.5"])
@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_term_and_a_number_are_compared_as_any_expression_is(
    operation: str, number: str, value: Any
) -> None:
    given = to_condition(f"sum(a.price) {operation} {number}", "b")
    assert isinstance(given, TextCondition)
    ((name, _),) = given.terms
    terms = {name: lambda last, event: value}
    event = cast(Event, SimpleNamespace(row={}))
    decide: Any = given.expression.test
    quick = _compile_term_comparison(given.expression.tree, terms)
    assert quick is not None
    assert quick(event, None) is (decide(_EventFields(terms, event, None)) is True)
