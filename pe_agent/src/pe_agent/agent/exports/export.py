"""One export of an agent: recovery, limits, routes and status."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any

import pyarrow as pa

from pe_agent.agent.exports.backpressure import Backpressure
from pe_agent.agent.exports.control_sender import ControlSender
from pe_agent.agent.exports.epoch_writer import EpochWriter, to_ledger_epoch
from pe_agent.agent.exports.export_state import ExportState
from pe_agent.agent.exports.publisher import ExportPublisher
from pe_agent.agent.exports.reader_plans import ReaderPlans
from pe_agent.agent.exports.state_codec import decode_reader, restore_publisher
from pe_agent.agent.exports.status import (
    format_time,
    lag_metrics,
    list_damage,
    list_damaged_segments,
    list_missing_epochs,
    list_versions,
    reader_metrics,
    storage_metrics,
)
from pe_agent.agent.exports.stream import retained_epochs as retained
from pe_agent.agent.exports.stream.export_policies import ExportPolicies
from pe_agent.agent.exports.stream.export_stream import ExportStream
from pe_agent.agent.state.store import FORGOTTEN, REMOVED, SEALED
from streambroker_core.ledger.epochs import RestoredLog, Stream
from streambroker_core.ledger.retention import RetentionLimits
from streambroker_core.model import Durability
from streambroker_core.model.policies import NO_POLICIES, Policies, decode_restriction
from streambroker_core.model.schema import Schema, SchemaPolicy, to_ddl
from streambroker_core.wire.broker.view import SCHEMA_POLICIES

log = logging.getLogger("pe_agent")


class AgentExport:
    """One export of this agent's PE, composed of objects with a task each.

    Public methods are thread-safe.
    """

    def __init__(self, state: ExportState) -> None:
        self.key = state.key
        self.state = state
        self.epochs = EpochWriter(state)
        self.backpressure = Backpressure(state)
        self.control = ControlSender(state, self.epochs)
        self.publisher = ExportPublisher(state, self.epochs, self.backpressure, self.control)
        self.policies = ExportPolicies(
            state.store, state.key, state.ledger.readers, state.deliveries.restrictions
        )
        self.plans = ReaderPlans(state, self.backpressure, self.policies)
        self._withdrawn_at: float | None = None
        self._view_limits: RetentionLimits | None = state.store.value(
            f"limits/{self.key}", lambda text: RetentionLimits(**json.loads(text)), None
        )
        state.ledger.retention.limits = self._view_limits or RetentionLimits()
        self._durability_key = f"durability/{self.key}"
        if state.store.get(self._durability_key) == "stored":
            state.set_durability("stored")
        self._restored_key = f"restored/{self.key}"
        self._policy_key = f"schemaPolicy/{self.key}"
        stored_policy = state.store.get(self._policy_key)
        state.schema_policy = SCHEMA_POLICIES.get(stored_policy or "", "backward")

    def recover(self, progress: Callable[[str, int, int], None] | None = None) -> None:
        """Open the existing logs and rebuild the ledger from them and the store."""
        state, store, ledger = self.state, self.state.store, self.state.ledger
        state.directory.remove_orphans()
        rows = store.query(
            "SELECT id, query, ddl, arrow, sealed, next, rows FROM streams WHERE export = ?"
            " AND sealed <> ? ORDER BY ord",
            self.key,
            FORGOTTEN,
        )
        forgotten = "SELECT id, rows FROM streams WHERE export = ? AND sealed = ?"
        earlier = store.query(forgotten, self.key, FORGOTTEN)
        ledger.claims.forgotten.update(id_ for id_, _ in earlier)
        for id_, query, ddl, arrow, sealed, next_, total in rows:
            if sealed == REMOVED:
                ledger.streams[id_] = Stream(id_, sealed=True)
                ledger.streams[id_].skip_to(next_, total)
                continue
            with store.reading_row("streams", id_):
                schema = pa.ipc.read_schema(pa.py_buffer(arrow))
            opened = state.directory.open(
                id_, query=query, ddl=ddl, schema=schema, progress=progress
            )
            self.epochs.restore_versions(opened, has_rows=total > 0)
            self._restore_stream(opened, sealed == SEALED, next_, total)
        self.epochs.published_rows = sum(s.rows for s in ledger.streams.values())
        self.epochs.published_rows += sum(count for _, count in earlier)
        with store.reading_row("publishers", self.key):
            restore_publisher(state.publisher, store, state.streams.values(), now=state.clock())
        for id_, text in store.query("SELECT id, state FROM readers WHERE export = ?", self.key):
            with store.reading_row("readers", f"{self.key} {id_}"):
                self._restore_reader(id_, json.loads(text))
        ledger.claims.restored = store.value(self._restored_key, _decode_restored, None)
        self.control.recover()
        self.epochs.sweep_stages()

    def note_restored(self) -> None:
        """Store what a restored log has, before anything is published."""
        publisher = self.state.publisher
        batches = {query: last.batch for query, last in publisher.earlier.items()}
        if publisher.query is not None and publisher.last is not None:
            batches[publisher.query] = publisher.last.batch
        text = json.dumps([list(self.state.ledger.streams), batches])
        self.state.store.set(self._restored_key, text)
        self.state.ledger.claims.restored = _decode_restored(text)

    def _restore_reader(self, id_: str, stored: dict[str, Any]) -> None:
        ledger = self.state.ledger
        reader, delivery = decode_reader(stored, streams=ledger.streams, now=self.state.clock())
        for name, sums in stored.get("rows_before", {}).items():
            if name in ledger.streams:
                for number, rows_before in sums:
                    ledger.streams[name].restore_sum(number, rows_before)
        ledger.readers[id_] = reader
        self.state.deliveries.restore(id_, delivery)
        if "restriction" in stored:
            self.state.deliveries.pin(id_, decode_restriction(stored["restriction"]))
        self.plans.note_stored(id_)

    def _restore_stream(self, opened: ExportStream, sealed: bool, next_: int, total: int) -> None:
        stream = Stream(opened.id)
        self.state.ledger.streams[opened.id] = stream
        self.state.add_stream(opened)
        stream.sealed = sealed
        level = retained.read(self.state.store, opened.id)
        if level is not None:  # the objects of removed epochs may be deleted
            opened.remove(
                [
                    n
                    for n, m in opened.manifests.items()
                    if m.object_keys() and not retained.is_retained(n, level)
                ]
            )
        for m in sorted(opened.manifests.values(), key=lambda m: m.epoch):
            stream.skip_to(m.epoch, m.rows_before)
            stream.add(to_ledger_epoch(m, opened.epoch_bytes(m.epoch)))
        next_, total = max((next_, total), opened.recovered_position)
        if stream.next < next_:
            stream.skip_to(next_, total)
        if level is not None:
            retained.restore_missing(stream, level)
        if next_ and not opened.log.recovered.frames and not sealed:
            # Its directory was moved or emptied: the next epoch opens a successor stream.
            stream.sealed = True
            self.state.store.write("UPDATE streams SET sealed = ? WHERE id = ?", SEALED, opened.id)
        for text in list_missing_epochs(stream):
            log.error("the log of export %s is damaged: %s", self.key, text)

    def declare(
        self,
        limits: RetentionLimits,
        durability: Durability = "local",
        policy: SchemaPolicy = "backward",
        policies: Policies = NO_POLICIES,
    ) -> None:
        """Apply a declaration until the first view; a view's stored settings come first."""
        with self.state.lock:
            self.state.ledger.retention.limits = self._view_limits or limits
            if self._view_limits is None:
                self.state.set_durability(durability)
                self.state.schema_policy = policy
                self.policies.current = policies
            self._withdrawn_at = None

    def set_limits(self, limits: RetentionLimits) -> None:
        """Apply a view's limits."""
        with self.state.lock:
            self.state.ledger.retention.limits = limits
            self._withdrawn_at = None
            self._save_limits(limits)
            self.state.sweep()
        self.state.notify()

    def set_durability(self, durability: Durability) -> None:
        """Apply a view's durability; it holds after a restart until the next view."""
        with self.state.lock:
            if durability != self.state.durability:
                self.state.set_durability(durability)
                self.state.store.set(self._durability_key, durability)

    def set_schema_policy(self, policy: SchemaPolicy) -> None:
        """Apply a view's schema policy; it holds after a restart until the next view."""
        with self.state.lock:
            self.state.schema_policy = policy
            if self.state.store.get(self._policy_key) != policy:
                self.state.store.set(self._policy_key, policy)

    def check_columns(self, schema: Schema, declared: SchemaPolicy, *, redeclare: bool) -> None:
        """Check columns that a publisher declares; the Export's own policy comes first.

        Raises:
            SchemaIncompatibleError: see `ExportState.check_columns`.
        """
        known = self._view_limits is not None and not redeclare
        self.state.check_columns(to_ddl(schema), self.state.schema_policy if known else declared)
        if redeclare:
            self.state.schema_policy = declared  # until the broker's next view, which has it

    def _save_limits(self, limits: RetentionLimits) -> None:
        """Store a view's limits; they apply after a restart until the next view."""
        if limits == self._view_limits:
            return
        self._view_limits = limits
        # Earlier releases do not know the archive, and take a missing limit for none.
        stored = {name: value for name, value in asdict(limits).items() if value is not None}
        try:
            self.state.store.set(f"limits/{self.key}", json.dumps(stored))
        except sqlite3.Error:
            log.exception("limits are active, but could not be stored", extra={"export": self.key})

    def set_routes(self, policies: Mapping[str, str], revoked: Iterable[str] = ()) -> None:
        """Apply a view's routes: start policy by import, and revoked imports."""
        state = self.state
        with state.lock:
            before = {r.id: (r.policy, r.routed) for r in state.ledger.readers.values()}
            cut_before = list(state.ledger.routes.cut)
            state.ledger.set_routes(policies, revoked)
            if list(state.ledger.routes.cut) != cut_before:
                # Their capabilities must not open the export again.
                state.store.set(f"cut/{self.key}", json.dumps(list(state.ledger.routes.cut)))
            for reader in state.ledger.readers.values():
                if before[reader.id] != (reader.policy, reader.routed):
                    state.save_reader(reader.id)
            state.sweep()
        state.notify()

    def withdraw(self, *, declared: bool = False) -> None:
        """Handle the export's absence from the view: cut its routes, keep the log for ``grace``.

        An export that no view ever had is unchanged: the broker does not know it yet. An export
        that is ``declared`` again loses only its routes.
        """
        with self.state.lock:
            if self._view_limits is None:
                return
            if self._withdrawn_at is None and not declared:
                self._withdrawn_at = self.state.clock()
        self.set_routes({})

    def tick(self) -> None:
        """Apply limits of age, size and grace; called about once a second."""
        with self.state.lock:
            limits = self.state.ledger.retention.limits
            if (
                self._withdrawn_at is not None
                and self.state.clock() > self._withdrawn_at + limits.grace
            ):
                self.state.ledger.retention.limits = RetentionLimits(
                    max_bytes=0, max_age=0.0, grace=limits.grace, wait_limit=limits.wait_limit
                )
            self.plans.count_released_plans()
            self.state.sweep()
            for stream in self.state.streams.values():
                if stream.objects is not None:
                    stream.objects.tick()

    def status(self) -> dict[str, Any]:
        """Return streams, readers, and held bytes with their readers."""
        with self.state.lock:
            state, ledger, publisher = self.state, self.state.ledger, self.state.publisher
            now, wait_times = state.clock(), self.backpressure.wait_times
            return {
                "streams": {
                    s.id: {
                        "next": s.next,
                        "retained": len(s.epochs),
                        "bytes": s.bytes,
                        "rows": s.rows,
                        "sealed": s.sealed,
                        "schema": state.streams[s.id].ddl if s.id in state.streams else None,
                        "schemaVersions": (
                            list_versions(state.streams[s.id]) if s.id in state.streams else []
                        ),
                    }
                    for s in ledger.streams.values()
                },
                "publisher": {
                    "query": publisher.query,
                    "batch": publisher.last.batch if publisher.last else None,
                    "gaps": publisher.gaps,
                },
                "ended": state.ended(),
                "durability": state.durability,
                "storage": storage_metrics(state),
                "held": ledger.retention.held_bytes(now),
                "limit": ledger.retention.limits.max_bytes,
                "unclaimed": ledger.retention.unclaimed(now)[0],
                "waiting_for": [h.import_ for h in ledger.retention.blocking_readers(now)],
                "waitingSince": format_time(wait_times.since(now)),
                "waitedSeconds": round(wait_times.seconds, 3),
                "publishedRows": self.epochs.published_rows,
                "control": {
                    "accepted": dict(self.control.accepted),
                    "published": dict(self.epochs.published),
                },
                "gaps": publisher.gaps,
                "damaged": list_damage(state),
                "damagedSegments": len(list_damaged_segments(state)),
                "missing": sum(n - m for s in ledger.streams.values() for m, n in s.missing),
                "readers": {
                    id_: {
                        **reader_metrics(reader, state.deliveries.for_reader(id_), now),
                        **lag_metrics(state, reader, now),
                        "blockedSeconds": round(wait_times.seconds_for(id_), 3),
                        "sentControl": dict(state.deliveries.sent_control(id_)),
                    }
                    for id_, reader in ledger.readers.items()
                    if not reader.once
                },
            }


def _decode_restored(text: str) -> RestoredLog:
    streams, batches = json.loads(text)
    return RestoredLog(streams=frozenset(streams), batches=batches)
