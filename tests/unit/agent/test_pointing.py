"""An error about an expression shows its line, with a caret below the place."""

from __future__ import annotations

import pytest

from pe_agent.transport.expression_errors import mark_expression_errors
from streambroker_client.errors import ChangeRefusedError
from streambroker_core.errors import SubscriptionError
from streambroker_core.expression import parse


def test_an_expression_that_cannot_be_parsed_is_shown_with_the_place() -> None:
    text = 'kind = "trade"'
    with pytest.raises(SubscriptionError) as caught, mark_expression_errors({"subscription": text}):
        parse(text, "subscription")

    assert str(caught.value).splitlines()[1:] == ['  kind = "trade"', "       ^"]
    assert caught.value.position["column"] == 6


def test_an_expression_that_the_broker_refuses_is_shown_with_the_place() -> None:
    problem = {
        "code": "FilterInvalid",
        "detail": "Invalid filter at line 1, column 5.",
        "position": {"line": 1, "column": 5, "offset": 4},
    }
    with (
        pytest.raises(ChangeRefusedError) as caught,
        mark_expression_errors({"filter": "1 < nocol"}),
    ):
        raise ChangeRefusedError(422, problem)

    assert str(caught.value).splitlines() == [problem["detail"], "  1 < nocol", "      ^"]


def test_another_refusal_stays_one_line() -> None:
    with pytest.raises(ChangeRefusedError) as caught, mark_expression_errors({"filter": "a"}):
        raise ChangeRefusedError(422, {"code": "PropertyInvalid", "detail": "No."})

    assert str(caught.value) == "No."
