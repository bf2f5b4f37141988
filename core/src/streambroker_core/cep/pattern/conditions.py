"""Conditions: our expressions over the fields of an event and the past of a run, or functions.

A text is an expression with further values, the *terms*: ``sum(a.price)``, ``count(a)``,
``previous(price)`` and so on. A term is read by replacing it with a name of the same length, so
that the places in errors stay those of the text, and is then a column like any other.

A condition that asks nothing of the past is *local*: it can be decided for many events at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from streambroker_core.cep.pattern.errors import ConditionError, PatternArgumentError
from streambroker_core.cep.pattern.match_buffer import Row, Term
from streambroker_core.errors import ExpressionError, position_in
from streambroker_core.expression import Expression, parse, tree
from streambroker_core.expression.strings import quote, unquote

Function: TypeAlias = "Callable[[Row, Any], bool]"
"""A function of the event's row and a `RunView`; what is not true is false."""

_OF_FIELD = ("sum", "avg", "min", "max", "first", "last")
_TIMES = ("timestamp", "processing_time")
TERMS = ("count", *_OF_FIELD, "previous", *_TIMES)
_MARK = "__t"
_WORD = r"[A-Za-z_][A-Za-z0-9_]*"
_PATH = rf"{_WORD}(?:\.{_WORD})*"
_CALL = re.compile(
    rf'(?P<text>"(?:[^"\\]|\\.)*")|\b(?P<function>{"|".join(TERMS)})\s*\((?P<inside>[^()]*)\)'
    rf"|(?<![\w.])(?P<path>{_WORD}(?:\.{_WORD})+)"
)
_STAGE = re.compile(rf'\s*(?P<stage>{_WORD}|"(?:[^"\\]|\\.)*")\s*(?:\.\s*(?P<field>{_PATH})\s*)?\Z')
_FIELD = re.compile(rf"\s*(?P<field>{_PATH})\s*\Z")
_FORMS = {
    "count": "count(stage)",
    "previous": "previous(field)",
    **{name: f"{name}()" for name in _TIMES},
    **{name: f"{name}(stage.field)" for name in _OF_FIELD},
}


@dataclass(frozen=True, slots=True)
class Text:
    """An expression over the event's fields and terms.

    Attributes:
        expression: a filter; terms are names in it.
        terms: the terms by the names they have in the expression, which are their texts.
    """

    expression: Expression
    terms: tuple[tuple[str, Term], ...] = ()

    def __str__(self) -> str:
        return str(self.expression)


@dataclass(frozen=True, slots=True)
class Call:
    """A Python function, known by name; conditions with one name are equal."""

    name: str
    function: Function

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Call) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return f"function {self.name}"


@dataclass(frozen=True, slots=True)
class All:
    """Every one of several conditions."""

    items: tuple[Condition, ...]

    def __str__(self) -> str:
        return " and ".join(f"({item})" for item in self.items)


@dataclass(frozen=True, slots=True)
class Some:
    """At least one of several conditions."""

    items: tuple[Condition, ...]

    def __str__(self) -> str:
        return " or ".join(f"({item})" for item in self.items)


Condition: TypeAlias = "Text | Call | All | Some"


def condition(given: str | Condition | Function, stage: str | None = None) -> Condition:
    """Return what was given as a condition.

    Args:
        given: a text, a function, or a condition.
        stage: where it stands, for messages.

    Raises:
        ConditionError: the text is no condition; says where and what to write instead.
        PatternArgumentError: it is blank, or none of these.
    """
    if isinstance(given, Text | Call | All | Some):
        return given
    if isinstance(given, str):
        if not given.strip():
            raise PatternArgumentError(
                "a condition is blank", stage=stage, remedy="leave it out if every event matches"
            )
        return read(given)
    if callable(given):
        return Call(getattr(given, "__name__", type(given).__name__), given)
    raise PatternArgumentError(
        f"{given!r} is no condition", stage=stage, remedy="give a text or a function"
    )


def calls_of(given: Condition | None) -> Iterator[Call]:
    """Yield the functions of a condition."""
    if isinstance(given, Call):
        yield given
    elif isinstance(given, All | Some):
        for item in given.items:
            yield from calls_of(item)


