"""Runs one window of one bucket: the pure part of the runtime of aligned operators.

Given packed rows as they arrived and the bucket's state, the runner restores the order, puts each
control tuple at its place, drives an ``Operator`` through the window and returns what it emitted
and what of the state has changed. If anything raises, nothing is returned and nothing is to be
written: the window is run again from the same state, and comes to the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from streambroker_core.control.operators.operator import (
    Blobs,
    Changes,
    Operator,
    OperatorError,
    Window,
)
from streambroker_core.control.runtime import runner_state as keeping
from streambroker_core.control.runtime.arrivals import WindowInput, collect
from streambroker_core.control.runtime.buckets import Layout, bucket_for_key
from streambroker_core.control.runtime.emitter import Emission, EmitBuffer, Stage, WindowPhase
from streambroker_core.control.runtime.ordering import InputStep, iter_by_column, iter_by_port
from streambroker_core.control.runtime.packing import Packed
from streambroker_core.control.tuples import (
    ALL_TARGETS,
    ControlError,
    ControlTuple,
    Delivery,
    KeyValue,
    UndeliverableError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedControl:
    """A control tuple that was handed to the operator.

    Attributes:
        forwarded: the operator let it go on.
    """

    id: str
    type: str
    delivery: Delivery
    port: str
    bucket: int
    window: int
    forwarded: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlCounts:
    """Control tuples of one window and bucket with one delivery; rows are counted apart.

    Attributes:
        received: arrived, each identity once per port.
        duplicates: further copies, left out.
        delivered: handed to the operator.
        emitted: sent on: forwarded, emitted again, or new.
        waiting: held for their time at the end of the window.
        refused: could not be handed to the operator, and went on.
    """

    received: int = 0
    duplicates: int = 0
    delivered: int = 0
    emitted: int = 0
    waiting: int = 0
    refused: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowResult:
    """What a window came to.

    Attributes:
        emitted: rows and control tuples, in order.
        changes: blobs to write; None removes one.
        wake_at: event time at which the bucket wants a window, rows or not; None for never.
        held_at: earliest event time of what waits in this bucket; None for nothing. It holds also
            in later windows in which the bucket has nothing to do.
        watermark: what operators after this one may take for passed, as far as this bucket is
            concerned; None for nothing yet.
        applied: the control tuples that were handed to the operator, in order; empty for a runner
            that does not report.
        control: counts by delivery.
        refused: why control tuples could not be handed to the operator, which went on.
        rows_in: rows processed.
        rows_out: rows emitted.
    """

    emitted: tuple[Emission, ...] = ()
    changes: Changes = field(default_factory=dict)
    wake_at: int | None = None
    held_at: int | None = None
    watermark: int | None = None
    applied: tuple[AppliedControl, ...] = ()
    control: Mapping[Delivery, ControlCounts] = field(default_factory=dict)
    refused: tuple[str, ...] = ()
    rows_in: int = 0
    rows_out: int = 0


class AlignedRunner:
    """Runs windows of an operator; keeps nothing between them."""

    def __init__(
        self,
        make: Callable[[], Operator],
        stage: Stage,
        *,
        layouts: Mapping[str, Layout] | None = None,
        thread: Callable[[], int] = int,
        report: bool = True,
    ) -> None:
        """Take up an operator.

        Args:
            make: makes one; called for each window and bucket.
            stage: where it stands.
            layouts: how its inputs are spread, for tuples that are addressed to a key.
            thread: tells the calling thread, so that emissions from others can be refused.
            report: outcomes have what was applied.

        Raises:
            OperatorError: inputs or outputs have no names, or one name twice.
        """
        self._make, self._stage, self._thread = make, stage, thread
        self._layouts, self._report = dict(layouts or {}), report
        probe = make()
        self.inputs, self.outputs = probe.inputs, probe.outputs
        self._ports = tuple(one.name for one in self.inputs)
        for names in (self._ports, self.outputs):
            if not all(names) or len(set(names)) < len(names):
                raise OperatorError(
                    f"operator {stage.operator} has inputs {list(self._ports)} and outputs"
                    f" {list(self.outputs)}: each needs a name of its own."
                )
        kind = type(probe)
        self._handles_control = kind.process_control is not Operator.process_control
        self._uses_time = kind.advance is not Operator.advance

    def run(self, window: Window, packed: Iterable[Packed], blobs: Blobs) -> WindowResult:
        """Run one window of one bucket.

        Args:
            window: the window; its bucket and number of buckets are the stage's.
            packed: what arrived, in any order.
            blobs: the bucket's state after the window before.

        Raises:
            OperatorError: rows, state or calls of the operator do not fit.
            StateError: the state is not this operator's.
            ControlError: a control tuple cannot be read, written or delivered.
        """
        stage = self._stage
        if window.buckets != stage.buckets or not 0 <= window.bucket < stage.buckets:
            raise OperatorError(
                f"bucket {window.bucket} of {window.buckets} for operator {stage.operator}, which"
                f" has {stage.buckets}."
            )
        operator = self._make()
        kept = keeping.read_runner_state(blobs, stage, operator.state_version, self._ports)
        arrived = collect(packed, stage, self._ports)
        keeping.check_layouts(kept, arrived.layouts, stage)
        emissions = EmitBuffer(stage, window, self.outputs, self._thread)
        operator.bind(window, None)
        if kept.state is not None:
            operator.restore(kept.state, keeping.OperatorBlobs(blobs))
        operator.bind(window, emissions)
        delivering = _Deliverer(
            operator,
            window,
            stage,
            emissions,
            handles_control=self._handles_control,
            layouts=self._layouts,
            report=self._report,
        )
        try:
            self._drive(operator, arrived, kept, emissions, delivering)
        finally:
            operator.bind(operator.window, None)
        return self._build_result(operator, arrived, kept, emissions, delivering)

    def _drive(
        self,
        operator: Operator,
        arrived: WindowInput,
        runner_state: keeping.RunnerState,
        emissions: EmitBuffer,
        deliverer: _Deliverer,
    ) -> None:
        emissions.enter_phase(WindowPhase.BEGIN_WINDOW)
        operator.begin_window()
        for number, (port, control) in enumerate(self._sorted_tuples(arrived, Delivery.BEGIN)):
            emissions.enter_phase(WindowPhase.BEGIN, number)
            deliverer.deliver(port, control)
        emissions.enter_phase(WindowPhase.ROWS)
        for port, control in self._sorted_tuples(arrived, Delivery.AT_TIME):
            if deliverer.is_for_bucket(port, control):
                runner_state.add_waiting(port, control)
            else:
                deliverer.deliver(port, control)
        self._pass_time(operator, runner_state, deliverer)
        for port, step in self._iter_steps(arrived):
            if isinstance(step, ControlTuple):
                deliverer.deliver(port, step)
            else:
                operator.process(port, step)
        if operator.window.later is not None:
            later = replace(operator.window, watermark=operator.window.later, later=None)
            operator.bind(later, emissions)
            self._pass_time(operator, runner_state, deliverer)
        runner_state.check_waiting_limit(self._stage)
        for number, (port, control) in enumerate(self._sorted_tuples(arrived, Delivery.END_WINDOW)):
            emissions.enter_phase(WindowPhase.END_WINDOW, number)
            deliverer.deliver(port, control)
        emissions.enter_phase(WindowPhase.END)
        operator.end_window()

    def _sorted_tuples(
        self, arrived: WindowInput, delivery: Delivery
    ) -> Sequence[tuple[str, ControlTuple]]:
        return arrived.control.sorted_tuples(self._ports, delivery)

    def _pass_time(
        self, operator: Operator, runner_state: keeping.RunnerState, deliverer: _Deliverer
    ) -> None:
        window = operator.window
        now = window.watermark
        if now is None:
            return
        if runner_state.clock is not None and now < runner_state.clock:
            raise OperatorError(
                f"the watermark of operator {self._stage.operator} went back from"
                f" {runner_state.clock} to"
                f" {now} in window {window.number}."
            )
        for at, port, control in self._due_tuples(runner_state, now):
            if runner_state.clock is None or at > runner_state.clock:
                operator.advance(at)
                runner_state.clock = at
            deliverer.deliver(port, control)
            runner_state.remove_waiting(port, control)
        operator.advance(now)
        runner_state.clock = now if self._uses_time else None

    def _due_tuples(
        self, runner_state: keeping.RunnerState, now: int
    ) -> list[tuple[int, str, ControlTuple]]:
        """Return the tuples whose time has passed; those of one time in the order of arrival."""
        due = [
            (one.at, port, one)
            for (port, _), one in runner_state.waiting.items()
            if one.at is not None and one.at <= now
        ]
        return sorted(due, key=lambda it: it[0])

    def _iter_steps(self, arrived: WindowInput) -> Iterator[InputStep]:
        placed = {port: arrived.control.positioned_tuples(port) for port in self._ports}
        if self._stage.order_by is None:
            yield from iter_by_port(arrived.tables, placed, self._ports)
            return
        for port in self._ports:
            for _, control in placed[port]:
                if self._handles_control:
                    raise ControlError(
                        f"control tuple {control.id} is IMMEDIATE, and the inputs of operator"
                        f" {self._stage.operator} are merged by {self._stage.order_by}: it has no"
                        " place there. Deliver it with BEGIN, END_WINDOW or AT_TIME."
                    )
                yield port, control
        yield from iter_by_column(arrived.tables, self._stage.order_by, self._ports)

    def _build_result(
        self,
        operator: Operator,
        arrived: WindowInput,
        runner_state: keeping.RunnerState,
        emissions: EmitBuffer,
        deliverer: _Deliverer,
    ) -> WindowResult:
        changes = runner_state.changes(self._stage, operator.snapshot(), operator.state_version)
        wakes = [one.at for one in runner_state.waiting.values() if one.at is not None]
        own, held = operator.wake_at(), operator.held_at()
        return WindowResult(
            emitted=tuple(emissions.emitted),
            changes=changes,
            wake_at=min(wakes if own is None else [*wakes, own], default=None),
            held_at=held,
            watermark=_output_watermark(operator.window.watermark, held),
            applied=tuple(deliverer.applied),
            control=_count_controls(arrived, runner_state, emissions, deliverer),
            refused=tuple(deliverer.refused),
            rows_in=arrived.rows,
            rows_out=emissions.rows,
        )


class _Deliverer:
    """Hands control tuples to an operator, or past it."""

    def __init__(
        self,
        operator: Operator,
        window: Window,
        stage: Stage,
        emissions: EmitBuffer,
        *,
        handles_control: bool,
        layouts: Mapping[str, Layout],
        report: bool,
    ) -> None:
        self._operator, self._window, self._stage = operator, window, stage
        self._emissions, self._handles_control, self._layouts = emissions, handles_control, layouts
        self._report = report
        self.applied: list[AppliedControl] = []
        self.delivered: Counter[Delivery] = Counter()
        self.refusals: Counter[Delivery] = Counter()
        self.refused: list[str] = []

    def deliver(self, port: str, control: ControlTuple) -> None:
        """Hand it to the operator if it is for this bucket of it, and pass it on if it goes on.

        Past an operator that does not take it, one copy is enough: the first bucket's.
        """
        everybody = self._handles_control and control.target is ALL_TARGETS  # nearly all of them
        try:
            if not everybody and not self._is_addressed(port, control):
                if self._window.bucket == 0:
                    self._emissions.forward(control)
                return
            if not everybody and not self._is_my_bucket(port, control):
                return
            kept = self._operator.process_control(port, control)
        except UndeliverableError as error:
            self._refuse(control, error)
            return
        if not isinstance(kept, bool):
            raise OperatorError(
                f"process_control of operator {self._stage.operator} returned {kept!r} for"
                f" {control.type}: return False to let it go on, True to keep it."
            )
        if not kept:
            self._emissions.forward(control)
        self.delivered[control.delivery] += 1
        if self._report:
            self._record_applied(port, control, forwarded=not kept)

    def _refuse(self, control: ControlTuple, error: UndeliverableError) -> None:
        if not self._stage.pass_invalid:
            raise error
        self.refusals[control.delivery] += 1
        self.refused.append(error.why)
        self._emissions.forward(control)

    def _record_applied(self, port: str, control: ControlTuple, *, forwarded: bool) -> None:
        self.applied.append(
            AppliedControl(
                id=control.id,
                type=control.type,
                delivery=control.delivery,
                port=port,
                bucket=self._window.bucket,
                window=self._window.number,
                forwarded=forwarded,
            )
        )

    def is_for_bucket(self, port: str, control: ControlTuple) -> bool:
        """Whether this bucket's operator is handed the tuple.

        Raises:
            UndeliverableError: nobody has its address, and such tuples do not go on.
        """
        try:
            return self._is_addressed(port, control) and self._is_my_bucket(port, control)
        except UndeliverableError:
            if not self._stage.pass_invalid:
                raise
            return False

    def _is_addressed(self, port: str, control: ControlTuple) -> bool:
        """Whether some bucket of the operator is handed the tuple."""
        target, stage = control.target, self._stage
        if not self._handles_control or target.operator not in (None, stage.operator):
            return False
        problem = None
        if target.bucket is not None and target.bucket >= stage.buckets:
            problem = f"bucket {target.bucket}, and there are {stage.buckets}"
        if target.key is not None and problem is None:
            problem = self._find_bucket_problem(port, target.key)
        if problem is not None and target.operator is not None:
            raise UndeliverableError(
                f"control tuple {control.id} is addressed to operator {stage.operator}, {problem}."
            )
        return problem is None

    def _find_bucket_problem(self, port: str, key: tuple[KeyValue, ...]) -> str | None:
        """Return why no bucket has a key; None if one has."""
        layout = self._find_keyed_layout(port)
        if layout is None:
            return f"key {list(key)}, and no input has a key"
        try:
            bucket_for_key(key, layout)
        except ControlError as error:
            return str(error).removesuffix(".")
        return None

    def _is_my_bucket(self, port: str, control: ControlTuple) -> bool:
        target = control.target
        if target.bucket is not None and target.bucket != self._window.bucket:
            return False
        layout = None if target.key is None else self._find_keyed_layout(port)
        if target.key is None or layout is None:
            return True
        return bucket_for_key(target.key, layout) == self._window.bucket

    def _find_keyed_layout(self, port: str) -> Layout | None:
        found = [self._layouts.get(port), *self._layouts.values()]
        return next((one for one in found if one is not None and one.key), None)


def _output_watermark(watermark: int | None, held: int | None) -> int | None:
    if watermark is None or held is None:
        return watermark
    return min(watermark, held - 1)


def _count_controls(
    arrived: WindowInput,
    runner_state: keeping.RunnerState,
    emissions: EmitBuffer,
    deliverer: _Deliverer,
) -> dict[Delivery, ControlCounts]:
    received = arrived.control.received
    return {
        delivery: ControlCounts(
            received=received[delivery],
            duplicates=arrived.control.duplicates[delivery],
            delivered=deliverer.delivered[delivery],
            emitted=emissions.counts.get(delivery, 0),
            waiting=len(runner_state.waiting) if delivery is Delivery.AT_TIME else 0,
            refused=deliverer.refusals[delivery],
        )
        for delivery in Delivery
    }
