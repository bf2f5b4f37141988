"""Reading side of an export: plans, reads and leases of its readers."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pe_agent.agent.exports.backpressure import Backpressure
from pe_agent.agent.exports.export_state import ExportState
from pe_agent.agent.exports.stream.block_reader import ReadRequest
from pe_agent.agent.exports.stream.export_policies import ExportPolicies
from pe_agent.agent.exports.stream.export_stream import ExportStream
from pe_agent.agent.exports.stream.manifests import Manifest
from pe_agent.agent.exports.stream.restricted_stream import restricted
from pe_agent.agent.exports.stream.row_filter import first_too_wide, schema_mismatch
from pe_agent.transport.rows.casts import SchemaWidenedError
from streambroker_core.ledger.epochs import holes
from streambroker_core.ledger.losses import MissingRange, find_missing
from streambroker_core.ledger.offset import column_names
from streambroker_core.ledger.plan import Plan, PlanRequest
from streambroker_core.ledger.planner import SharedPlans
from streambroker_core.ledger.retention import Reader
from streambroker_core.model.policies import PolicyDeniedError, Restriction, combine

log = logging.getLogger("pe_agent")

MAX_TRACES = 128
"""As many links of a span as OpenTelemetry keeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredPlan:
    """A plan that was registered again.

    Attributes:
        blocks: rows and bytes of its blocks: ``{stream: {epoch: [(rows, bytes), …]}}``.
        missing: epochs omitted because they are lost: ``{stream: [(first, next, rows), …]}``, rows
            None if unknown. Only for lossy readers.
        order: the streams, in publishing order.
        control: epochs with control tuples, by stream.
        direct: epochs by stream that tasks may read from the bucket: the reader has no filter.
        ranges: the epochs ``[first, next)``, by stream.
        traces: contexts of the spans that published the first `MAX_TRACES` of them.
    """

    blocks: dict[str, dict[int, list[tuple[int, int]]]]
    missing: dict[str, list[MissingRange]]
    order: tuple[str, ...] = ()
    control: dict[str, list[int]] = field(default_factory=dict)
    direct: dict[str, list[int]] = field(default_factory=dict)
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    traces: Sequence[str] = ()


