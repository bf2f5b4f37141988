"""The expression language of subscriptions and filters.

Both share one grammar and one tree. A *subscription* tests the properties of an export, a *filter*
the columns of a row.

>>> parse('kind == "trade" && "IBM" in tickers').matches({"kind": "trade", "tickers": ["IBM"]})
True
"""

from streambroker_core.expression.explain import Explanation, Miss, PredicateResult
from streambroker_core.expression.expression import Expression, ExpressionKind, parse
from streambroker_core.expression.filter_types import check_filter

__all__ = [
    "Explanation",
    "Expression",
    "ExpressionKind",
    "Miss",
    "PredicateResult",
    "check_filter",
    "parse",
]
