"""Batch reads of a PE's imports: their plans, and the release of them after the last task."""

from __future__ import annotations

import threading
from typing import Any

from pe_agent.agent.imports.available_now import RoutesUnknownError
from pe_agent.agent.imports.import_state import ImportState
from pe_agent.agent.imports.readers import ImportReader
from pe_agent.agent.imports.slice_planner import cut_stream
from pe_agent.transport.agent_client import AgentClient, send
from pe_agent.transport.flight_errors import AgentUnreachableError
from streambroker_core.cep.rules.push_down import narrow_filter
from streambroker_core.errors import StreambrokerError
from streambroker_core.wire.agent_rpc.peer import PeerSnapshot
from streambroker_core.wire.agent_rpc.reader import ReaderDone, ReaderSnapshot, Slices
from streambroker_core.wire.broker.view import ImportRoute

LEASE_SECONDS = 60.0
"""Lease of a plan from its registration on; each read renews it at the exporter."""
PLAN_SECONDS = 30.0
MAX_SNAPSHOTS = 1_000


class FilterTooLongError(StreambrokerError):
    """The filter of a batch read and that of its import are too long together."""

    code = "FilterInvalid"


class Snapshots:
    """All batch reads. Thread-safe. Only the latest `MAX_SNAPSHOTS` are known."""

    def __init__(self, state: ImportState) -> None:
        self._state = state
        self._lock = threading.Lock()
        self._unread: dict[str, set[int]] = {}

    def plan(self, request: ReaderSnapshot) -> Slices:
        """Plan a batch read at all exports and cut it; idempotent for one reader.

        Raises:
            PortNotDeclaredError: the import is not declared.
            RoutesUnknownError: its routes are not known yet.
            AgentUnreachableError: an exporter is away; the caller retries.
            AgentRefusedError: an exporter refuses.
        """
        import_ = self._state.find_import(request.import_)
        key = f"{self._state.pe}/{request.import_}"
        if import_ is None:
            raise RoutesUnknownError(f"the routes of import {key} are not known yet.")
        filter_ = import_.filter
        if request.filter is not None:
            filter_ = narrow_filter(request.filter, import_.filter)
            if filter_ is None:
                raise FilterTooLongError("the filter and that of the import are too long together.")
        reader = ImportReader(id=request.reader, import_=key)
        slices: list[dict[str, Any]] = []
        lost: dict[str, Any] = {}
        for route in import_.routes:
            cut, missing = self._plan_export(reader, route, request, filter_)
            slices += cut
            lost |= missing
        numbered = [{**ticket, "slice": number} for number, ticket in enumerate(slices)]
        with self._lock:
            known = self._state.snapshots
            known[reader.id] = reader
            self._unread[reader.id] = set(range(len(slices)))
            if len(known) > MAX_SNAPSHOTS:
                oldest = next(iter(known))
                del known[oldest]
                self._unread.pop(oldest, None)
        if not slices:
            self._state.report_leaves(reader)
        return Slices(slices=numbered, lost=lost)

    def _plan_export(
        self, reader: ImportReader, route: ImportRoute, request: ReaderSnapshot, filter_: str | None
    ) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        export = str(route.export)
        if route.location is None:
            raise AgentUnreachableError(f"the agent of export {export} has no address yet.")
        columns = list(request.columns)
        response = send(
            AgentClient(route.location),
            PeerSnapshot(
                export=export,
                import_=reader.import_,
                reader=reader.id,
                lease=LEASE_SECONDS,
                positions={},
                filter=filter_,
                columns=columns,
                call=self._state.readers.number_plan_call(reader),
                capability=route.capability,
                lossy=request.lossy,
                start=request.start,
                end=request.end,
                schema=request.schema,
            ),
            timeout=PLAN_SECONDS,
        )
        reader.addresses[export] = route.location
        if response.pass_ is not None:
            reader.passes[export] = response.pass_
        common = {
            "location": route.location,
            "export": export,
            "reader": reader.id,
            "import": reader.import_,
            "filter": filter_,
            "columns": columns,
            "grant": response.grant,
        }
        cut = [t for stream in response.order for t in cut_stream(common, stream, response)]
        return cut, {s: [g[:2] for g in of] for s, of in response.gone.items()}

    def finish_slice(self, request: ReaderDone) -> None:
        """Note that a slice was read; after the last one release the plans at the exporters."""
        with self._lock:
            unread = self._unread.get(request.reader, set())
            was_last = unread == {request.slice}
            unread.discard(request.slice)
            reader = self._state.snapshots.get(request.reader)
        if was_last and reader is not None:
            self._state.report_leaves(reader)
