"""Events and patterns that are measured, and the core's engine run over them without Spark."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from pe_agent.filters import compile_filter
from streambroker_core.cep import Pattern
from streambroker_core.cep.operator import PatternOperator
from streambroker_core.cep.pattern.rule import PatternProcessor
from streambroker_core.cep.rules.rule_set import RuleSet
from streambroker_core.control.operators.operator import Window
from streambroker_core.expression import Expression

BATCH = 100_000
KINDS = "abcdex"
HELD = 2
"""So many rows of each kind that a stage asks for has a key in a window, whatever their share."""
END = 2**40
"""A time that is behind all windows, in microseconds."""


class Nowhere:
    """Counts what is emitted."""

    dead_letters = None

    def __init__(self) -> None:
        self.rows = 0

    def emit(self, batch: pa.RecordBatch, output: str | None) -> None:
        """Count rows."""
        self.rows += batch.num_rows if output == "matches" else 0

    def emit_control(self, payload: Any, **_: Any) -> Any:
        """Let it go."""
        return payload


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A pattern on events.

    Attributes:
        shape: how its stages stand: ``relaxed``, ``strict``, ``loop`` or ``negation``.
        stages: how many it has.
        share: of all events those of each kind that a stage asks for.
        keys: how many there are.
    """

    shape: str
    stages: int = 3
    share: float = 0.01
    keys: int = 1_000

    def __str__(self) -> str:
        many = f", {self.keys:,} keys" if self.keys != 1_000 else ""
        return f"{self.shape} {self.stages}, {self.share:.1%}{many}"

    @property
    def window(self) -> int:
        """The time in which a match has to be, in events, and so in microseconds."""
        return round(HELD / self.share * self.keys)

    def pattern(self) -> Pattern:
        """Return the pattern: each stage asks for a kind, and a loop for a sum besides."""
        found = Pattern.begin("a").where('kind == "a"')
        if self.shape == "loop":
            found = found.followed_by("b").where('kind == "b"').where("sum(b.price) < 500")
            found = found.one_or_more().followed_by("c").where('kind == "c"')
        elif self.shape == "negation":
            found = found.followed_by("b").where('kind == "b"')
            found = found.not_followed_by("c").where('kind == "c"')
        else:
            for name in KINDS[1 : self.stages]:
                join = found.next if self.shape == "strict" else found.followed_by
                found = join(name).where(f'kind == "{name}"')
        return found.within(f"{self.window}us")

    def events(self, count: int) -> pa.RecordBatch:
        """Return its events."""
        return events(count, self.share, self.keys)


def events(count: int, share: float, keys: int, seed: int = 1) -> pa.RecordBatch:
    """Return rows ``t, key, kind, price``: of each kind ``a`` to ``e`` this share, ``x`` else."""
    draw = np.random.default_rng(seed)
    places = np.minimum((draw.random(count) / share).astype(np.int32), len(KINDS) - 1)
    kinds = pa.DictionaryArray.from_arrays(pa.array(places), pa.array(list(KINDS)))
    return pa.RecordBatch.from_pydict(
        {
            "t": pa.array(np.arange(count)),
            "key": pa.array(draw.integers(0, keys, count)),
            "kind": kinds.cast(pa.string()),
            "price": pa.array(draw.random(count) * 100),
        }
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What a run of the engine took and left.

    Attributes:
        seconds: of a core, for all rows.
        matches: told, with those that only the end of time makes.
        state: bytes that runs and their indexes take when all rows were seen.
        runs: alive then.
        held: keys that have some.
        windows: seconds of a core, of each window with rows.
    """

    seconds: float
    matches: int
    state: int
    runs: int
    held: int
    windows: list[float]


class Engine:
    """Runs rules over batches in windows; the state is bytes between them.

    Args:
        patterns: of the rules.
        timeouts: timed-out partial matches are told.
        rows: of a window.
    """

    def __init__(
        self, patterns: list[Pattern], *, timeouts: bool = True, rows: int = BATCH
    ) -> None:
        self._timeouts, self._rows = timeouts, rows
        self._rules, _ = RuleSet().apply_update(
            PatternProcessor(id=f"r{n}", version=1, pattern=each) for n, each in enumerate(patterns)
        )
        self._blobs: dict[str, bytes] = {}
        self._number = 0
        self.out = Nowhere()

    def run(self, batch: pa.RecordBatch) -> Ran:
        """Let the rules see rows, then let time end."""
        ends = [time.process_time()]
        for start in range(0, batch.num_rows, self._rows):
            self._window(start - 1, batch.slice(start, self._rows))
            ends.append(time.process_time())
        self._window(batch.num_rows - 1, None)
        seconds = time.process_time() - ends[0]
        state = sum(len(blob) for name, blob in self._blobs.items() if name.startswith("runs"))
        runs, held = self._alive(batch.num_rows - 1)
        began = time.process_time()
        self._window(END, None)
        seconds += time.process_time() - began
        windows = [after - before for before, after in pairwise(ends)]
        return Ran(
            seconds=seconds,
            matches=self.out.rows,
            state=state,
            runs=runs,
            held=held,
            windows=windows,
        )

    def _begun(self, mark: int) -> PatternOperator:
        """Return the operator with the state so far, in a new window."""
        operator = PatternOperator(
            key=("key",),
            event_time="t",
            maker=masks,
            rules=self._rules,
            timeouts=self._timeouts,
        )
        window = Window(number=self._number, time=0, watermark=mark, bucket=0, buckets=1)
        operator.bind(window, self.out)
        if self._blobs:
            operator.restore(1, dict(self._blobs))
        operator.begin_window()
        return operator

    def _window(self, mark: int, batch: pa.RecordBatch | None) -> None:
        operator = self._begun(mark)
        operator.advance(mark)
        if batch is not None:
            operator.process("in", batch)
        operator.end_window()
        for name, blob in operator.snapshot().items():
            if blob is None:
                self._blobs.pop(name, None)
            else:
                self._blobs[name] = blob
        self._number += 1

    def _alive(self, mark: int) -> tuple[int, int]:
        """Return how many runs there are, and how many keys have some."""
        keys = self._begun(mark).engine.keys
        places = keys.list_keys()
        return sum(
            len(one.runs) for place in places for one in keys.matchers_for(place).values()
        ), len(places)


def masks(expression: Expression, schema: pa.Schema) -> Any:
    """Make a mask as an agent does."""
    return compile_filter(expression, schema).mask
