"""Offset planner of an agent's imports: the next offset of each reader."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pe_agent.agent.imports.available_now import AvailableNowTarget
from pe_agent.agent.imports.backpressure import GatedQuery, QueryGates
from pe_agent.agent.imports.control_pins import (
    ControlBudget,
    has_control_before,
    note_carrier,
    pin_control_log,
)
from pe_agent.agent.imports.import_state import ImportState
from pe_agent.agent.imports.pinned_rules import hold_back, pin_rules
from pe_agent.agent.imports.plan_requests import NextBatch, PlanRequests
from pe_agent.agent.imports.readers import ImportReader
from pe_agent.agent.imports.slice_planner import SlicePlanner
from pe_agent.agent.imports.snapshots import Snapshots
from streambroker_core.ledger.offset import (
    Offset,
    advance,
    find_never_read,
    forget_streams,
    sum_losses,
    without_exports,
)
from streambroker_core.model import port_of
from streambroker_core.wire.agent_rpc.job import QueryBegin, QueryEnded
from streambroker_core.wire.agent_rpc.peer import PlannedRange
from streambroker_core.wire.agent_rpc.reader import Busy, NextOffset, ReaderNext
from streambroker_core.wire.broker.view import ImportPort, ImportRoute

MAX_WAIT_SECONDS = 5.0
MAX_OLD_POSITIONS = 1_000


class OffsetPlanner:
    """All readers of this PE's imports. Thread-safe; one call per reader at a time.

    Attributes:
        state: readers, routes and other agents.
        slices: requests of Spark's ``partitions``.
        available_now: targets of runs up to a limit.
        queries: backpressure on the queries that read.
        snapshots: batch reads.
    """

    def __init__(
        self,
        state: ImportState,
        slices: SlicePlanner,
        available_now: AvailableNowTarget,
        queries: QueryGates,
    ) -> None:
        self.state = state
        self.slices = slices
        self.available_now = available_now
        self.queries = queries
        self.snapshots = Snapshots(state)
        self._plans = PlanRequests(state)

    def leave(self, reader: str, session: str) -> ImportReader | None:
        """Release a lease as `ImportReaders.release` does; the claims last for ``grace``."""
        known = self.state.readers.release(reader, session)
        if known is not None:
            self.state.report_leaves(known)
        return known

    def begin_query(self, request: QueryBegin) -> QueryEnded:
        """Register a running query; return whether all its readers have ended."""
        readers = self._query_readers(self.queries.begin(request))
        return QueryEnded(ended=bool(readers) and all(r.ended for r in readers))

    def imports_of(self, query: str | None) -> set[str]:
        """Return the ports of the imports that a running query has read."""
        readers = self.queries.readers_of(query or "")
        return {port_of(self.state.readers[r].import_) for r in readers if r in self.state.readers}

    def next_offset(self, request: ReaderNext) -> NextOffset | Busy:
        """Answer ``latestOffset``.

        Raises:
            NotRoutedError, ReaderInUseError, PortNotDeclaredError, DataLossError.
            ControlLogTwiceError: another source of the query carries the control log.
        """
        start = Offset.decode(request.start)
        reader_id = start.reader or request.mint or secrets.token_hex(16)
        reader = self.state.claim(request, reader_id)
        if isinstance(reader, Busy):
            return reader
        if self.state.tracing is not None:
            self.state.tracing.acknowledge(reader_id, start)
        # Before the lock: locks are not first come, first served.
        call = self.state.readers.begin_call(reader)
        with reader.call_lock:
            return self._next_offset(reader, start, request, call)

    def _next_offset(
        self, reader: ImportReader, start: Offset, request: ReaderNext, call: int
    ) -> NextOffset:
        began, notifier = time.monotonic(), self.state.notifier
        reader.frame, reader.stop_at_end = request.frame, request.stop_at_end
        turn = self.queries.begin_call(request.frame, reader.import_, reader.id)
        limited = request.limit is not None
        note_carrier(self.state.readers, reader, turn.query, request)
        while True:
            seen = notifier.version(turn.keys)
            gate = turn.blocking_export()
            unfinished = (
                self._unfinished_exports(request.import_) if gate is None and not limited else None
            )
            effective = request if gate is None else hold_back(request)
            end = self._advance(reader, start, effective, call) if reader.calls == call else None
            if end is None and reader.calls != call:
                return NextOffset(offset=None)
            _note_end(reader, unfinished if end is None else None)
            if end is not None:
                turn.note_offset()
                return NextOffset(
                    offset=end.encode(),
                    heads=self._known_heads(reader, end),
                    rows_behind=self._rows_behind(reader, end),
                )
            patience = turn.wait_seconds(
                request.wait,
                limited=limited,
                gated=gate is not None,
                in_background=request.aside,
            )
            left = began + min(MAX_WAIT_SECONDS, patience) - time.monotonic()
            if left <= 0 or turn.others_changed() or not notifier.wait(seen, left, turn.keys):
                behind = self._lagging_exports(reader, start, request.limit)
                return NextOffset(
                    offset=None,
                    gated=gate,
                    behind=behind,
                    refused={e: reader.refused[e] for e in behind if e in reader.refused},
                    left=self._refused_seconds(turn.query) if reader.refused_since else 0.0,
                    together=turn.may_wait,
                    ended=reader.ended,
                )

    def _known_heads(self, reader: ImportReader, end: Offset) -> dict[str, int]:
        """Return the next epoch of each stream of an offset, as last known.

        Epochs without a row for the reader do not count: it need not read them.
        """
        heads = dict[str, int]()
        for stream, position in end.streams.items():
            known = self.state.peers.heads(reader.export_by_stream.get(stream, "")) or {}
            head, rowless = known.get(stream, 0), reader.rowless_until.get(stream, 0)
            heads[stream] = head if head > max(position.next, rowless) else position.next
        return heads

    def _rows_behind(self, reader: ImportReader, end: Offset) -> int | None:
        """Return how many rows follow an offset, before filters; None if not all are known."""
        behind = 0
        for export in end.last:
            heads = self.state.peers.heads(export) or {}
            known = self.state.peers.rows(export)
            last = max((n for n, s in enumerate(heads) if s in end.streams), default=-1)
            for number, (stream, head) in enumerate(heads.items()):
                position = end.streams.get(stream)
                if position is not None and position.next < head:
                    next_, below = reader.rows_below.get(stream, (-1, 0))
                    if next_ != position.next or stream not in known:
                        return None
                    behind += max(0, known[stream] - below)
                elif position is None and number > last and head:
                    if stream not in known:
                        return None
                    behind += known[stream]
        return behind

    def _lagging_exports(
        self, reader: ImportReader, start: Offset, limit: Mapping[str, int] | None
    ) -> list[str]:
        """Return the exports that are away or refuse, and have more below the limit.

        Without a limit: those whose refusal alone keeps the reader from its end.
        """
        if limit is None:
            return [] if reader.refused_since is None else sorted(reader.refused)
        short = [
            stream
            for stream, next_ in limit.items()
            if stream not in start.streams or start.streams[stream].next < next_
        ]
        exports = {reader.export_by_stream.get(s) for s in short}
        unavailable = {*reader.silent, *reader.refused}
        return sorted(e for e in unavailable if e in exports or None in exports)

    def _unfinished_exports(self, port: str) -> set[str] | None:
        """Return the exports that have not reported their end; None if the import has none."""
        import_ = self.state.routes.find_import(port)
        exports = {str(r.export) for r in import_.routes} if import_ else set()
        return {e for e in exports if not self.state.peers.has_ended(e)} if exports else None

    def _refused_seconds(self, query: GatedQuery | None) -> float:
        """Return the seconds for which a query has waited only for exports that refuse it."""
        readers = [] if query is None else self._query_readers(query)
        since = [r.refused_since for r in readers if r.refused_since is not None]
        if not since or not all(r.ended or r.refused_since is not None for r in readers):
            return 0.0
        return time.monotonic() - max(since)

    def _query_readers(self, query: GatedQuery) -> list[ImportReader]:
        """Return a query's readers; none if one is unknown or it has other sources: end unknown."""
        readers = [self.state.readers[r] for r in sorted(query.readers) if r in self.state.readers]
        return readers if len(readers) == len(query.frames) and not query.has_other_sources else []

    def _advance(
        self, reader: ImportReader, start: Offset, request: ReaderNext, call: int
    ) -> Offset | None:
        import_ = self.state.find_import(request.import_)
        control_log, budget = self.state.control_log, ControlBudget()
        end = replace(start, reader=reader.id, columns=tuple(request.columns))
        end = pin_rules(reader, import_, end, request.rules)
        end = _add_missed(reader, start, end)
        end = pin_control_log(control_log, reader, import_, end, request, budget)
        if has_control_before(control_log, start, end, request):
            self._note_filter_starts(reader, start, end)
            return end
        batch = NextBatch(
            reader=reader,
            request=request,
            start=start,
            filter=end.filter,
            policy=import_.start if import_ else "latest",
        )
        routes = _routes_with_address(reader, import_)
        planned = self._plan_routes(batch, routes, end, call, budget)
        if planned is None:
            return None
        changed = end != start or planned is not end
        end = planned
        self._plans.finish_unrouted(batch, {str(r.export) for r in routes})
        if changed and import_ is not None:
            end = self._prune_positions(reader, import_, start, end)
        self._note_filter_starts(reader, start, end)
        if import_ is not None and self._plans.are_opened(reader, routes, end):
            reader.pinned = {
                "filter": end.import_filter,
                "generation": import_.generation,
                "from": reader.filter_starts,
            }
        reader.dropped = sum_losses(end.dropped.values())
        reader.lost = sum_losses(end.lost.values())
        if any(n[0] > start.lost.get(s, (0, 0))[0] for s, n in end.lost.items()):
            self.state.on_loss(reader.import_, reader.lost)
        return end if changed else None

    def _plan_routes(
        self,
        batch: NextBatch,
        routes: list[ImportRoute],
        end: Offset,
        call: int,
        budget: ControlBudget,
    ) -> Offset | None:
        """Return the end with the plans of all exports; None if the caller gave up."""
        reader, start = batch.reader, batch.start
        remaining = max_bytes = batch.request.max_bytes
        for index, route in enumerate(_rotate_routes(reader, routes)):
            export = str(route.export)
            if reader.calls != call:
                return None  # the caller gave up; its next call may start further on
            if self.state.peers.is_away(str(route.location)):
                reader.silent.add(export)
                continue
            if not self._plans.is_needed(batch, route):
                continue
            response = self._plans.send(
                batch,
                route,
                budget=max(1, remaining // (len(routes) - index)),
                at_least_one=remaining == max_bytes,
                control_budget=budget,
            )
            if response is None:
                continue
            planned = response.planned
            reader.received.note_plan(export, planned, start)
            opened = response.routed and export not in start.last
            if opened or any(_changes_offset(p, start) for p in planned):
                end = advance(end, export, planned, response.last)
            remaining -= response.bytes
            budget.subtract(response.tuples, response.payload)
        return end

    def _note_filter_starts(self, reader: ImportReader, start: Offset, end: Offset) -> None:
        before = (start.import_filter, start.columns)
        if start.reader and (end.import_filter, end.columns) != before:
            starts = _filter_starts(reader, start, end)
            self.state.readers.note_filter_starts(reader, starts)

    def _prune_positions(
        self, reader: ImportReader, import_: ImportPort, start: Offset, end: Offset
    ) -> Offset:
        """Return the offset with at most `MAX_OLD_POSITIONS` positions that are no longer read.

        These belong to ended streams and to exports without a route, which may come back.
        Streams that their exporter has forgotten are removed first, then the oldest. An export
        without a route that was never read is removed with its last position.
        """
        heads = {str(r.export): self.state.peers.heads(str(r.export)) for r in import_.routes}

        def forgotten(stream: str) -> bool:
            return stream not in (heads.get(reader.export_by_stream[stream]) or {stream})

        old = [
            s
            for s, export in reader.export_by_stream.items()
            if s in end.streams
            and end.streams[s] == start.streams.get(s)
            and (export not in heads or forgotten(s))
        ]
        old.sort(key=lambda s: reader.export_by_stream[s] not in heads)
        excess = old[: max(0, len(old) - MAX_OLD_POSITIONS)]
        pruned = forget_streams(end, excess)
        self.state.readers.forget(reader, excess)
        return without_exports(pruned, find_never_read(pruned, heads, reader.export_by_stream))

    def status(self) -> dict[str, Any]:
        """Return the status of readers by import, agents that are away, refusals and queries."""
        state, missing = self.state, self.available_now.missing_exports
        return {
            "readers": state.readers.status(),
            "away": state.peers.away(),
            "refused": state.peers.refusals(),
            "queries": self.queries.status(),
            "missing": {port: exports for port, exports in missing.items() if exports},
        }


def _routes_with_address(reader: ImportReader, import_: ImportPort | None) -> list[ImportRoute]:
    """Return the routes with an address; note the others as silent and drop old refusals."""
    reader.silent = set()
    if import_ is None:
        return []
    reader.silent |= {str(r.export) for r in import_.routes if r.location is None}
    routed = {str(r.export) for r in import_.routes}
    reader.refused = {e: why for e, why in reader.refused.items() if e in routed}
    reader.refusals = {e: known for e, known in reader.refusals.items() if e in routed}
    return [r for r in import_.routes if r.location is not None]


def _rotate_routes(reader: ImportReader, routes: list[ImportRoute]) -> list[ImportRoute]:
    """Return the routes starting at the next one, so that no exporter uses up all bytes."""
    first = reader.next_route % max(1, len(routes))
    reader.next_route += 1
    return routes[first:] + routes[:first]


def _note_end(reader: ImportReader, unfinished: set[str] | None) -> None:
    """Record whether a reader without a new offset has reached its end.

    ``unfinished`` are the exports that had not ended before; None if the end is not reached.
    """
    refused = set(reader.refused)
    is_complete = unfinished is not None and not reader.silent and unfinished <= refused
    reader.ended = is_complete and not refused
    if not is_complete or not refused:
        reader.refused_since = None
    elif reader.refused_since is None:
        reader.refused_since = time.monotonic()


def _changes_offset(plan: PlannedRange, start: Offset) -> bool:
    """Return whether a plan changes the offset: rows, a new stream, or skipped epochs."""
    skips = plan.duplicates[0] > 0 or plan.lost[0] > 0
    return plan.next > plan.from_ or plan.stream not in start.streams or skips


def _filter_starts(reader: ImportReader, start: Offset, end: Offset) -> dict[str, dict[str, int]]:
    """Return the first epoch of each stream read with ``end``'s filter and columns, by export."""
    result: dict[str, dict[str, int]] = {}
    for stream, position in end.streams.items():
        before = start.streams.get(stream)
        first = position.from_ if before is None else max(before.next, position.from_)
        result.setdefault(reader.export_by_stream.get(stream, ""), {})[stream] = first
    return result


def _add_missed(reader: ImportReader, start: Offset, end: Offset) -> Offset:
    """Return ``end`` with the losses found while slicing up to ``start``, unless included."""
    lost = dict(end.lost)
    for stream, missed in reader.missed.items():
        position, counted = start.streams.get(stream), start.lost.get(stream, (0, 0))
        if (
            position is not None
            and position.next >= missed.next
            and counted[0] == missed.already_lost
        ):
            lost[stream] = sum_losses([counted, missed.lost])
    return replace(end, lost=lost)
