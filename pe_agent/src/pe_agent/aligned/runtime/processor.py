"""One operator inside Spark: ``transformWithStateInPandas`` by bucket, around ``AlignedRunner``.

Spark calls it for each bucket that has packed rows in a micro-batch, and for each whose timer is
due. State is read and written only here and only by a window that has run to its end, so a window
that fails leaves Spark's store as it was.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from pe_agent.aligned.idleness import Pace, without_idle
from pe_agent.aligned.queries.start_guard import REFUSED
from pe_agent.aligned.runtime import progress_messages as notes
from pe_agent.aligned.runtime.frames import (
    EMITTED,
    NOTES,
    NOW,
    ROWS,
    SEQ,
    TUPLES,
    fitting,
    write_ipc,
)
from pe_agent.aligned.runtime.lazy_operator import states
from pe_agent.aligned.runtime.progress_messages import CLOCK, NOTE
from pe_agent.aligned.runtime.state_store import Own, SparkBlobs, read_own
from pe_agent.spark.worker import settle
from streambroker_core.control.operators.operator import Operator, OperatorError, Window
from streambroker_core.control.runtime import runner_state as keeping
from streambroker_core.control.runtime.buckets import Layout
from streambroker_core.control.runtime.control_rows import Placed
from streambroker_core.control.runtime.emitter import EmittedRows, Stage
from streambroker_core.control.runtime.packing import Packed, control_row, numbers, sequence
from streambroker_core.control.runtime.runner import AlignedRunner, Applied, ControlCounts, Outcome

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger("pe_agent")

COUNTS = ("received", "duplicates", "delivered", "emitted", "waiting", "refused")
"""As ``control.aligned.ControlCounts`` has them."""

APPLIED = pa.schema(
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
"""Columns of the report of control tuples that were handed over."""

COUNTED = pa.schema(
    [
        ("operator", pa.string()),
        ("bucket", pa.int32()),
        ("window", pa.int64()),
        ("delivery", pa.string()),
        *((name, pa.int64()) for name in COUNTS),
    ]
)
"""Columns of the counts of control tuples; ``delivery`` is null in those of rows."""


@dataclass(frozen=True, kw_only=True)
class Hosted:
    """An operator and its place in the query, as the tasks need it.

    Attributes:
        make: makes the operator.
        name: its name, unique in the query.
        buckets, order_by, limits, pass_invalid: as ``emitting.Stage`` has them.
        layouts: how its inputs are spread.
        schemas: columns of its outputs.
        mark: stands in the plan of each query that runs it.
        timed: Spark's watermark is the operator's.
        clocks: operators whose ticks are its time instead.
        paces: of its inputs with an event time, where one of them may be idle; else none.
        report: output to which applied control tuples are told; None for none.
        counts: output to which it is told how many there were; None for none.
    """

    make: Callable[[], Operator]
    name: str
    buckets: int
    order_by: str | None
    limits: Any
    layouts: dict[str, Layout]
    schemas: dict[str, pa.Schema]
    timed: bool
    mark: str = ""
    clocks: frozenset[str] = field(default_factory=frozenset)
    paces: Mapping[str, Pace] = field(default_factory=dict)
    report: str | None = None
    counts: str | None = None
    pass_invalid: bool = False


Times = tuple[int | None, int | None]
"""Event time that had passed before a micro-batch, and that has passed with it."""


@dataclass(slots=True)
class _Arrived:
    packed: list[Packed] = field(default_factory=list)
    notes: list[notes.Note] = field(default_factory=list)
    time: int = 0


class BucketProcessor(StatefulProcessor):
    """Runs the windows of an operator; Spark makes one for each partition and micro-batch."""

    def __init__(self, hosted: Hosted) -> None:
        self._hosted = hosted

    def init(self, handle: Any) -> None:
        """Open the state.

        Raises:
            OperatorError: the query is one too many for the operator.
        """
        check_start(self._hosted)
        self._handle = handle
        self._own, self._blobs = states(handle)
        self._runner: AlignedRunner | None = None
        self._refused: set[str] = set()

    def close(self) -> None:
        """Keep nothing but what is loaded."""
        settle("operator")

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: Any,
        rows: Iterator[Any],
        timerValues: Any,  # noqa: N803 - Spark's name
    ) -> Iterator[pd.DataFrame]:
        """Run the window of a bucket that has rows, control tuples or notes."""
        return self._bucket(int(key[0]), _arrived(rows), timerValues)

    def handleExpiredTimer(  # noqa: N802 - Spark's name
        self,
        key: Any,
        timerValues: Any,  # noqa: N803 - Spark's name
        expiredTimerInfo: Any,  # noqa: N803 - Spark's name
    ) -> Iterator[pd.DataFrame]:
        """Run the window of a bucket in which something is due by event time."""
        arrived = _Arrived(time=timerValues.getCurrentProcessingTimeInMs() * 1000)
        fired = int(expiredTimerInfo.getExpiryTimeInMs())
        return self._bucket(int(key[0]), arrived, timerValues, fired)

    def _bucket(
        self, bucket: int, arrived: _Arrived, timers: Any, fired: int | None = None
    ) -> Iterator[pd.DataFrame]:
        hosted = self._hosted
        found = self._own.get()
        before = None if found is None else bytes(found[0])
        own = read_own(before, hosted.name)
        now, wake = self._spark_time(timers), own.wake
        known = own.passed(now, hosted.clocks)
        for note in arrived.notes:
            own.hear(note, arrived.time)
        times = (now, without_idle(own.seen, hosted.paces, arrived.time))
        now = max((time for time in times if time is not None), default=None)
        passed = own.passed(now, hosted.clocks)
        out = _Emitted(hosted)
        if bucket == CLOCK:
            self._pass_time_on(own, passed, out)
        elif arrived.packed or _due(own.wake, passed):
            self._window(bucket, own, (known, passed), arrived, out)
        self._set_timer(own, _wanted(bucket, own, passed), wake, fired)
        after = own.write()
        if after != before:
            self._own.update((after,))
        return out.frames()

    def _spark_time(self, timers: Any) -> int | None:
        if not self._hosted.timed:
            return None
        now = int(timers.getCurrentWatermarkInMs())
        return now * 1000 if now > 0 else None

    def _window(
        self, bucket: int, own: Own, times: Times, arrived: _Arrived, out: _Emitted
    ) -> None:
        hosted, number = self._hosted, int(_property("streaming.sql.batchId"))
        watermark, later = _in_turn(*times)
        window = Window(
            number=number,
            time=arrived.time,
            watermark=watermark,
            bucket=bucket,
            buckets=hosted.buckets,
            later=later,
        )
        blobs = SparkBlobs(own, self._blobs)
        outcome = self._run().run(window, arrived.packed, blobs)
        blobs.apply(outcome.changes)
        own.wake, own.floor = outcome.wake_at, times[1]
        if outcome.held_at != own.held:
            own.held = outcome.held_at
            out.note(bucket, notes.Hold(operator=hosted.name, bucket=bucket, at=own.held))
        self._warn(outcome)
        out.take(bucket, outcome)
        out.tell(window, outcome)

    def _warn(self, outcome: Outcome) -> None:
        for why in outcome.refused:
            if why not in self._refused:
                self._refused.add(why)
                log.warning("a control tuple has passed an operator: %s", why)

    def _run(self) -> AlignedRunner:
        if self._runner is None:
            stage = self._stage()
            self._runner = AlignedRunner(
                self._hosted.make,
                stage,
                layouts=self._hosted.layouts,
                thread=threading.get_ident,
                report=self._hosted.report is not None,
            )
        return self._runner

    def _stage(self) -> Stage:
        hosted = self._hosted
        return Stage(
            query=_property("sql.streaming.queryId"),
            operator=hosted.name,
            buckets=hosted.buckets,
            order_by=hosted.order_by,
            limits=hosted.limits,
            pass_invalid=hosted.pass_invalid,
        )

    def _pass_time_on(self, own: Own, passed: int | None, out: _Emitted) -> None:
        """Tell the operators after this one what time it is; refuse a checkpoint of another kind.

        Raises:
            StateError: the checkpoint is of another operator, number of buckets or key.
        """
        hosted, stage = self._hosted, self._stage()
        version = hosted.make().state_version
        kept = keeping.read(own.blobs, stage, version, tuple(hosted.layouts))
        layouts = {port: layout.text() for port, layout in hosted.layouts.items()}
        keeping.take_layouts(kept, layouts, stage)
        changes = kept.changes(stage, {"clock": b""}, version)
        del changes["clock"]
        SparkBlobs(own, self._blobs).apply(changes)
        if passed is not None and passed != own.floor:
            own.floor = passed
            out.note(CLOCK, notes.Tick(operator=hosted.name, watermark=passed))

    def _set_timer(self, own: Own, wake: int | None, before: int | None, fired: int | None) -> None:
        """Let Spark call again when time has passed what the bucket waits for.

        Spark removes the timer that has fired after the call, so that one is left alone.
        """
        own.wake = wake
        if not self._hosted.timed:
            return
        old = None if before is None else _timer(before)
        new = None if wake is None else _timer(wake)
        if old is not None and old not in (new, fired):
            self._handle.deleteTimer(old)
        if new is not None and new == fired:
            new += 1
        if new is not None and new != old:
            self._handle.registerTimer(new)


def _wanted(bucket: int, own: Own, passed: int | None) -> int | None:
    """Return the event time at which the bucket is to be called."""
    if bucket == CLOCK:
        return 1000 if passed is None else passed + 1000
    if passed is not None and _due(own.wake, passed):
        return passed + 1000
    return own.wake


class _Emitted:
    """What a bucket hands out in a window, as the rows that Spark takes."""

    def __init__(self, hosted: Hosted) -> None:
        self._hosted = hosted
        self._rows: list[tuple[str | None, str, int, int, int, bytes]] = []

    def note(self, bucket: int, note: notes.Note) -> None:
        """Tell the operators that follow."""
        self._rows.append((None, NOTES, bucket, 0, NOTE, notes.encode([note])))

    def take(self, bucket: int, outcome: Outcome) -> None:
        """Take up what a window emitted: rows and control tuples by output."""
        rows: dict[str, list[EmittedRows]] = {}
        control: dict[str, list[Placed]] = {}
        for one in outcome.emitted:
            if isinstance(one, EmittedRows):
                rows.setdefault(one.output, []).append(one)
            else:
                control.setdefault(one.output, []).append((one.position, one.control))
        for output, placed in control.items():
            packed = control_row(placed, output)
            self._rows.append((output, TUPLES, bucket, packed.seq, packed.n, packed.payload))
        for output, given in rows.items():
            who = f"operator {self._hosted.name}, output {output},"
            schema = self._hosted.schemas[output]
            batches = [_fitting(batch, schema, who) for batch in _joined(given)]
            self._rows_of(bucket, output, given[0].seq, batches)

    def tell(self, window: Window, outcome: Outcome) -> None:
        """Take up the report of a window, and its counts, for those who asked for them."""
        hosted = self._hosted
        if hosted.report is not None:
            rows = [_told(hosted.name, one) for one in outcome.applied]
            self._tell(window.bucket, hosted.report, rows, APPLIED)
        if hosted.counts is not None:
            rows = list(_counted(hosted.name, window, outcome))
            self._tell(window.bucket, hosted.counts, rows, COUNTED)

    def _tell(
        self, bucket: int, output: str, rows: list[dict[str, Any]], schema: pa.Schema
    ) -> None:
        if rows:
            batch = pa.RecordBatch.from_pylist(rows, schema=schema)
            self._rows_of(bucket, output, sequence(part=bucket), [batch])

    def _rows_of(self, bucket: int, output: str, seq: int, batches: list[pa.RecordBatch]) -> None:
        count = sum(batch.num_rows for batch in batches)
        self._rows.append((output, ROWS, bucket, seq, count, write_ipc(batches)))

    def frames(self) -> Iterator[pd.DataFrame]:
        """Return it for Spark."""
        import pandas as pd

        if not self._rows:
            return iter(())
        return iter([pd.DataFrame(self._rows, columns=EMITTED.names)])


def _joined(given: list[EmittedRows]) -> list[pa.RecordBatch]:
    """Return rows of one output; with their places, if these are not in a row."""
    whole = pa.Table.from_batches([one.batch for one in given])
    if any(low.seq + low.batch.num_rows != high.seq for low, high in pairwise(given)):
        places = [numbers(one.seq, one.batch.num_rows) for one in given]
        whole = whole.append_column(SEQ, pa.chunked_array(places))
    return list(whole.combine_chunks().to_batches())


def _fitting(batch: pa.RecordBatch, schema: pa.Schema, who: str) -> pa.RecordBatch:
    if SEQ not in batch.schema.names:
        return fitting(batch, schema, who)
    rows = fitting(batch.drop_columns([SEQ]), schema, who)
    return rows.append_column(SEQ, batch.column(SEQ))


def _arrived(rows: Iterable[pd.DataFrame]) -> _Arrived:
    arrived = _Arrived()
    for frame in rows:
        for seq, n, payload, time in zip(
            frame["seq"], frame["n"], frame["payload"], frame[NOW], strict=True
        ):
            arrived.time = int(time)
            if n == NOTE:
                arrived.notes += notes.decode(payload)
            elif n:
                arrived.packed.append(Packed(seq=int(seq), n=int(n), payload=bytes(payload)))
    return arrived


def _told(operator: str, one: Applied) -> dict[str, Any]:
    return {
        "operator": operator,
        "bucket": one.bucket,
        "window": one.window,
        "port": one.port,
        "id": one.id,
        "type": one.type,
        "delivery": one.delivery.value,
        "forwarded": one.forwarded,
    }


def _counted(operator: str, window: Window, outcome: Outcome) -> Iterator[dict[str, Any]]:
    """Give the counts of a window that are not all zero."""
    rows = ControlCounts(
        received=outcome.rows_in, delivered=outcome.rows_in, emitted=outcome.rows_out
    )
    told: list[tuple[str | None, ControlCounts]] = [(None, rows)]
    told += [(delivery.value, one) for delivery, one in outcome.control.items()]
    for delivery, one in told:
        if one != ControlCounts():
            yield {
                "operator": operator,
                "bucket": window.bucket,
                "window": window.number,
                "delivery": delivery,
                **{name: getattr(one, name) for name in COUNTS},
            }


def _in_turn(known: int | None, passed: int | None) -> tuple[int | None, int | None]:
    """Return the time that has passed before the rows of a window, and what passes behind them.

    What the operators before tell of their time comes with rows that they held back until then.
    """
    if known == passed or passed is None:
        return passed, None
    return (known, passed) if known is None or known < passed else (passed, None)


def _due(wake: int | None, passed: int | None) -> bool:
    return wake is not None and passed is not None and wake <= passed


def _timer(wake: int) -> int:
    """Return Spark's timer: it fires when the watermark, in milliseconds, has reached it."""
    return max(-(-wake // 1000), 1)


def check_start(hosted: Hosted) -> None:
    """Refuse to run in a query that is one too many.

    Raises:
        OperatorError: it is.
    """
    if hosted.mark and _told_by_spark(REFUSED) == hosted.mark:
        raise OperatorError(
            f"operator {hosted.name} was started in another query already: start what to_df gave"
            " once. This query would run it once more, with a state of its own: write to several"
            " sinks with foreachBatch, or ask for another DataFrame with to_df(again=True)."
        )


def _told_by_spark(name: str) -> str | None:
    from pyspark import TaskContext

    context = TaskContext.get()
    return None if context is None else context.getLocalProperty(name)


def _property(name: str) -> str:
    found = _told_by_spark(name)
    if found is None:
        raise OperatorError(
            f"the task has no {name}: aligned operators run in streaming queries only."
        )
    return str(found)
