"""The agent's control log: tuples for the job's own operators, durable, with a sequence.

One source of a query carries it: its offset has the log's id and the first number that it has not
read, so that control is pinned with data and filter, and replays the same. What no reader needs any
more is removed; the last entries stay, for repeated requests and reports.
"""

from __future__ import annotations

import json
import logging
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from pe_agent.agent.state.store import Store
from streambroker_core.control.tuples import MAX_BYTES, MAX_TUPLES, ControlTuple
from streambroker_core.control.tuples.epoch_control import check_epoch
from streambroker_core.control.tuples.request import (
    ControlRequest,
    canonical_text,
    parse_control_request,
)
from streambroker_core.errors import StreambrokerError
from streambroker_core.ledger.ledger import DataLossError

log = logging.getLogger("pe_agent")

RETAINED_ENTRIES = 1_000
READER_GRACE_SECONDS = 600.0
"""Seconds for which a reader that is away still holds what it has not read."""
MAX_REQUEST_ID = 128


class ControlLogFullError(StreambrokerError):
    """Readers have too much of the log before them; nothing was appended."""

    code = "ControlLogFull"


class RequestDiffersError(StreambrokerError):
    """A request id that cannot be one, or that was used for something else."""

    code = "RequestDiffers"


class NotLoggedError(StreambrokerError):
    """The log does not have such an entry, or has it no more."""

    code = "NotEmitted"


class ControlLogTwiceError(StreambrokerError):
    """Two sources of one query are to carry the control log."""

    code = "ControlLogTwice"


