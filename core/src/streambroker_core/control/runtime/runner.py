"""Runs an aligned operator for one window of one bucket, as a pure function.

The input is the packed rows in any order and the bucket's state. The runner restores the order of
rows and control tuples, drives an ``Operator`` through the window, and returns its emissions and
state changes. If anything raises, nothing is returned and nothing must be written. Running the
window again from the same state gives the same result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from streambroker_core.control.operators.dead_letters import DeadLetter, to_json
from streambroker_core.control.operators.declared_state import FieldState
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
from streambroker_core.control.runtime.packing import Arrival, Packed
from streambroker_core.control.tuples import (
    ALL_TARGETS,
    ControlError,
    ControlTuple,
    Delivery,
    KeyValue,
    UndeliverableError,
    envelope,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedControl:
    """A control tuple that was delivered to the operator.

    Attributes:
        forwarded: the operator let it pass on.
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
    """Counts of control tuples of one window, bucket and delivery.

    Attributes:
        received: arrived, each identity once per port.
        duplicates: further copies, dropped.
        delivered: delivered to the operator.
        emitted: sent on: forwarded, emitted again, or new.
        waiting: waiting for their time at the end of the window.
        refused: not deliverable to the operator, and forwarded.
    """

    received: int = 0
    duplicates: int = 0
    delivered: int = 0
    emitted: int = 0
    waiting: int = 0
    refused: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowResult:
    """Result of a window.

    Attributes:
        emitted: rows and control tuples, in order.
        changes: blobs to write; None removes one.
        wake_at: event time at which the bucket needs a window even without rows; None for never.
        held_at: earliest event time that waits in this bucket; None for nothing. It stays valid in
            later windows in which the bucket has nothing to do.
        watermark: watermark that this bucket allows for operators after this one; None for none
            yet.
        applied: the delivered control tuples, in order; empty if the runner does not report.
        refused: reasons why control tuples could not be delivered and were forwarded.
        lost_attributes: attributes that callbacks have set and that are not state.
        dead_letters: what the operator refused; empty if its stage collects none.
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
    lost_attributes: tuple[str, ...] = ()
    dead_letters: tuple[DeadLetter, ...] = ()
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
        """Create a runner for an operator.

        Args:
            make: creates an operator; called for each window and bucket.
            stage: the operator's place in the query.
            layouts: how its inputs are partitioned, for tuples addressed to a key.
            thread: returns the id of the calling thread, to reject emissions from other threads.
            report: fill ``WindowResult.applied``.

        Raises:
            OperatorError: an input or output has no name, a name is used twice, or a declared
                field cannot be state.
        """
        self._make, self._stage, self._thread = make, stage, thread
        self._layouts, self._report = dict(layouts or {}), report
        probe = make()
        FieldState(probe)
        self.inputs, self.outputs = probe.inputs, probe.outputs
        self._ports = tuple(one.name for one in self.inputs)
        for names in (self._ports, self.outputs):
            if not all(names) or len(set(names)) < len(names):
                raise OperatorError(
                    f"operator {stage.operator} has inputs {list(self._ports)} and outputs"
                    f" {list(self.outputs)}: each needs a name of its own."
                )
        kind = type(probe)
        self.operator_name = kind.__qualname__
        self._handles_control = kind.process_control is not Operator.process_control
        self._uses_time = kind.advance is not Operator.advance

    def run(self, window: Window, packed: Iterable[Packed | Arrival], blobs: Blobs) -> WindowResult:
        """Run one window of one bucket.

        Args:
            window: the window; its bucket and number of buckets fit the stage.
            packed: the packed rows that arrived, in any order; unpacked ones from an operator that
                shares the hop.
            blobs: the bucket's state after the previous window.

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
        runner_state = keeping.read_runner_state(blobs, stage, operator.state_version, self._ports)
        arrived = collect(packed, stage, self._ports)
        keeping.check_layouts(runner_state, arrived.layouts, stage)
        emissions = EmitBuffer(stage, window, self.outputs, self._thread, operator.codecs)
        operator.bind(window, None)
        fields = FieldState(operator)
        if runner_state.state is not None:
            fields.restore(runner_state.state, keeping.OperatorBlobs(blobs))
        operator.bind(window, emissions)
        deliverer = _Deliverer(
            operator,
            window,
            stage,
            emissions,
            handles_control=self._handles_control,
            layouts=self._layouts,
            report=self._report,
        )
        try:
            self._drive(operator, arrived, runner_state, emissions, deliverer)
        finally:
            operator.bind(operator.window, None)
        return self._build_result(operator, fields, arrived, runner_state, emissions, deliverer)

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
                f" {runner_state.clock} to {now} in window {window.number}."
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
        """Return tuples whose time has passed, ordered by time, then by arrival."""
        due = [
            (control.at, port, control)
            for (port, _), control in runner_state.waiting.items()
            if control.at is not None and control.at <= now
        ]
        return sorted(due, key=lambda it: it[0])

    def _iter_steps(self, arrived: WindowInput) -> Iterator[InputStep]:
        positioned = {port: arrived.control.positioned_tuples(port) for port in self._ports}
        if self._stage.order_by is None:
            yield from iter_by_port(arrived.tables, positioned, self._ports)
            return
        for port in self._ports:
            for _, control in positioned[port]:
                if self._handles_control:
                    raise ControlError(
                        f"control tuple {control.id} is IMMEDIATE, and the inputs of operator"
                        f" {self._stage.operator} are merged by {self._stage.order_by}: it has no"
                        " position in that order. Deliver it with BEGIN, END_WINDOW or AT_TIME."
                    )
                yield port, control
        yield from iter_by_column(arrived.tables, self._stage.order_by, self._ports)

    def _build_result(
        self,
        operator: Operator,
        fields: FieldState,
        arrived: WindowInput,
        runner_state: keeping.RunnerState,
        emissions: EmitBuffer,
        deliverer: _Deliverer,
    ) -> WindowResult:
        changes = runner_state.changes(self._stage, fields.changes(), operator.state_version)
        wake_times = [one.at for one in runner_state.waiting.values() if one.at is not None]
        operator_wake, held_at = operator.wake_at(), operator.held_at()
        return WindowResult(
            emitted=tuple(emissions.emitted),
            changes=changes,
            wake_at=min(
                wake_times if operator_wake is None else [*wake_times, operator_wake], default=None
            ),
            held_at=held_at,
            watermark=_output_watermark(operator.window.watermark, held_at),
            applied=tuple(deliverer.applied),
            control=_count_controls(arrived, runner_state, emissions, deliverer),
            refused=tuple(deliverer.refused),
            lost_attributes=fields.lost_attributes(),
            dead_letters=tuple(emissions.dead_letters.letters if emissions.dead_letters else ()),
            rows_in=arrived.rows,
            rows_out=emissions.rows,
        )


