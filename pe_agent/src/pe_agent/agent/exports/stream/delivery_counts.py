"""What the readers of an export got of it, in rows: delivered, filtered, dropped, read before."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pe_agent.agent.exports.stream.export_stream import HostedStream
from pe_agent.agent.exports.stream.manifests import Block
from pe_agent.agent.exports.stream.row_filter import passing_rows
from pe_agent.log.errors import LogError
from streambroker_core.ledger.epochs import holes
from streambroker_core.ledger.ledger import Gone, Reader
from streambroker_core.ledger.offset import Planned, names_of

log = logging.getLogger("pe_agent")


@dataclass(slots=True)
class Delivery:
    """What one reader got of this export, in rows, counted before the filter.

    Attributes:
        pending: what the plan under way leaves out, by stream: the epoch it begins with, then
            epochs and rows dropped, those that were read before from a lost log, and those that
            are lost.
        missed: what the plan under way was cut without because it is gone, by stream; a replay is
            cut without the same.
        counted: first epoch of each stream that is not counted yet, so that a replay from an
            older checkpoint counts once.
        sent_rows: rows that were sent, those of repeated reads again; ``sent_bytes`` likewise.
        planned_since: since when the plan under way is pinned; None without one, and once it was
            released because the reader was away for longer than grace.
        released_plans: how often that was.
        owed: what fellows have to count: stream, epoch, the fellow's PE, its rows of the epoch, and
            the filter under which they were read.
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
    missed: dict[str, list[Gone]] = field(default_factory=dict)
    counted: dict[str, int] = field(default_factory=dict)
    owed: list[list[Any]] = field(default_factory=list)

    def under(self, filter_: str | None, columns: Sequence[str] | None) -> bool:
        """Whether the plan under way has this filter and these columns."""
        return filter_ == self.filter and names_of(columns) == names_of(self.columns)

    def leave_out(self, stream: str) -> None:
        """Count what a plan left out, now that the reader has taken it."""
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

    def miss(self, stream: str) -> list[tuple[int, int]]:
        """Count what a plan was cut without, now that it is finished; return those epochs."""
        missed = self.missed.pop(stream, [])
        for first, next_, rows in missed:
            if next_ > self.counted.get(stream, 0):
                self.lost_epochs += next_ - first
                self.lost_rows += rows or 0
        return [(first, next_) for first, next_, _ in missed]


