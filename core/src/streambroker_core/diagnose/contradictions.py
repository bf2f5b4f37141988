"""Expressions that are true of nothing at all: ``a == 1 && a == 2``, ``a > 5 && a < 3``.

Every way to make the whole true is a set of predicates with the values they
need. A way is barred if two of them exclude each other; if all ways are barred,
nothing can make the whole true. What cannot be told is taken to be possible.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, TypeAlias

from streambroker_core.expression import tree
from streambroker_core.expression.evaluate import compile_test
from streambroker_core.expression.printer import print_tree

_Needed: TypeAlias = "tuple[tree.Atom, bool]"
_Way: TypeAlias = "frozenset[_Needed]"

MAX_WAYS = 128
"""An expression with more ways to be true than these is not looked at."""
MAX_NEEDED = 1_000
"""Likewise one whose ways need more predicates than these, all taken together."""

_KINDS = {bool: "a boolean", int: "a number", float: "a number", str: "a string"}


def contradiction(
    node: tree.Predicate, *, integers: frozenset[str] = frozenset(), nan: bool = False
) -> str | None:
    """Return why nothing can make a tree true; None if something may.

    Args:
        node: the tree.
        integers: names that only have integral values, as integer columns do.
        nan: whether other names may have NaN, as columns of rows do, and properties do not.
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
    return "; ".join(list(reasons)[:3]) or "it is false whatever the values are"


