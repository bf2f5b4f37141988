"""The runs of one key as bytes: every event once, every shared past once, however many runs.

A blob begins with the version of its form; one of a newer release is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from streambroker_core.cep.automaton import FINAL
from streambroker_core.cep.codec import Reader, Writer
from streambroker_core.cep.history import Event, Node, chain
from streambroker_core.cep.matcher import NEVER, Matcher, Run
from streambroker_core.control.operator import StateError

VERSION = 1
RuleKey: TypeAlias = "tuple[str, int]"
"""Id and version of a rule."""
New: TypeAlias = "Callable[[RuleKey], Matcher | None]"
"""Returns a matcher without runs; None for a rule that is gone, whose runs are left out."""


def write(matchers: Mapping[RuleKey, Matcher]) -> bytes | None:
    """Return the runs of all rules of a key; None if there are none."""
    alive = {rule: each for rule, each in matchers.items() if each.runs or each.held}
    if not alive:
        return None
    runs = [run for each in alive.values() for run in (*each.runs, *each.held)]
    nodes = _nodes(runs)
    events: dict[int, Event] = {id(node.event): node.event for node in nodes}
    out = Writer()
    out.number(VERSION)
    places = _write_events(out, list(events.values()))
    numbers: dict[int, int] = {}
    out.number(len(nodes))
    for node in nodes:
        out.number(places[id(node.event)])
        out.number(node.stage)
        out.number(-1 if node.before is None else numbers[id(node.before)])
        numbers[id(node)] = len(numbers)
    out.number(len(alive))
    for (name, version), matcher in alive.items():
        out.text(name)
        out.number(version)
        _write_runs(out, matcher.runs, numbers)
        _write_runs(out, matcher.held, numbers)
    return out.done()


def _nodes(runs: list[Run]) -> list[Node]:
    """Return all nodes, each behind the one before it in its chain."""
    seen: dict[int, Node] = {}
    for run in runs:
        new: list[Node] = []
        node: Node | None = run.node
        while node is not None and id(node) not in seen:
            new.append(node)
            node = node.before
        for each in reversed(new):
            seen[id(each)] = each
    return list(seen.values())


def _write_events(out: Writer, events: list[Event]) -> dict[int, int]:
    names = list(dict.fromkeys(name for event in events for name in event.row))
    out.number(len(names))
    for name in names:
        out.text(name)
    out.number(len(events))
    time = 0
    for event in events:
        out.number(event.seq)
        out.number(event.time - time)
        out.number(event.clock)
        time = event.time
        for name in names:
            out.value(event.row.get(name))
    return {id(event): place for place, event in enumerate(events)}


def _write_runs(out: Writer, runs: list[Run], numbers: Mapping[int, int]) -> None:
    out.number(len(runs))
    for run in runs:
        out.number(run.state)
        out.number(numbers[id(run.node)])


def read(
    data: bytes, new: New, heirs: Mapping[RuleKey, RuleKey] | None = None
) -> dict[RuleKey, Matcher]:
    """Return the matchers of a key.

    Args:
        data: what `write` returned.
        new: makes matchers.
        heirs: rules that take over the runs of others, whose automata have the same states.

    Raises:
        StateError: the blob is damaged, or of a newer release.
    """
    reader = Reader(data)
    version = reader.number()
    if version > VERSION:
        raise StateError(
            f"state of patterns has form {version}, of a newer release; this one reads up to"
            f" {VERSION}. Start that release."
        )
    try:
        events = _read_events(reader)
        nodes: list[Node] = []
        for _ in range(reader.number()):
            event, stage, before = events[reader.number()], reader.number(), reader.number()
            nodes.append(Node(event, stage, None if before < 0 else nodes[before]))
        matchers: dict[RuleKey, Matcher] = {}
        for _ in range(reader.number()):
            rule = (reader.text(), reader.number())
            rule = (heirs or {}).get(rule, rule)
            matcher = new(rule)
            runs, held = _read_runs(reader, nodes, matcher), _read_runs(reader, nodes, matcher)
            if matcher is not None:
                matcher.runs, matcher.held = runs, held
                matcher.due = min((run.due for run in runs), default=NEVER)
                matchers[rule] = matcher
        return matchers
    except IndexError as error:
        raise StateError(f"state of patterns is damaged: {error}.") from error


def _read_events(reader: Reader) -> list[Event]:
    names = [reader.text() for _ in range(reader.number())]
    events: list[Event] = []
    time = 0
    for _ in range(reader.number()):
        seq, passed, clock = reader.number(), reader.number(), reader.number()
        time += passed
        events.append(Event(seq, time, {name: reader.value() for name in names}, clock))
    return events


def _read_runs(reader: Reader, nodes: list[Node], matcher: Matcher | None) -> list[Run]:
    runs = []
    for _ in range(reader.number()):
        state, node = reader.number(), nodes[reader.number()]
        first = chain(node)[0].event
        if matcher is None:
            continue
        if state == FINAL:
            runs.append(Run(FINAL, node, first.seq, first.time, NEVER))
        else:
            runs.append(matcher.run_in(state, node, first.seq, first.time))
    return runs
