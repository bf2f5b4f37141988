"""Control tuples from outside to the importers of an export.

A tuple is in the store, with its identity, before anybody is answered; then it is in an epoch of
its own, which is opened at once. A crash between the two is mended by the next start: what
manifests do not have is emitted, what they have is not emitted again.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from typing import Any

from pe_agent.agent.exports.publisher import ExportPublisher
from pe_agent.agent.exports.state_codec import save_publisher
from pe_agent.agent.exports.stream.manifests import Manifest, ManifestControl
from streambroker_core.control.tuples import ControlTuple
from streambroker_core.control.tuples.epoch_control import check_epoch
from streambroker_core.control.tuples.request import (
    ControlRequest,
    canonical_text,
    parse_control_request,
)
from streambroker_core.control.tuples.window_bounds import make_control_head
from streambroker_core.errors import StreambrokerError

REMEMBERED_TUPLES = 1_000
"""How many tuples that are in epochs an export remembers, for repeated requests and reports."""
MAX_REQUEST_ID = 128
"""Characters of a request's id."""


class RequestDiffersError(StreambrokerError):
    """A request id with two contents, or that cannot be one; nothing was emitted."""

    code = "RequestDiffers"


class ExportFullError(StreambrokerError):
    """The log is full of what readers have not finished; nothing was emitted."""

    code = "ExportFull"


class NotEmittedError(StreambrokerError):
    """Nobody emitted such a tuple here, or so long ago that it is forgotten."""

    code = "NotEmitted"


