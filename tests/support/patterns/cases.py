"""Run pattern cases: a pattern, events, and the matches, time-outs and state that they lead to.

Cases speak of milliseconds, the automaton of microseconds. A case that expects an error passes if
the pattern is refused before it runs (``malformed_pattern``, ``invalid_argument``,
``unsupported_pattern``) or fails while it runs (``runtime_error``).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa

from pe_agent.datasource.schemas import as_arrow_schema
from pe_agent.filters import compile_filter
from streambroker_core.cep import Pattern, PatternError, RunError, Skip, compile_pattern
from streambroker_core.cep.nfa.condition_bits import ConditionBits
from streambroker_core.cep.nfa.matcher import Matcher
from streambroker_core.cep.nfa.nfa import FINAL
from streambroker_core.cep.operator import PatternOperator
from streambroker_core.cep.pattern.match_buffer import Event, list_chain
from streambroker_core.cep.pattern.rule import PatternProcessor
from streambroker_core.cep.rules.rule_set import RuleSet
from streambroker_core.control.tuples import END_OF_TIME
from streambroker_core.expression import Expression
from support.patterns.windows import Bucket, Buckets, Emitted, Windows

END = 2**62
EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - results have no zone
MS = 1000
_JOINS = ("next", "followedBy", "followedByAny", "notNext", "notFollowedBy")
_OTHERS = """
times oneOrMore timesOrMore optional greedy consecutive allowCombinations until where subtype within
"""
_METHODS = {
    "or": "or_",
    **{name: re.sub("([A-Z])", r"_\1", name).lower() for name in (*_JOINS, *_OTHERS.split())},
}
_USUAL: dict[str, list[Any]] = {
    **{name: ["price == 5"] for name in ("until", "where", "or")},
    **{name: ["another"] for name in _JOINS},
    "subtype": ["sub"],
    "within": [5],
}
"""Arguments of calls that are given without."""
_COUNTS = {"oneOrMore": 0, "timesOrMore": 1}
_MAY_LACK = ("type", "volume")
_ORDERS = {"sort_by_t_then_price": "price"}
_AT_DEFINITION = ("malformed_pattern", "invalid_argument", "unsupported_pattern")


def failure(case: dict[str, Any]) -> str | None:
    wanted = case.get("expected_error") or (
        _AT_DEFINITION[0] if case.get("class") == "reject" else None
    )
    try:
        problem = _RUNNERS[case["kind"]](case)
    except PatternError as error:
        return None if wanted in _AT_DEFINITION else f"{case['id']}: refused: {error}"
    except RunError as error:
        return None if wanted == "runtime_error" else f"{case['id']}: failed: {error}"
    except Exception as error:  # whatever a case of others has, the next one is run
        return f"{case['id']}: {type(error).__name__}: {error}"
    if wanted is not None:
        return f"{case['id']}: expected {wanted}, got none"
    return None if problem is None else f"{case['id']} ({case['name']}): {problem}"


def pattern_of(case: dict[str, Any]) -> Pattern:
    """Return the pattern of a case, made by the calls that a program would make."""
    given = case.get("skip") or {}
    skip = Skip(
        strategy=given.get("strategy", "no_skip"),
        stage=given.get("stage"),
        throw_on_miss=given.get("throw_on_miss", False),
    )
    return _chain(case["pattern"], skip)


def _chain(stages: list[dict[str, Any]], skip: Skip | None = None) -> Pattern:
    pattern: Pattern | None = None
    for stage in stages:
        inner: str | Pattern = _chain(stage["group"]) if "group" in stage else stage["name"]
        if pattern is None:
            pattern = Pattern.begin(inner, skip=skip)
        else:
            pattern = _method(pattern, stage["contiguity"])(inner)
        pattern = _described(pattern, stage)
    assert pattern is not None
    return pattern


def _described(pattern: Pattern, stage: dict[str, Any]) -> Pattern:
    text = text_of(stage.get("condition"))
    if text is not None:
        pattern = pattern.where(text)
    for name, *arguments in stage.get("calls", []):
        pattern = _called(pattern, name, arguments)
    pattern = _quantified(pattern, stage.get("quantifier") or {"kind": "one"})
    if "until" in stage and stage["until"] is not None:
        pattern = pattern.until(text_of(stage["until"]) or "true")
    if stage.get("within_first_last_ms") is not None:
        pattern = pattern.within(f"{stage['within_first_last_ms']}ms")
    if stage.get("within_previous_current_ms") is not None:
        pattern = pattern.within(f"{stage['within_previous_current_ms']}ms", "previous_and_current")
    return pattern


def _called(pattern: Pattern, name: str, arguments: list[Any]) -> Pattern:
    arguments = arguments or _USUAL.get(name, [])
    values = [text_of(each) or "true" if isinstance(each, dict) else each for each in arguments]
    if name in _JOINS:
        return _method(pattern, name)(*values)
    counts = _COUNTS.get(name, 2)  # so many numbers, and then the gap
    gap = {"gap": f"{values.pop()}ms"} if len(values) > counts else {}
    if name == "within":
        values[:1] = [f"{values[0]}ms"]
    return _method(pattern, name)(*values, **gap)


def _method(pattern: Pattern, name: str) -> Callable[..., Pattern]:
    """Return the method that a case names as Java would, such as ``followedBy`` and ``or``."""
    method: Callable[..., Pattern] = getattr(pattern, _METHODS[name])
    return method


def _quantified(pattern: Pattern, quantifier: dict[str, Any]) -> Pattern:
    gap = f"{quantifier.get('gap_ms') or 0}ms"
    if quantifier["kind"] == "times":
        pattern = pattern.times(quantifier["min"], quantifier["max"], gap=gap)
    elif quantifier["kind"] == "at_least":
        pattern = pattern.times_or_more(quantifier["min"], gap=gap)
    if quantifier.get("inner") == "strict":
        pattern = pattern.consecutive()
    elif quantifier.get("inner") == "combinations":
        pattern = pattern.allow_combinations()
    if quantifier.get("optional") and not (quantifier["kind"] == "times" and not quantifier["min"]):
        pattern = pattern.optional()
    return pattern.greedy() if quantifier.get("greedy") else pattern


def text_of(condition: dict[str, Any] | None) -> str | None:
    """Return a condition of a case in our language; None if it always holds."""
    return None if condition is None or condition.get("true") is True else _text(condition)


def _text(given: dict[str, Any]) -> str:
    if given.get("true") is True:
        return "true"
    if "and" in given:
        return "(" + " && ".join(map(_text, given["and"])) + ")"
    if "or" in given:
        return "(" + " || ".join(map(_text, given["or"])) + ")"
    if "not" in given:
        return f"!({_text(given['not'])})"
    if "if" in given:
        test = _text(given["if"])
        return f"(({test}) && ({_text(given['then'])}) || !({test}) && ({_text(given['else'])}))"
    if "agg" in given:
        return _aggregate(given)
    if "ctx" in given:
        return f"{given['ctx']}() {given['op']} {int(given['value'] * MS)}"
    return _compared(given["field"], given["op"], given["value"])


def _compared(field: str, op: str, value: Any) -> str:
    literal = json.dumps(value)
    functions = {"startswith": "startsWith", "contains": "contains", "endswith": "endsWith"}
    text = f"{functions[op]}({field}, {literal})" if op in functions else f"{field} {op} {literal}"
    return f"(has({field}) && {text})" if field in _MAY_LACK else text


def _aggregate(given: dict[str, Any]) -> str:
    stage, field, op = json.dumps(given["stage"]), given.get("field"), given["op"]
    other = given.get("value_of_current")
    value = json.dumps(given["value"]) if other is None else field if other is True else other
    if given["agg"] == "count":
        return f"count({stage}){' + 1' if given.get('include_current') else ''} {op} {value}"
    term = f"{given['agg']}({stage}.{field})"
    if not given.get("include_current"):
        return f"{term} {op} {value}"
    if given["agg"] == "sum":
        return f"{term} + {field} {op} {value}"
    first = f"(count({stage}) == 0 && {field} {op} {value})"
    return f"({first} || (count({stage}) > 0 && {term} {op} {value}))"


def row_of(event: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of an event; ``i`` refers to it."""
    return {name: value for name, value in event.items() if name not in ("t", "processing_time")}


