"""Explain the value of an expression, and the fewest changes for a match."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from typing import Any, TypeAlias

from streambroker_core.expression import tree
from streambroker_core.expression.evaluate import Row, compare, compile_fetch, compile_test
from streambroker_core.expression.printer import print_tree

# Maximum number of shown ways to match, and of ways kept during the search.
MAX_MISSES = 3
_MAX_WAYS = 16
_MAX_LENGTH = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class PredicateResult:
    """One predicate of an expression, and its value.

    Attributes:
        text: canonical text of the predicate.
        value: None is unknown.
        why: the values that led to it, or what makes it unknown.
    """

    text: str
    value: bool | None
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Miss:
    """A way to make the expression true: predicates to change, and the values they need."""

    wrong: tuple[PredicateResult, ...]
    desired: tuple[bool, ...]

    def __str__(self) -> str:
        pairs = zip(self.wrong, self.desired, strict=True)
        return " and ".join(
            f"`{finding.text}` should be {'true' if wanted else 'false'} ({finding.why})"
            for finding, wanted in pairs
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why an expression matches or does not.

    Attributes:
        value: of the whole expression; None is unknown.
        findings: every distinct predicate, in the order of the text.
        nearest: the ways to a match with the fewest changes, at most three; empty if it matches
            or nothing could make it match.
    """

    value: bool | None
    findings: tuple[PredicateResult, ...]
    nearest: tuple[Miss, ...]

    def __str__(self) -> str:
        lines = [f"{_word(self.value)}"]
        lines += [f"  {_word(item.value):8}{item.text}: {item.why}" for item in self.findings]
        lines += [f"  to match: {miss}" for miss in self.nearest]
        return "\n".join(lines)


def explain_tree(node: tree.Predicate, values: Row) -> Explanation:
    """Explain the value of a tree for normalised properties or a row."""
    findings: dict[str, PredicateResult] = {}
    for atom in tree.atoms(node):
        text = print_tree(atom)
        if text not in findings:
            findings[text] = PredicateResult(
                text=text, value=compile_test(atom)(values), why=_explain_value(atom, values)
            )
    value = compile_test(node)(values)
    nearest = () if value is True else _find_nearest(node, findings)
    return Explanation(value=value, findings=tuple(findings.values()), nearest=nearest)


# Predicates by their text, with the values they need.
_Way: TypeAlias = frozenset[tuple[str, bool]]


class _Search:
    """Search for the ways to give a tree a value, those with the fewest changes first."""

    def __init__(self, findings: dict[str, PredicateResult]) -> None:
        self._findings = findings
        self._current = frozenset((text, found.value) for text, found in findings.items())

    def ways(self, node: tree.Predicate, *, desired: bool) -> list[_Way]:
        """Return the required predicate values, including those that already hold."""
        match node:
            case tree.Not():
                return self.ways(node.operand, desired=not desired)
            case tree.And() | tree.Or():
                parts = [self.ways(item, desired=desired) for item in node.items]
                if isinstance(node, tree.And) is desired:
                    return self._all_of(parts)
                return self._fewest(way for part in parts for way in part)
            case tree.Boolean():
                return [frozenset()] if node.value is desired else []
            case _:
                return [frozenset({(print_tree(node), desired)})]

    def changes(self, way: _Way) -> _Way:
        return way - self._current

    def miss(self, changes: _Way) -> Miss:
        wanted = dict(changes)
        wrong = tuple(finding for text, finding in self._findings.items() if text in wanted)
        return Miss(wrong=wrong, desired=tuple(wanted[finding.text] for finding in wrong))

    def _all_of(self, parts: list[list[_Way]]) -> list[_Way]:
        ways: list[_Way] = [frozenset()]
        for part in parts:
            joined = (left | right for left, right in product(ways, part))
            ways = self._fewest(way for way in joined if not _contradicts(way))
        return ways

    def _fewest(self, ways: Iterable[_Way]) -> list[_Way]:
        """Return the ways with the fewest changes, without duplicates and supersets."""
        kept: list[_Way] = []
        for way in sorted(dict.fromkeys(ways), key=lambda way: (len(self.changes(way)), len(way))):
            if not any(other <= way for other in kept):
                kept.append(way)
            if len(kept) == _MAX_WAYS:
                break
        return kept


