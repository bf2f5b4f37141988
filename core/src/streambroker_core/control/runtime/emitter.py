"""Emissions of an operator in one window of one bucket: numbered, identified, counted, limited.

- Rows of an output are numbered by bucket and running number, so their order downstream does not
  depend on the number of partitions.
- An ``IMMEDIATE`` tuple takes the next number of its output, which is its position between the
  rows.
- The position of any other tuple is when in the window it was emitted, comparably in every
  bucket: see :class:`WindowPhase`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

import pyarrow as pa

from streambroker_core.control.operators.dead_letters import DeadLetters
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
from streambroker_core.control.tuples.payloads import Codec, default_delivery, encode


class WindowPhase(IntEnum):
    """Phase of the window in which an operator emits; ordered, the same in all buckets."""

    BEGIN_WINDOW = 0
    BEGIN = 1
    ROWS = 2
    END_WINDOW = 3
    END = 4


_PHASE_BITS, _STEP_BITS = 53, 24
"""A position is the phase, the number of the tuple being delivered, and a count of forwarded
tuples. So an emission after a forwarded tuple sorts after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """An operator's place in a query.

    Attributes:
        query: id of the stream or query; part of the identity of emitted tuples.
        operator: the operator's name, unique in the query and chosen by the user.
        buckets: number of buckets; fixed for a checkpoint.
        order_by: column by which the rows of all inputs are merged; None for input after input.
        limits: limits on control tuples in one window.
        pass_invalid: forward undeliverable tuples; otherwise the window fails.
        dead_letters: collect what the operator refuses, which then does not fail the window.
        shared: the next operator shares its hop, and receives what this bucket emits.
    """

    query: str
    operator: str
    buckets: int = 64
    order_by: str | None = None
    limits: Limits = field(default_factory=Limits)
    pass_invalid: bool = False
    dead_letters: bool = False
    shared: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EmittedRows:
    """Rows for one output; ``seq`` is the sequence of the first, the others follow."""

    output: str
    seq: int
    batch: pa.RecordBatch


class EmittedControl(NamedTuple):
    """A control tuple for one output.

    An ``IMMEDIATE`` tuple is before the first row whose sequence is not lower. Positions of other
    tuples are comparable only within one delivery.
    """

    output: str
    position: int
    control: ControlTuple


Emission = EmittedRows | EmittedControl


@dataclass(slots=True)
class _Output:
    """What was emitted to one output: the next sequence, the schema of rows, ids of tuples."""

    tag: str
    next: int
    schema: pa.Schema | None = None
    sent: set[str] = field(default_factory=set)