class ReaderPlans:
    """Requests of readers to an export. Public methods are thread-safe."""

    def __init__(
        self, state: ExportState, backpressure: Backpressure, policies: ExportPolicies
    ) -> None:
        self.policies = policies
        self._state = state
        self._ledger = state.ledger
        self._deliveries = state.deliveries
        self._backpressure = backpressure
        self._stored_readers = set[str]()
        """Readers that are in the object storage, if the export demands it."""

    @property
    def streams(self) -> Mapping[str, ExportStream]:
        """Return the streams of the export's log, by id."""
        return self._state.streams

    def plan_all(
        self,
        requests: Sequence[PlanRequest],
        *,
        filter_: str | None,
        columns: list[str] | None,
        schema: str | None = None,
        excluded: Collection[str] = (),
    ) -> list[Plan | Exception]:
        """Acknowledge readers' positions, pin their next epochs, and record filter and columns.

        They are handled in order, and their claims are stored in one transaction. Streams in
        ``excluded`` are not planned; see :meth:`schema_mismatches`. Of the others, epochs with
        types wider than in ``schema``, the readers' columns as DDL, are not planned.

        Returns:
            For each request the plan or an error: OvertakenError, DataLossError,
            ReadersExceededError, RevokedError (see core's ledger); SchemaWidenedError if the
            reader's next epoch has wider types; BucketError if the reader is new and the object
            storage of a ``stored`` export is away.
        """
        outcomes: list[Plan | Exception] = []
        shared, saved = SharedPlans(), list[tuple[str, ...]]()
        with self._state.lock:
            wide = self.find_too_wide(schema)
            stops = wide | dict.fromkeys(excluded, (0, ""))
            # No sweep in the transaction: logs are deleted once the store has that.
            with self._state.store.transaction():
                for request in requests:
                    try:
                        self._deliveries.wanted[request.reader] = schema
                        plan = self._plan(request, filter_, columns, stops, shared)
                        saved.append(self._state.reader_row(request.reader))
                        outcomes.append(self._check_width(request, plan, stops))
                    except Exception as error:
                        outcomes.append(error)
                self._state.save_rows(saved)
                self._forget_evicted()
            plans = [one for one in outcomes if isinstance(one, Plan)]
            if plans:
                self._state.sweep()
        if any(plan.finished for plan in plans):
            self._state.notify()
        return self._store_new_readers(requests, outcomes)

    def find_too_wide(self, schema: str | None) -> dict[str, tuple[int, str]]:
        """Return the epoch before which readers of columns as DDL stop, by stream, and why."""
        with self._state.lock:
            wide = {s.id: first_too_wide(s, schema) for s in self._state.streams.values()}
        return {stream: stop for stream, stop in wide.items() if stop is not None}

    def list_misfits(
        self, reader: str, mismatches: Mapping[str, str], wide: Mapping[str, tuple[int, str]]
    ) -> list[str]:
        """Return why a reader gets nothing of streams that have, or may get, epochs for it."""
        if not (mismatches or wide):
            return []
        found = {s: w for s, (n, w) in wide.items() if self._begins_too_wide(reader, s, n)}
        found.update(mismatches)
        return [why for stream, why in found.items() if self.blocks_reader(reader, stream)]

    def _begins_too_wide(self, reader: str, stream: str, stop: int) -> bool:
        """Return whether a reader never had a narrower epoch of a stream."""
        with self._state.lock:
            known = self._ledger.readers.get(reader)
            cursor = known.cursors.get(stream) if known else None
            return cursor is None or cursor.first >= stop

    def _check_width(
        self, request: PlanRequest, plan: Plan, wide: Mapping[str, tuple[int, str]]
    ) -> Plan | SchemaWidenedError:
        """Return the plan, or an error if only rows of wider types follow what the reader had.

        A reader that had none of the stream is not stopped: the Export does not fit it.
        """
        if any(p.from_ < p.next for p in plan.planned):
            return plan
        for planned in plan.planned:
            name = planned.stream
            stop, why = wide.get(name, (0, ""))
            stream = self._ledger.streams[name]
            is_limited = request.limit is not None and request.limit.get(name, 0) <= stop
            unread = request.control is not None and planned.from_ < stop
            if not why or is_limited or unread or stream.rows_between(planned.from_, stop):
                continue
            if stop < stream.next and not self._begins_too_wide(request.reader, name, stop):
                return SchemaWidenedError(
                    f"stream {name} of export {self._state.key}: {why}. All earlier rows are read."
                    " Start the query again with the wider type in schema=, and the same"
                    " checkpoint; operators and sinks have to take the wider type too."
                )
        return plan

    def _store_new_readers(
        self, requests: Sequence[PlanRequest], outcomes: list[Plan | Exception]
    ) -> list[Plan | Exception]:
        """Store new readers, or return the error for them: else claims would end with the disk."""
        planned = {r.reader for r, o in zip(requests, outcomes, strict=True) if isinstance(o, Plan)}
        new = planned - self._stored_readers
        if not new:
            return outcomes
        try:
            self._state.save_stored()
        except Exception as error:
            pairs = zip(requests, outcomes, strict=True)
            return [error if request.reader in new else one for request, one in pairs]
        self._stored_readers |= new
        return outcomes

    def _plan(
        self,
        request: PlanRequest,
        filter_: str | None,
        columns: list[str] | None,
        stops: Mapping[str, tuple[int, str]],
        shared: SharedPlans,
    ) -> Plan:
        self._ledger.planner.check_call(request)
        now, before = self._state.clock(), _planned_ranges(self._ledger.readers.get(request.reader))
        self._finish_plan(request)
        if stops:
            limit = self._state.heads() if request.limit is None else request.limit
            limit = {s: min(n, stops[s][0]) if s in stops else n for s, n in limit.items()}
            request = request._replace(limit=limit)
        plan = self._ledger.planner.plan(request, now, shared)
        if plan.routed:
            self._deliveries.begin_plan(request.reader, filter_, columns, plan.planned)
            self._deliveries.pin(request.reader, self.policies.of_import(request.import_))
        self._note_planned(request.reader, before)
        return plan

    def note_stored(self, reader: str) -> None:
        """Record that the state that was recovered has a reader."""
        self._stored_readers.add(reader)

    def schema_mismatches(
        self,
        filter_: str | None,
        columns: list[str] | None,
        schema: str | None,
        restriction: Restriction | None = None,
    ) -> dict[str, str]:
        """Return why streams are unreadable; ``schema`` has the wanted columns as DDL, if known."""
        wanted, mismatches = column_names(columns), dict[str, str]()
        hint = "" if restriction is None else f" ({restriction} of the export apply)"
        for stream in list(self._state.streams.values()):
            try:
                visible = restricted(stream, restriction)
                why = schema_mismatch(visible, filter_, wanted, schema)
            except PolicyDeniedError as error:
                why, hint = str(error), ""
            if why is not None:
                mismatches[stream.id] = why + hint
        return mismatches

    def blocks_reader(self, reader: str, stream: str) -> bool:
        """Return whether an unreadable stream has, or may still get, epochs for a reader."""
        with self._state.lock:
            known = self._ledger.streams.get(stream)
            is_growing = known is not None and not known.sealed and not self._state.ended()
            return is_growing or self._ledger.claims.has_unread(reader, stream)

    def register_plan(
        self,
        request: PlanRequest,
        ranges: Mapping[str, tuple[int, int]],
        *,
        filter_: str | None,
        columns: list[str] | None,
    ) -> RegisteredPlan:
        """Register a checkpointed plan again.

        For a lossy reader, epochs that are not completely readable are omitted. Later
        registrations omit them, too, and finishing the plan counts them as lost.

        Raises:
            DataLossError: epochs are missing, and the reader is not lossy.
            NotRoutedError: its route is gone, and some of the epochs were never granted to it.
            OvertakenError: a later call of the reader was handled before.
            PolicyDeniedError: policies withhold the rows, or some of the columns.
        """
        with self._state.lock:
            current = self.policies.of_import(request.import_)
            self._ledger.planner.check_call(request)
            before = _planned_ranges(self._ledger.readers.get(request.reader))
            self._finish_plan(request)
            self._ledger.planner.register_plan(request, ranges, self._state.clock())
            self._deliveries.begin_plan(request.reader, filter_, columns)
            if not _covers(before, ranges):  # else the plan keeps the policies that it had
                self._deliveries.pin(request.reader, current)
            restriction = combine(self._deliveries.restrictions.get(request.reader), current)
            if restriction is not None:
                wanted = self._deliveries.wanted.get(request.reader)
                misfits = self.schema_mismatches(filter_, columns, wanted, restriction)
                _check_withheld(ranges, misfits)
            self._note_planned(request.reader, before)
            self._state.save_reader(request.reader)
            missing = self._skipped_epochs(request, ranges)
            blocks = {
                s: _list_blocks(self._state, s, ranges[s], missing.get(s, ())) for s in ranges
            }
            order = tuple(s for s in self._ledger.streams if s in ranges)
            control = {s: _epochs_with_control(self.streams.get(s), blocks[s]) for s in ranges}
            in_objects = {s: _epochs_in_objects(self.streams.get(s), blocks[s]) for s in ranges}
            is_whole = filter_ is None and restriction is None
            direct = {s: of for s, of in in_objects.items() if of and is_whole}
            traces = [c for s in order for c in _list_traces(self.streams.get(s), blocks[s])]
        for name, skipped in missing.items():
            log.warning(
                "reader %s continues without epochs %s of %s", request.reader, skipped, name
            )
        return RegisteredPlan(
            blocks=blocks,
            missing=missing,
            order=order,
            control=control,
            direct=direct,
            ranges=ranges,
            traces=traces[:MAX_TRACES],
        )

    def _skipped_epochs(
        self,
        request: PlanRequest,
        ranges: Mapping[str, tuple[int, int]],
    ) -> dict[str, list[MissingRange]]:
        """Return the epochs omitted from a plan; stored before the reader gets the response."""
        delivery = self._deliveries.for_reader(request.reader)
        missing: dict[str, list[MissingRange]] = {}
        if request.skip_lost:
            missing = find_missing(self._ledger.streams, ranges, before=delivery.missed)
        if missing != delivery.missed:
            delivery.missed = missing
            self._state.save_reader(request.reader)
        return missing

    def is_planned_with(self, reader: str, filter_: str | None) -> bool:
        """Return whether the last plan of a reader had this filter."""
        with self._state.lock:
            return (
                reader in self._ledger.readers
                and self._deliveries.for_reader(reader).filter == filter_
            )

    def find_readable(self, read: ReadRequest, epoch: int) -> Manifest | None:
        """Return the manifest if the reader has planned the epoch with filter and columns.

        Raises:
            RevokedError: the reader's import is revoked.
        """
        with self._state.lock:
            known = self._ledger.readers.get(read.reader)
            if known is not None:
                self._ledger.routes.check_revoked(known.import_)
            if not self._ledger.planner.is_planned(
                read.reader, read.stream, epoch, self._state.clock()
            ):
                return None
            if not self._deliveries.for_reader(read.reader).matches_plan(read.filter, read.columns):
                return None
            if read.query is not None and known is not None:
                known.query = read.query
            if known is not None and known.once:
                self._ledger.claims.renew(read.reader, self._state.clock())
            export_stream = self._state.streams.get(read.stream)
            return None if export_stream is None else export_stream.manifests.get(epoch)

    def count_block(self, reader: str, stream: str, epoch: int, block: int, rows: int) -> None:
        """Record how many rows of a block passed the filter; idempotent."""
        with self._state.lock:
            self._deliveries.note_passed(reader, stream, epoch, block, rows)

    def count_control(self, reader: str, deliveries: Iterable[str]) -> None:
        """Count sent control tuples."""
        with self._state.lock:
            if reader in self._ledger.readers:
                self._deliveries.sent_control(reader).update(deliveries)

    def count_sent(self, reader: str, rows: int, size: int, query: str | None = None) -> None:
        """Count sent rows and bytes, including repeated reads, and record the reading query."""
        with self._state.lock:
            if reader not in self._ledger.readers:
                return
            if query is not None:
                self._ledger.readers[reader].query = query
            delivery = self._deliveries.for_reader(reader)
            delivery.sent_rows += rows
            delivery.sent_bytes += size

    def _note_planned(self, id_: str, before: Mapping[str, tuple[int, int]]) -> None:
        delivery = self._deliveries.for_reader(id_)
        planned = _planned_ranges(self._ledger.readers.get(id_))
        if not planned:
            delivery.planned_since = None
        elif planned != before or delivery.planned_since is None:
            delivery.planned_since = self._state.clock()

    def count_released_plans(self) -> None:
        """Release what readers claim that are away for longer than grace; count their plans.

        Batch reads are forgotten.
        """
        for reader in self._ledger.claims.released_readers(self._state.clock()):
            if reader.once:
                self._ledger.planner.evict(reader)
                continue
            delivery = self._deliveries.for_reader(reader.id)
            if self._ledger.retention.archive(reader):
                self._state.save_reader(reader.id)
            if delivery.planned_since is not None:
                delivery.planned_since = None
                delivery.released_plans += 1
                self._state.save_reader(reader.id)
                log.warning("the plan of reader %s is released: it is away", reader.id)
        self._forget_evicted()

    def _forget_evicted(self) -> None:
        for id_ in self._ledger.planner.evicted:
            self._deliveries.forget(id_)
            self._stored_readers.discard(id_)
            self._backpressure.forget(id_)
            self._state.store.write(
                "DELETE FROM readers WHERE export = ? AND id = ?", self._state.key, id_
            )
        self._ledger.planner.evicted.clear()

    def _finish_plan(self, request: PlanRequest) -> None:
        reader = self._ledger.readers.get(request.reader)
        if reader is not None:
            self._deliveries.finish_plan(reader, request.positions)

    def renew_reader(self, reader: str, import_: str, seconds: float) -> bool:
        """Renew a reader's lease for ``seconds``; return whether it has a plan."""
        with self._state.lock:
            if not _belongs_to(self._ledger.readers.get(reader), import_):
                return False
            self._ledger.claims.renew(reader, self._state.clock() + seconds)
            return bool(_planned_ranges(self._ledger.readers[reader]))

    def end_reader_lease(self, reader: str, import_: str) -> None:
        """End the lease of a reader whose process has stopped."""
        with self._state.lock:
            if _belongs_to(self._ledger.readers.get(reader), import_):
                self._ledger.claims.end_lease(reader, self._state.clock())


