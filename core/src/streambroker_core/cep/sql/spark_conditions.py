"""Conditions in Spark's terms, translated to the expression language where both mean the same.

Both have three truth values. They differ in these points:

- Spark takes NaN as equal to itself and as the greatest number: comparisons get a guard.
- Integer arithmetic and casts may raise or wrap in Spark: they are refused.
- Spark rounds an integer that it compares with a double: such comparisons are refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias

from lark import Lark
from lark.exceptions import UnexpectedInput

from streambroker_core.cep.pattern.conditions import TextCondition, parse_text
from streambroker_core.cep.pattern.errors import ConditionError, PatternUnsupportedError
from streambroker_core.cep.sql.expressions import unquote_name
from streambroker_core.cep.sql.grammar import GRAMMAR
from streambroker_core.errors import locate
from streambroker_core.expression.strings import quote

_PARSER = Lark(
    GRAMMAR, parser="lalr", start="expression", maybe_placeholders=True, propagate_positions=True
)
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PATH = re.compile(rf"{_WORD.pattern}(\.{_WORD.pattern})*")
_EXACT = 2**53
"""Integers below it are exact as a double."""
_COMPARISONS = ("==", "<", "<=", ">", ">=")
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "=="}
_TEXT_TESTS = {"startswith": "startsWith", "endswith": "endsWith", "contains": "contains"}
_BITS = ("&", "|", "^")
_ARITHMETIC = ("%", "~", "+", "-", "*", "/", "negative", *_BITS)
_JOINED = {"and": " && ", "or": " || "}
_REASONS = {
    **dict.fromkeys(("+", "-", "*", "negative", "abs"), (
        "integers that overflow raise or wrap in Spark, and are unknown here; arithmetic with a"
        " double literal, such as lit(2.0) or 2.0e0, is translated"
    )),
    "/": "Spark divides integers as doubles, and may raise for a divisor of 0",
    "div": "Spark may raise for a divisor of 0",
    "%": "only a positive whole number can stand behind `%`, as Spark may raise for another",
    "cast": "a cast that fails raises in ANSI mode and is null without it",
}  # fmt: skip
_REMEDY = "write it as a text in the language of conditions, or as a Python function"


@dataclass(frozen=True, slots=True)
class Name:
    """A column, or a field of a struct as a path with dots."""

    path: str

    @classmethod
    def of(cls, parts: Iterable[str]) -> Name:
        """Return the name of these parts; parts that are no words stay in backticks."""
        return cls(".".join(each if _WORD.fullmatch(each) else f"`{each}`" for each in parts))


@dataclass(frozen=True, slots=True)
class Literal:
    """A value: None, bool, int, float, Decimal or str; others cannot be translated."""

    value: Any


@dataclass(frozen=True, slots=True)
class Call:
    """A function or operator, by the name that Spark uses."""

    function: str
    arguments: tuple[SparkNode, ...]


SparkNode: TypeAlias = "Name | Literal | Call"


def sql(text: str) -> TextCondition:
    """Return a condition that is written in Spark's SQL, for ``Pattern.where`` and the like.

    It names columns of the event, as in ``type = 'A' AND v > 3``. It has AND, OR, NOT, comparisons,
    BETWEEN, IN, LIKE with ``%`` at the ends, IS NULL, and ``%``.

    Raises:
        ConditionError: the text cannot be read.
        PatternError: Spark means something that has no equal here.
    """
    return translate(parse_sql(text), text)


def parse_sql(text: str) -> SparkNode:
    """Parse Spark's SQL; raise ConditionError if it is not in the subset."""
    try:
        return _from_tree(_PARSER.parse(text))
    except UnexpectedInput as error:
        at = error.pos_in_stream if isinstance(error.pos_in_stream, int) else 0
        at = len(text) if at < 0 else at
        raise ConditionError(
            position=locate(text, at),
            found=f"`{text[at : at + 12]}`" if at < len(text) else "the end of the text",
            expected="a condition in SQL",
            hint="text is in single quotes; casts and functions of Spark are not translated",
        ) from None


def translate(node: SparkNode, source: str) -> TextCondition:
    """Return a condition with the same meaning; `source` is for messages.

    Raises:
        PatternUnsupportedError: there is none.
    """
    translation = _Translation(source)
    condition = parse_text(translation.predicate(node))
    return TextCondition(condition.expression, condition.terms, tuple(translation.alike))


