"""Parser from SQL to a rule.

SQL row patterns are strict: variables follow each other directly, and quantifiers are greedy unless
``?`` follows. Therefore a variable joins with ``next`` and repeats with ``consecutive().greedy()``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from lark import Lark, Token
from lark.exceptions import UnexpectedInput

from streambroker_core.cep.pattern.errors import RowPatternError
from streambroker_core.cep.pattern.match_buffer import Event
from streambroker_core.cep.pattern.pattern import Pattern, Skip, SkipStrategy
from streambroker_core.cep.sql.expressions import Scope, render, unquote_name
from streambroker_core.cep.sql.grammar import GRAMMAR, REFUSED
from streambroker_core.errors import locate

_PARSER = Lark(GRAMMAR, parser="lalr", maybe_placeholders=True, propagate_positions=True)
_PLAIN = re.compile(r"'(?:[^']|'')*'|--[^\n]*|/\*(?:.|\n)*?\*/")
_FACTORY = "pattern_processor_discoverer_factory"
_MAX_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A column of the result.

    Attributes:
        function: first, last, count, sum, avg, min or max.
        stage: variable that is measured; None for all rows of the match.
        field: column that is measured; None to count rows.
    """

    name: str
    function: str
    stage: str | None
    field: str | None

    def evaluate(self, events: Mapping[str, list[Event]]) -> Any:
        """Return the value for a match; None if there is none."""
        stages = events.values() if self.stage is None else [events.get(self.stage, [])]
        rows = sorted((each for taken in stages for each in taken), key=lambda each: each.seq)
        if self.function == "count" and self.field is None:
            return len(rows)
        values = [row.row.get(self.field or "") for row in rows]
        if self.function in ("first", "last"):
            return values[0 if self.function == "first" else -1] if values else None
        present = [value for value in values if value is not None]
        match self.function:
            case "count":
                return len(present)
            case "min" | "max":
                return (min if self.function == "min" else max)(present, default=None)
            case "sum":
                return sum(present) if present else None
            case _:
                return sum(present) / len(present) if present else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPattern:
    """A MATCH_RECOGNIZE clause.

    Attributes:
        key: PARTITION BY.
        order: ORDER BY: the event time first, then columns that order rows of equal time.
        columns: selected columns; empty for all.
    """

    table: str
    key: tuple[str, ...]
    order: tuple[str, ...]
    measures: tuple[Measure, ...]
    columns: tuple[str, ...]
    pattern: Pattern


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicRowPattern:
    """A MATCH_RECOGNIZE_DYNAMIC clause; its rules come from a discoverer registered in the job.

    Attributes:
        order: as for a `RowPattern`; empty for the stream's own time.
        options: further options by name, for the factory.
    """

    table: str
    key: tuple[str, ...]
    order: tuple[str, ...]
    columns: tuple[str, ...]
    factory: str
    options: Mapping[str, str | int | float] = field(default_factory=dict)


def read_row_pattern(
    text: str,
    *,
    tables: Collection[str] | Mapping[str, Any],
    factories: Collection[str] | Mapping[str, Any] = (),
) -> RowPattern | DynamicRowPattern:
    """Parse a statement: ``SELECT … FROM table MATCH_RECOGNIZE (…)``.

    It may name only the streams in `tables` and the discoverers in `factories`.

    Raises:
        RowPatternError: it cannot be parsed, is outside of the subset, or has an unknown name.
        PatternError: the pattern contradicts itself.
    """
    if len(text.encode()) > _MAX_BYTES:
        raise RowPatternError(f"the text has more than {_MAX_BYTES} bytes")
    _check_unsupported(text)
    try:
        tree: Any = _PARSER.parse(text)
    except UnexpectedInput as error:
        raise _syntax_error(text, error) from None
    columns, table, clause, alias = tree.children
    _check_name(text, unquote_name(table), table.start_pos, tables, "stream")
    names = _read_columns(text, columns, alias.children[0] or table)
    arguments = {"table": unquote_name(table), "columns": names}
    parts = {part.data: part for part in clause.children}
    arguments["key"], arguments["order"] = (
        _read_names(parts["partition"]),
        _read_names(parts["order"]),
    )
    if clause.data == "dynamic":
        return _build_dynamic(text, parts, factories, arguments)
    if not arguments["order"]:
        raise RowPatternError("ORDER BY is missing; it names the column with the event time")
    return _build_fixed(text, parts, arguments)


