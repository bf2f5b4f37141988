"""Translation of SQL expressions to the expression language.

In the definition of variable ``B``, ``x`` and ``B.x`` are columns of the tested row, and ``A.x`` is
that of the last row of ``A``. Aggregates over ``B`` itself include the tested row, as in SQL.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from lark import Token, Tree

from streambroker_core.cep.pattern.conditions import MAX_OFFSET
from streambroker_core.cep.pattern.errors import RowPatternError
from streambroker_core.errors import locate
from streambroker_core.expression.strings import quote

_OPERATORS = {
    "add": " + ", "subtract": " - ", "multiply": " * ", "divide": " / ", "modulo": " % ",
    "equal": " == ",
}  # fmt: skip
_JOINED = {"either": " || ", "both": " && "}


@dataclass(frozen=True, slots=True)
class Scope:
    """Context of an expression.

    Attributes:
        text: the whole statement.
        variable: variable that is being defined.
        first: it may be the first variable of a match.
    """

    text: str
    variable: str
    variables: tuple[str, ...]
    first: bool


def unquote_name(token: Any) -> str:
    """Return a name without backticks."""
    return str(token).strip("`")


def render(node: Any, scope: Scope) -> str:
    """Translate an SQL expression to the expression language.

    Raises:
        RowPatternError: it has no equivalent.
    """
    children = node.children
    match node.data:
        case data if data in _JOINED:
            return f"({_JOINED[data].join(render(child, scope) for child in children)})"
        case "not_":
            return f"!({render(children[0], scope)})"
        case "compare":
            left, op, right = children
            op = "!=" if op == "<>" else op
            return f"{render(left, scope)} {op} {render(right, scope)}"
        case "nested" | "negative":
            sign = "-" if node.data == "negative" else ""
            return f"{sign}({render(children[0], scope)})"
        case "number" | "text" | "true" | "false":
            return _render_literal(node)
        case "column":
            return _render_column(children[0])
        case "qualified":
            return _render_qualified(children, scope)
        case "call":
            return _render_call(children, scope)
        case data if data in _OPERATORS:
            return _OPERATORS[data].join(render(child, scope) for child in children)
        case _:
            return _render_predicate(node, scope)


def _render_predicate(node: Any, scope: Scope) -> str:
    tested, *rest = node.children
    match node.data:
        case "not_within" | "not_range" | "not_like":
            return f"!({_render_predicate(Tree(node.data[4:], node.children), scope)})"
        case "is_null" | "is_value":
            test = f"has({_render_operand(tested, scope)})"
            return test if node.data == "is_value" else f"!{test}"
        case "within":
            if all(each.data in ("number", "text", "true", "false") for each in rest):
                items = ", ".join(_render_literal(each) for each in rest)
                return f"{render(tested, scope)} in [{items}]"
            left = render(tested, scope)
            return f"({' || '.join(f'{left} == {render(each, scope)}' for each in rest)})"
        case "range":
            value, low, high = (render(each, scope) for each in node.children)
            return f"({value} >= {low} && {value} <= {high})"
        case _:
            return _render_like(tested, rest[0], scope)


def _render_like(tested: Any, form: Token, scope: Scope) -> str:
    text = form.value[1:-1].replace("''", "'")
    inner = text.strip("%")
    if "%" in inner or "_" in inner:
        raise RowPatternError(
            f"LIKE {form} is not supported; `%` is allowed only at the ends, `_` not at all",
            position=locate(scope.text, form.start_pos or 0),
        )
    function = {(True, True): "contains", (True, False): "endsWith", (False, True): "startsWith"}
    ends = (text.startswith("%"), text.endswith("%") and text != "")
    if ends == (False, False):
        return f"{render(tested, scope)} == {_quote(text)}"
    return f"{function[ends]}({_render_operand(tested, scope)}, {_quote(inner)})"


def _render_operand(node: Any, scope: Scope) -> str:
    if node.data not in ("column", "qualified", "call"):
        raise RowPatternError("IS NULL and LIKE apply to columns, not to computed values")
    return render(node, scope)


def _render_literal(node: Any) -> str:
    if node.data == "text":
        return _quote(node.children[0].value[1:-1].replace("''", "'"))
    return str(node.children[0]) if node.data == "number" else str(node.data)


def _quote(text: str) -> str:
    return quote(text, short=False)


def _render_column(token: Any) -> str:
    name = unquote_name(token)
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise RowPatternError(f"column `{name}` cannot be named in a condition")
    return name


def _render_qualified(children: list[Any], scope: Scope) -> str:
    variable, column = unquote_name(children[0]), _render_column(children[1])
    _check_variable(children[0], scope)
    return column if variable == scope.variable else f"last({variable}.{column})"


def _check_variable(token: Token, scope: Scope) -> None:
    if unquote_name(token) not in scope.variables:
        raise RowPatternError(
            f"`{token}` is not a variable of the pattern; there are {', '.join(scope.variables)}",
            position=locate(scope.text, token.start_pos or 0),
        )


def _render_call(children: list[Any], scope: Scope) -> str:
    finality, token, argument, offset = children
    function, at = token.lower(), locate(scope.text, token.start_pos or 0)
    number = None if offset is None else int(offset)
    if finality is not None and finality.lower() == "final":
        raise RowPatternError("FINAL is for MEASURES: DEFINE sees the rows so far", position=at)
    if function in ("classifier", "match_number"):
        raise RowPatternError(
            f"{token}() is for MEASURES; the row that DEFINE tests is one of {scope.variable}",
            position=at,
        )
    if function == "prev":
        return _render_previous(argument, number, scope, at)
    if argument is None or argument.data != "qualified":
        raise RowPatternError(
            f"{token} needs a column of a variable, as in {token}(A.price)", position=at
        )
    variable, column = unquote_name(argument.children[0]), _render_column(argument.children[1])
    _check_variable(argument.children[0], scope)
    if number is not None and function not in ("first", "last"):
        raise RowPatternError(f"{token} takes no offset; FIRST and LAST do", position=at)
    if (number or 0) > MAX_OFFSET:
        raise RowPatternError(f"an offset is at most {MAX_OFFSET}, not {number}", position=at)
    if variable == scope.variable:
        return _render_own_aggregate(function, variable, column, number or 0)
    if function == "count":
        return f"count({variable})"
    return f"{function}({variable}.{column}{f', {number}' if number else ''})"


def _render_own_aggregate(function: str, variable: str, column: str, number: int) -> str:
    """Translate an aggregate over the defined variable, whose last row is the tested row."""
    match function:
        case "last" if number == 0:
            return column
        case "last":
            offset = f", {number - 1}" if number > 1 else ""
            return f"last({variable}.{column}{offset})"
        case "first":
            return f"first({variable}.{column}{f', {number}' if number else ''}, tested)"
        case "sum":
            return f"(sum({variable}.{column}) + {column})"
        case "count":
            return f"(count({variable}) + 1)"
        case "avg":
            return f"((sum({variable}.{column}) + {column}) / (count({variable}) + 1.0))"
        case _:
            return f"{function}({variable}.{column}, tested)"


def _render_previous(argument: Any, number: int | None, scope: Scope, at: object) -> str:
    if scope.first:
        raise RowPatternError(
            f"PREV is not supported in {scope.variable}, which may be the first variable: the row"
            " before is not in the match",
            position=at,
        )
    if number not in (None, 1) or argument is None or argument.data == "rows_":
        raise RowPatternError("PREV goes back one row: write PREV(x)", position=at)
    if argument.data == "qualified" and unquote_name(argument.children[0]) != scope.variable:
        raise RowPatternError(
            f"PREV of another variable than {scope.variable} is not supported", position=at
        )
    return f"previous({_render_column(argument.children[-1])})"
