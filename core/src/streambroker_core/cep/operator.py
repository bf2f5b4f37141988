"""The operator that runs rules on aligned windows: matches, time-outs, late rows, errors.

In event time rows wait until the watermark has passed them and are then seen in the order of time,
then of ``tie_break``, then of arrival. In processing time they are seen as they come, at the
window's pinned clock. A change of the rules comes as a control tuple and holds from the beginning
of its window, in every bucket.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from streambroker_core.cep.document import Functions
from streambroker_core.cep.engine import Engine, Result
from streambroker_core.cep.history import Event
from streambroker_core.cep.masks import MaskMaker, row_by_row
from streambroker_core.cep.matcher import Match, Timeout
from streambroker_core.cep.refusals import PatternArgumentError, RunError
from streambroker_core.cep.rules import RuleSet
from streambroker_core.cep.view import Rows
from streambroker_core.control.keyed import KeyedState
from streambroker_core.control.operator import Blobs, Changes, Input, Operator, StateError
from streambroker_core.control.tuples import END_OF_TIME, ControlTuple

MATCHES, TIMEOUTS, LATE, ERRORS = "matches", "timeouts", "late", "errors"
SELECTOR = "_selector"
"""Column of rows that were copied for several keys: the names of the key's columns."""
_ARRIVED = "_arrived"