def _check_unsupported(text: str) -> None:
    plain = _PLAIN.sub(lambda found: " " * len(found[0]), text)
    for form, word in REFUSED.items():
        found = re.search(form, plain, re.IGNORECASE)
        if found:
            raise RowPatternError(f"{word} is not supported", position=locate(text, found.start()))


def _syntax_error(text: str, error: UnexpectedInput) -> RowPatternError:
    at = error.pos_in_stream if error.pos_in_stream is not None else len(text)
    at = len(text.rstrip()) if at < 0 else at
    word = re.compile(r"\w+|\S|\Z").match(text, at)
    found = f"`{word[0]}`" if word and word[0] else "the end of the text"
    expected = sorted(getattr(error, "accepts", None) or getattr(error, "expected", None) or ())
    words = ", ".join(each for each in expected if not each.startswith("__"))
    return RowPatternError(
        f"found {found}, expected {words.lower() or 'something else'}",
        position=locate(text, at),
    )


def _check_name(text: str, name: str, start: int, allowed: Collection[str], what: str) -> None:
    if name not in allowed:
        raise RowPatternError(
            f"there is no {what} `{name}`; known: {', '.join(sorted(allowed)) or 'none'}",
            position=locate(text, start),
        )


def _read_columns(text: str, part: Any, alias: Token) -> tuple[str, ...]:
    """Return the selected columns; empty for all."""
    every = part.data == "everything"
    items = [(part.children[0], None)] if every else [each.children for each in part.children]
    for qualifier, _ in items:
        if qualifier is not None and unquote_name(qualifier) != unquote_name(alias):
            raise RowPatternError(
                f"`{qualifier}` is not the name of the result; write {alias}",
                position=locate(text, qualifier.start_pos),
            )
    return () if every else tuple(unquote_name(name) for _, name in items)


def _read_names(part: Any) -> tuple[str, ...]:
    return tuple(unquote_name(child) for child in part.children if child is not None)


def _build_dynamic(
    text: str, parts: dict[str, Any], factories: Collection[str], arguments: dict[str, Any]
) -> DynamicRowPattern:
    if parts["measures"].children != [None]:
        raise RowPatternError(
            "MEASURES in MATCH_RECOGNIZE_DYNAMIC is not supported; the functions of the rules"
            " create rows"
        )
    options: dict[str, str | int | float] = {}
    start = parts["options"].meta.start_pos
    for name, setting in (each.children for each in parts["options"].children):
        option = _read_text(name)
        if option.lower() == _FACTORY:
            option, start = _FACTORY, setting.meta.start_pos
        if option in options:
            raise RowPatternError(f"`{option}` is set twice", position=locate(text, name.start_pos))
        options[option] = _read_setting(setting)
    if _FACTORY not in options:
        raise RowPatternError(
            f"no option names the discoverer; write {_FACTORY} = name", position=locate(text, start)
        )
    factory = str(options.pop(_FACTORY))
    _check_name(text, factory, start, factories, "factory")
    return DynamicRowPattern(**arguments, factory=factory, options=options)


def _read_text(token: Token) -> str:
    quoted = token.startswith("'")
    return token[1:-1].replace("''", "'") if quoted else unquote_name(token)


def _read_setting(setting: Any) -> str | int | float:
    tokens = setting.children
    if setting.data == "number":
        return int(tokens[0]) if tokens[0].isdigit() else float(tokens[0])
    return ".".join(map(_read_text, tokens))


def _build_fixed(text: str, parts: dict[str, Any], arguments: dict[str, Any]) -> RowPattern:
    body, interval, unit = parts["pattern"].children
    variables = _list_variables(body)
    conditions: dict[str, str] = {}
    first = variables[0]
    for definition in (each for each in parts["define"].children if each is not None):
        name, expression = definition.children
        if unquote_name(name) not in variables:
            raise RowPatternError(
                f"`{name}` is defined and is not in the pattern",
                position=locate(text, name.start_pos),
            )
        scope = Scope(text, unquote_name(name), tuple(variables), first=unquote_name(name) == first)
        conditions[unquote_name(name)] = render(expression, scope)
    pattern = _build_sequence(text, body, conditions, _read_skip(parts["skip"]))
    _check_end(text, body)
    if interval is not None:
        pattern = pattern.within(_read_interval(text, interval, unit))
    measures = [each for each in parts["measures"].children if each is not None]
    return RowPattern(
        **arguments,
        pattern=pattern,
        measures=tuple(_read_measure(text, each, variables) for each in measures),
    )


def _list_variables(body: Any) -> list[str]:
    variables: list[str] = []
    for factor in body.children:
        if factor.data == "group":
            variables += _list_variables(factor.children[0])
        else:
            variables.append(unquote_name(factor.children[0]))
    return variables


