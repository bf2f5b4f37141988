"""The importing side of an agent: readers, their leases, their next offset."""

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
from streambroker_core.ledger.ledger import BlockingReader
from streambroker_core.ledger.offset import (
    Offset,
    PlannedRange,
    advance,
    find_never_read,
    forget_streams,
    sum_losses,
    without_exports,
)
from streambroker_core.wire.broker.view import ImportPort, ImportRoute

log = logging.getLogger("pe_agent")

MAX_WAIT_SECONDS = 5.0
MAX_OLD_POSITIONS = 1_000


class OffsetPlanner(SlicePlanner, AvailableNowTarget):
    """All readers of this PE's imports. Safe from any thread; one call per reader at a time."""

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
        """The source process ends in order: the lease ends, the claims last for grace."""
        known = self.readers.release(reader, session)
        if known is None:
            return
        for export, location in dict(known.addresses).items():
            told = (location, export, known.import_, reader)
            threading.Thread(target=self.peers.report_leave, args=told, daemon=True).start()

    # -- the next offset ---------------------------------------------------------------------

    def next_offset(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer ``latestOffset``.

        Args:
            request: ``import``, ``session``, ``start`` (offset), ``columns``, ``max_bytes``,
                ``limit`` (``{stream: next}`` of availableNow, or null), ``wait`` seconds,
                ``lossy`` (loss that nobody agreed to is counted, and does not stop the query),
                ``frame`` (as the query was told of, see :meth:`QueryGates.begin`), ``aside`` (the
                call holds nobody up), ``control`` (of a reader of control tuples the types that
                do not cut its batches, or null), ``log`` (it carries the agent's control log),
                ``log_limit`` (entry before which a run with ``limit`` ends), ``rules`` (`pinning`).

        Returns:
            ``{"offset": …}``, ``{"offset": null}`` if there is nothing new, or ``{"busy": …}``;
            with ``gated``, the export whose log is full, if there may be something, and with
            ``behind``, the exports that give nothing and have not reached the limit, or without
            a limit those that alone keep the reader from its end, for they refuse it;
            ``refused``, why those of them give nothing that do answer;
            ``left``, for how many seconds the query has had nothing else to wait for;
            ``ended`` if all its exports have ended and all they have is read;
            ``sum_losses`` if it is known that a call may wait without holding up other streams.

        Raises:
            NotRoutedError, ReaderInUseError, UnknownPortError, DataLossError.
            ControlLogTwiceError: another source of the query carries the control log.
        """
        start = Offset.decode(request["start"])
        reader_id = start.reader or request.get("mint") or secrets.token_hex(16)
        claimed = self._claim(request, reader_id)
        if isinstance(claimed, dict):
            return claimed
        call = self.readers.begin_call(
            claimed
        )  # before its turn: locks are not first come, first served
        with claimed.call_lock:
            return self._next_offset(claimed, start, request, call)

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
            going_on = (
                self._unfinished_exports(request["import"])
                if gate is None and not limited
                else None
            )
            asked = request if gate is None else hold_back(request)
            end = self._advance(reader, start, asked, call) if reader.calls == call else None
            if end is None and reader.calls != call:
                return {"offset": None}
            _note_end(reader, going_on if end is None else None)
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
                told = {
                    "gated": gate,
                    "behind": behind,
                    "refused": {e: reader.refused[e] for e in behind if e in reader.refused},
                    "left": 0.0
                    if reader.refused_since is None
                    else self._refused_seconds(turn.query),
                    "together": turn.may_wait,
                    "ended": reader.ended,
                }
                return {"offset": None, **{k: v for k, v in told.items() if v}}

    def _lagging_exports(
        self, reader: ImportReader, start: Offset, limit: Mapping[str, int] | None
    ) -> list[str]:
        """Return the exports that do not answer, or refuse, and have more below the limit.

        Without a limit they are those without which the reader would have ended.
        """
        if limit is None:
            return [] if reader.refused_since is None else sorted(reader.refused)
        short = [
            stream
            for stream, next_ in limit.items()
            if stream not in start.streams or start.streams[stream].next < next_
        ]
        homes = {reader.export_by_stream.get(s) for s in short}
        nothing_of = {*reader.silent, *reader.refused}
        return sorted(e for e in nothing_of if e in homes or None in homes)

    def _unfinished_exports(self, port: str) -> set[str] | None:
        """Return the exporters that have not said that they have ended; None if there is none."""
        import_ = self._routes.find_import(port)
        exports = {str(r.export) for r in import_.routes} if import_ else set()
        return {e for e in exports if not self.peers.has_ended(e)} if exports else None

    def _refused_seconds(self, query: GatedQuery | None) -> float:
        """Return for how many seconds a query has had to wait only for exports that refuse it."""
        readers = [] if query is None else self._query_readers(query)
        since = [r.refused_since for r in readers if r.refused_since is not None]
        if not since or not all(r.ended or r.refused_since is not None for r in readers):
            return 0.0
        return time.monotonic() - max(since)

    def _query_readers(self, query: GatedQuery) -> list[ImportReader]:
        """Return all readers of a query; none while some are not known, or it reads other streams.

        Of such a query it cannot be said that it has nothing more to read.
        """
        readers = [self.readers[r] for r in sorted(query.readers) if r in self.readers]
        return readers if len(readers) == len(query.frames) and not query.has_other_sources else []

    def _advance(
        self, reader: ImportReader, start: Offset, request: Mapping[str, Any], call: int
    ) -> Offset | None:
        port = request["import"]
        import_ = self._find_import(port)
        end = replace(start, reader=reader.id, columns=tuple(request["columns"]))
        end = pin_rules(reader, import_, end, request.get("rules"))
        room = _ControlBudget()
        end = self._pin_control_log(reader, import_, _add_missed(reader, start, end), request, room)
        if self._has_control_before(start, end, request):
            self._note_filter_starts(reader, start, end)
            return end
        changed = end != start
        left = most = int(request["max_bytes"])
        routes = _routes_with_address(reader, import_)
        for index, route in enumerate(_rotate_routes(reader, routes)):
            if reader.calls != call:
                return None  # the caller has given up and asks anew, perhaps from further on
            if self.peers.is_away(str(route.location)):
                reader.silent.add(str(route.export))
                continue
            if not self._needs_plan(reader, route, start):
                continue
            share = max(1, left // (len(routes) - index))
            answer = self._request_plan(
                reader, route, import_, start, end, request, share, left == most, room
            )
            if answer is None:
                continue
            planned = [_decode_planned(p) for p in answer["planned"]]
            reader.received.note_plan(str(route.export), planned, start)
            first = answer["routed"] and str(route.export) not in start.last
            if first or any(_changes_offset(p, start) for p in planned):
                last = answer["last"]
                end = advance(
                    end, str(route.export), planned, None if last is None else (last[0], last[1])
                )
                changed = True
            left -= answer["bytes"]
            room.subtract(answer)
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
        """Note whether a reader carries the control log; one of a query does.

        Raises:
            ControlLogTwiceError: another one that lives does.
        """
        reader.carries_control_log = bool(request.get("log"))
        if not reader.carries_control_log or query is None:
            return
        alive = {r for of in self.readers.alive().values() for r in of}
        for other in sorted((query.readers & alive) - {reader.id}):
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
        """Return an offset with the entries of the control log that its batch reads.

        A reader that comes for the first time begins at the log's end, or with ``start: earliest``
        at its first entry; one whose log is gone at the beginning of the one there is.
        """
        if not request.get("log"):
            return end
        mine, at = self.control_log, end.control.get(self.control_log.id)
        if at is None:
            earliest = import_ is not None and import_.start == "earliest"
            at = mine.first_retained() if end.control or earliest else mine.next_seq
            if end.control:
                log.warning(
                    "import %s goes on with control log %s; the one before is gone",
                    reader.import_,
                    mine.id,
                )
            mine.acknowledge(reader.id, at)
            return replace(end, control={mine.id: at})
        mine.acknowledge(reader.id, at)
        limit = request.get("log_limit")
        next_ = mine.window_end(at, control_budget.tuples, control_budget.payload, limit)
        control_budget.subtract({"tuples": next_ - at, "payload": mine.size(at, next_)})
        return replace(end, control={mine.id: next_})

    def _has_control_before(self, start: Offset, end: Offset, request: Mapping[str, Any]) -> bool:
        """Whether a reader begins with the log, and is to read entries before its first rows."""
        mine, at = self.control_log, end.control.get(self.control_log.id)
        if at is None or mine.id in start.control:
            return False
        return mine.window_end(at, 1, 0, request.get("log_limit")) > at

    def _prune_positions(
        self, reader: ImportReader, import_: ImportPort, start: Offset, end: Offset
    ) -> Offset:
        """Return an offset with a bounded number of positions that nothing is read from any more.

        They are of streams that have ended, and of exports without a route, which may come back.
        Those of streams that an exporter has forgotten go first, then the oldest. Exports without
        a route of which nothing was read go with the last of their positions.
        """
        heads = {str(r.export): self.peers.heads(str(r.export)) for r in import_.routes}

        def forgotten(stream: str) -> bool:
            return stream not in (heads.get(reader.export_by_stream[stream]) or {stream})

        left = [
            s
            for s, export in reader.export_by_stream.items()
            if s in end.streams
            and end.streams[s] == start.streams.get(s)
            and (export not in heads or forgotten(s))
        ]
        left.sort(key=lambda s: reader.export_by_stream[s] not in heads)
        over = left[: max(0, len(left) - MAX_OLD_POSITIONS)]
        left_over = forget_streams(end, over)
        self.readers.forget(reader, over)
        return without_exports(
            left_over, find_never_read(left_over, heads, reader.export_by_stream)
        )

    def _is_opened(self, reader: ImportReader, route: ImportRoute, end: Offset) -> bool:
        """Whether an export is in the offset, or gives a known reason why it cannot be."""
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
        """Tell exporters whose route is gone how far the reader came; they hold nothing then."""
        reader.finished -= routed
        for export, location in dict(reader.addresses).items():
            if export in routed | reader.finished or self.peers.is_away(location):
                continue
            try:
                answer = self._call_plan(reader, export, location, None, request, start, end)
            except AgentUnreachableError as error:
                self.peers.note_away(location, str(error))
            except AgentRefusedError as error:
                if error.code == CapabilityError.code:
                    continue  # there the route is not gone yet: it is told once that is so
                log.info("export %s keeps nothing for us: %s", export, error)
                reader.finished.add(export)
            else:
                if not answer["routed"]:
                    reader.finished.add(export)

    def _needs_plan(self, reader: ImportReader, route: ImportRoute, start: Offset) -> bool:
        export = str(route.export)
        heads = self.peers.heads(export)
        reader.received.note_lag(export, heads, start, reader.rowless_until)
        if heads is None or export not in start.last:
            return True
        told = reader.acknowledged.get(export, {})
        for stream, head in heads.items():
            position = start.streams.get(stream)
            if position is None or told.get(stream) != position.next:
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
        """Let the exporter's agent plan; None if it is away or will not, its streams then stay."""
        export = str(route.export)
        try:
            answer = self._call_plan(
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
        self._note_refusal(reader, export, "; ".join(answer.get("misfits", ())))
        streams = [p["stream"] for p in answer["planned"]]
        for stream in streams:
            reader.rowless_until.pop(stream, None)
        reader.rowless_until.update(answer.get("quiet", {}))
        heads = self.peers.heads(export) or {}
        reader.acknowledged[export] = {
            s: start.streams[s].next for s in {*heads, *streams} if s in start.streams
        }
        self.readers.note_export(reader, export, str(route.location), streams, answer.get("pass"))
        return answer

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
        """Keep why an export gives nothing; told once, when it changes."""
        if reason and reader.refused.get(export) != reason:
            log.warning("nothing is read of export %s: %s", export, reason)
        if reason:
            reader.refused[export] = reason
        else:
            reader.refused.pop(export, None)

    def begin_query(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Take in a query that runs, and say whether all that it reads has ended and is read."""
        query = self.queries.begin(body)
        readers = self._query_readers(query)
        return {"ended": bool(readers) and all(r.ended for r in readers)}

    # -- seen from outside -------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Return figures for people: readers by import, and which agents are away."""
        return {
            "readers": self.readers.status(),
            "away": self.peers.away(),
            "refused": self.peers.refusals(),
            "queries": self.queries.status(),
            "missing": {port: exports for port, exports in self.missing_exports.items() if exports},
        }


@dataclass(slots=True)
class _ControlBudget:
    """How many control tuples a window of one import has still room for, and of what bytes."""

    tuples: int = MAX_TUPLES
    payload: int = MAX_BYTES

    def subtract(self, answer: Mapping[str, Any]) -> None:
        """Take what a plan has; an older exporter has none, and says nothing."""
        self.tuples -= int(answer.get("tuples", 0))
        self.payload -= int(answer.get("payload", 0))


def _control_fields(
    request: Mapping[str, Any], control_budget: _ControlBudget | None
) -> dict[str, Any]:
    """Return what a reader of control says in a plan; readers of rows say nothing."""
    if request.get("control") is None:
        return {}
    left = control_budget or _ControlBudget()
    return {
        "control": list(request["control"]),
        "tuples": max(0, left.tuples),
        "payload": max(0, left.payload),
    }


def _routes_with_address(reader: ImportReader, import_: ImportPort | None) -> list[ImportRoute]:
    """Return the routes whose exporter has an address; who has none is silent.

    What an export refused is forgotten with its route.
    """
    reader.silent = set()
    if import_ is None:
        return []
    reader.silent |= {str(r.export) for r in import_.routes if r.location is None}
    routed = {str(r.export) for r in import_.routes}
    reader.refused = {e: why for e, why in reader.refused.items() if e in routed}
    return [r for r in import_.routes if r.location is not None]


def _rotate_routes(reader: ImportReader, routes: list[ImportRoute]) -> list[ImportRoute]:
    """Return the routes, each time beginning with the next: no exporter takes all the bytes."""
    first = reader.next_route % max(1, len(routes))
    reader.next_route += 1
    return routes[first:] + routes[:first]


def _note_end(reader: ImportReader, unfinished: set[str] | None) -> None:
    """Note whether a reader that was given nothing has come to its end.

    Args:
        reader: one of our own.
        unfinished: its exports that had not ended before it asked; None if it has not come to the
            end, whatever they say.
    """
    refused = set(reader.refused)
    nothing_more = unfinished is not None and not reader.silent and unfinished <= refused
    reader.ended = nothing_more and not refused
    if not nothing_more or not refused:
        reader.refused_since = None
    elif reader.refused_since is None:
        reader.refused_since = time.monotonic()


def _changes_offset(plan: PlannedRange, start: Offset) -> bool:
    """Whether a plan changes the offset: rows to read, a new stream, or epochs to pass over."""
    passed_over = plan.duplicates[0] > 0 or plan.lost[0] > 0
    return plan.next > plan.from_ or plan.stream not in start.streams or passed_over


def _filter_starts(reader: ImportReader, start: Offset, end: Offset) -> dict[str, dict[str, int]]:
    """Return the first epoch of each stream that is read as ``end`` says, by export."""
    result: dict[str, dict[str, int]] = {}
    for stream, position in end.streams.items():
        before = start.streams.get(stream)
        first = position.from_ if before is None else max(before.next, position.from_)
        result.setdefault(reader.export_by_stream.get(stream, ""), {})[stream] = first
    return result


def _add_missed(reader: ImportReader, start: Offset, end: Offset) -> Offset:
    """Return ``end`` with what the batch up to ``start`` was cut without, unless it has it."""
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
