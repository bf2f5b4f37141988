"""What the job asks of the agent's view: the view itself, and schemas of its imports."""

from __future__ import annotations

from pe_agent.agent.notifier import Notifier
from pe_agent.agent.state.route_table import RouteTable
from pe_agent.agent.state.store import Store
from streambroker_core.model.schema import to_ddl
from streambroker_core.wire.agent_rpc.job import CurrentView, GetView
from streambroker_core.wire.agent_rpc.reader import GetSchema, ImportSchema
from streambroker_core.wire.broker.view import View, encode


class ViewQueries:
    """Answers long polls of the view."""

    def __init__(self, routes: RouteTable, store: Store, notifier: Notifier) -> None:
        self._routes = routes
        self._store = store
        self._notifier = notifier

    def find_schema(self, request: GetSchema) -> ImportSchema:
        """Return an import's schema as DDL: its own, the stored one, or a matched export's."""
        port, wait = request.port, min(10.0, request.wait)
        ddl = self._notifier.wait_for(
            (), wait, lambda: self._current_schema(port), lambda ddl: ddl is not None
        )
        if ddl is not None:
            self._store.write("INSERT OR REPLACE INTO schemas VALUES (?, ?)", port, ddl)
        return ImportSchema(ddl=ddl)

    def _current_schema(self, port: str) -> str | None:
        import_ = self._routes.find_import(port)
        if import_ is not None and import_.schema is not None:
            return to_ddl(import_.schema)
        rows = self._store.query("SELECT ddl FROM schemas WHERE import = ?", port)
        if rows:
            return str(rows[0][0])
        schemas = [r.schema for r in import_.routes if r.schema is not None] if import_ else []
        return to_ddl(schemas[0]) if schemas else None

    def wait_for_view(self, request: GetView) -> CurrentView:
        """Return the agent's view; wait at most 10 seconds while it is the one that was seen."""
        view = self._notifier.wait_for(
            (),
            min(10.0, request.wait),
            lambda: self._routes.view,
            lambda found: _view_version(found) != request.seen,
        )
        return CurrentView(version=_view_version(view), view=None if view is None else encode(view))


def _view_version(view: View | None) -> str | None:
    return None if view is None else view.version
