"""Type check of conditions against the columns of a stream and the terms of a run."""

from __future__ import annotations

from streambroker_core.cep.pattern.conditions import (
    All,
    Condition,
    Some,
    TextCondition,
    format_term,
)
from streambroker_core.cep.pattern.errors import ConditionError
from streambroker_core.cep.pattern.match_buffer import Term
from streambroker_core.errors import locate
from streambroker_core.expression import check_filter
from streambroker_core.expression.filter_types import column_type
from streambroker_core.model.schema import Column, Schema

_COUNTS = ("count", "timestamp", "processing_time")


def check_condition(condition: Condition | None, schema: Schema) -> None:
    """Check a condition against columns, with the rules of filters; functions are not checked.

    Raises:
        ExpressionError: a column is unknown, or compared with another type.
    """
    if isinstance(condition, All | Some):
        for item in condition.items:
            check_condition(item, schema)
    elif isinstance(condition, TextCondition):
        types = {column.name: column.type for column in schema}
        terms = tuple(
            Column(name, _term_type(condition, term, types)) for name, term in condition.terms
        )
        check_filter(condition.expression, (*schema, *terms))
        types |= {term.name: term.type for term in terms}
        for names in condition.alike:
            _check_alike(condition, names, [types[name] for name in names])


def _check_alike(condition: TextCondition, names: tuple[str, str], types: list[str]) -> None:
    if len({column_type(each).kind for each in types}) > 1:
        raise ConditionError(
            position=locate(condition.expression.source, 0),
            found=f"`{names[0]}` of type {types[0]} and `{names[1]}` of type {types[1]}",
            expected="columns of one kind",
            hint="Spark rounds the integer; a text in the language of conditions compares exactly",
        )


def _term_type(condition: TextCondition, term: Term, types: dict[str, str]) -> str:
    """Return the type of a term's value."""
    if term.function in _COUNTS or term.field is None:
        return "bigint"
    column, *path = term.field.split(".")
    if column not in types:
        raise _make_error(condition, term, f"unknown column `{column}`", "a column of the stream")
    field_type = types[column]
    for name in path:
        fields = _struct_fields(field_type)
        if name not in fields:
            known = ", ".join(fields) or "none"
            raise _make_error(
                condition, term, f"`{term.field}`", f"a field of a struct; it has {known}"
            )
        field_type = fields[name]
    kind = column_type(field_type).kind
    if term.function not in ("sum", "avg"):
        return field_type
    if kind not in ("integer", "float"):
        raise _make_error(
            condition, term, f"`{format_term(term)}` of type {field_type}", "a column of numbers"
        )
    return "double" if kind == "float" or term.function == "avg" else "bigint"


def _struct_fields(struct: str) -> dict[str, str]:
    """Return the fields of a struct type in Spark's form: ``struct<x:int,y:struct<z:string>>``."""
    if not struct.startswith("struct<"):
        return {}
    parts, depth = [""], 0
    for letter in struct[len("struct<") : -1]:
        depth += (letter in "<(") - (letter in ">)")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return {name: kind for name, _, kind in (part.partition(":") for part in parts)}


def _make_error(condition: TextCondition, term: Term, actual: str, expected: str) -> ConditionError:
    source = condition.expression.source
    at = max(0, source.find(format_term(term)))
    return ConditionError(position=locate(source, at), found=actual, expected=expected, hint=None)
