"""Agent's control log: durable, numbered control tuples for the job's own operators.

One source of a query carries it. Its offset has the log's id and the first unread number, so that
control is pinned with data and filter, and replays identically. Entries that no reader needs are
removed. The last `RETAINED_ENTRIES` stay for repeated requests and reports.
"""

from __future__ import annotations

import json
import logging
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, TypedDict

from pe_agent.agent.state.store import FIRST_SEQ, Store
from streambroker_core.control.tuples import MAX_BYTES, MAX_TUPLES, ControlTuple
from streambroker_core.control.tuples.epoch_control import check_epoch
from streambroker_core.control.tuples.request import (
    ControlRequest,
    canonical_text,
    parse_control_request,
)
from streambroker_core.errors import StreambrokerError
from streambroker_core.ledger.losses import DataLossError

log = logging.getLogger("pe_agent")

RETAINED_ENTRIES = 1_000
READER_GRACE_SECONDS = 600.0
"""Time for which an inactive reader still retains its unread entries."""
MAX_REQUEST_ID = 128
"""Maximum characters of a request id."""


class ControlLogFullError(StreambrokerError):
    """A reader has too many unread entries; nothing was appended."""

    code = "ControlLogFull"


class RequestDiffersError(StreambrokerError):
    """A request id is invalid, or was used for another tuple; nothing was emitted."""

    code = "RequestDiffers"


class NotLoggedError(StreambrokerError):
    """The log has no such entry, or has removed it."""

    code = "NotEmitted"


class ControlLogTwiceError(StreambrokerError):
    """Two sources of one query would carry the control log."""

    code = "ControlLogTwice"


def read_request(request: str, body: dict[str, Any]) -> tuple[ControlRequest, str]:
    """Return a control tuple that is to be emitted, and its canonical text.

    Raises:
        ControlLimitError, ManifestError: the tuple is invalid.
        RequestDiffersError: the request id is too long, or empty.
    """
    if not 0 < len(request) <= MAX_REQUEST_ID:
        raise RequestDiffersError(f"a request's id has 1 to {MAX_REQUEST_ID} characters.")
    control_request = parse_control_request(body)
    return control_request, canonical_text(control_request.encode())


class ReaderState(TypedDict):
    """Whether a reader has applied an entry."""

    reader: str
    applied: bool


class EntryStatus(TypedDict):
    """An entry of the log by its identity and number.

    ``applied``: the log has readers, and all of them have finished the entry's window.
    """

    id: str
    seq: int
    readers: list[ReaderState]
    applied: bool


