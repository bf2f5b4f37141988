"""What an operator emits in one window of one bucket: numbered, identified, counted, limited.

Rows of an output are numbered by bucket and running number, so their order downstream does not
depend on how many partitions there are. An ``IMMEDIATE`` tuple takes the next number of its output,
so it has a place of its own between the rows. The position of any other tuple says when in the
window it was emitted, in the same terms in every bucket: see :class:`WindowPhase`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

import pyarrow as pa

from streambroker_core.control.operators.operator import OperatorError, Window
from streambroker_core.control.runtime.packing import sequence
from streambroker_core.control.tuples import (
    ALL_BUCKETS,
    ControlError,
    ControlLimitError,
    ControlTuple,
    Delivery,
    Limits,
    Target,
    parse_delivery,
)
from streambroker_core.control.tuples.payloads import encode


class WindowPhase(IntEnum):
    """What an operator is doing when it emits; in order, and the same in all buckets."""

    BEGIN_WINDOW = 0
    BEGIN = 1
    ROWS = 2
    END_WINDOW = 3
    END = 4


_PHASE_BITS, _STEP_BITS = 53, 24
"""A position is a moment, the number of the tuple that is being handed over, and a count of tuples
that go on: what is emitted after such a one comes after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """An operator's place in a query.

    Attributes:
        query: id of the stream or query; part of the identity of what is emitted.
        operator: the operator's name, unique in the query and given by the user.
        buckets: how many; fixed for a checkpoint.
        order_by: column by which the rows of all inputs are merged; None for input after input.
        limits: of control tuples in one window.
        pass_invalid: what the operator cannot be handed goes on; otherwise the window fails.
    """

    query: str
    operator: str
    buckets: int = 64
    order_by: str | None = None
    limits: Limits = field(default_factory=Limits)
    pass_invalid: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EmittedRows:
    """Rows for one output; ``seq`` is that of the first, the others follow."""

    output: str
    seq: int
    batch: pa.RecordBatch


class EmittedControl(NamedTuple):
    """A control tuple for one output.

    With ``IMMEDIATE`` it is before the first row whose sequence is not lower. Positions of the
    others are compared among tuples of one delivery only.
    """

    output: str
    position: int
    control: ControlTuple


Emission = EmittedRows | EmittedControl


