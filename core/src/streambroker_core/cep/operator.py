"""Operator that runs rules on aligned windows: matches, time-outs, late rows and errors.

- In event time, rows wait until the watermark passes them. Rules process them in the order of time,
  then ``tie_break``, then arrival. The rules are those of the window that releases the rows.
- In processing time, rules process rows on arrival, at the window's pinned clock. A tick creates a
  window without rows.
- A change of the rules arrives as a control tuple. It holds from the start of its window, in every
  bucket.

State: ``rules`` has the set and the first window of each rule, ``meta`` the counters,
``waiting/…`` the rows that wait, ``runs…`` the runs by key.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal

import pyarrow as pa
import pyarrow.compute as pc

from streambroker_core.cep.engine.active_rule import RuleResult
from streambroker_core.cep.engine.bucket_rules import BucketRules, to_json
from streambroker_core.cep.engine.condition_masks import MaskMaker, row_by_row
from streambroker_core.cep.engine.engine import Engine
from streambroker_core.cep.engine.gc_pause import gc_paused
from streambroker_core.cep.engine.key_columns import FIRST, KEY_BYTES, SELECTOR, copy_rows
from streambroker_core.cep.engine.metrics import RuleFailure, WindowMetrics
from streambroker_core.cep.engine.outputs import (
    ERRORS,
    FAILURES,
    LATE,
    MATCHES,
    OUTPUTS,
    RESULTS,
    TIMEOUTS,
    MatchFunction,
    OutputWriter,
)
from streambroker_core.cep.engine.row_view import OrderedRows
from streambroker_core.cep.engine.watermark_buffer import WatermarkBuffer
from streambroker_core.cep.pattern.errors import PatternArgumentError, RunError
from streambroker_core.cep.pattern.key_selectors import Selector, selector_text
from streambroker_core.cep.pattern.rule import PatternProcessor
from streambroker_core.cep.rules.document import Functions
from streambroker_core.cep.rules.rule_set import RuleSet
from streambroker_core.control.operators.dead_letters import DeadLetters
from streambroker_core.control.operators.dead_letters import to_json as to_row_json
from streambroker_core.control.operators.keyed_state import KeyedState
from streambroker_core.control.operators.operator import (
    Blobs,
    Changes,
    Input,
    Operator,
    OperatorError,
    StateError,
)
from streambroker_core.control.tuples import ControlTuple, Delivery, SideTick, UndeliverableError
from streambroker_core.control.tuples.payloads import Payloads
from streambroker_core.errors import StreambrokerError

__all__ = [
    "ERRORS",
    "FAILURES",
    "LATE",
    "MATCHES",
    "RESULTS",
    "TIMEOUTS",
    "MatchFunction",
    "PatternOperator",
    "PatternRules",
    "RuleStopped",
    "copy_rows",
]

_COPY_COLUMNS = (SELECTOR, KEY_BYTES, FIRST)


@dataclass(frozen=True, slots=True, kw_only=True)
class PatternRules:
    """Payload of the control tuple with a set of rules; delivered with ``BEGIN``.

    With ``END_WINDOW`` the set holds from the next window on.

    Attributes:
        rules: result of `RuleSet.document`.
        selectors: keys for which the query copies rows; read by the sender of the next set.
        relevant: filter for exporters that passes all rows that these rules need; None for all
            rows.
        whole: reason why there is no filter.
        ticks: the query has a source of ticks; read when the query restarts.
        output: form of the query's matches, ``typed`` or ``json``; read when the query restarts.
    """

    delivery: ClassVar[Delivery] = Delivery.BEGIN
    rules: dict[str, Any]
    selectors: list[list[str]] = field(default_factory=list)
    relevant: str | None = None
    whole: str = ""
    ticks: bool = False
    output: str = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleStopped:
    """Payload of the control tuple that reports a failed rule, which is off in some bucket.

    One tuple covers all buckets in which it failed. Each bucket reports its error as a row.
    """

    rule: str
    version: int


_PAYLOADS = Payloads((PatternRules,))


class PatternOperator(Operator):
    """Runs a set of rules.

    Args:
        key: key columns of the stream. Empty for a single key, which needs copies if there are
            several buckets.
        event_time: column with the event time, a timestamp or microseconds.
        tie_break: column that orders rows of equal time.
        functions: Python functions that conditions may name.
        match_functions: functions that create rows of matches, by the name that rules use; each has
            an output of its name.
        rules: initial set of a bucket without state.
        fixed: `rules` is the set of every bucket; it replaces another set in a restored state.
        relevant: with `fixed`, the filter that rows have passed; None for all rows.
        copied: rows are copies from `copy_rows`, so rules may have their own keys.
        results: columns of matches and time-outs, from `typed_results`; None for JSON. Fixed for a
            state.
        timeouts: report timed-out partial matches. If False, they have no output, and only
            functions that handle them receive them.
        watch: called at the end of a window with the metrics of its rules.
        clock: returns nanoseconds, only for these metrics.

    Raises:
        PatternArgumentError: event time has no column, or a function has an invalid name.
    """

    outputs: tuple[str, ...] = OUTPUTS
    state_version = 1

    def __init__(
        self,
        *,
        key: Selector = (),
        time: Literal["event", "processing"] = "event",
        event_time: str | None = None,
        tie_break: str | None = None,
        functions: Functions | None = None,
        match_functions: Mapping[str, MatchFunction] | None = None,
        maker: MaskMaker = row_by_row,
        rules: RuleSet | None = None,
        fixed: bool = False,
        relevant: str | None = None,
        copied: bool = False,
        results: pa.Schema | None = None,
        timeouts: bool = True,
        watch: Callable[[WindowMetrics], None] | None = None,
        clock: Callable[[], int] = int,
    ) -> None:
        if time == "event" and event_time is None:
            raise PatternArgumentError(
                "event time has no column", remedy="name it with event_time, or time='processing'"
            )
        self.inputs = (Input(key=(KEY_BYTES,) if copied else key, event_time=event_time),)
        self._copied, self._column = copied, event_time if time == "event" else None
        self._writer = OutputWriter(
            match_functions or {}, timeouts=timeouts, schema=results, key=key
        )
        self.outputs = self._writer.outputs
        self._rules = BucketRules(
            rules, key=key, functions=functions, fixed=fixed, relevant=relevant
        )
        self._watch = watch
        self._alive: dict[tuple[str, int], int] = {}
        self._failures: list[RuleFailure] = []
        self._next_seq = 0
        self._meta: bytes | None = None
        self._buffer = WatermarkBuffer(self._column or "", tie_break=tie_break)
        self._make_engine = partial(
            Engine,
            key=key,
            maker=maker,
            clock=clock,
            reports_timeouts=self._writer.reports_timeouts,
        )
        self._engine: Engine | None = None
        self._state = KeyedState("runs")

    @property
    def engine(self) -> Engine:
        """Engine with the rules in force."""
        if self._engine is None:
            sets_aside = self._dead_letters() is not None
            self._engine = self._make_engine(self._state, sets_aside=sets_aside)
            self._rules.start(self._engine, self.window.number)
            for name, active in self._engine.active.items():
                active.metrics.alive = self._alive.get(name, 0)
        return self._engine

    def restore(self, version: int, blobs: Blobs) -> None:
        """Restore the state of the bucket; runs are read when their keys are first used."""
        del version
        self._state = KeyedState("runs", blobs)
        self._meta, rules = blobs.get("meta"), blobs.get("rules")
        if self._meta is None or rules is None:
            raise StateError("state of patterns is missing: the store has lost a blob.")
        try:
            meta = json.loads(self._meta)
            self._next_seq = meta["next"]
            self._alive = {(name, number): runs for name, number, runs in meta["alive"]}
            self._buffer.restore(blobs, meta["waiting"])
            self._rules.restore(rules)
        except (ValueError, KeyError, TypeError) as error:
            raise StateError(f"state of patterns is damaged: {error!r}.") from error

    def begin_window(self) -> None:
        """Begin a window; in processing time, time advances to its pinned clock.

        Raises:
            OperatorError: the state began with another form of matches.
        """
        began = self._writer.form if self._meta is None else _form_in(json.loads(self._meta))
        if began != self._writer.form:
            raise OperatorError(
                f"the checkpoint began with matches as {began}, and keeps that form: pass"
                f' output="{began}", or begin another checkpoint.'
            )
        self._rules.apply_fixed(self.engine, self.window.number, self._buffer.oldest_window())
        self._begin_rules()

    def process_control(self, port: str, control: ControlTuple) -> bool:
        """Apply a new set of rules. A tick needs no action: it took effect when the window began.

        Raises:
            UndeliverableError: it is no set of rules, its keys do not fit the rows, or it would
                hold from within a window.
        """
        del port
        if control.type != PatternRules.__name__:
            return control.type == SideTick.__name__
        if control.delivery not in (Delivery.BEGIN, Delivery.END_WINDOW):
            raise UndeliverableError(
                f"rules in control tuple {control.id} are delivered with"
                f" {control.delivery.value}: a rule set applies to whole windows. Deliver it with"
                " BEGIN; use `scheduled` for a rule that applies from a time on."
            )
        since = self.window.number + (control.delivery is Delivery.END_WINDOW)
        oldest = self._buffer.oldest_window()
        rules, relevant = _read_sent(control, self._rules.read, self._check_keys)
        self._rules.apply_sent(self.engine, rules, relevant, since, oldest)
        self._begin_rules()
        return True

    def _check_keys(self, rules: RuleSet) -> None:
        if not self._copied and self.window.buckets > 1:
            self._rules.check_keys(rules, self.window.buckets)

    def _begin_rules(self) -> None:
        """Check the rules and, in processing time, advance time to the window's pinned clock."""
        self._check_keys(self._rules.current)
        if self._column is None:
            self._advance_engine(self.window.time)

    @gc_paused
    def process(self, port: str, batch: pa.RecordBatch) -> None:
        """Process rows in processing time; in event time, emit late rows and buffer the others."""
        if self._copied and SELECTOR not in batch.schema.names:
            raise OperatorError(f"rows of input {port} are not copied for the keys of rules.")
        count, window = batch.num_rows, self.window
        if self._column is None:
            now = pa.repeat(pa.scalar(window.time, pa.int64()), count)
            self._process_rows(batch, now, pa.repeat(pa.scalar(window.number, pa.int64()), count))
            return
        late = self._buffer.add(batch, window.number, window.watermark)
        if late is not None and self._copied:  # of several copies only the first
            late = late.filter(late.column(FIRST)).drop_columns(list(_COPY_COLUMNS))
        if late is not None and late.num_rows:
            self.emit(late, LATE)

    @gc_paused
    def advance(self, time: int) -> None:
        """Process the rows up to a time in order, then advance time."""
        if self._column is None:
            return
        released = self._buffer.pop_until(time)
        if released is not None:
            self._process_until(time, *released)
        self._advance_engine(time)

    def _process_until(
        self, time: int, rows: pa.RecordBatch, times: pa.Array, arrival_windows: pa.Array
    ) -> None:
        """Process rows in order; a new version takes over after all rows before its start time."""
        done = 0
        for at in self.engine.handover_times(time):
            end = pc.sum(pc.less(times, at)).as_py()
            if end > done:
                part = slice(done, end)
                self._process_rows(rows[part], times[part], arrival_windows[part])
                done = end
            self._emit_results(self.engine.hand_over(at))
        if done < rows.num_rows:
            self._process_rows(rows[done:], times[done:], arrival_windows[done:])

    def _advance_engine(self, time: int) -> None:
        """Advance time, and drop the versions that it has ended."""
        self._emit_results(self.engine.advance(time))
        self._rules.update(self._rules.current.without_expired(time))

    def _process_rows(
        self, batch: pa.RecordBatch, times: pa.Array, arrival_windows: pa.Array
    ) -> None:
        seqs = pa.arange(self._next_seq, self._next_seq + batch.num_rows)
        self._next_seq += batch.num_rows
        clock = self.window.time
        if not self._copied:
            self._emit_results(
                self.engine.process(OrderedRows(batch, times, arrival_windows, seqs, clock))
            )
            return
        selectors, key_bytes = batch.column(SELECTOR), batch.column(KEY_BYTES)
        plain = batch.drop_columns(list(_COPY_COLUMNS))
        all_rows = OrderedRows(plain, times, arrival_windows, seqs, clock, key_bytes=key_bytes)
        for selector in self._rules.selectors():
            rows = all_rows.filter(pc.equal(selectors, selector_text(selector)))
            if rows.batch.num_rows:
                self._emit_results(self.engine.process(rows, selector))

    def _emit_results(self, results: list[RuleResult]) -> None:
        if not results:
            return
        letters = self._dead_letters()
        written = self._writer.write(
            results, self._rules.current.rule, sets_aside=letters is not None
        )
        for output, batch in written.batches:
            self.emit(batch, output)
        if letters is not None:
            _add_letters(letters, self.inputs[0].name, results, written.failures)
            return
        failed = [*results]
        for rule, error in written.failures:
            if (rule.id, rule.version) in self.engine.active:
                failed.append(self.engine.disable_rule(rule, error))
        for each in failed:
            if isinstance(each.outcome, RunError):
                self._report_failure(each.rule, each.version, each.outcome)

    def _report_failure(self, rule: str, version: int, error: RunError) -> None:
        """Report a failed rule as a row, and as a control tuple for the sender of rules."""
        failure = RuleFailure(rule=rule, version=version, where=error.where, problem=error.problem)
        self._failures.append(failure)
        self.emit(pa.RecordBatch.from_pylist([asdict(failure)], schema=FAILURES), ERRORS)
        self._rules.update(self._rules.current.with_disabled(rule, version))
        name = rule.replace("%", "%25").replace("/", "%2F")
        stopped = RuleStopped(rule=rule, version=version)
        self.emit_control(stopped, once=f"stopped {version} {name}")

    @gc_paused
    def snapshot(self) -> Changes:
        """Return the changed keys and waiting rows and, if they changed, the rules."""
        engine = self.engine
        engine.keys.save()
        if self._watch is not None:
            self._watch(self._window_metrics())
        changes = {**self._state.changes(), **self._buffer.changes()}
        if self._rules.changed:
            changes["rules"] = self._rules.dump(engine)
        runs = {name: one.metrics.alive for name, one in engine.active.items()}
        alive = sorted([*name, count] for name, count in runs.items() if count)
        counters = {"next": self._next_seq, "waiting": self._buffer.dump(), "alive": alive}
        if self._writer.form != _form_in(counters):
            counters["output"] = self._writer.form
        meta = to_json(counters).encode()
        if meta != self._meta:
            changes["meta"] = meta
        return changes

    def _window_metrics(self) -> WindowMetrics:
        return WindowMetrics(
            bucket=self.window.bucket,
            window=self.window.number,
            rules=self.engine.rule_metrics(None if self._rules.changed else self._alive),
            complete=self._rules.changed,
            stopped=tuple(self._failures),
            waiting=self._buffer.count(),
            first=self._buffer.earliest_time(),
            watermark=None if self._column is None else self.window.watermark,
            due=self.timeout_at(),
        )

    def wake_at(self) -> int | None:
        """Return the earliest time of a waiting row, a due run or a scheduled version.

        At the time of a scheduled version the runs of the version before it end or are handed over.
        Returns None in processing time.
        """
        if self._column is None:
            return None
        engine = self.engine
        dues = (engine.keys.next_due(), engine.first_replaced(), self._buffer.earliest_time())
        return min((due for due in dues if due is not None), default=None)

    def timeout_at(self) -> int | None:
        """Return the pinned time at which the next run ends; None for never, or in event time."""
        return None if self._column is not None else self.engine.keys.next_due()

    def held_at(self) -> int | None:
        """Return the earliest time of a match that waits for earlier runs, in event time."""
        return None if self._column is None else self.engine.keys.first_held()


