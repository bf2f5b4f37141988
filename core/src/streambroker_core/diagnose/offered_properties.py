"""What the exports that somebody can see offer: names, types and values of properties."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from difflib import get_close_matches
from typing import Any

from streambroker_core.diagnose.predicate_text import shown
from streambroker_core.expression import tree
from streambroker_core.expression.evaluate import test_of
from streambroker_core.matching import admits
from streambroker_core.model import Export
from streambroker_core.model.properties import Value

MAX_TRIES = 5_000_000
"""Values on which the predicates of all imports are tried; what is left then counts as possible."""
MAX_NAMES = 2_000
"""Among more names than these nobody is asked whether another one was meant."""
_SHOWN = 5
_TYPES: dict[type, str] = {bool: "boolean", int: "int64", float: "double", str: "string"}


class Offered:
    """One property over many exports.

    Attributes:
        types: how many exports have it with a type.
        values: the distinct values.
    """

    def __init__(self, found: Iterable[Value | None]) -> None:
        kinds: dict[tuple[Any, Any], str] = {}
        self.types: dict[str, int] = {}
        self.values: list[Value] = []
        for value in found:
            if value is None:
                continue
            key: tuple[Any, Any] = (type(value), value)
            if isinstance(value, list):
                key = (type(value[0]) if value else None, tuple(value))
            kind = kinds.get(key)
            if kind is None:
                kind = kinds[key] = type_of(value)
                self.values.append(value)
            self.types[kind] = self.types.get(kind, 0) + 1

    @property
    def exports(self) -> int:
        """How many exports have it."""
        return sum(self.types.values())


def type_of(value: Value) -> str:
    """Return the type of a property's value, as people call it."""
    if isinstance(value, list):
        kinds = {_TYPES[type(item)] for item in value}
        return f"list of {'double' if len(kinds) > 1 else kinds.pop()}" if kinds else "empty list"
    return _TYPES[type(value)]


class Offer:
    """The exports that one namespace can see in one scope."""

    def __init__(self, exports: Iterable[Export]) -> None:
        self.exports = tuple(exports)
        self._properties = [x.properties for x in self.exports if x.properties is not None]
        self._offered: dict[str, Offered] = {}
        self._names: frozenset[str] | None = None
        self._streams: dict[str, set[str | None]] | None = None
        self._possible: dict[tuple[tree.Atom, bool], bool] = {}
        self._tries = MAX_TRIES

    @property
    def names(self) -> frozenset[str]:
        """The properties that any export has."""
        if self._names is None:
            self._names = frozenset(name for one in self._properties for name in one)
        return self._names

    @property
    def streams(self) -> dict[str, set[str | None]]:
        """The stream ids, each with the applications that export it."""
        if self._streams is None:
            self._streams = {}
            for export in self.exports:
                if export.stream_id is not None:
                    known = self._streams.setdefault(export.stream_id, set())
                    known.add(export.application.name)
        return self._streams

    def of(self, name: str) -> Offered:
        """Return what is offered under a name."""
        offered = self._offered.get(name)
        if offered is None:
            offered = Offered([properties.get(name) for properties in self._properties])
            self._offered[name] = offered
        return offered

    # ---- what can be true ----------------------------------------------------------------------

    def faults(self, node: tree.Predicate, *, wanted: bool = True) -> list[tuple[tree.Atom, bool]]:
        """Return the predicates for which no export of all makes a tree true; empty if one may.

        Each predicate is looked at alone: exports that fit one each, but never
        two together, do not show here.
        """
        match node:
            case tree.Not():
                return self.faults(node.operand, wanted=not wanted)
            case tree.And() | tree.Or():
                parts = [self.faults(item, wanted=wanted) for item in node.items]
                if isinstance(node, tree.And) is not wanted and not all(parts):
                    return []
                return [fault for part in parts for fault in part]
            case _:
                return [] if self.possible(node, wanted) else [(node, wanted)]

    def possible(self, atom: tree.Atom, wanted: bool) -> bool:
        """Say whether some export may give a predicate a value."""
        known = self._possible.get((atom, wanted))
        if known is None:
            known = self._possible[(atom, wanted)] = self._try(atom, wanted)
        return known

    def _try(self, atom: tree.Atom, wanted: bool) -> bool:
        test = test_of(atom)
        names = tree.names(atom)
        if not names:
            return test({}) is wanted
        if isinstance(atom, tree.Has) and not wanted:
            return self.of(atom.name).exports < len(self._properties)
        found = [self.of(name) for name in names]
        if not all(offered.values for offered in found):
            return False
        if len(found) > 1 or len(found[0].values) > self._tries:
            return True
        (name,) = names
        for value in found[0].values:
            self._tries -= 1
            if test({name: value}) is wanted:
                return True
        return False

    # ---- why not -------------------------------------------------------------------------------

    def missing(self, name: str) -> str:
        """Return a sentence about a property that no export has."""
        meant = guess(name, self.names)
        return f"no export offers `{name}`{f'; did you mean `{meant}`?' if meant else ''}"

    def described(self, name: str) -> str:
        """Return the types of a property, each with the number of exports."""
        return types_text(self.of(name).types)

    def examples(self, name: str) -> str:
        """Return some of the values that are offered."""
        values = self.of(name).values
        told = ", ".join(shown(value) for value in values[:_SHOWN])
        return f"{told} and {len(values) - _SHOWN} more" if len(values) > _SHOWN else told


def guess(word: str, known: Collection[str]) -> str | None:
    """Return the known word that somebody may have meant, or None."""
    if len(known) > MAX_NAMES:
        return None
    alike = [other for other in known if abs(len(other) - len(word)) <= 2 and other[:1] == word[:1]]
    close = get_close_matches(word, sorted(alike)[:50], n=1)
    return close[0] if close else None


def types_text(types: dict[str, int]) -> str:
    """Return ``int64 in 3 exports and double in 1``, the most common type first."""
    counted = sorted(types.items(), key=lambda one: (-one[1], one[0]))
    first = counted[0]
    parts = [f"{first[0]} in {first[1]} export{'' if first[1] == 1 else 's'}"]
    parts += [f"{kind} in {count}" for kind, count in counted[1:]]
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


class Offers:
    """All exports, and what each namespace sees of them in each scope.

    Args:
        exports: those that take part.
        whole: whether these are all; if not, nothing is to be said of all together.
    """

    def __init__(self, exports: Iterable[Export], *, whole: bool = True) -> None:
        self.whole = whole
        self._by_scope: dict[str, list[Export]] = {}
        for export in exports:
            self._by_scope.setdefault(export.application.scope, []).append(export)
        self._offers: dict[tuple[str, str], Offer] = {}

    @property
    def scopes(self) -> list[str]:
        """The scopes in which anything is exported, in order."""
        return sorted(self._by_scope)

    def each(self) -> list[tuple[str, Offer]]:
        """Return all exports by scope, whoever may see them."""
        return [(scope, Offer(self._by_scope[scope])) for scope in self.scopes]

    def seen_from(self, namespace: str, scope: str) -> Offer:
        """Return what may be imported from a namespace in a scope."""
        known = self._offers.get((namespace, scope))
        if known is None:
            found = (x for x in self._by_scope.get(scope, ()) if admits(x, namespace))
            known = self._offers[(namespace, scope)] = Offer(found)
        return known
