"""A hop inside Spark: ``transformWithStateInPandas`` by slot, around ``AlignedRunner``.

A hop has one operator, or several in a chain, as ``control.runtime.hop`` in core describes. Spark
calls it for each slot that has packed rows in a micro-batch, and for each whose timer is due.
It runs the windows of those buckets of the slot that have rows or whose time has come. State is
accessed only here, and written only when all these windows have run to their end. So a failed
window leaves Spark's store unchanged.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise, zip_longest
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from pe_agent.aligned.runtime import progress_messages
from pe_agent.aligned.runtime.frames import (
    EMITTED,
    NOW,
    PROGRESS,
    ROWS,
    SEQ,
    TUPLES,
    conform,
    write_ipc,
)
from pe_agent.aligned.runtime.idleness import InputTiming, active_watermark
from pe_agent.aligned.runtime.progress_messages import CLOCK_BUCKET, PROGRESS_ROW
from pe_agent.aligned.runtime.state_names import open_states
from pe_agent.aligned.runtime.state_store import (
    BucketState,
    GroupState,
    SparkBlobs,
    read_groups,
    write_groups,
)
from pe_agent.spark.worker import QUERY_ID, freeze_modules, task_property
from streambroker_core.control.operators.dead_letters import DEAD_LETTER_SCHEMA
from streambroker_core.control.operators.operator import Operator, OperatorError, Window
from streambroker_core.control.runtime import hop
from streambroker_core.control.runtime import runner_state as keeping
from streambroker_core.control.runtime.buckets import Layout
from streambroker_core.control.runtime.control_rows import PositionedControl
from streambroker_core.control.runtime.emitter import EmittedRows, Stage
from streambroker_core.control.runtime.packing import (
    Arrival,
    Packed,
    consecutive_numbers,
    pack_control_row,
    sequence,
)
from streambroker_core.control.runtime.runner import (
    AlignedRunner,
    AppliedControl,
    ControlCounts,
    WindowResult,
)

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger("pe_agent")
_LOGGED_ATTRIBUTES: set[str] = set()
"""Attributes that are set and not kept, by class and name: each is reported once in a process."""

FRAME_BYTES = 64 << 20
"""Payload of emitted rows from which a frame is passed to Spark."""
REPORT_ROWS = 512
"""Rows of one batch of a report, so that dead letters take less than 72 MiB in it."""
COUNT_COLUMNS = ("received", "duplicates", "delivered", "emitted", "waiting", "refused")
"""Fields of ``ControlCounts`` that are reported."""

APPLIED_SCHEMA = pa.schema(
    [
        ("operator", pa.string()),
        ("bucket", pa.int32()),
        ("window", pa.int64()),
        ("port", pa.string()),
        ("id", pa.string()),
        ("type", pa.string()),
        ("delivery", pa.string()),
        ("forwarded", pa.bool_()),
    ]
)
"""Columns of the report of control tuples that were delivered."""

COUNTS_SCHEMA = pa.schema(
    [
        ("operator", pa.string()),
        ("bucket", pa.int32()),
        ("window", pa.int64()),
        ("delivery", pa.string()),
        *((name, pa.int64()) for name in COUNT_COLUMNS),
    ]
)
"""Columns of the counts of control tuples; ``delivery`` is null in counts of rows."""


@dataclass(frozen=True, kw_only=True)
class OperatorConfig:
    """An operator and its position in the query, as the tasks need it.

    Attributes:
        make: makes the operator.
        name: its name, unique in the query.
        buckets, order_by, limits, pass_invalid: as in core's ``Stage``.
        layouts: how the rows of its inputs are spread over buckets.
        schemas: columns of its outputs.
        has_watermark: whether Spark's watermark is the operator's.
        watermark_operators: operators whose watermark updates determine its time instead.
        timings: timing of its inputs with an event time, if any input may be idle; else empty.
        report: output for applied control tuples, or None.
        counts: output for counts of control tuples, or None.
        dead_letters: output for what the operator refuses, or None: a refusal fails the window.
        slots: a group of Spark's is a slot; else it is one bucket, as in earlier releases.
        reads: output of the operator before it in the hop that it receives; None for the first.
    """

    make: Callable[[], Operator]
    name: str
    buckets: int
    order_by: str | None
    limits: Any
    layouts: dict[str, Layout]
    schemas: dict[str, pa.Schema]
    has_watermark: bool
    watermark_operators: frozenset[str] = field(default_factory=frozenset)
    timings: Mapping[str, InputTiming] = field(default_factory=dict)
    report: str | None = None
    counts: str | None = None
    dead_letters: str | None = None
    pass_invalid: bool = False
    slots: bool = True
    reads: str | None = None


EventTimes = tuple[int | None, int | None]
"""Event time that had passed before a micro-batch, and that has passed with it."""


@dataclass(slots=True)
class _BucketInput:
    packed: list[Packed] = field(default_factory=list)
    progress: list[progress_messages.ProgressMessage] = field(default_factory=list)


class _HostedOperator:
    """An operator of a hop in a task; ``following`` is the next one, None for the last."""

    def __init__(self, config: OperatorConfig, following: OperatorConfig | None) -> None:
        self.config = config
        self.handover = None if following is None else _make_handover(config, following)
        self._runner: AlignedRunner | None = None
        self._logged_refusals: set[str] = set()

    def run(
        self, window: Window, arrived: Sequence[Packed | Arrival], blobs: SparkBlobs
    ) -> WindowResult:
        """Run a window of a bucket, and write the blobs that it changed."""
        outcome = self._get_runner().run(window, arrived, blobs)
        blobs.apply(outcome.changes)
        self._log_refusals(outcome)
        self._log_lost_attributes(outcome)
        return outcome

    def check_checkpoint(self, blobs: SparkBlobs) -> None:
        """Keep whose state it is; raise StateError if the checkpoint does not fit."""
        config, stage = self.config, self._operator_context()
        version = config.make().state_version
        runner_state = keeping.read_runner_state(blobs, stage, version, tuple(config.layouts))
        layouts = {port: layout.text() for port, layout in config.layouts.items()}
        keeping.check_layouts(runner_state, layouts, stage)
        changes = runner_state.changes(stage, {"clock": b""}, version)
        del changes["clock"]
        blobs.apply(changes)

    def _log_refusals(self, outcome: WindowResult) -> None:
        for why in outcome.refused:
            if why not in self._logged_refusals:
                self._logged_refusals.add(why)
                log.warning("a control tuple has passed an operator: %s", why)

    def _log_lost_attributes(self, outcome: WindowResult) -> None:
        for name in outcome.lost_attributes:
            place = f"{self._get_runner().operator_name}.{name}"
            if place not in _LOGGED_ATTRIBUTES:
                _LOGGED_ATTRIBUTES.add(place)
                log.warning(
                    "a callback has set %s, and the next window does not see it: declare it as a"
                    " field of a dataclass to keep it, or name it in transient",
                    place,
                )

    def _get_runner(self) -> AlignedRunner:
        if self._runner is None:
            self._runner = AlignedRunner(
                self.config.make,
                self._operator_context(),
                layouts=self.config.layouts,
                thread=threading.get_ident,
                report=self.config.report is not None,
            )
        return self._runner

    def _operator_context(self) -> Stage:
        config = self.config
        return Stage(
            query=_require_property(QUERY_ID),
            operator=config.name,
            buckets=config.buckets,
            order_by=config.order_by,
            limits=config.limits,
            pass_invalid=config.pass_invalid,
            dead_letters=config.dead_letters is not None,
            shared=self.handover is not None,
        )


def _make_handover(config: OperatorConfig, following: OperatorConfig) -> hop.Handover:
    output = following.reads or ""
    schema, (layout,) = config.schemas[output], following.layouts.values()
    producer = f"operator {config.name}, output {output},"
    return hop.Handover(output, schema, layout, partial(_conform, schema=schema, producer=producer))


class GroupProcessor(StatefulProcessor):
    """Runs the windows of a hop; Spark makes one for each partition and micro-batch."""

    def __init__(self, config: OperatorConfig, *following: OperatorConfig) -> None:
        """Create it for an operator, and those that follow it in the hop."""
        self._config, self._following = config, following

    def init(self, handle: Any) -> None:
        """Open the state."""
        self._handle = handle
        self._value, self._values = open_states(handle, slots=self._config.slots)
        configs = (self._config, *self._following)
        self._operators = [_HostedOperator(*one) for one in zip_longest(configs, self._following)]

    def close(self) -> None:
        """Exempt the loaded modules from garbage collection."""
        freeze_modules("operator")

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: Any,
        rows: Iterator[Any],
        timerValues: Any,  # noqa: N803 - Spark's name
    ) -> Iterator[pd.DataFrame]:
        """Run the windows of buckets that have rows, control tuples or progress messages."""
        time, received = _read_input(rows)
        return self._run_group(int(key[0]), received, time, timerValues)

    def handleExpiredTimer(  # noqa: N802 - Spark's name
        self,
        key: Any,
        timerValues: Any,  # noqa: N803 - Spark's name
        expiredTimerInfo: Any,  # noqa: N803 - Spark's name
    ) -> Iterator[pd.DataFrame]:
        """Run the windows of buckets whose time has come."""
        time = timerValues.getCurrentProcessingTimeInMs() * 1000
        fired = int(expiredTimerInfo.getExpiryTimeInMs())
        return self._run_group(int(key[0]), {}, time, timerValues, fired)

    def _run_group(
        self,
        key: int,
        received: Mapping[int, _BucketInput],
        time: int,
        timers: Any,
        fired_timer: int | None = None,
    ) -> Iterator[pd.DataFrame]:
        stored, names = self._value.get(), [one.config.name for one in self._operators]
        data = None if stored is None else bytes(stored[0])
        groups = read_groups(data, names, None if self._config.slots else key)
        now, previous_wake = self._spark_watermark(timers), groups[0].wake_at()
        output = _OutputBuffer(self._operators[-1].config)
        handed: dict[int, list[Arrival]] = {}
        for bucket in sorted(received.keys() | groups[0].due(now)):
            arrived = received.get(bucket) or _BucketInput()
            handed[bucket] = self._run_bucket(bucket, groups, arrived, (now, time), output)
        self._run_following(groups, handed, time, output)
        self._set_timer(groups[0].wake_at(), previous_wake, fired_timer)
        changed = write_groups(groups, names, data)
        if changed is not None:
            self._value.update((changed,))
        return output.frames()

    def _run_bucket(
        self,
        bucket: int,
        groups: Sequence[GroupState],
        received: _BucketInput,
        clock: tuple[int | None, int],
        output: _OutputBuffer,
    ) -> list[Arrival]:
        """Run the window of a bucket; ``clock`` is Spark's watermark, and the pinned time.

        Returns what the next operator of the hop receives.
        """
        config, own = self._config, groups[0].bucket(bucket)
        spark_watermark, time = clock
        previous = own.window_watermark(spark_watermark, config.watermark_operators)
        for message in received.progress:
            own.apply_progress(message, time)
        times = (spark_watermark, active_watermark(own.input_times, config.timings, time))
        now = max((one for one in times if one is not None), default=None)
        watermark = own.window_watermark(now, config.watermark_operators)
        handed: list[Arrival] = []
        if bucket == CLOCK_BUCKET:
            self._advance_clock(groups, watermark, output)
        elif received.packed or _is_due(own.wake_at, watermark):
            window = self._make_window(bucket, time, (previous, watermark))
            handed = self._run_window(0, groups[0], window, received.packed, output)
            own.last_watermark = watermark
        own.wake_at = _next_wake(bucket, own, watermark)
        return handed

    def _spark_watermark(self, timers: Any) -> int | None:
        if not self._config.has_watermark:
            return None
        now = int(timers.getCurrentWatermarkInMs())
        return now * 1000 if now > 0 else None

    def _run_following(
        self,
        groups: Sequence[GroupState],
        handed: Mapping[int, list[Arrival]],
        time: int,
        output: _OutputBuffer,
    ) -> None:
        """Run the other operators of the hop, each with what the one before it hands over."""
        for at, before in enumerate(self._operators[:-1], start=1):
            given = {bucket: arrivals for bucket, arrivals in handed.items() if arrivals}
            if before.handover is not None:
                before.handover.check(given)
            handed = {
                bucket: self._run_window(
                    at, groups[at], self._make_window(bucket, time, (None, None)), arrivals, output
                )
                for bucket, arrivals in given.items()
            }

    def _make_window(self, bucket: int, time: int, times: EventTimes) -> Window:
        watermark, later = _split_watermark(*times)
        return Window(
            number=int(_require_property("streaming.sql.batchId")),
            time=time,
            watermark=watermark,
            bucket=bucket,
            buckets=self._config.buckets,
            later=later,
        )

    def _run_window(
        self,
        at: int,
        group: GroupState,
        window: Window,
        arrived: Sequence[Packed | Arrival],
        output: _OutputBuffer,
    ) -> list[Arrival]:
        """Run a window of the operator ``at`` a place of the hop; return what it hands over."""
        hosted, state = self._operators[at], group.bucket(window.bucket)
        outcome = hosted.run(window, arrived, group.blobs(window.bucket, self._values))
        state.wake_at = outcome.wake_at
        if outcome.held_at != state.held_at:
            state.held_at = outcome.held_at
            hold = progress_messages.WatermarkHold(
                operator=hosted.config.name, bucket=window.bucket, at=state.held_at
            )
            output.add_progress(window.bucket, hold)
        if hosted.handover is not None:
            return hosted.handover.arrivals(outcome, window.bucket)
        output.add_emitted(window.bucket, outcome)
        output.add_reports(window, outcome)
        return []

    def _advance_clock(
        self, groups: Sequence[GroupState], watermark: int | None, output: _OutputBuffer
    ) -> None:
        """Send the time to the next operators; raise StateError if the checkpoint does not fit."""
        for hosted, group in zip(self._operators, groups, strict=True):
            hosted.check_checkpoint(group.blobs(CLOCK_BUCKET, self._values))
        state = groups[0].bucket(CLOCK_BUCKET)
        if watermark is not None and watermark != state.last_watermark:
            state.last_watermark = watermark
            update = progress_messages.WatermarkUpdate(
                operator=self._config.name, watermark=watermark
            )
            output.add_progress(CLOCK_BUCKET, update)

    def _set_timer(
        self, wake: int | None, previous_wake: int | None, fired_timer: int | None
    ) -> None:
        """Register Spark's timer for the event time that a bucket of the group waits for.

        Spark itself removes a fired timer after the call, so that one is not deleted here.
        """
        if not self._config.has_watermark:
            return
        old = None if previous_wake is None else _timer_millis(previous_wake)
        new = None if wake is None else _timer_millis(wake)
        if old is not None and old not in (new, fired_timer):
            self._handle.deleteTimer(old)
        if new is not None and new == fired_timer:
            new += 1
        if new is not None and new != old:
            self._handle.registerTimer(new)


def _next_wake(bucket: int, state: BucketState, watermark: int | None) -> int | None:
    if bucket == CLOCK_BUCKET:
        return 1000 if watermark is None else watermark + 1000
    if watermark is not None and _is_due(state.wake_at, watermark):
        return watermark + 1000
    return state.wake_at


class _OutputBuffer:
    def __init__(self, config: OperatorConfig) -> None:
        self._config = config
        self._rows: list[tuple[str | None, str, int, int, int, bytes]] = []

    def add_progress(self, bucket: int, message: progress_messages.ProgressMessage) -> None:
        self._rows.append(
            (None, PROGRESS, bucket, 0, PROGRESS_ROW, progress_messages.encode([message]))
        )

    def add_emitted(self, bucket: int, outcome: WindowResult) -> None:
        rows: dict[str, list[EmittedRows]] = {}
        control: dict[str, list[PositionedControl]] = {}
        for one in outcome.emitted:
            if isinstance(one, EmittedRows):
                rows.setdefault(one.output, []).append(one)
            else:
                control.setdefault(one.output, []).append((one.position, one.control))
        for output, placed in control.items():
            packed = pack_control_row(placed, output)
            self._rows.append((output, TUPLES, bucket, packed.seq, packed.n, packed.payload))
        for output, emissions in rows.items():
            producer = f"operator {self._config.name}, output {output},"
            schema = self._config.schemas[output]
            batches = [_conform(batch, schema, producer) for batch in _concat_rows(emissions)]
            self._add_rows(bucket, output, emissions[0].seq, batches)

    def add_reports(self, window: Window, outcome: WindowResult) -> None:
        config = self._config
        if config.report is not None:
            applied = [_applied_row(config.name, one) for one in outcome.applied]
            self._add_report(window.bucket, config.report, applied, APPLIED_SCHEMA)
        if config.counts is not None:
            counts = list(_count_rows(config.name, window, outcome))
            self._add_report(window.bucket, config.counts, counts, COUNTS_SCHEMA)
        if config.dead_letters is not None:
            letters = outcome.dead_letters
            self._add_report(window.bucket, config.dead_letters, letters, DEAD_LETTER_SCHEMA)

    def _add_report(
        self, bucket: int, output: str, rows: Sequence[tuple[object, ...]], schema: pa.Schema
    ) -> None:
        seq = sequence(part=bucket)
        for first in range(0, len(rows), REPORT_ROWS):  # texts of a column are limited to 2 GiB
            part = rows[first : first + REPORT_ROWS]
            columns = zip(zip(*part, strict=True), schema.types, strict=True)
            arrays = [pa.array(values, kind) for values, kind in columns]
            batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
            self._add_rows(bucket, output, seq + first, [batch])

    def _add_rows(self, bucket: int, output: str, seq: int, batches: list[pa.RecordBatch]) -> None:
        count = sum(batch.num_rows for batch in batches)
        self._rows.append((output, ROWS, bucket, seq, count, write_ipc(batches)))

    def frames(self) -> Iterator[pd.DataFrame]:
        """Yield the rows in frames of limited size, because a column of Arrow is limited."""
        import pandas as pd

        first = size = 0
        for number, row in enumerate(self._rows, start=1):
            size += len(row[-1])
            if size >= FRAME_BYTES or number == len(self._rows):
                yield pd.DataFrame(self._rows[first:number], columns=EMITTED.names)
                first, size = number, 0


def _concat_rows(emitted: list[EmittedRows]) -> list[pa.RecordBatch]:
    table = pa.Table.from_batches([one.batch for one in emitted])
    if any(low.seq + low.batch.num_rows != high.seq for low, high in pairwise(emitted)):
        positions = [consecutive_numbers(one.seq, one.batch.num_rows) for one in emitted]
        table = table.append_column(SEQ, pa.chunked_array(positions))
    return list(table.combine_chunks().to_batches())


def _conform(batch: pa.RecordBatch, schema: pa.Schema, producer: str) -> pa.RecordBatch:
    if SEQ not in batch.schema.names:
        return conform(batch, schema, producer)
    rows = conform(batch.drop_columns([SEQ]), schema, producer)
    return rows.append_column(SEQ, batch.column(SEQ))


def _read_input(rows: Iterable[pd.DataFrame]) -> tuple[int, dict[int, _BucketInput]]:
    """Return the pinned time of the packed rows of a group, and the rows by bucket."""
    time, received = 0, defaultdict[int, _BucketInput](_BucketInput)
    for frame in rows:
        columns = (frame[name] for name in ("bucket", "seq", "n", "payload", NOW))
        for bucket, seq, n, payload, now in zip(*columns, strict=True):
            time, one = int(now), received[int(bucket)]
            if n == PROGRESS_ROW:
                one.progress += progress_messages.decode(payload)
            elif n:
                one.packed.append(Packed(seq=int(seq), n=int(n), payload=bytes(payload)))
    return time, received


def _applied_row(operator: str, one: AppliedControl) -> tuple[object, ...]:
    where = (operator, one.bucket, one.window, one.port)
    return (*where, one.id, one.type, one.delivery.value, one.forwarded)


def _count_rows(
    operator: str, window: Window, outcome: WindowResult
) -> Iterator[tuple[object, ...]]:
    rows = ControlCounts(
        received=outcome.rows_in, delivered=outcome.rows_in, emitted=outcome.rows_out
    )
    counts: list[tuple[str | None, ControlCounts]] = [(None, rows)]
    counts += [(delivery.value, one) for delivery, one in outcome.control.items()]
    for delivery, one in counts:
        if one != ControlCounts():
            values = (getattr(one, name) for name in COUNT_COLUMNS)
            yield (operator, window.bucket, window.number, delivery, *values)


def _split_watermark(previous: int | None, current: int | None) -> tuple[int | None, int | None]:
    """Return the time that has passed before a window's rows, and the time that passes after them.

    Operators before this one send their watermark together with rows that they held back until it.
    """
    if previous == current or current is None:
        return current, None
    return (previous, current) if previous is None or previous < current else (current, None)


def _is_due(wake: int | None, watermark: int | None) -> bool:
    return wake is not None and watermark is not None and wake <= watermark


def _timer_millis(wake: int) -> int:
    """Return Spark's timer in ms, at least 1; it fires when the watermark reaches it."""
    return max(-(-wake // 1000), 1)


def _require_property(name: str) -> str:
    value = task_property(name)
    if value is None:
        raise OperatorError(
            f"the task has no {name}: aligned operators run in streaming queries only."
        )
    return value
