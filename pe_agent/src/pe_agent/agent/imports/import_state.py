"""State of an agent's importing side: readers, routes and other agents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pe_agent.agent.imports.peer_agents import PeerAgents
from pe_agent.agent.imports.readers import ImportReader, ImportReaders
from pe_agent.agent.notifier import Notifier
from pe_agent.agent.state.control_log import ControlLog
from pe_agent.agent.state.route_table import RouteTable
from pe_agent.agent.state.store import Store
from streambroker_core.errors import StreambrokerError
from streambroker_core.ledger.offset import Offset
from streambroker_core.model import port_of
from streambroker_core.wire.broker.view import ImportPort


class PortNotDeclaredError(StreambrokerError):
    """The port is not declared."""

    code = "UnknownPort"


class ImportState:
    """Readers, routes and other agents, as shared by the parts of :class:`OffsetPlanner`."""

    def __init__(
        self,
        pe: str,
        routes: RouteTable,
        store: Store,
        notifier: Notifier,
        is_declared: Callable[[str], bool],
        control_log: ControlLog | None = None,
    ) -> None:
        self._pe = pe
        self._routes = routes
        self._notifier = notifier
        self._is_declared = is_declared
        self.control_log = control_log or ControlLog(store, notifier.notify)
        self.readers = ImportReaders(store)
        self.missing_exports: dict[str, list[str]] = {}
        self.peers = PeerAgents(
            notifier, self.readers.alive, self.readers.unfinished, self.readers.find_pass
        )

    def _claim(self, request: Mapping[str, Any], reader_id: str) -> ImportReader | dict[str, Any]:
        import_ = f"{self._pe}/{request['import']}"
        renewals = request.get("renewals")
        return self.readers.claim(reader_id, import_, request["session"], renewals=renewals)

    def _find_import(self, port: str) -> ImportPort | None:
        """Return an import of the view, None while the view does not have it yet."""
        import_ = self._routes.find_import(port)
        if import_ is None and self._routes.view is not None and not self._is_declared(port):
            raise PortNotDeclaredError(
                f"import {self._pe}/{port} does not exist. Declare it with subscribe(),"
                " `streambroker apply` or kubectl, or correct the option `import`."
            )
        return import_

    @staticmethod
    def _positions(reader: ImportReader, export: str, start: Offset) -> dict[str, Any]:
        """Return the reader's positions in streams of an export, and of unknown exports."""
        exports = {s: reader.export_by_stream.get(s) for s in start.streams}
        return {
            "positions": {
                s: p.next for s, p in start.streams.items() if exports[s] in (export, None)
            },
            "own": [s for s, owner in exports.items() if owner == export],
        }

    def _find_route(self, reader: ImportReader, export: str) -> tuple[str, str | None]:
        import_ = self._routes.find_import(port_of(reader.import_))
        for route in import_.routes if import_ else ():
            if str(route.export) == export and route.location is not None:
                return route.location, route.capability
        return reader.addresses[export], None
