"""State shared by both sides of an export: log, ledger and store, with retention.

One lock per export guards it; rows are written outside the lock.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

from pe_agent.agent.exports.state_codec import encode_reader
from pe_agent.agent.exports.stream import retained_epochs as retained
from pe_agent.agent.exports.stream.delivery_counts import DeliveryCounts
from pe_agent.agent.exports.stream.export_stream import ExportStream
from pe_agent.agent.exports.wait_times import WaitTimes
from pe_agent.agent.state.orphan_logs import OrphanLogs
from pe_agent.agent.state.store import FORGOTTEN, REMOVED, Store
from pe_agent.log.commit import Committer
from streambroker_core.ledger.ledger import Ledger
from streambroker_core.ledger.publisher import Publisher
from streambroker_core.ledger.retention import RetentionLimits
from streambroker_core.ledger.wait_chains import WaitChains

log = logging.getLogger("pe_agent")

SEGMENT_BYTES = 64 << 20


_STARTED = time.time() - time.monotonic()


def steady_clock() -> float:
    """Return Unix seconds that never jump, so that setting a clock ends no lease."""
    return _STARTED + time.monotonic()


class ExportState:
    """State and retention of one export of this agent's PE.

    Attributes:
        published_rows: rows of all streams ever published; never decreases.
        accepted: external control tuples since the agent's start, by delivery.
        published: control tuples in epochs since the agent's start, by delivery.
    """

    def __init__(
        self,
        key: str,
        directory: Path,
        store: Store,
        committer: Committer,
        *,
        notify: Callable[[], None],
        clock: Callable[[], float] = steady_clock,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        self.key = key
        self.streams: dict[str, ExportStream] = {}
        self.ledger = Ledger()
        self.publisher = Publisher(key)
        self.deliveries = DeliveryCounts(self.streams, self._rows_between)
        self.wait_times = WaitTimes()
        self.chains = WaitChains(key)
        self.published_rows = 0
        self.accepted: Counter[str] = Counter()
        self.published: Counter[str] = Counter()
        self._directory = directory
        self._orphan_logs = OrphanLogs(store, key, directory)
        self._store = store
        self._committer = committer
        self._notify = notify
        self._clock = clock
        self._segment_bytes = segment_bytes
        self._lock = threading.RLock()
        self._publishing = threading.RLock()
        """Held for a whole publish, including calls to shard agents; acquired before `_lock`."""
        self.ledger.routes.restore_cut(store.value(f"cut/{key}", json.loads, []))
        self._view_limits = store.value(
            f"limits/{key}", lambda text: RetentionLimits(**json.loads(text)), None
        )
        self.ledger.retention.limits = self._view_limits or RetentionLimits()

    @property
    def newest(self) -> ExportStream | None:
        """The growing stream, None if the next epoch opens one."""
        last = next(reversed(self.streams.values()), None)
        return None if last is None or self.ledger.streams[last.id].sealed else last

    def _rows_between(self, stream: str, first: int, next_: int) -> int:
        known = self.ledger.streams.get(stream)
        return 0 if known is None else known.rows_between(first, next_)

    def _present_epochs(self, stream: str, first: int, next_: int) -> Iterator[int]:
        known = self.ledger.streams.get(stream)
        for low, high in () if known is None else known.retained_ranges(first, next_):
            yield from range(low, high)

    def heads(self) -> dict[str, int]:
        """Return the next epoch number of each stream."""
        with self._lock:
            return {s.id: s.next for s in self.ledger.streams.values()}

    def ended(self) -> bool:
        """Return whether the publisher has reported the end, and no epoch followed."""
        with self._lock:
            return self.publisher.ended == self._end_position()

    def _end_position(self) -> tuple[str, int]:
        """Return the last stream with an epoch, and its next epoch number."""
        streams = [s for s in self.ledger.streams.values() if s.next]
        return (streams[-1].id, streams[-1].next) if streams else ("", 0)

    def _sweep(self) -> None:
        for name, epochs in self.ledger.retention.sweep(self._clock()).items():
            self.streams[name].remove(epochs)
        oldest = True
        for stream in list(self.ledger.streams.values()):
            empty = stream.sealed and not stream.epochs and not stream.missing
            oldest = oldest and empty
            if empty and stream.id in self.streams:
                self._remove_log(stream.id)
            oldest = oldest and not self.ledger.retention.is_unread(stream.id)
            if oldest:
                self.ledger.forget_stream(stream.id)
                self._store.write(
                    "UPDATE streams SET sealed = ? WHERE id = ?", FORGOTTEN, stream.id
                )

    def _add_stream(self, stream: ExportStream) -> None:
        """Add a stream's log; retained epochs are stored before it removes segments."""
        id_ = stream.id
        self.streams[id_] = stream
        stream.before_drop = lambda: retained.record(
            self._store, id_, retained.current_level(self.ledger.streams[id_])
        )

    def _remove_log(self, id_: str) -> None:
        """Delete the log of a stream without epochs; its totals are kept."""
        known = self.ledger.streams[id_]
        with self._store.transaction() as db:
            db.execute(
                "UPDATE streams SET sealed = ?, next = ?, rows = ? WHERE id = ?",
                (REMOVED, known.next, known.rows, id_),
            )
            retained.forget(id_, db)
            self._orphan_logs.add(id_, db)
        self.streams.pop(id_).log.close()
        self._orphan_logs.remove(id_)

    def _save_reader(self, id_: str) -> None:
        reader = self.ledger.readers[id_]
        state = encode_reader(reader, self.deliveries.for_reader(id_))
        state["rows_before"] = {
            s.id: [
                [n, s.rows_before(n)]
                for n in sorted(reader.referenced_epochs(s.id))
                if s.has_sum(n)
            ]
            for s in self.ledger.streams.values()
        }
        self._store.write(
            "INSERT OR REPLACE INTO readers VALUES (?, ?, ?)", self.key, id_, json.dumps(state)
        )

    def _save_cut(self) -> None:
        """Store the imports without a route: their capabilities must not open the export again."""
        self._store.set(f"cut/{self.key}", json.dumps(list(self.ledger.routes.cut)))

    def _save_limits(self, limits: RetentionLimits) -> None:
        """Store a view's limits; they apply after a restart until the next view."""
        if limits == self._view_limits:
            return
        self._view_limits = limits
        try:
            self._store.set(f"limits/{self.key}", json.dumps(asdict(limits)))
        except sqlite3.Error:
            log.exception("limits are active, but could not be stored", extra={"export": self.key})

    def close(self) -> None:
        """Close the logs."""
        with self._lock:
            for stream in self.streams.values():
                stream.log.close()
