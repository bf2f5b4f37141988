"""Parser from SQL to a rule.

SQL row patterns are strict: variables follow each other directly, and quantifiers are greedy unless
``?`` follows. Therefore a variable joins with ``next`` and repeats with ``consecutive().greedy()``.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedInput

from streambroker_core.cep.pattern.conditions import MAX_OFFSET
from streambroker_core.cep.pattern.errors import RowPatternError
from streambroker_core.cep.pattern.pattern import Pattern, Skip, SkipStrategy
from streambroker_core.cep.sql.expressions import Scope, render, unquote_name
from streambroker_core.cep.sql.grammar import GRAMMAR, REFUSED
from streambroker_core.errors import locate
from streambroker_core.expression.evaluate import Row

_PARSER = Lark(GRAMMAR, parser="lalr", maybe_placeholders=True, propagate_positions=True)
_PLAIN = re.compile(r"'(?:[^']|'')*'|--[^\n]*|/\*(?:.|\n)*?\*/")
_FACTORY = "pattern_processor_discoverer_factory"
_MAX_BYTES = 64 * 1024
_MAX_PERMUTED = 5
_FACTORS = ("variable", "group", "permute")
_PARTS = (*_FACTORS, "choice", "sequence")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A column of the result.

    Attributes:
        function: first, last, count, sum, avg, min, max, classifier or match_number.
        stage: variable that is measured; None for all rows of the match.
        field: column that is measured; None to count rows.
        offset: how many rows lie between the first or last row and the one that is measured.
    """

    name: str
    function: str
    stage: str | None
    field: str | None
    offset: int = 0

    def evaluate(self, rows: Sequence[tuple[str, Row]], number: int | None = None) -> Any:
        """Return the value for a match; None if there is none.

        `rows` has the variable and the row of each event in order; `number` is that of the match.
        """
        if self.function in ("classifier", "match_number"):
            return rows[-1][0] if self.function == "classifier" else number
        measured = [row for stage, row in rows if self.stage in (None, stage)]
        if self.function == "count" and self.field is None:
            return len(measured)
        values = [row.get(self.field or "") for row in measured]
        if self.function in ("first", "last"):
            at = self.offset if self.function == "first" else len(values) - 1 - self.offset
            return values[at] if 0 <= at < len(values) else None
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

    @property
    def is_numbered(self) -> bool:
        """Whether a measure is the number of the match."""
        return any(measure.function == "match_number" for measure in self.measures)


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
    tables: Collection[str],
    factories: Collection[str] = (),
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
    factors = [each for each in _list_factors(body) if each.data == "variable"]
    variables = list(dict.fromkeys(unquote_name(each.children[0]) for each in factors))
    conditions: dict[str, str] = {}
    first, _ = _find_first(body)
    for definition in (each for each in parts["define"].children if each is not None):
        name, expression = definition.children
        if unquote_name(name) not in variables:
            raise RowPatternError(
                f"`{name}` is defined and is not in the pattern",
                position=locate(text, name.start_pos),
            )
        scope = Scope(text, unquote_name(name), tuple(variables), first=unquote_name(name) in first)
        conditions[unquote_name(name)] = render(expression, scope)
    pattern = _build_choice(text, body, conditions).skipping(_read_skip(parts["skip"]))
    _check_end(text, body)
    _check_reluctant(text, body)
    if interval is not None:
        pattern = pattern.within(_read_interval(text, interval, unit))
    measures = [each for each in parts["measures"].children if each is not None]
    return RowPattern(
        **arguments,
        pattern=pattern,
        measures=tuple(_read_measure(text, each, variables) for each in measures),
    )


def _list_factors(body: Any) -> list[Any]:
    """Return all variables, groups and permutations, from left to right."""
    return [each for each in body.iter_subtrees_topdown() if each.data in _FACTORS]


def _find_first(node: Any) -> tuple[set[str], bool]:
    """Return the variables that may take the first row, and whether none needs to take one."""
    if node.data == "variable":
        return {unquote_name(node.children[0])}, _may_be_left_out(node)
    inner = [each for each in node.children if isinstance(each, Tree) and each.data in _PARTS]
    parts = [_find_first(each) for each in inner]
    if node.data == "sequence":
        needed = next((at for at, (_, empty) in enumerate(parts) if not empty), None)
        taken = parts if needed is None else parts[: needed + 1]
        return set[str]().union(*(names for names, _ in taken)), needed is None
    empty = (all if node.data == "permute" else any)(empty for _, empty in parts)
    names = set[str]().union(*(names for names, _ in parts))
    return names, empty or (node.data != "choice" and _may_be_left_out(node))


def _may_be_left_out(factor: Any) -> bool:
    quantifier = factor.children[-1]
    return quantifier is not None and _read_quantifier(quantifier)[0] == 0


