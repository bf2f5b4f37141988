"""Rules on a stream: the pattern operator in Spark, and the driver side that sends it rules."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypedDict, get_args

import pyarrow as pa

from pe_agent.aligned import row_steps
from pe_agent.aligned.data import RowsFrame
from pe_agent.aligned.operator_plan import DEFAULT_BUCKETS, plan_operator
from pe_agent.aligned.options import OperatorOptions
from pe_agent.aligned.plan import StreamPlan
from pe_agent.aligned.queries.query_listener import watch_queries
from pe_agent.aligned.runtime.hosting import parse_columns
from pe_agent.aligned.timeout_ticks import TickFile, tick_seconds, tick_source_plan
from pe_agent.cep.accumulators import MetricsAccumulator
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
from pe_agent.cep.pattern_operator import WindowSink, make_operator
from pe_agent.cep.query_rules import QueryRules
from pe_agent.cep.rules_log import ImportedRules, RulesFile, RulesLog, to_pattern_rules
from pe_agent.cep.window_reports import WindowPoller, WindowReporter
from pe_agent.datasource.options import format_ddl
from pe_agent.datasource.schemas import as_spark_schema, spark_to_arrow
from pe_agent.job.arguments import check_keywords
from pe_agent.spark.session import is_connect, require_classic
from streambroker_core.cep.engine.outputs import typed_results, with_rule_columns
from streambroker_core.cep.nfa.compiled import shortest_timeout
from streambroker_core.cep.operator import (
    ERRORS,
    FAILURES,
    LATE,
    MATCHES,
    RESULTS,
    TIMEOUTS,
    MatchFunction,
    PatternOperator,
    PatternRules,
    copy_rows,
)
from streambroker_core.cep.pattern.conditions import ConditionFunction, iter_calls
from streambroker_core.cep.pattern.key_selectors import Selector
from streambroker_core.cep.pattern.pattern import NEGATED, Pattern
from streambroker_core.cep.pattern.rule import PatternProcessor
from streambroker_core.cep.rules.push_down import Relevance, compute_relevance
from streambroker_core.cep.rules.rule_set import RuleContext, RuleSet
from streambroker_core.errors import AlignedError, SchemaError
from streambroker_core.model.schema import Column, parse_ddl

log = logging.getLogger("pe_agent.cep")

Functions: TypeAlias = "Mapping[str, MatchFunction | ConditionFunction]"
"""What rules may name: functions for matches, and Python functions of conditions."""
RuleSource: TypeAlias = (
    "PatternProcessorDiscoverer | PatternProcessorDiscovererFactory | Sequence[Any]"
)
"""A discoverer, its factory, or a list of rules or of their documents."""
MatchForm: TypeAlias = Literal["typed", "json"]
"""Form of the columns of matches: typed, or JSON texts."""
_COPY_COLUMNS = "_selector string, _place binary, _first boolean"


class MatchSettings(TypedDict, total=False):
    """Settings of a search for patterns.

    - ``key``: key columns, or expressions. The key of changing rules is fixed: rules with another
      key are refused, unless ``selectors`` names it. Without it rules may have any keys, and a rule
      without one has that of the stream, or one key for all rows.
    - ``event_time``: column with the event time; None for that of the stream's watermark or, if it
      has none, for processing time.
    - ``tie_break``: column that orders rows with equal times.
    - ``functions``: what rules may name.
    - ``push_down``: drop rows that no rule has to see where they are read, if the rules allow it;
      ``rules.relevance`` shows whether they do. Matches are the same; late rows that no rule would
      see are not reported. Fixed for a checkpoint. For changing rules the stream has to be an
      import, whose exporters then drop the rows; for one pattern a stream of rows.
    - ``output``: ``typed`` or ``json``, the form of matches and time-outs. A checkpoint keeps the
      form it began with. By default matches are typed; those of changing rules have the form of
      their control file. A checkpoint of an earlier release began with ``json``.
    - ``timeouts``: add an output with timed-out partial matches (default). Without it rules that
      often time out cost less; functions get the timeouts they ask for either way.
    - ``options``: settings of the operator.
    """

    key: Key
    event_time: str | None
    tie_break: str | None
    functions: Functions | None
    push_down: bool
    output: MatchForm | None
    timeouts: bool
    options: OperatorOptions | None


def plan_match_rules(
    plan: StreamPlan,
    rules: RuleSource,
    settings: MatchSettings,
    *,
    control_file: str | Path | None,
    selectors: Iterable[Key],
    name: str,
    on_outcomes: OutcomeListener | None,
) -> tuple[StreamPlan, QueryRules]:
    """Return matches of rules that change, and the rules; see ``Stream.match_rules``."""
    key, push_down = settings.get("key", ()), settings.get("push_down", False)
    options = settings.get("options") or OperatorOptions()
    prepared = _PatternInput.from_arguments(plan, key, "match_rules", settings)
    path = _rules_path(prepared.plan, name) if control_file is None else control_file
    sending: RulesLog = ImportedRules(path) if push_down else RulesFile(path)
    discoverer = _make_discoverer(rules)
    sent = sending.last()
    try:
        form = _choose_form(settings.get("output"), sent)
        if isinstance(discoverer, QueryDiscoverer):
            discoverer.for_query(sending.name)
        first = _read_first_rules(discoverer, optional=sent is not None)
        before = RuleSet() if sent is None else RuleSet.read(sent.rules, prepared.conditions)
        declared = [to_selector(one) for one in selectors]
        has_key, names = bool(to_selector(key)), prepared.columns.names
        copied = select_copied_keys(
            prepared.key, names, declared, first or (), sent, fixed=has_key or push_down
        )
        buckets = options.buckets
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
            sending.send(
                to_pattern_rules(one, copied, needed, ticks=ticks is not None, output=form)
            )

        sent_rules = QueryRules(send, before, context, relevance, ticks)
        options = replace(options, buckets=buckets)
        if form == "typed":
            fixed_key = prepared.key if has_key and not declared else ()
            prepared = prepared.with_typed_results(fixed_key)
        operator = prepared.run_operator(name, options, copied, sent_rules)
        _set_tick_interval(ticks, before)
        if sent is None:
            send(before)
        sent_rules.begin(discoverer, first, on_outcomes)
        job = prepared.plan.job
        if job is not None:
            sources = sent_rules.metrics, sent_rules.waiting, sent_rules.errors, sent_rules.failed
            reporter = RuleMetricsReporter(
                lambda: job.agent, name, sending.name, *sources, lambda: sent_rules.running
            )
            job.process.beat_callbacks.append(reporter.beat)
    except BaseException:
        discoverer.close()
        raise
    if not is_connect(operator.spark):
        watch_queries(
            operator.spark,
            operator.nodes[name].mark,
            on_progress=lambda: sent_rules.on_progress(buckets),
            on_ended=sent_rules.on_ended,
        )
    return operator, sent_rules


def plan_match(
    plan: StreamPlan,
    pattern: Pattern | PatternProcessor,
    settings: MatchSettings,
    *,
    name: str,
    timer: bool,
) -> tuple[StreamPlan, QueryRules]:
    """Return matches of one pattern, and its rule; see ``Stream.match``."""
    options = settings.get("options") or OperatorOptions()
    rule = pattern
    if isinstance(rule, Pattern):
        rule = PatternProcessor(id=name, version=1, pattern=rule)
    named = {**_pattern_functions(rule.pattern), **(settings.get("functions") or {})}
    prepared = _PatternInput.from_arguments(
        plan, rule.key or settings.get("key", ()), "match", {**settings, "functions": named}
    )
    rule = replace(rule, key=())
    context = prepared.context(None)
    rules, (outcome,) = RuleSet().apply_update([rule], context)
    if outcome.change == "refused":
        raise AlignedError(f"the pattern is refused ({outcome.reason}): {outcome.message}.")
    copied = () if prepared.has_column_key() else (prepared.key,)
    if options.buckets is None:
        options = replace(options, buckets=DEFAULT_BUCKETS if prepared.key else 1)
    push_down = settings.get("push_down", False)
    relevance = prepared.relevance_function(copied) if push_down else None
    if relevance is not None:
        needed = relevance(rules)
        filtered = _filter_rows(prepared.plan, needed)
        prepared = replace(prepared, plan=filtered, relevant=needed.filter)
    prepared, ticks = prepared.with_ticks(timer)
    _set_tick_interval(ticks, rules)
    if (settings.get("output") or "typed") == "typed":
        stages = [one.name for one in rule.pattern.stages() if one.contiguity not in NEGATED]
        prepared = prepared.with_typed_results(prepared.key, stages)
    fixed = QueryRules(lambda _: None, rules, context, relevance, ticks)
    return prepared.run_operator(name, options, copied, fixed, fixed_rules=rules), fixed


def _choose_form(given: MatchForm | None, sent: PatternRules | None) -> str:
    """Return the form of matches; raise AlignedError if the checkpoint began with another."""
    if sent is not None and given not in (None, sent.output):
        raise AlignedError(
            f"the control file belongs to a checkpoint with matches as {sent.output}, and output is"
            f" {given!r}: leave output out, or begin a new checkpoint with a new control file."
        )
    return sent.output if sent is not None else given or "typed"


def _make_discoverer(rules: RuleSource) -> PatternProcessorDiscoverer:
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
            " operator: for an import use match_rules, whose rules exporters know; else"
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
            "rules need a file through which they reach the query: name one with control_file=,"
            " next to the query's checkpoint."
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
    event_time: str | None
    tie_break: str | None
    has_timeouts: bool
    results: pa.Schema | None = None
    relevant: str | None = None

    @classmethod
    def from_arguments(
        cls,
        source: StreamPlan,
        key: Key,
        method: str,
        given: MatchSettings,
    ) -> _PatternInput:
        check_keywords(method, given, MatchSettings.__annotations__)
        event_time, tie_break = given.get("event_time"), given.get("tie_break")
        if given.get("output") not in (None, *get_args(MatchForm)):
            raise AlignedError(f"output is {given['output']!r}: give 'typed' or 'json'.")
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
        by_name = dict(given.get("functions") or {})
        matched = {one: what for one, what in by_name.items() if isinstance(what, MatchFunction)}
        conditions = {
            one: what for one, what in by_name.items() if not isinstance(what, MatchFunction)
        }
        return cls(
            plan=replace(source, key=()),
            key=chosen,
            columns=schema,
            conditions=conditions,
            match_functions=matched,
            event_time=event_time,
            tie_break=tie_break,
            has_timeouts=given.get("timeouts", True),
        )

    def with_ticks(self, enabled: bool) -> tuple[_PatternInput, TickFile | None]:
        """Return it with a source of ticks if time is processing time; without a plan none tick."""
        if not enabled or self.event_time is not None:
            return self, None
        ticks = TickFile.create(self.plan.spark)
        plan = self.plan.union(tick_source_plan(self.plan.spark, ticks))
        return replace(self, plan=plan), ticks

    def with_typed_results(
        self, key: Selector, stages: Sequence[str] | None = None
    ) -> _PatternInput:
        """Return it with typed matches; their key is a struct if all parts of `key` are columns."""
        named = key if self.has_column_key() else ()
        results = typed_results(self.columns, key=named, stages=stages)
        # As Spark passes it on, so that no batch is converted.
        return replace(self, results=spark_to_arrow(as_spark_schema(results)))

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
        if self.event_time is None or self.plan.event_time is None:
            why = "without a watermark any row of a bucket may end windows"
        elif copied_keys:
            why = "rows are copied for the keys of rules, and their time is read after that"
        elif self.plan.event_time[0] != self.event_time:
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
        options: OperatorOptions,
        copied_keys: Collection[Selector],
        rules: QueryRules,
        fixed_rules: RuleSet | None = None,
    ) -> StreamPlan:
        buckets = options.buckets or 0
        if options.null_keys is False:
            raise AlignedError("null_keys=False: patterns take rows with a null in their key.")
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
        sink = _window_sink(plan, rules, buckets)
        results = self.results or RESULTS
        make = partial(
            PatternOperator,
            key=self.key,
            time="processing" if self.event_time is None else "event",
            event_time=self.event_time,
            tie_break=self.tie_break,
            functions=self.conditions,
            match_functions=self.match_functions,
            results=self.results,
            timeouts=self.has_timeouts,
            copied=bool(copied_keys),
            relevant=self.relevant,
            rules=fixed_rules,
            fixed=fixed_rules is not None,
        )
        return plan_operator(
            partial(make_operator, sink, make),
            plan,
            name=name,
            schemas={
                MATCHES: results,
                **({TIMEOUTS: results} if self.has_timeouts else {}),
                LATE: rows,
                ERRORS: FAILURES,
                **{
                    one: with_rule_columns(what.schema)
                    for one, what in self.match_functions.items()
                },
            },
            options=replace(options, null_keys=True),
        )


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


def _window_sink(plan: StreamPlan, rules: QueryRules, buckets: int) -> WindowSink:
    """Return where tasks report their windows.

    Raises:
        ClassicSessionRequiredError: on Spark Connect the agent of a PE takes the reports, and the
            stream has no PE.
    """
    if plan.job is None:
        require_classic(
            plan.spark, "a search for patterns without a PE", "Make the stream with pe.stream(…)"
        )
    if plan.job is None or not is_connect(plan.spark):
        accumulator: Any = plan.spark.sparkContext.accumulator(rules.tally, MetricsAccumulator())
        sink: WindowSink = accumulator
        return sink
    reporter = WindowReporter(options=tuple(sorted(plan.job.agent_options().items())))
    poller = WindowPoller(plan.job, reporter.operator, rules, buckets)
    plan.job.process.beat_callbacks.append(poller.beat)
    return reporter


def _read_first_rules(discoverer: PatternProcessorDiscoverer, *, optional: bool) -> Wanted | None:
    """Return the first rules; None if they cannot be read but earlier ones were sent."""
    try:
        return list(discoverer.initial_pattern_processors())
    except Exception as error:
        if not optional:
            raise
        log.warning("cannot read rules, keeping those sent before: %s", error)
        return None