def both(one: Condition | None, other: Condition) -> Condition:
    """Return the condition that both hold; None holds always."""
    if one is None:
        return other
    if isinstance(one, Text) and isinstance(other, Text):
        return _joined(tree.And, one, other)
    return All((*(one.items if isinstance(one, All) else (one,)), other))


def either(one: Condition | None, other: Condition) -> Condition | None:
    """Return the condition that one of them holds; None holds always."""
    if one is None:
        return None
    if isinstance(one, Text) and isinstance(other, Text):
        return _joined(tree.Or, one, other)
    return Some((*(one.items if isinstance(one, Some) else (one,)), other))


def _joined(kind: type[tree.And] | type[tree.Or], one: Text, other: Text) -> Text:
    items: list[tree.Predicate] = []
    for each in (one, other):
        node = each.expression.tree
        assert node is not None  # noqa: S101 - blank conditions are refused
        items += node.items if isinstance(node, kind) else (node,)
    expression = Expression(kind="filter", tree=kind(tuple(items)))
    return Text(expression, tuple(dict(one.terms + other.terms).items()))


def read(text: str) -> Text:
    """Read a condition.

    Raises:
        ConditionError: it is no expression, or a term has a wrong form.
    """
    if _MARK in text:
        raise _refusal(text, text.index(_MARK), f"`{_MARK}`", "a name that does not begin so", None)
    marks: dict[str, tuple[str, Term]] = {}
    plain = _CALL.sub(lambda found: _marked(text, found, marks), text)
    try:
        expression = parse(plain, "filter")
    except ExpressionError as error:
        raise _told(text, error, marks) from None
    node = expression.tree
    assert node is not None  # noqa: S101 - blank texts are refused before
    names = {mark: name_of(term) for mark, (_, term) in marks.items()}
    terms = tuple({name_of(term): term for _, term in marks.values()}.items())
    return Text(Expression(kind="filter", tree=_renamed(node, names), source=text), terms)


def name_of(term: Term) -> str:
    """Return a term as it is written."""
    if term.function == "part":
        return term.field or ""
    if term.stage is None:
        return f"{term.function}({term.field or ''})"
    stage = term.stage if re.fullmatch(_WORD, term.stage) else quote(term.stage, short=False)
    return f"{term.function}({stage}{'' if term.field is None else f'.{term.field}'})"


def _marked(text: str, found: re.Match[str], marks: dict[str, tuple[str, Term]]) -> str:
    if found["text"]:
        return found[0]
    term = _term(text, found)
    mark = f"{_MARK}{len(marks)}"
    mark += "_" * (len(found[0]) - len(mark))
    marks[mark] = (found[0], term)
    return mark


def _term(text: str, found: re.Match[str]) -> Term:
    if found["path"]:
        return Term("part", None, found["path"])
    function, inside = found["function"], found["inside"]
    if function in _TIMES and not inside.strip():
        return Term(function)
    if function == "previous" and (field := _FIELD.match(inside)):
        return Term(function, None, field["field"])
    parts = _STAGE.match(inside)
    if parts and function not in (*_TIMES, "previous"):
        stage = unquote(parts["stage"], 0) if parts["stage"][0] == '"' else parts["stage"]
        if (parts["field"] is None) == (function == "count"):
            return Term(function, stage, parts["field"])
    raise _refusal(
        text, found.start(), f"`{found[0]}`", f"`{_FORMS[function]}`",
        'a stage whose name is no word is written in quotes, as in `count("a b")`',
    )  # fmt: skip


def _refusal(text: str, at: int, found: str, expected: str, hint: str | None) -> ConditionError:
    return ConditionError(position=position_in(text, at), found=found, expected=expected, hint=hint)


def _told(
    text: str, error: ExpressionError, marks: Mapping[str, tuple[str, Term]]
) -> ConditionError:
    """Return the error with the terms as they were written."""

    def plain(sentence: str) -> str:
        for mark, (source, _) in marks.items():
            sentence = sentence.replace(mark, source)
        return sentence

    hint = None if error.hint is None else plain(error.hint)
    if hint and hint.startswith("the functions are "):
        hint = f"{hint}, and of a run {', '.join(f'`{form}`' for form in _FORMS.values())}"
    offset = error.position["offset"]
    return _refusal(text, offset, plain(error.found), plain(error.expected), hint)