class ControlLog:
    """Control log of one agent. Thread-safe.

    Attributes:
        id: first part of the identity of its tuples.
        next_seq: number of the next entry.
        accepted: entries since the agent's start, by delivery.
        applied: entries whose window a reader has finished, by delivery; counted per reader.
    """

    def __init__(
        self,
        store: Store,
        on_change: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open the log in the agent's store; ``on_change`` is called for new entries."""
        self._store = store
        self._on_change = on_change
        self._clock = clock
        self._lock = threading.Lock()
        id_ = store.get("control_log")
        if id_ is None:
            id_ = secrets.token_hex(8)
            store.set("control_log", id_)
        self.id = id_
        self.next_seq = store.next_seq("SELECT MAX(seq) FROM control_log")
        self._branch = store.value(FIRST_SEQ, int, 0)
        self.accepted: Counter[str] = Counter()
        self.applied: Counter[str] = Counter()
        now = clock()
        self._readers = {r: (n, now) for r, n in store.query("SELECT * FROM control_readers")}

    def _number(self, sql: str, default: int) -> int:
        value = self._store.query(sql)[0][0]
        return default if value is None else int(value)

    # -- writing -----------------------------------------------------------------------------

    def append(self, request: str, body: dict[str, Any]) -> EntryStatus:
        """Append a tuple, durably; return its :meth:`entry`. A repeated request id appends nothing.

        Raises:
            ControlLimitError, ManifestError: the tuple cannot be emitted.
            ControlLogFullError: a reader has too many unread entries.
            RequestDiffersError: the request id was used for another tuple.
        """
        control_request, text = read_request(request, body)
        with self._lock:
            known = self._store.query(
                "SELECT seq, what FROM control_log WHERE request = ?", request
            )
            if known and known[0][1] != text:
                raise RequestDiffersError(
                    f"request {request} has put another tuple into the control log: give each"
                    " tuple a request id of its own."
                )
            if not known:
                seq = self.next_seq
                check_epoch([control_request.with_identity(self.id, seq)], "the control log")
                self._check_room(len(text))
                self._insert(seq, request, text)
                self.accepted[control_request.delivery.value] += 1
        self._on_change()
        return self.entry(known[0][0] if known else seq)

    def _insert(self, seq: int, request: str, text: str) -> None:
        with self._store.transaction(durable=True) as db:
            db.execute("INSERT INTO control_log VALUES (?, ?, ?)", (seq, request, text))
            db.execute(
                "DELETE FROM control_log WHERE seq < ? AND seq <="
                " (SELECT seq FROM control_log ORDER BY seq DESC LIMIT 1 OFFSET ?)",
                (self._min_position(), RETAINED_ENTRIES),
            )
        self.next_seq = seq + 1

    def _check_room(self, size: int) -> None:
        floor = self._min_position()
        if floor == self.next_seq:
            return
        count, bytes_ = self._store.query(
            "SELECT COUNT(*), SUM(LENGTH(what)) FROM control_log WHERE seq >= ?", floor
        )[0]
        if count < MAX_TUPLES and (bytes_ or 0) + size <= MAX_BYTES:
            return
        reader = min(self._active_positions().items(), key=lambda r: r[1])[0]
        raise ControlLogFullError(
            f"reader {reader} has {count} entries of the control log still to read, {bytes_}"
            f" bytes; the limit is {MAX_TUPLES} entries, {MAX_BYTES} bytes. Nothing was appended:"
            " let its query run, or stop it for good."
        )

    def _active_positions(self) -> dict[str, int]:
        """Return the positions of active readers, including those within grace."""
        now = self._clock()
        return {
            r: n for r, (n, seen) in self._readers.items() if now <= seen + READER_GRACE_SECONDS
        }

    def backlog(self) -> int:
        """Return the number of unread entries of the slowest reader."""
        with self._lock:
            first = self._min_position()
        return int(
            self._store.query("SELECT COUNT(*) FROM control_log WHERE seq >= ?", first)[0][0]
        )

    def _min_position(self) -> int:
        return min(self._active_positions().values(), default=self.next_seq)

    # -- reading -----------------------------------------------------------------------------

    def first_retained(self) -> int:
        """Return the first retained number."""
        return self._number("SELECT MIN(seq) FROM control_log", self.next_seq)

    def acknowledge(self, reader: str, next_: int) -> None:
        """Record a reader's position: its offset includes all entries below ``next_``."""
        with self._lock:
            known = self._readers.get(reader)
            self._readers[reader] = (next_, self._clock())
            if known is not None and known[0] == next_:
                return
            if known is not None:
                self.applied.update(self._deliveries(known[0], next_))
            self._store.write("INSERT OR REPLACE INTO control_readers VALUES (?, ?)", reader, next_)
            stale = self._readers.keys() - self._active_positions().keys()
            for stale_reader in stale if known is None else ():
                self._store.write("DELETE FROM control_readers WHERE reader = ?", stale_reader)
                del self._readers[stale_reader]

    def _deliveries(self, first: int, next_: int) -> Iterator[str]:
        rows = self._store.query(
            "SELECT what FROM control_log WHERE seq >= ? AND seq < ?", first, next_
        )
        return (str(json.loads(what)["delivery"]) for (what,) in rows)

    def window_end(self, first: int, tuples: int, payload: int, limit: int | None = None) -> int:
        """Return the end of a window ``[first, end)`` of at most ``tuples`` and ``payload`` bytes.

        The first entry is included at any size, but none at or above ``limit``.
        """
        end = first
        for seq, size in self._store.query(
            "SELECT seq, LENGTH(what) FROM control_log WHERE seq >= ? ORDER BY seq LIMIT ?",
            first,
            max(1, tuples),
        ):
            payload -= size
            if (limit is not None and seq >= limit) or (payload < 0 and end > first):
                return end
            end = seq + 1
        return end

    def size(self, first: int, next_: int) -> int:
        """Return the size of entries ``[first, next_)`` in bytes."""
        rows = self._store.query(
            "SELECT SUM(LENGTH(what)) FROM control_log WHERE seq >= ? AND seq < ?", first, next_
        )
        return int(rows[0][0] or 0)

    def read_range(
        self, id_: str, first: int, next_: int, *, skip_lost: bool
    ) -> list[ControlTuple]:
        """Return the tuples ``[first, next_)`` of an offset.

        Raises:
            DataLossError: entries are missing, or the log was replaced, and ``skip_lost`` is false.
        """
        rows = self._store.query(
            "SELECT seq, what FROM control_log WHERE seq >= ? AND seq < ? ORDER BY seq",
            first,
            next_,
        )
        present = rows if id_ == self.id else []
        # Numbers before a restored snapshot's first one were left out.
        expected = next_ - (max(first, self._branch) if next_ > self._branch else first)
        missing = expected - sum(seq >= next_ - expected for seq, _ in present)
        if missing:
            why = f"{missing} control tuples of this agent's control log, now {self.id}"
            if not skip_lost:
                raise DataLossError(f"control log {id_}", first, next_, f"{why}, are missing")
            log.warning("continuing without %s", why)
        return [
            parse_control_request(json.loads(what)).with_identity(id_, seq) for seq, what in present
        ]

    def entry(self, seq: int) -> EntryStatus:
        """Return the identity of an entry, and the readers that have applied it.

        Raises:
            NotLoggedError: there is no such entry (any more).
        """
        if not self._store.query("SELECT 1 FROM control_log WHERE seq = ?", seq):
            raise NotLoggedError(
                f"the control log has no entry {seq}: it has those from {self.first_retained()} to"
                f" {self.next_seq - 1}."
            )
        with self._lock:
            positions = self._active_positions()
        readers = [ReaderState(reader=r, applied=n > seq) for r, n in sorted(positions.items())]
        return {
            "id": f"{self.id}/{seq}",
            "seq": seq,
            "readers": readers,
            "applied": bool(readers) and all(r["applied"] for r in readers),
        }
