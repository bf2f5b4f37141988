"""The answer of an expression, by SQL's three-valued logic.

This evaluator defines the language; masks over record batches and the matching
index have to agree with it. A tree becomes nested functions once, which then
take a mapping from name to value and return True, False or None for unknown.

Values are ``bool``, ``int``, ``float``, ``str`` and lists of them. Anything
else, a missing name and None are unknown to every predicate but ``has``, which
is true of all that is not None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from streambroker_core.expression import tree
from streambroker_core.expression.arithmetic import COMPARE, FLOAT, INTEGER, within
from streambroker_core.topics import topic_matches

Row: TypeAlias = Mapping[str, Any]
Truth: TypeAlias = "bool | None"
Test: TypeAlias = Callable[[Row], "bool | None"]
Fetch: TypeAlias = Callable[[Row], Any]

_NUMBER, _TEXT, _BOOLEAN = "number", "text", "boolean"
_KINDS: dict[type, str] = {int: _NUMBER, float: _NUMBER, str: _TEXT, bool: _BOOLEAN}
_EQUALITIES = ("==", "!=")


def test_of(node: tree.Predicate) -> Test:
    """Return the function that decides a predicate."""
    match node:
        case tree.And():
            return _all([test_of(item) for item in node.items])
        case tree.Or():
            return _any([test_of(item) for item in node.items])
        case tree.Not():
            return _not(test_of(node.operand))
        case tree.Comparison():
            return _comparison(node)
        case tree.Membership():
            return _membership(node)
        case tree.Has():
            name = node.name
            return lambda row: row.get(name) is not None
        case tree.Match():
            return _match(node)
        case tree.Topic():
            return _topic(node.filter)
        case _:
            return _truth(fetch_of(node))


def fetch_of(node: tree.Operand) -> Fetch:
    """Return the function that computes an operand; its None is unknown."""
    match node:
        case tree.Name():
            name = node.name
            return lambda row: row.get(name)
        case tree.Subscript():
            return _element(node.name, node.index)
        case tree.Negate():
            return _negate(fetch_of(node.operand))
        case tree.Invert():
            return _invert(fetch_of(node.operand))
        case tree.Arithmetic():
            return _arithmetic(node)
        case _:
            value = node.value
            return lambda row: value


def compare(op: str, left: Any, right: Any) -> Truth:
    """Compare two values: numbers exactly, strings by their UTF-8 bytes, booleans for equality.

    Comparing code points, as Python does, is comparing UTF-8 bytes.
    """
    kind = _KINDS.get(type(left))
    if kind is None or kind != _KINDS.get(type(right)):
        return None
    if kind is _BOOLEAN and op not in _EQUALITIES:
        return None
    return COMPARE[op](left, right)


def member(item: Any, container: Any) -> Truth:
    """Tell whether a value is in a list; an element that is None may be any value."""
    kind = _KINDS.get(type(item))
    if kind is None or not isinstance(container, list | tuple):
        return None
    unsure = False
    for element in container:
        if element is None:
            unsure = True
        elif _KINDS.get(type(element)) != kind:
            return None
        elif element == item:
            return True
    return None if unsure else False


def _all(tests: list[Test]) -> Test:
    def test(row: Row) -> Truth:
        answer: Truth = True
        for part in tests:
            value = part(row)
            if value is False:
                return False
            if value is None:
                answer = None
        return answer

    return test


def _any(tests: list[Test]) -> Test:
    def test(row: Row) -> Truth:
        answer: Truth = False
        for part in tests:
            value = part(row)
            if value is True:
                return True
            if value is None:
                answer = None
        return answer

    return test


def _not(inner: Test) -> Test:
    def test(row: Row) -> Truth:
        value = inner(row)
        return None if value is None else not value

    return test


def _truth(fetch: Fetch) -> Test:
    def test(row: Row) -> Truth:
        value = fetch(row)
        return value if type(value) is bool else None

    return test


def _comparison(node: tree.Comparison) -> Test:
    op = node.op
    left, right = fetch_of(node.left), fetch_of(node.right)
    if isinstance(node.left, tree.Name) and isinstance(node.right, tree.LITERALS):
        return _column_and_literal(op, node.left.name, node.right.value)
    return lambda row: compare(op, left(row), right(row))


def _column_and_literal(op: str, name: str, value: Any) -> Test:
    """Return the common comparison, without the calls the general one makes."""
    types = tuple(kind for kind, word in _KINDS.items() if word == _KINDS[type(value)])
    if types == (bool,) and op not in _EQUALITIES:
        return lambda row: None
    operation = COMPARE[op]

    def test(row: Row) -> Truth:
        found = row.get(name)
        return operation(found, value) if type(found) in types else None

    return test


def _membership(node: tree.Membership) -> Test:
    item = fetch_of(node.item)
    if isinstance(node.container, tree.ListLiteral):
        values = [element.value for element in node.container.items]
        return lambda row: member(item(row), values)
    name = node.container.name
    return lambda row: member(item(row), row.get(name))


def _match(node: tree.Match) -> Test:
    subject, text = fetch_of(node.subject), node.text
    calls: dict[str, Callable[[str], bool]] = {
        "startsWith": lambda value: value.startswith(text),
        "endsWith": lambda value: value.endswith(text),
        "contains": lambda value: text in value,
    }
    call = calls[node.function]

    def test(row: Row) -> Truth:
        value = subject(row)
        return call(value) if type(value) is str else None

    return test


def _topic(topic_filter: str) -> Test:
    def test(row: Row) -> Truth:
        value = row.get(tree.TOPIC_PROPERTY)
        return topic_matches(topic_filter, value) if type(value) is str else None

    return test


def _element(name: str, index: int) -> Fetch:
    def fetch(row: Row) -> Any:
        values = row.get(name)
        if isinstance(values, list | tuple) and 0 <= index < len(values):
            return values[index]
        return None

    return fetch


def _negate(inner: Fetch) -> Fetch:
    def fetch(row: Row) -> Any:
        value = inner(row)
        if type(value) is int:
            return within(-value)
        return -value if type(value) is float else None

    return fetch


def _invert(inner: Fetch) -> Fetch:
    def fetch(row: Row) -> Any:
        value = inner(row)
        return ~value if type(value) is int else None

    return fetch


def _arithmetic(node: tree.Arithmetic) -> Fetch:
    left, right = fetch_of(node.left), fetch_of(node.right)
    whole, real = INTEGER[node.op], FLOAT.get(node.op)

    def fetch(row: Row) -> Any:
        a, b = left(row), right(row)
        if type(a) is int and type(b) is int:
            return whole(a, b)
        if real is None or type(a) not in (int, float) or type(b) not in (int, float):
            return None
        return real(a, b)

    return fetch