class Deliveries:
    """The deliveries of one export; its lock is the export's."""

    def __init__(
        self, streams: Mapping[str, HostedStream], rows: Callable[[str, int, int], int]
    ) -> None:
        """Begin without any.

        Args:
            streams: the streams of the export, by id.
            rows: returns how many rows epochs ``[first, next)`` of a stream had that may be gone.
        """
        self._streams = streams
        self._rows = rows
        self._of: dict[str, Delivery] = {}
        self._passed: dict[str, dict[str, dict[int, dict[int, int]]]] = {}
        self._control: dict[str, Counter[str]] = {}

    def of(self, reader: str) -> Delivery:
        """Return a reader's delivery."""
        return self._of.setdefault(reader, Delivery())

    def forget(self, reader: str) -> None:
        """The reader is not known any more."""
        self._of.pop(reader, None)
        self._passed.pop(reader, None)
        self._control.pop(reader, None)

    def control(self, reader: str) -> Counter[str]:
        """Return the control tuples sent to a reader since the agent's start, by delivery.

        Those of repeated reads count again.
        """
        return self._control.setdefault(reader, Counter())

    def restore(self, reader: str, delivery: Delivery) -> None:
        """Take what the store has of a reader."""
        self._of[reader] = delivery

    def begin(
        self,
        reader: str,
        filter_: str | None,
        columns: list[str] | None,
        planned: Iterable[Planned] | None = None,
    ) -> None:
        """Remember under which filter a plan is read, and what it leaves out.

        A plan that is registered again (``planned`` None) leaves out what it left out before.
        """
        delivery = self.of(reader)
        delivery.filter, delivery.columns = filter_, columns
        if planned is None:
            return
        delivery.pending = {
            p.stream: self._uncounted(p, delivery.counted.get(p.stream, 0))
            for p in planned
            if p.dropped[0] or p.duplicates[0] or p.lost[0]
        }

    def _uncounted(self, plan: Planned, counted: int) -> tuple[int, ...]:
        """Return what a plan leaves out; of a reader that was further before, what is new of it."""
        left_out: list[int] = []
        first = plan.from_ - plan.dropped[0] - plan.lost[0] - plan.duplicates[0]
        for epochs, rows in (plan.dropped, plan.lost, plan.duplicates):
            next_ = first + epochs
            if counted <= first:
                left_out += (epochs, rows or 0)
            elif counted < next_:
                left_out += (next_ - counted, self._rows(plan.stream, counted, next_))
            else:
                left_out += (0, 0)
            first = next_
        dropped, lost, again = left_out[:2], left_out[2:4], left_out[4:]
        return (plan.from_, *dropped, *again, *lost)

    def passed(self, reader: str, stream: str, epoch: int, block: int, rows: int) -> None:
        """Note how many rows of a block passed the filter; a repeated read changes nothing."""
        if epoch >= self.of(reader).counted.get(stream, 0):
            of_stream = self._passed.setdefault(reader, {}).setdefault(stream, {})
            of_stream.setdefault(epoch, {})[block] = rows

    def noted(self) -> int:
        """Return of how many epochs the rows that passed are noted and not counted yet."""
        return sum(len(epochs) for of in self._passed.values() for epochs in of.values())

    def finish(self, reader: Reader, positions: Mapping[str, int]) -> None:
        """Turn the planned epochs that ``positions`` finish into delivered, filtered, lost rows."""
        delivery = self.of(reader.id)
        for name, cursor in reader.cursors.items():
            done = positions.get(name, 0)
            if name in delivery.pending and done >= delivery.pending[name][0]:
                delivery.leave_out(name)
            if cursor.planned is None or done < cursor.planned[1]:
                continue
            first, next_ = cursor.planned
            lost = delivery.miss(name)
            begin = max(first, delivery.counted.get(name, 0))
            for low, high in holes(lost, begin, next_):
                for epoch in range(low, high):
                    self._count(reader.id, delivery, name, epoch)
            delivery.counted[name] = max(delivery.counted.get(name, 0), next_)
            self._forget_passed(reader.id, name, delivery.counted[name])
        for name in [n for n in delivery.missed if n not in reader.cursors]:
            if positions.get(name, 0) >= delivery.missed[name][-1][1]:
                delivery.miss(name)

    def _forget_passed(self, reader: str, stream: str, counted: int) -> None:
        """Forget what is counted, and what was read and then lost."""
        noted = self._passed.get(reader, {}).get(stream, {})
        for epoch in [e for e in noted if e < counted]:
            del noted[epoch]

    def _count(self, reader: str, delivery: Delivery, name: str, epoch: int) -> None:
        """Count one epoch; blocks whose count a restart made us forget are evaluated again.

        One that was read, and removed because the reader was away before it said so, is counted
        as delivered.
        """
        stream = self._streams.get(name)
        manifest = None if stream is None else stream.manifests.get(epoch)
        if stream is None or manifest is None:
            delivery.delivered += self._rows(name, epoch, epoch + 1)
            return
        if delivery.filter is None:
            delivery.delivered += manifest.rows
            return
        passed = self._passed.get(reader, {}).get(stream.id, {}).get(epoch, {})
        kept = sum(
            passed[i] if i in passed else _passing(stream, block, delivery.filter)
            for i, block in enumerate(manifest.own)
        )
        delivery.delivered += kept
        delivery.filtered += sum(b.rows for b in manifest.own) - kept
        for pe in manifest.agents:
            rows = sum(b.rows for b in manifest.held_by(pe))
            delivery.owed.append([stream.id, epoch, pe, rows, delivery.filter])


def _passing(stream: HostedStream, block: Block, filter_: str) -> int:
    """Return how many rows pass; all of them if the block has become unreadable since it was read.

    A count must not keep a reader from acknowledging.
    """
    try:
        return passing_rows(stream, block, filter_)
    except LogError as error:
        log.warning("rows of stream %s are counted as delivered: %s", stream.id, error)
        return block.rows
