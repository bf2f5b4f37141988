"""Detect expressions that nothing can satisfy: ``a == 1 && a == 2``, ``a > 5 && a < 3``.

The expression is expanded into ways to make it true: sets of predicates with the values they need.
A way is impossible if its predicates exclude each other. If all are, nothing can make the
expression true. What cannot be decided counts as possible.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, TypeAlias

from streambroker_core.expression import tree
from streambroker_core.expression.evaluate import Row, compile_test
from streambroker_core.expression.printer import print_tree

_Needed: TypeAlias = "tuple[tree.Atom, bool]"
_Way: TypeAlias = "frozenset[_Needed]"

MAX_WAYS = 128
"""Maximum number of ways; larger expressions are not checked."""
MAX_NEEDED = 1_000
"""Maximum number of predicates over all ways; larger expressions are not checked."""

_KINDS = {bool: "a boolean", int: "a number", float: "a number", str: "a string"}


def contradiction(
    node: tree.Predicate, *, integers: frozenset[str] = frozenset(), nan: bool = False
) -> str | None:
    """Return why nothing can make a tree true; None if something may.

    `integers` are names with only integral values, such as integer columns. `nan` allows NaN for
    other names: columns of rows may be NaN, properties may not.
    """
    ways = _ways(node, desired=True)
    if ways is None or sum(map(len, ways)) > MAX_NEEDED:
        return None
    reasons: dict[str, None] = {}
    for way in ways:
        reason = _find_conflict(way, integers, nan=nan)
        if reason is None:
            return None
        reasons.setdefault(reason)
    return "; ".join(list(reasons)[:3]) or "it is false for all values"


def _ways(node: tree.Predicate, *, desired: bool) -> list[_Way] | None:
    """Return all ways to give a tree a value; None if there are too many."""
    match node:
        case tree.Not():
            return _ways(node.operand, desired=not desired)
        case tree.And() | tree.Or():
            parts = [_ways(item, desired=desired) for item in node.items]
            possible = [part for part in parts if part is not None]
            if len(possible) < len(parts):
                return None
            return (
                _combine_ways(possible)
                if isinstance(node, tree.And) is desired
                else _merge_ways(possible)
            )
        case tree.Boolean():
            return [frozenset()] if node.value is desired else []
        case _:
            return [frozenset({(node, desired)})]


def _merge_ways(parts: list[list[_Way]]) -> list[_Way] | None:
    ways = [way for part in parts for way in part]
    return ways if len(ways) <= MAX_WAYS else None


def _combine_ways(parts: list[list[_Way]]) -> list[_Way] | None:
    ways: list[_Way] = [frozenset()]
    for part in parts:
        if len(ways) * len(part) > MAX_WAYS:
            return None
        ways = [left | right for left, right in product(ways, part)]
    return ways


# ---- a single way ------------------------------------------------------------------------------


def _find_conflict(way: _Way, integers: frozenset[str], *, nan: bool) -> str | None:
    """Return why the predicates of a way cannot all have their values, or None."""
    needed = sorted(way, key=lambda one: one[0].at)
    return (
        _find_never_true(needed)
        or _find_negated_pair(needed)
        or _find_absent_name(needed)
        or _find_kind_conflict(needed)
        or _find_no_candidate(needed)
        or _find_empty_range(needed, integers, nan=nan)
    )


def _find_never_true(needed: list[_Needed]) -> str | None:
    """Find a predicate that no value can give the value it needs."""
    for atom, wanted in needed:
        if not tree.names(atom) and compile_test(atom)({}) is not wanted:
            return f"`{_format_predicate(atom, wanted)}` is never true"
        operand_test = _to_operand_test(atom, wanted)
        if (
            operand_test is not None
            and isinstance(operand_test.value, bool)
            and operand_test.op not in ("==", "!=")
        ):
            return f"`{_format_predicate(atom, wanted)}` is never true: booleans have no order"
    return None


def _find_negated_pair(needed: list[_Needed]) -> str | None:
    negated = {atom for atom, wanted in needed if not wanted}
    for atom, wanted in needed:
        if wanted and atom in negated:
            return _describe_conflict((atom, True), (atom, False))
    return None


def _find_absent_name(needed: list[_Needed]) -> str | None:
    """Find a name that must be missing while another predicate needs it."""
    for atom, wanted in needed:
        if isinstance(atom, tree.Has) and not wanted:
            for other in needed:
                if other != (atom, wanted) and atom.name in tree.names(other[0]):
                    return _describe_conflict((atom, wanted), other)
    return None


def _find_kind_conflict(needed: list[_Needed]) -> str | None:
    """Find a name that would need values of two kinds."""
    kinds: dict[str, tuple[str, _Needed]] = {}
    for one in needed:
        for name, kind in _kinds_in(one[0]):
            first = kinds.setdefault(name, (kind, one))
            if first[0] != kind:
                return (
                    f"{_describe_conflict(first[1], one)}: `{name}` would be {first[0]} and {kind}"
                )
    return None


def _kinds_in(atom: tree.Atom) -> Iterator[tuple[str, str]]:
    """Yield each name with the kind its value must have for the predicate to be known."""
    for part in tree.walk(atom):
        match part:
            case tree.Subscript():
                yield part.name, "a list"
            case tree.Arithmetic() | tree.Negate() | tree.Invert():
                yield from ((n.name, "a number") for n in _names_below(part))
            case tree.StringTest(subject=tree.Name(name=name)):
                yield name, "a string"
            case tree.Topic():
                yield tree.TOPIC_PROPERTY, "a string"
            case tree.Comparison():
                yield from _comparison_kinds(part)
            case tree.Membership():
                yield from _membership_kinds(part)
    if isinstance(atom, tree.Name):
        yield atom.name, "a boolean"


def _names_below(node: tree.Node) -> Iterator[tree.Name]:
    return (child for child in tree.children(node) if isinstance(child, tree.Name))


def _comparison_kinds(node: tree.Comparison) -> Iterator[tuple[str, str]]:
    for side, other in ((node.left, node.right), (node.right, node.left)):
        if isinstance(side, tree.Name) and isinstance(other, tree.LITERALS):
            yield side.name, _KINDS[type(other.value)]


def _membership_kinds(node: tree.Membership) -> Iterator[tuple[str, str]]:
    if isinstance(node.container, tree.Name):
        yield node.container.name, "a list"
    elif isinstance(node.item, tree.Name):
        yield node.item.name, _KINDS[type(node.container.items[0].value)]


def _find_no_candidate(needed: list[_Needed]) -> str | None:
    """Check the few values a predicate allows a name against all predicates on that name alone."""
    by_name: dict[str, list[_Needed]] = {}
    for one in needed:
        names = tree.names(one[0])
        if len(names) == 1:
            by_name.setdefault(min(names), []).append(one)
    for one in needed:
        name, values = _candidate_values(*one)
        others = [other for other in by_name.get(name, ()) if other is not one]
        if not values or any(_is_satisfied(others, {name: value}) for value in values):
            continue
        for other in others:
            if not any(_is_satisfied([other], {name: value}) for value in values):
                return _describe_conflict(one, other)
        return f"`{_format_predicate(*one)}` leaves no value for `{name}` that satisfies the rest"
    return None


def _is_satisfied(needed: list[_Needed], values: Row) -> bool:
    return all(compile_test(atom)(values) is wanted for atom, wanted in needed)


def _candidate_values(atom: tree.Atom, desired: bool) -> tuple[str, list[Any]]:
    """Return a name and the only values a predicate allows it; no values if not enumerable."""
    if isinstance(atom, tree.Name):
        return atom.name, [desired]
    if isinstance(atom, tree.Membership):
        item, container = atom.item, atom.container
        if desired and isinstance(item, tree.Name) and isinstance(container, tree.ListLiteral):
            return item.name, [
                v for literal in container.items for v in _number_forms(literal.value)
            ]
        return "", []
    operand_test = _to_operand_test(atom, desired)
    if (
        operand_test is not None
        and operand_test.op == "=="
        and isinstance(operand_test.subject, tree.Name)
    ):
        return operand_test.subject.name, _number_forms(operand_test.value)
    return "", []


def _number_forms(value: Any) -> list[Any]:
    """Return a number as int64 and as double: a column may store it as either."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return [value]
    if isinstance(value, int):
        return [value, float(value)] if float(value) == value else [value]
    return [value, int(value)] if value.is_integer() else [value]


