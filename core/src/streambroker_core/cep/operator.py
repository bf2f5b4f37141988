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
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from streambroker_core.cep.engine.active_rule import ActiveRule, Metrics, RuleResult
from streambroker_core.cep.engine.condition_masks import MaskMaker, row_by_row
from streambroker_core.cep.engine.engine import Engine
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
    """Payload of the control tuple with a set of rules; delivered with ``BEGIN``.

    With ``END_WINDOW`` the set holds from the next window on.

    Attributes:
        rules: result of `RuleSet.document`.
        selectors: keys for which the query copies rows; read by the sender of the next set.
        relevant: filter for exporters that passes all rows that these rules need; None for all
            rows.
        whole: reason why there is no filter.
        ticks: the query has a source of ticks; read when the query restarts.
    """

    rules: dict[str, Any]
    selectors: list[list[str]] = field(default_factory=list)
    relevant: str | None = None
    whole: str = ""
    ticks: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleStopped:
    """Payload of the control tuple that reports a failed rule, which is off in some bucket.

    One tuple covers all buckets in which it failed. Each bucket reports its error as a row.
    """

    rule: str
    version: int


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
        """Engine with the rules in force."""
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
        """Restore the state of the bucket; runs are read when their keys are first used."""
        del version
        self._state = KeyedState("runs", blobs)
        self._meta, rules = blobs.get("meta"), blobs.get("rules")
        if self._meta is None or rules is None:
            raise StateError("state of patterns is missing: the store has lost a blob.")
        try:
            meta, stored = json.loads(self._meta), json.loads(rules)
            self._next_seq = meta["next"]
            self._alive = {(name, number): runs for name, number, runs in meta["alive"]}
            self._buffer = WatermarkBuffer(self._column or "", blobs, meta["waiting"])
            self._since = {(name, number): window for name, number, window in stored["since"]}
            visible_from = stored.get("sees", stored["since"])  # earlier releases hid older rows
            self._visible_from = {(name, number): window for name, number, window in visible_from}
            self._filters = [(window, text) for window, text in stored.get("filters", ())]
            self._rules = self._read_rules(stored["rules"])
        except (ValueError, KeyError, TypeError) as error:
            raise StateError(f"state of patterns is damaged: {error!r}.") from error
        self._rules_changed = False

    def _read_rules(self, text: str) -> RuleSet:
        """Return a set of rules; equal texts share one object, so rules are compiled once."""
        cache_key = (text, *sorted((name, id(each)) for name, each in self._functions.items()))
        cached = _RULE_SETS.get(cache_key)
        if cached is None:
            if len(_RULE_SETS) >= _MAX_RULE_SETS:
                _RULE_SETS.clear()
            functions = dict(self._functions)  # kept alive: the key has their ids
            cached = _RULE_SETS[cache_key] = RuleSet.read(json.loads(text), functions), functions
        return cached[0]

    def begin_window(self) -> None:
        """Begin a window; in processing time, time advances to its pinned clock."""
        if self._fixed is not None and not _is_same_set(self._fixed, self._rules):
            if any((rule.id, rule.version) in self.engine.active for rule in self._fixed):
                self.engine.set_rules(RuleSet(), self.window.number)  # equal ids, other content
            self._set_rules(self._fixed, self.window.number, self._relevant)
        self._check_keys()
        if self._column is None:
            self._advance_engine(self.window.time)

    def process_control(self, port: str, control: ControlTuple) -> bool:
        """Apply a new set of rules. A tick needs no action: it took effect when the window began.

        Raises:
            ControlError: the set would hold from within a window.
        """
        del port
        if control.type != PatternRules.__name__:
            return control.type == SideTick.__name__
        if control.delivery not in (Delivery.BEGIN, Delivery.END_WINDOW):
            raise ControlError(
                f"rules in control tuple {control.id} are delivered with"
                f" {control.delivery.value}: a rule set applies to whole windows. Deliver it with"
                " BEGIN; use `scheduled` for a rule that applies from a time on."
            )
        later = control.delivery is Delivery.END_WINDOW
        payload = control.payload
        rules = self._read_rules(_to_json(payload["rules"]))
        self._set_rules(rules, self.window.number + later, payload.get("relevant"))
        self._check_keys()
        if self._column is None:
            self._advance_engine(self.window.time)
        return True

    def _set_rules(self, rules: RuleSet, since: int, relevant: str | None) -> None:
        engine = self.engine  # created with the old rules, whose runs it frees or hands over
        self._rules, self._rules_changed = rules, True
        filters = [each for each in self._filters if each[0] != since]
        if relevant != (filters[-1][1] if filters else None):
            filters.append((since, relevant))
        oldest = self._buffer.oldest_window()
        if oldest is None:
            oldest = since
        obsolete = sum(1 for window, _ in filters[1:] if window <= oldest)
        self._filters = filters = filters[obsolete:]
        engine.set_rules(
            rules, since, visible_from=lambda active: _first_visible_window(active, filters, since)
        )

    def _check_keys(self) -> None:
        """Reject rules whose rows are spread over several buckets."""
        if self._copied or self.window.buckets == 1:
            return
        for selector in self._rules.selectors(self._key):
            if not selector or selector != self._key:
                key = f"the key {', '.join(selector)}" if selector else "one key for all rows"
                raise OperatorError(
                    f"a rule has {key}, and rows are distributed over {self.window.buckets}"
                    f" buckets by {', '.join(self._key) or 'nothing'}: copy the rows for each"
                    " key, and pass copied=True."
                )

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
        """Emit late rows; of several copies only the first."""
        if self._copied:
            rows = rows.filter(rows.column(FIRST)).drop_columns(list(_COPY_COLUMNS))
        if rows.num_rows:
            self.emit(rows, LATE)

    @gc_paused
    def advance(self, time: int) -> None:
        """Process the rows up to a time in order, then advance time."""
        if self._column is None:
            return
        released = self._buffer.pop_until(time)
        if released is not None:
            rows, arrival_windows = released
            times, names = event_times(rows, self._column), [self._column]
            if self._tie is not None or not _is_ascending(times):
                names += [self._tie] if self._tie not in (None, self._column) else []
                keys = [(name, "ascending") for name in names]
                order = pc.sort_indices(rows.select(names), sort_keys=keys)
                rows, times, arrival_windows = (
                    rows.take(order),
                    times.take(order),
                    arrival_windows.take(order),
                )
            self._process_until(time, rows, times, arrival_windows)
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
        current = self._rules.without_expired(time)
        if current is not self._rules:
            self._rules, self._rules_changed = current, True

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
        for selector in self._rules.selectors(self._key):
            rows = all_rows.filter(pc.equal(selectors, selector_text(selector)))
            if rows.batch.num_rows:
                self._emit_results(self.engine.process(rows, selector))

    def _emit_results(self, results: list[RuleResult]) -> None:
        if not results:
            return
        written = self._writer.write(results, self._rules.rule)
        for output, batch in written.batches:
            self.emit(batch, output)
        failures = [each for each in results if isinstance(each.outcome, RunError)]
        for rule, error in written.failures:
            if (rule.id, rule.version) in self.engine.active:
                failures.append(self.engine.disable_rule(rule, error))
        for each in failures:
            if isinstance(each.outcome, RunError):
                self._report_failure(each.rule, each.version, each.outcome)

    def _report_failure(self, rule: str, version: int, error: RunError) -> None:
        """Report a failed rule as a row, and as a control tuple for the sender of rules."""
        failure = RuleFailure(rule=rule, version=version, where=error.where, problem=error.problem)
        self._failures.append(failure)
        self.emit(pa.RecordBatch.from_pylist([asdict(failure)], schema=FAILURES), ERRORS)
        self._rules, self._rules_changed = self._rules.with_disabled(rule, version), True
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
        if self._rules_changed:
            since = sorted([*name, active.since] for name, active in engine.active.items())
            visible_from = sorted(
                [*name, one.visible_from] for name, one in engine.active.items() if one.visible_from
            )
            changes["rules"] = _to_json(
                {
                    "rules": _to_json(self._rules.document()),
                    "since": since,
                    "sees": visible_from,
                    **({"filters": self._filters} if self._filters else {}),
                }
            ).encode()
        runs = {name: one.metrics.alive for name, one in engine.active.items()}
        alive = sorted([*name, count] for name, count in runs.items() if count)
        counters = {"next": self._next_seq, "waiting": self._buffer.dump(), "alive": alive}
        meta = _to_json(counters).encode()
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


def _first_visible_window(
    active: ActiveRule, filters: list[tuple[int, str | None]], since: int
) -> int:
    """Return the first window from which all rows that a new rule needs were sent.

    `filters` are the filters of sent rows, each with its first window. From window `since` on the
    rule is in the set, so its rows are sent.
    """
    first = 0
    for index, (window, text) in enumerate(filters):
        if window < since and not filter_covers(text, active.automaton):
            first = filters[index + 1][0] if index + 1 < len(filters) else since
    return min(first, since)


def _is_same_set(left: RuleSet, right: RuleSet) -> bool:
    """Return whether two sets have equal rules, regardless of which are off."""
    return bool(left.document()["rules"] == right.document()["rules"])


def _to_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _is_ascending(times: pa.Array) -> bool:
    descents = pc.greater(times.slice(0, max(0, len(times) - 1)), times.slice(1))
    return not pc.any(descents).as_py()