class EmitBuffer:
    """Takes what an operator emits; the runtime's side of ``operator.Emitter``."""

    def __init__(
        self, stage: Stage, window: Window, outputs: tuple[str, ...], thread: Callable[[], int]
    ) -> None:
        self._stage, self._window, self._outputs = stage, window, outputs
        self._thread, self._owner_thread = thread, thread()
        self._next = dict.fromkeys(outputs, sequence(part=window.bucket))
        self._seq = self._bytes = self._tuples = 0
        self._schemas: dict[str, pa.Schema] = {}
        self._sent: dict[str, set[str]] = {tag: set() for tag in outputs}
        self._phase, self._forward_counts = 0, dict[Delivery, int]()
        self.emitted: list[Emission] = []
        self.counts: dict[Delivery, int] = {}
        self.rows = 0

    def enter_phase(self, phase: WindowPhase, number: int = 0) -> None:
        """Note what the operator does next.

        Args:
            phase: what it does.
            number: which of the tuples of that moment it is handed.
        """
        self._phase = (phase << _PHASE_BITS) | (number << _STEP_BITS)
        self._forward_counts.clear()

    def emit(self, batch: pa.RecordBatch, output: str | None) -> None:
        """Take rows for an output.

        Raises:
            OperatorError: another thread, no such output, or another schema than before.
        """
        self._check_thread()
        tag = self._output(output)
        known = self._schemas.setdefault(tag, batch.schema)
        if not known.equals(batch.schema):
            raise OperatorError(
                f"operator {self._stage.operator} emits rows with the columns"
                f" {_describe_columns(batch.schema)} to output {tag}, and before with"
                f" {_describe_columns(known)}:"
                " an output has one schema."
            )
        if batch.num_rows:
            self.emitted.append(EmittedRows(output=tag, seq=self._next[tag], batch=batch))
            self._next[tag] += batch.num_rows
            self.rows += batch.num_rows

    def emit_control(
        self,
        payload: Any,
        *,
        delivery: Delivery | str,
        at: int | None,
        target: Target,
        output: str | None,
        once: str | None,
    ) -> ControlTuple:
        """Take a control tuple; one that was received keeps its identity.

        Raises:
            OperatorError: another thread, or no such output.
            ControlError: the payload cannot be written, or there is no such delivery.
            ControlLimitError: there are too many, or they are too large.
        """
        self._check_thread()
        tags = self._outputs if output is None else (self._output(output),)
        if isinstance(payload, ControlTuple):
            self._emit_to(payload, tags, new=False)
            return payload
        control = self._make_control(payload, parse_delivery(delivery), at, target, once)
        self._emit_to(control, tags, new=True)
        return control

    def forward(self, control: ControlTuple) -> bool:
        """Pass a received tuple on to all outputs; False if it went there before."""
        return self._emit_to(control, self._outputs, new=False)

    def _make_control(
        self,
        payload: object,
        delivery: Delivery,
        at: int | None,
        target: Target,
        once: str | None,
    ) -> ControlTuple:
        kind, text = encode(payload)
        size, most = len(text.encode()), self._stage.limits.payload
        if size > most:
            raise ControlLimitError(
                f"the payload of control tuple {kind} has {size} bytes, the limit is {most}:"
                " control tuples are few and small. Send the data as rows, or where they lie."
            )
        stem, seq = f"{self._stage.query}.{self._stage.operator}", 0
        if once is None:
            emitter, seq = f"{stem}.{self._window.bucket}", self._seq
            which = str(seq)
            self._seq += 1
        elif once and "/" not in once and not once.isdigit():
            emitter, which = f"{stem}.{ALL_BUCKETS}", once
        else:
            raise ControlError(
                f"once is {once!r}: it has to be a name without '/', and not a number."
            )
        return ControlTuple(
            type=kind,
            id=f"{emitter}/{self._window.number}/{which}",
            delivery=delivery,
            at=at,
            epoch=self._window.number,
            emitter=emitter,
            seq=seq,
            text=text,
            target=target,
        )

    def _emit_to(self, control: ControlTuple, outputs: tuple[str, ...], *, new: bool) -> bool:
        name, sent = control.id, False
        for tag in outputs:
            if name in self._sent[tag]:
                continue
            if new and not sent:
                self._check_limits(control)
            sent = True
            self._sent[tag].add(name)
            self.emitted.append(EmittedControl(tag, self._position(control, tag, new), control))
        if not sent:
            return False
        if not new:
            self._forward_counts[control.delivery] = (
                self._forward_counts.get(control.delivery, 0) + 2
            )
        self.counts[control.delivery] = self.counts.get(control.delivery, 0) + 1
        return True

    def _position(self, control: ControlTuple, tag: str, new: bool) -> int:
        if control.delivery is Delivery.IMMEDIATE:
            self._next[tag] += 1
            return self._next[tag] - 1
        return self._phase | (self._forward_counts.get(control.delivery, 0) + (not new))

    def _check_limits(self, control: ControlTuple) -> None:
        limits = self._stage.limits
        self._tuples += 1
        self._bytes += len(control.text)
        if self._tuples > limits.tuples or self._bytes > limits.bytes:
            raise ControlLimitError(
                f"operator {self._stage.operator} emits more control tuples in window"
                f" {self._window.number} than one bucket may: {limits.tuples} tuples,"
                f" {limits.bytes} bytes; the last one was a {control.type}. Emit rows instead, or"
                " one tuple that says it for many."
            )

    def _check_thread(self) -> None:
        if self._thread() != self._owner_thread:
            raise OperatorError(
                f"operator {self._stage.operator} emits from another thread than the one that"
                " calls it: collect there, and emit in the next callback."
            )

    def _output(self, output: str | None) -> str:
        if output is None and self._outputs:
            return self._outputs[0]
        if output not in self._outputs:
            names = ", ".join(self._outputs) or "none"
            raise OperatorError(
                f"operator {self._stage.operator} has no output {output}; it has {names}."
            )
        return output


def _describe_columns(schema: pa.Schema) -> str:
    return ", ".join(f"{one.name} {one.type}" for one in schema)