def _ways(node: tree.Predicate, *, desired: bool) -> list[_Way] | None:
    """Return all ways to give a tree a value; None if they are too many."""
    match node:
        case tree.Not():
            return _ways(node.operand, desired=not desired)
        case tree.And() | tree.Or():
            parts = [_ways(item, desired=desired) for item in node.items]
            known = [part for part in parts if part is not None]
            if len(known) < len(parts):
                return None
            return (
                _combine_ways(known)
                if isinstance(node, tree.And) is desired
                else _merge_ways(known)
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


# ---- one way -----------------------------------------------------------------------------------


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
    """Look for predicates that no value gives the value they need."""
    for atom, wanted in needed:
        if not tree.names(atom) and compile_test(atom)({}) is not wanted:
            return f"`{_format_predicate(atom, wanted)}` is never true"
        asked = _to_operand_test(atom, wanted)
        if asked is not None and isinstance(asked.value, bool) and asked.op not in ("==", "!="):
            return f"`{_format_predicate(atom, wanted)}` is never true: booleans have no order"
    return None


def _find_negated_pair(needed: list[_Needed]) -> str | None:
    barred = {atom for atom, wanted in needed if not wanted}
    for atom, wanted in needed:
        if wanted and atom in barred:
            return _describe_conflict((atom, True), (atom, False))
    return None


def _find_absent_name(needed: list[_Needed]) -> str | None:
    """Look for names that must be missing and are asked something."""
    for atom, wanted in needed:
        if isinstance(atom, tree.Has) and not wanted:
            for other in needed:
                if other != (atom, wanted) and atom.name in tree.names(other[0]):
                    return _describe_conflict((atom, wanted), other)
    return None


def _find_kind_conflict(needed: list[_Needed]) -> str | None:
    """Look for names that would have to be of two kinds."""
    seen: dict[str, tuple[str, _Needed]] = {}
    for one in needed:
        for name, kind in _kinds_in(one[0]):
            known = seen.setdefault(name, (kind, one))
            if known[0] != kind:
                return (
                    f"{_describe_conflict(known[1], one)}: `{name}` would be {known[0]} and {kind}"
                )
    return None


def _kinds_in(atom: tree.Atom) -> Iterator[tuple[str, str]]:
    """Yield what a predicate has to find at the names it asks for, or it is unknown."""
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
    """Try the only values that a predicate leaves to a name on all others that ask for it alone."""
    alone: dict[str, list[_Needed]] = {}
    for one in needed:
        names = tree.names(one[0])
        if len(names) == 1:
            alone.setdefault(min(names), []).append(one)
    for one in needed:
        name, values = _candidate_values(*one)
        others = [other for other in alone.get(name, ()) if other is not one]
        if not values or any(_is_satisfied(others, {name: value}) for value in values):
            continue
        for other in others:
            if not any(_is_satisfied([other], {name: value}) for value in values):
                return _describe_conflict(one, other)
        return f"`{_format_predicate(*one)}` leaves no value to `{name}` that fits the rest"
    return None


def _is_satisfied(needed: list[_Needed], values: Mapping[str, Any]) -> bool:
    return all(compile_test(atom)(values) is wanted for atom, wanted in needed)


def _candidate_values(atom: tree.Atom, desired: bool) -> tuple[str, list[Any]]:
    """Return a name and the only values a predicate leaves to it; no values for many."""
    if isinstance(atom, tree.Name):
        return atom.name, [desired]
    if isinstance(atom, tree.Membership):
        item, container = atom.item, atom.container
        if desired and isinstance(item, tree.Name) and isinstance(container, tree.ListLiteral):
            return item.name, [
                v for literal in container.items for v in _number_forms(literal.value)
            ]
        return "", []
    asked = _to_operand_test(atom, desired)
    if asked is not None and asked.op == "==" and isinstance(asked.subject, tree.Name):
        return asked.subject.name, _number_forms(asked.value)
    return "", []


def _number_forms(value: Any) -> list[Any]:
    """Return a number as int64 and as double: a column may hold it as either."""
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
    """One end of a range, and the predicate that sets it."""

    value: Any
    strict: bool
    by: _Needed


def _find_empty_range(needed: list[_Needed], integers: frozenset[str], *, nan: bool) -> str | None:
    """Look for values that would have to be above one number or text and below a lower one."""
    lows: dict[str, _Bound] = {}
    highs: dict[str, _Bound] = {}
    banned: dict[str, list[tuple[Any, _Needed]]] = {}
    for subject, asked, one in _iter_ordered(needed, integers, nan=nan):
        bound = _Bound(value=asked.value, strict=asked.op in ("<", ">"), by=one)
        if asked.op in (">", ">=", "=="):
            lows[subject] = _tighten(lows.get(subject), bound, 1)
        if asked.op in ("<", "<=", "=="):
            highs[subject] = _tighten(highs.get(subject), bound, -1)
        if asked.op == "!=":
            banned.setdefault(subject, []).append((asked.value, one))
    for subject in lows.keys() & highs.keys():
        low, high = lows[subject], highs[subject]
        if _is_comparable(low.value, high.value) and _is_empty_range(
            low, high, subject in integers
        ):
            return _describe_conflict(low.by, high.by)
        for value, one in banned.get(subject, ()):
            if low.value == high.value == value:
                return _describe_conflict(low.by, one)
    return None


def _iter_ordered(
    needed: list[_Needed], integers: frozenset[str], *, nan: bool
) -> Iterator[tuple[str, tree.OperandTest, _Needed]]:
    """Yield the comparisons of what is not NaN, with what they compare.

    No order holds of NaN, so `!(a < 5) && !(a > 3)` is true of it, unless something else is
    asked of `a` that is not.
    """
    found = [(one, asked) for one in needed if (asked := _to_operand_test(*one)) is not None]
    never = {
        print_tree(asked.subject)
        for (_, wanted), asked in found
        if asked.op == "==" or (wanted and asked.op != "!=")
    }
    for one, asked in found:
        subject = print_tree(asked.subject)
        ordered = not nan or isinstance(asked.value, str) or subject in never | integers
        if ordered and not isinstance(asked.value, bool):
            yield subject, asked, one


def _is_comparable(left: Any, right: Any) -> bool:
    return isinstance(left, str) == isinstance(right, str)


def _tighten(current: _Bound | None, new: _Bound, sign: int) -> _Bound:
    """Return the bound that leaves less; ``sign`` is 1 for the lower ends, -1 for the upper."""
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
    whole = isinstance(low.value, int) and isinstance(high.value, int)
    return integral and whole and low.strict and high.strict and high.value - low.value == 1


# ---- words -------------------------------------------------------------------------------------


def _format_predicate(atom: tree.Atom, desired: bool) -> str:
    text = print_tree(atom)
    if desired:
        return text
    plain = isinstance(atom, tree.Name | tree.Subscript | tree.Has | tree.StringTest | tree.Topic)
    return f"!{text}" if plain else f"!({text})"


def _describe_conflict(left: _Needed, right: _Needed) -> str:
    first, second = sorted((left, right), key=lambda needed: (needed[0].at, not needed[1]))
    return f"`{_format_predicate(*first)}` and `{_format_predicate(*second)}` exclude each other"
