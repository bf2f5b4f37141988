"""How many events a second rules see over Arrow batches, without Spark: masks, automata, state.

Each figure is for one core: batches that are in memory go through the pattern operator in windows,
its state is written as bytes after each window and read again. The peer of each figure is the same
rule with a matcher that is given every event, one by one, as an automaton without masks would be.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from measure import Figures, Settings, turns

from pe_agent.filters import compile_filter
from streambroker_core.cep import Pattern, compile_pattern
from streambroker_core.cep.history import Event
from streambroker_core.cep.matcher import Matcher
from streambroker_core.cep.operator import PatternOperator
from streambroker_core.cep.processor import PatternProcessor
from streambroker_core.cep.rules import RuleSet
from streambroker_core.cep.truths import Truths
from streambroker_core.control.operator import Window
from streambroker_core.expression import Expression

PURPOSE = "pattern rules over Arrow batches: events/s by selectivity, shape and number of rules"
BATCH = 100_000
KEYS = 1_000
MANY_KEYS = 100_000
PEER_EVENTS = 50_000
SHARES = (0.001, 0.01, 0.1)
RULES = (1, 10, 100, 1_000)


class Nowhere:
    """Counts what is emitted."""

    def __init__(self) -> None:
        self.rows = 0

    def emit(self, batch: pa.RecordBatch, output: str | None) -> None:
        """Count rows."""
        self.rows += batch.num_rows if output == "matches" else 0

    def emit_control(self, payload: Any, **_: Any) -> Any:
        """Let it go."""
        return payload


def events(count: int, share: float, keys: int, seed: int = 1) -> pa.RecordBatch:
    """Return rows ``t, key, kind, price``: of each kind ``a`` to ``d`` this share, ``x`` else."""
    draw = random.Random(seed)
    names = "abcd"

    def kind() -> str:
        place = int(draw.random() / share)
        return names[place] if place < len(names) else "x"

    return pa.RecordBatch.from_pydict(
        {
            "t": pa.array(range(count), pa.int64()),
            "key": pa.array([draw.randrange(keys) for _ in range(count)], pa.int64()),
            "kind": pa.array([kind() for _ in range(count)], pa.string()),
            "price": pa.array([draw.random() * 100 for _ in range(count)], pa.float64()),
        }
    )


def stages(join: str) -> Pattern:
    """Return three stages, relaxed or strict, with a window."""
    pattern = Pattern.begin("a").where('kind == "a"')
    for name in "bc":
        pattern = getattr(pattern, join)(name).where(f'kind == "{name}"')
    return pattern.within("20ms")


def loop() -> Pattern:
    """Return a loop with a sum over it, and a window."""
    pattern = Pattern.begin("a").where('kind == "a"').followed_by("b").where('kind == "b"')
    pattern = pattern.one_or_more().where("sum(b.price) < 500")
    return pattern.followed_by("c").where('kind == "c"').within("20ms")


def masks(expression: Expression, schema: pa.Schema) -> Any:
    """Make a mask as an agent does."""
    return compile_filter(expression, schema).mask


def seconds(patterns: list[Pattern], batch: pa.RecordBatch) -> tuple[float, int, int]:
    """Return the time for all rows, the matches, and the bytes of state at the end."""
    rules, _ = RuleSet().updated(
        PatternProcessor(id=f"r{n}", version=1, pattern=each) for n, each in enumerate(patterns)
    )
    blobs: dict[str, bytes] = {}
    out, began = Nowhere(), time.process_time()
    for number, start in enumerate(range(0, batch.num_rows + BATCH, BATCH)):
        operator = PatternOperator(key=("key",), event_time="t", maker=masks, rules=rules)
        mark = start - 1
        window = Window(number=number, time=0, watermark=mark, bucket=0, buckets=1)
        operator.bind(window, out)
        if blobs:
            operator.restore(1, dict(blobs))
        operator.begin_window()
        operator.advance(mark)
        if start < batch.num_rows:
            operator.process("in", batch.slice(start, BATCH))
        operator.end_window()
        for name, blob in operator.snapshot().items():
            if blob is None:
                blobs.pop(name, None)
            else:
                blobs[name] = blob
    state = sum(len(blob) for name, blob in blobs.items() if name.startswith("runs"))
    return time.process_time() - began, out.rows, state


def one_by_one(pattern: Pattern, batch: pa.RecordBatch) -> tuple[float, int]:
    """Return the time of matchers that see every event, and the matches."""
    automaton = compile_pattern(pattern)
    truths, matchers, matches = Truths(automaton), dict[int, Matcher](), 0
    rows, began = batch.to_pylist(), time.process_time()
    for seq, row in enumerate(rows):
        matcher = matchers.get(row["key"])
        if matcher is None:
            matcher = matchers[row["key"]] = Matcher(automaton, truths)
        matches += len(matcher.process(Event(seq, row["t"], row))[0])
    return time.process_time() - began, matches


def run(settings: Settings) -> Figures:
    """Measure shapes by selectivity, keys, and numbers of rules, in turns."""
    figures = Figures()
    count = BATCH if settings.quick else 10 * BATCH
    variants = _variants(count, settings)
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
    return figures


Found = dict[str, tuple[float, str]]


def _variants(count: int, settings: Settings) -> dict[str, Callable[[], Found]]:
    variants: dict[str, Callable[[], Found]] = {}
    shapes = {"relaxed": stages("followed_by"), "strict": stages("next"), "loop": loop()}
    for share in SHARES:
        batch = events(count, share, KEYS)
        for shape, pattern in shapes.items():
            variants[f"{shape}, {share:.1%}"] = _shape(pattern, batch)
    many = events(count, 0.01, MANY_KEYS)
    variants["relaxed, 1.0%, 100,000 keys"] = _shape(shapes["relaxed"], many)
    few = events(min(count, 3 * BATCH), 0.01, KEYS)
    for number in RULES[: 3 if settings.quick else None]:
        variants[f"{number:,} rules"] = _rules(number, few)
    return variants


def _shape(pattern: Pattern, batch: pa.RecordBatch) -> Callable[[], Found]:
    def once() -> Found:
        taken, matches, state = seconds([pattern], batch)
        peer, _ = one_by_one(pattern, batch.slice(0, PEER_EVENTS))
        return {
            "": (batch.num_rows / taken / 1e6, "M/s"),
            ", one by one": (PEER_EVENTS / peer / 1e6, "M/s"),
            ", matches": (float(matches), ""),
            ", state": (state / 1024, "KiB"),
        }

    return once


def _rules(number: int, batch: pa.RecordBatch) -> Callable[[], Found]:
    patterns = [
        Pattern.begin("a")
        .where('kind == "a"')
        .followed_by("b")
        .where(f'kind == "b" && price > {n % 100}')
        .within("20ms")
        for n in range(number)
    ]

    def once() -> Found:
        taken, _, _ = seconds(patterns, batch)
        return {
            "": (batch.num_rows / taken / 1e6, "M/s"),
            ", each": (taken / number / batch.num_rows * 1e9, "ns/event"),
        }

    return once
