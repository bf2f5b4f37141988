"""Patterns in SQL on streams: MATCH_RECOGNIZE, and MATCH_RECOGNIZE_DYNAMIC with a discoverer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pe_agent.aligned.plan import plan_of
from pe_agent.cep.discovery.discoverer import (
    PatternProcessorDiscoverer,
    PatternProcessorDiscovererFactory,
)
from pe_agent.cep.pattern_plan import Functions
from pe_agent.datasource.schemas import spark_to_arrow
from pe_agent.streams.stream import Stream
from streambroker_core.cep.engine.outputs import MatchedEvents
from streambroker_core.cep.operator import MatchFunction
from streambroker_core.cep.pattern.match_buffer import Event
from streambroker_core.cep.pattern.rule import PatternProcessor
from streambroker_core.cep.sql import DynamicRowPattern, Measure, RowPattern, read_row_pattern
from streambroker_core.errors import AlignedError
from streambroker_core.model.durations import Duration

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame

ROWS = "rows"
"""The output of a MATCH_RECOGNIZE: a row for each match."""
_FIXED_TYPES = {"count": pa.int64(), "avg": pa.float64()}


def sql(
    text: str,
    tables: Mapping[str, Stream | DataFrame],
    factories: Mapping[str, PatternProcessorDiscovererFactory | PatternProcessorDiscoverer]
    | None = None,
    *,
    watermark: Duration | None = None,
    control_file: str | Path | None = None,
    functions: Functions | None = None,
    **settings: Any,
) -> Stream:
    """Run the patterns of a statement on a stream.

    The first column of ORDER BY is the event time, a second one orders rows with equal times.

    Args:
        text: ``SELECT … FROM table MATCH_RECOGNIZE (…)``, or ``MATCH_RECOGNIZE_DYNAMIC``.
        tables: streams by the names that the text may use.
        factories: discoverers, or their factories, by the names that the text may use.
        watermark: how much later rows may arrive, if the stream has no watermark.
        control_file: as for `Stream.match_rules`; a dynamic statement needs it.
        functions: what rules may name.
        settings: ``name`` and ``options``; of a dynamic statement all of `Stream.match_rules`.

    Returns:
        The columns that the text selects, a row for each match. For a dynamic statement the matches
        of `Stream.match_rules`: a `PatternStream`.

    Raises:
        RowPatternError: it cannot be read, is outside of the subset, or names something unknown.
        PatternError: it can be read, but the pattern contradicts itself.
        AlignedError: an argument does not fit; nothing was started.
    """
    query = read_row_pattern(text, tables=tables, factories=factories or {})
    stream = Stream(plan_of(tables[query.table]))
    order, more = query.order[0], query.order[1:]
    if len(more) > 1:
        raise AlignedError(
            f"ORDER BY names {', '.join(query.order)}: it may name the event time and at most one"
            " other column."
        )
    fitted: dict[str, Any] = {
        **settings,
        "key": query.key,
        "event_time": order,
        "tie_break": next(iter(more), None),
    }
    if watermark is not None:
        stream = stream.with_watermark(order, watermark)
    if isinstance(query, DynamicRowPattern):
        return _run_dynamic(query, stream, factories or {}, fitted, control_file, functions)
    function = _match_function(query, spark_to_arrow(stream.schema()))
    rule = PatternProcessor(id=query.table, version=1, pattern=query.pattern, function=ROWS)
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
    if control_file is None:
        raise AlignedError(
            "MATCH_RECOGNIZE_DYNAMIC without control_file=: name the file through which rules reach"
            " the query."
        )
    made = stream.match_rules(
        factories[statement.factory], control_file=control_file, functions=functions, **settings
    )
    unknown = [name for name in statement.columns if name not in made.schema().names]
    if unknown:
        made.rules.close()
        raise AlignedError(
            f"SELECT names {unknown[0]}, and the columns of matches are"
            f" {', '.join(made.schema().names)}."
        )
    return made.select(*statement.columns) if statement.columns else made


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
    order, key, measures = statement.order, statement.key, statement.measures

    def row(match: MatchedEvents) -> dict[str, Any]:
        events = _match_events(match, order)
        values = {one.name: one.evaluate(events) for one in measures}
        return dict(zip(key, match.key, strict=True)) | values

    return MatchFunction(schema=schema, matched=row)


def _match_events(match: MatchedEvents, order: tuple[str, ...]) -> dict[str, list[Event]]:
    rows = [(stage, row) for stage, rows in match.events.items() for row in rows]
    ranks = sorted(range(len(rows)), key=lambda at: tuple(rows[at][1][name] for name in order))
    seqs = {at: seq for seq, at in enumerate(ranks)}
    events: dict[str, list[Event]] = {}
    for at, (stage, row) in enumerate(rows):
        events.setdefault(stage, []).append(Event(seqs[at], match.time, row))
    return events


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
