"""Contract between aligned operators and the runtime that drives them.

*Bucket.* Keys are hashed into a fixed number of buckets. An operator runs in each bucket
independently: it sees only the rows and the state of that bucket, and must keep nothing elsewhere.
An object lives for one window of one bucket.

*Window.* One micro-batch. For each window in which a bucket has rows, control tuples or something
due, a runtime creates an operator and calls, in this order::

    restore          once, if the bucket has state
    begin_window
    process_control  for BEGIN tuples
    advance          event time has passed; before each AT_TIME tuple up to its time, then
    process_control  for AT_TIME tuples that are due, between those steps
    process          rows, port by port in the order of ``inputs``, or merged by a column, and
    process_control  for IMMEDIATE tuples, at their positions between the rows
    advance          after another operator: once more, to ``window.later``, also with the
                     AT_TIME tuples that are due until then
    process_control  for END_WINDOW tuples: all rows of all ports have been processed
    end_window
    snapshot, wake_at, held_at

An operator may call ``emit`` and ``emit_control`` in all callbacks from ``begin_window`` to
``end_window``.

*Deterministic.* Called again with the same state, rows and control, an operator must do the same,
to the byte. It uses no clock except ``window.time`` and event time, no randomness, and no order of
hashes. Where ``process`` is cut into batches depends only on rows and control tuples, not on how
they arrived.

*Watermark.* ``window.watermark`` comes from earlier windows and applies to all rows of this one. A
row is late if its event time is not after it. No row is dropped: the operator decides about late
rows. An operator after another one receives time in the window in which it passes, together with
the rows that were held back until then. These rows are not late: that time passes after all rows,
and becomes ``window.watermark`` from there on.

*Times* are event times in microseconds since 1970, int64; ``END_OF_TIME`` when an input has ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from streambroker_core.control.operators.dead_letters import DeadLetters
from streambroker_core.control.tuples import ALL_TARGETS, ControlTuple, Delivery, Target
from streambroker_core.control.tuples.payloads import Codec
from streambroker_core.errors import StreambrokerError

if TYPE_CHECKING:
    import pyarrow as pa

Blobs = Mapping[str, bytes]
"""State of one bucket by name, at the end of the last window. ``blobs[name]`` and
``blobs.get(name)`` read one blob, so unused blobs cost nothing; iteration reads names."""

Changes = dict[str, bytes | None]
"""Blobs that a window wrote, by name; None for a removed one. Names begin with a letter."""


class OperatorError(StreambrokerError):
    """A definition, call or input of an operator that is not allowed; the window fails."""

    code = "OperatorInvalid"


class StateError(StreambrokerError):
    """State that this operator cannot read; nothing is overwritten."""

    code = "StateInvalid"


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """An input of an operator.

    Attributes:
        name: the port.
        key: columns whose values decide the bucket; without, rows are spread.
        broadcast: every bucket gets every row; for few rows, such as updates of a side input.
        event_time: the timestamp column with the event time; None if rows have none.
    """

    name: str = "in"
    key: tuple[str, ...] = ()
    broadcast: bool = False
    event_time: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One micro-batch, as one bucket of an operator sees it.

    Attributes:
        number: the batch id.
        time: the pinned clock of the batch in microseconds, the same in every bucket and replay.
        watermark: event time that has passed; None if there is none yet.
        bucket: this bucket.
        buckets: number of buckets.
        later: event time that passes after the rows of the window; None for none.
    """

    number: int
    time: int
    watermark: int | None
    bucket: int
    buckets: int
    later: int | None = None


class Emitter(Protocol):
    """Receiver of an operator's emissions, implemented by the runtime."""

    @property
    def dead_letters(self) -> DeadLetters | None:
        """Receiver of what the operator refuses; None if a refusal fails the window."""

    def emit(self, batch: pa.RecordBatch, output: str | None) -> None:
        """Add rows for an output."""

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
        """Add a control tuple for an output, or for all."""


