"""Conditions: expressions over the fields of an event and the past of a run, or functions.

A text condition is an expression with additional values, the *terms*: ``sum(a.price)``,
``count(a)``, ``previous(price)`` and others. The parser replaces each term with a name of equal
length, so that error positions stay valid, and treats it as a column.

A condition without terms is *local*: it can be evaluated for many events at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import singledispatch
from typing import Any, Protocol, TypeAlias

from streambroker_core.cep.pattern.errors import ConditionError, PatternArgumentError
from streambroker_core.cep.pattern.match_buffer import Term
from streambroker_core.errors import ExpressionError, locate
from streambroker_core.expression import Expression, parse, tree
from streambroker_core.expression.evaluate import Row
from streambroker_core.expression.strings import quote, unquote

ConditionFunction: TypeAlias = "Callable[[Row, Any], bool]"
"""Function of the event's row and a `RunView`; any result except True counts as false."""

_OF_FIELD = ("sum", "avg", "min", "max", "first", "last")
_TIMES = ("timestamp", "processing_time")
_WITH_OFFSET = ("first", "last")
TERMS = ("count", *_OF_FIELD, "previous", *_TIMES)
_PLACEHOLDER = "__t"
_WORD = r"[A-Za-z_][A-Za-z0-9_]*"
_PATH = rf"{_WORD}(?:\.{_WORD})*"
_CALL = re.compile(
    rf'(?P<text>"(?:[^"\\]|\\.)*")|\b(?P<function>{"|".join(TERMS)})\s*\((?P<inside>[^()]*)\)'
    rf"|(?<![\w.])(?P<path>{_WORD}(?:\.{_WORD})+)"
)
_STAGE = re.compile(
    rf'\s*(?P<stage>{_WORD}|"(?:[^"\\]|\\.)*")\s*(?:\.\s*(?P<field>{_PATH})\s*)?'
    r"(?:,\s*(?P<offset>\d{1,4})\s*)?(?P<tested>,\s*tested\s*)?\Z"
)
MAX_OFFSET = 1_000
_FIELD = re.compile(rf"\s*(?P<field>{_PATH})\s*\Z")
_FORMS = {
    "count": "count(stage)",
    "previous": "previous(field)",
    **{name: f"{name}()" for name in _TIMES},
    **{name: f"{name}(stage.field)" for name in _OF_FIELD},
    **{name: f"{name}(stage.field, offset)" for name in _WITH_OFFSET},
}


