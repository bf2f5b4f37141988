"""One export of an agent: recovery, limits, routes and status.

Publishing and reading are in its base classes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from pe_agent.agent.exports.control_sender import ControlSender
from pe_agent.agent.exports.export_state import SEGMENT_BYTES, log, steady_clock
from pe_agent.agent.exports.publisher import NotAdmittedError, StageMissingError, to_ledger_epoch
from pe_agent.agent.exports.reader_plans import ReaderPlans
from pe_agent.agent.exports.state_codec import decode_reader, restore_publisher
from pe_agent.agent.exports.status import export_metrics, list_missing_epochs
from pe_agent.agent.exports.stream import retained_epochs as retained
from pe_agent.agent.exports.stream.export_stream import ExportStream
from pe_agent.agent.state.store import FORGOTTEN, REMOVED, SEALED
from streambroker_core.ledger.epochs import Stream
from streambroker_core.ledger.retention import RetentionLimits


class AgentExport(ControlSender, ReaderPlans):
    """One export of this agent's PE. Public methods are thread-safe."""

    _withdrawn_at: float | None = None

    def recover(self, progress: Callable[[str, int, int], None] | None = None) -> None:
        """Open the existing logs and rebuild the ledger from them and the store."""
        self._orphan_logs.remove_all()
        rows = self._store.query(
            "SELECT id, query, ddl, arrow, sealed, next, rows FROM streams WHERE export = ?"
            " AND sealed <> ? ORDER BY ord",
            self.key,
            FORGOTTEN,
        )
        forgotten = "SELECT id, rows FROM streams WHERE export = ? AND sealed = ?"
        earlier = self._store.query(forgotten, self.key, FORGOTTEN)
        self.ledger.retention.forgotten.update(id_ for id_, _ in earlier)
        for id_, query, ddl, arrow, sealed, next_, total in rows:
            if sealed == REMOVED:
                self.ledger.streams[id_] = Stream(id_, sealed=True)
                self.ledger.streams[id_].skip_to(next_, total)
                continue
            with self._store.reading_row("streams", id_):
                schema = pa.ipc.read_schema(pa.py_buffer(arrow))
            stream_progress = None if progress is None else lambda n, of, s=id_: progress(s, n, of)
            opened = ExportStream.open(
                id_,
                self._directory / id_,
                committer=self._committer,
                query=query,
                ddl=ddl,
                schema=schema,
                segment_bytes=self._segment_bytes,
                progress=stream_progress,
            )
            self._restore_stream(opened, sealed == SEALED, next_, total)
        self.published_rows = sum(s.rows for s in self.ledger.streams.values())
        self.published_rows += sum(count for _, count in earlier)
        with self._store.reading_row("publishers", self.key):
            restore_publisher(self.publisher, self._store, self.streams.values(), now=self._clock())
        for id_, state in self._store.query(
            "SELECT id, state FROM readers WHERE export = ?", self.key
        ):
            with self._store.reading_row("readers", f"{self.key} {id_}"):
                self._restore_reader(id_, json.loads(state))
        self._recover_emitted()
        self._sweep_stages()

    def _restore_reader(self, id_: str, state: dict[str, Any]) -> None:
        reader, delivery = decode_reader(state, streams=self.ledger.streams, now=self._clock())
        for name, sums in state.get("rows_before", {}).items():
            if name in self.ledger.streams:
                for number, rows_before in sums:
                    self.ledger.streams[name].restore_sum(number, rows_before)
        self.ledger.readers[id_] = reader
        self.deliveries.restore(id_, delivery)

    def _restore_stream(self, opened: ExportStream, sealed: bool, next_: int, total: int) -> None:
        stream = Stream(opened.id)
        self.ledger.streams[opened.id] = stream
        self._add_stream(opened)
        self._forget_released(opened)
        stream.sealed = sealed
        for m in sorted(opened.manifests.values(), key=lambda m: m.epoch):
            stream.skip_to(m.epoch, m.rows_before)
            stream.add(to_ledger_epoch(m, opened.epoch_bytes(m.epoch)))
        next_, total = max((next_, total), opened.recovered_position)
        if stream.next < next_:
            stream.skip_to(next_, total)
        level = retained.read(self._store, opened.id)
        if level is not None:
            retained.restore_missing(stream, level)
        if next_ and not opened.log.recovered.frames and not sealed:
            # Its directory was moved or emptied: the next epoch opens a successor stream.
            stream.sealed = True
            self._store.write("UPDATE streams SET sealed = ? WHERE id = ?", SEALED, opened.id)
        for text in list_missing_epochs(stream):
            log.error("the log of export %s is damaged: %s", self.key, text)

    def declare(self, limits: RetentionLimits) -> None:
        """Apply the declared limits until the first view; a view's stored limits come first."""
        with self._lock:
            self.ledger.retention.limits = self._view_limits or limits
            self._withdrawn_at = None

    def set_limits(self, limits: RetentionLimits) -> None:
        """Apply a view's limits."""
        with self._lock:
            self.ledger.retention.limits = limits
            self._withdrawn_at = None
            self._save_limits(limits)
            self._sweep()
        self._notify()

    def set_routes(self, policies: Mapping[str, str], revoked: Iterable[str] = ()) -> None:
        """Apply a view's routes: start policy by import, and revoked imports."""
        with self._lock:
            before = {r.id: (r.policy, r.routed) for r in self.ledger.readers.values()}
            cut_before = list(self.ledger.routes.cut)
            self.ledger.set_routes(policies, revoked)
            if list(self.ledger.routes.cut) != cut_before:
                self._save_cut()
            for reader in self.ledger.readers.values():
                if before[reader.id] != (reader.policy, reader.routed):
                    self._save_reader(reader.id)
            self._sweep()
        self._notify()

    def withdraw(self, *, declared: bool = False) -> None:
        """Handle the export's absence from the view: cut its routes, keep the log for ``grace``.

        An export that no view ever had is unchanged: the broker does not know it yet. An export
        that is ``declared`` again loses only its routes.
        """
        with self._lock:
            if self._view_limits is None:
                return
            if self._withdrawn_at is None and not declared:
                self._withdrawn_at = self._clock()
        self.set_routes({})

    def tick(self) -> None:
        """Apply limits of age, size and grace; called about once a second."""
        with self._lock:
            limits = self.ledger.retention.limits
            if self._withdrawn_at is not None and self._clock() > self._withdrawn_at + limits.grace:
                self.ledger.retention.limits = replace(limits, max_bytes=0, max_age=0.0)
            self._count_released_plans()
            self._sweep()

    def status(self) -> dict[str, Any]:
        """Return streams, readers, and held bytes with their readers."""
        with self._lock:
            return export_metrics(self, self._clock())


__all__ = [
    "SEGMENT_BYTES",
    "AgentExport",
    "NotAdmittedError",
    "RetentionLimits",
    "StageMissingError",
    "steady_clock",
]
