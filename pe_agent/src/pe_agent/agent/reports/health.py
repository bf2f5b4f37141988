"""Problems of this agent's ports, and the health that it reports of them.

What still is a problem is found in the agent's status. What has happened is kept here, also over a
restart of the agent: failed queries and lost rows.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

from pe_agent.agent.state.store import Store
from streambroker_core.ledger.offset import Loss
from streambroker_core.ledger.planner import ReadersExceededError
from streambroker_core.model import Kind, port_of
from streambroker_core.wire.reports.health import (
    MAX_PORTS,
    Health,
    HealthState,
    PortId,
    merge_problems,
)
from streambroker_core.wire.reports.storage_status import StorageStatus, stored_state

RECOVERED_SECONDS = 30.0
"""How long a later run that does not end has to live until a failure is over."""
LOSS_SECONDS = 3_600.0
"""How long after the last lost rows a loss is over."""
REFUSED_SECONDS = 30.0
"""How long an export has to refuse a reader: agents with different views refuse for seconds."""
SIDE_WAIT_SECONDS = 300.0
"""How long rows have to wait for a side input."""
MAX_NAMED = 5
"""Failed rules that a message names."""
FINAL_CODES = ("DataLoss", ReadersExceededError.code)
"""Errors of reads after which a query ends."""
_UNKNOWN_CODES = ("Failed", "QueryFailed")
"""Codes of a failure whose cause the driver does not know."""
_STORED, _STORED_LOSSES = "failures", "losses"
_NAMES: Mapping[Kind, str] = {"Export": "publishes to it", "Import": "reads it"}


@dataclass(slots=True)
class _Failure:
    """A failed query of a port.

    Attributes:
        others: the failed run, and runs of the port that lived then; none of them is its end.
        since: since when later runs live (monotonic), by run.
    """

    state: HealthState
    others: frozenset[str] = frozenset()
    since: dict[str, float] = field(default_factory=dict)


class PortProblems:
    """Failed queries and lost rows of the agent's ports; thread-safe.

    Attributes:
        on_change: called when a failure or a loss begins or ends.
        losses: how often readers of each import have lost rows since the agent's start.
    """

    def __init__(
        self,
        store: Store,
        find_runs: Callable[[PortId], Collection[str]],
        has_room: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Restore the failures.

        Args:
            store: of the agent.
            find_runs: returns the runs of a port that live now.
            has_room: returns whether another reader would be accepted.
            clock: monotonic seconds.
            wall_clock: seconds since 1970.
        """
        self.on_change: Callable[[], None] = lambda: None
        self._store, self._find_runs, self._has_room = store, find_runs, has_room
        self._clock, self._wall_clock = clock, wall_clock
        self._lock = threading.Lock()
        stored: list[list[str]] = store.value(_STORED, json.loads, [])
        self._failures: dict[PortId, _Failure] = {
            (cast(Kind, kind), port): _Failure(HealthState(reason=reason, message=message))
            for kind, port, reason, message in stored
        }
        stored_losses: list[list[Any]] = store.value(_STORED_LOSSES, json.loads, [])
        self._losses: dict[str, tuple[HealthState, float]] = {
            port: (HealthState(reason="RowsLost", message=message), until)
            for port, message, until in stored_losses
        }
        self.losses: Counter[str] = Counter()

    def note_failure(self, ports: Iterable[PortId], code: str, message: str, run: str = "") -> None:
        """Record that a run of ports has failed; a repeated failure keeps its first text."""
        at = self._format_now()
        over = (
            "another reader is accepted."
            if code == ReadersExceededError.code
            else f"a query has run for {RECOVERED_SECONDS:.0f} s, or has ended without an error."
        )
        with self._lock:
            before = {port: failure.state for port, failure in self._failures.items()}
            for port in ports:
                text = (
                    f"A query that {_NAMES[port[0]]} failed at {at}: {message} This is over once"
                    f" {over}"
                )
                known = before.get(port)
                # The driver knows the code of our own errors only; the agent may have noted theirs.
                keeps = known is not None and code in (known.reason, *_UNKNOWN_CODES)
                state = known if keeps else None
                state = state or HealthState(reason=code, message=text)
                if len(self._failures) < MAX_PORTS or port in self._failures:
                    others = frozenset((*self._find_runs(port), run))
                    self._failures[port] = _Failure(state, others)
            self._save_if_changed(before)

    def note_end(self, ports: Iterable[PortId], run: str) -> None:
        """Record that a run of ports has ended without an error: earlier failures are over."""
        with self._lock:
            before = {port: failure.state for port, failure in self._failures.items()}
            for port in ports:
                if port in self._failures and run not in self._failures[port].others:
                    del self._failures[port]
            self._save_if_changed(before)

    def note_loss(self, import_: str, lost: Loss) -> None:
        """Record that a reader of an import has just lost rows, and how many it has lost in all."""
        epochs, rows = lost
        count = "an unknown number of" if rows is None else rows
        state = HealthState(
            reason="RowsLost",
            message=f"A reader with `failOnDataLoss=false` lost rows at {self._format_now()},"
            f" by now {epochs} epochs with {count} rows. Find the cause in the logs of the"
            f" exporters. This is over {LOSS_SECONDS / 3600:.0f} hour after the last loss.",
        )
        with self._lock:
            self.losses[import_] += 1
            self._losses[import_] = state, self._wall_clock() + LOSS_SECONDS
            self._save_losses()
        self.on_change()

    def _save_losses(self) -> None:
        stored = [[port, one.message, until] for port, (one, until) in self._losses.items()]
        self._store.set(_STORED_LOSSES, json.dumps(stored))

    def tick(self) -> None:
        """Forget what is over."""
        now, has_room = self._clock(), self._has_room()
        with self._lock:
            at = self._wall_clock()
            losses = {port: loss for port, loss in self._losses.items() if loss[1] > at}
            has_fewer_losses = len(losses) < len(self._losses)
            self._losses = losses
            if has_fewer_losses:
                self._save_losses()
            before = {port: failure.state for port, failure in self._failures.items()}
            for port, failure in list(self._failures.items()):
                later = frozenset(self._find_runs(port)) - failure.others
                failure.since = {one: failure.since.get(one, now) for one in later}
                is_over = any(now - at >= RECOVERED_SECONDS for at in failure.since.values())
                if is_over or (failure.state.reason == ReadersExceededError.code and has_room):
                    del self._failures[port]
            self._save_if_changed(before)
        if has_fewer_losses:
            self.on_change()

    def _save_if_changed(self, before: Mapping[PortId, HealthState]) -> None:
        if before == {port: failure.state for port, failure in self._failures.items()}:
            return
        stored = [
            [kind, port, one.state.reason, one.state.message]
            for (kind, port), one in self._failures.items()
        ]
        self._store.set(_STORED, json.dumps(stored))
        self.on_change()

    def health(
        self,
        exports: Mapping[str, Any],
        readers: Mapping[str, Any],
        sides: Iterable[tuple[Mapping[str, Any], Collection[str]]] = (),
        failed_rules: Mapping[str, Collection[str]] | None = None,
    ) -> Health:
        """Return the health of all ports.

        Args:
            exports: status of the exports, by key.
            readers: status of the imports' readers, by id.
            sides: status of each side input, with the imports that its query reads.
            failed_rules: of each operator that has any; a problem of all imports that are read.
        """
        found = defaultdict[PortId, list[HealthState]](list)
        with self._lock:
            for failed, failure in self._failures.items():
                found[failed].append(failure.state)
            for import_, (state, _) in self._losses.items():
                found["Import", import_].append(state)
        for key, export in exports.items():
            found["Export", port_of(key)] += _export_problems(export)
        for reader in readers.values():
            if reader["alive"]:
                problems = [*_refusals(reader), *_rule_problems(failed_rules or {})]
                found["Import", port_of(reader["import"])] += problems
        for side, imports in sides:
            for import_ in imports if _waits_too_long(side) else ():
                found["Import", import_].append(_side_state(side))
        merged = {port: merge_problems(dict.fromkeys(all_)) for port, all_ in found.items() if all_}
        return Health(problems=merged)

    def _format_now(self) -> str:
        return f"{datetime.fromtimestamp(self._wall_clock(), UTC):%Y-%m-%d %H:%M:%S} UTC"


