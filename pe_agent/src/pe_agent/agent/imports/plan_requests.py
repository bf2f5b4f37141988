"""Plan requests of readers to exporters' agents, and what their responses are recorded as."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from pe_agent.agent.imports.control_pins import ControlBudget
from pe_agent.agent.imports.import_state import ImportState
from pe_agent.agent.imports.peer_agents import READER_LEASE
from pe_agent.agent.imports.plan_batches import PlanBatches
from pe_agent.agent.imports.readers import ImportReader
from pe_agent.transport.flight_errors import AgentRefusedError, AgentUnreachableError
from streambroker_core.control.tuples import MAX_BYTES, MAX_TUPLES
from streambroker_core.errors import CapabilityError
from streambroker_core.ledger.offset import Offset
from streambroker_core.wire.agent_rpc.peer import PeerPlan, Planned
from streambroker_core.wire.agent_rpc.reader import ReaderNext
from streambroker_core.wire.broker.view import ImportRoute

log = logging.getLogger("pe_agent")


@dataclass(frozen=True, slots=True, kw_only=True)
class NextBatch:
    """A call for a reader's next offset, which acknowledges ``start``.

    ``filter`` is pinned for the batch. ``policy`` is where the import begins.
    """

    reader: ImportReader
    request: ReaderNext
    start: Offset
    filter: str | None
    policy: str


class PlanRequests:
    """Plan requests of all readers."""

    def __init__(self, state: ImportState) -> None:
        self._state = state
        self._peers = state.peers
        self._batches = PlanBatches()

    def is_needed(self, batch: NextBatch, route: ImportRoute) -> bool:
        """Return whether an export has news, or does not know the reader's positions."""
        reader, start, export = batch.reader, batch.start, str(route.export)
        heads = self._peers.heads(export)
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

    def send(
        self,
        batch: NextBatch,
        route: ImportRoute,
        *,
        budget: int,
        at_least_one: bool,
        control_budget: ControlBudget,
    ) -> Planned | None:
        """Request a plan; None if the exporter is away or refuses: its positions then stay.

        Raises:
            AgentRefusedError: ``DataLoss``, ``SchemaWidened``.
        """
        reader, start = batch.reader, batch.start
        export, location = str(route.export), str(route.location)
        request = replace(
            self._acknowledgement(batch, export),
            capability=route.capability,
            start=batch.policy,
            budget=budget,
            one=at_least_one,
        )
        if request.control is not None:
            tuples, payload = max(0, control_budget.tuples), max(0, control_budget.payload)
            request = replace(request, tuples=tuples, payload=payload)
        try:
            response = self._batches.send(location, request)
        except AgentUnreachableError as error:
            self._peers.note_away(location, str(error))
            reader.silent.add(export)
            return None
        except AgentRefusedError as error:
            if error.code in ("DataLoss", "SchemaWidened"):
                raise
            _note_refusal(reader, export, str(error), error.code)
            return None
        _note_refusal(reader, export, "; ".join(response.misfits))
        streams = [p.stream for p in response.planned]
        for stream in streams:
            reader.rowless_until.pop(stream, None)
        reader.rowless_until.update(response.quiet)
        for p in response.planned:
            if p.rows_below is not None:
                reader.rows_below[p.stream] = p.next, p.rows_below
        heads = self._peers.heads(export) or {}
        reader.acknowledged[export] = {
            s: start.streams[s].next for s in {*heads, *streams} if s in start.streams
        }
        self._state.readers.note_export(reader, export, location, streams, response.pass_)
        return response

    def finish_unrouted(self, batch: NextBatch, routed: Collection[str]) -> None:
        """Report final positions to exporters without a route, which then retain nothing."""
        reader = batch.reader
        reader.finished.difference_update(routed)
        for export, location in dict(reader.addresses).items():
            known = export in routed or export in reader.finished
            if known or self._peers.is_away(location):
                continue
            try:
                response = self._batches.send(location, self._acknowledgement(batch, export))
            except AgentUnreachableError as error:
                self._peers.note_away(location, str(error))
            except AgentRefusedError as error:
                if error.code == CapabilityError.code:
                    continue  # the exporter has its route still: report after it is removed
                log.info("export %s retains nothing for this reader: %s", export, error)
                reader.finished.add(export)
            else:
                if not response.routed:
                    reader.finished.add(export)

    def are_opened(self, reader: ImportReader, routes: Iterable[ImportRoute], end: Offset) -> bool:
        """Return whether each export is in the offset, or its absence has a known reason."""
        return all(
            str(r.export) in end.last
            or str(r.export) in reader.refused
            or self._peers.is_away(str(r.location))
            for r in routes
        )

    def _acknowledgement(self, batch: NextBatch, export: str) -> PeerPlan:
        """Return a request that acknowledges the reader's positions and plans nothing."""
        reader, request, start = batch.reader, batch.request, batch.start
        reads_control = request.control is not None
        return PeerPlan(
            export=export,
            import_=reader.import_,
            reader=reader.id,
            call=self._state.readers.number_plan_call(reader),
            pass_=reader.passes.get(export),
            known=export in start.last,
            last=start.last.get(export),
            positions=self._state.positions(reader, export, start),
            own=self._state.own_streams(reader, export, start),
            limit=request.limit,
            one=False,
            schema=request.schema,
            lease=READER_LEASE,
            filter=batch.filter,
            columns=list(request.columns),
            lossy=request.lossy,
            control=request.control,
            tuples=MAX_TUPLES if reads_control else None,
            payload=MAX_BYTES if reads_control else None,
        )


def _note_refusal(
    reader: ImportReader, export: str, reason: str, code: str = "ColumnsRefused"
) -> None:
    """Record why an export sends nothing; log it once per change."""
    if reason and reader.refused.get(export) != reason:
        log.warning("export %s sends nothing: %s", export, reason)
    if reason:
        since = reader.refusals.get(export, ("", time.monotonic()))[1]
        reader.refusals[export] = code, since
        reader.refused[export] = reason
    else:
        reader.refused.pop(export, None)
        reader.refusals.pop(export, None)