def _from_tree(tree: Any) -> SparkNode:  # noqa: C901 - one branch for each kind
    children = tree.children
    match tree.data:
        case "column" if children[0].lower() == "null":
            return Literal(None)
        case "column" | "qualified":
            return Name.of(map(unquote_name, children))
        case "number":
            return Literal(_number(str(children[0])))
        case "negative" if children[0].data == "number":
            return Literal(-_number(str(children[0].children[0])))
        case "text":
            return _text(children[0])
        case "true" | "false":
            return Literal(tree.data == "true")
        case "nested":
            return _from_tree(children[0])
        case "compare":
            left, op, right = children
            return Call(str(op), (_from_tree(left), _from_tree(right)))
        case "range":
            tested, low, high = map(_from_tree, children)
            return Call("and", (Call(">=", (tested, low)), Call("<=", (tested, high))))
        case "like":
            return Call("like", (_from_tree(children[0]), _text(children[1])))
        case "not_within" | "not_range" | "not_like":
            return Call("not", (_from_tree(type(tree)(tree.data[4:], children)),))
        case "call":
            return Call(str(children[1]), ())  # after FINAL or RUNNING
        case data:
            return Call(_FUNCTIONS[data], tuple(map(_from_tree, children)))


def _text(token: str) -> Literal:
    return Literal(token[1:-1].replace("''", "'"))


def _number(text: str) -> int | float | Decimal:
    if text.isdigit():
        return int(text)
    return float(text) if "e" in text.lower() else Decimal(text)


_FUNCTIONS = {
    "either": "or", "both": "and", "not_": "not", "equal": "==", "within": "in", "add": "+",
    "subtract": "-", "multiply": "*", "divide": "/", "modulo": "%", "negative": "negative",
    "is_null": "isnull", "is_value": "isnotnull",
}  # fmt: skip


