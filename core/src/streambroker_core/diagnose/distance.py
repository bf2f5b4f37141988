"""How far a subscription is from being true, counted in predicates.

The count depends on the values of the predicates alone, so it is found once for
each combination of values: of ten thousand exports most agree in theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from streambroker_core.expression import tree
from streambroker_core.expression.evaluate import compile_test
from streambroker_core.expression.explain import explain_tree

_Values: TypeAlias = "tuple[bool | None, ...]"
# Changes that make a part true, and changes that make it false.
_Costs: TypeAlias = tuple[float, float]
_Cost: TypeAlias = Callable[[_Values], _Costs]

_NEVER = float("inf")


MAX_SEARCHES = 256
"""Combinations for which a tree with repeated predicates is searched; then it is estimated."""


class SubscriptionDistance:
    """How many predicates of a tree have to change before it is true.

    It agrees with `explain_tree`: the count is the length of the nearest miss. A
    tree that no change of predicates makes true has to be written anew; that
    counts one more than all its predicates. Where predicates stand in several
    places and their values are too many combinations to search, those places are
    counted one by one.
    """

    def __init__(self, node: tree.Predicate) -> None:
        atoms = list(tree.atoms(node))
        distinct = dict.fromkeys(atoms)
        self._node = node
        self._tests = [compile_test(atom) for atom in distinct]
        self._rewrite_cost = len(distinct) + 1
        self._cache: dict[_Values, int] = {}
        self._cost = _compile_cost(node, {atom: place for place, atom in enumerate(distinct)})
        self._searches = MAX_SEARCHES if len(distinct) < len(atoms) else 0

    def count_changes(self, values: Mapping[str, Any]) -> int:
        """Return the count for normalised properties; 0 if the tree is true."""
        found = tuple([test(values) for test in self._tests])
        changes = self._cache.get(found)
        if changes is None:
            changes = self._cache[found] = self._count(found, values)
        return changes

    def _count(self, truth_values: _Values, values: Mapping[str, Any]) -> int:
        if self._searches:
            self._searches -= 1
            return self._search(values)
        count = self._cost(truth_values)[0]
        return self._rewrite_cost if count == _NEVER else min(int(count), self._rewrite_cost)

    def _search(self, values: Mapping[str, Any]) -> int:
        """Count where a predicate stands twice, so that one change can do for both places."""
        explained = explain_tree(self._node, values)
        if explained.value is True:
            return 0
        return len(explained.nearest[0].wrong) if explained.nearest else self._rewrite_cost


def _compile_cost(node: tree.Predicate, indices: Mapping[tree.Atom, int]) -> _Cost:
    match node:
        case tree.And() | tree.Or():
            parts = [_compile_cost(item, indices) for item in node.items]
            return (
                _conjunction_cost(parts) if isinstance(node, tree.And) else _disjunction_cost(parts)
            )
        case tree.Not():
            inner = _compile_cost(node.operand, indices)
            return lambda found: inner(found)[::-1]
        case tree.Boolean():
            fixed = (0.0, _NEVER) if node.value else (_NEVER, 0.0)
            return lambda found: fixed
        case _:
            place = indices[node]
            return lambda found: (float(found[place] is not True), float(found[place] is not False))


def _conjunction_cost(parts: list[_Cost]) -> _Cost:
    def cost(found: _Values) -> _Costs:
        costs = [part(found) for part in parts]
        return sum(true for true, _ in costs), min(false for _, false in costs)

    return cost


def _disjunction_cost(parts: list[_Cost]) -> _Cost:
    def cost(found: _Values) -> _Costs:
        costs = [part(found) for part in parts]
        return min(true for true, _ in costs), sum(false for _, false in costs)

    return cost
