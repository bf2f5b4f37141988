"""How far a subscription is from being true, counted in predicates.

The count depends on the values of the predicates alone, so it is found once for
each combination of values: of ten thousand exports most agree in theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from streambroker_core.expression import tree
from streambroker_core.expression.evaluate import test_of
from streambroker_core.expression.explain import explain_tree

_Values: TypeAlias = "tuple[bool | None, ...]"
# Changes that make a part true, and changes that make it false.
_Costs: TypeAlias = tuple[float, float]
_Cost: TypeAlias = Callable[[_Values], _Costs]

_NEVER = float("inf")


MAX_SEARCHES = 256
"""Combinations for which a tree with repeated predicates is searched; then it is estimated."""


class Nearness:
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
        self._tests = [test_of(atom) for atom in distinct]
        self._anew = len(distinct) + 1
        self._known: dict[_Values, int] = {}
        self._cost = _cost_of(node, {atom: place for place, atom in enumerate(distinct)})
        self._searches = MAX_SEARCHES if len(distinct) < len(atoms) else 0

    def changes(self, values: Mapping[str, Any]) -> int:
        """Return the count for normalised properties; 0 if the tree is true."""
        found = tuple([test(values) for test in self._tests])
        changes = self._known.get(found)
        if changes is None:
            changes = self._known[found] = self._count(found, values)
        return changes

    def _count(self, found: _Values, values: Mapping[str, Any]) -> int:
        if self._searches:
            self._searches -= 1
            return self._searched(values)
        count = self._cost(found)[0]
        return self._anew if count == _NEVER else min(int(count), self._anew)

    def _searched(self, values: Mapping[str, Any]) -> int:
        """Count where a predicate stands twice, so that one change can do for both places."""
        explained = explain_tree(self._node, values)
        if explained.value is True:
            return 0
        return len(explained.nearest[0].wrong) if explained.nearest else self._anew


def _cost_of(node: tree.Predicate, places: Mapping[tree.Atom, int]) -> _Cost:
    match node:
        case tree.And() | tree.Or():
            parts = [_cost_of(item, places) for item in node.items]
            return _all_of(parts) if isinstance(node, tree.And) else _one_of(parts)
        case tree.Not():
            inner = _cost_of(node.operand, places)
            return lambda found: inner(found)[::-1]
        case tree.Boolean():
            fixed = (0.0, _NEVER) if node.value else (_NEVER, 0.0)
            return lambda found: fixed
        case _:
            place = places[node]
            return lambda found: (float(found[place] is not True), float(found[place] is not False))


def _all_of(parts: list[_Cost]) -> _Cost:
    def cost(found: _Values) -> _Costs:
        costs = [part(found) for part in parts]
        return sum(true for true, _ in costs), min(false for _, false in costs)

    return cost


def _one_of(parts: list[_Cost]) -> _Cost:
    def cost(found: _Values) -> _Costs:
        costs = [part(found) for part in parts]
        return min(true for true, _ in costs), sum(false for _, false in costs)

    return cost
