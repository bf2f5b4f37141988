"""The operator that runs rules on aligned windows: matches, time-outs, late rows, errors.

In event time rows wait until the watermark has passed them. They are then evaluated in the order of
time, then of ``tie_break``, then of arrival, by the rules pinned in the window that releases them.
In processing time they are evaluated as they arrive, at the window's pinned clock; a tick makes a
window without rows. A change of the rules arrives as a control tuple and holds from the beginning
of its window, in every bucket.

State: ``rules`` the set and since when each is in it, ``meta`` what is counted, ``waiting/…`` rows
that wait, ``runs…`` the runs by key.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from streambroker_core.cep.engine.condition_masks import MaskMaker, row_by_row
from streambroker_core.cep.engine.engine import ActiveRule, Engine, Metrics, RuleResult
from streambroker_core.cep.engine.gc_pause import gc_paused
from streambroker_core.cep.engine.key_columns import FIRST, KEY_BYTES, SELECTOR, copy_rows
from streambroker_core.cep.engine.metrics import RuleFailure, RuleMetrics, WindowMetrics
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
from streambroker_core.cep.engine.watermark_buffer import WatermarkBuffer, event_times
from streambroker_core.cep.pattern.errors import PatternArgumentError, RunError
from streambroker_core.cep.pattern.key_selectors import Selector, selector_text
from streambroker_core.cep.rules.document import Functions
from streambroker_core.cep.rules.push_down import filter_covers
from streambroker_core.cep.rules.rule_set import RuleSet
from streambroker_core.control.operators.keyed_state import KeyedState
from streambroker_core.control.operators.operator import (
    Blobs,
    Changes,
    Input,
    Operator,
    OperatorError,
    StateError,
)
from streambroker_core.control.tuples import ControlError, ControlTuple, Delivery, SideTick

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
_MAX_RULE_SETS = 16
_RULE_SETS: dict[tuple[object, ...], tuple[RuleSet, Functions]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class PatternRules:
    """Payload of the control tuple that brings a set of rules; delivered with ``BEGIN``.

    With ``END_WINDOW`` the set holds from the next window on.

    Attributes:
        rules: what `RuleSet.document` returns.
        selectors: keys for which the query copies rows, for who sends the next set.
        relevant: filter that lets pass all rows that these rules have to see, for who sends rows;
            None for every row.
        whole: why every row has to pass.
        ticks: the query has a source of ticks, for who makes the query when it starts again.
    """

    rules: dict[str, Any]
    selectors: list[list[str]] = field(default_factory=list)
    relevant: str | None = None
    whole: str = ""
    ticks: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleStopped:
    """Payload of the control tuple that says that a rule failed, and is off in some bucket.

    However many buckets it failed in, it is one tuple; why it failed is told as a row, by each.
    """

    rule: str
    version: int


class PatternOperator(Operator):
    """Runs a set of rules.

    Args:
        key: the stream's key columns; none for one key for all, which needs copies where there are
            several buckets.
        time: ``event`` or ``processing``.
        event_time: the column with the event time, a timestamp or microseconds.
        tie_break: a column by which rows of one time are ordered.
        functions: Python functions that conditions may name.
        match_functions: functions that make rows of matches, by the names that rules use; each has
            an output of its name.
        maker: makes masks of conditions.
        rules: the set of a bucket that has no state yet.
        fixed: ``rules`` is the set of every bucket; one whose state has others takes these up.
        relevant: the filter that rows have passed, with ``fixed``; None for every row.
        copied: rows come as `copy_rows` makes them, so that rules may have keys of their own.
        timeouts: timed-out partial matches are told. Without, there is no such output, and only a
            function that asks for them gets them.
        watch: is told at the end of a window what the rules did in it.
        clock: nanoseconds, for what is told to ``watch`` alone.

    Raises:
        PatternArgumentError: event time without a column, or a function has a name that cannot be.
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
        timeouts: bool = True,
        watch: Callable[[WindowMetrics], None] | None = None,
        clock: Callable[[], int] = int,
    ) -> None:
        if time == "event" and event_time is None:
            raise PatternArgumentError(
                "event time has no column", remedy="name it with event_time, or time='processing'"
            )
        self.inputs = (Input(key=(KEY_BYTES,) if copied else key, event_time=event_time),)
        self._key, self._copied = key, copied
        self._column, self._tie = event_time if time == "event" else None, tie_break
        self._functions, self._maker = functions or {}, maker
        self._writer = OutputWriter(match_functions or {}, timeouts=timeouts)
        self.outputs = self._writer.outputs
        self._rules, self._rules_changed = rules or RuleSet(), True
        self._fixed, self._relevant = self._rules if fixed else None, relevant
        self._watch, self._clock = watch, clock
        self._alive: dict[tuple[str, int], int] = {}
        self._failures: list[RuleFailure] = []
        self._since: dict[tuple[str, int], int] = {}
        self._visible_from: dict[tuple[str, int], int] = {}
        self._filters: list[tuple[int, str | None]] = [] if relevant is None else [(0, relevant)]
        self._next_seq = 0
        self._meta: bytes | None = None
        self._buffer = WatermarkBuffer(self._column or "", {}, [])
        self._engine: Engine | None = None
        self._state = KeyedState("runs")

    @property
    def engine(self) -> Engine:
        """The rules at work in this window."""
        if self._engine is None:
            self._engine = Engine(
                self._state,
                key=self._key,
                maker=self._maker,
                clock=self._clock,
                reports_timeouts=self._writer.reports_timeouts,
            )
            self._engine.set_rules(
                self._rules,
                self.window.number,
                since=self._since,
                visible_from=lambda active: self._visible_from.get(active.name, 0),
            )
            for name, active in self._engine.active.items():
                active.metrics.alive = self._alive.get(name, 0)
        return self._engine

    def restore(self, version: int, blobs: Blobs) -> None:
        """Take up the state of the bucket; runs are read when their keys are touched."""
        del version
        self._state = KeyedState("runs", blobs)
        self._meta, rules = blobs.get("meta"), blobs.get("rules")
        if self._meta is None or rules is None:
            raise StateError("state of patterns is missing: the store has lost a blob.")
        try:
            told, given = json.loads(self._meta), json.loads(rules)
            self._next_seq = told["next"]
            self._alive = {(name, number): runs for name, number, runs in told["alive"]}
            self._buffer = WatermarkBuffer(self._column or "", blobs, told["waiting"])
            self._since = {(name, number): window for name, number, window in given["since"]}
            sees = given.get("sees", given["since"])  # by earlier releases none saw older rows
            self._visible_from = {(name, number): window for name, number, window in sees}
            self._filters = [(window, text) for window, text in given.get("filters", ())]
            self._rules = self._read_rules(given["rules"])
        except (ValueError, KeyError, TypeError) as error:
            raise StateError(f"state of patterns is damaged: {error!r}.") from error
        self._rules_changed = False

    def _read_rules(self, text: str) -> RuleSet:
        """Return a set of rules; for one text the same object, so that it is made ready once."""
        mark = (text, *sorted((name, id(each)) for name, each in self._functions.items()))
        known = _RULE_SETS.get(mark)
        if known is None:
            if len(_RULE_SETS) >= _MAX_RULE_SETS:
                _RULE_SETS.clear()
            functions = dict(self._functions)  # kept, so that their identities stay theirs
            known = _RULE_SETS[mark] = RuleSet.read(json.loads(text), functions), functions
        return known[0]

    def begin_window(self) -> None:
        """Begin a window; in processing time its clock is what time it is."""
        if self._fixed is not None and not _is_same_set(self._fixed, self._rules):
            if any((rule.id, rule.version) in self.engine.active for rule in self._fixed):
                self.engine.set_rules(RuleSet(), self.window.number)  # others of that name
            self._set_rules(self._fixed, self.window.number, self._relevant)
        self._check_keys()
        if self._column is None:
            self._advance_engine(self.window.time)

    def process_control(self, port: str, control: ControlTuple) -> bool:
        """Take a new set of rules; a tick has done what it is for when the window began.

        Raises:
            ControlError: it is to hold from within a window.
        """
        del port
        if control.type != PatternRules.__name__:
            return control.type == SideTick.__name__
        if control.delivery not in (Delivery.BEGIN, Delivery.END_WINDOW):
            raise ControlError(
                f"rules in control tuple {control.id} are delivered with {control.delivery.value}:"
                " a set holds for whole windows. Deliver it with BEGIN; a rule that is to hold from"
                " a time on has `scheduled`."
            )
        later = control.delivery is Delivery.END_WINDOW
        given = control.payload
        rules = self._read_rules(_to_json(given["rules"]))
        self._set_rules(rules, self.window.number + later, given.get("relevant"))
        self._check_keys()
        if self._column is None:
            self._advance_engine(self.window.time)
        return True

    def _set_rules(self, rules: RuleSet, since: int, relevant: str | None) -> None:
        engine = self.engine  # with the rules so far, whose runs it has to free or to hand over
        self._rules, self._rules_changed = rules, True
        filters = [each for each in self._filters if each[0] != since]
        if relevant != (filters[-1][1] if filters else None):
            filters.append((since, relevant))
        oldest = self._buffer.oldest_window()
        if oldest is None:
            oldest = since
        old = sum(1 for window, _ in filters[1:] if window <= oldest)
        self._filters = filters = filters[old:]
        engine.set_rules(
            rules, since, visible_from=lambda active: _first_visible_window(active, filters, since)
        )

    def _check_keys(self) -> None:
        """Refuse rules whose rows are in other buckets."""
        if self._copied or self.window.buckets == 1:
            return
        for selector in self._rules.selectors(self._key):
            if not selector or selector != self._key:
                told = f"the key {', '.join(selector)}" if selector else "one key for all rows"
                raise OperatorError(
                    f"a rule has {told}, and rows are spread over {self.window.buckets} buckets by"
                    f" {', '.join(self._key) or 'nothing'}: make copies of the rows for each key,"
                    " and say copied=True."
                )

    @gc_paused
    def process(self, port: str, batch: pa.RecordBatch) -> None:
        """Take rows: late ones go to their output, others wait for the watermark."""
        if self._copied and SELECTOR not in batch.schema.names:
            raise OperatorError(f"rows of input {port} are no copies made for the keys of rules.")
        count, window = batch.num_rows, self.window
        if self._column is None:
            now = pa.repeat(pa.scalar(window.time, pa.int64()), count)
            self._process_rows(batch, now, pa.repeat(pa.scalar(window.number, pa.int64()), count))
            return
        times = event_times(batch, self._column)
        if window.watermark is None:
            late = pc.is_null(times)
        else:
            late = pc.less_equal(times, window.watermark).fill_null(True)
        if pc.any(late).as_py():
            self._emit_late(batch.filter(late))
            batch = batch.filter(pc.invert(late))
        if batch.num_rows:
            self._buffer.add(batch, window.number)

    def _emit_late(self, rows: pa.RecordBatch) -> None:
        """Hand out late rows, of several copies the first."""
        if self._copied:
            rows = rows.filter(rows.column(FIRST)).drop_columns(list(_COPY_COLUMNS))
        if rows.num_rows:
            self.emit(rows, LATE)

    @gc_paused
    def advance(self, time: int) -> None:
        """Let rules see the rows up to a time in order, then let the time pass."""
        if self._column is None:
            return
        due = self._buffer.pop_until(time)
        if due is not None:
            rows, arrived = due
            times, names = event_times(rows, self._column), [self._column]
            if self._tie is not None or not _is_ascending(times):
                names += [self._tie] if self._tie not in (None, self._column) else []
                keys = [(name, "ascending") for name in names]
                order = pc.sort_indices(rows.select(names), sort_keys=keys)
                rows, times, arrived = rows.take(order), times.take(order), arrived.take(order)
            self._process_until(time, rows, times, arrived)
        self._advance_engine(time)

    def _process_until(
        self, time: int, rows: pa.RecordBatch, times: pa.Array, arrival_windows: pa.Array
    ) -> None:
        """See rows in order; a version takes over from another behind all rows before its time."""
        seen = 0
        for at in self.engine.handover_times(time):
            until = pc.sum(pc.less(times, at)).as_py()
            if until > seen:
                part = slice(seen, until)
                self._process_rows(rows[part], times[part], arrival_windows[part])
                seen = until
            self._emit_results(self.engine.hand_over(at))
        if seen < rows.num_rows:
            self._process_rows(rows[seen:], times[seen:], arrival_windows[seen:])

    def _advance_engine(self, time: int) -> None:
        """Let time pass, and forget versions that it has ended."""
        self._emit_results(self.engine.advance(time))
        settled = self._rules.without_expired(time)
        if settled is not self._rules:
            self._rules, self._rules_changed = settled, True

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
        copy, places = batch.column(SELECTOR), batch.column(KEY_BYTES)
        plain = batch.drop_columns(list(_COPY_COLUMNS))
        whole = OrderedRows(plain, times, arrival_windows, seqs, clock, key_bytes=places)
        for selector in self._rules.selectors(self._key):
            rows = whole.filter(pc.equal(copy, selector_text(selector)))
            if rows.batch.num_rows:
                self._emit_results(self.engine.process(rows, selector))

    def _emit_results(self, results: list[RuleResult]) -> None:
        if not results:
            return
        told = self._writer.write(results, self._rules.rule)
        for output, batch in told.batches:
            self.emit(batch, output)
        failures = [each for each in results if isinstance(each.outcome, RunError)]
        for rule, error in told.failures:
            if (rule.id, rule.version) in self.engine.active:
                failures.append(self.engine.disable_rule(rule, error))
        for each in failures:
            if isinstance(each.outcome, RunError):
                self._report_failure(each.rule, each.version, each.outcome)

    def _report_failure(self, rule: str, version: int, error: RunError) -> None:
        """Tell that a rule is off, to people and to who changes the rules of all buckets."""
        told = RuleFailure(rule=rule, version=version, where=error.where, problem=error.problem)
        self._failures.append(told)
        self.emit(pa.RecordBatch.from_pylist([asdict(told)], schema=FAILURES), ERRORS)
        self._rules, self._rules_changed = self._rules.with_disabled(rule, version), True
        name = rule.replace("%", "%25").replace("/", "%2F")
        stopped = RuleStopped(rule=rule, version=version)
        self.emit_control(stopped, once=f"stopped {version} {name}")

    @gc_paused
    def snapshot(self) -> Changes:
        """Return the keys and waiting rows that were touched and, if they changed, the rules."""
        engine = self.engine
        engine.keys.save()
        if self._watch is not None:
            self._watch(self._window_metrics())
        changes = {**self._state.changes(), **self._buffer.changes()}
        if self._rules_changed:
            since = sorted([*name, active.since] for name, active in engine.active.items())
            sees = sorted(
                [*name, one.visible_from] for name, one in engine.active.items() if one.visible_from
            )
            changes["rules"] = _to_json(
                {
                    "rules": _to_json(self._rules.document()),
                    "since": since,
                    "sees": sees,
                    **({"filters": self._filters} if self._filters else {}),
                }
            ).encode()
        runs = {name: one.metrics.alive for name, one in engine.active.items()}
        alive = sorted([*name, count] for name, count in runs.items() if count)
        kept = {"next": self._next_seq, "waiting": self._buffer.dump(), "alive": alive}
        meta = _to_json(kept).encode()
        if meta != self._meta:
            changes["meta"] = meta
        return changes

    def _window_metrics(self) -> WindowMetrics:
        rules = tuple(
            RuleMetrics(rule=name[0], version=name[1], since=active.since, **asdict(active.metrics))
            for name, active in sorted(self.engine.active.items())
            if self._rules_changed or active.metrics != Metrics(alive=self._alive.get(name, 0))
        )
        return WindowMetrics(
            bucket=self.window.bucket,
            window=self.window.number,
            rules=rules,
            complete=self._rules_changed,
            stopped=tuple(self._failures),
            waiting=self._buffer.count(),
            first=self._buffer.earliest_time(),
            watermark=None if self._column is None else self.window.watermark,
            due=self.timeout_at(),
        )

    def wake_at(self) -> int | None:
        """Return the time of the first row that waits, or at which time ends something.

        At the time of a scheduled version the runs of the one before it end, or are handed over.
        """
        if self._column is None:
            return None
        engine = self.engine
        dues = (engine.keys.next_due(), engine.first_replaced(), self._buffer.earliest_time())
        return min((due for due in dues if due is not None), default=None)

    def timeout_at(self) -> int | None:
        """Return the pinned time at which something ends, in processing time; None for never."""
        return None if self._column is not None else self.engine.keys.next_due()

    def held_at(self) -> int | None:
        """Return the earliest time of a match that waits for runs that began before it."""
        return None if self._column is None else self.engine.keys.first_held()


def _first_visible_window(
    active: ActiveRule, filters: list[tuple[int, str | None]], since: int
) -> int:
    """Return the first window from which on all rows were sent that a new rule needs.

    Args:
        active: the rule.
        filters: what rows had to pass to be sent, each with the first window of which that is so.
        since: the window from which on it is in the set; its rows are sent for it.
    """
    first = 0
    for place, (window, text) in enumerate(filters):
        if window < since and not filter_covers(text, active.automaton):
            first = filters[place + 1][0] if place + 1 < len(filters) else since
    return min(first, since)


def _is_same_set(left: RuleSet, right: RuleSet) -> bool:
    """Tell whether two sets have equal rules, whichever of them are off."""
    return bool(left.document()["rules"] == right.document()["rules"])


def _to_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _is_ascending(times: pa.Array) -> bool:
    """Tell whether times are in order already."""
    falls = pc.greater(times.slice(0, max(0, len(times) - 1)), times.slice(1))
    return not pc.any(falls).as_py()