class ControlLog:
    """One per agent. Safe from any thread.

    Attributes:
        id: the first half of the identity of all that is in it.
        accepted: entries since the agent's start, by delivery.
        applied: those that readers have finished a window with, likewise; one for each reader.
    """

    def __init__(
        self,
        store: Store,
        on_change: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open what the store has.

        Args:
            store: the agent's.
            on_change: called when there is something new.
            clock: seconds, never going back.
        """
        self._store = store
        self._on_change = on_change
        self._clock = clock
        self._lock = threading.Lock()
        found = store.get("control_log")
        if found is None:
            found = secrets.token_hex(8)
            store.set("control_log", found)
        self.id = found
        self._next_seq = self._number("SELECT MAX(seq) FROM control_log", -1) + 1
        self.accepted: Counter[str] = Counter()
        self.applied: Counter[str] = Counter()
        now = clock()
        self._readers = {r: (n, now) for r, n in store.query("SELECT * FROM control_readers")}

    def _number(self, sql: str, default: int) -> int:
        value = self._store.query(sql)[0][0]
        return default if value is None else int(value)

    @property
    def next_seq(self) -> int:
        """The number that the next entry gets."""
        return self._next_seq

    # -- writing -----------------------------------------------------------------------------

    def append(self, request: str, body: dict[str, Any]) -> dict[str, Any]:
        """Take a tuple; it is durable when this returns.

        Args:
            request: id of the request; the same one again appends nothing more.
            body: the tuple as :func:`parse_control_request` reads it.

        Returns:
            What :meth:`entry` says of it.

        Raises:
            ControlLimitError, ManifestError: it cannot be emitted.
            ControlLogFullError: a reader has too much before it.
            RequestDiffersError: the request was for another tuple.
        """
        if not 0 < len(request) <= MAX_REQUEST_ID:
            raise RequestDiffersError(f"a request's id has 1 to {MAX_REQUEST_ID} characters.")
        one = parse_control_request(body)
        text = canonical_text(one.encode())
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
                seq = self._next_seq
                check_epoch([one.with_identity(self.id, seq)], "the control log")
                self._check_room(len(text))
                self._insert(seq, request, one)
        self._on_change()
        return self.entry(known[0][0] if known else seq)

    def _insert(self, seq: int, request: str, control_request: ControlRequest) -> None:
        text = canonical_text(control_request.encode())
        with self._store.transaction(durable=True) as db:
            db.execute("INSERT INTO control_log VALUES (?, ?, ?)", (seq, request, text))
            db.execute(
                "DELETE FROM control_log WHERE seq < ?",
                (min(self._min_position(), seq + 1 - RETAINED_ENTRIES),),
            )
        self._next_seq = seq + 1
        self.accepted[control_request.delivery.value] += 1

    def _check_room(self, size: int) -> None:
        floor = self._min_position()
        if floor == self._next_seq:
            return
        held, before = self._store.query(
            "SELECT COUNT(*), SUM(LENGTH(what)) FROM control_log WHERE seq >= ?", floor
        )[0]
        if held < MAX_TUPLES and (before or 0) + size <= MAX_BYTES:
            return
        reader = min(self._active_positions().items(), key=lambda r: r[1])[0]
        raise ControlLogFullError(
            f"reader {reader} has {held} entries of the control log before it, {before} bytes; the"
            f" limit is {MAX_TUPLES} entries, {MAX_BYTES} bytes. Nothing was appended: let its"
            " query run, or stop it for good."
        )

    def _active_positions(self) -> dict[str, int]:
        """Return how far the readers are that live or are within grace."""
        now = self._clock()
        return {
            r: n for r, (n, seen) in self._readers.items() if now <= seen + READER_GRACE_SECONDS
        }

    def backlog(self) -> int:
        """Return how many entries the reader that is farthest behind has before it."""
        with self._lock:
            return self._next_seq - self._min_position()

    def _min_position(self) -> int:
        """Return the first number that a reader still needs."""
        return min(self._active_positions().values(), default=self._next_seq)

    # -- reading -----------------------------------------------------------------------------

    def first_retained(self) -> int:
        """Return the first number that is retained."""
        return self._number("SELECT MIN(seq) FROM control_log", self._next_seq)

    def acknowledge(self, reader: str, next_: int) -> None:
        """Note how far a reader has come; it is asked with an offset that includes it."""
        with self._lock:
            known = self._readers.get(reader)
            self._readers[reader] = (next_, self._clock())
            if known is not None and known[0] == next_:
                return
            if known is not None:
                self.applied.update(self._deliveries(known[0], next_))
            self._store.write("INSERT OR REPLACE INTO control_readers VALUES (?, ?)", reader, next_)
            gone = self._readers.keys() - self._active_positions().keys()
            for one in gone if known is None else ():
                self._store.write("DELETE FROM control_readers WHERE reader = ?", one)
                del self._readers[one]

    def _deliveries(self, first: int, next_: int) -> Iterator[str]:
        rows = self._store.query(
            "SELECT what FROM control_log WHERE seq >= ? AND seq < ?", first, next_
        )
        return (str(json.loads(what)["delivery"]) for (what,) in rows)

    def window_end(self, first: int, tuples: int, payload: int, limit: int | None = None) -> int:
        """Return the number before which a window ends that begins at ``first``.

        Args:
            first: the first entry that was not read.
            tuples: how many tuples the window has room for.
            payload: bytes that it has room for; one entry is taken whatever it has.
            limit: do not read at or above this; None for no limit.
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
        """Return what entries ``[first, next_)`` come to, in bytes."""
        rows = self._store.query(
            "SELECT SUM(LENGTH(what)) FROM control_log WHERE seq >= ? AND seq < ?", first, next_
        )
        return int(rows[0][0] or 0)

    def read_range(
        self, id_: str, first: int, next_: int, *, skip_lost: bool
    ) -> list[ControlTuple]:
        """Return the tuples ``[first, next_)`` that an offset has pinned.

        Raises:
            DataLossError: some are gone, or the log is another one, and the reader is not lossy.
        """
        rows = self._store.query(
            "SELECT seq, what FROM control_log WHERE seq >= ? AND seq < ? ORDER BY seq",
            first,
            next_,
        )
        found = rows if id_ == self.id else []
        if len(found) < next_ - first:
            missing = next_ - first - len(found)
            why = f"{missing} control tuples of this agent's control log, now {self.id}"
            if not skip_lost:
                raise DataLossError(f"control log {id_}", first, next_, f"{why}, are not there")
            log.warning("goes on without %s", why)
        return [
            parse_control_request(json.loads(what)).with_identity(id_, seq) for seq, what in found
        ]

    def entry(self, seq: int) -> dict[str, Any]:
        """Return the identity of an entry, and who has applied it.

        Returns:
            ``id``, ``seq``, ``readers`` (``reader``, ``applied``), and ``applied``: there are
            readers that carry the log, and all of them have finished a window with it.

        Raises:
            NotLoggedError: there is no such entry (any more).
        """
        if not self._store.query("SELECT 1 FROM control_log WHERE seq = ?", seq):
            raise NotLoggedError(
                f"the control log has no entry {seq}: it has those from {self.first_retained()} to"
                f" {self._next_seq - 1}."
            )
        with self._lock:
            counted = self._active_positions()
        readers = [{"reader": r, "applied": n > seq} for r, n in sorted(counted.items())]
        return {
            "id": f"{self.id}/{seq}",
            "seq": seq,
            "readers": readers,
            "applied": bool(readers) and all(r["applied"] for r in readers),
        }
