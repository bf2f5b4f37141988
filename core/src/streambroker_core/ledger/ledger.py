"""Ledger of an export: its streams, their epochs, its readers and their routes.

An export's log is a sequence of *streams*, each a sequence of numbered epochs. A *reader* has one
cursor per stream: ``next`` is the first unfinished epoch, ``planned`` the epochs pinned for its
current micro-batch. This module opens and drops streams and applies routes;
:mod:`retention <streambroker_core.ledger.retention>` has claims, leases and removal,
:mod:`planner <streambroker_core.ledger.planner>` plans.

All state transitions are in these three modules. Time is an argument, in seconds; only differences
count. Nothing does I/O: the caller acts on the results.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from streambroker_core.ledger.epochs import Epoch, Stream
from streambroker_core.ledger.planner import Planner
from streambroker_core.ledger.retention import Claims, Reader, Retention, RetentionLimits
from streambroker_core.ledger.routes import Routes


class Ledger:
    """The epochs of one export and the claims on them.

    Attributes:
        streams: by id, in the order in which they were opened.
        readers: by id.
        claims: which epochs the readers claim.
        retention: limits of the log, and removal of epochs.
        routes: the exporter's route table.
        planner: plans for the readers.
    """

    def __init__(self, limits: RetentionLimits | None = None) -> None:
        limits = limits or RetentionLimits()
        self.claims = Claims(limits.grace)
        self.retention = Retention(self.claims, limits)
        self.streams, self.readers = self.claims.streams, self.claims.readers
        self.routes = Routes()
        self.planner = Planner(self.claims, self.retention, self.routes)

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
        self.claims.forgotten.add(stream)
        for reader in self.readers.values():
            reader.cursors.pop(stream, None)
            reader.resume.pop(stream, None)
            reader.agreed_losses.pop(stream, None)
        self.claims.forget_fronts()

    def set_routes(self, policies: Mapping[str, str], revoked: Iterable[str] = ()) -> None:
        """Apply the exporter's route table: policy (``wait`` or ``drop``) by import.

        - A reader whose import left the table claims only its plan.
        - A reader whose import returned skips what was published meanwhile with ``start``
          ``latest``; else it continues with what is retained.
        - A revoked reader (by import, job or namespace) claims nothing.
        """
        before = self.routes.replace(policies, revoked)
        for reader in self.readers.values():
            policy = self.routes.policies.get(reader.import_)
            if self.routes.revoked_by(reader.import_) is not None:
                reader.routed = False
                for cursor in reader.cursors.values():
                    cursor.planned, cursor.granted_until = None, 0
            if policy is not None:
                self._route(reader, "drop" if reader.once else policy)
            elif reader.import_ in before:
                reader.routed = False
        self.claims.forget_fronts()

    def _route(self, reader: Reader, policy: str) -> None:
        if policy != reader.policy:
            if reader.is_dropping:
                self.claims.accept_losses(reader)
            reader.policy, reader.demoted, reader.archived = policy, False, None
            self.retention.archive(reader)
        if not reader.routed:
            reader.routed = True
            self.claims.accept_losses(reader)
            for stream in self.streams.values():
                latest = reader.start == "latest"
                reader.resume[stream.id] = stream.next if latest else stream.first_available()
            self.retention.archive(reader)
