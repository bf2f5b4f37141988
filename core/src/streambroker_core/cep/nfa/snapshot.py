"""The runs of one key as bytes: every event once, every shared past once, however many runs.

A blob is JSON in UTF-8, which C code reads and writes; values that JSON does not have are bytes of
`codec` in it. It begins with the version of its form; one of a newer release is refused.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from streambroker_core.cep.nfa.matcher import NEVER, Matcher, Run
from streambroker_core.cep.nfa.nfa import FINAL
from streambroker_core.cep.nfa.value_codec import Reader, Writer
from streambroker_core.cep.pattern.match_buffer import Event, Node
from streambroker_core.control.operators.operator import StateError

VERSION = 1
RuleKey: TypeAlias = "tuple[str, int]"
"""Id and version of a rule."""
New: TypeAlias = "Callable[[RuleKey], Matcher | None]"
"""Returns a matcher without runs; None for a rule that is gone, whose runs are left out."""

_PLAIN = frozenset((type(None), bool, int, float, str))
_encode = json.JSONEncoder(separators=(",", ":")).encode


def nodes_of(matchers: Iterable[Matcher]) -> dict[int, Node]:
    """Return all nodes of runs by their identity, each behind the one before it in its chain."""
    seen: dict[int, Node] = {}
    for matcher in matchers:
        for runs in (matcher.runs, matcher.held):
            for run in runs:
                node: Node | None = run.node
                new: list[Node] = []
                while node is not None and id(node) not in seen:
                    new.append(node)
                    node = node.before
                for each in reversed(new):
                    seen[id(each)] = each
    return seen


def write(
    matchers: Mapping[RuleKey, Matcher], nodes: Mapping[int, Node] | None = None
) -> bytes | None:
    """Return the runs of all rules of a key; None if there are none.

    Args:
        matchers: of all rules.
        nodes: what `nodes_of` returns for them, if it is known.
    """
    alive = {rule: each for rule, each in matchers.items() if each.runs or each.held}
    if not alive:
        return None
    nodes = nodes_of(alive.values()) if nodes is None else nodes
    places: dict[int, int] = {}
    events: list[Event] = []
    numbers: dict[int, int] = {}
    chains: list[int] = []
    for number, (mark, node) in enumerate(nodes.items()):
        event, before = node.event, node.before
        place = places.get(id(event))
        if place is None:
            place = places[id(event)] = len(events)
            events.append(event)
        chains += (place, node.stage, -1 if before is None else numbers[id(before)])
        numbers[mark] = number
    names = list(events[0].row)
    if len(events) > 1:
        names = list(dict.fromkeys(name for event in events for name in event.row))
    rules = [
        [name, version, _runs(matcher.runs, numbers), _runs(matcher.held, numbers)]
        for (name, version), matcher in alive.items()
    ]
    return _encode([VERSION, names, _events(events, names), chains, rules]).encode()


def _events(events: list[Event], names: list[str]) -> list[list[Any]]:
    """Return number, time since the event before, clock and fields of each event."""
    out, time = [], 0
    for event in events:
        row = event.row
        values = [row.get(name) for name in names]
        if not _PLAIN.issuperset(map(type, values)):
            values = [value if type(value) in _PLAIN else _rare(value) for value in values]
        out.append([event.seq, event.time - time, event.clock, *values])
        time = event.time
    return out


def _rare(value: Any) -> dict[str, str]:
    out = Writer()
    out.value(value)
    return {"": b64encode(out.done()).decode()}


def _runs(runs: list[Run], numbers: Mapping[int, int]) -> list[int]:
    out: list[int] = []
    for run in runs:
        out += (run.state, numbers[id(run.node)])
    return out


def read(
    data: bytes,
    new: New,
    heirs: Mapping[RuleKey, RuleKey] | None = None,
    gone: list[RuleKey] | None = None,
) -> dict[RuleKey, Matcher]:
    """Return the matchers of a key.

    Args:
        data: what `write` returned.
        new: makes matchers.
        heirs: rules that take over the runs of others, whose automata have the same states.
        gone: takes the rules whose runs are left out.

    Raises:
        StateError: the blob is damaged, or of a newer release.
    """
    try:
        version, *parts = _decode(data)
        if type(version) is int and version > VERSION:
            raise StateError(
                f"state of patterns has form {version}, of a newer release; this one reads up to"
                f" {VERSION}. Start that release."
            )
        names, given, chains, rules = parts
        events = _read_events(names, given)
        nodes: list[Node] = []
        firsts: list[Event] = []
        for at in range(0, len(chains), 3):
            event, before = events[chains[at]], chains[at + 2]
            nodes.append(Node(event, chains[at + 1], None if before < 0 else nodes[before]))
            firsts.append(event if before < 0 else firsts[before])
        matchers: dict[RuleKey, Matcher] = {}
        for name, number, runs, held in rules:
            rule = name, number
            if heirs:
                rule = heirs.get(rule, rule)
            matcher = new(rule)
            if matcher is None:
                if gone is not None:
                    gone.append(rule)
                continue
            if held:
                matcher.held = _read_runs(held, nodes, firsts, matcher)
                matcher.due = NEVER  # the end of those that are held does not count
            matcher.runs = _read_runs(runs, nodes, firsts, matcher)
            matchers[rule] = matcher
        return matchers
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise StateError(f"state of patterns is damaged: {error}.") from error


def _read_rare(given: dict[str, str]) -> Any:
    return Reader(b64decode(given[""], validate=True)).value()


_raw = json.JSONDecoder(object_hook=_read_rare).raw_decode


def _decode(data: bytes) -> list[Any]:
    """Return the one JSON value that data is, with no blanks around it."""
    text = data.decode()
    value, end = _raw(text)
    if end != len(text):
        raise ValueError(f"more than one value: it goes on at {end}")
    found: list[Any] = value
    return found


def _read_events(names: list[str], given: list[list[Any]]) -> list[Event]:
    events, time = [], 0
    for seq, passed, clock, *values in given:
        time += passed
        events.append(Event(seq, time, dict(zip(names, values, strict=True)), clock))
    return events


def _read_runs(
    given: list[int], nodes: list[Node], firsts: list[Event], matcher: Matcher
) -> list[Run]:
    runs = []
    for at in range(0, len(given), 2):
        state, node, first = given[at], nodes[given[at + 1]], firsts[given[at + 1]]
        if state == FINAL:
            runs.append(Run(FINAL, node, first.seq, first.time, NEVER))
        else:
            runs.append(matcher.run_in(state, node, first.seq, first.time))
    return runs
