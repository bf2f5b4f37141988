"""Build the tree during parsing: one method per rule of the grammar.

The builder refuses what the grammar accepts but is never valid: a number where a truth value is
needed, a list of mixed kinds, and the literal 0 as a divisor. It does so in subscriptions and
filters, like the original language.

Nothing here recurses. Every part carries its depth, so a tree that is too deep is refused before
it exists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

from streambroker_core.expression import tree
from streambroker_core.expression.syntax_error import SyntaxProblem
from streambroker_core.expression.tokens import MAX_NESTING, Token, nesting_problem
from streambroker_core.model.properties import INT64_MIN
from streambroker_core.model.topics import is_valid_pattern

NodeT = TypeVar("NodeT", tree.And, tree.Or)

A_VALUE = "a value"
A_PREDICATE = "a predicate"
NUMERIC = (
    tree.Integer, tree.Float, tree.Name, tree.Subscript, tree.Negate, tree.Invert, tree.Arithmetic
)  # fmt: skip


class Part(NamedTuple):
    """A node, its depth in operators, and the start of its text."""

    node: Any
    depth: int
    start: int


class _Builder:
    """Callbacks of the rules; each takes tokens and parts and returns a part."""

    def start(self, parts: list[Part]) -> tree.Predicate:
        return _predicate(parts[0])

    def disjunction(self, parts: list[Any]) -> Part:
        return _join(tree.Or, parts)

    def conjunction(self, parts: list[Any]) -> Part:
        return _join(tree.And, parts)

    def negation(self, parts: list[Any]) -> Part:
        operator, part = parts
        return _make_part(
            tree.Not(_predicate(part), operator.start_pos), [part], operator.start_pos
        )

    def comparison(self, parts: list[Any]) -> Part:
        left, op, right = parts
        node = tree.Comparison(op.value, _operand(left), _operand(right), op.start_pos)
        return _make_part(node, [left, right], left.start)

    def membership(self, parts: list[Any]) -> Part:
        item, word, container = parts
        if not isinstance(container.node, tree.Name | tree.ListLiteral):
            raise SyntaxProblem(
                container.start,
                describe(container.node),
                "the name of a list, or a list of literals in brackets",
            )
        node = tree.Membership(_operand(item), container.node, word.start_pos)
        return _make_part(node, [item, container], item.start)

    def brackets(self, parts: list[Any]) -> Part:
        bracket, *rest = parts
        elements = [part for part in rest if isinstance(part, Part)]
        kind = _kind(elements[0].node)
        for element in elements:
            if _kind(element.node) != kind:
                raise SyntaxProblem(
                    element.start, f"{_kind(element.node)}", kind, "a list has elements of one kind"
                )
        items = tuple(element.node for element in elements)
        return Part(tree.ListLiteral(items, bracket.start_pos), 0, bracket.start_pos)

    def arithmetic(self, parts: list[Any]) -> Part:
        left, op, right = parts
        operands = _number(left), _number(right)
        if op.value in ("/", "%") and _is_zero(right.node):
            raise SyntaxProblem(
                right.start, "0", "a divisor other than 0", f"`{op.value} 0` has no value"
            )
        return _make_part(
            tree.Arithmetic(op.value, *operands, op.start_pos), [left, right], left.start
        )

    def minus(self, parts: list[Any]) -> Part:
        operator, part = parts
        node = _number(part)
        match node:
            case tree.Integer(value=value) if value != INT64_MIN:
                return Part(tree.Integer(-value, operator.start_pos), 0, operator.start_pos)
            case tree.Float(value=real):
                return Part(tree.Float(-real, operator.start_pos), 0, operator.start_pos)
            case _:
                return _make_part(tree.Negate(node, operator.start_pos), [part], operator.start_pos)

    def plus(self, parts: list[Any]) -> Part:
        operator, part = parts
        if not isinstance(part.node, tree.Integer | tree.Float):
            raise SyntaxProblem(
                operator.start_pos, "`+`", "a value", "a plus sign belongs to a number"
            )
        return Part(part.node, part.depth, operator.start_pos)

    def invert(self, parts: list[Any]) -> Part:
        operator, part = parts
        return _make_part(
            tree.Invert(_number(part), operator.start_pos), [part], operator.start_pos
        )

    def integer(self, parts: list[Token]) -> Part:
        return _leaf(tree.Integer, parts[0])

    def real(self, parts: list[Token]) -> Part:
        return _leaf(tree.Float, parts[0])

    def string(self, parts: list[Token]) -> Part:
        return _leaf(tree.Text, parts[0])

    def name(self, parts: list[Token]) -> Part:
        return _leaf(tree.Name, parts[0])

    def true(self, parts: list[Token]) -> Part:
        start = parts[0].start_pos
        return Part(tree.Boolean(True, start), 0, start)

    def false(self, parts: list[Token]) -> Part:
        start = parts[0].start_pos
        return Part(tree.Boolean(False, start), 0, start)

    def subscript(self, parts: list[Any]) -> Part:
        name, _, index, _ = parts
        node = tree.Subscript(name.value, index.node.value, name.start_pos)
        return Part(node, 0, name.start_pos)

    def minus_index(self, parts: list[Any]) -> Part:
        return Part(tree.Integer(-parts[1].value), 0, parts[0].start_pos)

    def plus_index(self, parts: list[Any]) -> Part:
        return self.integer(parts[1:])

    def group(self, parts: list[Any]) -> Part:
        bracket, part, _ = parts
        return Part(part.node, part.depth, bracket.start_pos)

    def call(self, parts: list[Any]) -> Part:
        function = parts[0]
        arguments = [part for part in parts if isinstance(part, Part)]
        node = _CALLS[function.value](function, arguments)
        return Part(node, 1, function.start_pos)


def _leaf(kind: Callable[[Any, int], Any], token: Token) -> Part:
    start = token.start_pos
    return Part(kind(token.value, start), 0, start)


def _make_part(node: Any, below: Iterable[Part], start: int) -> Part:
    depth = 1
    for part in below:
        if part.depth >= depth:
            depth = part.depth + 1
    if depth > MAX_NESTING:
        raise nesting_problem(start)
    return Part(node, depth, start)


def _join(kind: type[NodeT], parts: list[Any]) -> Part:
    """Join with ``&&`` or ``||``; operands with the same operator are flattened."""
    items: list[tree.Predicate] = []
    deepest = 0
    operands: list[Part] = parts[::2]
    for part in operands:
        node = _predicate(part)
        if isinstance(node, kind):
            items.extend(node.items)
            deepest = max(deepest, part.depth - 1)
        else:
            items.append(node)
            deepest = max(deepest, part.depth)
    start = operands[0].start
    return _make_part(kind(tuple(items), parts[1].start_pos), [Part(None, deepest, start)], start)


def _predicate(part: Part) -> tree.Predicate:
    if not isinstance(part.node, tree.PREDICATES):
        raise SyntaxProblem(
            part.start,
            describe(part.node),
            A_PREDICATE,
            "compare it with something, for instance with `==`",
        )
    return part.node


def _operand(part: Part) -> tree.Operand:
    if not isinstance(part.node, tree.OPERANDS):
        chained = isinstance(part.node, tree.Comparison | tree.Membership)
        raise SyntaxProblem(
            part.start,
            describe(part.node),
            A_VALUE,
            "comparisons cannot be chained; join them with `&&`"
            if chained
            else "a truth value cannot be compared or computed with",
        )
    return part.node


def _number(part: Part) -> tree.Operand:
    node = _operand(part)
    if not isinstance(node, NUMERIC):
        raise SyntaxProblem(part.start, describe(node), "a number")
    return node


def _is_zero(node: tree.Node) -> bool:
    return isinstance(node, tree.Integer | tree.Float) and node.value == 0


def _kind(node: tree.LiteralNode) -> str:
    if isinstance(node, tree.Text):
        return "a string"
    return "a boolean" if isinstance(node, tree.Boolean) else "a number"


def describe(node: tree.Node) -> str:
    """Return a description of a node for a message."""
    match node:
        case tree.Integer() | tree.Float() | tree.Text() | tree.Boolean():
            return _kind(node)
        case tree.Name():
            return f"`{node.name}`"
        case tree.Subscript():
            return f"`{node.name}[{node.index}]`"
        case tree.Comparison() | tree.Membership():
            return "a comparison"
        case tree.Has() | tree.StringTest() | tree.Topic():
            return "a function that is true or false"
        case tree.ListLiteral():
            return "a list"
        case tree.Not() | tree.And() | tree.Or():
            return "a predicate"
        case _:
            return "a number"


def _expect_arguments(function: Token, arguments: list[Part], form: str, count: int) -> None:
    if len(arguments) != count:
        found = f"{len(arguments)} argument{'' if len(arguments) == 1 else 's'}"
        raise SyntaxProblem(function.start_pos, found, f"`{form}`")


def _has(function: Token, arguments: list[Part]) -> tree.Has:
    _expect_arguments(function, arguments, "has(name)", 1)
    (part,) = arguments
    if not isinstance(part.node, tree.Name):
        raise SyntaxProblem(part.start, describe(part.node), "a name", "write `has(name)`")
    return tree.Has(part.node.name, function.start_pos)


def _match(function: Token, arguments: list[Part]) -> tree.StringTest:
    form = f'{function.value}(name, "text")'
    _expect_arguments(function, arguments, form, 2)
    subject, text = arguments
    if not isinstance(subject.node, tree.Name | tree.Subscript):
        raise SyntaxProblem(subject.start, describe(subject.node), "a name", f"write `{form}`")
    if not isinstance(text.node, tree.Text):
        raise SyntaxProblem(text.start, describe(text.node), "a string", f"write `{form}`")
    return tree.StringTest(function.value, subject.node, text.node.value, function.start_pos)


def _topic(function: Token, arguments: list[Part]) -> tree.Topic:
    _expect_arguments(function, arguments, 'topic("a/+/b")', 1)
    (part,) = arguments
    if not isinstance(part.node, tree.Text):
        raise SyntaxProblem(part.start, describe(part.node), "a topic pattern as a string")
    if not is_valid_pattern(part.node.value):
        raise SyntaxProblem(
            part.start,
            "an invalid topic pattern",
            "a topic pattern",
            "`+` must be a whole level, `#` the whole last level, and it must not be empty",
        )
    return tree.Topic(part.node.value, function.start_pos)


BUILDER = _Builder()

_CALLS: dict[str, Callable[[Token, list[Part]], Any]] = {
    "has": _has,
    "startsWith": _match,
    "endsWith": _match,
    "contains": _match,
    "topic": _topic,
}