class ControlSender(ExportPublisher):
    """What the outside asks of an export. All public calls are safe from any thread."""

    _has_waiting = True

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._unrecorded_epochs: list[tuple[str, int, int]] = []
        """Stream, epoch and last number of what is in an epoch, and not in the store yet."""

    def emit(self, request: str, body: dict[str, Any]) -> dict[str, Any]:
        """Send a control tuple to all importers that read control.

        Args:
            request: id of the request; the same one again emits nothing more.
            body: the tuple as :func:`parse_control_request` reads it.

        Returns:
            What :meth:`emitted` says of it; durable when this returns.

        Raises:
            ControlLimitError, ManifestError: it cannot be emitted.
            ExportFullError: the log has no room for it now.
            RequestDiffersError: the request was for another tuple.
        """
        if not 0 < len(request) <= MAX_REQUEST_ID:
            raise RequestDiffersError(f"a request's id has 1 to {MAX_REQUEST_ID} characters.")
        one = parse_control_request(body)
        text = canonical_text(one.encode())
        with self._publishing, self._lock:
            known = self._store.query(
                "SELECT seq, what FROM emitted WHERE export = ? AND request = ?", self.key, request
            )
            if known and known[0][1] != text:
                raise RequestDiffersError(
                    f"request {request} has emitted another control tuple at {self.key}: give each"
                    " tuple a request id of its own."
                )
            seq = known[0][0] if known else self._store_tuple(request, one, text)
            self._emit_waiting()
            self._sweep()
        self._notify()
        return self.emission_status(seq)

    def _store_tuple(self, request: str, control_request: ControlRequest, text: str) -> int:
        """Give a tuple its identity, durably."""
        self._check_room()
        log, seq = self._log_id(), self._next_seq()
        waiting = [tuple_ for _, tuple_ in self._waiting_tuples(log)]
        check_epoch([*waiting, control_request.with_identity(log, seq)], f"export {self.key}")
        self._has_waiting = True
        with self._store.transaction(durable=True) as db:
            db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (self._log_key, log))
            db.execute(
                "INSERT INTO emitted (export, seq, request, what) VALUES (?, ?, ?, ?)",
                (self.key, seq, request, text),
            )
            db.execute(
                "DELETE FROM emitted WHERE export = ? AND seq < ? AND epoch IS NOT NULL",
                (self.key, seq - REMEMBERED_TUPLES),
            )
        self.accepted[control_request.delivery.value] += 1
        return seq

    def _check_room(self) -> None:
        holders = self.ledger.blocking_readers(self._clock())
        if holders:
            names = ", ".join(f"{h.import_} ({h.bytes:,} bytes)" for h in holders)
            raise ExportFullError(
                f"the log of export {self.key} is full of what {names} has not finished, and takes"
                " no control tuples before it has. Nothing was emitted; try again later."
            )

    @property
    def _log_key(self) -> str:
        return f"emits/{self.key}"

    def _log_id(self) -> str:
        """Return the id of the log that names the tuples from outside."""
        return self._store.get(self._log_key) or secrets.token_hex(8)

    def _next_seq(self) -> int:
        found = self._store.query("SELECT MAX(seq) FROM emitted WHERE export = ?", self.key)
        return 0 if found[0][0] is None else int(found[0][0]) + 1

    def _waiting_tuples(self, log: str) -> list[tuple[int, ControlTuple]]:
        """Return the tuples that are in no epoch yet, with their numbers."""
        rows = self._store.query(
            "SELECT seq, what FROM emitted WHERE export = ? AND epoch IS NULL ORDER BY seq",
            self.key,
        )
        return [
            (seq, parse_control_request(json.loads(what)).with_identity(log, seq))
            for seq, what in rows
        ]

    def _emit_waiting(self) -> None:
        """Open an epoch for the tuples that are in none; without a stream they wait for one."""
        self._record_epochs()
        stream = self.newest
        if stream is None or not self._has_waiting:
            return
        log = self._log_id()
        waiting = self._waiting_tuples(log)
        if not waiting:
            self._has_waiting = False
            return
        known = self.ledger.streams[stream.id]
        self._extend_end(stream.id, known.next + 1)
        controls = [one for _, one in waiting]
        last = waiting[-1][0]
        manifest = Manifest(
            epoch=known.next,
            query="",
            run="",
            batch=-1,
            rows=0,
            bytes=0,
            published=self._clock(),
            ddl=stream.ddl,
            rows_before=known.rows,
            blocks=(),
            control=ManifestControl(
                head=make_control_head(known.next, controls), emitted=(log, last + 1)
            ),
        )
        self._append_epoch(stream, manifest, [(0, one) for one in controls])
        self._unrecorded_epochs.append((stream.id, manifest.epoch, last))
        self._has_waiting = False
        self._record_position(stream, manifest)
        self._record_epochs()

    def _extend_end(self, stream: str, next_: int) -> None:
        """Let an export that has ended have ended behind the epoch that comes; before it does."""
        if self.publisher.ended is not None and self.publisher.ended == self._end_position():
            self.publisher.ended = (stream, next_)
            save_publisher(self.publisher, self._store, durable=True)

    def _record_epochs(self) -> None:
        while self._unrecorded_epochs:
            self._record_epoch(*self._unrecorded_epochs[0])
            del self._unrecorded_epochs[0]

    def _record_epoch(self, stream: str, epoch: int, last: int) -> None:
        with self._store.transaction(durable=True) as db:
            db.execute(
                "UPDATE emitted SET stream = ?, epoch = ?"
                " WHERE export = ? AND epoch IS NULL AND seq <= ?",
                (stream, epoch, self.key, last),
            )

    def _recover_emitted(self) -> None:
        """Note what manifests have, then emit the rest."""
        log = self._log_id()
        for stream in self.streams.values():
            for manifest in sorted(stream.manifests.values(), key=lambda m: m.epoch):
                emitted = manifest.control.emitted if manifest.control else None
                if emitted is not None and emitted[0] == log:
                    self._record_epoch(stream.id, manifest.epoch, emitted[1] - 1)
        self._emit_waiting()

    def emission_status(self, seq: int) -> dict[str, Any]:
        """Return where a tuple from outside is, and which readers have applied it.

        Returns:
            ``id``, ``seq``, ``stream`` and ``epoch`` (null while it waits for the first epoch),
            ``readers`` (those of control: ``reader``, ``import``, ``applied``, ``away`` seconds),
            and ``applied``: there are readers, and all of them have finished a window with it.

        Raises:
            NotEmittedError: there is no such tuple (any more).
        """
        with self._lock:
            rows = self._store.query(
                "SELECT stream, epoch FROM emitted WHERE export = ? AND seq = ?", self.key, seq
            )
            if not rows:
                raise NotEmittedError(
                    f"export {self.key} knows no control tuple from outside with number {seq}; it"
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
        """Return the readers of control that live or are within grace."""
        now = self._clock()
        return [
            {
                "reader": r.id,
                "import": r.import_,
                "applied": (c := r.cursors.get(stream)) is not None and c.next > epoch,
                "away": max(0.0, now - r.lease_expires),
            }
            for r in self.ledger.readers.values()
            if r.control and r.routed and now <= r.lease_expires + self.ledger.limits.grace
        ]
