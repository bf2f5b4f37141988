"""External control tuples for the importers of an export.

A tuple is stored with its identity before the caller gets a response. Then it is published at once
in an epoch of its own. After a crash in between, the next start publishes the stored tuples that no
manifest has.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from collections import Counter
from collections.abc import Sequence
from typing import Any

from pe_agent.agent.exports.epoch_writer import EpochWriter
from pe_agent.agent.exports.export_state import ExportState
from pe_agent.agent.exports.stream.export_stream import ExportStream
from pe_agent.agent.exports.stream.manifests import Manifest, ManifestControl
from pe_agent.agent.state.control_log import RequestDiffersError, read_request
from streambroker_core.control.tuples import ControlTuple
from streambroker_core.control.tuples.epoch_control import check_epoch
from streambroker_core.control.tuples.request import ControlRequest, parse_control_request
from streambroker_core.control.tuples.window_bounds import make_control_head
from streambroker_core.errors import StreambrokerError

REMEMBERED_TUPLES = 1_000
"""Published tuples that an export remembers, for repeated requests and reports."""


class ExportFullError(StreambrokerError):
    """The log is full of epochs that readers have not finished; nothing was emitted."""

    code = "ExportFull"


class NotEmittedError(StreambrokerError):
    """No such tuple was emitted here, or it is forgotten."""

    code = "NotEmitted"


class ControlSender:
    """External control requests to an export. Public methods are thread-safe.

    ``accepted`` counts external tuples since the agent's start, by delivery.
    """

    def __init__(self, state: ExportState, epochs: EpochWriter) -> None:
        self._state = state
        self._ledger = state.ledger
        self._store = state.store
        self._key = state.key
        self._epochs = epochs
        self.accepted: Counter[str] = Counter()
        self._has_waiting = True
        self._unrecorded_epochs: list[tuple[str, int, int]] = []
        """Stream, epoch and last number of published tuples not yet recorded in the store."""

    def emit(self, request: str, body: dict[str, Any]) -> dict[str, Any]:
        """Send a control tuple to all importers that read control; durable when this returns.

        Args:
            request: request id; a repeated one emits nothing.
            body: the tuple as :func:`parse_control_request` reads it.

        Returns:
            The report of :meth:`emission_status`.

        Raises:
            ControlLimitError, ManifestError: the tuple cannot be emitted.
            ExportFullError: the log has no room now.
            RequestDiffersError: the request id was used for another tuple.
        """
        control_request, text = read_request(request, body)
        with self._state.publishing:
            with self._state.lock:
                known = self._store.query(
                    "SELECT seq, what FROM emitted WHERE export = ? AND request = ?",
                    self._key,
                    request,
                )
                if known and known[0][1] != text:
                    raise RequestDiffersError(
                        f"request {request} has emitted another control tuple at {self._key}: give"
                        " each tuple a request id of its own."
                    )
                seq = known[0][0] if known else self._store_tuple(request, control_request, text)
            self.emit_waiting()
            self._state.sync_stored()
            with self._state.lock:
                self._state.sweep()
        self._state.notify()
        return self.emission_status(seq)

    def _store_tuple(self, request: str, control_request: ControlRequest, text: str) -> int:
        self._check_room()
        log, seq = self._log_id(), self._next_seq()
        waiting = [tuple_ for _, tuple_ in self._waiting_tuples(log)]
        check_epoch([*waiting, control_request.with_identity(log, seq)], f"export {self._key}")
        self._has_waiting = True
        with self._store.transaction(durable=True) as db:
            db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (self._log_key, log))
            db.execute(
                "INSERT INTO emitted (export, seq, request, what) VALUES (?, ?, ?, ?)",
                (self._key, seq, request, text),
            )
            db.execute(
                "DELETE FROM emitted WHERE export = ? AND epoch IS NOT NULL AND seq < (SELECT seq"
                " FROM emitted WHERE export = ? ORDER BY seq DESC LIMIT 1 OFFSET ?)",
                (self._key, self._key, REMEMBERED_TUPLES),
            )
        self.accepted[control_request.delivery.value] += 1
        return seq

    def _check_room(self) -> None:
        holders = self._ledger.retention.blocking_readers(self._state.clock())
        if holders:
            names = ", ".join(f"{h.import_} ({h.bytes:,} bytes)" for h in holders)
            raise ExportFullError(
                f"the log of export {self._key} is full of rows that {names} has not finished, and"
                " accepts no control tuples until it has. Nothing was emitted; try again later."
            )

    @property
    def _log_key(self) -> str:
        return f"emits/{self._key}"

    def _log_id(self) -> str:
        return self._store.get(self._log_key) or secrets.token_hex(8)

    def _next_seq(self) -> int:
        return self._store.next_seq("SELECT MAX(seq) FROM emitted WHERE export = ?", self._key)

    def _waiting_tuples(self, log: str) -> list[tuple[int, ControlTuple]]:
        rows = self._store.query(
            "SELECT seq, what FROM emitted WHERE export = ? AND epoch IS NULL ORDER BY seq",
            self._key,
        )
        return [
            (seq, parse_control_request(json.loads(what)).with_identity(log, seq))
            for seq, what in rows
        ]

    def emit_waiting(self) -> None:
        """Publish an epoch with the waiting tuples; without a stream they keep waiting.

        The caller holds the lock ``publishing`` alone.
        """
        with self._state.lock:
            self._record_epochs()
            stream = self._state.newest
            if stream is None or not self._has_waiting:
                return
            log = self._log_id()
            waiting = self._waiting_tuples(log)
            if not waiting:
                self._has_waiting = False
                return
            manifest = self._build_manifest(stream, log, waiting)
            control = [(0, one) for _, one in waiting]
            address = self._epochs.append(stream, manifest, control)
            flight = contextlib.ExitStack()
            flight.enter_context(self._state.epoch_in_flight())
        with flight:
            stream.log.sync(address)
            flight.enter_context(self._state.lock)
            self._epochs.add(stream, manifest, control, address)
            self._unrecorded_epochs.append((stream.id, manifest.epoch, waiting[-1][0]))
            self._has_waiting = False
            self._epochs.record_position(stream, manifest)
            self._record_epochs()

    def _build_manifest(
        self, stream: ExportStream, log: str, waiting: Sequence[tuple[int, ControlTuple]]
    ) -> Manifest:
        ledger_stream = self._ledger.streams[stream.id]
        self._extend_end(stream.id, ledger_stream.next + 1)
        controls = [one for _, one in waiting]
        return Manifest(
            epoch=ledger_stream.next,
            query="",
            run="",
            batch=-1,
            rows=0,
            bytes=0,
            published=self._state.clock(),
            ddl=stream.versions.published.ddl,
            rows_before=ledger_stream.rows,
            blocks=(),
            control=ManifestControl(
                head=make_control_head(ledger_stream.next, controls),
                emitted=(log, waiting[-1][0] + 1),
            ),
        )

    def _extend_end(self, stream: str, next_: int) -> None:
        """Move the recorded end of an ended export behind the epoch about to be written."""
        if (
            self._state.publisher.ended is not None
            and self._state.publisher.ended == self._state.end_position()
        ):
            self._state.publisher.ended = (stream, next_)
            self._state.save_publisher(durable=True)

    def _record_epochs(self) -> None:
        while self._unrecorded_epochs:
            self._record_epoch(*self._unrecorded_epochs[0])
            del self._unrecorded_epochs[0]

    def _record_epoch(self, stream: str, epoch: int, last: int) -> None:
        with self._store.transaction(durable=True) as db:
            db.execute(
                "UPDATE emitted SET stream = ?, epoch = ?"
                " WHERE export = ? AND epoch IS NULL AND seq <= ?",
                (stream, epoch, self._key, last),
            )

    def recover(self) -> None:
        """Record the tuples in manifests as published, then publish the rest."""
        log = self._log_id()
        for stream in self._state.streams.values():
            for manifest in sorted(stream.manifests.values(), key=lambda m: m.epoch):
                emitted = manifest.control.emitted if manifest.control else None
                if emitted is not None and emitted[0] == log:
                    self._record_epoch(stream.id, manifest.epoch, emitted[1] - 1)
        self.emit_waiting()

    def emission_status(self, seq: int) -> dict[str, Any]:
        """Return the epoch of an external tuple, and the readers that have applied it.

        Returns:
            ``id``, ``seq``, ``stream`` and ``epoch`` (null until published), ``readers`` (of
            control: ``reader``, ``import``, ``applied``, ``away`` seconds), and ``applied``: there
            are readers, and all of them have finished the tuple's window.

        Raises:
            NotEmittedError: there is no such tuple (any more).
        """
        with self._state.lock:
            rows = self._store.query(
                "SELECT stream, epoch FROM emitted WHERE export = ? AND seq = ?",
                self._key,
                seq,
            )
            if not rows:
                raise NotEmittedError(
                    f"export {self._key} knows no control tuple from outside with number {seq}; it"
                    f" remembers the last {REMEMBERED_TUPLES}."
                )
            stream, epoch = rows[0]
            readers = [] if epoch is None else self._control_readers(stream, epoch)
            return {
                "id": f"{self._log_id()}/{seq}",
                "seq": seq,
                "stream": stream,
                "epoch": epoch,
                "readers": readers,
                "applied": bool(readers) and all(r["applied"] for r in readers),
            }

    def _control_readers(self, stream: str, epoch: int) -> Sequence[dict[str, Any]]:
        """Return active control readers, including those within grace."""
        now, grace = self._state.clock(), self._ledger.retention.limits.grace
        return [
            {
                "reader": r.id,
                "import": r.import_,
                "applied": (c := r.cursors.get(stream)) is not None and c.next > epoch,
                "away": max(0.0, now - r.lease_expires),
            }
            for r in self._ledger.readers.values()
            if r.control and r.routed and now <= r.lease_expires + grace
        ]
