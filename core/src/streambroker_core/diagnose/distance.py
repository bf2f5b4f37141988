"""Distance of a subscription from being true, counted in predicates.

It depends on the values of the predicates alone, so it is cached by their combination: of
thousands of exports most agree in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from streambroker_core.expression import tree
from streambroker_core.expression.evaluate import Row, compile_test
from streambroker_core.expression.explain import explain_tree

_Values: TypeAlias = "tuple[bool | None, ...]"
# Changes that make a part true, and changes that make it false.
_Costs: TypeAlias = tuple[float, float]
_Cost: TypeAlias = Callable[[_Values], _Costs]

_NEVER = float("inf")


MAX_SEARCHES = 256
"""Combinations that are searched for a tree with repeated predicates; later ones are estimated."""


class SubscriptionDistance:
    """Number of predicates of a tree that have to change to make it true.

    It equals the length of the nearest miss of `explain_tree`. A tree that no change of predicates
    makes true must be rewritten; that counts as all its predicates plus one. If predicates occur
    repeatedly and their values have too many combinations to search, each occurrence counts.
    """

    def __init__(self, node: tree.Predicate) -> None:
        atoms = list(tree.atoms(node))
        distinct = dict.fromkeys(atoms)
        self._node = node
        self._tests = [compile_test(atom) for atom in distinct]
        self._rewrite_cost = len(distinct) + 1
        self._cache: dict[_Values, int] = {}
        self._cost = _compile_cost(node, {atom: index for index, atom in enumerate(distinct)})
        self._searches = MAX_SEARCHES if len(distinct) < len(atoms) else 0

    def count_changes(self, values: Row) -> int:
        """Return the distance for normalised properties; 0 if the tree is true."""
        truth_values = tuple([test(values) for test in self._tests])
        changes = self._cache.get(truth_values)
        if changes is None:
            changes = self._cache[truth_values] = self._count(truth_values, values)
        return changes

    def _count(self, truth_values: _Values, values: Row) -> int:
        if self._searches:
            self._searches -= 1
            return self._search(values)
        count = self._cost(truth_values)[0]
        return self._rewrite_cost if count == _NEVER else min(int(count), self._rewrite_cost)

    def _search(self, values: Row) -> int:
        """Count by search: one change of a repeated predicate counts for all its places."""
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
            index = indices[node]
            return lambda found: (float(found[index] is not True), float(found[index] is not False))


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
