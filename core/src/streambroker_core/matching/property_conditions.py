"""Derive indexable conditions on properties from a subscription.

A subscription becomes alternatives. Each is a set of *conditions* that can be looked up: a
property is one of some values, or between two numbers. They are necessary, not sufficient:
others (``!=``, ``has``, string tests, arithmetic) are left out. The subscription itself decides.

Negation is pushed down to the predicates first. That is exact in three-valued logic: a predicate
and its opposite are unknown for the same properties.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from streambroker_core.expression import tree
from streambroker_core.expression.evaluate import KINDS, value_kind
from streambroker_core.model import Properties

MAX_ALTERNATIVES = 64
"""Maximum number of alternatives; parts that would exceed it are left out."""

Attribute: TypeAlias = "tuple[str, str]"
"""A property and the aspect to look up: ``number``, ``text`` or ``boolean`` for its value,
``in number`` … for its elements, ``level 0`` … for the levels of a topic. This separates
``true``, ``1`` and ``"1"``, while ``1`` and ``1.0`` are one value."""


Facts: TypeAlias = "Mapping[Attribute, tuple[Any, ...]]"
"""All values of all attributes of an Export."""


@dataclass(frozen=True, slots=True)
class ValueIn:
    """An attribute has, or contains, one of some values."""

    attribute: Attribute
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Between:
    """A number is within an inclusive range; None where a side is open."""

    name: str
    low: float | None
    high: float | None

    @property
    def attribute(self) -> Attribute:
        """Attribute of the number."""
        return self.name, "number"


PropertyCondition: TypeAlias = ValueIn | Between
Alternative: TypeAlias = "tuple[PropertyCondition, ...]"

_NOTHING: Alternative = ()
_LISTS = (list, tuple)


@dataclass(slots=True)
class Alternatives:
    """Alternatives of a subscription.

    Attributes:
        items: the subscription is true only if all conditions of one of these hold. An empty
            one holds always; without any, the subscription is never true.
        is_truncated: whether conditions were left out because of `MAX_ALTERNATIVES`.
    """

    items: list[Alternative]
    is_truncated: bool = False


def to_alternatives(node: tree.Predicate) -> Alternatives:
    """Return the alternatives that are necessary for a predicate."""
    result = Alternatives([])
    expanded = _expand(node, True, result)
    normalized = [
        alternative_
        for alternative in expanded
        if (alternative_ := _normalize(alternative)) is not None
    ]
    if _NOTHING in normalized:
        result.items = [_NOTHING]
    else:
        result.items = list(dict.fromkeys(normalized))
    return result


def extract_facts(properties: Properties) -> Facts:
    """Return all values of all attributes, for lookup by conditions."""
    facts: dict[Attribute, tuple[Any, ...]] = {}
    for name, value in properties.items():
        kind = KINDS.get(type(value))
        if kind is not None:
            facts[name, kind] = (value,)
        elif isinstance(value, _LISTS) and value and (kind := KINDS.get(type(value[0]))):
            facts[name, "in " + kind] = tuple(dict.fromkeys(value))
    topic = properties.get(tree.TOPIC_PROPERTY)
    if isinstance(topic, str):
        for number, level in enumerate(topic.split("/")):
            facts[tree.TOPIC_PROPERTY, f"level {number}"] = (level,)
    return facts


def _expand(node: tree.Predicate, desired: bool, result: Alternatives) -> list[Alternative]:
    """Return the alternatives that are necessary for the desired value of a predicate."""
    match node:
        case tree.Not():
            return _expand(node.operand, not desired, result)
        case tree.And() | tree.Or():
            parts = [_expand(item, desired, result) for item in node.items]
            if isinstance(node, tree.And) == desired:
                return _conjunction(parts, result)
            return _disjunction(parts, result)
        case tree.Boolean():
            return [_NOTHING] if node.value == desired else []
        case _:
            return [tuple(_conditions(node, desired))]


def _disjunction(parts: list[list[Alternative]], result: Alternatives) -> list[Alternative]:
    joined = [alternative for part in parts for alternative in part]
    if _NOTHING in joined:
        return [_NOTHING]
    if len(joined) > MAX_ALTERNATIVES:
        result.is_truncated = True
        return [_NOTHING]
    return joined


def _conjunction(parts: list[list[Alternative]], result: Alternatives) -> list[Alternative]:
    """Return the products of as many parts as the limit allows, smallest parts first."""
    product = [_NOTHING]
    for part in sorted(parts, key=len):
        if len(product) * len(part) > MAX_ALTERNATIVES:
            result.is_truncated = True
            break
        product = [(*left, *right) for left in product for right in part]
    return product


def _normalize(alternative: Alternative) -> Alternative | None:
    """Return an alternative with one range per number; None if it contradicts itself."""
    ranges: dict[str, Between] = {}
    others: dict[PropertyCondition, None] = {}
    for condition in alternative:
        if isinstance(condition, ValueIn):
            others[condition] = None
            continue
        known = ranges.get(condition.name)
        ranges[condition.name] = condition if known is None else _intersect(known, condition)
    for between in ranges.values():
        if between.low is None or between.high is None or between.low < between.high:
            others[between] = None
        elif between.low == between.high:
            others[ValueIn(between.attribute, (between.low,))] = None
        else:
            return None
    return tuple(others)


def _intersect(left: Between, right: Between) -> Between:
    lows = [low for low in (left.low, right.low) if low is not None]
    highs = [high for high in (left.high, right.high) if high is not None]
    return Between(left.name, max(lows, default=None), min(highs, default=None))


def _conditions(atom: tree.Atom, desired: bool) -> Iterator[PropertyCondition]:
    match atom:
        case tree.Name():
            yield ValueIn((atom.name, "boolean"), (desired,))
        case tree.Comparison():
            yield from _comparison_conditions(atom, desired)
        case tree.Membership() if desired:
            yield from _membership_conditions(atom)
        case tree.Topic() if desired:
            yield from _topic_conditions(atom.filter)
        case _:
            pass


def _comparison_conditions(atom: tree.Comparison, desired: bool) -> Iterator[PropertyCondition]:
    operand_test = tree.operand_test_for(atom, desired=desired)
    if operand_test is None:
        return
    subject, op, value = operand_test.subject, operand_test.op, operand_test.value
    kind = value_kind(value) or ""
    if op == "!=" and isinstance(value, bool):
        op, value = "==", not value
    if op == "==":
        yield from _equality_conditions(subject, kind, (value,))
    elif isinstance(subject, tree.Name) and kind == "number" and not isinstance(value, str):
        if op in ("<", "<="):
            yield Between(subject.name, None, value)
        elif op in (">", ">="):
            yield Between(subject.name, value, None)


def _equality_conditions(
    operand: tree.Node, kind: str, values: tuple[Any, ...]
) -> Iterator[PropertyCondition]:
    if isinstance(operand, tree.Name):
        yield ValueIn((operand.name, kind), values)
    elif isinstance(operand, tree.Subscript):
        yield ValueIn((operand.name, "in " + kind), values)


def _membership_conditions(atom: tree.Membership) -> Iterator[PropertyCondition]:
    item, container = atom.item, atom.container
    if isinstance(container, tree.ListLiteral):
        values: Iterable[Any] = (element.value for element in container.items)
        kind = value_kind(container.items[0].value) or ""
        yield from _equality_conditions(item, kind, tuple(dict.fromkeys(values)))
    elif isinstance(item, tree.LITERALS):
        yield ValueIn((container.name, "in " + (value_kind(item.value) or "")), (item.value,))


def _topic_conditions(topic_filter: str) -> Iterator[PropertyCondition]:
    for number, level in enumerate(topic_filter.split("/")):
        if level not in ("+", "#"):
            yield ValueIn((tree.TOPIC_PROPERTY, f"level {number}"), (level,))