class _Translation:
    """Translates one condition; `alike` collects columns that need types of one kind."""

    def __init__(self, source: str) -> None:
        self._source = source
        self.alike: list[tuple[str, str]] = []

    def predicate(self, node: SparkNode) -> str:  # noqa: C901 - one branch for each function
        if isinstance(node, Name):
            return self._name(node)
        if isinstance(node, Literal):
            raise self._refuse(f"{node.value!r} is not a condition")
        function, arguments = _function_name(node), node.arguments
        match function, arguments:
            case "and" | "or", _:
                return f"({_JOINED[function].join(map(self.predicate, arguments))})"
            case "not", (operand,):
                return f"!({self.predicate(operand)})"
            case "<>", _:
                return self.predicate(Call("not", (Call("==", arguments),)))
            case "isnull" | "isnotnull", (Name() as name,):
                return f"{'!' if function == 'isnull' else ''}has({self._name(name)})"
            case "<=>", (Name() as name, Literal(value)):
                has = f"has({self._name(name)})"
                if value is None:
                    return f"!{has}"
                return f"({has} && {self._comparison('==', *arguments)})"
            case "in", (tested, *items):
                return f"({' || '.join(self._comparison('==', tested, one) for one in items)})"
            case "array_contains", (Name() as name, Literal() as item):
                return f"{self._literal(item)} in {self._name(name)}"
            case (
                ("startswith" | "endswith" | "contains"),
                (Name() as name, Literal(str() as text)),
            ):
                return f"{_TEXT_TESTS[function]}({self._name(name)}, {_quote(text)})"
            case "like", (Name() as name, Literal(str() as form), *_):
                return self._like(name, form)
            case _, (left, right) if function in _COMPARISONS:
                return self._comparison(function, left, right)
            case _:
                raise self._refuse_call(function)

    def _comparison(self, op: str, left: SparkNode, right: SparkNode) -> str:
        if isinstance(left, Literal) and not isinstance(right, Literal):
            op, left, right = _MIRRORED[op], right, left
        if isinstance(left, Name) and isinstance(right, Name):
            return self._column_comparison(op, self._name(left), self._name(right))
        for side in (left, right):
            if isinstance(side, Call) and _function_name(side) not in _ARITHMETIC:
                raise self._refuse_call(_function_name(side))
        if isinstance(left, Literal) or not isinstance(right, Literal):
            raise self._refuse("only a column or arithmetic is compared with a value")
        value, literal = self._operand(left), self._literal(right)
        text = f"{value} {op} {literal}"
        may_be_nan = op in (">", ">=") and type(right.value) in (int, float, Decimal)
        if may_be_nan and not _is_integer(left):
            return f"({text} || {value} != {value})"
        return text

    def _column_comparison(self, op: str, left: str, right: str) -> str:
        """Compare two columns; NaN equals itself and is greater than all others."""
        self.alike.append((left, right))
        if op in ("<", "<="):
            op, left, right = _MIRRORED[op], right, left
        nan = f"{left} != {left}"
        other = {"==": f" && {right} != {right}", ">": f" && {right} == {right}", ">=": ""}[op]
        known = f" && has({right})" if op == ">=" else ""
        return f"({left} {op} {right} || {nan}{other}{known})"

    def _operand(self, node: SparkNode) -> str:
        match node:
            case Name():
                return self._name(node)
            case Literal():
                return self._literal(node)
        function, arguments = _function_name(node), node.arguments
        match function, arguments:
            case "%", (left, Literal() as divisor) if _is_positive(divisor.value):
                return f"({self._operand(left)} % {divisor.value})"
            case "~", (operand,):
                return f"~({self._operand(operand)})"
            case _, (left, right) if function in _BITS:
                return f"({self._operand(left)} {function} {self._operand(right)})"
            case "+" | "-" | "*", (left, right) if _is_double(node):
                return f"({self._operand(left)} {function} {self._operand(right)})"
            case "/", (left, Literal(float(divisor))) if divisor:
                return f"({self._operand(left)} / {self._literal(Literal(divisor))})"
            case _:
                raise self._refuse_call(function)

    def _literal(self, node: Literal) -> str:
        value = node.value
        match value:
            case bool():
                return str(value).lower()
            case str():
                return _quote(value)
            case None:
                raise self._refuse("a comparison with NULL is never true; use IS NULL")
            case int() if int(float(value)) == value or abs(value) < _EXACT:
                return str(value)
            case int():
                raise self._refuse(f"Spark rounds {value} if it compares it with a double")
            case float() | Decimal():
                if math.isfinite(value) and abs(float(value)) < _EXACT:
                    return repr(float(value))
                raise self._refuse(f"Spark rounds integers that it compares with {value}")
            case _:
                raise self._refuse(f"a {type(value).__name__} is not compared here")

    def _like(self, name: Name, form: str) -> str:
        inner = form.strip("%")
        if "%" in inner or "_" in inner or "\\" in form:
            raise self._refuse(f"LIKE '{form}' may have `%` at its ends alone, and no `_` or `\\`")
        ends = form.startswith("%"), form.endswith("%") and form != ""
        if ends == (False, False):
            return f"{self._name(name)} == {_quote(form)}"
        function = {(True, False): "endsWith", (False, True): "startsWith"}.get(ends, "contains")
        return f"{function}({self._name(name)}, {_quote(inner)})"

    def _name(self, node: Name) -> str:
        if not _PATH.fullmatch(node.path) or node.path in ("true", "false", "in"):
            raise self._refuse(f"the column `{node.path}` cannot be named in a condition")
        return node.path

    def _refuse_call(self, function: str) -> PatternUnsupportedError:
        return self._refuse(_REASONS.get(function, f"`{function}` has no equal here"))

    def _refuse(self, reason: str) -> PatternUnsupportedError:
        return PatternUnsupportedError(
            f"the condition `{self._source}` of Spark is not translated: {reason}", remedy=_REMEDY
        )


def _function_name(node: Call) -> str:
    name = node.function.lower()
    return {"=": "==", "!": "not", "!=": "<>"}.get(name, name)


def _is_positive(value: Any) -> bool:
    return type(value) is int and value > 0


def _is_double(node: SparkNode) -> bool:
    """Return whether an operand is a double for certain."""
    if isinstance(node, Call) and _function_name(node) in ("+", "-", "*", "/"):
        return any(map(_is_double, node.arguments))
    return isinstance(node, Literal) and isinstance(node.value, float)


def _is_integer(node: SparkNode) -> bool:
    """Return whether an operand is an integer for certain, and so never NaN."""
    return isinstance(node, Call) and _function_name(node) in ("%", "~", *_BITS)


def _quote(text: str) -> str:
    return quote(text, short=False)