class Operator:
    """Base class of every aligned operator; a subclass overrides what it needs.

    The fields of a subclass that is a dataclass are its state: one copy per bucket, stored with the
    window. Fields annotated ``Final`` are parameters. A subclass that overrides ``snapshot`` keeps
    its state itself.

    Attributes:
        inputs: its ports, in the order in which a window's rows are processed; side inputs precede
            the main input.
        outputs: the tags of its outputs; the first is the default. All batches emitted to one
            output have one schema.
        state_version: version of the format of its state.
        dropped_fields: fields that the class declared before, and whose stored values are removed.
        transient: attributes of one window that callbacks set and that are not state.
        stays_in_bucket: each emitted row has the key of the bucket that emits it, and no control
            tuple is emitted. Then the next operator with this key needs no shuffle of its own.
            Each row is checked.
        codecs: how payloads and fields of other types are written and read.
        window: the window; set by the runtime before ``restore``.
    """

    inputs: tuple[Input, ...] = (Input(),)
    outputs: tuple[str, ...] = ("out",)
    state_version: ClassVar[int] = 1
    dropped_fields: ClassVar[tuple[str, ...]] = ()
    transient: ClassVar[tuple[str, ...]] = ()
    stays_in_bucket: ClassVar[bool] = False
    codecs: ClassVar[tuple[Codec, ...]] = ()
    _declared_fields: ClassVar[Any] = None
    window: Window
    _emitter: Emitter | None = None

    def bind(self, window: Window, emitter: Emitter | None) -> None:
        """Enter or leave a window; without an emitter every emission is rejected."""
        self.window, self._emitter = window, emitter

    # Called by the runtime.

    def restore(self, version: int, blobs: Blobs) -> None:
        """Restore the state of the bucket that ``snapshot`` has written, here or in an older class.

        Args:
            version: ``state_version`` of the operator that wrote it; the runtime rejects a higher
                one than this operator's. The operator reads or rejects an older one.
            blobs: the state. It may be kept, and read until ``snapshot`` has returned.

        Raises:
            StateError: it cannot be read.
        """

    def begin_window(self) -> None:
        """Begin a window."""

    def advance(self, time: int) -> None:
        """Process what is due: a row with an event time up to ``time`` is now late.

        Called in every window that has a watermark, also if it has not moved. ``time`` never goes
        back within a bucket. The last call has ``window.watermark``.
        """

    def process(self, port: str, batch: pa.RecordBatch) -> None:
        """Process rows of a port, in order; at least one row."""

    def process_control(self, port: str, control: ControlTuple) -> bool:
        """Process a control tuple.

        Returns:
            False: it goes on to all outputs, with its identity. True: the operator consumes it, and
                it goes on only if the operator emits it.
        """
        del port, control
        return False

    def end_window(self) -> None:
        """End a window; emissions here still belong to it."""

    def snapshot(self) -> Changes:
        """Return only the state that this window changed.

        Blobs that are not named stay unchanged. For many keys see ``keyed_state.KeyedState``.
        """
        return {}

    def wake_at(self) -> int | None:
        """Return the earliest event time at which something is due; None for never.

        Called after each window; the result must cover the whole state. The bucket gets a window,
        if necessary without rows, once the watermark is not before this time.
        """
        return None

    def held_at(self) -> int | None:
        """Return the earliest event time of what still waits to be emitted; None for nothing.

        Operators downstream see a watermark before it.
        """
        return None

    # Called by the operator.

    def emit(self, batch: pa.RecordBatch, output: str | None = None) -> None:
        """Emit rows.

        Args:
            batch: the rows.
            output: a tag of ``outputs``; None for the first.

        Raises:
            OperatorError: no such output, another schema than before, no window, or not the thread
                of the window.
        """
        self._bound().emit(batch, output)

    def emit_control(
        self,
        payload: Any,
        *,
        delivery: Delivery | str | None = None,
        at: int | None = None,
        target: Target = ALL_TARGETS,
        output: str | None = None,
        once: str | None = None,
    ) -> ControlTuple:
        """Emit a control tuple; it belongs to this window.

        Args:
            payload: a dataclass, an object with a codec, or a ControlTuple that was received. A
                received tuple keeps its identity and all else; of the other arguments only
                ``output`` is used.
            delivery: when it is to be delivered, also by name; by default as the payload's type
                declares, else ``END_WINDOW``.
            at: event time in microseconds, with ``AT_TIME``.
            target: the addressed operator, bucket or key.
            output: a tag of ``outputs``; None for all.
            once: a name. Tuples that several buckets emit in one window under one name are one
                tuple; without it each bucket's is a tuple of its own.

        Returns:
            The emitted tuple.

        Raises:
            OperatorError: as for ``emit``.
            ControlError: the payload cannot be written, or there is no such delivery.
            ControlLimitError: there are too many tuples, or they are too large.
        """
        return self._bound().emit_control(
            payload, delivery=delivery, at=at, target=target, output=output, once=once
        )

    def _dead_letters(self) -> DeadLetters | None:
        """Return the receiver of what this operator refuses; None if there is none."""
        return None if self._emitter is None else self._emitter.dead_letters

    def _bound(self) -> Emitter:
        if self._emitter is None:
            raise OperatorError(
                f"{type(self).__name__} emits outside of a window: emit from begin_window, advance,"
                " process, process_control or end_window."
            )
        return self._emitter
