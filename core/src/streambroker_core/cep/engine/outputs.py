"""Output rows of matches and time-outs: typed columns, JSON, or rows that a function creates."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any, TypeAlias

import pyarrow as pa

from streambroker_core.cep.engine.active_rule import BY_TIME, RuleResult
from streambroker_core.cep.nfa.matcher import PatternMatch, Timeout, events_by_stage
from streambroker_core.cep.pattern.errors import PatternArgumentError, RunError
from streambroker_core.cep.pattern.key_selectors import Selector
from streambroker_core.cep.pattern.match_buffer import (
    Event,
    RunNode,
    list_chain,
    load_fields,
)
from streambroker_core.cep.pattern.rule import PatternProcessor
from streambroker_core.control.tuples import END_OF_TIME
from streambroker_core.expression.evaluate import Row

MATCHES, TIMEOUTS, LATE, ERRORS = "matches", "timeouts", "late", "errors"
OUTPUTS = (MATCHES, TIMEOUTS, LATE, ERRORS)

RESULTS = pa.schema(
    [
        ("rule", pa.string()),
        ("version", pa.int64()),
        ("key", pa.string()),
        ("time", pa.timestamp("us")),
        ("noticed", pa.timestamp("us")),
        ("events", pa.string()),
    ]
)
"""Columns of matches and time-outs in JSON. ``key`` and ``events`` (rows by stage) are texts.
``noticed`` is the time at which the result became known; for a time-out it equals ``time``.
"""
FAILURES = pa.schema(
    [
        ("rule", pa.string()),
        ("version", pa.int64()),
        ("where", pa.string()),
        ("problem", pa.string()),
    ]
)
"""Columns of errors."""
_LEAD_COLUMNS = RESULTS.names[:2]
_TEXTS = pa.map_(pa.string(), pa.string())

_json = json.JSONEncoder(default=str, separators=(",", ":")).encode
_quoted = lru_cache(maxsize=4_096)(_json)


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedEvents:
    """A match or a timed-out partial match, as passed to a function.

    Attributes:
        rule: id of the rule.
        events: rows taken by stage, in the order of the pattern, without stages that took none.
        time: in microseconds: time of the last event; end time of a negated end or a time-out.
        noticed: time at which the result became known.
        waited: what a time-out waited for; None for a match.
        rows: stage and row of each event, in the order in which they were taken.
        number: number of the match in its key, from 1, if the rule numbers its matches; else None.
    """

    rule: str
    version: int
    key: tuple[Any, ...]
    events: Mapping[str, list[Row]]
    time: int
    noticed: int
    waited: str | None = None
    rows: tuple[tuple[str, Row], ...] = ()
    number: int | None = None


FunctionResult: TypeAlias = "Row | Iterable[Row] | None"


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchFunction:
    """Creates rows from the results of rules that name it; the rows go to an output of its name.

    Attributes:
        schema: columns of the rows, without the leading ``rule`` and ``version``.
        matched: called with each match; returns a row, rows, or None.
        timed_out: called with each timed-out partial match; if None, these go to ``timeouts``.
    """

    schema: pa.Schema
    matched: Callable[[MatchedEvents], FunctionResult]
    timed_out: Callable[[MatchedEvents], FunctionResult] | None = None

    def __post_init__(self) -> None:
        taken = [name for name in _LEAD_COLUMNS if name in self.schema.names]
        if taken:
            raise PatternArgumentError(
                f"the rows of a function have the reserved column {taken[0]}",
                remedy=(
                    f"rename it: {' and '.join(_LEAD_COLUMNS)} are added in front of the columns"
                ),
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchOutput:
    """Rows of results by output, in order, and the rules whose function failed, with the error."""

    batches: list[tuple[str, pa.RecordBatch]]
    failures: list[tuple[PatternProcessor, RunError]]


def typed_results(
    columns: pa.Schema, *, key: Sequence[str] = (), stages: Sequence[str] | None = None
) -> pa.Schema:
    """Return the typed columns of matches and time-outs, for a stream with these `columns`.

    Args:
        columns: those of the stream; each event is a struct of them.
        key: columns that are the key of all rules: ``key`` is a struct of them. Without any,
            ``key`` maps the parts of a rule's key to their texts.
        stages: those of the only pattern: ``events`` is a struct of them. None for a map by stage.
    """
    rows = pa.list_(pa.struct(list(columns)))
    keys = pa.struct([columns.field(name) for name in key]) if key else _TEXTS
    events = pa.map_(pa.string(), rows)
    if stages is not None:
        events = pa.struct([(stage, rows) for stage in stages])
    at = pa.timestamp("us", "UTC")
    types = [*RESULTS.types[:2], keys, at, at, events]
    return pa.schema(list(zip(RESULTS.names, types, strict=True)))


class OutputWriter:
    """Converts results to output rows.

    Without `timeouts` there is no output for time-outs that no function handles.

    Args:
        schema: columns of matches and time-outs, from `typed_results`; None for `RESULTS`.
        key: key of rules that have none.

    Raises:
        PatternArgumentError: a function has a blank name, or that of a built-in output.
    """

    def __init__(
        self,
        functions: Mapping[str, MatchFunction],
        *,
        timeouts: bool = True,
        schema: pa.Schema | None = None,
        key: Selector = (),
    ) -> None:
        for name in functions:
            if name in OUTPUTS or not name.strip():
                raise PatternArgumentError(
                    f"a function for matches has the name {name!r}",
                    remedy=f"its rows need an output of their own, other than {', '.join(OUTPUTS)}",
                )
        self._functions, self._timeouts = dict(functions), timeouts
        self.form = "json" if schema is None else "typed"
        self._results, self._key = schema or RESULTS, key
        own = (output for output in OUTPUTS if timeouts or output != TIMEOUTS)
        self.outputs = (*own, *sorted(functions))

    def reports_timeouts(self, rule: PatternProcessor) -> bool:
        """Return whether an output or function receives the timed-out partial matches of a rule."""
        function = self._functions.get(rule.function or "")
        return self._timeouts or (function is not None and function.timed_out is not None)

    def write(
        self,
        results: list[RuleResult],
        find_rule: Callable[[str, int], PatternProcessor],
        *,
        sets_aside: bool = False,
    ) -> MatchOutput:
        """Return rows of matches and time-outs, in their order; errors are left out.

        A rule whose function fails gets no further rows, unless such matches are set aside.
        """
        _load_rows(results)
        standard: dict[str, list[RuleResult]] = {}
        function_rows: dict[str, list[Row]] = {}
        failed, failures = set[tuple[str, int]](), list[tuple[PatternProcessor, RunError]]()
        for result in results:
            if result[:2] in failed or isinstance(result.outcome, RunError):
                continue
            rule = find_rule(result.rule, result.version) if self._functions else None
            call = self._function_for(rule, result)
            if call is None or rule is None:
                output = MATCHES if isinstance(result.outcome, PatternMatch) else TIMEOUTS
                standard.setdefault(output, []).append(result)
                continue
            name = rule.function or ""
            try:
                rows = _check_rows(self._functions[name], call(_to_matched_events(result)), result)
                function_rows.setdefault(name, []).extend(rows)
            except Exception as error:
                failures.append((rule, _make_error(name, error, result)))
                if not sets_aside:
                    failed.add(result[:2])
        batches = [
            (output, self._to_batch(standard[output], find_rule))
            for output in OUTPUTS
            if output in standard
        ]
        for name, rows in sorted(function_rows.items()):
            if rows:
                batches.append((name, pa.RecordBatch.from_pylist(rows, self._schema(name))))
        return MatchOutput(batches=batches, failures=failures)

    def _to_batch(
        self, results: list[RuleResult], find_rule: Callable[[str, int], PatternProcessor]
    ) -> pa.RecordBatch:
        times = [_times(result.outcome) for result in results]  # type: ignore[arg-type]
        if self.form == "typed":
            selectors = (find_rule(*result[:2]).key or self._key for result in results)
            keys = _typed_keys(results, selectors, self._results.field("key").type)
            events = _typed_events(results, self._results.field("events").type)
        else:
            keys, events = pa.array(_all_keys_json(results)), pa.array(_all_events_json(results))
        head = [[result[at] for result in results] for at in range(2)]
        numbers = [pa.array([pair[at] for pair in times], pa.int64()) for at in range(2)]
        plain = [pa.array(each, kind) for each, kind in zip(head, RESULTS.types[:2], strict=True)]
        clock = [each.cast(self._results.field("time").type) for each in numbers]
        return pa.RecordBatch.from_arrays([*plain, keys, *clock, events], schema=self._results)

    def _schema(self, name: str) -> pa.Schema:
        return with_rule_columns(self._functions[name].schema)

    def _function_for(
        self, rule: PatternProcessor | None, result: RuleResult
    ) -> Callable[[MatchedEvents], FunctionResult] | None:
        function = None if rule is None else self._functions.get(rule.function or "")
        if function is None:
            return None
        return function.matched if isinstance(result.outcome, PatternMatch) else function.timed_out


def with_rule_columns(schema: pa.Schema) -> pa.Schema:
    """Return the columns of a function's output, which begin with the rule's id and version."""
    return pa.schema([RESULTS.field(0), RESULTS.field(1), *schema])


def _load_rows(results: list[RuleResult]) -> None:
    """Load the rows of results that time triggered; other rows are loaded with their batch."""
    events = []
    for result in results:
        if result.trigger == BY_TIME and not isinstance(result.outcome, RunError):
            node: RunNode | None = result.outcome.node
            while node is not None:
                events.append(node.event)
                node = node.previous
    load_fields(events)


def _to_matched_events(result: RuleResult) -> MatchedEvents:
    outcome = result.outcome
    assert isinstance(outcome, PatternMatch | Timeout)  # noqa: S101 - the caller reports errors
    time, noticed = _times(outcome)
    return MatchedEvents(
        rule=result.rule,
        version=result.version,
        key=result.key,
        events={stage: [each.row for each in taken] for stage, taken in outcome.events.items()},
        time=time,
        noticed=noticed,
        waited=outcome.waited if isinstance(outcome, Timeout) else None,
        rows=tuple(
            (outcome.names[each.stage], each.event.row) for each in list_chain(outcome.node)
        ),
        number=outcome.number if isinstance(outcome, PatternMatch) else None,
    )


def _times(outcome: PatternMatch | Timeout) -> tuple[int, int]:
    noticed = outcome.noticed if isinstance(outcome, PatternMatch) else outcome.time
    return outcome.time, outcome.time if noticed == END_OF_TIME else noticed


def _check_rows(function: MatchFunction, returned: FunctionResult, result: RuleResult) -> list[Row]:
    """Return the rows that a function returned, with the rule's columns.

    Raises ValueError, TypeError or ArrowException if they do not fit the function's schema.
    """
    if returned is None:
        return []
    returned_rows = [returned] if isinstance(returned, Mapping) else list(returned)
    names, rows = function.schema.names, list[dict[str, Any]]()
    for row in returned_rows:
        unknown = [name for name in row if name not in names]
        if unknown:
            raise ValueError(f"a row has `{unknown[0]}`, and its columns are {', '.join(names)}")
        rows.append(dict(row))
    pa.RecordBatch.from_pylist(rows, function.schema)
    rule_columns = dict(zip(_LEAD_COLUMNS, result[:2], strict=True))
    return [rule_columns | row for row in rows]


def _make_error(name: str, error: Exception, result: RuleResult) -> RunError:
    """Return the error of a function, with the events of the match."""
    made = RunError(f"function `{name}`", f"it raised {type(error).__name__}: {error}")
    found = _to_matched_events(result)
    made.key, made.row, made.time = found.key, found.events, found.time
    return made


def _all_keys_json(results: list[RuleResult]) -> list[str]:
    keys: dict[int, str] = {}  # by identity: 1 and true are equal, but differ as texts
    texts = []
    for result in results:
        text = keys.get(id(result.key))
        if text is None:
            text = keys[id(result.key)] = _json(list(result.key))
        texts.append(text)
    return texts


def _typed_keys(
    results: list[RuleResult], selectors: Iterable[Selector], kind: pa.DataType
) -> pa.Array:
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        return pa.array([dict(zip(names, each.key, strict=True)) for each in results], kind)
    texts = (map(_to_text, each.key) for each in results)
    pairs = zip(selectors, texts, strict=True)
    return pa.array([list(zip(*each, strict=True)) for each in pairs], kind)


def _to_text(value: Any) -> str | None:
    """Return a part of a key as text: bytes in hexadecimal digits, other values as in JSON."""
    if value is None or isinstance(value, str):
        return value
    return value.hex() if isinstance(value, bytes) else _json(value).strip('"')


def _typed_events(results: list[RuleResult], kind: pa.DataType) -> pa.Array:
    """Return the events of each result by stage; each event is converted once."""
    chains = [(each.outcome.node, each.outcome.names) for each in results]  # type: ignore[union-attr]
    stages = [events_by_stage(*chain) for chain in chains]
    events = {id(event): event for each in stages for taken in each.values() for event in taken}
    places = {each: place for place, each in enumerate(events)}
    is_map = pa.types.is_map(kind)
    rows_kind = kind.item_type if is_map else kind.field(0).type
    rows = _to_structs([event.row for event in events.values()], rows_kind.value_type)

    def lists(parts: list[list[Event] | None]) -> pa.Array:
        ends = accumulate((len(part or ()) for part in parts), initial=0)
        at = pa.array([places[id(one)] for part in parts for one in part or ()], pa.int64())
        missing = pa.array([part is None for part in parts])
        return pa.ListArray.from_arrays(
            pa.array(ends, pa.int32()), rows.take(at), type=rows_kind, mask=missing
        )

    if not is_map:
        arrays = [lists([each.get(field.name) for each in stages]) for field in kind]
        return pa.StructArray.from_arrays(arrays, fields=list(kind))
    offsets = pa.array(accumulate(map(len, stages), initial=0), pa.int32())
    names = pa.array([stage for each in stages for stage in each], kind.key_type)
    taken = lists([part for each in stages for part in each.values()])
    return pa.MapArray.from_arrays(offsets, names, taken, type=kind)


def _to_structs(rows: Sequence[Row], kind: pa.StructType) -> pa.Array:
    """Return rows as structs; rows from the state have the pairs of maps as lists, not tuples."""
    fields = [field for field in kind if _has_map(field.type)]
    if fields:
        rows = [{**row, **{f.name: _pair(row.get(f.name), f.type) for f in fields}} for row in rows]
    return pa.array(rows, kind)


def _has_map(kind: pa.DataType) -> bool:
    return pa.types.is_map(kind) or any(
        _has_map(kind.field(at).type) for at in range(kind.num_fields)
    )


def _pair(value: Any, kind: pa.DataType) -> Any:
    """Return a value with tuples as the pairs of maps."""
    if value is None or not _has_map(kind):
        return value
    if pa.types.is_map(kind):
        return [(_pair(key, kind.key_type), _pair(item, kind.item_type)) for key, item in value]
    if pa.types.is_struct(kind):
        return {field.name: _pair(value.get(field.name), field.type) for field in kind}
    return [_pair(item, kind.value_type) for item in value]


def _all_events_json(results: list[RuleResult]) -> list[str]:
    """Return the events of each result as JSON; each event and shared prefix is encoded once."""
    chains = [(each.outcome.node, each.outcome.names) for each in results]  # type: ignore[union-attr]
    new: dict[int, Event] = {}
    for node, _ in chains:
        each: RunNode | None = node
        while each is not None and each.text is None:
            if each.event.text is None:
                new[id(each.event)] = each.event
            each = each.previous
    _write_event_texts(list(new.values()))
    return [_events_json(node, names) for node, names in chains]


def _write_event_texts(events: list[Event]) -> None:
    """Encode the rows of events as JSON, if possible in one call, which halves the cost.

    One call needs rows that all begin with the same field. Then `},{` and that field's name
    separate two rows. If the split yields another number of parts, each row is encoded alone.
    """
    rows = [event.row for event in events]
    first = {next(iter(row), None) for row in rows}
    if len(first) == 1 and None not in first:
        head = f"{{{_quoted(first.pop())}:"
        parts = _json(rows)[1 + len(head) : -2].split("}," + head)
        if len(parts) == len(events):
            for event, part in zip(events, parts, strict=True):
                event.text = f"{head}{part}}}"
            return
    for event in events:
        event.text = _json(event.row)


def _events_json(node: RunNode, names: tuple[str, ...]) -> str:
    """Return the events up to a node as JSON: rows by stage, in order."""
    previous = node.previous
    if previous is not None and previous.text is None:
        previous.text = _json_prefix(previous, names)
    prefix = _json_prefix(node, names)
    if prefix:
        return f"{prefix}]}}"
    stages = events_by_stage(node, names).items()
    texts = ((stage, ",".join(each.text or "" for each in taken)) for stage, taken in stages)
    return f"{{{','.join(f'{_quoted(stage)}:[{text}]' for stage, text in texts)}}}"


def _json_prefix(node: RunNode, names: tuple[str, ...]) -> str:
    """Return the JSON up to a node, without its end; empty if a stage repeats, as in a group."""
    new: list[RunNode] = []
    cached: RunNode | None = node
    while cached is not None and cached.text is None:
        new.append(cached)
        cached = cached.previous
    prefix, stage = "{", -1
    if cached is not None:
        prefix, stage = cached.text or "", cached.stage
    for each in reversed(new):
        if each.stage < stage or not prefix:
            return ""
        if each.stage == stage:
            prefix = f"{prefix},{each.event.text}"
        else:
            separator = "" if stage < 0 else "],"
            prefix = f"{prefix}{separator}{_quoted(names[each.stage])}:[{each.event.text}"
        stage = each.stage
    return prefix