def _contradicts(way: _Way) -> bool:
    return len(dict(way)) < len(way)


def _find_nearest(node: tree.Predicate, findings: dict[str, PredicateResult]) -> tuple[Miss, ...]:
    search = _Search(findings)
    changes = dict.fromkeys(search.changes(way) for way in search.ways(node, desired=True))
    return tuple(search.miss(change) for change in sorted(changes, key=len)[:MAX_MISSES])


def _word(value: bool | None) -> str:
    return "unknown" if value is None else str(value).lower()


def _explain_value(node: tree.Atom, values: Row) -> str:
    """Return the values that a predicate used, or what made it unknown."""
    if isinstance(node, tree.Boolean):
        return "a constant"
    facts = [
        _describe_fact(part, values)
        for part in tree.walk(node)
        if not isinstance(part, tree.LITERALS)
    ]
    details = list(dict.fromkeys(fact for fact in facts if fact))
    if isinstance(node, tree.Comparison) and _incomparable(node, values):
        details.append("the two sides cannot be compared")
    return ", ".join(details) or "it names nothing"


def _incomparable(node: tree.Comparison, values: Row) -> bool:
    sides = compile_fetch(node.left)(values), compile_fetch(node.right)(values)
    return None not in sides and compare(node.op, *sides) is None


def _describe_fact(node: tree.Node, values: Row) -> str | None:
    match node:
        case tree.Name() | tree.Has():
            return _describe_name(node.name, values)
        case tree.Topic():
            return _describe_name(tree.TOPIC_PROPERTY, values)
        case tree.Subscript():
            return _describe_element(node, values)
        case tree.Arithmetic() | tree.Negate() | tree.Invert():
            return _describe_computed(node, values)
        case _:
            return None


def _describe_name(name: str, values: Row) -> str:
    value = values.get(name)
    return f"`{name}` is missing" if value is None else f"`{name}` is {_format_value(value)}"


def _describe_element(node: tree.Subscript, values: Row) -> str:
    value = values.get(node.name)
    if value is None:
        return f"`{node.name}` is missing"
    if not isinstance(value, list | tuple):
        return f"`{node.name}` is {_format_value(value)}, not a list"
    if not 0 <= node.index < len(value):
        count = f"{len(value)} element{'' if len(value) == 1 else 's'}"
        return f"`{node.name}` has {count}, none at {node.index}"
    return f"`{node.name}[{node.index}]` is {_format_value(value[node.index])}"


def _describe_computed(node: tree.Arithmetic | tree.Negate | tree.Invert, values: Row) -> str:
    text = print_tree(node)
    value = compile_fetch(node)(values)
    if value is not None:
        return f"`{text}` is {_format_value(value)}"
    operands = [compile_fetch(part)(values) for part in _operands(node)]
    if any(operand is None for operand in operands):
        return f"`{text}` has no value"
    if isinstance(node, tree.Arithmetic) and node.op in ("/", "%") and operands[1] == 0:
        return f"`{text}` divides by zero"
    if all(type(operand) is int for operand in operands):
        return f"`{text}` is outside the range of its operator"
    return f"`{text}` is not defined for these values"


def _operands(
    node: tree.Arithmetic | tree.Negate | tree.Invert,
) -> tuple[tree.Operand, ...]:
    return (node.left, node.right) if isinstance(node, tree.Arithmetic) else (node.operand,)


def _format_value(value: Any) -> str:
    if value is None:
        return "null"
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _MAX_LENGTH else f"{text[: _MAX_LENGTH - 1]}…"
