"""Backpressure of an export: readers it waits for, wait limits, and deadlocks."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence

from pe_agent.agent.exports.export_state import ExportState
from pe_agent.agent.exports.wait_times import RETRY_WINDOW_SECONDS
from streambroker_core.errors import StreambrokerError
from streambroker_core.ledger.retention import BlockingReader
from streambroker_core.ledger.wait_chains import RING_SECONDS
from streambroker_core.model import job_of

log = logging.getLogger("pe_agent")

SELF_WAIT_SECONDS = 60.0
"""Time for which readers of the publisher's own job may make no progress while it waits."""


class SelfWaitError(StreambrokerError):
    """An export would wait for its own publisher forever; nothing was staged."""

    code = "SelfWait"


class Backpressure(ExportState):
    """Readers that an export waits for. Public methods are thread-safe."""

    _last_waiter: tuple[str, float] = ("", -math.inf)
    """The last query that asked for admission in vain, and when."""

    def blocking_readers(self) -> list[BlockingReader]:
        """Return the readers that block the export now, slowest first; counts as a wait."""
        with self._lock:
            return self._blocking_readers_at(self._clock())

    def _blocking_readers_at(self, now: float) -> list[BlockingReader]:
        holders = self.ledger.retention.blocking_readers(now)
        self.wait_times.note_attempt(now, [h.reader for h in holders])
        limit, since = self.ledger.retention.limits.wait_limit, self.wait_times.since(now)
        if limit is None or since is None or now - since < limit:
            return self.chains.mark_rings(holders, now)
        self._demote_slowest(now)
        self.wait_times.note_attempt(now, ())
        return []

    def _demote_slowest(self, now: float) -> None:
        for reader in self.ledger.retention.demote_slowest(now):
            self._save_reader(reader.id)
            log.warning(
                "export %s has waited for %s for as long as buffer.waitLimit allows: reader %s"
                " drops rows until it has caught up",
                self.key,
                reader.import_,
                reader.id,
            )
        self._sweep()

    def _check_admission(self, query: str, now: float) -> list[BlockingReader]:
        """Return the readers a query must wait for; raise SelfWaitError on a deadlock."""
        holders = self._blocking_readers_at(now)
        if holders:
            self._refuse_self_wait(query, holders, now)
            self._last_waiter = query, now
        return holders

    def note_wait_chains(self, import_: str, chains: Mapping[str, Sequence[str]]) -> None:
        """Record the exports that readers' queries wait for, as their agent reports."""
        with self._lock:
            for id_, chain in chains.items():
                reader = self.ledger.readers.get(id_)
                if reader is not None and reader.import_ == import_:
                    self.chains.record(id_, chain, self._clock())

    def wait_chain(self, query: str, *, gated: bool) -> list[str]:
        """Return the exports for which a query waits here, this one first; empty if none.

        A ``gated`` query reads nothing because the export is full. Any other query waits if one of
        its tasks has recently asked for admission in vain.
        """
        with self._lock:
            now, (waiter, at) = self._clock(), self._last_waiter
            waits = gated or (waiter == query and now - at <= RETRY_WINDOW_SECONDS)
            if not waits or self.ledger.retention.limits.wait_limit is not None:
                return []
            return self.chains.blocking_exports(self.ledger.retention.blocking_readers(now), now)

    def _refuse_self_wait(self, query: str, holders: list[BlockingReader], now: float) -> None:
        own = next((h for h in holders if h.query == query), None)
        if own is not None:
            raise SelfWaitError(
                f"export {self.key} is full of rows that {own.import_} has not finished, and the"
                f" query that reads that import is the one that publishes here: it would wait for"
                " itself. Give the export a larger buffer.maxBytes, read and publish in two"
                " queries, or read that import under `drop`."
            )
        ring = next((h for h in holders if h.ring is not None), None)
        if ring is not None:
            raise SelfWaitError(
                f"export {self.key} is full of rows that {ring.import_} has not finished; the"
                f" query that reads that import waits for {', '.join(ring.ring or ('it',))},"
                " which waits for this export in turn. They wait for each other in a ring, and"
                f" nothing in it has progressed for {RING_SECONDS:.0f} s. Read one of the imports"
                " in the ring under `drop`, or give an export in it a buffer.waitLimit or a"
                " larger buffer.maxBytes."
            )
        job = job_of(self.key)
        idle = now - max(self.wait_times.since(now) or now, *(h.last_progress for h in holders))
        if idle > SELF_WAIT_SECONDS and all(job_of(h.import_) == job for h in holders):
            names = ", ".join(sorted({h.import_ for h in holders}))
            raise SelfWaitError(
                f"export {self.key} has been full for {idle:.0f} s of rows that {names} of the"
                " same job did not finish, and none of them has progressed: their queries seem"
                " to wait for the tasks of this one. Give the job more cores, a larger"
                " buffer.maxBytes, or read these imports under `drop`."
            )
