"""Windows of an operator through `AlignedRunner`: packed, cut, shuffled, restored from bytes.

Each window of each bucket makes a new operator from the bytes that were kept, twice, with what
arrived in another order and other pieces; both have to come to the same. As a runtime does, it
gives a bucket a window only if something came for it, or is due.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from streambroker_core.control.operators.operator import Operator, Window
from streambroker_core.control.runtime.buckets import make_layout
from streambroker_core.control.runtime.emitter import EmittedControl, EmittedRows, Stage
from streambroker_core.control.runtime.packing import Packed, by_bucket, pack, pack_control
from streambroker_core.control.runtime.runner import AlignedRunner, WindowResult
from streambroker_core.control.tuples import ControlTuple
from support.aligned.graphs import Wild
from support.aligned.window import apply

Given = Sequence[tuple[str, pa.RecordBatch]]


@dataclass
class Through:
    """An operator over buckets, whose inputs are merged by column ``order_by``.

    With ``dead_letters`` it sets aside what it refuses.
    """

    make: Callable[[], Any]
    buckets: int = 1
    order_by: str | None = None
    dead_letters: bool = False
    seed: int = 0
    number: int = 0
    blobs: dict[int, dict[str, bytes]] = field(default_factory=dict)
    last: dict[int, Any] = field(default_factory=dict)
    outcomes: dict[int, WindowResult] = field(default_factory=dict)
    _wakes: dict[int, int | None] = field(default_factory=dict)
    _timeouts: dict[int, int | None] = field(default_factory=dict)

    def window(
        self,
        given: Given = (),
        control: Iterable[ControlTuple] = (),
        *,
        watermark: int | None,
        clock: int = 0,
    ) -> list[WindowResult]:
        """Run a window of all buckets; return what it came to, bucket by bucket."""
        probe = self.make()
        chance = Wild(self.seed + 1_000 * self.number, crashes=False)
        arrived = self._packed(probe, given, list(control), chance)
        again = self._packed(probe, given, list(control), chance)
        self.outcomes = {}
        for bucket in range(self.buckets):
            if bucket not in arrived and not self._due(bucket, watermark, clock):
                continue
            window = Window(
                number=self.number,
                time=clock,
                watermark=watermark,
                bucket=bucket,
                buckets=self.buckets,
            )
            outcome = self._run(window, arrived.get(bucket, []))
            assert self._run(window, again.get(bucket, [])) == outcome
            self._keep(bucket, outcome)
        self.number += 1
        return [self.outcomes[bucket] for bucket in sorted(self.outcomes)]

    def _packed(
        self, probe: Operator, given: Given, control: list[ControlTuple], chance: Wild
    ) -> dict[int, list[Packed]]:
        arrived: dict[int, list[Packed]] = {}
        inputs, seqs = {one.name: one for one in probe.inputs}, dict[str, int]()
        for port, batch in given:
            layout = make_layout(inputs[port], batch.schema, self.buckets, nulls=True)
            first, seq = 0, seqs.get(port, 0)
            for cut in [*chance.cuts(batch.num_rows), batch.num_rows]:
                for bucket, one in by_bucket(pack(batch.slice(first, cut - first), layout, seq)):
                    arrived.setdefault(bucket, []).append(one)
                first, seq = cut, seq + cut - first
            seqs[port] = seq
        for said in control:
            sent = pack_control([(0, said)], probe.inputs[0].name, self.buckets)
            for bucket, one in by_bucket(sent):
                arrived.setdefault(bucket, []).append(one)
        return {bucket: chance.shuffled(each) for bucket, each in arrived.items()}

    def _due(self, bucket: int, watermark: int | None, clock: int) -> bool:
        wake, timeout = self._wakes.get(bucket), self._timeouts.get(bucket)
        by_time = wake is not None and watermark is not None and wake <= watermark
        return by_time or (timeout is not None and timeout <= clock)

    def _run(self, window: Window, packed: list[Packed]) -> WindowResult:
        made: list[Any] = []

        def make() -> Any:
            made.append(self.make())
            return made[-1]

        stage = Stage(
            query="q",
            operator="op",
            buckets=self.buckets,
            order_by=self.order_by,
            dead_letters=self.dead_letters,
        )
        runner = AlignedRunner(make, stage)
        outcome = runner.run(window, packed, dict(self.blobs.get(window.bucket, {})))
        self.last[window.bucket] = made[-1]
        return outcome

    def _keep(self, bucket: int, outcome: WindowResult) -> None:
        self.outcomes[bucket] = outcome
        self.blobs[bucket] = apply(self.blobs.get(bucket, {}), outcome)
        self._wakes[bucket] = outcome.wake_at
        self._timeouts[bucket] = self.last[bucket].timeout_at()


def rows_of(outcome: WindowResult) -> list[tuple[str, pa.RecordBatch]]:
    return [(one.output, one.batch) for one in outcome.emitted if isinstance(one, EmittedRows)]


def control_of(outcome: WindowResult) -> list[ControlTuple]:
    """Return the control tuples that were sent on, each once."""
    sent = [one.control for one in outcome.emitted if isinstance(one, EmittedControl)]
    return list({one.id: one for one in sent}.values())