def _renamed(node: Any, names: Mapping[str, str]) -> Any:
    """Return a tree with other names."""
    match node:
        case tree.Name() | tree.Has() | tree.Subscript():
            return replace(node, name=names.get(node.name, node.name))
        case tree.And():
            return tree.And(tuple(_renamed(item, names) for item in node.items), node.at)
        case tree.Or():
            return tree.Or(tuple(_renamed(item, names) for item in node.items), node.at)
        case tree.Not() | tree.Negate() | tree.Invert():
            return replace(node, operand=_renamed(node.operand, names))
        case tree.Comparison() | tree.Arithmetic():
            return replace(node, left=_renamed(node.left, names), right=_renamed(node.right, names))
        case tree.Membership():
            return replace(
                node, item=_renamed(node.item, names), container=_renamed(node.container, names)
            )
        case tree.Match():
            return replace(node, subject=_renamed(node.subject, names))
        case _:
            return node


def is_local(given: Condition) -> bool:
    """Tell whether a condition depends on the event alone."""
    return isinstance(given, Text) and not given.terms


def local_part(given: Condition) -> Expression | None:
    """Return what the event alone has to fulfil for a condition to hold; None for nothing."""
    match given:
        case Text():
            node = given.expression.tree
            return (
                None if node is None else _local(node, frozenset(name for name, _ in given.terms))
            )
        case All():
            parts = [part.tree for part in map(local_part, given.items) if part is not None]
            nodes = [part for part in parts if part is not None]
            return _filter(tree.And, nodes) if nodes else None
        case Some():
            found = [local_part(item) for item in given.items]
            every = [part.tree for part in found if part is not None and part.tree is not None]
            return _filter(tree.Or, every) if len(every) == len(found) else None
        case _:
            return None


def rest_of(given: Condition) -> Condition:
    """Return what is left of a condition where `local_part` holds; of a local one, itself."""
    match given:
        case Text() if isinstance(given.expression.tree, tree.And):
            terms = frozenset(name for name, _ in given.terms)
            items = [each for each in given.expression.tree.items if tree.names(each) & terms]
            if not items:
                return given
            return Text(_filter(tree.And, items), given.terms)
        case All():
            rests = tuple(rest_of(item) for item in given.items if not is_local(item))
            return All(rests) if rests else given
        case _:
            return given


def _local(node: tree.Predicate, terms: frozenset[str]) -> Expression | None:
    if not tree.names(node) & terms:
        return Expression(kind="filter", tree=node)
    if isinstance(node, tree.And):
        items = [item for item in node.items if not tree.names(item) & terms]
        return _filter(tree.And, items) if items else None
    return None


def _filter(kind: type[tree.And] | type[tree.Or], nodes: list[Any]) -> Expression:
    items: list[Any] = []
    for node in nodes:
        items += node.items if isinstance(node, kind) else (node,)
    return Expression(kind="filter", tree=items[0] if len(items) == 1 else kind(tuple(items)))


def terms_of(given: Condition | None) -> list[Term]:
    """Return what a condition asks of the past."""
    match given:
        case Text():
            return [term for _, term in given.terms]
        case All() | Some():
            return [term for item in given.items for term in terms_of(item)]
        case _:
            return []


def fields_of(given: Condition | None) -> frozenset[str] | None:
    """Return the fields that a condition reads; None if that cannot be known."""
    match given:
        case None:
            return frozenset()
        case Text():
            asked = {term.field and term.field.split(".")[0] for term in terms_of(given)} - {None}
            names = given.expression.names() - {name for name, _ in given.terms}
            return frozenset(names | {field for field in asked if field is not None})
        case All() | Some():
            parts = [fields_of(item) for item in given.items]
            known = [part for part in parts if part is not None]
            return frozenset().union(*known) if len(known) == len(parts) else None
        case _:
            return None