def _belongs_to(reader: Reader | None, import_: str) -> bool:
    return reader is not None and reader.import_ == import_


def _check_withheld(ranges: Collection[str], misfits: Mapping[str, str]) -> None:
    for stream in misfits.keys() & set(ranges):
        raise PolicyDeniedError(
            f"a planned batch cannot be read any more: {misfits[stream]}. Start the query with a"
            " new checkpoint, or ask the Export's owner for the columns."
        )


def _covers(planned: Mapping[str, tuple[int, int]], ranges: Mapping[str, tuple[int, int]]) -> bool:
    """Return whether epochs are part of a plan."""
    return all(
        stream in planned and planned[stream][0] <= first and next_ <= planned[stream][1]
        for stream, (first, next_) in ranges.items()
    )


def _planned_ranges(reader: Reader | None) -> dict[str, tuple[int, int]]:
    cursors = reader.cursors if reader else {}
    return {s: c.planned for s, c in cursors.items() if c.planned is not None}


def _list_blocks(
    state: ExportState, stream: str, epochs: tuple[int, int], missing: Collection[MissingRange]
) -> dict[int, list[tuple[int, int]]]:
    export_stream = state.streams.get(stream)
    manifests = {} if export_stream is None else export_stream.manifests
    return {
        n: [(b.rows, b.bytes) for b in manifests[n].blocks]
        for low, high in holes(((g[0], g[1]) for g in missing), *epochs)
        for n in state.present_epochs(stream, low, high)
        if n in manifests
    }


def _epochs_with_control(stream: ExportStream | None, epochs: Iterable[int]) -> list[int]:
    return [] if stream is None else [n for n in epochs if stream.manifests[n].control]


def _list_traces(stream: ExportStream | None, epochs: Iterable[int]) -> list[str]:
    found = [] if stream is None else [stream.manifests[n].traceparent for n in epochs]
    return [context for context in found if context is not None]


def _epochs_in_objects(stream: ExportStream | None, epochs: Iterable[int]) -> list[int]:
    manifests = {} if stream is None else stream.manifests
    return [
        n for n in epochs if n in manifests and manifests[n].blocks and not manifests[n].log_blocks
    ]
