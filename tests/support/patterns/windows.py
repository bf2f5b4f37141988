"""Windows of patterns: of one bucket without a runtime, or of several through `AlignedRunner`.

Each window makes a new operator from the bytes kept. Without a runtime the order of the calls is
that of `streambroker_core.control.operators.operator`.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from streambroker_core.cep.operator import PatternOperator, PatternRules, copy_rows
from streambroker_core.cep.rules.rule_set import RuleSet
from streambroker_core.control.operators.operator import Window
from streambroker_core.control.tuples import ControlTuple, Delivery
from support.aligned.runner import Through, rows_of
from support.aligned.runner import control_of as emitted_control


@dataclass
class Emitted:
    """What an operator has handed out."""

    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    control: list[Any] = field(default_factory=list)
    dead_letters: None = None

    def emit(self, batch: pa.RecordBatch, output: str | None) -> None:
        self.rows.setdefault(output or "", []).extend(batch.to_pylist())

    def emit_control(self, payload: Any, **_: Any) -> Any:
        self.control.append(payload)
        return payload

    def of(self, output: str) -> list[dict[str, Any]]:
        """Return the rows of an output; ``events`` and ``key`` are read."""
        read: list[dict[str, Any]] = []
        for row in self.rows.get(output, []):
            more: dict[str, Any] = {
                name: json.loads(row[name]) for name in ("events", "key") if name in row
            }
            read.append(row | more)
        return read


@dataclass
class Windows(ABC):
    """Runs windows one after the other."""

    make: Callable[[], PatternOperator]
    watermark: int | None = field(default=None, kw_only=True)
    clock: int = field(default=0, kw_only=True)

    def window(
        self,
        batches: Iterable[pa.RecordBatch] = (),
        *,
        rules: RuleSet | None = None,
        relevant: str | None = None,
        watermark: int | None = None,
        clock: int | None = None,
    ) -> Emitted:
        """Run one window; a watermark or clock that is not given stays.

        With ``rules`` rows come under the filter ``relevant``.
        """
        self.watermark = self.watermark if watermark is None else watermark
        self.clock = self.clock if clock is None else clock
        return self._run(batches, [] if rules is None else [control_of(rules, relevant)])

    @abstractmethod
    def _run(
        self, batches: Iterable[pa.RecordBatch], control: Sequence[ControlTuple]
    ) -> Emitted: ...


@dataclass
class Buckets(Windows):
    """Several buckets, through `AlignedRunner`; rows are copied for the keys ``selectors``."""

    buckets: int = 4
    selectors: list[tuple[str, ...]] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        self.through = Through(self.make, self.buckets, seed=self.seed)

    def _run(self, batches: Iterable[pa.RecordBatch], control: Sequence[ControlTuple]) -> Emitted:
        if self.selectors is not None:
            batches = [copy_rows(batch, self.selectors) for batch in batches]
        given, emitted = [("in", batch) for batch in batches], Emitted()
        moment: dict[str, Any] = {"watermark": self.watermark, "clock": self.clock}
        for outcome in self.through.window(given, control, **moment):
            for output, batch in rows_of(outcome):
                emitted.emit(batch, output)
            emitted.control += [one.payload for one in emitted_control(outcome)]
        return emitted


@dataclass
class Bucket(Windows):
    """One bucket of an operator, window by window."""

    blobs: dict[str, bytes] = field(default_factory=dict)
    number: int = 0
    last: PatternOperator | None = None

    def _run(self, batches: Iterable[pa.RecordBatch], control: Sequence[ControlTuple]) -> Emitted:
        emitted, operator = Emitted(), self.make()
        window = Window(
            number=self.number, time=self.clock, watermark=self.watermark, bucket=0, buckets=1
        )
        operator.bind(window, emitted)
        if self.blobs:
            operator.restore(operator.state_version, dict(self.blobs))
        operator.begin_window()
        for one in control:
            assert operator.process_control("in", one)
        if self.watermark is not None:
            operator.advance(self.watermark)
        for batch in batches:
            operator.process("in", batch)
        operator.end_window()
        for name, blob in operator.snapshot().items():
            if blob is None:
                self.blobs.pop(name, None)
            else:
                self.blobs[name] = blob
        self.number += 1
        self.last = operator
        return emitted


def control_of(rules: RuleSet, relevant: str | None = None) -> ControlTuple:
    """Return the control tuple that brings a set of rules."""
    payload = PatternRules(rules=rules.document())
    return ControlTuple(
        type="PatternRules",
        id="log/1",
        delivery=Delivery.BEGIN,
        epoch=0,
        emitter="log",
        seq=1,
        text=json.dumps({"rules": payload.rules, "relevant": relevant}),
    )
