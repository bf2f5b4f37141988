"""Evaluate expressions by SQL's three-valued logic.

This evaluator defines the language; masks over record batches and the matching index must agree
with it. A tree is compiled once to nested functions, which map a row to True, False or None
(unknown).

The functions get literals from a separate tuple, so expressions that differ only in literals share
them: a million subscriptions have a handful of forms.

Values are ``bool``, ``int``, ``float``, ``str`` and lists of them. Anything else, a missing name
and None are unknown to every predicate but ``has``, which is true for all but None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from streambroker_core.expression import tree
from streambroker_core.expression.arithmetic import COMPARE, FLOAT, INTEGER, int64_or_none
from streambroker_core.model.topics import topic_matches

Row: TypeAlias = Mapping[str, Any]
Truth: TypeAlias = "bool | None"
Test: TypeAlias = Callable[[Row], "bool | None"]
Fetch: TypeAlias = Callable[[Row], Any]
Literals: TypeAlias = "tuple[Any, ...]"
Code: TypeAlias = Callable[[Row, Literals], "bool | None"]
ValueCode: TypeAlias = Callable[[Row, Literals], Any]

_NUMBER, _TEXT, _BOOLEAN = "number", "text", "boolean"
KINDS: dict[type, str] = {int: _NUMBER, float: _NUMBER, str: _TEXT, bool: _BOOLEAN}
"""Kinds of types; only values of one kind are comparable."""
_EQUALITIES = ("==", "!=")
_LISTS = (list, tuple)
_MAX_FORMS = 4096
_FORMS: dict[tuple[Any, ...], Code] = {}


def compile_test(node: tree.Predicate) -> Test:
    """Return the function that evaluates a predicate."""
    code, literals = compile_code(node)
    return lambda row: code(row, literals)


def compile_fetch(node: tree.Operand) -> Fetch:
    """Return the function that computes an operand; None is unknown."""
    literals: list[Any] = []
    value = _FormCompiler(literals).value(node)
    constants = tuple(literals)
    return lambda row: value(row, constants)


def compile_code(node: tree.Predicate) -> tuple[Code, Literals]:
    """Return the function of a predicate's form, and its literals.

    Predicates of one form share a function. The cache of forms is cleared when full.
    """
    form: list[Any] = []
    literals: list[Any] = []
    _describe(node, form, literals)
    key = tuple(form)
    code = _FORMS.get(key)
    if code is None:
        if len(_FORMS) >= _MAX_FORMS:
            _FORMS.clear()
        code = _FORMS[key] = _FormCompiler([]).predicate(node)
    return code, tuple(literals)


def value_kind(value: Any) -> str | None:
    """Return ``number``, ``text`` or ``boolean``; None if the value is not comparable."""
    return KINDS.get(type(value))


def _describe(node: tree.Node, form: list[Any], literals: list[Any]) -> None:
    """Split a tree into its form and its literals, both in traversal order."""
    match node:
        case tree.Integer() | tree.Float() | tree.Text() | tree.Boolean():
            form.append(KINDS[type(node.value)])
            literals.append(node.value)
        case tree.ListLiteral():
            form.append(tree.ListLiteral)
            literals.append(tuple(element.value for element in node.items))
        case tree.StringTest():
            form += (tree.StringTest, node.function)
            literals.append(node.text)
            _describe(node.subject, form, literals)
        case tree.Topic():
            form.append(tree.Topic)
            literals.append(node.filter)
        case _:
            form += (type(node), *_form_marks(node))
            for child in tree.children(node):
                _describe(child, form, literals)


def _form_marks(node: tree.Node) -> tuple[Any, ...]:
    match node:
        case tree.And() | tree.Or():
            return (len(node.items),)
        case tree.Comparison() | tree.Arithmetic():
            return (node.op,)
        case tree.Name() | tree.Has():
            return (node.name,)
        case tree.Subscript():
            return (node.name, node.index)
        case _:
            return ()


class _FormCompiler:
    """Compiles the functions of one form, and appends the literals to a list.

    Literals are indexed in the order of `_describe`.
    """

    def __init__(self, literals: list[Any]) -> None:
        self._literals = literals

    def _add_literal(self, literal: Any) -> int:
        self._literals.append(literal)
        return len(self._literals) - 1

    def predicate(self, node: tree.Predicate) -> Code:
        match node:
            case tree.And():
                return _all([self.predicate(item) for item in node.items])
            case tree.Or():
                return _any([self.predicate(item) for item in node.items])
            case tree.Not():
                return _not(self.predicate(node.operand))
            case tree.Comparison():
                return self._comparison(node)
            case tree.Membership():
                return _membership(self.value(node.item), self._container(node.container))
            case tree.Has():
                name = node.name
                return lambda row, literals: row.get(name) is not None
            case tree.StringTest():
                index = self._add_literal(node.text)
                return _match(node.function, self.value(node.subject), index)
            case tree.Topic():
                return _topic(self._add_literal(node.filter))
            case _:
                return _truth(self.value(node))

    def value(self, node: tree.Operand) -> ValueCode:
        match node:
            case tree.Name():
                name = node.name
                return lambda row, literals: row.get(name)
            case tree.Subscript():
                return _element(node.name, node.index)
            case tree.Negate():
                return _negate(self.value(node.operand))
            case tree.Invert():
                return _invert(self.value(node.operand))
            case tree.Arithmetic():
                return _arithmetic(node.op, self.value(node.left), self.value(node.right))
            case _:
                index = self._add_literal(node.value)
                return lambda row, literals: literals[index]

    def _container(self, node: tree.Name | tree.ListLiteral) -> ValueCode:
        if isinstance(node, tree.Name):
            return self.value(node)
        index = self._add_literal(tuple(element.value for element in node.items))
        return lambda row, literals: literals[index]

    def _comparison(self, node: tree.Comparison) -> Code:
        op = node.op
        if isinstance(node.right, tree.LITERALS):
            types = _types(KINDS[type(node.right.value)], op)
            if isinstance(node.left, tree.Name):
                return _column_and_literal(
                    op, node.left.name, types, self._add_literal(node.right.value)
                )
            left = self.value(node.left)
            return _value_and_literal(op, left, types, self._add_literal(node.right.value))
        left, right = self.value(node.left), self.value(node.right)
        return lambda row, literals: compare(op, left(row, literals), right(row, literals))


def compare(op: str, left: Any, right: Any) -> Truth:
    """Compare two values: numbers exactly, strings by UTF-8 bytes, booleans for equality only.

    Python's comparison of code points equals that of UTF-8 bytes.
    """
    kind = KINDS.get(type(left))
    if kind is None or kind != KINDS.get(type(right)):
        return None
    if kind is _BOOLEAN and op not in _EQUALITIES:
        return None
    return COMPARE[op](left, right)


def member(item: Any, container: Any) -> Truth:
    """Return whether a value is in a list; an element None may be any value."""
    kind = KINDS.get(type(item))
    if kind is None or not isinstance(container, _LISTS):
        return None
    has_null = False
    for element in container:
        if element is None:
            has_null = True
        elif KINDS.get(type(element)) != kind:
            return None
        elif element == item:
            return True
    return None if has_null else False


def _all(tests: list[Code]) -> Code:
    def test(row: Row, literals: Literals) -> Truth:
        result: Truth = True
        for part in tests:
            value = part(row, literals)
            if value is False:
                return False
            if value is None:
                result = None
        return result

    return test


def _any(tests: list[Code]) -> Code:
    def test(row: Row, literals: Literals) -> Truth:
        result: Truth = False
        for part in tests:
            value = part(row, literals)
            if value is True:
                return True
            if value is None:
                result = None
        return result

    return test


def _not(inner: Code) -> Code:
    def test(row: Row, literals: Literals) -> Truth:
        value = inner(row, literals)
        return None if value is None else not value

    return test


def _truth(fetch: ValueCode) -> Code:
    def test(row: Row, literals: Literals) -> Truth:
        value = fetch(row, literals)
        return value if type(value) is bool else None

    return test


def _types(kind: str, op: str) -> tuple[type, ...]:
    """Return the types that are comparable with a kind."""
    if kind == _BOOLEAN and op not in _EQUALITIES:
        return ()
    return tuple(type_ for type_, word in KINDS.items() if word == kind)


def _value_and_literal(op: str, left: ValueCode, types: tuple[type, ...], index: int) -> Code:
    """Return a comparison without the calls of the general one."""
    operation = COMPARE[op]

    def test(row: Row, literals: Literals) -> Truth:
        value = left(row, literals)
        return operation(value, literals[index]) if type(value) in types else None

    return test


def _column_and_literal(op: str, name: str, types: tuple[type, ...], index: int) -> Code:
    """Return the most frequent comparison, with one call less."""
    operation = COMPARE[op]

    def test(row: Row, literals: Literals) -> Truth:
        value = row.get(name)
        return operation(value, literals[index]) if type(value) in types else None

    return test


def _membership(item: ValueCode, container: ValueCode) -> Code:
    return lambda row, literals: member(item(row, literals), container(row, literals))


def _match(function: str, subject: ValueCode, index: int) -> Code:
    calls: dict[str, Callable[[str, str], bool]] = {
        "startsWith": lambda value, text: value.startswith(text),
        "endsWith": lambda value, text: value.endswith(text),
        "contains": lambda value, text: text in value,
    }
    call = calls[function]

    def test(row: Row, literals: Literals) -> Truth:
        value = subject(row, literals)
        return call(value, literals[index]) if type(value) is str else None

    return test


def _topic(index: int) -> Code:
    def test(row: Row, literals: Literals) -> Truth:
        value = row.get(tree.TOPIC_PROPERTY)
        return topic_matches(literals[index], value) if type(value) is str else None

    return test


def _element(name: str, index: int) -> ValueCode:
    def fetch(row: Row, literals: Literals) -> Any:
        values = row.get(name)
        if isinstance(values, _LISTS) and 0 <= index < len(values):
            return values[index]
        return None

    return fetch


def _negate(inner: ValueCode) -> ValueCode:
    def fetch(row: Row, literals: Literals) -> Any:
        value = inner(row, literals)
        if type(value) is int:
            return int64_or_none(-value)
        return -value if type(value) is float else None

    return fetch


def _invert(inner: ValueCode) -> ValueCode:
    def fetch(row: Row, literals: Literals) -> Any:
        value = inner(row, literals)
        return ~value if type(value) is int else None

    return fetch


def _arithmetic(op: str, left: ValueCode, right: ValueCode) -> ValueCode:
    integer_op, float_op = INTEGER[op], FLOAT.get(op)

    def fetch(row: Row, literals: Literals) -> Any:
        a, b = left(row, literals), right(row, literals)
        if type(a) is int and type(b) is int:
            return integer_op(a, b)
        if float_op is None or type(a) not in (int, float) or type(b) not in (int, float):
            return None
        return float_op(a, b)

    return fetch
