"""A filter as Spark SQL, with guards where Spark means something else.

Spark takes NaN as equal to itself and as the largest number, raises on overflow
and on division by zero, and compares an int64 with a double after rounding it.
The first two are guarded; the last has no exact counterpart, so filters that
depend on it are refused with `NotTheSame`.
"""

from __future__ import annotations

from streambroker_core.expression import tree
from streambroker_core.expression.filter_types import ColumnType, column_type
from streambroker_core.model.schema import Schema

EXACT = 2**53
INT_MAX = 2**31 - 1


class NotTheSame(Exception):  # noqa: N818 - a limit of this translation, not a fault
    """Spark has no text that means this filter."""


class Translation:
    """Filters over one schema as texts for a WHERE clause."""

    def __init__(self, schema: Schema) -> None:
        self._types = {column.name: column_type(column.type) for column in schema}

    def predicate(self, node: tree.Predicate) -> str:
        """Return a boolean expression; null is unknown."""
        match node:
            case tree.And():
                return f"({' AND '.join(self.predicate(item) for item in node.items)})"
            case tree.Or():
                return f"({' OR '.join(self.predicate(item) for item in node.items)})"
            case tree.Not():
                return f"(NOT {self.predicate(node.operand)})"
            case tree.Comparison():
                return self._comparison(node.op, node.left, node.right)
            case tree.Membership():
                return self._membership(node)
            case tree.Has():
                return f"({node.name} IS NOT NULL)"
            case tree.StringTest():
                function = node.function.lower()
                return f"{function}({self.operand(node.subject)[0]}, {_text(node.text)})"
            case tree.Topic():
                return f"({tree.TOPIC_PROPERTY} RLIKE {_text(_topic_pattern(node.filter))})"
            case _:
                return self.operand(node)[0]

    def operand(self, node: tree.Operand) -> tuple[str, str]:
        """Return a value as BIGINT, DOUBLE, STRING or BOOLEAN, and its kind as in `ColumnType`."""
        match node:
            case tree.Integer():
                return f"CAST('{node.value}' AS BIGINT)", "integer"
            case tree.Float():
                return f"CAST('{node.value!r}' AS DOUBLE)", "float"
            case tree.Text():
                return _text(node.value), "string"
            case tree.Boolean():
                return str(node.value).upper(), "boolean"
            case tree.Name():
                return _widened(node.name, self._types[node.name])
            case tree.Subscript():
                index = str(node.index) if node.index <= INT_MAX else "CAST(NULL AS INT)"
                return _widened(f"get({node.name}, {index})", _element_type(self._types[node.name]))
            case tree.Negate():
                inner, kind = self.operand(node.operand)
                return f"try_subtract(0L, {inner})" if kind == "integer" else f"(-({inner}))", kind
            case tree.Invert():
                return f"(~({self.operand(node.operand)[0]}))", "integer"
            case tree.Arithmetic():
                return self._arithmetic(node)

    def _comparison(self, op: str, left: tree.Operand, right: tree.Operand) -> str:
        sides = {left: self.operand(left), right: self.operand(right)}
        real = any(kind == "float" for _, kind in sides.values())
        for side, (_, kind) in sides.items():
            if real and kind == "integer" and not self._is_exact(side):
                raise NotTheSame(f"{side} may be rounded")
        return self._compared(op, sides[left][0], sides[right][0], real)

    @staticmethod
    def _compared(op: str, left: str, right: str, real: bool) -> str:
        plain = f"({left} {op} {right})"
        if not real:
            return plain
        nan = f"isnan(CAST({left} AS DOUBLE)) OR isnan(CAST({right} AS DOUBLE))"
        return (
            f"CASE WHEN {left} IS NULL OR {right} IS NULL THEN NULL "
            f"WHEN {nan} THEN {op == '!='} ELSE {plain} END"
        )

    def _is_exact(self, node: tree.Operand) -> bool:
        match node:
            case tree.Integer():
                return abs(node.value) <= EXACT
            case tree.Name():
                return self._types[node.name].high <= EXACT
            case tree.Subscript():
                return _element_type(self._types[node.name]).high <= EXACT
            case _:
                return False

    def _membership(self, node: tree.Membership) -> str:
        if isinstance(node.container, tree.ListLiteral):
            parts = [self._comparison("==", node.item, item) for item in node.container.items]
            return f"({' OR '.join(parts)})"
        element = _element_type(self._types[node.container.name])
        item, kind = self.operand(node.item)
        kinds = {element.kind, kind}
        if kinds == {"integer", "float"} and not (
            self._is_exact(node.item) or (element.kind == "integer" and element.high <= EXACT)
        ):
            raise NotTheSame(f"{node} may be rounded")
        equal = self._compared("==", _widened("e", element)[0], item, "float" in kinds)
        found = f"exists({node.container.name}, e -> {equal})"
        return f"CASE WHEN {item} IS NULL THEN NULL ELSE {found} END"

    def _arithmetic(self, node: tree.Arithmetic) -> tuple[str, str]:
        (left, kind), (right, other) = self.operand(node.left), self.operand(node.right)
        if kind == other == "integer":
            return _integers(node.op, left, right), "integer"
        left, right = f"CAST({left} AS DOUBLE)", f"CAST({right} AS DOUBLE)"
        divisor = f"nullif({right}, 0D)" if node.op == "/" else right
        return f"({left} {node.op} {divisor})", "float"


def _element_type(wanted: ColumnType) -> ColumnType:
    if wanted.element is None:
        raise TypeError(f"{wanted.name} is no list")
    return wanted.element


def _widened(text: str, wanted: ColumnType) -> tuple[str, str]:
    wide = {"integer": f"CAST({text} AS BIGINT)", "float": f"CAST({text} AS DOUBLE)"}
    return wide.get(wanted.kind, text), wanted.kind


def _integers(op: str, left: str, right: str) -> str:
    functions = {"+": "try_add", "-": "try_subtract", "*": "try_multiply"}
    if op in functions:
        return f"{functions[op]}({left}, {right})"
    if op == "/":
        lost = f"{left} = CAST('-9223372036854775808' AS BIGINT) AND {right} = -1L"
        divisor = f"CASE WHEN {right} = 0L OR ({lost}) THEN NULL ELSE {right} END"
        return f"({left} div {divisor})"
    if op == "%":
        return f"({left} % nullif({right}, 0L))"
    if op in ("<<", ">>"):
        count = f"CAST(CASE WHEN {right} BETWEEN 0L AND 63L THEN {right} END AS INT)"
        return f"shift{'left' if op == '<<' else 'right'}({left}, {count})"
    return f"(({left}) {op} ({right}))"


def _text(text: str) -> str:
    return f"CAST(X'{text.encode().hex()}' AS STRING)"


def _topic_pattern(topic_filter: str) -> str:
    levels = topic_filter.split("/")
    below = levels[-1] == "#"
    if below:
        levels.pop()
    text = "/".join("[^/]*" if level == "+" else rf"\Q{level}\E" for level in levels)
    tail = ("(/.*)?" if levels else ".*") if below else ""
    return rf"(?s)\A{text}{tail}\z"
