"""Syntax tree of an expression.

Predicates have a truth value, operands a value; names, subscripts and booleans are both. ``at`` is
the offset of a node in the parsed text. Comparisons ignore it, so trees of equal meaning are equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

ComparisonOp: TypeAlias = Literal["==", "!=", "<", "<=", ">", ">="]
ArithmeticOp: TypeAlias = Literal["+", "-", "*", "/", "%", "&", "|", "^", "<<", ">>"]
StringFunction: TypeAlias = Literal["startsWith", "endsWith", "contains"]


@dataclass(frozen=True, slots=True)
class Integer:
    """A literal of type int64."""

    value: int
    at: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Float:
    """A finite literal of type float64; ``2.0`` differs from the literal ``2``."""

    value: float
    at: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Text:
    """A string literal with resolved escapes."""

    value: str
    at: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Boolean:
    """``true`` or ``false``."""

    value: bool
    at: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Name:
    """A property or a column."""

    name: str
    at: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Subscript:
    """One element of a list, counted from 0."""

    name: str
    index: int
    at: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Negate:
    """Unary minus; not for number literals, which include their sign."""

    operand: Operand
    at: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Invert:
    """``~``: bitwise complement of an integer."""

    operand: Operand
    at: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Arithmetic on two numbers. ``at`` is the position of the operator."""

    op: ArithmeticOp
    left: Operand
    right: Operand
    at: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Comparison of two values. ``at`` is the position of the operator."""

    op: ComparisonOp
    left: Operand
    right: Operand
    at: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class ListLiteral:
    """One or more literals of one kind in brackets; only after ``in``."""

    items: tuple[LiteralNode, ...]
    at: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Membership:
    """``item in container``. ``at`` is the position of ``in``."""

    item: Operand
    container: Name | ListLiteral
    at: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Has:
    """Whether a property or a column has a value; never unknown."""

    name: str
    at: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class StringTest:
    """``startsWith``, ``endsWith`` or ``contains`` of a string."""

    function: StringFunction
    subject: Name | Subscript
    text: str
    at: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic pattern over the property or column ``topic``."""

    filter: str
    at: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Not:
    """``!``; the negation of unknown is unknown."""

    operand: Predicate
    at: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class And:
    """Two or more predicates, none of them an `And`."""

    items: tuple[Predicate, ...]
    at: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Or:
    """Two or more predicates, none of them an `Or`."""

    items: tuple[Predicate, ...]
    at: int = field(default=0, compare=False, repr=False)


LiteralNode: TypeAlias = "Integer | Float | Text | Boolean"
Operand: TypeAlias = (
    "Integer | Float | Text | Boolean | Name | Subscript | Negate | Invert | Arithmetic"
)
Atom: TypeAlias = "Boolean | Name | Subscript | Comparison | Membership | Has | StringTest | Topic"
Predicate: TypeAlias = "Atom | Not | And | Or"
Node: TypeAlias = "Predicate | Operand | ListLiteral"

LITERALS = (Integer, Float, Text, Boolean)
ATOMS = (Boolean, Name, Subscript, Comparison, Membership, Has, StringTest, Topic)
PREDICATES = (*ATOMS, Not, And, Or)
OPERANDS = (*LITERALS, Name, Subscript, Negate, Invert, Arithmetic)

TOPIC_PROPERTY = "topic"


def children(node: Node) -> tuple[Node, ...]:
    """Return the direct children of a node."""
    match node:
        case And() | Or() | ListLiteral():
            return node.items
        case Not() | Negate() | Invert():
            return (node.operand,)
        case Comparison() | Arithmetic():
            return (node.left, node.right)
        case Membership():
            return (node.item, node.container)
        case StringTest():
            return (node.subject,)
        case _:
            return ()


def walk(node: Node) -> Iterator[Node]:
    """Yield a node and its descendants, in the order of the text."""
    waiting = [node]
    while waiting:
        current = waiting.pop()
        yield current
        waiting.extend(reversed(children(current)))


def atoms(node: Predicate) -> Iterator[Atom]:
    """Yield the predicates that `&&`, `||` and `!` combine, in the order of the text."""
    waiting: list[Predicate] = [node]
    while waiting:
        current = waiting.pop()
        match current:
            case And() | Or():
                waiting.extend(reversed(current.items))
            case Not():
                waiting.append(current.operand)
            case _:
                yield current


@dataclass(frozen=True, slots=True, kw_only=True)
class OperandTest:
    """Comparison of an operand with a literal."""

    subject: Operand
    op: ComparisonOp
    value: int | float | str | bool


_OPPOSITE: dict[ComparisonOp, ComparisonOp] = {
    "==": "!=",
    "!=": "==",
    "<": ">=",
    "<=": ">",
    ">": "<=",
    ">=": "<",
}
_MIRRORED: dict[ComparisonOp, ComparisonOp] = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


def operand_test_for(comparison: Comparison, *, desired: bool) -> OperandTest | None:
    """Return what a comparison with one literal requires of the other side to be `desired`.

    None if both sides are literals, or neither is.
    """
    left, right, op = comparison.left, comparison.right, comparison.op
    if isinstance(left, LITERALS):
        left, right, op = right, left, _MIRRORED.get(op, op)
    if isinstance(left, LITERALS) or not isinstance(right, LITERALS):
        return None
    return OperandTest(subject=left, op=op if desired else _OPPOSITE[op], value=right.value)


def names(node: Node) -> frozenset[str]:
    """Return all property or column names in a tree."""
    found: set[str] = set()
    for part in walk(node):
        match part:
            case Name() | Subscript() | Has():
                found.add(part.name)
            case Topic():
                found.add(TOPIC_PROPERTY)
            case _:
                pass
    return frozenset(found)
