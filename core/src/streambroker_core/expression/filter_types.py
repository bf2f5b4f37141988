"""Type check of filters against the columns of a schema.

In arithmetic, integer columns count as int64, but a literal compared with one must be a value the
column can hold. ``float`` is compared as ``double``. Columns of other types, such as structs, may
only be used in ``has``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from streambroker_core.errors import FilterTypeError, locate
from streambroker_core.expression import tree
from streambroker_core.expression.expression import Expression
from streambroker_core.expression.syntax_error import SyntaxProblem, suggest_word
from streambroker_core.model.properties import INT64_MAX, INT64_MIN
from streambroker_core.model.schema import Schema

TypeKind: TypeAlias = Literal["integer", "float", "string", "boolean", "list", "other"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnType:
    """Type of a column for a filter.

    Attributes:
        kind: decides what its values compare with.
        name: the type as Spark writes it.
        low: the smallest integer it can hold; `high` is the largest.
        element: the type of a list's elements.
    """

    kind: TypeKind
    name: str
    low: int = INT64_MIN
    high: int = INT64_MAX
    element: ColumnType | None = None


_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_PLAIN: dict[str, TypeKind] = {
    "float": "float",
    "double": "float",
    "string": "string",
    "boolean": "boolean",
}
_BIGINT = ColumnType(kind="integer", name="bigint")
_DOUBLE = ColumnType(kind="float", name="double")
_STRING = ColumnType(kind="string", name="string")
_BOOLEAN = ColumnType(kind="boolean", name="boolean")
_EXPECTED = {
    "string": "a string",
    "boolean": "a boolean",
    "integer": "a number",
    "float": "a number",
}
_INTEGERS_ONLY = frozenset({"%", "&", "|", "^", "<<", ">>"})


def column_type(name: str) -> ColumnType:
    """Return the column type for a Spark type in ``simpleString`` form."""
    if name in _BITS:
        limit = 2 ** (_BITS[name] - 1)
        return ColumnType(kind="integer", name=name, low=-limit, high=limit - 1)
    if name.startswith(("varchar(", "char(")):
        return ColumnType(kind="string", name=name)
    if name.startswith("array<"):
        return ColumnType(kind="list", name=name, element=column_type(name[6:-1]))
    return ColumnType(kind=_PLAIN.get(name, "other"), name=name)


def check_filter(expression: Expression, schema: Schema) -> None:
    """Check the types of a filter for a schema. A blank filter fits every schema.

    Raises:
        FilterTypeError: states the position, what was expected and what to write instead.
    """
    if expression.tree is None:
        return
    try:
        _Checker(schema).predicate(expression.tree)
    except SyntaxProblem as problem:
        raise FilterTypeError(
            position=locate(expression.source, problem.offset),
            found=problem.found,
            expected=problem.expected,
            hint=problem.hint,
        ) from None


class _Checker:
    def __init__(self, schema: Schema) -> None:
        self._columns = {column.name: column.type for column in schema}

    def predicate(self, node: tree.Predicate) -> None:
        match node:
            case tree.And() | tree.Or():
                for item in node.items:
                    self.predicate(item)
            case tree.Not():
                self.predicate(node.operand)
            case tree.Comparison():
                self._comparison(node)
            case tree.Membership():
                self._membership(node)
            case tree.Has():
                self._column(node.name, node.at)
            case tree.StringTest():
                self._string(node.function, self._operand(node.subject), node.subject.at)
            case tree.Topic():
                self._topic(node)
            case _:
                self._boolean(node)

    def _topic(self, node: tree.Topic) -> None:
        name = tree.TOPIC_PROPERTY
        if name not in self._columns:
            hint = f"in a filter `topic(…)` reads the column `{name}`"
            raise SyntaxProblem(node.at, f"no column `{name}`", "a column of the schema", hint)
        self._string("topic", self._scalar(name, node.at), node.at)

    def _boolean(self, node: tree.Operand) -> None:
        actual = self._operand(node)
        if actual.kind != "boolean":
            raise SyntaxProblem(
                node.at,
                _describe(node, actual),
                "a predicate",
                "compare it with something, for instance with `==`",
            )

    @staticmethod
    def _string(function: str, actual: ColumnType, at: int) -> None:
        if actual.kind != "string":
            raise SyntaxProblem(
                at, f"type {actual.name}", "a string column", f"`{function}` reads strings"
            )

    def _comparison(self, node: tree.Comparison) -> None:
        left, right = self._operand(node.left), self._operand(node.right)
        _check_pair(node.left, left, node.right, right)
        if left.kind == "boolean" and node.op not in ("==", "!="):
            raise SyntaxProblem(node.at, f"`{node.op}`", "`==` or `!=`", "booleans have no order")

    def _membership(self, node: tree.Membership) -> None:
        item = self._operand(node.item)
        container = node.container
        if isinstance(container, tree.ListLiteral):
            for element in container.items:
                _check_pair(node.item, item, element, self._operand(element))
            return
        column = self._column(container.name, container.at)
        if column.element is None:
            raise SyntaxProblem(
                container.at,
                _describe(container, column),
                "a list",
                f"write `==` to compare with `{container.name}` itself",
            )
        if column.element.kind in ("list", "other"):
            raise SyntaxProblem(
                container.at,
                _describe(container, column),
                "a list of numbers, strings or booleans",
            )
        _check_pair(node.item, item, container, column.element)

    def _column(self, name: str, at: int) -> ColumnType:
        if name not in self._columns:
            known = ", ".join(f"`{column}`" for column in list(self._columns)[:8])
            raise SyntaxProblem(
                at,
                f"unknown column `{name}`",
                "a column of the schema",
                suggest_word(name, self._columns) or (f"there are {known}" if known else None),
            )
        return column_type(self._columns[name])

    def _scalar(self, name: str, at: int) -> ColumnType:
        actual = self._column(name, at)
        if actual.kind == "list":
            raise SyntaxProblem(
                at,
                f"the list `{name}`",
                "one value",
                f"write `{name}[0]` for an element or `value in {name}`",
            )
        if actual.kind == "other":
            raise SyntaxProblem(
                at,
                f"`{name}` of type {actual.name}",
                "a number, a string or a boolean",
                f"only `has({name})` works with this type",
            )
        return actual

    def _element(self, node: tree.Subscript) -> ColumnType:
        actual = self._column(node.name, node.at)
        if actual.element is None:
            raise SyntaxProblem(
                node.at,
                f"a subscript on `{node.name}` of type {actual.name}",
                "a list",
                f"write `{node.name}` alone" if actual.kind != "other" else None,
            )
        if node.index < 0:
            raise SyntaxProblem(
                node.at, f"subscript {node.index}", "0 or more", "elements are counted from 0"
            )
        if actual.element.kind in ("list", "other"):
            raise SyntaxProblem(
                node.at,
                f"an element of type {actual.element.name}",
                "a number, a string or a boolean",
                f"only `has({node.name})` works with this type",
            )
        return actual.element

    def _operand(self, node: tree.Operand) -> ColumnType:
        match node:
            case tree.Integer():
                return _BIGINT
            case tree.Float():
                return _DOUBLE
            case tree.Text():
                return _STRING
            case tree.Boolean():
                return _BOOLEAN
            case tree.Name():
                return self._scalar(node.name, node.at)
            case tree.Subscript():
                return self._element(node)
            case tree.Negate():
                return self._number(node.operand, "-")
            case tree.Invert():
                return self._number(node.operand, "~", integer=True)
            case tree.Arithmetic():
                integer = node.op in _INTEGERS_ONLY
                left = self._number(node.left, node.op, integer=integer)
                right = self._number(node.right, node.op, integer=integer)
                return _BIGINT if left.kind == right.kind == "integer" else _DOUBLE

    def _number(self, node: tree.Operand, op: str, *, integer: bool = False) -> ColumnType:
        actual = self._operand(node)
        if actual.kind == "integer":
            return _BIGINT
        if actual.kind == "float" and not integer:
            return _DOUBLE
        expected = "an integer" if integer else "a number"
        raise SyntaxProblem(
            node.at, _describe(node, actual), expected, f"`{op}` is for {expected[3:]}s"
        )


def _check_pair(
    left: tree.Node, left_type: ColumnType, right: tree.Node, right_type: ColumnType
) -> None:
    """Refuse two values that are never comparable; report a literal rather than a column."""
    if _EXPECTED[left_type.kind] != _EXPECTED[right_type.kind]:
        wrong, found, wanted = right, right_type, left_type
        if isinstance(left, tree.LITERALS):
            wrong, found, wanted = left, left_type, right_type
        raise SyntaxProblem(
            wrong.at,
            _describe(wrong, found),
            _EXPECTED[wanted.kind],
            "values of different types are never compared",
        )
    _check_literal(left, right, right_type)
    _check_literal(right, left, left_type)


def _check_literal(literal: tree.Node, other: tree.Node, expected: ColumnType) -> None:
    if expected.kind != "integer" or isinstance(other, tree.LITERALS):
        return
    if isinstance(literal, tree.Float) and not literal.value.is_integer():
        raise SyntaxProblem(
            literal.at,
            f"{literal.value}",
            "an integer",
            f"the other side is {expected.name}; compare with a whole number",
        )
    if isinstance(literal, tree.Integer | tree.Float):
        value = int(literal.value)
        if not expected.low <= value <= expected.high:
            raise SyntaxProblem(
                literal.at,
                f"{value}",
                f"a value of {expected.name}, {expected.low} to {expected.high}",
            )


def _describe(node: tree.Node, actual: ColumnType) -> str:
    match node:
        case tree.Name():
            return f"`{node.name}` of type {actual.name}"
        case tree.Subscript():
            return f"`{node.name}[{node.index}]` of type {actual.name}"
        case tree.Integer() | tree.Float():
            return f"the number {node.value}"
        case tree.Text() | tree.Boolean():
            return f"a literal of type {actual.name}"
        case _:
            return f"a value of type {actual.name}"
