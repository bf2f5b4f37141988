"""Dry runs of a rule on stored events, before it goes live."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from pe_agent.cep.key_selectors import Key, check_selector, to_selector
from pe_agent.filters import to_spark_schema
from streambroker_core.cep.engine import trace as explain
from streambroker_core.cep.engine.trace import DryRun
from streambroker_core.cep.engine.watermark_buffer import event_times
from streambroker_core.cep.pattern.conditions import ConditionFunction
from streambroker_core.cep.pattern.pattern import Pattern
from streambroker_core.cep.pattern.rule import PatternProcessor
from streambroker_core.cep.rules.document import read_rule
from streambroker_core.cep.rules.rule_set import RuleContext, RuleSet
from streambroker_core.errors import AlignedError
from streambroker_core.model.schema import Schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Events: TypeAlias = "DataFrame | pa.Table | pa.RecordBatch | Iterable[Mapping[str, Any]]"
Rule: TypeAlias = "Pattern | PatternProcessor | Mapping[str, Any]"
"""A pattern, a rule, or the document of a rule."""


def dry_run(
    events: Events,
    rule: Rule,
    *,
    event_time: str,
    key: Key = (),
    tie_break: str | None = None,
    functions: Mapping[str, ConditionFunction] | None = None,
) -> DryRun:
    """Return what a rule would have found in stored events: matches, time-outs, and why not more.

    All events are read into the driver. They are processed in the order of their times. Events
    without a time, or before the rule's ``scheduled``, are ignored. Results that depend on time
    alone, and were not due at the last event, are in ``left``.

    Args:
        events: a DataFrame that is no stream, an Arrow table or batch, or rows. Rows have no types,
            so conditions are not checked against them.
        rule: the rule to try; its key and limits apply, its function is not called.
        event_time: column with the event time: timestamps, or microseconds as integers.
        key: key of rules without one, as for `match_rules`.
        tie_break: column that orders events with equal times.
        functions: Python functions that conditions name.

    Raises:
        AlignedError: an argument does not fit, or the rule is refused.
        RunError: a function raised, a skip has no target, or its limits require failure.
    """
    table = _as_table(events)
    names = table.schema.names
    for what, column in (("event time", event_time), ("tie break", tie_break)):
        if column is not None and column not in names:
            raise AlignedError(
                f"the {what} {column} is not a column of the events; they have {', '.join(names)}."
            )
    is_typed = isinstance(events, pa.Table | pa.RecordBatch) or hasattr(events, "toArrow")
    schema = to_spark_schema(table.schema) if is_typed else None
    tried = _validate_rule(rule, functions or {}, names, schema)
    rows, times = table.to_pylist(), dict[int, int]()
    for row, time in zip(rows, _read_times(table, event_time), strict=True):
        if time is not None and (tried.starts is None or time >= tried.starts):
            times[id(row)] = time
    ordered = [row for row in rows if id(row) in times]
    if tie_break is not None:
        ordered.sort(key=lambda row: (row[tie_break] is None, row[tie_break]))
    return explain.dry_run(
        tried.pattern,
        ordered,
        time=lambda row: times[id(row)],
        key=tried.key or check_selector(to_selector(key), names, "the key"),
        limits=tried.limits,
    )


def _as_table(events: Any) -> pa.Table:
    if isinstance(events, pa.Table):
        return events
    if isinstance(events, pa.RecordBatch):
        return pa.Table.from_batches([events])
    if hasattr(events, "toArrow"):
        if events.isStreaming:
            raise AlignedError("the events are a stream: give stored ones, as spark.read has them.")
        return events.toArrow()
    return pa.Table.from_pylist([dict(row) for row in events])


def _validate_rule(
    rule: Rule,
    functions: Mapping[str, ConditionFunction],
    names: list[str],
    schema: Schema | None,
) -> PatternProcessor:
    checked: Any = rule
    if isinstance(checked, Pattern):
        checked = PatternProcessor(id="dry run", version=0, pattern=checked)
    output = checked.function if isinstance(checked, PatternProcessor) else checked.get("function")
    context = RuleContext(
        functions=functions,
        outputs=frozenset() if output is None else frozenset({output}),
        fields=frozenset(names),
        schema=schema,
    )
    _, (outcome,) = RuleSet().apply_update([checked], context)
    if outcome.change == "refused":
        raise AlignedError(f"the rule is refused ({outcome.reason}): {outcome.message}.")
    return checked if isinstance(checked, PatternProcessor) else read_rule(checked, functions)


def _read_times(table: pa.Table, column: str) -> list[int | None]:
    try:
        times: list[int | None] = event_times(table, column).to_pylist()
    except pa.ArrowException as error:
        kind = table.schema.field(column).type
        raise AlignedError(
            f"the event time {column} has type {kind}: give timestamps, or microseconds."
        ) from error
    return times
