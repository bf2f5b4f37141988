"""Patterns in SQL on streams: MATCH_RECOGNIZE, and MATCH_RECOGNIZE_DYNAMIC with a discoverer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from pe_agent.aligned.plan import plan_of
from pe_agent.cep.discovery.discoverer import (
    PatternProcessorDiscoverer,
    PatternProcessorDiscovererFactory,
)
from pe_agent.cep.pattern_plan import Functions
from pe_agent.datasource.schemas import spark_to_arrow
from pe_agent.streams.stream import PatternStream, Stream
from streambroker_core.cep.engine.outputs import MatchedEvents
from streambroker_core.cep.operator import MatchFunction
from streambroker_core.cep.pattern.rule import PatternProcessor
from streambroker_core.cep.sql import DynamicRowPattern, Measure, RowPattern, read_row_pattern
from streambroker_core.errors import AlignedError
from streambroker_core.model.durations import Duration

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame

Factory: TypeAlias = (
    "PatternProcessorDiscovererFactory | PatternProcessorDiscoverer"
    " | Callable[..., PatternProcessorDiscoverer]"
)
ROWS = "rows"
"""The output of a MATCH_RECOGNIZE: a row for each match."""
_FIXED_TYPES = {
    "count": pa.int64(),
    "avg": pa.float64(),
    "classifier": pa.string(),
    "match_number": pa.int64(),
}


def sql(
    text: str,
    tables: Mapping[str, Stream | DataFrame],
    factories: Mapping[str, Factory] | None = None,
    *,
    watermark: Duration | None = None,
    control_file: str | Path | None = None,
    functions: Functions | None = None,
    **settings: Any,
) -> Stream:
    """Run the patterns of a statement on a stream.

    The first column of ORDER BY is the event time, a second one orders rows with equal times. A
    dynamic statement may leave out ORDER BY, for the time of the stream, and PARTITION BY, for the
    keys of the rules.

    Args:
        text: ``SELECT … FROM table MATCH_RECOGNIZE (…)``, or ``MATCH_RECOGNIZE_DYNAMIC``.
        tables: streams by the names that the text may use.
        factories: discoverers, or their factories, by the names that the text may use. A factory
            has a method ``create``, or is a function; further options of a dynamic statement are
            its keyword arguments.
        watermark: how much later rows may arrive, if the stream has no watermark.
        control_file: as for `Stream.match_rules`; a dynamic statement on a stream without a PE
            needs it.
        functions: what rules may name.
        settings: ``name`` and ``options``; of a dynamic statement all of `Stream.match_rules`.

    Returns:
        The columns that the text selects, a row for each match. A dynamic statement selects from
        the matches of `Stream.match_rules`, or from the rows that one of ``functions`` makes of
        them. For ``*`` it returns the matches as a `PatternStream`.

    Raises:
        RowPatternError: it cannot be read, is outside of the subset, or names something unknown.
        PatternError: it can be read, but the pattern contradicts itself.
        AlignedError: an argument does not fit; nothing was started.
    """
    query = read_row_pattern(text, tables=tables, factories=factories or {})
    stream = Stream(plan_of(tables[query.table]))
    if len(query.order) > 2:
        raise AlignedError(
            f"ORDER BY names {', '.join(query.order)}: it may name the event time and at most one"
            " other column."
        )
    fitted = settings | dict(zip(("event_time", "tie_break"), query.order, strict=False))
    if query.key or isinstance(query, RowPattern):
        fitted["key"] = query.key
    if watermark is not None:
        if not query.order:
            raise AlignedError(
                "watermark= without ORDER BY: let ORDER BY name the column with the event time."
            )
        stream = stream.with_watermark(query.order[0], watermark)
    if isinstance(query, DynamicRowPattern):
        return _run_dynamic(query, stream, factories or {}, fitted, control_file, functions)
    function = _match_function(query, spark_to_arrow(stream.schema()))
    rule = PatternProcessor(
        id=query.table,
        version=1,
        pattern=query.pattern,
        function=ROWS,
        numbered=query.is_numbered,
    )
    named = {**(functions or {}), ROWS: function}
    fitted["output"] = "json"  # nothing reads these matches, and checkpoints have that form
    made = stream.match(rule, functions=named, timeouts=False, **fitted)
    return made.outputs[ROWS].select(*(query.columns or function.schema.names))


def _run_dynamic(
    statement: DynamicRowPattern,
    stream: Stream,
    factories: Mapping[str, Any],
    settings: dict[str, Any],
    control_file: str | Path | None,
    functions: Functions | None,
) -> Stream:
    source, named = _create_discoverer(statement, factories[statement.factory]), functions or {}
    made = stream.match_rules(source, control_file=control_file, functions=named, **settings)
    try:
        return _select(made, statement.columns, [one for one in made.outputs if one in named])
    except AlignedError:
        made.rules.close()
        raise


def _create_discoverer(statement: DynamicRowPattern, factory: Any) -> Any:
    """Return the factory's discoverer; one that is no factory is returned as it is."""
    create = getattr(factory, "create", factory)
    if not callable(create) and not statement.options:
        return factory
    try:
        return create(**statement.options)
    except TypeError as error:
        raise AlignedError(
            f"{statement.factory} does not make a discoverer with the options"
            f" ({', '.join(statement.options)}): {error}. Register a factory that takes them."
        ) from error


