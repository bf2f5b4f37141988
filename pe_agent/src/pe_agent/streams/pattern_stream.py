"""Rules on a stream: the pattern operator in Spark, and the driver side that sends it rules.

>>> made = pattern_processors(  # doctest: +SKIP
...     stream, DirectoryDiscoverer("rules"), key="user", event_time="t", watermark="5 seconds",
...     control="/data/checkpoints/alerts-rules",
... )
>>> query = made.publish_outputs({"matches": "alerts"}, checkpoint="…")  # doctest: +SKIP
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
from pyspark import SparkFiles

from pe_agent.aligned import row_steps
from pe_agent.aligned.data import RowsFrame
from pe_agent.aligned.operator_plan import DEFAULT_BUCKETS, plan_operator
from pe_agent.aligned.plan import StreamPlan, plan_of
from pe_agent.aligned.queries.query_listener import watch_queries
from pe_agent.aligned.runtime.hosting import parse_columns
from pe_agent.aligned.timeout_ticks import TickFile, tick_seconds, tick_source_plan
from pe_agent.cep.accumulators import AccumulatorValue, MetricsAccumulator
from pe_agent.cep.discovery.discoverer import (
    FixedDiscoverer,
    PatternProcessorDiscoverer,
    PatternProcessorDiscovererFactory,
    QueryDiscoverer,
    Wanted,
)
from pe_agent.cep.discovery.manager import OutcomeListener
from pe_agent.cep.key_selectors import Key, check_selector, select_copied_keys, to_selector
from pe_agent.cep.metrics_reporter import RuleMetricsReporter
from pe_agent.cep.pattern_operator import make_operator
from pe_agent.cep.query_rules import Processors
from pe_agent.cep.rules_log import ImportedRules, RulesFile, RulesLog, to_pattern_rules
from pe_agent.datasource.options import format_ddl
from pe_agent.datasource.schemas import spark_to_arrow
from pe_agent.streams.stream import PatternStream, Stream
from streambroker_core.cep.engine.outputs import with_rule_columns
from streambroker_core.cep.nfa.compiled import shortest_timeout
from streambroker_core.cep.operator import (
    ERRORS,
    FAILURES,
    LATE,
    MATCHES,
    RESULTS,
    TIMEOUTS,
    MatchFunction,
    copy_rows,
)
from streambroker_core.cep.pattern.conditions import ConditionFunction, iter_calls
from streambroker_core.cep.pattern.key_selectors import Selector
from streambroker_core.cep.pattern.pattern import Pattern
from streambroker_core.cep.pattern.rule import PatternProcessor
from streambroker_core.cep.rules.push_down import Relevance, compute_relevance
from streambroker_core.cep.rules.rule_set import RuleContext, RuleSet
from streambroker_core.errors import AlignedError, SchemaError
from streambroker_core.model.durations import Duration
from streambroker_core.model.schema import Column, parse_ddl

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator
    from pyspark.sql import DataFrame

log = logging.getLogger("pe_agent.cep")

Functions: TypeAlias = "Mapping[str, MatchFunction | ConditionFunction]"
"""What rules may name: functions for matches, and Python functions of conditions."""
_COPY_COLUMNS = "_selector string, _place binary, _first boolean"


def pattern_processors(
    stream: Stream | DataFrame,
    rules: PatternProcessorDiscoverer | PatternProcessorDiscovererFactory | Sequence[Any],
    *,
    control: str | Path | None = None,
    key: Key = (),
    event_time: str | None = None,
    watermark: Duration | None = None,
    tie_break: str | None = None,
    functions: Functions | None = None,
    selectors: Iterable[Key] = (),
    name: str = "patterns",
    buckets: int | None = None,
    tell: OutcomeListener | None = None,
    push_down: bool = False,
    timeouts: bool = True,
) -> PatternStream:
    """Run rules that change while the query runs.

    The rules found now apply before the first row. A change applies in all partitions from the same
    window on.

    Args:
        stream: rows.
        rules: a discoverer or its factory; it is closed with the query. A list of rules or of their
            documents stays unchanged while the query runs.
        control: file through which rules reach the query. It belongs to the query's checkpoint:
            keep both, or neither. None for a file in the directory of the stream's PE, by ``name``.
        key: key columns, or expressions. They are the query's key for good: rules with another key
            are refused, unless ``selectors`` names it. Without it rules may have any keys, and a
            rule without one has that of the stream, or one key for all rows.
        event_time: column with the event time; None for that of the stream's watermark or, if it
            has none, for processing time.
        watermark: how much later rows may arrive: a duration, as ``10 seconds`` or ``10s``.
        tie_break: column that orders rows with equal times.
        functions: what rules may name.
        selectors: additional keys that rules may have. Rows are copied for each key.
        name: name of the operator, unique in the query and fixed for a checkpoint.
        buckets: number of buckets; fixed for a checkpoint.
        tell: receives the outcome of each rule of an update; its errors are raised to the updater.
        push_down: exporters send only rows that some rule has to see, where the rules allow it;
            ``processors.relevance`` shows whether they do. The stream is an import then. Fixed for
            a checkpoint. Matches are the same; late rows that no rule would see are not reported.
        timeouts: add an output with timed-out partial matches. If it is not read, rules that often
            time out cost less without it; functions get the timeouts they ask for either way.

    Raises:
        AlignedError: an argument does not fit; nothing was started.
        DiscoveryError: the first rules cannot be read, and none were sent before.
    """
    prepared = _PatternInput.from_arguments(
        stream, key, event_time, watermark, tie_break, functions, timeouts=timeouts
    )
    path = _rules_path(prepared.plan, name) if control is None else control
    sending: RulesLog = ImportedRules(path) if push_down else RulesFile(path)
    discoverer = _make_discoverer(rules)
    sent = sending.last()
    try:
        if isinstance(discoverer, QueryDiscoverer):
            discoverer.for_query(sending.name)
        first = _read_first_rules(discoverer, optional=sent is not None)
        before = RuleSet() if sent is None else RuleSet.read(sent.rules, prepared.conditions)
        declared = [to_selector(one) for one in selectors]
        has_key, names = bool(to_selector(key)), prepared.columns.names
        copied = select_copied_keys(
            prepared.key, names, declared, first or (), sent, fixed=has_key or push_down
        )
        if buckets is None:
            buckets = DEFAULT_BUCKETS if prepared.key or copied else 1
        allowed = None if buckets == 1 and not has_key else frozenset(copied or [prepared.key])
        context = replace(prepared.context(allowed), fixed_key=has_key or not copied)
        relevance = prepared.relevance_function(copied) if push_down else None

        prepared = replace(prepared, plan=sending.attach_to(prepared.plan))
        prepared, ticks = prepared.with_ticks(sent is None or sent.ticks)

        def send(one: RuleSet) -> None:
            _set_tick_interval(ticks, one)
            needed = relevance and relevance(one)
            sending.send(to_pattern_rules(one, copied, needed, ticks=ticks is not None))

        processors, job = Processors(send, before, context, relevance, ticks), prepared.plan.job
        operator = prepared.run_operator(name, buckets, copied, processors)
        _set_tick_interval(ticks, before)
        if sent is None:
            send(before)
        processors.begin(discoverer, first, tell)
        if job is not None:
            sources = processors.figures, processors.waiting, processors.errors
            reporter = RuleMetricsReporter(
                lambda: job.agent, name, sending.name, *sources, lambda: processors.running
            )
            job.process.beat_callbacks.append(reporter.beat)
    except BaseException:
        discoverer.close()
        raise
    watch_queries(
        operator.spark,
        operator.node().mark,
        on_progress=lambda: processors.on_progress(buckets),
        on_ended=processors.on_ended,
    )
    return operator


def pattern(
    stream: Stream | DataFrame,
    pattern: Pattern | PatternProcessor,
    *,
    key: Key = (),
    event_time: str | None = None,
    watermark: Duration | None = None,
    tie_break: str | None = None,
    functions: Functions | None = None,
    name: str = "pattern",
    buckets: int | None = None,
    push_down: bool = False,
    timeouts: bool = True,
    timer: bool = True,
) -> PatternStream:
    """Run one rule that does not change.

    With a checkpoint of another pattern, the partial matches of that pattern are dropped.

    Args:
        stream: rows.
        pattern: a pattern, or a rule; without a key of its own. Its Python functions need not be
            among ``functions``.
        key: as for `pattern_processors`, like the other arguments.
        event_time: column with the event time; None for that of the stream's watermark or, if it
            has none, for processing time.
        watermark: how much later rows may arrive.
        tie_break: column that orders rows with equal times.
        functions: what the rule may name.
        name: name of the operator; also the rule's id, if a pattern is passed.
        buckets: number of buckets; fixed for a checkpoint.
        push_down: drop rows that the rule does not have to see in the tasks that read them, where
            the rule allows it; ``processors.relevance`` shows whether it does. The stream has to be
            one of rows then, not of an import or behind an operator. Late rows that the rule would
            not see are not reported.
        timeouts: as for `pattern_processors`.
        timer: in processing time windows end by themselves, which takes one more source. Fixed for
            a checkpoint; False for one of an earlier release, which does not have that source.

    Raises:
        AlignedError: an argument does not fit; nothing was started.
    """
    rule = pattern
    if isinstance(rule, Pattern):
        rule = PatternProcessor(id=name, version=1, pattern=rule)
    named = {**_pattern_functions(rule.pattern), **(functions or {})}
    prepared = _PatternInput.from_arguments(
        stream, rule.key or key, event_time, watermark, tie_break, named, timeouts=timeouts
    )
    rule = replace(rule, key=())
    context = prepared.context(None)
    rules, (outcome,) = RuleSet().apply_update([rule], context)
    if outcome.change == "refused":
        raise AlignedError(f"the pattern is refused ({outcome.reason}): {outcome.message}.")
    copied = () if prepared.has_column_key() else (prepared.key,)
    if buckets is None:
        buckets = DEFAULT_BUCKETS if prepared.key else 1
    relevance = prepared.relevance_function(copied) if push_down else None
    if relevance is not None:
        needed = relevance(rules)
        settings = {**prepared.settings, "relevant": needed.filter}
        prepared = replace(prepared, plan=_filter_rows(prepared.plan, needed), settings=settings)
    prepared, ticks = prepared.with_ticks(timer)
    _set_tick_interval(ticks, rules)
    processors = Processors(lambda _: None, rules, context, relevance, ticks)
    return prepared.run_operator(name, buckets, copied, processors, fixed_rules=rules)


def _make_discoverer(
    rules: PatternProcessorDiscoverer | PatternProcessorDiscovererFactory | Sequence[Any],
) -> PatternProcessorDiscoverer:
    if isinstance(rules, list | tuple):
        return FixedDiscoverer(rules)
    source: Any = rules.create() if hasattr(rules, "create") else rules
    if not hasattr(source, "initial_pattern_processors"):
        raise AlignedError(
            f"{source!r} is not a source of rules: pass a discoverer, its factory, or a list of"
            " rules."
        )
    discoverer: PatternProcessorDiscoverer = source
    return discoverer


def _filter_rows(plan: StreamPlan, relevance: Relevance) -> StreamPlan:
    """Keep only relevant rows for the operator; raise AlignedError unless the stream is of rows."""
    if not isinstance(plan.data, RowsFrame):
        raise AlignedError(
            "push_down of one rule is for a stream of rows, neither of an import nor after an"
            " operator: for an import use pattern_processors, whose rules exporters know; else"
            " leave push_down out."
        )
    return replace(plan, data=replace(plan.data, row_filter=relevance.filter))


def _set_tick_interval(ticks: TickFile | None, rules: RuleSet) -> None:
    """Set the tick interval from the shortest time limit of the rules; no limit, no ticks."""
    if ticks is not None:
        timeout = shortest_timeout(rules)
        ticks.update(seconds=tick_seconds(timeout / 1_000_000) if timeout else 0.0)


def _rules_path(plan: StreamPlan, name: str) -> Path:
    if plan.job is None:
        raise AlignedError(
            "rules need a file through which they reach the query: name one with control=, next"
            " to the query's checkpoint."
        )
    return plan.job.process.home / f"rules-{name}"


@dataclass(frozen=True, kw_only=True)
class _PatternInput:
    """Checked input of a pattern operator; ``plan`` has no key any more."""

    plan: StreamPlan
    key: Selector
    columns: pa.Schema
    conditions: dict[str, ConditionFunction]
    match_functions: dict[str, MatchFunction]
    settings: dict[str, Any]

    @classmethod
    def from_arguments(
        cls,
        stream: Stream | DataFrame,
        key: Key,
        event_time: str | None,
        watermark: Duration | None,
        tie_break: str | None,
        functions: Functions | None,
        *,
        timeouts: bool,
    ) -> _PatternInput:
        source = plan_of(stream)
        if watermark is not None:
            if event_time is None:
                raise AlignedError("a watermark without an event time: name it with event_time=.")
            source = row_steps.with_watermark(source, event_time, watermark, None)
        if event_time is None and source.event_time is not None:
            event_time = source.event_time[0]
        schema = spark_to_arrow(source.schema())
        chosen = check_selector(to_selector(key) or source.key, schema.names, "the key")
        for what, column in (("event time", event_time), ("tie break", tie_break)):
            if column is not None and column not in schema.names:
                raise AlignedError(
                    f"the {what} {column} is not a column of the stream; it has"
                    f" {', '.join(schema.names)}."
                )
        by_name = dict(functions or {})
        matched = {one: what for one, what in by_name.items() if isinstance(what, MatchFunction)}
        conditions = {
            one: what for one, what in by_name.items() if not isinstance(what, MatchFunction)
        }
        settings = {
            "key": chosen,
            "time": "processing" if event_time is None else "event",
            "event_time": event_time,
            "tie_break": tie_break,
            "functions": conditions,
            "match_functions": matched,
            "timeouts": timeouts,
        }
        return cls(
            plan=replace(source, key=()),
            key=chosen,
            columns=schema,
            conditions=conditions,
            match_functions=matched,
            settings=settings,
        )

    def with_ticks(self, enabled: bool) -> tuple[_PatternInput, TickFile | None]:
        """Return it with a source of ticks if time is processing time; without a plan none tick."""
        if not enabled or self.settings["time"] != "processing":
            return self, None
        ticks = TickFile(SparkFiles.getRootDirectory())
        plan = self.plan.union(tick_source_plan(self.plan.spark, ticks))
        return replace(self, plan=plan), ticks

    def has_column_key(self) -> bool:
        return all(part in self.columns.names for part in self.key)

    def context(self, selectors: frozenset[Selector] | None) -> RuleContext:
        return RuleContext(
            functions=self.conditions,
            outputs=frozenset(self.match_functions),
            fields=frozenset(self.columns.names),
            schema=tuple(
                Column(one.name, one.dataType.simpleString()) for one in self.plan.schema().fields
            ),
            selectors=selectors,
        )

    def relevance_function(
        self, copied_keys: Collection[Selector]
    ) -> Callable[[RuleSet], Relevance]:
        why = ""
        if self.settings["time"] != "event" or self.plan.event_time is None:
            why = "without a watermark any row of a bucket may end windows"
        elif copied_keys:
            why = "rows are copied for the keys of rules, and their time is read after that"
        elif self.plan.event_time[0] != self.settings["event_time"]:
            why = "the event time is not the column of the watermark"
        if why:
            return lambda _: Relevance(why=why)
        try:
            columns = parse_ddl(format_ddl(self.plan.schema()))
        except SchemaError as error:
            unknown = f"filters do not support a type of the columns: {error}"
            return lambda _: Relevance(why=unknown)
        return partial(compute_relevance, schema=columns)

    def run_operator(
        self,
        name: str,
        buckets: int,
        copied_keys: Collection[Selector],
        processors: Processors,
        fixed_rules: RuleSet | None = None,
    ) -> PatternStream:
        if buckets > 1 and not self.key and not copied_keys:
            raise AlignedError(
                f"{buckets} buckets without a key: give a key, or leave buckets out for one."
            )
        plan, rows = self.plan, self.plan.schema()
        if copied_keys:
            more = parse_columns(_COPY_COLUMNS)
            both = type(rows)([*rows.fields, *more.fields])
            copy = partial(copy_rows, selectors=sorted(copied_keys))
            plan = row_steps.map_batches(plan, copy, both)
        accumulator: Accumulator[AccumulatorValue] = plan.spark.sparkContext.accumulator(
            processors.tally, MetricsAccumulator()
        )
        settings = {**self.settings, "copied": bool(copied_keys)}
        if fixed_rules is not None:
            settings |= {"rules": fixed_rules, "fixed": True}
        made = plan_operator(
            partial(make_operator, accumulator, settings),
            plan,
            name=name,
            buckets=buckets,
            schemas={
                MATCHES: RESULTS,
                **({TIMEOUTS: RESULTS} if self.settings["timeouts"] else {}),
                LATE: rows,
                ERRORS: FAILURES,
                **{
                    one: with_rule_columns(what.schema)
                    for one, what in self.match_functions.items()
                },
            },
            null_keys=True,
        )
        return PatternStream(made, processors)


def _pattern_functions(pattern: Pattern) -> dict[str, ConditionFunction]:
    """Return the Python functions of a pattern by name.

    Raises:
        AlignedError: two of them have the same name; the state identifies functions by name.
    """
    by_name: dict[str, ConditionFunction] = {}
    for stage in pattern.stages():
        for condition in (stage.condition, stage.until):
            for call in iter_calls(condition):
                if by_name.setdefault(call.name, call.function) is not call.function:
                    raise AlignedError(
                        f"two functions of the pattern are called {call.name}: give each a name of"
                        " its own."
                    )
    return by_name


def _read_first_rules(discoverer: PatternProcessorDiscoverer, *, optional: bool) -> Wanted | None:
    """Return the first rules; None if they cannot be read but earlier ones were sent."""
    try:
        return list(discoverer.initial_pattern_processors())
    except Exception as error:
        if not optional:
            raise
        log.warning("cannot read rules, keeping those sent before: %s", error)
        return None
