"""State of an agent's importing side: readers, routes and other agents."""

from __future__ import annotations

import threading
from collections.abc import Callable

from pe_agent.agent.imports.peer_agents import PeerAgents
from pe_agent.agent.imports.readers import ImportReader, ImportReaders
from pe_agent.agent.notifier import Notifier
from pe_agent.agent.state.control_log import ControlLog
from pe_agent.agent.state.declarations import PortNotDeclaredError
from pe_agent.agent.state.route_table import RouteTable
from pe_agent.agent.state.store import Store
from pe_agent.agent.tracing import Tracing
from streambroker_core.ledger.offset import Loss, Offset
from streambroker_core.model import port_of
from streambroker_core.wire.agent_rpc.reader import Busy, ReaderNext, ReaderSlices
from streambroker_core.wire.broker.view import ImportPort


class ImportState:
    """Readers, routes and other agents, as shared by the parts of :class:`OffsetPlanner`.

    Attributes:
        snapshots: readers of the latest batch reads, the oldest first.
        on_loss: called with the import of a reader that has just lost rows, and all its losses.
        tracing: records what readers plan and finish; None if traces are off.
    """

    def __init__(
        self,
        pe: str,
        routes: RouteTable,
        store: Store,
        notifier: Notifier,
        is_declared: Callable[[str], bool],
        control_log: ControlLog | None = None,
    ) -> None:
        self.pe = pe
        self.routes = routes
        self.notifier = notifier
        self.control_log = control_log or ControlLog(store, notifier.notify)
        self.readers = ImportReaders(store)
        self.snapshots: dict[str, ImportReader] = {}
        self.on_loss: Callable[[str, Loss], None] = lambda *_: None
        self.tracing: Tracing | None = None
        self._is_declared = is_declared
        self.peers = PeerAgents(
            notifier, self.readers.alive, self.readers.unfinished, self.readers.find_pass
        )

    def claim(self, request: ReaderNext | ReaderSlices, reader_id: str) -> ImportReader | Busy:
        """Grant the lease of a reader to the caller's process; see `ImportReaders.claim`."""
        import_ = f"{self.pe}/{request.import_}"
        renewals = request.renewals
        return self.readers.claim(reader_id, import_, request.session, renewals=renewals)

    def find_import(self, port: str) -> ImportPort | None:
        """Return an import of the view, None while the view does not have it yet."""
        import_ = self.routes.find_import(port)
        if import_ is None and self.routes.view is not None and not self._is_declared(port):
            raise PortNotDeclaredError(
                f"import {self.pe}/{port} does not exist. Declare it with subscribe(),"
                " `streambroker apply` or kubectl, or correct the option `import`."
            )
        return import_

    @staticmethod
    def positions(reader: ImportReader, export: str, start: Offset) -> dict[str, int]:
        """Return the reader's positions in streams of an export, and of unknown exports."""
        known = reader.export_by_stream
        return {s: p.next for s, p in start.streams.items() if known.get(s) in (export, None)}

    @staticmethod
    def own_streams(reader: ImportReader, export: str, start: Offset) -> list[str]:
        """Return the streams that the reader attributes to an export."""
        return [s for s in start.streams if reader.export_by_stream.get(s) == export]

    def report_leaves(self, reader: ImportReader) -> None:
        """Report to all exporters that a reader has ended, without waiting for them."""
        if self.tracing is not None:
            self.tracing.leave(reader.id)
        for export, location in dict(reader.addresses).items():
            args = (location, export, reader.import_, reader.id, reader.passes.get(export))
            threading.Thread(target=self.peers.report_leave, args=args, daemon=True).start()

    def find_route(self, reader: ImportReader, export: str) -> tuple[str, str | None]:
        """Return address and capability of an export; without a route its last address."""
        import_ = self.routes.find_import(port_of(reader.import_))
        for route in import_.routes if import_ else ():
            if str(route.export) == export and route.location is not None:
                return route.location, route.capability
        return reader.addresses[export], None
