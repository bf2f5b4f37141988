"""Ledger of an export: its streams, their epochs, its readers and their routes.

An export's log is a sequence of *streams*, each a sequence of numbered epochs. A *reader* has one
cursor per stream: ``next`` is the first unfinished epoch, ``planned`` the epochs pinned for its
current micro-batch. This module begins and ends streams, routes and leases;
:mod:`retention <streambroker_core.ledger.retention>` has claims and removal,
:mod:`planner <streambroker_core.ledger.planner>` plans.

All state transitions are in these three modules. Time is an argument, in seconds; only differences
count. Nothing does I/O: the caller acts on the results.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from streambroker_core.ledger.epochs import Epoch, Stream
from streambroker_core.ledger.planner import (
    MAX_READERS,
    DataLossError,
    MissingRange,
    NotRoutedError,
    OvertakenError,
    Plan,
    Planner,
    PlanRequest,
    ReadersExceededError,
    RevokedError,
)
from streambroker_core.ledger.retention import BlockingReader, Cursor, Lag, Reader, RetentionLimits

MAX_CUT = 10_000
"""Maximum imports remembered as cut."""


class Ledger(Planner):
    """The epochs of one export and the claims on them."""

    # -- streams -----------------------------------------------------------------------------

    def open(self, stream: str) -> None:
        """Open a stream and seal its predecessors."""
        for earlier in self.streams.values():
            earlier.sealed = True
        self.streams[stream] = Stream(stream)

    def publish(self, stream: str, epoch: Epoch) -> None:
        """Add a durable epoch; ``epoch.number`` has to be the stream's ``next``."""
        if epoch.number != self.streams[stream].next:
            raise ValueError(f"epoch {epoch.number} after {self.streams[stream].next - 1}")
        self.streams[stream].add(epoch)

    def forget_stream(self, stream: str) -> None:
        """Drop a sealed stream without epochs, and its cursors; its id stays known."""
        del self.streams[stream]
        self.forgotten.add(stream)
        for reader in self.readers.values():
            reader.cursors.pop(stream, None)
            reader.resume.pop(stream, None)
            reader.agreed_losses.pop(stream, None)
        self._forget_fronts()

    # -- routes and leases -------------------------------------------------------------------

    def set_routes(self, routes: Mapping[str, str], revoked: Iterable[str] = ()) -> None:
        """Apply the exporter's route table: policy (``wait`` or ``drop``) by import.

        - A reader whose import left the table claims only its plan.
        - A reader whose import returned resumes where its ``start`` policy places it now.
        - A revoked reader (by import, job or namespace) claims nothing.
        """
        self._revoked = frozenset(revoked)
        routes = {i: policy for i, policy in routes.items() if self._revoked_by(i) is None}
        for reader in self.readers.values():
            if self._revoked_by(reader.import_) is not None:
                self._revoke(reader)
            if reader.import_ in routes:
                policy = routes[reader.import_]
                if policy != reader.policy:
                    if reader.is_dropping:
                        self._accept_losses(reader)
                    reader.policy, reader.demoted = policy, False
                if not reader.routed:
                    self._resume(reader)
            elif reader.import_ in self._routes:
                reader.routed = False
        self.restore_cut(self._routes)
        self._cut_imports = {
            import_: None for import_ in self._cut_imports if import_ not in routes
        }
        self._routes = dict(routes)
        self._forget_fronts()

    def has_route(self, import_: str) -> bool:
        """Return whether an import is in the exporter's route table and not revoked."""
        return import_ in self._routes

    @property
    def cut_imports(self) -> list[str]:
        """Imports that lost their route, most recent last."""
        return list(self._cut_imports)

    def restore_cut(self, imports: Iterable[str]) -> None:
        """Mark imports as cut until a route table has them; beyond `MAX_CUT` drop the oldest."""
        for import_ in imports:
            self._cut_imports[import_] = None
        while len(self._cut_imports) > MAX_CUT:
            del self._cut_imports[next(iter(self._cut_imports))]

    def _revoke(self, reader: Reader) -> None:
        reader.routed = False
        for cursor in reader.cursors.values():
            cursor.planned, cursor.granted_until = None, 0

    def _resume(self, reader: Reader) -> None:
        reader.routed = True
        self._accept_losses(reader)
        for stream in self.streams.values():
            latest = reader.start == "latest"
            reader.resume[stream.id] = stream.next if latest else stream.first_available()

    def demote_slowest(self, now: float) -> list[Reader]:
        """Demote the slowest readers to ``drop`` until the log has room; return them.

        Called once the export has waited for ``limits.wait_limit``.
        """
        demoted = []
        while holders := self.blocking_readers(now):
            for holder in holders:
                if holder.bytes == holders[0].bytes:
                    reader = self.readers[holder.reader]
                    reader.demoted, reader.demotions = True, reader.demotions + 1
                    demoted.append(reader)
            self._forget_fronts()
        return demoted

    def renew(self, reader: str, until: float) -> None:
        """Extend a reader's lease; ignore an unknown reader."""
        if reader in self.readers:
            known = self.readers[reader]
            if not self._has_claims(known, self._fronts_at):
                self._forget_fronts()
            known.lease_expires = max(known.lease_expires, until)

    def end_lease(self, reader: str, now: float) -> None:
        """End the lease of a reader that stopped cleanly; its claims last for grace."""
        if reader in self.readers:
            self.readers[reader].lease_expires = now
            self._forget_fronts()


__all__ = [
    "MAX_CUT",
    "MAX_READERS",
    "BlockingReader",
    "Cursor",
    "DataLossError",
    "Epoch",
    "Lag",
    "Ledger",
    "MissingRange",
    "NotRoutedError",
    "OvertakenError",
    "Plan",
    "PlanRequest",
    "Reader",
    "ReadersExceededError",
    "RetentionLimits",
    "RevokedError",
    "Stream",
]
