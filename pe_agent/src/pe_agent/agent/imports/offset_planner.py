"""Offset planner of an agent's imports: readers, their leases, their next offset."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pe_agent.agent.imports.available_now import AvailableNowTarget
from pe_agent.agent.imports.backpressure import GatedQuery, QueryGates
from pe_agent.agent.imports.import_state import PortNotDeclaredError
from pe_agent.agent.imports.peer_agents import PLAN_SECONDS, READER_LEASE
from pe_agent.agent.imports.pinned_rules import hold_back, pin_rules
from pe_agent.agent.imports.readers import ImportReader
from pe_agent.agent.imports.slice_planner import SlicePlanner
from pe_agent.agent.notifier import Notifier
from pe_agent.agent.state.control_log import ControlLog, ControlLogTwiceError
from pe_agent.agent.state.route_table import RouteTable
from pe_agent.agent.state.store import Store
from pe_agent.transport.agent_client import AgentClient
from pe_agent.transport.flight_errors import AgentRefusedError, AgentUnreachableError
from streambroker_core.control.tuples import MAX_BYTES, MAX_TUPLES
from streambroker_core.errors import CapabilityError
from streambroker_core.ledger.offset import (
    Offset,
    PlannedRange,
    advance,
    find_never_read,
    forget_streams,
    sum_losses,
    without_exports,
)
from streambroker_core.ledger.retention import BlockingReader
from streambroker_core.wire.broker.view import ImportPort, ImportRoute

log = logging.getLogger("pe_agent")

MAX_WAIT_SECONDS = 5.0
MAX_OLD_POSITIONS = 1_000


class OffsetPlanner(SlicePlanner, AvailableNowTarget):
    """All readers of this PE's imports. Thread-safe; one call per reader at a time."""

    def __init__(
        self,
        pe: str,
        routes: RouteTable,
        store: Store,
        notifier: Notifier,
        is_declared: Callable[[str], bool],
        holders: Callable[[str], Sequence[BlockingReader]] = lambda _: (),
        control_log: ControlLog | None = None,
    ) -> None:
        super().__init__(pe, routes, store, notifier, is_declared, control_log)
        self.queries = QueryGates(pe, notifier, holders)

    def leave(self, reader: str, session: str) -> None:
        """Release the lease of a source process that has ended; its claims last for ``grace``."""
        known = self.readers.release(reader, session)
        if known is None:
            return
        for export, location in dict(known.addresses).items():
            args = (location, export, known.import_, reader)
            threading.Thread(target=self.peers.report_leave, args=args, daemon=True).start()

    # -- the next offset ---------------------------------------------------------------------

    def next_offset(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer ``latestOffset``.

        Args:
            request: ``import``, ``session``, ``start`` (offset), ``columns``, ``max_bytes``,
                ``limit`` (``{stream: next}`` of availableNow, or null), ``wait`` seconds,
                ``lossy`` (unexpected loss is counted and does not stop the query),
                ``frame`` (see :meth:`QueryGates.begin`), ``aside`` (the call blocks no other),
                ``control`` (control reader: the types that do not cut its batches, or null),
                ``log`` (the reader carries the agent's control log),
                ``log_limit`` (first control log entry after a run with ``limit``),
                ``rules`` (see `pinned_rules`).

        Returns:
            ``{"offset": …}``, ``{"offset": null}`` if there is nothing new, or ``{"busy": …}``.
            Null may come with:
            ``gated``, the export whose full log keeps the query from reading;
            ``behind``, the exports that send nothing and are below the limit, or without a limit
            those whose refusal alone keeps the reader from its end;
            ``refused``, the reasons of those exports of ``behind`` that respond;
            ``left``, the seconds for which the query has waited only for exports that refuse it;
            ``ended``, true if all exports have ended and are read;
            ``together``, true if a call may wait without blocking other streams.

        Raises:
            NotRoutedError, ReaderInUseError, PortNotDeclaredError, DataLossError.
            ControlLogTwiceError: another source of the query carries the control log.
        """
        start = Offset.decode(request["start"])
        reader_id = start.reader or request.get("mint") or secrets.token_hex(16)
        reader = self._claim(request, reader_id)
        if isinstance(reader, dict):
            return reader
        # Before the lock: locks are not first come, first served.
        call = self.readers.begin_call(reader)
        with reader.call_lock:
            return self._next_offset(reader, start, request, call)

    def _next_offset(
        self, reader: ImportReader, start: Offset, request: Mapping[str, Any], call: int
    ) -> dict[str, Any]:
        began = time.monotonic()
        turn = self.queries.begin_call(request.get("frame"), reader.import_, reader.id)
        limited = request.get("limit") is not None
        self._note_control_log(reader, turn.query, request)
        while True:
            seen = self._notifier.version(turn.keys)
            gate = turn.blocking_export()
            unfinished = (
                self._unfinished_exports(request["import"])
                if gate is None and not limited
                else None
            )
            effective = request if gate is None else hold_back(request)
            end = self._advance(reader, start, effective, call) if reader.calls == call else None
            if end is None and reader.calls != call:
                return {"offset": None}
            _note_end(reader, unfinished if end is None else None)
            if end is not None:
                turn.note_offset()
                return {"offset": end.encode()}
            patience = turn.wait_seconds(
                float(request["wait"]),
                limited=limited,
                gated=gate is not None,
                in_background=bool(request.get("aside")),
            )
            left = began + min(MAX_WAIT_SECONDS, patience) - time.monotonic()
            if left <= 0 or turn.others_changed() or not self._notifier.wait(seen, left, turn.keys):
                behind = self._lagging_exports(reader, start, request.get("limit"))
                details = {
                    "gated": gate,
                    "behind": behind,
                    "refused": {e: reader.refused[e] for e in behind if e in reader.refused},
                    "left": 0.0
                    if reader.refused_since is None
                    else self._refused_seconds(turn.query),
                    "together": turn.may_wait,
                    "ended": reader.ended,
                }
                return {"offset": None, **{k: v for k, v in details.items() if v}}

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
        import_ = self._routes.find_import(port)
        exports = {str(r.export) for r in import_.routes} if import_ else set()
        return {e for e in exports if not self.peers.has_ended(e)} if exports else None

    def _refused_seconds(self, query: GatedQuery | None) -> float:
        """Return the seconds for which a query has waited only for exports that refuse it."""
        readers = [] if query is None else self._query_readers(query)
        since = [r.refused_since for r in readers if r.refused_since is not None]
        if not since or not all(r.ended or r.refused_since is not None for r in readers):
            return 0.0
        return time.monotonic() - max(since)

    def _query_readers(self, query: GatedQuery) -> list[ImportReader]:
        """Return a query's readers; none if one is unknown or it has other sources: end unknown."""
        readers = [self.readers[r] for r in sorted(query.readers) if r in self.readers]
        return readers if len(readers) == len(query.frames) and not query.has_other_sources else []

    def _advance(
        self, reader: ImportReader, start: Offset, request: Mapping[str, Any], call: int
    ) -> Offset | None:
        port = request["import"]
        import_ = self._find_import(port)
        end = replace(start, reader=reader.id, columns=tuple(request["columns"]))
        end = pin_rules(reader, import_, end, request.get("rules"))
        budget = _ControlBudget()
        end = self._pin_control_log(
            reader, import_, _add_missed(reader, start, end), request, budget
        )
        if self._has_control_before(start, end, request):
            self._note_filter_starts(reader, start, end)
            return end
        changed = end != start
        remaining = max_bytes = int(request["max_bytes"])
        routes = _routes_with_address(reader, import_)
        for index, route in enumerate(_rotate_routes(reader, routes)):
            if reader.calls != call:
                return None  # the caller gave up; its next call may start further on
            if self.peers.is_away(str(route.location)):
                reader.silent.add(str(route.export))
                continue
            if not self._needs_plan(reader, route, start):
                continue
            share = max(1, remaining // (len(routes) - index))
            response = self._request_plan(
                reader, route, import_, start, end, request, share, remaining == max_bytes, budget
            )
            if response is None:
                continue
            planned = [_decode_planned(p) for p in response["planned"]]
            reader.received.note_plan(str(route.export), planned, start)
            opened = response["routed"] and str(route.export) not in start.last
            if opened or any(_changes_offset(p, start) for p in planned):
                last = response["last"]
                end = advance(
                    end, str(route.export), planned, None if last is None else (last[0], last[1])
                )
                changed = True
            remaining -= response["bytes"]
            budget.subtract(response)
        self._finish_unrouted(reader, {str(r.export) for r in routes}, request, start, end)
        if changed and import_ is not None:
            end = self._prune_positions(reader, import_, start, end)
        self._note_filter_starts(reader, start, end)
        if import_ is not None and all(self._is_opened(reader, r, end) for r in routes):
            reader.pinned = {
                "filter": end.import_filter,
                "generation": import_.generation,
                "from": reader.filter_starts,
            }
        reader.dropped, reader.lost = (
            sum_losses(end.dropped.values()),
            sum_losses(end.lost.values()),
        )
        return end if changed else None

    def _note_filter_starts(self, reader: ImportReader, start: Offset, end: Offset) -> None:
        before = (start.import_filter, start.columns)
        if start.reader and (end.import_filter, end.columns) != before:
            self.readers.note_filter_starts(reader, _filter_starts(reader, start, end))

    def _note_control_log(
        self, reader: ImportReader, query: GatedQuery | None, request: Mapping[str, Any]
    ) -> None:
        """Record whether a reader carries the control log; only one reader of a query may."""
        reader.carries_control_log = bool(request.get("log"))
        if not reader.carries_control_log or query is None:
            return
        active = {r for of in self.readers.alive().values() for r in of}
        for other in sorted((query.readers & active) - {reader.id}):
            if self.readers[other].carries_control_log:
                reader.carries_control_log = False
                raise ControlLogTwiceError(
                    f"query {query.id} would get each control tuple twice: its imports"
                    f" {self.readers[other].import_} and {reader.import_} both carry the control"
                    " log. Let one source of the query do it (option `controlLog`)."
                )

    def _pin_control_log(
        self,
        reader: ImportReader,
        import_: ImportPort | None,
        end: Offset,
        request: Mapping[str, Any],
        control_budget: _ControlBudget,
    ) -> Offset:
        """Return the offset with the control log entries that its batch reads.

        A new reader starts at the log's end, or with ``start: earliest`` at its first entry.
        A reader of a lost log starts at the first entry of the current one.
        """
        if not request.get("log"):
            return end
        control_log, at = self.control_log, end.control.get(self.control_log.id)
        if at is None:
            earliest = import_ is not None and import_.start == "earliest"
            at = control_log.first_retained() if end.control or earliest else control_log.next_seq
            if end.control:
                log.warning(
                    "import %s continues with control log %s; the previous one is gone",
                    reader.import_,
                    control_log.id,
                )
            control_log.acknowledge(reader.id, at)
            return replace(end, control={control_log.id: at})
        control_log.acknowledge(reader.id, at)
        limit = request.get("log_limit")
        next_ = control_log.window_end(at, control_budget.tuples, control_budget.payload, limit)
        control_budget.subtract({"tuples": next_ - at, "payload": control_log.size(at, next_)})
        return replace(end, control={control_log.id: next_})

    def _has_control_before(self, start: Offset, end: Offset, request: Mapping[str, Any]) -> bool:
        control_log, at = self.control_log, end.control.get(self.control_log.id)
        if at is None or control_log.id in start.control:
            return False
        return control_log.window_end(at, 1, 0, request.get("log_limit")) > at

    def _prune_positions(
        self, reader: ImportReader, import_: ImportPort, start: Offset, end: Offset
    ) -> Offset:
        """Return the offset with at most `MAX_OLD_POSITIONS` positions that are no longer read.

        These belong to ended streams and to exports without a route, which may come back.
        Streams that their exporter has forgotten are removed first, then the oldest. An export
        without a route that was never read is removed with its last position.
        """
        heads = {str(r.export): self.peers.heads(str(r.export)) for r in import_.routes}

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
        self.readers.forget(reader, excess)
        return without_exports(pruned, find_never_read(pruned, heads, reader.export_by_stream))

    def _is_opened(self, reader: ImportReader, route: ImportRoute, end: Offset) -> bool:
        """Return whether an export is in the offset, or has a known reason for its absence."""
        export = str(route.export)
        away = self.peers.is_away(str(route.location))
        return export in end.last or export in reader.refused or away

    def _finish_unrouted(
        self,
        reader: ImportReader,
        routed: set[str],
        request: Mapping[str, Any],
        start: Offset,
        end: Offset,
    ) -> None:
        """Report final positions to exporters without a route, which then retain nothing."""
        reader.finished -= routed
        for export, location in dict(reader.addresses).items():
            if export in routed | reader.finished or self.peers.is_away(location):
                continue
            try:
                response = self._call_plan(reader, export, location, None, request, start, end)
            except AgentUnreachableError as error:
                self.peers.note_away(location, str(error))
            except AgentRefusedError as error:
                if error.code == CapabilityError.code:
                    continue  # the exporter has its route still: report after it is removed
                log.info("export %s retains nothing for this reader: %s", export, error)
                reader.finished.add(export)
            else:
                if not response["routed"]:
                    reader.finished.add(export)

    def _needs_plan(self, reader: ImportReader, route: ImportRoute, start: Offset) -> bool:
        export = str(route.export)
        heads = self.peers.heads(export)
        reader.received.note_lag(export, heads, start, reader.rowless_until)
        if heads is None or export not in start.last:
            return True
        acknowledged = reader.acknowledged.get(export, {})
        for stream, head in heads.items():
            position = start.streams.get(stream)
            if position is None or acknowledged.get(stream) != position.next:
                return True
            if head > max(position.next, reader.rowless_until.get(stream, 0)):
                return True
        return False

    def _request_plan(
        self,
        reader: ImportReader,
        route: ImportRoute,
        import_: ImportPort | None,
        start: Offset,
        end: Offset,
        request: Mapping[str, Any],
        budget: int,
        at_least_one: bool,
        control_budget: _ControlBudget,
    ) -> dict[str, Any] | None:
        """Request a plan; None if the exporter is away or refuses: its positions then stay."""
        export = str(route.export)
        try:
            response = self._call_plan(
                reader,
                export,
                str(route.location),
                route.capability,
                request,
                start,
                end,
                policy=import_.start if import_ else "latest",
                budget=budget,
                at_least_one=at_least_one,
                control_budget=control_budget,
            )
        except AgentUnreachableError as error:
            self.peers.note_away(str(route.location), str(error))
            reader.silent.add(export)
            return None
        except AgentRefusedError as error:
            if error.code == "DataLoss":
                raise
            self._note_refusal(reader, export, str(error))
            return None
        self._note_refusal(reader, export, "; ".join(response.get("misfits", ())))
        streams = [p["stream"] for p in response["planned"]]
        for stream in streams:
            reader.rowless_until.pop(stream, None)
        reader.rowless_until.update(response.get("quiet", {}))
        heads = self.peers.heads(export) or {}
        reader.acknowledged[export] = {
            s: start.streams[s].next for s in {*heads, *streams} if s in start.streams
        }
        self.readers.note_export(reader, export, str(route.location), streams, response.get("pass"))
        return response

    def _call_plan(
        self,
        reader: ImportReader,
        export: str,
        location: str,
        capability: str | None,
        request: Mapping[str, Any],
        start: Offset,
        end: Offset,
        *,
        policy: str = "latest",
        budget: int = 0,
        at_least_one: bool = False,
        control_budget: _ControlBudget | None = None,
    ) -> dict[str, Any]:
        return AgentClient(location).call(
            "peer.plan",
            timeout=PLAN_SECONDS,
            export=export,
            reader=reader.id,
            call=self.readers.number_plan_call(reader),
            capability=capability,
            start=policy,
            known=export in start.last,
            last=start.last.get(export),
            **self._positions(reader, export, start),
            limit=request.get("limit"),
            budget=budget,
            one=at_least_one,
            schema=request.get("schema"),
            lease=READER_LEASE,
            filter=end.filter,
            columns=request["columns"],
            lossy=bool(request.get("lossy")),
            **_control_fields(request, control_budget),
            **{"import": reader.import_, "pass": reader.passes.get(export)},
        )

    def _note_refusal(self, reader: ImportReader, export: str, reason: str) -> None:
        """Record why an export sends nothing; log it once per change."""
        if reason and reader.refused.get(export) != reason:
            log.warning("export %s sends nothing: %s", export, reason)
        if reason:
            reader.refused[export] = reason
        else:
            reader.refused.pop(export, None)

    def begin_query(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Register a running query; return whether all its readers have ended."""
        query = self.queries.begin(body)
        readers = self._query_readers(query)
        return {"ended": bool(readers) and all(r.ended for r in readers)}

    # -- status ------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Return the status of readers by import, agents that are away, refusals and queries."""
        return {
            "readers": self.readers.status(),
            "away": self.peers.away(),
            "refused": self.peers.refusals(),
            "queries": self.queries.status(),
            "missing": {port: exports for port, exports in self.missing_exports.items() if exports},
        }


@dataclass(slots=True)
class _ControlBudget:
    tuples: int = MAX_TUPLES
    payload: int = MAX_BYTES

    def subtract(self, answer: Mapping[str, Any]) -> None:
        """Subtract what a plan uses; older exporters do not report it."""
        self.tuples -= int(answer.get("tuples", 0))
        self.payload -= int(answer.get("payload", 0))


def _control_fields(
    request: Mapping[str, Any], control_budget: _ControlBudget | None
) -> dict[str, Any]:
    """Return the control fields of a plan request; empty for readers of rows."""
    if request.get("control") is None:
        return {}
    budget = control_budget or _ControlBudget()
    return {
        "control": list(request["control"]),
        "tuples": max(0, budget.tuples),
        "payload": max(0, budget.payload),
    }


def _routes_with_address(reader: ImportReader, import_: ImportPort | None) -> list[ImportRoute]:
    """Return the routes with an address; note the others as silent and drop old refusals."""
    reader.silent = set()
    if import_ is None:
        return []
    reader.silent |= {str(r.export) for r in import_.routes if r.location is None}
    routed = {str(r.export) for r in import_.routes}
    reader.refused = {e: why for e, why in reader.refused.items() if e in routed}
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


def _decode_planned(data: Mapping[str, Any]) -> PlannedRange:
    return PlannedRange(
        stream=data["stream"],
        from_=data["from"],
        next=data["next"],
        dropped=(data["dropped"][0], data["dropped"][1]),
        duplicates=(data["duplicates"][0], data["duplicates"][1]),
        lost=(data["lost"][0], data["lost"][1]) if "lost" in data else (0, 0),
        has_gap=data["moved"],
    )


__all__ = ["OffsetPlanner", "PortNotDeclaredError"]