def _export_problems(export: Mapping[str, Any]) -> list[HealthState]:
    found = []
    if export["damaged"]:
        message = (
            f"Part of its log is missing or damaged: {export['damaged'][0]}. Queries that have to"
            " read it fail. Restore the data directory, or publish the rows again."
        )
        found.append(HealthState(reason="LogDamaged", message=message))
    storage = export["storage"] or {"exists": False}
    uploads = {**storage, "error": storage.get("error") or ""}
    stored = stored_state(StorageStatus(**uploads), export["durability"])
    if stored is not None and not stored.is_stored:
        found.append(HealthState(reason=stored.reason, message=stored.message))
    return found


def _refusals(reader: Mapping[str, Any]) -> list[HealthState]:
    return [
        HealthState(
            reason=code, message=f"Export {export} sends nothing: {reader['refused'][export]}"
        )
        for export, (code, seconds) in sorted(reader["refusals"].items())
        if seconds >= REFUSED_SECONDS and export in reader["refused"]
    ]


def _rule_problems(failed: Mapping[str, Collection[str]]) -> list[HealthState]:
    return [
        HealthState(
            reason="RuleFailed",
            message=f"Rules of the operator {operator} are off after an error, or were refused:"
            f" {', '.join(sorted(rules)[:MAX_NAMED])}{', …' if len(rules) > MAX_NAMED else ''}. The"
            " log of the job has the reason. Correct the rules, or enable them again.",
        )
        for operator, rules in sorted(failed.items())
    ]


def _waits_too_long(side: Mapping[str, Any]) -> bool:
    """Return whether rows wait for a side input for too long; ``main`` rows wait for time."""
    return side["input"] != "main" and (side["waitingSeconds"] or 0.0) >= SIDE_WAIT_SECONDS


def _side_state(side: Mapping[str, Any]) -> HealthState:
    return HealthState(
        reason="SideInputWaits",
        message=f"Rows of the operator {side['operator']} wait for its side input {side['input']}"
        f" for more than {SIDE_WAIT_SECONDS / 60:.0f} minutes: check the source of {side['input']}."
        " `streambroker top` shows what they wait for.",
    )
