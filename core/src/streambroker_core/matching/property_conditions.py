"""What has to hold of an Export's properties for a subscription to be true of them.

A subscription becomes alternatives, each a set of *conditions* that can be looked
up: this property is one of these values, that one lies between two numbers. They
are necessary, not sufficient: what cannot be looked up (``!=``, ``has``, texts
compared, arithmetic) is left out, and the subscription itself decides in the end.

Negation is pushed down to the predicates first. That is exact in three-valued
logic: a predicate and its opposite are unknown for the same properties.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from streambroker_core.expression import tree
from streambroker_core.expression.evaluate import KINDS, kind_of_value
from streambroker_core.model import Properties

MAX_ALTERNATIVES = 64
"""Alternatives of one subscription; what would make more is left out of them."""

Attribute: TypeAlias = "tuple[str, str]"
"""A property, and how it is looked at: ``number``, ``text`` or ``boolean`` for its
value, ``in number`` … for its elements, ``level 0`` … for the levels of a topic.
That keeps ``true``, ``1`` and ``"1"`` apart, while ``1`` and ``1.0`` are one value."""


Facts: TypeAlias = "Mapping[Attribute, tuple[Any, ...]]"
"""All values of all attributes of an Export."""


@dataclass(frozen=True, slots=True)
class OneOf:
    """An attribute has, or holds, one of some values."""

    attribute: Attribute
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Between:
    """A number lies between two others, they included; None where a side is open."""

    name: str
    low: float | None
    high: float | None

    @property
    def attribute(self) -> Attribute:
        """The attribute that the number is a value of."""
        return self.name, "number"


Condition: TypeAlias = OneOf | Between
Alternative: TypeAlias = "tuple[Condition, ...]"

_NOTHING: Alternative = ()
_LISTS = (list, tuple)


@dataclass(slots=True)
class Alternatives:
    """The alternatives of a subscription.

    Attributes:
        each: true of some properties only if all conditions of one of these hold.
            An empty one says nothing; none at all means that it is never true.
        cut: whether conditions were left out because of `MAX_ALTERNATIVES`.
    """

    each: list[Alternative]
    cut: bool = False


def alternatives_of(node: tree.Predicate) -> Alternatives:
    """Return what has to hold for a predicate to be true."""
    result = Alternatives([])
    found = _expand(node, True, result)
    tidied = [tidy for alternative in found if (tidy := _tidied(alternative)) is not None]
    if _NOTHING in tidied:
        result.each = [_NOTHING]
    else:
        result.each = list(dict.fromkeys(tidied))
    return result


def facts_of(properties: Properties) -> Facts:
    """Return all values of all attributes, as conditions ask for them."""
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


def _expand(node: tree.Predicate, wanted: bool, result: Alternatives) -> list[Alternative]:
    """Return the alternatives under which a predicate is true, or false."""
    match node:
        case tree.Not():
            return _expand(node.operand, not wanted, result)
        case tree.And() | tree.Or():
            parts = [_expand(item, wanted, result) for item in node.items]
            if isinstance(node, tree.And) == wanted:
                return _all_of(parts, result)
            return _one_of(parts, result)
        case tree.Boolean():
            return [_NOTHING] if node.value == wanted else []
        case _:
            return [tuple(_conditions(node, wanted))]


def _one_of(parts: list[list[Alternative]], result: Alternatives) -> list[Alternative]:
    joined = [alternative for part in parts for alternative in part]
    if _NOTHING in joined:
        return [_NOTHING]
    if len(joined) > MAX_ALTERNATIVES:
        result.cut = True
        return [_NOTHING]
    return joined


def _all_of(parts: list[list[Alternative]], result: Alternatives) -> list[Alternative]:
    """Return the products, of as many parts as the limit allows, the simplest first."""
    product = [_NOTHING]
    for part in sorted(parts, key=len):
        if len(product) * len(part) > MAX_ALTERNATIVES:
            result.cut = True
            break
        product = [(*left, *right) for left in product for right in part]
    return product


def _tidied(alternative: Alternative) -> Alternative | None:
    """Return an alternative with one range per number; None if it contradicts itself."""
    ranges: dict[str, Between] = {}
    others: dict[Condition, None] = {}
    for condition in alternative:
        if isinstance(condition, OneOf):
            others[condition] = None
            continue
        known = ranges.get(condition.name)
        ranges[condition.name] = condition if known is None else _overlap(known, condition)
    for between in ranges.values():
        if between.low is None or between.high is None or between.low < between.high:
            others[between] = None
        elif between.low == between.high:
            others[OneOf(between.attribute, (between.low,))] = None
        else:
            return None
    return tuple(others)


def _overlap(one: Between, other: Between) -> Between:
    lows = [low for low in (one.low, other.low) if low is not None]
    highs = [high for high in (one.high, other.high) if high is not None]
    return Between(one.name, max(lows, default=None), min(highs, default=None))


def _conditions(atom: tree.Atom, wanted: bool) -> Iterator[Condition]:
    match atom:
        case tree.Name():
            yield OneOf((atom.name, "boolean"), (wanted,))
        case tree.Comparison():
            yield from _compared(atom, wanted)
        case tree.Membership() if wanted:
            yield from _held(atom)
        case tree.Topic() if wanted:
            yield from _levels(atom.filter)
        case _:
            pass


def _compared(atom: tree.Comparison, wanted: bool) -> Iterator[Condition]:
    asked = tree.asked(atom, wanted=wanted)
    if asked is None:
        return
    subject, op, value = asked.subject, asked.op, asked.value
    kind = kind_of_value(value) or ""
    if op == "!=" and isinstance(value, bool):
        op, value = "==", not value
    if op == "==":
        yield from _equal(subject, kind, (value,))
    elif isinstance(subject, tree.Name) and kind == "number" and not isinstance(value, str):
        if op in ("<", "<="):
            yield Between(subject.name, None, value)
        elif op in (">", ">="):
            yield Between(subject.name, value, None)


def _equal(operand: tree.Node, kind: str, values: tuple[Any, ...]) -> Iterator[Condition]:
    if isinstance(operand, tree.Name):
        yield OneOf((operand.name, kind), values)
    elif isinstance(operand, tree.Subscript):
        yield OneOf((operand.name, "in " + kind), values)


def _held(atom: tree.Membership) -> Iterator[Condition]:
    item, container = atom.item, atom.container
    if isinstance(container, tree.ListLiteral):
        values: Iterable[Any] = (element.value for element in container.items)
        kind = kind_of_value(container.items[0].value) or ""
        yield from _equal(item, kind, tuple(dict.fromkeys(values)))
    elif isinstance(item, tree.LITERALS):
        yield OneOf((container.name, "in " + (kind_of_value(item.value) or "")), (item.value,))


def _levels(topic_filter: str) -> Iterator[Condition]:
    for number, level in enumerate(topic_filter.split("/")):
        if level not in ("+", "#"):
            yield OneOf((tree.TOPIC_PROPERTY, f"level {number}"), (level,))