def _select(made: PatternStream, columns: tuple[str, ...], functions: list[str]) -> Stream:
    """Return columns of matches or, if these lack one, of the function whose rows have them all."""
    if not columns:
        return made
    streams = {"matches": made, **{name: made.outputs[name] for name in functions}}
    names = {name: one.schema().names for name, one in streams.items()}
    fitting = [name for name in names if set(columns) <= set(names[name])]
    if fitting and (fitting[0] == "matches" or len(fitting) == 1):
        return streams[fitting[0]].select(*columns)
    if fitting:
        raise AlignedError(
            f"SELECT names {', '.join(columns)}, which the functions {' and '.join(fitting)} have:"
            " register one of them, and let all rules name it."
        )
    known = "; ".join(f"{name} has {', '.join(names[name])}" for name in names)
    raise AlignedError(f"SELECT names {', '.join(columns)}, which nothing has together: {known}.")


def _match_function(statement: RowPattern, columns: pa.Schema) -> MatchFunction:
    unknown = [name for name in statement.key if name not in columns.names]
    if unknown:
        raise AlignedError(f"PARTITION BY names {unknown[0]}, which is not a column.")
    schema = pa.schema(
        [
            *(columns.field(name) for name in statement.key),
            *(pa.field(one.name, _measure_type(one, columns)) for one in statement.measures),
        ]
    )
    for name in statement.columns:
        if name not in schema.names:
            raise AlignedError(
                f"SELECT names {name}, and a match has {', '.join(schema.names) or 'no columns'}."
            )
    key, measures = statement.key, statement.measures

    def row(match: MatchedEvents) -> dict[str, Any]:
        values = {one.name: one.evaluate(match.rows, match.number) for one in measures}
        return dict(zip(key, match.key, strict=True)) | values

    return MatchFunction(schema=schema, matched=row)


def _measure_type(measure: Measure, columns: pa.Schema) -> pa.DataType:
    """Return a measure's type; raise AlignedError for a missing column, or a sum of no numbers."""
    if measure.function in _FIXED_TYPES:
        return _FIXED_TYPES[measure.function]
    if measure.field is None or measure.field not in columns.names:
        raise AlignedError(f"measure {measure.name} is of {measure.field}, which is not a column.")
    kind = columns.field(measure.field).type
    if measure.function != "sum":
        return kind
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise AlignedError(f"measure {measure.name} is a sum of {measure.field}, which is {kind}.")
    return pa.int64() if pa.types.is_integer(kind) else pa.float64()
