"""Property names, types and values that the visible exports offer."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from difflib import get_close_matches
from functools import cached_property
from typing import Any

from streambroker_core.diagnose.predicate_text import count_text, format_value
from streambroker_core.expression import tree
from streambroker_core.expression.evaluate import compile_test
from streambroker_core.matching import is_namespace_allowed
from streambroker_core.model import Export
from streambroker_core.model.properties import Value

MAX_TRIES = 5_000_000
"""Values to test the predicates of all imports on; beyond that, any value counts as possible."""
MAX_NAMES = 2_000
"""Maximum number of candidate names; among more, no similar name is suggested."""
_MAX_EXAMPLES = 5
_TYPES: dict[type, str] = {bool: "boolean", int: "int64", float: "double", str: "string"}


class PropertyValues:
    """Distinct values of one property over many exports, and the number of exports by type."""

    def __init__(self, values: Iterable[Value | None]) -> None:
        kinds: dict[tuple[Any, Any], str] = {}
        self.types: dict[str, int] = {}
        self.values: list[Value] = []
        for value in values:
            if value is None:
                continue
            key: tuple[Any, Any] = (type(value), value)
            if isinstance(value, list):
                key = (type(value[0]) if value else None, tuple(value))
            kind = kinds.get(key)
            if kind is None:
                kind = kinds[key] = type_name(value)
                self.values.append(value)
            self.types[kind] = self.types.get(kind, 0) + 1

    @property
    def exports(self) -> int:
        """Number of exports that have the property."""
        return sum(self.types.values())


def type_name(value: Value) -> str:
    """Return the display name of a property value's type."""
    if isinstance(value, list):
        kinds = {_TYPES[type(item)] for item in value}
        return f"list of {'double' if len(kinds) > 1 else kinds.pop()}" if kinds else "empty list"
    return _TYPES[type(value)]


class VisibleExports:
    """Exports of one scope that are visible from one namespace."""

    def __init__(self, exports: Iterable[Export]) -> None:
        self.exports = tuple(exports)
        self._properties = [x.properties for x in self.exports if x.properties is not None]
        self._offered: dict[str, PropertyValues] = {}
        self._possible: dict[tuple[tree.Atom, bool], bool] = {}
        self._tries = MAX_TRIES

    @cached_property
    def names(self) -> frozenset[str]:
        """Names of all properties that any export has."""
        return frozenset(name for one in self._properties for name in one)

    @cached_property
    def streams(self) -> dict[str, set[str | None]]:
        """Stream ids, each with the applications that export it."""
        streams: dict[str, set[str | None]] = {}
        for export in self.exports:
            if export.stream_id is not None:
                streams.setdefault(export.stream_id, set()).add(export.application.name)
        return streams

    def property_values(self, name: str) -> PropertyValues:
        """Return the values offered under a name."""
        offered = self._offered.get(name)
        if offered is None:
            offered = PropertyValues([properties.get(name) for properties in self._properties])
            self._offered[name] = offered
        return offered

    # ---- satisfiable predicates ----------------------------------------------------------------

    def find_faults(
        self, node: tree.Predicate, *, desired: bool = True
    ) -> list[tuple[tree.Atom, bool]]:
        """Return the predicates for which no export makes a tree true; empty if one may.

        Each predicate is checked alone: it suffices if different exports satisfy them.
        """
        match node:
            case tree.Not():
                return self.find_faults(node.operand, desired=not desired)
            case tree.And() | tree.Or():
                parts = [self.find_faults(item, desired=desired) for item in node.items]
                if isinstance(node, tree.And) is not desired and not all(parts):
                    return []
                return [fault for part in parts for fault in part]
            case _:
                return [] if self.can_be(node, desired) else [(node, desired)]

    def can_be(self, atom: tree.Atom, desired: bool) -> bool:
        """Return whether some export may give a predicate a value."""
        possible = self._possible.get((atom, desired))
        if possible is None:
            possible = self._possible[(atom, desired)] = self._test_values(atom, desired)
        return possible

    def _test_values(self, atom: tree.Atom, desired: bool) -> bool:
        test = compile_test(atom)
        names = tree.names(atom)
        if not names:
            return test({}) is desired
        if isinstance(atom, tree.Has) and not desired:
            return self.property_values(atom.name).exports < len(self._properties)
        values = [self.property_values(name) for name in names]
        if not all(offered.values for offered in values):
            return False
        if len(values) > 1 or len(values[0].values) > self._tries:
            return True
        (name,) = names
        for value in values[0].values:
            self._tries -= 1
            if test({name: value}) is desired:
                return True
        return False

    # ---- messages ------------------------------------------------------------------------------

    def describe_missing(self, name: str) -> str:
        """Return a sentence about a property that no export has."""
        suggestion = suggest_name(name, self.names)
        return f"no export offers `{name}`{f'; did you mean `{suggestion}`?' if suggestion else ''}"

    def describe_types(self, name: str) -> str:
        """Return the types of a property, each with the number of exports."""
        return types_text(self.property_values(name).types)

    def describe_examples(self, name: str) -> str:
        """Return some of the offered values."""
        values = self.property_values(name).values
        examples = ", ".join(format_value(value) for value in values[:_MAX_EXAMPLES])
        return (
            f"{examples} and {len(values) - _MAX_EXAMPLES} more"
            if len(values) > _MAX_EXAMPLES
            else examples
        )


def suggest_name(word: str, candidates: Collection[str]) -> str | None:
    """Return the candidate that was probably meant, or None."""
    if len(candidates) > MAX_NAMES:
        return None
    similar = [
        other for other in candidates if abs(len(other) - len(word)) <= 2 and other[:1] == word[:1]
    ]
    close = get_close_matches(word, sorted(similar)[:50], n=1)
    return close[0] if close else None


def types_text(types: dict[str, int]) -> str:
    """Return ``int64 in 3 exports and double in 1``, the most common type first."""
    counted = sorted(types.items(), key=lambda one: (-one[1], one[0]))
    first = counted[0]
    parts = [f"{first[0]} in {count_text(first[1], 'export')}"]
    parts += [f"{kind} in {count}" for kind, count in counted[1:]]
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


class OfferedProperties:
    """Accepted exports, and the visible ones for each namespace and scope.

    Unless `is_complete`, no statements about whole scopes are made.
    """

    def __init__(self, exports: Iterable[Export], *, is_complete: bool = True) -> None:
        self.is_complete = is_complete
        self._by_scope: dict[str, list[Export]] = {}
        for export in exports:
            self._by_scope.setdefault(export.application.scope, []).append(export)
        self._offers: dict[tuple[str, str], VisibleExports] = {}

    @property
    def scopes(self) -> list[str]:
        """Scopes with at least one export, in order."""
        return sorted(self._by_scope)

    def by_scope(self) -> list[tuple[str, VisibleExports]]:
        """Return all exports by scope, regardless of namespaces."""
        return [(scope, VisibleExports(self._by_scope[scope])) for scope in self.scopes]

    def visible_from(self, namespace: str, scope: str) -> VisibleExports:
        """Return the exports that a namespace may import in a scope."""
        visible = self._offers.get((namespace, scope))
        if visible is None:
            exports = (
                x for x in self._by_scope.get(scope, ()) if is_namespace_allowed(x, namespace)
            )
            visible = self._offers[(namespace, scope)] = VisibleExports(exports)
        return visible
