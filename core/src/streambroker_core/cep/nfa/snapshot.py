"""Serialization of the runs of one key. Each event and each shared chain node is written once.

A blob is UTF-8 JSON. Values that JSON lacks are embedded as Base64 bytes of `value_codec`. The
first field is the format version; a version of a newer release is rejected.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from streambroker_core.cep.nfa.matcher import Matcher, Run
from streambroker_core.cep.nfa.nfa import FINAL
from streambroker_core.cep.nfa.value_codec import ValueReader, ValueWriter
from streambroker_core.cep.pattern.match_buffer import Event, RunNode
from streambroker_core.cep.pattern.run_limits import NEVER
from streambroker_core.control.operators.operator import StateError

VERSION = 4
"""Written if rules share runs. Else version 3 if a complete match that waits has a time of its own:
not that of an event that it took. Else version 2 if a rule numbers its matches, else version 1: the
same without the later fields.
"""
RuleVersionKey: TypeAlias = "tuple[str, int]"
"""Id and version of a rule."""
Rules: TypeAlias = "frozenset[RuleVersionKey]"
MatcherFactory: TypeAlias = "Callable[[RuleVersionKey], Matcher | None]"
"""Returns a matcher without runs, or None for a removed rule, whose runs are left out."""

MAX_RULE_SETS = 1_024
"""Sets of rules in each cache; a set of a thousand rules takes 100 kB."""
_PLAIN = frozenset((type(None), bool, int, float, str))
_encode = json.JSONEncoder(separators=(",", ":")).encode


class SharedRuns(NamedTuple):
    """Runs that several rules with equal `CompiledRule.sharing` have in common.

    Attributes:
        rules: ids and versions of the rules.
        runs: the runs, as in `Matcher`; there is at least one.
        due: earliest time at which a run ends.
    """

    rules: Rules
    runs: list[Run]
    due: int


class StoredRuns(NamedTuple):
    """Runs of one key: matchers of rules by themselves, and runs that rules share.

    `removed` has the rules whose runs were left out.
    """

    matchers: dict[RuleVersionKey, Matcher]
    shared: list[SharedRuns]
    removed: list[RuleVersionKey]


def collect_nodes(
    matchers: Iterable[Matcher], shared: Iterable[SharedRuns] = ()
) -> dict[int, RunNode]:
    """Return all nodes of runs by identity; each node follows its predecessor in the chain."""
    seen: dict[int, RunNode] = {}
    lists = [part.runs for part in shared]
    for matcher in matchers:
        lists += (matcher.runs, matcher.held)
    for runs in lists:
        for run in runs:
            node: RunNode | None = run.node
            new: list[RunNode] = []
            while node is not None and id(node) not in seen:
                new.append(node)
                node = node.previous
            for each in reversed(new):
                seen[id(each)] = each
    return seen


def write(
    matchers: Mapping[RuleVersionKey, Matcher],
    nodes: Mapping[int, RunNode] | None = None,
    shared: Sequence[SharedRuns] = (),
) -> bytes | None:
    """Serialize the runs of all rules of a key; return None if there are none.

    `nodes` is the result of `collect_nodes`, if already computed.
    """
    active = {rule: each for rule, each in matchers.items() if not each.is_empty}
    if not active and not shared:
        return None
    nodes = collect_nodes(active.values(), shared) if nodes is None else nodes
    event_indices: dict[int, int] = {}
    events: list[Event] = []
    numbers: dict[int, int] = {}
    chains: list[int] = []
    for number, (identity, node) in enumerate(nodes.items()):
        event, previous = node.event, node.previous
        index = event_indices.get(id(event))
        if index is None:
            index = event_indices[id(event)] = len(events)
            events.append(event)
        chains += (index, node.stage, -1 if previous is None else numbers[id(previous)])
        numbers[identity] = number
    names = list(events[0].row) if events else []
    if len(events) > 1:
        names = list(dict.fromkeys(name for event in events for name in event.row))
    rules: list[list[Any]] = []
    form = VERSION if shared else 1
    for (name, version), matcher in active.items():
        fields = [name, version]
        fields += (_encode_runs(one, numbers) for one in (matcher.runs, matcher.held))
        times = [run.due for run in matcher.held if run.state != FINAL]
        if matcher.released or times:
            fields.append(matcher.released or 0)
        if times:
            fields.append(times)
        form = max(form, len(fields) - 3)
        rules.append(fields)
    rules += ([_rules_text(each.rules), _encode_runs(each.runs, numbers)] for each in shared)
    return _encode([form, names, _encode_events(events, names), chains, rules]).encode()


def _encode_events(events: list[Event], names: list[str]) -> list[list[Any]]:
    """Return for each event: sequence number, time since the previous event, clock and fields."""
    out, time = [], 0
    for event in events:
        row = event.row
        values = [row.get(name) for name in names]
        if not _PLAIN.issuperset(map(type, values)):
            values = [value if type(value) in _PLAIN else _encode_rare(value) for value in values]
        out.append([event.seq, event.time - time, event.clock, *values])
        time = event.time
    return out


@lru_cache(maxsize=MAX_RULE_SETS)
def _rules_text(rules: Rules) -> str:
    """Return rules as text: keys share few sets of them, and a text is read and written fast."""
    return _encode(sorted(rules))


@lru_cache(maxsize=MAX_RULE_SETS)
def _read_rules(text: str) -> Rules:
    return frozenset((name, version) for name, version in json.loads(text))


def _encode_rare(value: Any) -> dict[str, str]:
    out = ValueWriter()
    out.write_value(value)
    return {"": b64encode(out.to_bytes()).decode()}


def _encode_runs(runs: list[Run], numbers: Mapping[int, int]) -> list[int]:
    out: list[int] = []
    for run in runs:
        out += (run.state, numbers[id(run.node)])
    return out


def read(
    data: bytes,
    make_matcher: MatcherFactory,
    successors: Mapping[RuleVersionKey, RuleVersionKey] | None = None,
) -> StoredRuns:
    """Deserialize the runs of a key.

    `successors` names rules that take over the runs of others; their automata have the same states.

    Raises:
        StateError: the blob is damaged or from a newer release.
    """
    try:
        version, *parts = _decode(data)
        if type(version) is int and version > VERSION:
            raise StateError(
                f"state of patterns has form {version}, of a newer release; this one reads up to"
                f" {VERSION}. Start that release."
            )
        names, encoded, chains, rules = parts
        events = _read_events(names, encoded)
        nodes: list[RunNode] = []
        firsts: list[Event] = []
        for at in range(0, len(chains), 3):
            event, previous = events[chains[at]], chains[at + 2]
            nodes.append(RunNode(event, chains[at + 1], None if previous < 0 else nodes[previous]))
            firsts.append(event if previous < 0 else firsts[previous])
        found, successors = StoredRuns({}, [], []), successors or {}
        for fields in rules:
            if len(fields) == 2:
                _read_shared(fields, nodes, firsts, make_matcher, successors, found)
                continue
            name, number, runs, held, *later = fields
            matcher = _add_matcher((name, number), make_matcher, successors, found)
            if matcher is None:
                continue
            if held:
                held_runs = _read_runs(held, nodes, firsts, matcher)
                matcher.held = _with_times(held_runs, later[1] if later[1:] else None, matcher)
                matcher.due = NEVER  # the due times of held matches do not count
            matcher.runs = _read_runs(runs, nodes, firsts, matcher)
            if matcher.released is not None and later:
                matcher.released = later[0]
        return found
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise StateError(f"state of patterns is damaged: {error}.") from error


def _add_matcher(
    rule: RuleVersionKey,
    make_matcher: MatcherFactory,
    successors: Mapping[RuleVersionKey, RuleVersionKey],
    found: StoredRuns,
) -> Matcher | None:
    """Add a matcher without runs for a stored rule or its successor; None if both are removed."""
    rule = successors.get(rule, rule)
    matcher = make_matcher(rule)
    if matcher is None:
        found.removed.append(rule)
    else:
        found.matchers[rule] = matcher
    return matcher


def _read_shared(
    fields: list[Any],
    nodes: list[RunNode],
    firsts: list[Event],
    make_matcher: MatcherFactory,
    successors: Mapping[RuleVersionKey, RuleVersionKey],
    found: StoredRuns,
) -> None:
    """Read shared runs; rules with a successor get runs of their own."""
    text, encoded = fields
    rules = _read_rules(text)
    for rule in sorted(rules.intersection(successors)):
        matcher = _add_matcher(rule, make_matcher, successors, found)
        if matcher is not None:
            matcher.runs = _read_runs(encoded, nodes, firsts, matcher)
    if successors:
        rules = rules.difference(successors)
    matchers = (make_matcher(rule) for rule in rules)
    first = next((matcher for matcher in matchers if matcher is not None), None)
    if first is not None:
        found.shared.append(SharedRuns(rules, _read_runs(encoded, nodes, firsts, first), first.due))
    else:
        found.removed.extend(rules)


def _read_rare(encoded: dict[str, str]) -> Any:
    return ValueReader(b64decode(encoded[""], validate=True)).read_value()


_raw = json.JSONDecoder(object_hook=_read_rare).raw_decode


def _decode(data: bytes) -> list[Any]:
    """Decode data that is exactly one JSON value without surrounding whitespace."""
    text = data.decode()
    value, end = _raw(text)
    if end != len(text):
        raise ValueError(f"more than one value: data continues at {end}")
    fields: list[Any] = value
    return fields


def _read_events(names: list[str], encoded: list[list[Any]]) -> list[Event]:
    events, time = [], 0
    for seq, passed, clock, *values in encoded:
        time += passed
        events.append(Event(seq, time, dict(zip(names, values, strict=True)), clock))
    return events


def _read_runs(
    encoded: list[int], nodes: list[RunNode], firsts: list[Event], matcher: Matcher
) -> list[Run]:
    runs = []
    for at in range(0, len(encoded), 2):
        state, node, first = encoded[at], nodes[encoded[at + 1]], firsts[encoded[at + 1]]
        if state == FINAL:
            runs.append(Run(FINAL, node, first.seq, first.time, NEVER))
        else:
            runs.append(matcher.make_run(state, node, first.seq, first.time))
    return runs


def _with_times(held: list[Run], times: list[int] | None, matcher: Matcher) -> list[Run]:
    """Return complete matches with their times; forms 1 and 2 have none."""
    if times is None:
        states = matcher.automaton.states
        return [
            run if states[run.state].kind == "pending" else run._replace(due=run.node.event.time)
            for run in held
        ]
    rest = iter(times)
    return [run if run.state == FINAL else run._replace(due=next(rest)) for run in held]
