"""Row counts of an export's readers: delivered, filtered, dropped, read before, lost."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pe_agent.agent.exports.stream.export_stream import ExportStream
from pe_agent.agent.exports.stream.manifests import AnyBlock, Manifest
from pe_agent.agent.exports.stream.restricted_stream import restricted
from pe_agent.agent.exports.stream.row_filter import count_passing_rows
from pe_agent.log.errors import LogError
from streambroker_core.ledger.epochs import holes
from streambroker_core.ledger.losses import MissingRange
from streambroker_core.ledger.offset import column_names
from streambroker_core.ledger.retention import Reader
from streambroker_core.model.policies import PolicyDeniedError, Restriction
from streambroker_core.wire.agent_rpc.peer import PlannedRange

log = logging.getLogger("pe_agent")


@dataclass(slots=True)
class ReaderDelivery:
    """Counts of one reader, in rows before the filter.

    Attributes:
        pending: what the current plan omits, by stream: its first epoch, then epochs and rows
            dropped, those read before from a lost log, and those lost.
        missed: ranges missing from the current plan, by stream; a replay omits the same ranges.
        counted: first uncounted epoch of each stream, so that a replay from an older checkpoint
            counts once.
        sent_rows, sent_bytes: sent, including repeated reads.
        planned_since: time since which the current plan is pinned; None without a plan, and after
            its release because the reader was away for longer than grace.
        released_plans: number of such releases.
    """

    delivered: int = 0
    filtered: int = 0
    dropped_epochs: int = 0
    dropped_rows: int = 0
    duplicate_epochs: int = 0
    duplicate_rows: int = 0
    lost_epochs: int = 0
    lost_rows: int = 0
    sent_rows: int = 0
    sent_bytes: int = 0
    planned_since: float | None = None
    released_plans: int = 0
    filter: str | None = None
    columns: list[str] | None = None
    pending: dict[str, tuple[int, ...]] = field(default_factory=dict)
    missed: dict[str, list[MissingRange]] = field(default_factory=dict)
    counted: dict[str, int] = field(default_factory=dict)

    def matches_plan(self, filter_: str | None, columns: Sequence[str] | None) -> bool:
        """Return whether the current plan has this filter and these columns."""
        return filter_ == self.filter and column_names(columns) == column_names(self.columns)

    def count_left_out(self, stream: str) -> None:
        """Count what a finished plan omitted."""
        from_, epochs, rows, again, rows_again, *lost = self.pending.pop(stream)
        if from_ <= self.counted.get(stream, 0):
            return
        self.counted[stream] = from_
        self.dropped_epochs += epochs
        self.dropped_rows += rows
        self.duplicate_epochs += again
        self.duplicate_rows += rows_again
        if lost:
            self.lost_epochs += lost[0]
            self.lost_rows += lost[1]

    def count_missed(self, stream: str) -> list[tuple[int, int]]:
        """Count what was missing from a finished plan; return those epoch ranges."""
        missed = self.missed.pop(stream, [])
        for first, next_, rows in missed:
            if next_ > self.counted.get(stream, 0):
                self.lost_epochs += next_ - first
                self.lost_rows += rows or 0
        return [(first, next_) for first, next_, _ in missed]


class DeliveryCounts:
    """Counts of all readers of one export; guarded by the export's lock.

    Attributes:
        passed_rows: uncounted rows that passed, by reader, stream, epoch and block.
        wanted: columns of each reader's last plan since the agent's start as DDL, None if unknown.
        restrictions: what policies left to a reader when its plan was made, if not everything.
    """

    def __init__(
        self, streams: Mapping[str, ExportStream], count_rows: Callable[[str, int, int], int]
    ) -> None:
        """Create; ``count_rows`` returns the rows of epochs ``[first, next)``, even if removed."""
        self._streams = streams
        self._count_rows = count_rows
        self._by_reader: dict[str, ReaderDelivery] = {}
        self.wanted: dict[str, str | None] = {}
        self.passed_rows: dict[str, dict[str, dict[int, dict[int, int]]]] = {}
        self._sent_control: dict[str, Counter[str]] = {}
        self.restrictions: dict[str, Restriction] = {}

    def for_reader(self, reader: str) -> ReaderDelivery:
        """Return a reader's counts, created if missing."""
        found = self._by_reader.get(reader)
        if found is None:
            found = self._by_reader[reader] = ReaderDelivery()
        return found

    def forget(self, reader: str) -> None:
        """Remove an evicted reader."""
        self._by_reader.pop(reader, None)
        self.wanted.pop(reader, None)
        self.passed_rows.pop(reader, None)
        self._sent_control.pop(reader, None)
        self.restrictions.pop(reader, None)

    def sent_control(self, reader: str) -> Counter[str]:
        """Return control tuples sent since the agent's start, by delivery, with repeated reads."""
        return self._sent_control.setdefault(reader, Counter())

    def restore(self, reader: str, delivery: ReaderDelivery) -> None:
        """Set a reader's counts from the store."""
        self._by_reader[reader] = delivery

    def begin_plan(
        self,
        reader: str,
        filter_: str | None,
        columns: list[str] | None,
        planned: Iterable[PlannedRange] | None = None,
    ) -> None:
        """Record a plan's filter, columns and omissions; ``planned`` None keeps the omissions."""
        delivery = self.for_reader(reader)
        delivery.filter, delivery.columns = filter_, columns
        if planned is None:
            return
        delivery.pending = {
            p.stream: self._uncounted(p, delivery.counted.get(p.stream, 0))
            for p in planned
            if p.dropped[0] or p.duplicates[0] or p.lost[0]
        }

    def _uncounted(self, plan: PlannedRange, counted: int) -> tuple[int, ...]:
        """Return what a plan omits, without what the reader has counted before."""
        left_out: list[int] = []
        first = plan.from_ - plan.dropped[0] - plan.lost[0] - plan.duplicates[0]
        for epochs, rows in (plan.dropped, plan.lost, plan.duplicates):
            next_ = first + epochs
            if counted <= first:
                left_out += (epochs, rows or 0)
            elif counted < next_:
                left_out += (next_ - counted, self._count_rows(plan.stream, counted, next_))
            else:
                left_out += (0, 0)
            first = next_
        dropped, lost, again = left_out[:2], left_out[2:4], left_out[4:]
        return (plan.from_, *dropped, *again, *lost)

    def pin(self, reader: str, restriction: Restriction | None) -> None:
        """Record what policies leave to a reader of the plan that it begins."""
        self.restrictions.pop(reader, None)
        if restriction is not None:
            self.restrictions[reader] = restriction

    def note_passed(self, reader: str, stream: str, epoch: int, block: int, rows: int) -> None:
        """Record how many rows of a block passed the filter; idempotent."""
        if epoch >= self.for_reader(reader).counted.get(stream, 0):
            of_stream = self.passed_rows.setdefault(reader, {}).setdefault(stream, {})
            of_stream.setdefault(epoch, {})[block] = rows

    def finish_plan(self, reader: Reader, positions: Mapping[str, int]) -> None:
        """Count the planned epochs that ``positions`` finish as delivered, filtered or lost."""
        delivery = self.for_reader(reader.id)
        for name, cursor in reader.cursors.items():
            done = positions.get(name, 0)
            if name in delivery.pending and done >= delivery.pending[name][0]:
                delivery.count_left_out(name)
            if cursor.planned is None or done < cursor.planned[1]:
                continue
            first, next_ = cursor.planned
            lost = delivery.count_missed(name)
            begin = max(first, delivery.counted.get(name, 0))
            for low, high in holes(lost, begin, next_):
                for epoch in range(low, high):
                    self._count_epoch(reader.id, delivery, name, epoch)
            delivery.counted[name] = max(delivery.counted.get(name, 0), next_)
            self._forget_passed(reader.id, name, delivery.counted[name])
        for name in [n for n in delivery.missed if n not in reader.cursors]:
            if positions.get(name, 0) >= delivery.missed[name][-1][1]:
                delivery.count_missed(name)

    def _forget_passed(self, reader: str, stream: str, counted: int) -> None:
        by_epoch = self.passed_rows.get(reader, {}).get(stream, {})
        for epoch in [e for e in by_epoch if e < counted]:
            del by_epoch[epoch]

    def _count_epoch(self, reader: str, delivery: ReaderDelivery, name: str, epoch: int) -> None:
        """Count one epoch; evaluate blocks again whose count a restart has lost.

        An epoch removed before its acknowledgement counts as delivered.
        """
        stream = self._streams.get(name)
        manifest = None if stream is None else stream.manifests.get(epoch)
        if stream is None or manifest is None:
            delivery.delivered += self._count_rows(name, epoch, epoch + 1)
            return
        restriction = self.restrictions.get(reader)
        if delivery.filter is None and restriction is None:
            delivery.delivered += manifest.rows
            return
        passed = self.passed_rows.get(reader, {}).get(stream.id, {}).get(epoch, {})
        passing = sum(
            passed[i]
            if i in passed
            else _count_passing(stream, restriction, block, manifest, delivery.filter)
            for i, block in enumerate(manifest.blocks)
        )
        delivery.delivered += passing
        delivery.filtered += manifest.rows - passing


def _count_passing(
    stream: ExportStream,
    restriction: Restriction | None,
    block: AnyBlock,
    manifest: Manifest,
    filter_: str | None,
) -> int:
    """Return how many rows pass; all if the block is unreadable: counts must not block readers."""
    try:
        return count_passing_rows(restricted(stream, restriction), block, manifest.ddl, filter_)
    except (LogError, PolicyDeniedError) as error:
        log.warning("rows of stream %s are counted as delivered: %s", stream.id, error)
        return block.rows
