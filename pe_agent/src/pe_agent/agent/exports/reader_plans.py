"""The reading side of an export: plans, reads and leases of its readers."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pe_agent.agent.exports.shard_coordinator import ShardCoordinator
from pe_agent.agent.exports.stream.manifests import Manifest, RemoteBlock
from pe_agent.agent.exports.stream.row_filter import schema_mismatch
from pe_agent.log.errors import LogError
from streambroker_core.errors import StreambrokerError
from streambroker_core.ledger.epochs import holes
from streambroker_core.ledger.ledger import MissingRange, OvertakenError, Plan, PlanRequest
from streambroker_core.ledger.offset import column_names

log = logging.getLogger("pe_agent")


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredPlan:
    """A plan that was registered again.

    Attributes:
        blocks: rows and bytes of its blocks, and for those at a fellow its number in ``agents``:
            ``{stream: {epoch: [[rows, bytes], [rows, bytes, agent], …]}}``.
        missing: what is left out because it is gone, here or at a fellow:
            ``{stream: [(first, next, rows), …]}``, rows None where they are not known. Only a
            lossy reader has any.
        agents: PEs of the fellows that hold some of it, counted from 1.
        order: the streams, as the export went from one to the next.
        control: the epochs that have control tuples, by stream.
    """

    blocks: dict[str, dict[int, list[list[int]]]]
    missing: dict[str, list[MissingRange]]
    agents: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    control: dict[str, list[int]] = field(default_factory=dict)


class ReaderPlans(ShardCoordinator):
    """What readers ask of an export. All public calls are safe from any thread."""

    def plan(
        self,
        request: PlanRequest,
        *,
        filter_: str | None,
        columns: list[str] | None,
        excluded: Collection[str] = (),
    ) -> Plan:
        """Acknowledge a reader's position, pin its next epochs, remember under which filter.

        Nothing is planned of the streams in ``excluded``; see :meth:`misfits`.

        Raises:
            OvertakenError, DataLossError, ReadersExceededError, RevokedError: see core.planning.
        """
        with self._lock:
            self.ledger.check_call(request)
            now, before = self._clock(), self._planned_ranges(request.reader)
            self._finish_plan(request)
            if excluded:
                limit = self.heads() if request.limit is None else request.limit
                request = replace(
                    request, limit={s: n for s, n in limit.items() if s not in excluded}
                )
            answer = self.ledger.plan(request, now)
            if answer.routed:
                self.deliveries.begin_plan(request.reader, filter_, columns, answer.planned)
            self._update_planned_since(request.reader, before)
            self._save_reader(request.reader)
            self._forget_evicted()
            self._sweep()
        if answer.finished:
            self._notify()
        return answer

    def schema_mismatches(
        self, filter_: str | None, columns: list[str] | None, schema: str | None
    ) -> dict[str, str]:
        """Return the streams that a reader cannot read, and why not.

        Args:
            filter_: its filter.
            columns: names of the columns it wants, None for all.
            schema: those columns with their types, as DDL; None if it does not say.
        """
        wanted = column_names(columns)
        told = {
            s.id: schema_mismatch(s, filter_, wanted, schema) for s in list(self.streams.values())
        }
        return {stream: why for stream, why in told.items() if why is not None}

    def blocks_reader(self, reader: str, stream: str) -> bool:
        """Whether a stream that a reader cannot read has something for it, or may get it."""
        with self._lock:
            known = self.ledger.streams.get(stream)
            goes_on = known is not None and not known.sealed and not self.ended()
            return goes_on or self.ledger.has_unread(reader, stream)

    def register_plan(
        self,
        request: PlanRequest,
        ranges: Mapping[str, tuple[int, int]],
        *,
        filter_: str | None,
        columns: list[str] | None,
    ) -> RegisteredPlan:
        """Register a checkpointed plan again.

        Of a lossy reader's plan the epochs are left out that cannot be read whole any more; so
        they are when it is registered once more, and counted as lost when it is finished.

        Raises:
            AgentUnreachableError: a fellow does not say whether it has its parts, and the reader
                is lossy: what cannot be reached is not lost.
            DataLossError: epochs of it are gone, and the reader is not lossy.
            NotRoutedError: its route is cut, and it was not given all of them.
            OvertakenError: a later call of the reader was there before.
        """
        with self._lock:
            self.ledger.check_call(request)
            before = self._planned_ranges(request.reader)
            self._finish_plan(request)
            self.ledger.register_plan(request, ranges, self._clock())
            self.deliveries.begin_plan(request.reader, filter_, columns)
            self._update_planned_since(request.reader, before)
            self._save_reader(request.reader)
        broken = self._find_broken(ranges) if request.skip_lost else {}
        with self._lock:
            gone = self._skipped_epochs(request, ranges, broken)
            agents: list[str] = []
            blocks = {s: self._list_blocks(s, *ranges[s], gone.get(s, ()), agents) for s in ranges}
            order = tuple(s for s in self.ledger.streams if s in ranges)
            control = {s: self._epochs_with_control(s, blocks[s]) for s in ranges}
        for name, parts in gone.items():
            log.warning("reader %s goes on without epochs %s of %s", request.reader, parts, name)
        return RegisteredPlan(
            blocks=blocks, missing=gone, agents=tuple(agents), order=order, control=control
        )

    def _epochs_with_control(self, stream: str, epochs: Iterable[int]) -> list[int]:
        hosted = self.streams.get(stream)
        return [n for n in epochs if hosted is not None and hosted.manifests[n].control]

    def _skipped_epochs(
        self,
        request: PlanRequest,
        ranges: Mapping[str, tuple[int, int]],
        broken: Mapping[str, Collection[int]],
    ) -> dict[str, list[MissingRange]]:
        """Return what a plan is cut without; noted before anybody is told.

        Raises:
            OvertakenError: the reader has another plan by now; nobody waits for this one.
        """
        planned = self._planned_ranges(request.reader)
        if any(planned.get(s) != ranges[s] for s in ranges if s in self.ledger.streams):
            raise OvertakenError(f"reader {request.reader} has another plan by now.")
        delivery = self.deliveries.for_reader(request.reader)
        gone: dict[str, list[MissingRange]] = {}
        if request.skip_lost:
            gone = self.ledger.find_missing(ranges, broken=broken, before=delivery.missed)
        if gone != delivery.missed:
            delivery.missed = gone
            self._save_reader(request.reader)
        return gone

    def _list_blocks(
        self,
        stream: str,
        first: int,
        next_: int,
        missing: Collection[MissingRange],
        agents: list[str],
    ) -> dict[int, list[list[int]]]:
        """Return the blocks of epochs that are there; fellows among them are added to agents."""
        hosted = self.streams.get(stream)
        found = {} if hosted is None else hosted.manifests
        return {
            n: _encode_blocks(found[n], agents)
            for low, high in holes(((g[0], g[1]) for g in missing), first, next_)
            for n in self._present_epochs(stream, low, high)
            if n in found
        }

    def is_planned_with(self, reader: str, filter_: str | None) -> bool:
        """Whether the last plan of a reader had this filter."""
        with self._lock:
            return (
                reader in self.ledger.readers
                and self.deliveries.for_reader(reader).filter == filter_
            )

    def find_readable(
        self,
        reader: str,
        stream: str,
        epoch: int,
        *,
        filter_: str | None,
        columns: Sequence[str] | None,
        query: str | None = None,
    ) -> Manifest | None:
        """Return the manifest if the reader has planned the epoch just so, else None.

        ``query`` is the streaming query whose task reads, as it says; None if it does not.

        Raises:
            RevokedError: the reader's import is revoked.
        """
        with self._lock:
            known = self.ledger.readers.get(reader)
            if known is not None:
                self.ledger.check_revoked(known.import_)
            if not self.ledger.is_planned(reader, stream, epoch, self._clock()):
                return None
            if not self.deliveries.for_reader(reader).matches_plan(filter_, columns):
                return None
            if query is not None and known is not None:
                known.query = query
            hosted = self.streams.get(stream)
            return None if hosted is None else hosted.manifests.get(epoch)

    def count_block(self, reader: str, stream: str, epoch: int, block: int, rows: int) -> None:
        """Note how many rows of a block passed the filter; a repeated read changes nothing."""
        with self._lock:
            self.deliveries.note_passed(reader, stream, epoch, block, rows)

    def count_control(self, reader: str, deliveries: Iterable[str]) -> None:
        """Note which control tuples go over the wire."""
        with self._lock:
            if reader in self.ledger.readers:
                self.deliveries.sent_control(reader).update(deliveries)

    def count_sent(self, reader: str, rows: int, size: int, query: str | None = None) -> None:
        """Note what goes over the wire, also if it did before, and which query reads."""
        with self._lock:
            if reader not in self.ledger.readers:
                return
            if query is not None:
                self.ledger.readers[reader].query = query
            delivery = self.deliveries.for_reader(reader)
            delivery.sent_rows += rows
            delivery.sent_bytes += size

    def unreadable_error(self, stream: str, epoch: int, error: LogError) -> StreambrokerError:
        """Return what a reader is told of a damaged block: what the log says."""
        return error

    def _planned_ranges(self, id_: str) -> dict[str, tuple[int, int]]:
        """Return what a reader has pinned, by stream."""
        reader = self.ledger.readers.get(id_)
        cursors = reader.cursors if reader else {}
        return {s: c.planned for s, c in cursors.items() if c.planned is not None}

    def _update_planned_since(self, id_: str, previous: Mapping[str, tuple[int, int]]) -> None:
        delivery, planned = self.deliveries.for_reader(id_), self._planned_ranges(id_)
        if not planned:
            delivery.planned_since = None
        elif planned != previous or delivery.planned_since is None:
            delivery.planned_since = self._clock()

    def _count_released_plans(self) -> None:
        """Count the plans that grace has ended; their epochs may be removed now."""
        for reader in self.ledger.released_readers(self._clock()):
            delivery = self.deliveries.for_reader(reader.id)
            if delivery.planned_since is not None:
                delivery.planned_since = None
                delivery.released_plans += 1
                self._save_reader(reader.id)
                log.warning("the plan of reader %s is released: it is away", reader.id)

    def _forget_evicted(self) -> None:
        for id_ in self.ledger.evicted:
            self.deliveries.forget(id_)
            self.wait_times.forget(id_)
            self.chains.forget((id_,))
            self._store.write("DELETE FROM readers WHERE export = ? AND id = ?", self.key, id_)
        self.ledger.evicted.clear()

    def _finish_plan(self, request: PlanRequest) -> None:
        reader = self.ledger.readers.get(request.reader)
        if reader is not None:
            self.deliveries.finish_plan(reader, request.positions)

    def renew_reader(self, reader: str, import_: str, seconds: float) -> bool:
        """Renew a reader's lease for its agent, for ``seconds``; return whether it has a plan."""
        with self._lock:
            if not self._belongs_to(reader, import_):
                return False
            self.ledger.renew(reader, self._clock() + seconds)
            return bool(self._planned_ranges(reader))

    def end_reader_lease(self, reader: str, import_: str) -> None:
        """A reader's process ended in order."""
        with self._lock:
            if self._belongs_to(reader, import_):
                self.ledger.end_lease(reader, self._clock())

    def _belongs_to(self, reader: str, import_: str) -> bool:
        known = self.ledger.readers.get(reader)
        return known is not None and known.import_ == import_


def _encode_blocks(manifest: Manifest, agents: list[str]) -> list[list[int]]:
    agents += [pe for pe in manifest.agents if pe not in agents]
    numbers = [agents.index(pe) + 1 for pe in manifest.agents]
    return [
        [b.rows, b.bytes, *([numbers[b.agent - 1]] if isinstance(b, RemoteBlock) else [])]
        for b in manifest.blocks
    ]