class _Deliverer:
    """Delivers control tuples to an operator, or forwards them past it."""

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
        self._passes_invalid = stage.pass_invalid or stage.dead_letters
        self.applied: list[AppliedControl] = []
        self.delivered: Counter[Delivery] = Counter()
        self.refusals: Counter[Delivery] = Counter()
        self.refused: list[str] = []
        self._refused_ids: set[str] = set()

    def deliver(self, port: str, control: ControlTuple) -> None:
        """Deliver a tuple if it is addressed to this bucket; forward it if it is not consumed.

        Bucket 0 alone forwards tuples that are not for the operator, because one copy is enough
        unless the next operator shares the hop.
        """
        for_all = self._handles_control and control.target is ALL_TARGETS  # the most frequent case
        reports = self._window.bucket == 0
        try:
            if not for_all and not self._is_addressed(port, control):
                if self._window.bucket == 0 or self._stage.shared:
                    self._emissions.forward(control)
                return
            if not for_all and not self._is_my_bucket(port, control):
                return
            reports |= control.target.bucket is not None or control.target.key is not None
            consumed = self._operator.process_control(port, control)
        except UndeliverableError as error:
            self._refuse(port, control, error, reports=reports)
            return
        if not isinstance(consumed, bool):
            raise OperatorError(
                f"process_control of operator {self._stage.operator} returned {consumed!r} for"
                f" {control.type}: return False to forward it, True to consume it."
            )
        if not consumed:
            self._emissions.forward(control)
        self.delivered[control.delivery] += 1
        if self._report:
            self._record_applied(port, control, forwarded=not consumed)

    def _refuse(
        self, port: str, control: ControlTuple, error: UndeliverableError, *, reports: bool
    ) -> None:
        """Forward a tuple that cannot be delivered; of several buckets one ``reports`` it."""
        if not self._passes_invalid:
            raise error
        letters, key = self._emissions.dead_letters, control.target.key
        if letters is not None and reports and control.id not in self._refused_ids:
            self._refused_ids.add(control.id)  # it may also arrive on another port
            row = to_json(envelope.encode(control))
            letters.add(
                "control", port, error.code, error.why, row=row, key=key, event_time=control.at
            )
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
        """Return whether a tuple is delivered to this bucket's operator.

        Raises:
            UndeliverableError: no bucket has its address, and such tuples are not forwarded.
        """
        try:
            return self._is_addressed(port, control) and self._is_my_bucket(port, control)
        except UndeliverableError:
            if not self._passes_invalid:
                raise
            return False

    def _is_addressed(self, port: str, control: ControlTuple) -> bool:
        """Return whether the tuple is for some bucket of the operator."""
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
        candidates = [self._layouts.get(port), *self._layouts.values()]
        return next((layout for layout in candidates if layout is not None and layout.key), None)


def _output_watermark(watermark: int | None, held: int | None) -> int | None:
    if watermark is None or held is None:
        return watermark
    return min(watermark, held - 1)


_NO_CONTROL = {delivery: ControlCounts() for delivery in Delivery}


def _count_controls(
    arrived: WindowInput,
    runner_state: keeping.RunnerState,
    emissions: EmitBuffer,
    deliverer: _Deliverer,
) -> Mapping[Delivery, ControlCounts]:
    received = arrived.control.received
    if not (received or emissions.counts or runner_state.waiting or deliverer.delivered):
        return _NO_CONTROL
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
