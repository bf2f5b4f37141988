"""Wait chains: detects deadlocks among exports that wait for each other's readers.

A reader's agent reports the full exports that its query waits for, and what these wait for in
turn. If the chain of the slowest reader leads back to the export, it is a ring, and the wait
never ends. Reports are some seconds old, so a ring counts only after `RING_SECONDS`.

Time is an argument, in seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from streambroker_core.ledger.retention import BlockingReader

FRESH_SECONDS = 10.0
"""Age at which a report expires; agents repeat reports sooner."""
RING_SECONDS = 10.0
"""How long a ring has to last, and its reader make no progress, before it counts."""
MAX_CHAIN = 64
"""Maximum exports in a report."""


class WaitChains:
    """Wait chains that agents report for the readers of one export."""

    def __init__(self, export: str) -> None:
        self._export = export
        self._reports: dict[str, tuple[tuple[str, ...], float]] = {}
        self._since: dict[str, float] = {}

    @property
    def has_reports(self) -> bool:
        """Whether a reader's query waits, as last reported."""
        return bool(self._reports)

    def record(self, reader: str, chain: Sequence[str], now: float) -> None:
        """Record a report; an empty chain means that the reader's query does not wait."""
        if not chain:
            self._reports.pop(reader, None)
            self._since.pop(reader, None)
            return
        self._reports[reader] = tuple(chain[:MAX_CHAIN]), now
        if self._export in self._reports[reader][0]:
            self._since.setdefault(reader, now)
        else:
            self._since.pop(reader, None)

    def blocking_exports(self, holders: Sequence[BlockingReader], now: float) -> list[str]:
        """Return this export and what its slowest readers wait for; empty without holders."""
        chains = (self._fresh_chain(holder.reader, now) for holder in slowest_readers(holders))
        exports = dict.fromkeys([self._export, *(key for chain in chains for key in chain)])
        return list(exports)[:MAX_CHAIN] if holders else []

    def mark_rings(self, holders: Sequence[BlockingReader], now: float) -> list[BlockingReader]:
        """Return ``holders`` (slowest first), with ``ring`` set for those in a ring."""
        binding = slowest_readers(holders)
        return [replace(h, ring=self._ring(h, now)) if h in binding else h for h in holders]

    def _ring(self, holder: BlockingReader, now: float) -> tuple[str, ...] | None:
        chain = self._fresh_chain(holder.reader, now)
        since = max(self._since.get(holder.reader, now), holder.last_progress)
        if self._export not in chain or now - since < RING_SECONDS:
            return None
        return tuple(key for key in chain if key != self._export)

    def _fresh_chain(self, reader: str, now: float) -> tuple[str, ...]:
        chain, at = self._reports.get(reader, ((), now))
        if now - at > FRESH_SECONDS:
            self.record(reader, (), now)
            return ()
        return chain

    def forget(self, readers: Iterable[str]) -> None:
        """Drop the reports of readers that no longer exist."""
        for reader in readers:
            self.record(reader, (), 0.0)


def slowest_readers(holders: Sequence[BlockingReader]) -> list[BlockingReader]:
    """Return the readers with the largest unread size, which determine how full the log is."""
    return [holder for holder in holders if holder.bytes == holders[0].bytes]
