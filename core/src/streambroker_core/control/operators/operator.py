"""What an aligned operator is: the contract between control, patterns, side inputs and a runtime.

*Bucket.* Keys are hashed into a fixed number of buckets. An operator runs in each bucket by
itself: it sees the rows of that bucket alone, has the state of that bucket alone, and may keep
nothing outside of it. An object lives for one window of one bucket.

*Window.* One micro-batch. In each window in which a bucket has rows, control tuples or something
due, a runtime makes an operator and calls, in this order::

    restore          once, if the bucket has state
    begin_window
    process_control  for BEGIN tuples
    advance          event time has passed; before each AT_TIME tuple up to its time, then
    process_control  for AT_TIME tuples that are due, between those steps
    process          rows, port by port in the order of ``inputs``, or merged by a column, and
    process_control  for IMMEDIATE tuples, at their places between the rows
    advance          once more behind another operator, to ``window.later``, as above
    process_control  for END_WINDOW tuples: all rows of all ports have been processed
    end_window
    snapshot, wake_at, held_at

In all callbacks from ``begin_window`` to ``end_window`` an operator may ``emit`` and
``emit_control``.

*Deterministic.* Called again with the same state, rows and control, an operator does the same, to
the byte: no clock but ``window.time`` and event time, no randomness, no order of hashes. Where
``process`` is cut into batches depends on rows and control tuples alone, not on how they arrived.

*Watermark.* ``window.watermark`` comes from earlier windows and holds for all rows of this one. A
row is late if its event time is not after it. No row is taken away: what is late is the operator's
decision. An operator behind another hears of time in the window in which it passes, together with
the rows that were held back until then. These are not late: that time passes behind all rows, and
``window.watermark`` is it from there on.

*Times* are event times in microseconds since 1970, int64; ``END_OF_TIME`` when an input has ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from streambroker_core.control.tuples import ALL_TARGETS, ControlTuple, Delivery, Target
from streambroker_core.errors import StreambrokerError

if TYPE_CHECKING:
    import pyarrow as pa

Blobs = Mapping[str, bytes]
"""State of one bucket by name, as it was at the end of the last window. ``blobs[name]`` and
``blobs.get(name)`` read one blob, so what is not asked for costs nothing; iteration reads names."""

Changes = dict[str, bytes | None]
"""Blobs that a window wrote, by name; None for a removed one. Names begin with a letter."""


class OperatorError(StreambrokerError):
    """An operator called its runtime in a way that is not allowed; the window fails."""

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
        broadcast: every bucket gets every row; for few rows, as deltas of a side input.
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
        buckets: how many there are.
        later: event time that passes behind the rows of the window; None for none.
    """

    number: int
    time: int
    watermark: int | None
    bucket: int
    buckets: int
    later: int | None = None


class Emitter(Protocol):
    """Where an operator's emissions go; a runtime gives it."""

    def emit(self, batch: pa.RecordBatch, output: str | None) -> None:
        """Take rows for an output."""

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
        """Take a control tuple for an output, or for all."""


class Operator:
    """The base of every aligned operator; a subclass overrides what it needs.

    Attributes:
        inputs: its ports, in the order in which a window's rows are processed; a side input stands
            before the main one.
        outputs: the tags of its outputs; the first is the one meant where none is named. All
            batches emitted to one output have one schema.
        state_version: version of the form of its state.
        window: the window; set by the runtime before ``restore``.
    """

    inputs: tuple[Input, ...] = (Input(),)
    outputs: tuple[str, ...] = ("out",)
    state_version: ClassVar[int] = 1
    window: Window
    _emitter: Emitter | None = None

    def bind(self, window: Window, emitter: Emitter | None) -> None:
        """Enter a window, or leave it: without an emitter every emission is refused."""
        self.window, self._emitter = window, emitter

    # What a runtime calls.

    def restore(self, version: int, blobs: Blobs) -> None:
        """Take up the state of the bucket.

        Args:
            version: ``state_version`` of the operator that wrote it; never a higher one than ours,
                which the runtime refuses. An older one is to be read, or refused.
            blobs: the state. It may be kept, and read until ``snapshot`` has returned.

        Raises:
            StateError: it cannot be read.
        """

    def begin_window(self) -> None:
        """Begin a window."""

    def advance(self, time: int) -> None:
        """Do what is due: no row with an event time up to ``time`` is on time any more.

        Called in every window that has a watermark, also if it has not moved; ``time`` never goes
        back within a bucket. Last it is ``window.watermark``.
        """

    def process(self, port: str, batch: pa.RecordBatch) -> None:
        """Take rows of a port, in order; at least one row."""

    def process_control(self, port: str, control: ControlTuple) -> bool:
        """Take a control tuple.

        Returns:
            False: it goes on to all outputs, with its identity. True: it is the operator's
            business, and goes on only if it is emitted.
        """
        del port, control
        return False

    def end_window(self) -> None:
        """End a window; what is emitted here still belongs to it."""

    def snapshot(self) -> Changes:
        """Return what this window changed of the state, and nothing else.

        What is not named stays as it was. For many keys see ``keyed.KeyedState``.
        """
        return {}

    def wake_at(self) -> int | None:
        """Return the earliest event time at which something is due; None for never.

        Asked after each window and answered from the whole state. The bucket gets a window, if need
        be without rows, once the watermark is not before this time.
        """
        return None

    def held_at(self) -> int | None:
        """Return the earliest event time of what still waits to be emitted; None for nothing.

        What follows sees a watermark before it.
        """
        return None

    # What an operator calls.

    def emit(self, batch: pa.RecordBatch, output: str | None = None) -> None:
        """Hand out rows.

        Args:
            batch: the rows.
            output: a tag of ``outputs``; None for the first.

        Raises:
            OperatorError: no such output, another schema than before, no window, or not the
                thread of the window.
        """
        self._bound().emit(batch, output)

    def emit_control(
        self,
        payload: Any,
        *,
        delivery: Delivery | str = Delivery.END_WINDOW,
        at: int | None = None,
        target: Target = ALL_TARGETS,
        output: str | None = None,
        once: str | None = None,
    ) -> ControlTuple:
        """Hand out a control tuple; it belongs to this window.

        Args:
            payload: a dataclass, or a ControlTuple that was received: it keeps its identity and all
                else, and the other arguments but ``output`` are not used.
            delivery: when it is to be delivered; its name will do.
            at: event time in microseconds, with ``AT_TIME``.
            target: for whom.
            output: a tag of ``outputs``; None for all.
            once: a name. Tuples that several buckets emit in one window under one name are one
                tuple; without it each bucket's is a tuple of its own.

        Returns:
            What was emitted.

        Raises:
            OperatorError: as for ``emit``.
            ControlError: the payload cannot be written, there is no such delivery, or there are
                too many tuples.
        """
        return self._bound().emit_control(
            payload, delivery=delivery, at=at, target=target, output=output, once=once
        )

    def _bound(self) -> Emitter:
        if self._emitter is None:
            raise OperatorError(
                f"{type(self).__name__} emits outside of a window: emit from begin_window, advance,"
                " process, process_control or end_window."
            )
        return self._emitter
