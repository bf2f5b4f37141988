"""Readers of a PE's own imports: their leases, and the addresses of their streams."""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pe_agent.agent.imports.peer_agents import READER_LEASE
from pe_agent.agent.imports.receive_counts import ReceiveCounts
from pe_agent.agent.state.store import Store
from streambroker_core.errors import StreambrokerError
from streambroker_core.ledger.offset import Loss
from streambroker_core.ledger.planner import MAX_READERS, ReadersExceededError
from streambroker_core.ledger.routes import NotRoutedError
from streambroker_core.wire.agent_rpc.reader import Busy, ReaderLease


class ReaderInUseError(StreambrokerError):
    """Two running processes use one checkpoint; the second one stops."""

    code = "ReaderInUse"

    def __init__(self, reader: str) -> None:
        super().__init__(
            f"reader {reader} is in use by another active query: was the checkpoint copied, or is"
            " the query running twice? Stop the other one, or start this one with a new"
            " checkpoint."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Missed:
    """Epochs of one stream that were missing when a planned batch was sliced.

    Attributes:
        already_lost: lost epochs counted in the batch's own offset.
        next: end of the batch in the stream.
        lost: the missing epochs and rows.
    """

    already_lost: int
    next: int
    lost: Loss

    def encode(self) -> list[Any]:
        """Encode for the store."""
        return [self.already_lost, self.next, *self.lost]


@dataclass(slots=True)
class ImportReader:
    """A reader of an import of this PE.

    Attributes:
        session: source process that holds the lease, until ``lease_expires`` (monotonic seconds).
        export_by_stream: export by stream, including streams whose route is gone.
        addresses: last known address of each export's agent.
        passes: credentials from exporters' agents for requests without a capability, by export.
        acknowledged: positions reported to the exporters, by export.
        finished: exports without a route that retain nothing for the reader.
        pinned: filter and import generation from the last offset on, and ``from``.
        filter_starts: first epoch under the current filter and columns, by export and stream.
        refused: why an export sends nothing, by export.
        refusals: code of that reason, and since when there is one (monotonic seconds).
        calls: number of calls; an older call in progress stops.
        plan_calls: number of plan requests to exporters in this agent incarnation.
        next_route: index of the route asked first, incremented by each call.
        silent: exports that did not respond to the last call.
        ended: the last call had read everything, and all exports have ended.
        refused_since: start of the time in which only refusing exports kept the reader from its
            end (monotonic seconds); else None.
        missed: what the last batch lacked, by stream, until an offset includes it.
        dropped: epochs and rows dropped as configured, from its offset, over all streams.
        lost: epochs and rows lost, from its offset, over all streams.
        rows_below: position in a stream and rows below it, before filters, from its last plan.
        rowless_until: epoch up to which a stream is known to have no further row, by stream.
        frame: name of the import in its query, from its last call.
        stop_at_end: its query ends when all exports have ended and everything is read.
        carries_control_log: its last call carried the agent's control log.
        rules: for a reader that pins rules: progress, ``filter`` sent because of them (None for
            the Import's own filter), and ``why`` that is so.
    """

    id: str
    import_: str
    session: str = ""
    lease_expires: float = 0.0
    renewals: int = 0
    export_by_stream: dict[str, str] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)
    passes: dict[str, str] = field(default_factory=dict)
    acknowledged: dict[str, dict[str, int]] = field(default_factory=dict)
    finished: set[str] = field(default_factory=set)
    pinned: dict[str, Any] = field(default_factory=dict)
    filter_starts: dict[str, dict[str, int]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    refusals: dict[str, tuple[str, float]] = field(default_factory=dict)
    next_route: int = 0
    calls: int = 0
    plan_calls: int = 0
    ended: bool = False
    refused_since: float | None = None
    silent: set[str] = field(default_factory=set)
    missed: dict[str, Missed] = field(default_factory=dict)
    dropped: Loss = (0, 0)
    lost: Loss = (0, 0)
    rows_below: dict[str, tuple[int, int]] = field(default_factory=dict)
    rowless_until: dict[str, int] = field(default_factory=dict)
    frame: str | None = None
    stop_at_end: bool = False
    carries_control_log: bool = False
    rules: dict[str, Any] = field(default_factory=dict)
    call_lock: threading.Lock = field(default_factory=threading.Lock)
    received: ReceiveCounts = field(default_factory=ReceiveCounts)


def _restore_reader(id_: str, state: Mapping[str, Any]) -> ImportReader:
    return ImportReader(
        id=id_,
        import_=state["import"],
        export_by_stream={s: h[0] for s, h in state["homes"].items()},
        addresses=dict(state["homes"].values()),
        passes=state.get("passes", {}),
        missed={
            s: Missed(already_lost=m[0], next=m[1], lost=(m[2], m[3]))
            for s, m in state.get("missed", {}).items()
        },
        filter_starts=state.get("switch", {}),
    )


class ImportReaders:
    """All readers of one PE's imports, at most ``max_readers``, and their leases. Thread-safe."""

    def __init__(self, store: Store) -> None:
        self.max_readers = MAX_READERS
        self._store = store
        self._lock = threading.Lock()
        self._incarnation = secrets.token_hex(8)
        self._readers: dict[str, ImportReader] = {}
        for id_, state in store.states("own_readers", "id").items():
            with store.reading_row("own_readers", id_):
                self._readers[id_] = _restore_reader(id_, state)

    def __contains__(self, id_: str) -> bool:
        return id_ in self._readers

    def __getitem__(self, id_: str) -> ImportReader:
        return self._readers[id_]

    # -- leases ------------------------------------------------------------------------------

    def claim(
        self, id_: str, import_: str, session: str, *, renewals: int | None
    ) -> ImportReader | Busy:
        """Grant the lease to a process, or return the remaining time.

        An unknown reader is added. ``renewals`` is from the last `Busy` response, None at first.

        Raises:
            NotRoutedError: the reader belongs to another import.
            ReaderInUseError: the other process has renewed the lease in the meantime.
            ReadersExceededError: the reader is unknown, and too many are active.
        """
        now = time.monotonic()
        with self._lock:
            reader = self._readers.get(id_) or self._add_reader(id_, import_, now)
            if reader.import_ != import_:
                raise NotRoutedError(
                    f"the checkpoint of reader {id_} is one of import {reader.import_}, not of"
                    f" {import_}. Start the query with a new checkpoint, or set the option `import`"
                    " back."
                )
            if reader.session not in ("", session) and reader.lease_expires > now:
                if renewals is not None and renewals != reader.renewals:
                    raise ReaderInUseError(id_)
                left = reader.lease_expires - now
                return Busy(busy=ReaderLease(seconds=left, renewals=reader.renewals))
            reader.renewals += reader.session == session
            reader.session, reader.lease_expires = session, now + READER_LEASE
            return reader

    def begin_call(self, reader: ImportReader) -> int:
        """Count a call and return its number; it is the reader's newest from now on."""
        with self._lock:
            reader.calls += 1
            return reader.calls

    def number_plan_call(self, reader: ImportReader) -> tuple[str, int]:
        """Return incarnation and a rising number: an abandoned request cannot undo a later one."""
        with self._lock:
            reader.plan_calls += 1
            return self._incarnation, reader.plan_calls

    def _add_reader(self, id_: str, import_: str, now: float) -> ImportReader:
        """Add a reader; at the limit evict the one that has been away longest."""
        if len(self._readers) >= self.max_readers:
            away = [r for r in self._readers.values() if r.lease_expires <= now]
            if not away:
                raise ReadersExceededError(
                    f"{len(self._readers):,} readers of this PE's imports are active; cannot add"
                    f" a reader of {import_}. Stop some, start the query in another job, or start"
                    " this job with a larger $STREAMBROKER_MAX_READERS."
                )
            oldest = min(away, key=lambda r: r.lease_expires)
            del self._readers[oldest.id]
            self._store.write("DELETE FROM own_readers WHERE id = ?", oldest.id)
        reader = self._readers[id_] = ImportReader(id=id_, import_=import_)
        return reader

    def has_room(self) -> bool:
        """Return whether another reader can be added."""
        now = time.monotonic()
        with self._lock:
            readers = self._readers.values()
            return len(readers) < self.max_readers or any(r.lease_expires <= now for r in readers)

    def renew(self, id_: str, session: str) -> bool:
        """Renew a lease; False if another process has it."""
        with self._lock:
            reader = self._readers.get(id_)
            if reader is None or reader.session not in ("", session):
                return False
            reader.session = session
            reader.lease_expires = time.monotonic() + READER_LEASE
            reader.renewals += 1
            return True

    def release(self, id_: str, session: str) -> ImportReader | None:
        """Release the lease of a process that stops; None if another process has it."""
        with self._lock:
            reader = self._readers.get(id_)
            if reader is None or reader.session != session:
                return None
            reader.lease_expires, reader.session = 0.0, ""
            return reader

    def alive(self) -> dict[str, list[str]]:
        """Return the readers with a lease, by import."""
        now = time.monotonic()
        result: dict[str, list[str]] = {}
        with self._lock:
            for reader in self._readers.values():
                if reader.lease_expires > now:
                    result.setdefault(reader.import_, []).append(reader.id)
        return result

    def sessions(self, import_: str) -> set[str]:
        """Return the processes that have a lease of an import."""
        now = time.monotonic()
        with self._lock:
            readers = [r for r in self._readers.values() if r.import_ == import_]
            return {r.session for r in readers if r.session and r.lease_expires > now}

    def find_pass(self, id_: str, export: str) -> str | None:
        """Return a reader's pass for an export; None from an exporter of an older release."""
        known = self._readers.get(id_)
        return None if known is None else known.passes.get(export)

    # -- streams and addresses ---------------------------------------------------------------

    def note_export(
        self,
        reader: ImportReader,
        export: str,
        location: str,
        streams: Iterable[str],
        pass_: str | None = None,
    ) -> None:
        """Store the address, streams and pass of an export, durably."""
        moved = {s: export for s in streams if reader.export_by_stream.get(s) != export}
        known = pass_ is None or reader.passes.get(export) == pass_
        if not moved and known and reader.addresses.get(export) in (None, location):
            return
        with self._lock:
            reader.export_by_stream.update(moved)
            reader.addresses[export] = location
            if pass_ is not None:
                reader.passes[export] = pass_
        self._save(reader)

    def forget(self, reader: ImportReader, streams: Collection[str]) -> None:
        """Forget streams without a position of the reader."""
        if not streams:
            return
        with self._lock:
            reader.export_by_stream = {
                s: e for s, e in reader.export_by_stream.items() if s not in streams
            }
            exports = set(reader.export_by_stream.values())
            reader.addresses = {e: at for e, at in reader.addresses.items() if e in exports}
            reader.passes = {e: shown for e, shown in reader.passes.items() if e in exports}
        self._save(reader)

    def note_missed(self, reader: ImportReader, missed: dict[str, Missed]) -> None:
        """Store what a batch lacks, durably."""
        if reader.missed == missed:
            return
        reader.missed = missed
        self._save(reader)

    def note_filter_starts(
        self, reader: ImportReader, filter_starts: dict[str, dict[str, int]]
    ) -> None:
        """Store where a filter and columns begin, durably."""
        if reader.filter_starts == filter_starts:
            return
        reader.filter_starts = filter_starts
        self._save(reader)

    def _save(self, reader: ImportReader) -> None:
        state = {
            "import": reader.import_,
            "homes": {s: [e, reader.addresses[e]] for s, e in reader.export_by_stream.items()},
            "passes": reader.passes,
            "switch": reader.filter_starts,
            "missed": {s: m.encode() for s, m in reader.missed.items()},
        }
        self._store.write(
            "INSERT OR REPLACE INTO own_readers VALUES (?, ?)", reader.id, json.dumps(state)
        )

    def unfinished(self) -> list[tuple[str, str, str]]:
        """Return address, export and import of plans that active readers may have."""
        now = time.monotonic()
        with self._lock:
            return [
                (location, export, reader.import_)
                for reader in self._readers.values()
                if reader.lease_expires > now
                for export, location in reader.addresses.items()
                if export not in reader.finished
            ]

    def status(self) -> dict[str, Any]:
        """Return the status of the readers, by id."""
        now = time.monotonic()
        with self._lock:
            return {
                r.id: {
                    **r.received.status(),
                    "import": r.import_,
                    "alive": r.lease_expires > now,
                    "frame": r.frame,
                    "stopAtEnd": r.stop_at_end,
                    "pinned": r.pinned,
                    "refused": r.refused,
                    "refusals": {e: [code, now - at] for e, (code, at) in r.refusals.items()},
                    **({"rules": r.rules} if r.rules else {}),
                    "ended": r.ended,
                    "dropped": list(r.dropped),
                    "lost": list(r.lost),
                }
                for r in self._readers.values()
            }