Found = dict[str, list[int]]
"""A match: for each stage the numbers of its events."""


def found(events: dict[str, list[Event]]) -> Found:
    """Return a match as the cases write it."""
    return {stage: [event.row["i"] for event in taken] for stage, taken in events.items()}


def _key(match: Found, *more: Any) -> str:
    return json.dumps([match, *more], sort_keys=True)


def differences(what: str, got: Iterable[str], wanted: Iterable[str]) -> list[str]:
    """Return what is missing and what is too much, as sentences."""
    have, want = Counter(got), Counter(wanted)
    missing, more = sorted((want - have).elements()), sorted((have - want).elements())
    problems = [f"{what} missing: {', '.join(missing)}"] if missing else []
    return problems + ([f"{what} too much: {', '.join(more)}"] if more else [])


def _run_compile(case: dict[str, Any]) -> str | None:
    automaton = compile_pattern(pattern_of(case))
    window = case.get("expected_window_ms")
    if window is not None and automaton.window != window * MS:
        return f"window {automaton.window}, expected {window} ms"
    empty = case.get("expected_can_match_empty")
    if empty is not None and (FINAL in automaton.closure(automaton.start)) != empty:
        return f"can match nothing: {not empty}, expected {empty}"
    return None


def _run_matcher(case: dict[str, Any]) -> str | None:
    automaton = compile_pattern(pattern_of(case))
    if case.get("within_ms") is not None and automaton.window != case["within_ms"] * MS:
        return f"window {automaton.window}, expected {case['within_ms']} ms"
    matcher = Matcher(automaton, ConditionBits(automaton))
    matches: list[tuple[Found, int | None]] = []
    timeouts: list[tuple[Found, int]] = []

    def take(answer: tuple[list[Any], list[Any]], number: int | None) -> None:
        matches.extend((found(match.events), number) for match in answer[0])
        timeouts.extend((found(each.events), each.time // MS) for each in answer[1])

    for seq, event in enumerate(_in_order(case)):
        clock = int(event.get("processing_time", event["t"]) * MS)
        take(matcher.process(Event(seq, event["t"] * MS, row_of(event), clock)), event["i"])
    check = case.get("state_check") or {}
    if "advance_time_to" in check:
        take(matcher.advance(check["advance_time_to"] * MS), None)
    problems = _state_problems(matcher, check)
    if case.get("end_of_input"):
        take(matcher.advance(END), None)
    return "; ".join(problems + compared(case, matches, timeouts)) or None


def _in_order(case: dict[str, Any]) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = case["events"]
    if case.get("order", "as_given") == "as_given":
        return events
    tie = _ORDERS.get(case["order"])
    return sorted(events, key=lambda event: (event["t"], event[tie] if tie else 0))


def _state_problems(matcher: Matcher, check: dict[str, Any]) -> list[str]:
    problems = []
    live = check.get("live_partial_matches")
    if live is not None and len(matcher.runs) != live:
        problems.append(f"{len(matcher.runs)} live runs, expected {live}")
    kept = {node.event.seq for run in matcher.runs + matcher.held for node in list_chain(run.node)}
    if len(kept) > check.get("retained_events", len(kept)):
        problems.append(f"{len(kept)} events kept, expected {check['retained_events']}")
    return problems


def compared(
    case: dict[str, Any],
    matches: Sequence[tuple[Found, int | None]],
    timeouts: list[tuple[Found, int]] | None,
) -> list[str]:
    """Return how results differ from those of a case; None for time-outs that are not looked at."""
    at = case.get("emitted_at_event")
    if at is None:
        got, wanted = [_key(m) for m, _ in matches], [_key(m) for m in case["expected"]]
    else:
        got = [_key(*each) for each in matches]
        wanted = [_key(m, i) for m, i in zip(case["expected"], at, strict=True)]
    problems = differences("matches", got, wanted)
    if case.get("ordered") and [m for m, _ in matches] != case["expected"]:
        problems.append("matches are in another order")
    if timeouts is not None and "timed_out" in case:
        problems += differences(
            "time-outs",
            (_key(*each) for each in timeouts),
            (_key(each["match"], each["t"]) for each in case["timed_out"]),
        )
    return problems


_FIELDS = as_arrow_schema(
    "i bigint, t bigint, id bigint, name string, price double, type string, volume double"
)


def batch_of(events: list[dict[str, Any]]) -> pa.RecordBatch:
    """Return events as rows; ``t`` in microseconds."""
    rows = [{**event, "t": event["t"] * MS} for event in events]
    return pa.RecordBatch.from_pylist(rows, schema=_FIELDS)


def bucket_of(case: dict[str, Any]) -> Windows:
    """Return a bucket with the case's pattern as its one rule."""
    return Bucket(_maker(case))


def _maker(case: dict[str, Any], *, copied: bool = False) -> Callable[[], PatternOperator]:
    rule = PatternProcessor(id="case", version=1, pattern=pattern_of(case))
    rules, (outcome,) = RuleSet().apply_update([rule])
    assert outcome.change == "added", outcome
    tie = (case.get("tie_break") or {}).get("field") or _ORDERS.get(case.get("order", ""))
    return lambda: PatternOperator(
        key=(case["key_by"],) if case.get("key_by") else (),
        time=case["time"],
        event_time="t",
        tie_break=tie,
        maker=compiled,
        rules=rules,
        copied=copied,
    )


def compiled(expression: Expression, schema: pa.Schema) -> Any:
    """Make a mask as the agent does."""
    return compile_filter(expression, schema).mask


def _run_operator(case: dict[str, Any]) -> str | None:
    if case.get("time") == "processing" and not case.get("steps"):
        return _run_matcher(case)
    return _run_steps(case, bucket_of(case))


def _run_steps(case: dict[str, Any], bucket: Windows) -> str | None:
    """Run the steps, each a window; what is late or timed out is compared too."""
    events = {event["i"]: event for event in case["events"]}
    emitted: list[Emitted] = []
    for step in case["steps"]:
        if "event" in step:
            event = events[step["event"]]
            clock = event["t"] * MS if case["time"] == "processing" else None
            emitted.append(bucket.window([batch_of([event])], clock=clock))
        elif step.get("watermark", "-inf") != "-inf":
            emitted.append(bucket.window(watermark=_micros(step["watermark"])))
        elif "processing_time" in step:
            emitted.append(bucket.window(clock=_micros(step["processing_time"])))
    if case.get("input_ended"):
        emitted.append(bucket.window(watermark=END_OF_TIME, clock=END_OF_TIME))
    return "; ".join(_emitted_problems(case, emitted)) or None


def _micros(time: int | str) -> int:
    """Return a time of a step, in milliseconds or ``+inf``, in microseconds."""
    return END_OF_TIME if time == "+inf" else int(time) * MS


def _run_windows(case: dict[str, Any], make: Callable[[int], Windows]) -> str | None:
    """Run all events as one window and one by one; both have to give what is expected.

    In processing time a window has one clock, so there they come one by one only.
    """
    problems = []
    for size in (1,) if case["time"] == "processing" else (len(case["events"]), 1):
        bucket, emitted = make(size), list[Emitted]()
        for start in range(0, len(case["events"]), size):
            part = case["events"][start : start + size]
            clock = part[-1]["t"] * MS if case["time"] == "processing" else None
            emitted.append(bucket.window([batch_of(part)], clock=clock))
        last = max(event["t"] for event in case["events"]) * MS
        emitted.append(bucket.window(watermark=END_OF_TIME if case.get("end_of_input") else last))
        problems += [f"windows of {size}: {each}" for each in _emitted_problems(case, emitted)]
    return "; ".join(problems) or None


def goes_through_windows(case: dict[str, Any]) -> bool:
    """Tell whether a case can be run by an operator as well as by a matcher.

    Not those that give only part of what windows need: events before others in time though behind
    them in order, a clock of their own for each event, or an error when they are defined.
    """
    if case["kind"] in ("operator", "pipeline"):
        return bool(case.get("steps")) or case["kind"] == "pipeline"
    if case["kind"] not in ("nfa", "docs"):
        return False
    times = [event["t"] for event in _in_order(case)]
    own_clock = any("processing_time" in event for event in case["events"])
    defined = case.get("expected_error") in (None, "runtime_error")
    return times == sorted(times) and not own_clock and defined


def failure_through_runner(case: dict[str, Any], *, copied: bool) -> str | None:
    """Return what is wrong when a case is run in windows through the runner; None for nothing."""
    key: tuple[str, ...] = (case["key_by"],) if case.get("key_by") else ()

    def make(seed: int) -> Windows:
        some, selectors = 4 if key or copied else 1, [key] if copied else None
        return Buckets(_maker(case, copied=copied), some, selectors, seed)

    try:
        if case.get("steps"):
            problem = _run_steps(case, make(0))
        elif case["kind"] == "pipeline":
            problem = _run_windows(case, make)
        else:
            problem = _run_timed(case, make)
    except RunError as error:
        return None if case.get("expected_error") == "runtime_error" else f"failed: {error}"
    return problem


def _run_timed(case: dict[str, Any], make: Callable[[int], Windows]) -> str | None:
    """Run events of a matcher's case in event time: all in one window, and one by one."""
    events, problems = _in_order(case), list[str]()
    for size in (len(events), 1):
        bucket, emitted = make(size), list[Emitted]()
        for start in range(0, len(events), size):
            emitted.append(bucket.window([batch_of(events[start : start + size])]))
            later = [event["t"] * MS for event in events[start + size :]]
            if later:
                emitted.append(bucket.window(watermark=min(later) - 1))
        emitted.append(bucket.window(watermark=events[-1]["t"] * MS))
        check = case.get("state_check") or {}
        if "advance_time_to" in check:
            emitted.append(bucket.window(watermark=check["advance_time_to"] * MS))
        if case.get("end_of_input"):
            emitted.append(bucket.window(watermark=END_OF_TIME))
        problems += [f"windows of {size}: {each}" for each in _emitted_problems(case, emitted)]
    return "; ".join(problems) or None


def _emitted_problems(case: dict[str, Any], emitted: list[Emitted]) -> list[str]:
    rows = [row for each in emitted for row in each.of("matches")]
    matches = [(_numbers(row), None) for row in rows]
    over = [row for each in emitted for row in each.of("timeouts")]
    timeouts = [(_numbers(row), _ms(row["time"])) for row in over]
    problems = compared({**case, "emitted_at_event": None}, matches, timeouts)
    if case.get("match_timestamps") is not None:
        wanted = zip(case["expected"], case["match_timestamps"], strict=True)
        got = [_key(_numbers(row), _ms(row["noticed"])) for row in rows]
        problems += differences("times", got, [_key(*each) for each in wanted])
    if "late" in case:
        late = [_key({"late": [row["i"]]}) for each in emitted for row in each.of("late")]
        problems += differences("late", late, [_key({"late": [i]}) for i in case["late"]])
    return problems


def _numbers(row: dict[str, Any]) -> Found:
    return {stage: [each["i"] for each in taken] for stage, taken in row["events"].items()}


def _ms(time: datetime) -> int:
    return (time - EPOCH) // timedelta(milliseconds=1)


_RUNNERS: dict[str, Callable[[dict[str, Any]], str | None]] = {
    "compile": _run_compile,
    "nfa": _run_matcher,
    "docs": _run_matcher,
    "operator": _run_operator,
    "pipeline": lambda case: _run_windows(case, lambda _: bucket_of(case)),
}
KINDS = frozenset(_RUNNERS)