@dataclass(frozen=True, slots=True)
class TextCondition:
    """Expression over the event's fields and terms; a term's text is its name in the expression.

    ``alike`` has pairs of names whose types have to be of one kind.
    """

    expression: Expression
    terms: tuple[tuple[str, Term], ...] = ()
    alike: tuple[tuple[str, str], ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        return str(self.expression)


@dataclass(frozen=True, slots=True)
class FunctionCondition:
    """A Python function with a name; conditions with equal names are equal."""

    name: str
    function: ConditionFunction

    def __eq__(self, right: object) -> bool:
        return isinstance(right, FunctionCondition) and self.name == right.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return f"function {self.name}"


@dataclass(frozen=True, slots=True)
class All:
    """Conjunction of conditions."""

    items: tuple[Condition, ...]

    def __str__(self) -> str:
        return " and ".join(f"({item})" for item in self.items)


@dataclass(frozen=True, slots=True)
class Some:
    """Disjunction of conditions."""

    items: tuple[Condition, ...]

    def __str__(self) -> str:
        return " or ".join(f"({item})" for item in self.items)


Condition: TypeAlias = "TextCondition | FunctionCondition | All | Some"
ConditionInput: TypeAlias = "str | Condition | ConditionFunction | SparkColumn"
"""What `to_condition` converts."""


class SparkColumn(Protocol):
    """A ``Column`` of PySpark; the room that knows Spark registers its conversion."""

    def isNull(self) -> Any:  # noqa: N802 - as Spark spells it
        """Return a column that is true where this one is null."""


@singledispatch
def to_condition(source: Any, stage: str | None = None) -> Condition:
    """Convert a text or function to a condition; return a condition unchanged.

    `stage` is its stage, for error messages. Other rooms register further types.

    Raises:
        ConditionError: the text is not a condition; the error has the position and a hint.
        PatternArgumentError: the text is blank, or the value is none of these.
    """
    if isinstance(source, TextCondition | FunctionCondition | All | Some):
        return source
    if isinstance(source, str):
        if not source.strip():
            raise PatternArgumentError(
                "a condition is blank", stage=stage, remedy="leave it out if every event matches"
            )
        return parse_text(source)
    if callable(source):
        return FunctionCondition(getattr(source, "__name__", type(source).__name__), source)
    raise PatternArgumentError(
        f"{source!r} is no condition", stage=stage, remedy="give a text, a Column or a function"
    )


def iter_calls(condition: Condition | None) -> Iterator[FunctionCondition]:
    """Yield the function conditions in a condition."""
    if isinstance(condition, FunctionCondition):
        yield condition
    elif isinstance(condition, All | Some):
        for item in condition.items:
            yield from iter_calls(item)


def combine_and(left: Condition | None, right: Condition) -> Condition:
    """Return the conjunction of two conditions; None always holds."""
    if left is None:
        return right
    if isinstance(left, TextCondition) and isinstance(right, TextCondition):
        return _join_texts(tree.And, left, right)
    return All((*(left.items if isinstance(left, All) else (left,)), right))


def combine_or(left: Condition | None, right: Condition) -> Condition | None:
    """Return the disjunction of two conditions; None always holds."""
    if left is None:
        return None
    if isinstance(left, TextCondition) and isinstance(right, TextCondition):
        return _join_texts(tree.Or, left, right)
    return Some((*(left.items if isinstance(left, Some) else (left,)), right))


def _join_texts(
    kind: type[tree.And] | type[tree.Or], left: TextCondition, right: TextCondition
) -> TextCondition:
    items: list[tree.Predicate] = []
    for each in (left, right):
        node = each.expression.tree
        assert node is not None  # noqa: S101 - blank conditions are refused
        items += node.items if isinstance(node, kind) else (node,)
    expression = Expression(kind="filter", tree=kind(tuple(items)))
    terms = tuple(dict(left.terms + right.terms).items())
    return TextCondition(expression, terms, left.alike + right.alike)


def parse_text(text: str) -> TextCondition:
    """Parse a text condition.

    Raises:
        ConditionError: it is not an expression, or a term has an invalid form.
    """
    if _PLACEHOLDER in text:
        raise _make_error(
            text,
            text.index(_PLACEHOLDER),
            f"`{_PLACEHOLDER}`",
            "a name that does not begin so",
            None,
        )
    placeholders: dict[str, tuple[str, Term]] = {}
    plain = _CALL.sub(lambda found: _mark_term(text, found, placeholders), text)
    try:
        expression = parse(plain, "filter")
    except ExpressionError as error:
        raise _restore_terms(text, error, placeholders) from None
    node = expression.tree
    assert node is not None  # noqa: S101 - blank texts are refused before
    names = {mark: format_term(term) for mark, (_, term) in placeholders.items()}
    terms = tuple({format_term(term): term for _, term in placeholders.values()}.items())
    return TextCondition(Expression(kind="filter", tree=_rename(node, names), source=text), terms)


def format_term(term: Term) -> str:
    """Return a term in source form."""
    if term.function == "part":
        return term.field or ""
    if term.stage is None:
        return f"{term.function}({term.field or ''})"
    stage = term.stage if re.fullmatch(_WORD, term.stage) else quote(term.stage, short=False)
    path = "" if term.field is None else f".{term.field}"
    offset = f", {term.offset}" if term.offset else ""
    return f"{term.function}({stage}{path}{offset}{', tested' if term.tested else ''})"


def _mark_term(
    text: str, term_match: re.Match[str], placeholders: dict[str, tuple[str, Term]]
) -> str:
    if term_match["text"]:
        return term_match[0]
    term = _parse_term(text, term_match)
    mark = f"{_PLACEHOLDER}{len(placeholders)}"
    mark += "_" * (len(term_match[0]) - len(mark))
    placeholders[mark] = (term_match[0], term)
    return mark


def _parse_term(text: str, term_match: re.Match[str]) -> Term:
    if term_match["path"]:
        return Term("part", None, term_match["path"])
    function, inside = term_match["function"], term_match["inside"]
    if function in _TIMES and not inside.strip():
        return Term(function)
    if function == "previous" and (field := _FIELD.match(inside)):
        return Term(function, None, field["field"])
    parts = _STAGE.match(inside)
    if parts and function not in (*_TIMES, "previous"):
        stage = unquote(parts["stage"], 0) if parts["stage"][0] == '"' else parts["stage"]
        offset = int(parts["offset"] or 0)
        may_have = parts["offset"] is None or (function in _WITH_OFFSET and offset <= MAX_OFFSET)
        if may_have and (parts["field"] is None) == (function == "count"):
            return Term(function, stage, parts["field"], offset, tested=bool(parts["tested"]))
    raise _make_error(
        text, term_match.start(), f"`{term_match[0]}`", f"`{_FORMS[function]}`",
        'write a stage whose name is not a word in quotes, as in `count("a b")`',
    )  # fmt: skip


def _make_error(text: str, at: int, actual: str, expected: str, hint: str | None) -> ConditionError:
    return ConditionError(position=locate(text, at), found=actual, expected=expected, hint=hint)


def _restore_terms(
    text: str, error: ExpressionError, placeholders: Mapping[str, tuple[str, Term]]
) -> ConditionError:
    """Return the error with placeholders replaced by the source of their terms."""

    def plain(sentence: str) -> str:
        for mark, (source, _) in placeholders.items():
            sentence = sentence.replace(mark, source)
        return sentence

    hint = None if error.hint is None else plain(error.hint)
    if hint and hint.startswith("the functions are "):
        hint = f"{hint}, and of a run {', '.join(f'`{form}`' for form in _FORMS.values())}"
    offset = error.position["offset"]
    return _make_error(text, offset, plain(error.found), plain(error.expected), hint)


def _rename(node: Any, names: Mapping[str, str]) -> Any:
    """Return a tree with names replaced."""
    match node:
        case tree.Name() | tree.Has() | tree.Subscript():
            return replace(node, name=names.get(node.name, node.name))
        case tree.And():
            return tree.And(tuple(_rename(item, names) for item in node.items), node.at)
        case tree.Or():
            return tree.Or(tuple(_rename(item, names) for item in node.items), node.at)
        case tree.Not() | tree.Negate() | tree.Invert():
            return replace(node, operand=_rename(node.operand, names))
        case tree.Comparison() | tree.Arithmetic():
            return replace(node, left=_rename(node.left, names), right=_rename(node.right, names))
        case tree.Membership():
            return replace(
                node, item=_rename(node.item, names), container=_rename(node.container, names)
            )
        case tree.StringTest():
            return replace(node, subject=_rename(node.subject, names))
        case _:
            return node


def is_local(condition: Condition) -> bool:
    """Return whether a condition depends on the event alone."""
    return isinstance(condition, TextCondition) and not condition.terms


def local_part(condition: Condition) -> Expression | None:
    """Return what the event alone must fulfil for a condition to hold; None for nothing."""
    match condition:
        case TextCondition():
            node = condition.expression.tree
            return (
                None
                if node is None
                else _local(node, frozenset(name for name, _ in condition.terms))
            )
        case All():
            parts = [part.tree for part in map(local_part, condition.items) if part is not None]
            nodes = [part for part in parts if part is not None]
            return _make_filter(tree.And, nodes) if nodes else None
        case Some():
            local_parts = [local_part(item) for item in condition.items]
            trees = [
                part.tree for part in local_parts if part is not None and part.tree is not None
            ]
            return _make_filter(tree.Or, trees) if len(trees) == len(local_parts) else None
        case _:
            return None


def remaining_condition(condition: Condition) -> Condition:
    """Return what remains of a condition where `local_part` holds; all of it for a local one."""
    match condition:
        case TextCondition() if isinstance(condition.expression.tree, tree.And):
            terms = frozenset(name for name, _ in condition.terms)
            items = [each for each in condition.expression.tree.items if tree.names(each) & terms]
            if not items:
                return condition
            return TextCondition(_make_filter(tree.And, items), condition.terms)
        case All():
            remaining = tuple(
                remaining_condition(item) for item in condition.items if not is_local(item)
            )
            return All(remaining) if remaining else condition
        case _:
            return condition


def _local(node: tree.Predicate, terms: frozenset[str]) -> Expression | None:
    if not tree.names(node) & terms:
        return Expression(kind="filter", tree=node)
    if isinstance(node, tree.And):
        items = [item for item in node.items if not tree.names(item) & terms]
        return _make_filter(tree.And, items) if items else None
    return None


def _make_filter(kind: type[tree.And] | type[tree.Or], nodes: list[Any]) -> Expression:
    items: list[Any] = []
    for node in nodes:
        items += node.items if isinstance(node, kind) else (node,)
    return Expression(kind="filter", tree=items[0] if len(items) == 1 else kind(tuple(items)))


def list_terms(condition: Condition | None) -> list[Term]:
    """Return the terms of a condition."""
    match condition:
        case TextCondition():
            return [term for _, term in condition.terms]
        case All() | Some():
            return [term for item in condition.items for term in list_terms(item)]
        case _:
            return []


def list_fields(condition: Condition | None) -> frozenset[str] | None:
    """Return the fields that a condition reads; None if unknown."""
    match condition:
        case None:
            return frozenset()
        case TextCondition():
            term_fields = {
                term.field and term.field.split(".")[0] for term in list_terms(condition)
            } - {None}
            names = condition.expression.names() - {name for name, _ in condition.terms}
            return frozenset(names | {field for field in term_fields if field is not None})
        case All() | Some():
            parts = [list_fields(item) for item in condition.items]
            known = [part for part in parts if part is not None]
            return frozenset().union(*known) if len(known) == len(parts) else None
        case _:
            return None
