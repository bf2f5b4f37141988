"""Rules on a stream: the operator in Spark, and beside the driver what hands it its rules.

>>> made = pattern_processors(  # doctest: +SKIP
...     stream, DirectoryDiscoverer("rules"), key="user", event_time="t", watermark="5 seconds",
...     control="/data/checkpoints/alerts-rules",
... )
>>> query = made.publish_outputs({"matches": "alerts"}, checkpoint="…")  # doctest: +SKIP
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
from pyspark import SparkFiles, TaskContext

from pe_agent import aligned
from pe_agent.aligned import AlignedError, OperatorStream, Stream
from pe_agent.aligned.queries.query_listener import follow
from pe_agent.aligned.runtime.frames import arrow_of
from pe_agent.aligned.runtime.hosting import columns
from pe_agent.aligned.timeout_ticks import TickFile, seconds_for, tick_stream
from pe_agent.cep.accumulators import Told, Windows
from pe_agent.cep.discovery.discoverer import (
    FixedDiscoverer,
    PatternProcessorDiscoverer,
    PatternProcessorDiscovererFactory,
    QueryDiscoverer,
    Wanted,
)
from pe_agent.cep.discovery.manager import Tell
from pe_agent.cep.key_selectors import Key, checked, copied_keys, selector_of
from pe_agent.cep.metrics_reporter import Figuring
from pe_agent.cep.query_rules import Processors
from pe_agent.cep.rules_log import ImportedRules, RulesFile, RulesLog, sent_of
from pe_agent.datasource.options import ddl_of
from pe_agent.filters import compile_filter
from pe_agent.streams.operator_stream import BUCKETS
from pe_agent.streams.stream import Rows
from streambroker_core.cep.engine.condition_masks import row_by_row
from streambroker_core.cep.engine.metrics import WindowFigures
from streambroker_core.cep.engine.outputs import with_rule
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
    copies,
)
from streambroker_core.cep.pattern.conditions import Function, calls_of
from streambroker_core.cep.pattern.key_selectors import Selector
from streambroker_core.cep.pattern.pattern import Pattern
from streambroker_core.cep.pattern.rule import PatternProcessor
from streambroker_core.cep.rules.push_down import Relevance, relevance_of
from streambroker_core.cep.rules.rule_set import Context, RuleSet
from streambroker_core.errors import FilterError, SchemaError
from streambroker_core.expression import Expression
from streambroker_core.model.durations import Duration
from streambroker_core.model.schema import Column, parse_ddl

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator
    from pyspark.sql import DataFrame

log = logging.getLogger("pe_agent.cep")

Functions: TypeAlias = "Mapping[str, MatchFunction | Function]"
"""What rules may name: functions for matches, and Python functions of conditions."""
_COPIES = "_selector string, _place binary, _first boolean"


@dataclass(frozen=True, kw_only=True)
class PatternStream(OperatorStream):
    """Matches; by tag ``timeouts``, ``late``, ``errors`` and an output for each function.

    Attributes:
        processors: the rules, beside the driver.
    """

    processors: Processors


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
    tell: Tell | None = None,
    push_down: bool = False,
    timeouts: bool = True,
) -> PatternStream:
    """Run rules that change while the query runs.

    The rules found now hold before the first row. A change holds in all partitions from one window
    on.

    Args:
        stream: rows.
        rules: finds rules, or makes what does; it is closed with the query. A list of rules or of
            their documents stays as it is while the query runs.
        control: file through which rules reach the query. It belongs to the query's checkpoint:
            keep both, or neither. None for one in the directory of the stream's PE, by ``name``.
        key: key columns, or expressions. They are the query's key for good: rules with another key
            are refused, unless ``selectors`` names it. Without it rules may have any keys, and a
            rule without one has that of the stream, or one key for all rows.
        event_time: column with the event time; None for that of the stream's watermark or, where it
            has none, for processing time.
        watermark: how much later rows may come: a duration, as ``10 seconds`` or ``10s``.
        tie_break: a column by which rows of one time are ordered.
        functions: what rules may name.
        selectors: keys that rules may have besides. Rows are copied for each key.
        name: of the operator, unique in the query and fixed for a checkpoint.
        buckets: how many; fixed for a checkpoint.
        tell: gets what became of each rule of an update; what it raises goes to whoever updated.
        push_down: exporters send only rows that some rule has to see, where the rules allow it;
            ``processors.relevance`` tells whether they do. The stream is an import then. Fixed for
            a checkpoint. Matches are the same; late rows that no rule would have seen are not told.
        timeouts: there is an output with timed-out partial matches. Where nobody reads it, rules
            that often time out cost less without; functions get what they ask for either way.

    Raises:
        AlignedError: something does not fit; nothing was started.
        DiscoveryError: the first rules cannot be read, and none were sent before.
    """
    made = _Made.of(stream, key, event_time, watermark, tie_break, functions, timeouts=timeouts)
    path = _file(made.stream, name) if control is None else control
    sending: RulesLog = ImportedRules(path) if push_down else RulesFile(path)
    discoverer = _discoverer(rules)
    sent = sending.last()
    try:
        if isinstance(discoverer, QueryDiscoverer):
            discoverer.for_query(sending.name)
        first = _first(discoverer, known=sent is not None)
        before = RuleSet() if sent is None else RuleSet.read(sent.rules, made.conditions)
        declared = [selector_of(one) for one in selectors]
        given, names = bool(selector_of(key)), made.columns.names
        copied = copied_keys(made.key, names, declared, first or (), sent, fixed=given or push_down)
        if buckets is None:
            buckets = BUCKETS if made.key or copied else 1
        allowed = None if buckets == 1 and not given else frozenset(copied or [made.key])
        context = replace(made.context(allowed), fixed_key=given or not copied)
        relevance = made.relevance(copied) if push_down else None

        made = replace(made, stream=sending.joined(made.stream))
        made, ticks = made.ticking(sent is None or sent.ticks)

        def send(one: RuleSet) -> None:
            _pace(ticks, one)
            needed = relevance and relevance(one)
            sending.send(sent_of(one, copied, needed, ticks=ticks is not None))

        processors, pe = Processors(send, before, context, relevance, ticks), made.stream.pe
        operator = made.operator(name, buckets, copied, processors)
        _pace(ticks, before)
        if sent is None:
            send(before)
        processors.begin(discoverer, first, tell)
        if pe is not None:
            of = processors.figures, processors.waiting, processors.errors
            told = Figuring(lambda: pe.agent, name, sending.name, *of, lambda: processors.running)
            pe.on_beat(told.beat)
    except BaseException:
        discoverer.close()
        raise
    follow(
        operator.spark,
        operator.node().mark,
        progressed=lambda: processors.progressed(buckets),
        ended=processors.ended,
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
    """Run one rule that stays as it is.

    With a checkpoint of another pattern the partial matches of that one go.

    Args:
        stream: rows.
        pattern: a pattern, or a rule; without a key of its own. Its Python functions need not be
            among ``functions``.
        key: as for `pattern_processors`, and so are the others.
        event_time: column with the event time; None for that of the stream's watermark or, where it
            has none, for processing time.
        watermark: how much later rows may come.
        tie_break: a column by which rows of one time are ordered.
        functions: what the rule may name.
        name: of the operator; the rule's id, if a pattern is given.
        buckets: how many; fixed for a checkpoint.
        push_down: rows that the rule does not have to see stay in the tasks that read them, where
            the rule allows it; ``processors.relevance`` tells. The stream is one of rows then, not
            of an import or behind an operator. Late rows that the rule would not have seen are not
            told.
        timeouts: as for `pattern_processors`.
        timer: in processing time windows end by themselves, which takes one more source. Fixed for
            a checkpoint; False for one of an earlier release, which does not have that source.

    Raises:
        AlignedError: something does not fit; nothing was started.
    """
    rule = pattern
    if isinstance(rule, Pattern):
        rule = PatternProcessor(id=name, version=1, pattern=rule)
    given = {**_functions_of(rule.pattern), **(functions or {})}
    made = _Made.of(
        stream, rule.key or key, event_time, watermark, tie_break, given, timeouts=timeouts
    )
    rule = replace(rule, key=())
    context = made.context(None)
    rules, (outcome,) = RuleSet().updated([rule], context)
    if outcome.change == "refused":
        raise AlignedError(f"the pattern is refused ({outcome.reason}): {outcome.message}.")
    copied = () if made.is_plain() else (made.key,)
    if buckets is None:
        buckets = BUCKETS if made.key else 1
    relevance = made.relevance(copied) if push_down else None
    if relevance is not None:
        needed = relevance(rules)
        settings = {**made.settings, "relevant": needed.filter}
        made = replace(made, stream=_needing(made.stream, needed), settings=settings)
    made, ticks = made.ticking(timer)
    _pace(ticks, rules)
    processors = Processors(lambda _: None, rules, context, relevance, ticks)
    return made.operator(name, buckets, copied, processors, fixed=rules)


def _discoverer(
    rules: PatternProcessorDiscoverer | PatternProcessorDiscovererFactory | Sequence[Any],
) -> PatternProcessorDiscoverer:
    if isinstance(rules, list | tuple):
        return FixedDiscoverer(rules)
    made: Any = rules.create() if hasattr(rules, "create") else rules
    if not hasattr(made, "initial_pattern_processors"):
        raise AlignedError(
            f"{made!r} is no source of rules: pass a discoverer, its factory, or a list of rules."
        )
    found: PatternProcessorDiscoverer = made
    return found


def _needing(stream: Stream, relevance: Relevance) -> Stream:
    """Return a stream of which an operator gets the relevant rows alone.

    Raises:
        AlignedError: it is of an import, or behind an operator.
    """
    if not isinstance(stream.data, Rows):
        raise AlignedError(
            "push_down of one rule is for a stream of rows, neither of an import nor behind an"
            " operator: for an import take pattern_processors, whose rules exporters know; else"
            " leave push_down out."
        )
    return replace(stream, data=replace(stream.data, needed=relevance.filter))


def _pace(ticks: TickFile | None, rules: RuleSet) -> None:
    """Let ticks be as frequent as the rules need them; without a time limit there are none."""
    if ticks is not None:
        timeout = shortest_timeout(rules)
        ticks.update(seconds=seconds_for(timeout / 1_000_000) if timeout else 0.0)


def _file(stream: Stream, name: str) -> Path:
    if stream.pe is None:
        raise AlignedError(
            "rules need a file through which they reach the query: name one with control=, beside"
            " the query's checkpoint."
        )
    return stream.pe.data_dir / f"rules-{name}"


@dataclass(frozen=True, kw_only=True)
class _Made:
    """What a user said of the stream and of functions, checked.

    Attributes:
        stream: with an event time.
        key: the stream's key.
        columns: of its rows.
        conditions: Python functions of conditions.
        matched: functions for matches.
        settings: of `PatternOperator`.
    """

    stream: Stream
    key: Selector
    columns: pa.Schema
    conditions: dict[str, Function]
    matched: dict[str, MatchFunction]
    settings: dict[str, Any]

    @classmethod
    def of(
        cls,
        stream: Stream | DataFrame,
        key: Key,
        event_time: str | None,
        watermark: Duration | None,
        tie_break: str | None,
        functions: Functions | None,
        *,
        timeouts: bool,
    ) -> _Made:
        given = stream if isinstance(stream, Stream) else aligned.stream(stream)
        if watermark is not None:
            if event_time is None:
                raise AlignedError("a watermark without an event time: name it with event_time=.")
            given = given.with_watermark(event_time, watermark)
        if event_time is None and given.event_time is not None:
            event_time = given.event_time[0]
        found = arrow_of(given.schema())
        chosen = checked(selector_of(key) or given.key, found.names, "the key")
        for what, column in (("event time", event_time), ("tie break", tie_break)):
            if column is not None and column not in found.names:
                raise AlignedError(
                    f"the {what} {column} is no column of the stream; it has"
                    f" {', '.join(found.names)}."
                )
        named = dict(functions or {})
        matched = {one: what for one, what in named.items() if isinstance(what, MatchFunction)}
        conditions = {
            one: what for one, what in named.items() if not isinstance(what, MatchFunction)
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
            stream=replace(given, key=()),
            key=chosen,
            columns=found,
            conditions=conditions,
            matched=matched,
            settings=settings,
        )

    def ticking(self, wanted: bool) -> tuple[_Made, TickFile | None]:
        """Return it with a source of ticks, in processing time; it is silent without a plan."""
        if not wanted or self.settings["time"] != "processing":
            return self, None
        ticks = TickFile(SparkFiles.getRootDirectory())
        stream = self.stream.union(tick_stream(self.stream.spark, ticks))
        return replace(self, stream=stream), ticks

    def is_plain(self) -> bool:
        """Whether the key is made of columns alone."""
        return all(part in self.columns.names for part in self.key)

    def context(self, selectors: frozenset[Selector] | None) -> Context:
        """Return what rules may refer to."""
        return Context(
            functions=self.conditions,
            outputs=frozenset(self.matched),
            fields=frozenset(self.columns.names),
            schema=tuple(
                Column(one.name, one.dataType.simpleString()) for one in self.stream.schema().fields
            ),
            selectors=selectors,
        )

    def relevance(self, copied: Collection[Selector]) -> Callable[[RuleSet], Relevance]:
        """Return what says which rows a set of rules has to see."""
        why = ""
        if self.settings["time"] != "event" or self.stream.event_time is None:
            why = "without a watermark any row of a bucket may end windows"
        elif copied:
            why = "rows are copied for the keys of rules, and their time is read behind that"
        elif self.stream.event_time[0] != self.settings["event_time"]:
            why = "the event time is not the column of the watermark"
        if why:
            return lambda _: Relevance(why=why)
        try:
            columns = parse_ddl(ddl_of(self.stream.schema()))
        except SchemaError as error:
            unknown = f"filters do not know a type of the columns: {error}"
            return lambda _: Relevance(why=unknown)
        return partial(relevance_of, schema=columns)

    def operator(
        self,
        name: str,
        buckets: int,
        copied: Collection[Selector],
        processors: Processors,
        fixed: RuleSet | None = None,
    ) -> PatternStream:
        """Return the operator on the stream."""
        if buckets > 1 and not self.key and not copied:
            raise AlignedError(
                f"{buckets} buckets without a key: give a key, or leave buckets out for one."
            )
        stream, rows = self.stream, self.stream.schema()
        if copied:
            more = columns(_COPIES)
            both = type(rows)([*rows.fields, *more.fields])
            stream = stream.map_batches(partial(copies, selectors=sorted(copied)), both)
        told: Accumulator[Told] = stream.spark.sparkContext.accumulator(processors.tally, Windows())
        settings = {**self.settings, "copied": bool(copied)}
        if fixed is not None:
            settings |= {"rules": fixed, "fixed": True}
        made = stream.control_aware(
            partial(_operator, told, settings),
            name=name,
            buckets=buckets,
            schemas={
                MATCHES: RESULTS,
                **({TIMEOUTS: RESULTS} if self.settings["timeouts"] else {}),
                LATE: rows,
                ERRORS: FAILURES,
                **{one: with_rule(what.schema) for one, what in self.matched.items()},
            },
            null_keys=True,
        )
        given = {one.name: getattr(made, one.name) for one in fields(made)}
        return PatternStream(**given, processors=processors)


def _operator(told: Accumulator[Told], settings: Mapping[str, Any]) -> PatternOperator:
    """Return the operator of a window; called in tasks."""

    def watch(window: WindowFigures) -> None:
        task = TaskContext.get()
        query = None if task is None else task.getLocalProperty("sql.streaming.queryId")
        told.add([replace(window, query=query or "")])

    return PatternOperator(**settings, maker=_mask, watch=watch, clock=time.perf_counter_ns)


def _mask(expression: Expression, schema: pa.Schema) -> Any:
    """Return the mask of a condition; one that fits no column's type is asked row by row."""
    try:
        return compile_filter(expression, schema).mask
    except FilterError:
        return row_by_row(expression, schema)


def _functions_of(pattern: Pattern) -> dict[str, Function]:
    """Return the Python functions of a pattern by their names.

    Raises:
        AlignedError: two of them have one name, by which the state would know them.
    """
    found: dict[str, Function] = {}
    for stage in pattern.stages():
        for given in (stage.condition, stage.until):
            for call in calls_of(given):
                if found.setdefault(call.name, call.function) is not call.function:
                    raise AlignedError(
                        f"two functions of the pattern are called {call.name}: give each a name of"
                        " its own."
                    )
    return found


def _first(discoverer: PatternProcessorDiscoverer, *, known: bool) -> Wanted | None:
    """Return the first rules; None if they cannot be read, and others are known."""
    try:
        return list(discoverer.initial_pattern_processors())
    except Exception as error:
        if not known:
            raise
        log.warning("rules cannot be read, those sent before stay: %s", error)
        return None