RESULTS = pa.schema(
    [
        ("rule", pa.string()),
        ("version", pa.int64()),
        ("key", pa.string()),
        ("time", pa.timestamp("us")),
        ("noticed", pa.timestamp("us")),
        ("events", pa.string()),
    ]
)
"""Columns of matches and time-outs: ``key`` and ``events`` are JSON, the latter stage → rows.
``noticed`` is when it was known; of a time-out it is its time."""
FAILURES = pa.schema(
    [
        ("rule", pa.string()),
        ("version", pa.int64()),
        ("where", pa.string()),
        ("problem", pa.string()),
    ]
)
"""Columns of errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PatternRules:
    """Payload of the control tuple that brings a set of rules.

    Attributes:
        rules: what `RuleSet.document` returns.
    """

    rules: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleStopped:
    """Payload of the control tuple that says that a rule failed and is off in a bucket."""

    rule: str
    version: int
    problem: str


class PatternOperator(Operator):
    """Runs a set of rules.

    Args:
        key: the stream's key columns; none for one key for all.
        time: ``event`` or ``processing``.
        event_time: the column with the event time, a timestamp or microseconds.
        tie_break: a column by which rows of one time are ordered.
        functions: Python functions that conditions may name.
        maker: makes masks of conditions.
        rules: the set of a bucket that has no state yet.

    Raises:
        PatternArgumentError: event time without a column.
    """

    outputs = (MATCHES, TIMEOUTS, LATE, ERRORS)
    state_version = 1

    def __init__(
        self,
        *,
        key: tuple[str, ...] = (),
        time: Literal["event", "processing"] = "event",
        event_time: str | None = None,
        tie_break: str | None = None,
        functions: Functions | None = None,
        maker: MaskMaker = row_by_row,
        rules: RuleSet | None = None,
    ) -> None:
        if time == "event" and event_time is None:
            raise PatternArgumentError(
                "event time has no column", remedy="name it with event_time, or time='processing'"
            )
        self.inputs = (Input(key=key, event_time=event_time),)
        self._key, self._column, self._tie = key, event_time if time == "event" else None, tie_break
        self._functions, self._maker = functions or {}, maker
        self._rules = rules or RuleSet()
        self._since: dict[tuple[str, int], int] = {}
        self._blobs: Blobs = {}
        self._next = 0
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_changed = False
        self._engine: Engine | None = None
        self._state = KeyedState("runs")

    @property
    def engine(self) -> Engine:
        """The rules at work in this window."""
        if self._engine is None:
            self._engine = Engine(self._state, key=self._key, maker=self._maker)
            self._engine.set_rules(self._rules, self._since, self.window.number)
        return self._engine

    def restore(self, version: int, blobs: Blobs) -> None:
        """Take up the state of the bucket; runs are read when their keys are touched."""
        del version
        self._state = KeyedState("runs", blobs)
        meta = blobs.get("meta")
        if meta is not None:
            try:
                given = json.loads(meta)
            except ValueError as error:
                raise StateError(f"state meta is damaged: {error}.") from error
            self._rules = RuleSet.read(given["rules"], self._functions)
            self._since = {(name, number): window for name, number, window in given["since"]}
            self._next = given["next"]
        waiting = blobs.get("waiting")
        if waiting is not None:
            self._waiting = pa.ipc.open_stream(waiting).read_all().combine_chunks().to_batches()

    def begin_window(self) -> None:
        """Begin a window; in processing time its clock is what time it is."""
        if self._column is None:
            self._tell(self.engine.advance(self.window.time))

    def process_control(self, port: str, control: ControlTuple) -> bool:
        """Take a new set of rules."""
        del port
        if control.type != PatternRules.__name__:
            return False
        engine = self.engine  # with the rules so far, whose runs it has to free or to hand over
        self._rules = RuleSet.read(control.payload["rules"], self._functions)
        engine.set_rules(self._rules, {}, self.window.number)
        return True

    def process(self, port: str, batch: pa.RecordBatch) -> None:
        """Take rows: late ones go to their output, others wait for the watermark."""
        del port
        if self._column is None:
            times = [self.window.time] * batch.num_rows
            self._see(batch, times, [self.window.number] * batch.num_rows)
            return
        times = _microseconds(batch, self._column)
        watermark = self.window.watermark
        if watermark is not None:
            late = pc.less_equal(times, watermark).fill_null(True)
            if pc.any(late).as_py():
                self._late(batch.filter(late))
                batch = batch.filter(pc.invert(late))
        if batch.num_rows:
            arrived = pa.repeat(pa.scalar(self.window.number, pa.int64()), batch.num_rows)
            columns, names = [*batch.columns, arrived], [*batch.schema.names, _ARRIVED]
            self._waiting.append(pa.RecordBatch.from_arrays(columns, names=names))
            self._waiting_changed = True

    def _late(self, rows: pa.RecordBatch) -> None:
        """Hand out late rows, of several copies the first."""
        if SELECTOR in rows.schema.names:
            first = _name(self._rules.selectors(self._key)[0]) if self._rules.rules else ""
            copy = rows.column(rows.schema.get_field_index(SELECTOR))
            rows = rows.filter(pc.equal(copy, first)).drop_columns([SELECTOR])
        if rows.num_rows:
            self.emit(rows, LATE)

    def advance(self, time: int) -> None:
        """Let rules see the rows up to a time in order, then let the time pass."""
        if self._column is None:
            return
        due = self._due(time)
        if due is not None:
            times = _microseconds(due, self._column).to_pylist()
            arrived = due.column(due.schema.get_field_index(_ARRIVED)).to_pylist()
            self._see(due.drop_columns([_ARRIVED]), times, arrived)
        self._tell(self.engine.advance(time))

    def _due(self, time: int) -> pa.RecordBatch | None:
        """Return the rows up to a time, in order; the others go on waiting."""
        if not self._waiting or self._column is None:
            return None
        (rows,) = pa.Table.from_batches(self._waiting).combine_chunks().to_batches()
        passed = pc.less_equal(_microseconds(rows, self._column), time)
        due, left = rows.filter(passed), rows.filter(pc.invert(passed))
        if not due.num_rows:
            return None
        self._waiting, self._waiting_changed = [left] if left.num_rows else [], True
        names = [self._column, *([self._tie] if self._tie else [])]
        order = pa.Table.from_batches([due.select(names)])
        place = pa.array(range(due.num_rows), pa.int64())
        keys = [(name, "ascending") for name in (*names, _ARRIVED)]
        return due.take(pc.sort_indices(order.append_column(_ARRIVED, place), sort_keys=keys))

    def _see(self, batch: pa.RecordBatch, times: list[int], arrived: list[int]) -> None:
        rows = Rows(batch, times, arrived, self._next, self.window.time)
        self._next += batch.num_rows
        if SELECTOR not in batch.schema.names:
            self._tell(self.engine.process(rows))
            return
        copy = batch.column(batch.schema.get_field_index(SELECTOR))
        plain = batch.drop_columns([SELECTOR])
        for columns in self._rules.selectors(self._key):
            chosen = pc.indices_nonzero(pc.equal(copy, _name(columns)))
            places = chosen.to_pylist()
            part = Rows(
                plain.take(chosen),
                [times[each] for each in places],
                [arrived[each] for each in places],
                rows.first,
                rows.clock,
            )
            if places:
                self._tell(self.engine.process(part, columns))

    def _tell(self, results: list[Result]) -> None:
        for output, kind in ((MATCHES, Match), (TIMEOUTS, Timeout)):
            told = [each for each in results if isinstance(each.outcome, kind)]
            if told:
                self.emit(_batch(told), output)
        for rule, version, _, outcome, _ in results:
            if isinstance(outcome, RunError):
                self._stopped(rule, version, outcome)

    def _stopped(self, rule: str, version: int, error: RunError) -> None:
        """Tell that a rule is off, to people and to who changes the rules of all buckets."""
        row = {"rule": rule, "version": version, "where": error.where, "problem": error.problem}
        self.emit(pa.RecordBatch.from_pylist([row], schema=FAILURES), ERRORS)
        self._rules = self._rules.without(rule, version)
        stopped = RuleStopped(rule=rule, version=version, problem=error.problem)
        self.emit_control(stopped, once=f"stopped/{rule}/{version}")

    def snapshot(self) -> Changes:
        """Return the keys that were touched, the rows that wait and, if they changed, the rules."""
        engine = self.engine
        engine.keys.save()
        changes = self._state.changes()
        if self._waiting_changed:
            changes["waiting"] = _ipc(self._waiting) if self._waiting else None
        since = sorted([*name, active.since] for name, active in engine.active.items())
        meta = {"rules": self._rules.document(), "since": since, "next": self._next}
        changes["meta"] = json.dumps(meta, sort_keys=True, separators=(",", ":")).encode()
        return changes

    def wake_at(self) -> int | None:
        """Return the time of the first row that waits, or at which time ends something."""
        dues = [self.engine.keys.first_due()]
        if self._column is not None and self._waiting:
            times = [pc.min(_microseconds(rows, self._column)).as_py() for rows in self._waiting]
            dues += times
        return min((due for due in dues if due is not None), default=None)


def copies(batch: pa.RecordBatch, selectors: list[tuple[str, ...]]) -> pa.RecordBatch:
    """Return one copy of each row for each key, as `PatternOperator` takes them.

    A reader makes them and puts each into the bucket of its key. However many rules there are, rows
    are copied once for each key.
    """
    parts = []
    for columns in selectors:
        name = pa.repeat(pa.scalar(_name(columns)), batch.num_rows)
        names = [*batch.schema.names, SELECTOR]
        parts.append(pa.RecordBatch.from_arrays([*batch.columns, name], names=names))
    (whole,) = pa.Table.from_batches(parts).combine_chunks().to_batches()
    return whole


def _name(columns: tuple[str, ...]) -> str:
    return ",".join(columns)


def _microseconds(batch: pa.RecordBatch, column: str) -> Any:
    times = batch.column(batch.schema.get_field_index(column))
    if pa.types.is_timestamp(times.type):
        times = pc.cast(times, pa.timestamp("us", times.type.tz))
    return pc.cast(times, pa.int64())


def _ipc(batches: list[pa.RecordBatch]) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue())


def _batch(results: list[Result]) -> pa.RecordBatch:
    rows = []
    for rule, version, key, outcome, _ in results:
        assert isinstance(outcome, Match | Timeout)  # noqa: S101 - what `_tell` has chosen
        noticed = outcome.noticed if isinstance(outcome, Match) else outcome.time
        noticed = outcome.time if noticed == END_OF_TIME else noticed
        rows.append(
            {
                "rule": rule,
                "version": version,
                "key": json.dumps(list(key), default=str),
                "time": outcome.time,
                "noticed": noticed,
                "events": events_json(outcome.events),
            }
        )
    return pa.RecordBatch.from_pylist(rows, schema=RESULTS)


def events_json(events: Mapping[str, list[Event]]) -> str:
    """Return the events of a match as JSON: stage → rows, in order."""
    taken = {stage: [dict(each.row) for each in rows] for stage, rows in events.items()}
    return json.dumps(taken, default=str, separators=(",", ":"))
