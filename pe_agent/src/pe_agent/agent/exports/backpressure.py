"""Backpressure of an export: readers it waits for, wait limits, and deadlocks."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pe_agent.agent.exports.export_state import ExportState
from streambroker_core.errors import StreambrokerError
from streambroker_core.ledger.retention import BlockingReader
from streambroker_core.ledger.wait_chains import RING_SECONDS, WaitChains
from streambroker_core.model import job_of

log = logging.getLogger("pe_agent")

SELF_WAIT_SECONDS = 60.0
"""Time for which readers of the publisher's own job may make no progress while it waits."""


RETRY_WINDOW_SECONDS = 6.0
"""Waiting tasks retry sooner; a longer pause does not count as waiting."""


class SelfWaitError(StreambrokerError):
    """An export would wait for its own publisher forever; nothing was staged."""

    code = "SelfWait"


class WaitTimes:
    """Sums the times between failed admissions; guarded by the export's lock.

    ``seconds`` is the total, however many tasks waited at once.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._since: float | None = None
        self._last_attempt = 0.0
        self._holders: frozenset[str] = frozenset()
        self._seconds_by_reader: dict[str, float] = {}

    def note_attempt(self, now: float, holders: Collection[str]) -> None:
        """Record a failed admission that waits for ``holders``; empty if admitted."""
        if self.since(now) is None:
            self._since = None
        else:
            elapsed = max(0.0, now - self._last_attempt)
            self.seconds += elapsed
            for reader in self._holders:
                self._seconds_by_reader[reader] = self._seconds_by_reader.get(reader, 0.0) + elapsed
        self._last_attempt, self._holders = now, frozenset(holders)
        if not holders:
            self._since = None
        elif self._since is None:
            self._since = now

    def since(self, now: float) -> float | None:
        """Return since when a task waits, None if none does."""
        return self._since if now - self._last_attempt <= RETRY_WINDOW_SECONDS else None

    def seconds_for(self, reader: str) -> float:
        """Return the seconds waited for a reader."""
        return self._seconds_by_reader.get(reader, 0.0)

    def forget(self, reader: str) -> None:
        """Remove an evicted reader."""
        self._seconds_by_reader.pop(reader, None)


class Backpressure:
    """Readers that an export waits for. Public methods are thread-safe."""

    def __init__(self, state: ExportState) -> None:
        self._state = state
        self._retention = state.ledger.retention
        self._key = state.key
        self.wait_times = WaitTimes()
        self._chains = WaitChains(state.key)
        self._last_waiter = ("", -math.inf)
        """The last query that asked for admission in vain, and when."""

    def blocking_readers(self) -> list[BlockingReader]:
        """Return the readers that block the export now, slowest first; counts as a wait."""
        with self._state.lock:
            return self._blocking_readers_at(self._state.clock())

    def _blocking_readers_at(self, now: float) -> list[BlockingReader]:
        holders = self._retention.blocking_readers(now)
        self.wait_times.note_attempt(now, [h.reader for h in holders])
        limit, since = self._retention.limits.wait_limit, self.wait_times.since(now)
        if limit is None or since is None or now - since < limit:
            return self._chains.mark_rings(holders, now)
        self._demote_slowest(now)
        self.wait_times.note_attempt(now, ())
        return []

    def _demote_slowest(self, now: float) -> None:
        for reader in self._retention.demote_slowest(now):
            self._state.save_reader(reader.id)
            log.warning(
                "export %s has waited for %s for as long as buffer.waitLimit allows: reader %s"
                " drops rows until it has caught up",
                self._key,
                reader.import_,
                reader.id,
            )
        self._state.sweep()

    def check_admission(self, query: str, now: float) -> dict[str, Any] | None:
        """Return what a query must wait for, None if for nothing; the caller holds the lock.

        Raises:
            SelfWaitError: the query would wait for itself.
        """
        holders = self._blocking_readers_at(now)
        if not holders:
            return None
        self._refuse_self_wait(query, holders, now)
        self._last_waiter = query, now
        return {
            "held": self._retention.held_bytes(now),
            "limit": self._retention.limits.max_bytes,
            "memory": self._retention.held_memory(now),
            "memory_limit": self._retention.max_memory,
            "since": self.wait_times.since(now),
            "holders": [
                {"reader": h.reader, "import": h.import_, "bytes": h.bytes, "away": h.away}
                for h in holders
            ],
        }

    def forget(self, reader: str) -> None:
        """Remove an evicted reader; the caller holds the export's lock."""
        self.wait_times.forget(reader)
        self._chains.forget((reader,))

    def note_wait_chains(self, import_: str, chains: Mapping[str, Sequence[str]]) -> None:
        """Record the exports that readers' queries wait for, as their agent reports."""
        if not (any(chains.values()) or self._chains.has_reports):
            return
        with self._state.lock:
            for id_, chain in chains.items():
                reader = self._state.ledger.readers.get(id_)
                if reader is not None and reader.import_ == import_:
                    self._chains.record(id_, chain, self._state.clock())

    def wait_chain(self, query: str, *, gated: bool) -> list[str]:
        """Return the exports for which a query waits here, this one first; empty if none.

        A ``gated`` query reads nothing because the export is full. Any other query waits if one of
        its tasks has recently asked for admission in vain.
        """
        with self._state.lock:
            now, (waiter, at) = self._state.clock(), self._last_waiter
            waits = gated or (waiter == query and now - at <= RETRY_WINDOW_SECONDS)
            if not waits or self._retention.limits.wait_limit is not None:
                return []
            return self._chains.blocking_exports(self._retention.blocking_readers(now), now)

    def _refuse_self_wait(self, query: str, holders: list[BlockingReader], now: float) -> None:
        own = next((h for h in holders if h.query == query), None)
        if own is not None:
            raise SelfWaitError(
                f"export {self._key} is full of rows that {own.import_} has not finished, and the"
                f" query that reads that import is the one that publishes here: it would wait for"
                " itself. Give the export a larger buffer.maxBytes, read and publish in two"
                " queries, or read that import under `drop`."
            )
        ring = next((h for h in holders if h.ring is not None), None)
        if ring is not None:
            raise SelfWaitError(
                f"export {self._key} is full of rows that {ring.import_} has not finished; the"
                f" query that reads that import waits for {', '.join(ring.ring or ('it',))},"
                " which waits for this export in turn. They wait for each other in a ring, and"
                f" nothing in it has progressed for {RING_SECONDS:.0f} s. Read one of the imports"
                " in the ring under `drop`, or give an export in it a buffer.waitLimit or a"
                " larger buffer.maxBytes."
            )
        job = job_of(self._key)
        idle = now - max(self.wait_times.since(now) or now, *(h.last_progress for h in holders))
        if idle > SELF_WAIT_SECONDS and all(job_of(h.import_) == job for h in holders):
            names = ", ".join(sorted({h.import_ for h in holders}))
            raise SelfWaitError(
                f"export {self._key} has been full for {idle:.0f} s of rows that {names} of the"
                " same job did not finish, and none of them has progressed: their queries seem"
                " to wait for the tasks of this one. Give the job more cores, a larger"
                " buffer.maxBytes, or read these imports under `drop`."
            )
