"""How many events a second rules see over Arrow batches, without Spark: masks, automata, state.

Each figure is for one core: batches that are in memory go through the pattern operator in windows,
its state is written as bytes after each window and read again. The peer of each figure is the same
rule with a matcher that is given every event, one by one, as an automaton without masks would be.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pyarrow as pa
from measure import Figures, Settings, turns
from pattern_runs import BATCH, END, Engine, Workload

from streambroker_core.cep import Pattern, compile_pattern
from streambroker_core.cep.nfa.condition_bits import ConditionBits
from streambroker_core.cep.nfa.matcher import Matcher
from streambroker_core.cep.pattern.match_buffer import Event

PURPOSE = "a pattern rule over Arrow batches: events/s by selectivity, shape and number of keys"
PEER_EVENTS = 50_000
SHARES = (0.001, 0.01, 0.1)


def one_by_one(pattern: Pattern, batch: pa.RecordBatch) -> tuple[float, int]:
    """Return the time of matchers that see every event, and the matches."""
    automaton = compile_pattern(pattern)
    truths, matchers, matches = ConditionBits(automaton), dict[int, Matcher](), 0
    rows, began = batch.to_pylist(), time.process_time()
    for seq, row in enumerate(rows):
        matcher = matchers.get(row["key"])
        if matcher is None:
            matcher = matchers[row["key"]] = Matcher(automaton, truths)
        matches += len(matcher.process(Event(seq, row["t"], row))[0])
    for matcher in matchers.values():
        matches += len(matcher.advance(END)[0])
    return time.process_time() - began, matches


def run(settings: Settings) -> Figures:
    """Measure shapes by selectivity, and keys, in turns."""
    figures = Figures()
    count = BATCH if settings.quick else 10 * BATCH
    variants = _variants(count)
    for round_ in settings.turns:
        if round_:
            figures.yardstick()
        for name in turns(list(variants), round_):
            settings.say(f"round {round_}: {name}")
            found = variants[name]()
            for what, (value, unit) in found.items() if round_ else ():
                figures.add(f"{name}{what}", value, unit)
    for name in list(figures.samples):
        if f"{name}, one by one" in figures.samples:
            figures.ratio(f"{name}: against one by one", name, f"{name}, one by one")
    figures.note(f"{count:,} events in windows of {BATCH:,}, state written and read each window")
    figures.note(
        "seconds are those that the process was given, so others on the machine count little"
    )
    figures.note("one core, no Spark: no shuffle, no serialisation of rows between processes")
    figures.note("state: runs and their indexes, when all events were seen")
    return figures


Found = dict[str, tuple[float, str]]


def _variants(count: int) -> dict[str, Callable[[], Found]]:
    variants: dict[str, Callable[[], Found]] = {}
    for share in SHARES:
        for shape in ("relaxed", "strict", "loop"):
            each = Workload(shape=shape, share=share)
            variants[str(each)] = _shape(each, count)
    many = Workload(shape="relaxed", keys=100_000)
    variants[str(many)] = _shape(many, count)
    return variants


def _shape(workload: Workload, count: int) -> Callable[[], Found]:
    pattern, batch = workload.pattern(), workload.events(count)

    def once() -> Found:
        ran = Engine([pattern]).run(batch)
        peer, _ = one_by_one(pattern, batch.slice(0, PEER_EVENTS))
        return {
            "": (batch.num_rows / ran.seconds / 1e6, "M/s"),
            ", one by one": (PEER_EVENTS / peer / 1e6, "M/s"),
            ", matches": (float(ran.matches), ""),
            ", state of a run": (ran.state / max(1, ran.runs), "bytes"),
            ", state of a key": (ran.state / max(1, ran.held), "bytes"),
        }

    return once
