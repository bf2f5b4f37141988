"""Parsed expressions: the public class and its constructor `parse`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from streambroker_core.errors import ExpressionError, FilterError, SubscriptionError, locate
from streambroker_core.expression import tree as nodes
from streambroker_core.expression.evaluate import Test, compile_test
from streambroker_core.expression.explain import Explanation, explain_tree
from streambroker_core.expression.parser import parse_tree
from streambroker_core.expression.printer import print_tree
from streambroker_core.expression.syntax_error import SyntaxProblem
from streambroker_core.model.properties import normalise

ExpressionKind: TypeAlias = Literal["subscription", "filter"]

_ERRORS: dict[str, type[ExpressionError]] = {
    "subscription": SubscriptionError,
    "filter": FilterError,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Expression:
    """A parsed subscription or filter.

    Expressions are equal if kind and tree are; spaces, redundant parentheses and positions do
    not count.

    Attributes:
        kind: ``subscription`` or ``filter``.
        tree: None if the text was blank. A blank filter passes every row, a blank subscription
            matches nothing.
        source: the parsed text, to which positions in the tree refer.
    """

    kind: ExpressionKind
    tree: nodes.Predicate | None
    source: str = field(default="", compare=False, repr=False)
    _cache: dict[str, Any] = field(default_factory=dict, init=False, compare=False, repr=False)

    def __str__(self) -> str:
        text: str | None = self._cache.get("text")
        if text is None:
            text = self._cache["text"] = "" if self.tree is None else print_tree(self.tree)
        return text

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave out the functions: they cannot be pickled and are cheap to recreate."""
        return _restored, (self.kind, self.tree, self.source)

    @property
    def test(self) -> Test:
        """The expression as a function of normalised properties or of a row."""
        test: Test | None = self._cache.get("test")
        if test is None:
            test = self._cache["test"] = self._new_test()
        return test

    def _new_test(self) -> Test:
        if self.tree is None:
            answer = self.kind == "filter"
            return lambda row: answer
        return compile_test(self.tree)

    def names(self) -> frozenset[str]:
        """Return all property or column names in the expression."""
        return frozenset() if self.tree is None else nodes.names(self.tree)

    def evaluate(self, values: Mapping[str, Any]) -> bool | None:
        """Return True, False or None for unknown.

        Args:
            values: for a subscription, properties, which are normalised first; for a filter, a row.

        Raises:
            PropertyError: the properties cannot be normalised.
        """
        return self.test(normalise(values) if self.kind == "subscription" else values)

    def matches(self, values: Mapping[str, Any]) -> bool:
        """Return whether the expression is true; unknown is no match.

        Raises:
            PropertyError: the properties cannot be normalised.
        """
        return self.evaluate(values) is True

    def explain(self, values: Mapping[str, Any]) -> Explanation:
        """Return the value of each predicate, and the nearest ways to a match.

        Args:
            values: see `evaluate`.

        Raises:
            PropertyError: the properties cannot be normalised.
        """
        if self.kind == "subscription":
            values = normalise(values)
        if self.tree is None:
            return Explanation(value=self.test(values), findings=(), nearest=())
        return explain_tree(self.tree, values)


def _restored(kind: ExpressionKind, tree: nodes.Predicate | None, source: str) -> Expression:
    return Expression(kind=kind, tree=tree, source=source)


def parse(text: str, kind: ExpressionKind = "subscription") -> Expression:
    """Parse an expression.

    Raises:
        SubscriptionError: a subscription that is not an expression, is longer than 2048 bytes of
            UTF-8, or is nested deeper than 64 levels.
        FilterError: the same for a filter.
    """
    try:
        tree = parse_tree(text, division=kind == "filter")
    except SyntaxProblem as problem:
        raise to_error(kind, text, problem) from problem.__cause__
    return Expression(kind=kind, tree=tree, source=text)


def to_error(kind: ExpressionKind, text: str, refusal: SyntaxProblem) -> ExpressionError:
    """Return the public error for a syntax problem."""
    return _ERRORS[kind](
        position=locate(text, refusal.offset),
        found=refusal.found,
        expected=refusal.expected,
        hint=refusal.hint,
    )