# ---- ranges ------------------------------------------------------------------------------------


def _to_operand_test(atom: tree.Atom, desired: bool) -> tree.OperandTest | None:
    return (
        tree.operand_test_for(atom, desired=desired) if isinstance(atom, tree.Comparison) else None
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bound:
    value: Any
    strict: bool
    by: _Needed


def _find_empty_range(needed: list[_Needed], integers: frozenset[str], *, nan: bool) -> str | None:
    """Find a subject that would have to be above one value and below a lower one."""
    lows: dict[str, _Bound] = {}
    highs: dict[str, _Bound] = {}
    excluded: dict[str, list[tuple[Any, _Needed]]] = {}
    for subject, operand_test, one in _iter_ordered(needed, integers, nan=nan):
        bound = _Bound(value=operand_test.value, strict=operand_test.op in ("<", ">"), by=one)
        if operand_test.op in (">", ">=", "=="):
            lows[subject] = _tighten(lows.get(subject), bound, 1)
        if operand_test.op in ("<", "<=", "=="):
            highs[subject] = _tighten(highs.get(subject), bound, -1)
        if operand_test.op == "!=":
            excluded.setdefault(subject, []).append((operand_test.value, one))
    for subject in lows.keys() & highs.keys():
        low, high = lows[subject], highs[subject]
        if _is_comparable(low.value, high.value) and _is_empty_range(
            low, high, subject in integers
        ):
            return _describe_conflict(low.by, high.by)
        for value, one in excluded.get(subject, ()):
            if low.value == high.value == value:
                return _describe_conflict(low.by, one)
    return None


def _iter_ordered(
    needed: list[_Needed], integers: frozenset[str], *, nan: bool
) -> Iterator[tuple[str, tree.OperandTest, _Needed]]:
    """Yield the comparisons of subjects that cannot be NaN.

    No order holds for NaN: it satisfies `!(a < 5) && !(a > 3)`. Another predicate on the subject
    that NaN does not satisfy rules it out.
    """
    tests = [
        (one, operand_test)
        for one in needed
        if (operand_test := _to_operand_test(*one)) is not None
    ]
    not_nan = {
        print_tree(operand_test.subject)
        for (_, wanted), operand_test in tests
        if operand_test.op == "==" or (wanted and operand_test.op != "!=")
    }
    for one, operand_test in tests:
        subject = print_tree(operand_test.subject)
        ordered = not nan or isinstance(operand_test.value, str) or subject in not_nan | integers
        if ordered and not isinstance(operand_test.value, bool):
            yield subject, operand_test, one


def _is_comparable(left: Any, right: Any) -> bool:
    return isinstance(left, str) == isinstance(right, str)


def _tighten(current: _Bound | None, new: _Bound, sign: int) -> _Bound:
    """Return the tighter bound; ``sign`` is 1 for lower ends and -1 for upper ends."""
    if current is None or not _is_comparable(current.value, new.value):
        return new
    if current.value == new.value:
        return new if new.strict else current
    higher = new.value > current.value
    return new if higher is (sign == 1) else current


def _is_empty_range(low: _Bound, high: _Bound, integral: bool) -> bool:
    if low.value == high.value:
        return low.strict or high.strict
    if low.value > high.value:
        return True
    both_integers = isinstance(low.value, int) and isinstance(high.value, int)
    return integral and both_integers and low.strict and high.strict and high.value - low.value == 1


# ---- messages ----------------------------------------------------------------------------------


def _format_predicate(atom: tree.Atom, desired: bool) -> str:
    text = print_tree(atom)
    if desired:
        return text
    atomic = isinstance(atom, tree.Name | tree.Subscript | tree.Has | tree.StringTest | tree.Topic)
    return f"!{text}" if atomic else f"!({text})"


def _describe_conflict(left: _Needed, right: _Needed) -> str:
    first, second = sorted((left, right), key=lambda needed: (needed[0].at, not needed[1]))
    return f"`{_format_predicate(*first)}` and `{_format_predicate(*second)}` exclude each other"