class EmitBuffer:
    """Collects an operator's emissions; implements ``operator.Emitter``."""

    def __init__(
        self,
        stage: Stage,
        window: Window,
        outputs: tuple[str, ...],
        thread: Callable[[], int],
        codecs: tuple[Codec, ...] = (),
    ) -> None:
        self._stage, self._window, self._codecs = stage, window, codecs
        self._thread, self._owner_thread = thread, thread()
        first = sequence(part=window.bucket)
        self._outputs = {tag: _Output(tag, first) for tag in outputs}
        self._seq = self._bytes = self._tuples = 0
        self._phase, self._forward_counts = 0, dict[Delivery, int]()
        self.emitted: list[Emission] = []
        self.counts: dict[Delivery, int] = {}
        self.rows = 0
        self.dead_letters = (
            DeadLetters(stage.operator, window.number, window.time) if stage.dead_letters else None
        )

    def enter_phase(self, phase: WindowPhase, number: int = 0) -> None:
        """Set the phase of the next emissions, and the index of the tuple being delivered in it."""
        self._phase = (phase << _PHASE_BITS) | (number << _STEP_BITS)
        self._forward_counts.clear()

    def emit(self, batch: pa.RecordBatch, output: str | None) -> None:
        """Add rows for an output.

        Raises:
            OperatorError: another thread, no such output, or another schema than before.
        """
        self._check_thread()
        to = self._output(output)
        if to.schema is None:
            to.schema = batch.schema
        elif not to.schema.equals(batch.schema):
            raise OperatorError(
                f"operator {self._stage.operator} emits rows with the columns"
                f" {_describe_columns(batch.schema)} to output {to.tag}, and before with"
                f" {_describe_columns(to.schema)}:"
                " an output has one schema."
            )
        if batch.num_rows:
            self.emitted.append(EmittedRows(output=to.tag, seq=to.next, batch=batch))
            to.next += batch.num_rows
            self.rows += batch.num_rows

    def emit_control(
        self,
        payload: Any,
        *,
        delivery: Delivery | str | None,
        at: int | None,
        target: Target,
        output: str | None,
        once: str | None,
    ) -> ControlTuple:
        """Add a control tuple; a received one keeps its identity.

        Raises:
            OperatorError: another thread, no such output, or the next operator shares the hop.
            ControlError: the payload cannot be written, or there is no such delivery.
            ControlLimitError: there are too many, or they are too large.
        """
        self._check_thread()
        if self._stage.shared and self._stage.buckets > 1:
            raise OperatorError(
                f"operator {self._stage.operator} emits a control tuple, which is for all buckets,"
                " and declares stays_in_bucket. Set stays_in_bucket = False in its class, and start"
                " a new checkpoint."
            )
        outputs = self._outputs.values() if output is None else (self._output(output),)
        if isinstance(payload, ControlTuple):
            self._emit_to(payload, outputs, new=False)
            return payload
        chosen = parse_delivery(default_delivery(payload) if delivery is None else delivery)
        control = self._make_control(payload, chosen, at, target, once)
        self._emit_to(control, outputs, new=True)
        return control

    def forward(self, control: ControlTuple) -> bool:
        """Forward a received tuple to all outputs; return False if they all have it already."""
        return self._emit_to(control, self._outputs.values(), new=False)

    def _make_control(
        self,
        payload: object,
        delivery: Delivery,
        at: int | None,
        target: Target,
        once: str | None,
    ) -> ControlTuple:
        kind, text = encode(payload, self._codecs)
        size, most = len(text.encode()), self._stage.limits.payload
        if size > most:
            raise ControlLimitError(
                f"the payload of control tuple {kind} has {size} bytes, the limit is {most}:"
                " control tuples are few and small. Send the data as rows, or send their"
                " location."
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

    def _emit_to(self, control: ControlTuple, outputs: Iterable[_Output], *, new: bool) -> bool:
        id_, sent = control.id, False
        for to in outputs:
            if id_ in to.sent:
                continue
            if new and not sent:
                self._check_limits(control)
            sent = True
            to.sent.add(id_)
            self.emitted.append(EmittedControl(to.tag, self._position(control, to, new), control))
        if not sent:
            return False
        if not new:
            self._forward_counts[control.delivery] = (
                self._forward_counts.get(control.delivery, 0) + 2
            )
        self.counts[control.delivery] = self.counts.get(control.delivery, 0) + 1
        return True

    def _position(self, control: ControlTuple, to: _Output, new: bool) -> int:
        if control.delivery is Delivery.IMMEDIATE:
            to.next += 1
            return to.next - 1
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
                " one tuple in place of many."
            )

    def _check_thread(self) -> None:
        if self._thread() != self._owner_thread:
            raise OperatorError(
                f"operator {self._stage.operator} emits from another thread than the one that"
                " calls it: collect in that thread, and emit in the next callback."
            )

    def _output(self, tag: str | None) -> _Output:
        if tag is None and self._outputs:
            return next(iter(self._outputs.values()))
        if not isinstance(tag, str) or tag not in self._outputs:
            names = ", ".join(self._outputs) or "none"
            raise OperatorError(
                f"operator {self._stage.operator} has no output {tag}; it has {names}."
            )
        return self._outputs[tag]


def _describe_columns(schema: pa.Schema) -> str:
    return ", ".join(f"{one.name} {one.type}" for one in schema)
