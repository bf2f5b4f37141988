"""What a rule would have made of stored events, before it goes live."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from pe_agent.aligned import AlignedError
from pe_agent.cep.key_selectors import Key, check_selector, to_selector
from streambroker_core.cep.engine import trace as explain
from streambroker_core.cep.engine.trace import DryRun
from streambroker_core.cep.engine.watermark_buffer import event_times
from streambroker_core.cep.pattern.conditions import ConditionFunction
from streambroker_core.cep.pattern.pattern import Pattern
from streambroker_core.cep.pattern.rule import PatternProcessor
from streambroker_core.cep.rules.document import read_rule
from streambroker_core.cep.rules.rule_set import RuleContext, RuleSet

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Events: TypeAlias = "DataFrame | pa.Table | pa.RecordBatch | Iterable[Mapping[str, Any]]"
Rule: TypeAlias = "Pattern | PatternProcessor | Mapping[str, Any]"
"""A pattern, a rule, or the document of one."""


def dry_run(
    events: Events,
    rule: Rule,
    *,
    event_time: str,
    key: Key = (),
    tie_break: str | None = None,
    functions: Mapping[str, ConditionFunction] | None = None,
) -> DryRun:
    """Return what a rule would have made of stored events: matches, time-outs, and why not more.

    All events are read into the driver. They are seen in the order of their times; those without a
    time, or before the rule's ``scheduled``, are not. What is decided by time alone and has not
    come with the last event is in ``left``.

    Args:
        events: a DataFrame that is no stream, an Arrow table or batch, or rows.
        rule: what is tried; its key and limits hold, its function is not called.
        event_time: column with the event time: timestamps, or microseconds as integers.
        key: that of rules without one, as for `pattern_processors`.
        tie_break: a column by which events of one time are ordered.
        functions: Python functions that conditions name.

    Raises:
        AlignedError: something does not fit, or the rule is refused.
        RunError: a function raised, a skip has no target, or its limits say to fail.
    """
    table = _as_table(events)
    names = table.schema.names
    for what, column in (("event time", event_time), ("tie break", tie_break)):
        if column is not None and column not in names:
            raise AlignedError(
                f"the {what} {column} is no column of the events; they have {', '.join(names)}."
            )
    tried = _validate_rule(rule, functions or {}, names)
    rows, at = table.to_pylist(), dict[int, int]()
    for row, time in zip(rows, _read_times(table, event_time), strict=True):
        if time is not None and (tried.starts is None or time >= tried.starts):
            at[id(row)] = time
    seen = [row for row in rows if id(row) in at]
    if tie_break is not None:
        seen.sort(key=lambda row: (row[tie_break] is None, row[tie_break]))
    return explain.dry_run(
        tried.pattern,
        seen,
        time=lambda row: at[id(row)],
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
    rule: Rule, functions: Mapping[str, ConditionFunction], names: list[str]
) -> PatternProcessor:
    given: Any = rule
    if isinstance(given, Pattern):
        given = PatternProcessor(id="dry run", version=0, pattern=given)
    output = given.function if isinstance(given, PatternProcessor) else given.get("function")
    context = RuleContext(
        functions=functions,
        outputs=frozenset() if output is None else frozenset({output}),
        fields=frozenset(names),
    )
    _, (outcome,) = RuleSet().apply_update([given], context)
    if outcome.change == "refused":
        raise AlignedError(f"the rule is refused ({outcome.reason}): {outcome.message}.")
    return given if isinstance(given, PatternProcessor) else read_rule(given, functions)


def _read_times(table: pa.Table, column: str) -> list[int | None]:
    try:
        times: list[int | None] = event_times(table, column).to_pylist()
    except pa.ArrowException as error:
        kind = table.schema.field(column).type
        raise AlignedError(
            f"the event time {column} has type {kind}: give timestamps, or microseconds."
        ) from error
    return times