def _read_sent(
    control: ControlTuple,
    read: Callable[[Mapping[str, Any]], RuleSet],
    check_keys: Callable[[RuleSet], None],
) -> tuple[RuleSet, str | None]:
    """Return the rules of a control tuple and their filter; raise UndeliverableError if wrong."""
    try:
        sent: PatternRules = _PAYLOADS.decode(control)
        rules = read(sent.rules)
        check_keys(rules)
    except (StreambrokerError, KeyError, TypeError, ValueError) as error:
        why = str(error) if isinstance(error, StreambrokerError) else repr(error)
        raise UndeliverableError(
            f"the rules of control tuple {control.id} are refused: {why.removesuffix('.')}."
        ) from error
    return rules, sent.relevant


def _add_letters(
    letters: DeadLetters,
    port: str,
    results: list[RuleResult],
    failures: list[tuple[PatternProcessor, RunError]],
) -> None:
    """Make dead letters of events on which rules failed, and of matches whose function failed."""
    errors = [(one[:2], one.outcome) for one in results if isinstance(one.outcome, RunError)]
    errors += [((rule.id, rule.version), error) for rule, error in failures]
    for rule, error in errors:
        letters.add(
            "rule_error",
            port,
            error.code,
            f"{error.where}: {error.problem}",
            row=None if error.row is None else to_row_json(error.row),
            key=error.key,
            event_time=error.time,
            rule=rule,
        )


def _form_in(meta: Mapping[str, Any]) -> str:
    """Return the form of matches in a state's counters; before there were two, it was JSON."""
    form: str = meta.get("output", "json")
    return form
