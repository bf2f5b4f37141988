"""Chains of waiting: which exports the queries of an export's readers wait for, and so on.

A reader's agent reports for which exports its query waits because they are full, together with what
these wait for in turn. Where such a chain of the slowest reader leads back to the export itself,
the wait does not end: nothing moves before something else in the ring does. Reports travel from
agent to agent and are some seconds old, so a ring counts only once it has lasted.

Time is an argument, in seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from streambroker_core.ledger.retention import BlockingReader

FRESH_SECONDS = 10.0
"""A report is repeated sooner; an older one says nothing."""
RING_SECONDS = 10.0
"""For so long a ring has to last, and its reader to stand still, before it counts."""
MAX_CHAIN = 64
"""Exports that a report names."""


class WaitChains:
    """What the agents of one export's readers report."""

    def __init__(self, export: str) -> None:
        self._export = export
        self._reports: dict[str, tuple[tuple[str, ...], float]] = {}
        self._since: dict[str, float] = {}

    def record(self, reader: str, chain: Sequence[str], now: float) -> None:
        """Take in a report; an empty one says that the query of the reader does not wait."""
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
        """Return this export, which waits for some readers, and what they wait for in turn."""
        chains = (self._fresh_chain(holder.reader, now) for holder in slowest_readers(holders))
        found = dict.fromkeys([self._export, *(key for chain in chains for key in chain)])
        return list(found)[:MAX_CHAIN] if holders else []

    def mark_rings(self, holders: Sequence[BlockingReader], now: float) -> list[BlockingReader]:
        """Return the readers that an export waits for, those in a ring with it marked.

        Args:
            holders: the slowest first.
            now: seconds.
        """
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
        """Forget readers that are not known any more."""
        for reader in readers:
            self.record(reader, (), 0.0)


def slowest_readers(holders: Sequence[BlockingReader]) -> list[BlockingReader]:
    """Return those that alone keep the log as full as it is."""
    return [holder for holder in holders if holder.bytes == holders[0].bytes]