def _read_skip(part: Any) -> Skip:
    (target,) = part.children
    if target is None:
        return Skip(strategy="skip_past_last")
    strategy: SkipStrategy = target.data
    return Skip(
        strategy=strategy, stage=unquote_name(target.children[0]) if target.children else None
    )


def _build_sequence(
    text: str, body: Any, conditions: Mapping[str, str], skip: Skip | None = None
) -> Pattern:
    pattern: Pattern | None = None
    for factor in body.children:
        inner, quantifier = factor.children
        stage: str | Pattern = (
            _build_sequence(text, inner, conditions)
            if factor.data == "group"
            else unquote_name(inner)
        )
        pattern = Pattern.begin(stage, skip=skip) if pattern is None else pattern.next(stage)
        if isinstance(stage, str) and stage in conditions:
            pattern = pattern.where(conditions[stage])
        if quantifier is not None:
            pattern = _apply_quantifier(text, pattern, quantifier, factor)
    assert pattern is not None  # noqa: S101 - the grammar requires a factor
    return pattern


def _apply_quantifier(text: str, pattern: Pattern, quantifier: Any, factor: Any) -> Pattern:
    count, reluctant = quantifier.children
    numbers = [None if each is None else int(each) for each in count.children]
    low, high = _read_bounds(count.data, numbers)
    if (low, high) == (0, 1):
        return pattern.optional()
    if high is None:
        pattern = pattern.times_or_more(max(low, 1)).consecutive()
    else:
        pattern = pattern.times(max(low, 1), high).consecutive()
    if reluctant is None and low != high:
        if factor.data == "group":
            raise RowPatternError(
                "a greedy quantifier on a group is not supported; write `?` after it to take as"
                " few as possible",
                position=locate(text, factor.meta.start_pos),
            )
        pattern = pattern.greedy()
    return pattern if low else pattern.optional()


def _read_bounds(kind: str, numbers: list[int | None]) -> tuple[int, int | None]:
    match kind:
        case "plus":
            return 1, None
        case "star":
            return 0, None
        case "maybe":
            return 0, 1
        case "upto":
            return 0, numbers[0]
        case "exactly":
            return numbers[0] or 0, numbers[0]
        case _:
            return numbers[0] or 0, numbers[1]


def _check_end(text: str, body: Any) -> None:
    inner, quantifier = body.children[-1].children
    if quantifier is None:
        return
    count, reluctant = quantifier.children
    numbers = [None if each is None else int(each) for each in count.children]
    low, high = _read_bounds(count.data, numbers)
    if reluctant is None and low != high:
        at: Any = inner.start_pos if isinstance(inner, Token) else inner.meta.start_pos
        raise RowPatternError(
            "a greedy quantifier at the end is not supported, because no row ends it; add a"
            " variable after it, or write `?` after the quantifier",
            position=locate(text, at),
        )


def _read_interval(text: str, interval: Token, unit: Any) -> str:
    number = interval.value[1:-1].strip()
    if not re.fullmatch(r"\d+(\.\d+)?", number):
        raise RowPatternError(
            f"{interval} is not a number", position=locate(text, interval.start_pos or 0)
        )
    word = unit.children[0].lower().rstrip("s")
    letters = {"millisecond": "ms", "second": "s", "minute": "m", "hour": "h", "day": "d"}
    return f"{number}{letters[word]}"


def _read_measure(text: str, part: Any, variables: list[str]) -> Measure:
    expression, name = part.children
    measure = Measure(name=unquote_name(name), function="last", stage=None, field=None)
    data, children = expression.data, expression.children
    function = "last"
    if data == "call":
        function, argument, offset = children[0].lower(), children[1], children[2]
        if offset is not None or function == "prev" or argument is None:
            data = "other"
        else:
            data, children = argument.data, argument.children
    if data == "rows_" and function == "count":
        return Measure(name=measure.name, function="count", stage=None, field=None)
    if data == "column":
        return Measure(
            name=measure.name, function=function, stage=None, field=unquote_name(children[0])
        )
    if data == "qualified" and unquote_name(children[0]) in variables:
        stage, column = map(unquote_name, children)
        return Measure(name=measure.name, function=function, stage=stage, field=column)
    raise RowPatternError(
        f"measure `{measure.name}` is not supported; write A.x, or one of FIRST, LAST, COUNT, SUM,"
        " AVG, MIN, MAX of it",
        position=locate(text, name.start_pos),
    )