def _check_reluctant(text: str, body: Any) -> None:
    """Refuse to leave out a part if possible, because the automaton takes it first."""
    choices = [each for each in body.find_data("choice") if len(each.children) > 1]
    if not choices and not any(body.find_data("permute")):
        return
    for factor in _list_factors(body):
        if _may_be_left_out(factor) and _read_quantifier(factor.children[-1])[2]:
            raise RowPatternError(
                "`?` after a quantifier from 0 is not supported with alternatives; write the two"
                " as alternatives, as in (B | A B) for A?? B",
                position=locate(text, factor.meta.start_pos),
            )


def _read_skip(part: Any) -> Skip:
    (target,) = part.children
    if target is None:
        return Skip(strategy="skip_past_last")
    strategy: SkipStrategy = target.data
    return Skip(
        strategy=strategy, stage=unquote_name(target.children[0]) if target.children else None
    )


def _build_choice(text: str, choice: Any, conditions: Mapping[str, str]) -> Pattern:
    branches = [_build_sequence(text, branch.children, conditions) for branch in choice.children]
    return branches[0] if len(branches) == 1 else Pattern.either(*branches)


def _build_permutations(text: str, parts: list[Any], conditions: Mapping[str, str]) -> Pattern:
    if len(parts) > _MAX_PERMUTED:
        raise RowPatternError(
            f"PERMUTE of {len(parts)} parts is not supported; at most {_MAX_PERMUTED} are, because"
            " each order is an alternative",
            position=locate(text, parts[0].meta.start_pos),
        )
    orders = itertools.permutations(part.children for part in parts)
    branches = [_build_sequence(text, itertools.chain(*order), conditions) for order in orders]
    return branches[0] if len(branches) == 1 else Pattern.either(*branches)


def _build_sequence(text: str, factors: Iterable[Any], conditions: Mapping[str, str]) -> Pattern:
    pattern: Pattern | None = None
    for factor in factors:
        *inner, quantifier = factor.children
        stage: str | Pattern
        if factor.data == "variable":
            stage = unquote_name(inner[0])
        elif factor.data == "group":
            stage = _build_choice(text, inner[0], conditions)
        else:
            stage = _build_permutations(text, inner[1:], conditions)
        pattern = Pattern.begin(stage) if pattern is None else pattern.next(stage)
        if isinstance(stage, str) and stage in conditions:
            pattern = pattern.where(conditions[stage])
        if quantifier is not None:
            pattern = _apply_quantifier(text, pattern, quantifier, factor)
    assert pattern is not None  # noqa: S101 - the grammar requires a factor
    return pattern


def _read_quantifier(quantifier: Any) -> tuple[int, int | None, bool]:
    """Return the least and the greatest number of times, and whether few are preferred."""
    count, reluctant = quantifier.children
    numbers = [None if each is None else int(each) for each in count.children]
    return *_read_bounds(count.data, numbers), reluctant is not None


def _apply_quantifier(text: str, pattern: Pattern, quantifier: Any, factor: Any) -> Pattern:
    low, high, reluctant = _read_quantifier(quantifier)
    if (low, high) == (0, 1):
        return pattern.optional()
    if high is None:
        pattern = pattern.times_or_more(max(low, 1)).consecutive()
    else:
        pattern = pattern.times(max(low, 1), high).consecutive()
    if not reluctant and low != high:
        if factor.data != "variable":
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


def _check_end(text: str, choice: Any) -> None:
    for sequence in choice.children:
        _check_last(text, sequence.children[-1])


def _check_last(text: str, factor: Any) -> None:
    *inner, quantifier = factor.children
    if quantifier is not None:
        low, high, reluctant = _read_quantifier(quantifier)
        if not reluctant and low != high:
            raise RowPatternError(
                "a greedy quantifier at the end is not supported, because no row ends it; add a"
                " variable after it, or write `?` after the quantifier",
                position=locate(text, factor.meta.start_pos),
            )
    if factor.data == "group":
        _check_end(text, inner[0])
    elif factor.data == "permute":
        for sequence in inner[1:]:
            _check_last(text, sequence.children[-1])


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
    expression, token = part.children
    name, function, argument, offset = unquote_name(token), "last", expression, None
    if expression.data == "call":
        _, function, argument, offset = expression.children
        function = function.lower()
    kind = None if argument is None else argument.data
    is_column = kind in ("column", "qualified")
    *stages, field = [unquote_name(each) for each in argument.children] if is_column else [None]
    if function in ("classifier", "match_number"):
        has_form = argument is None and offset is None
    elif offset is not None:
        has_form = function in ("first", "last") and is_column and int(offset) <= MAX_OFFSET
    else:
        has_form = function != "prev" and (is_column or (function, kind) == ("count", "rows_"))
    if has_form and all(stage in variables for stage in stages):
        stage = next(iter(stages), None)
        at = int(offset or 0)
        return Measure(name=name, function=function, stage=stage, field=field, offset=at)
    raise RowPatternError(
        f"measure `{name}` is not supported; write A.x, or one of FIRST, LAST, COUNT, SUM, AVG,"
        f" MIN, MAX of it, FIRST or LAST with an offset up to {MAX_OFFSET}, CLASSIFIER() or"
        " MATCH_NUMBER()",
        position=locate(text, token.start_pos),
    )
