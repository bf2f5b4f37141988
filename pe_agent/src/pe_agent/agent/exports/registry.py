"""Exports of an agent's PE: with a log, in the view, or declared."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from pe_agent.agent.exports.export import AgentExport
from pe_agent.agent.exports.export_state import ExportState
from pe_agent.agent.notifier import Notifier
from pe_agent.agent.state.declarations import Declarations, PortNotDeclaredError
from pe_agent.agent.state.store import Store
from pe_agent.agent.storage.tier import StorageTier
from pe_agent.log.commit import Committer
from pe_agent.log.log import StreamLog
from streambroker_core.errors import StreambrokerError
from streambroker_core.ledger.planner import MAX_READERS
from streambroker_core.ledger.retention import BlockingReader, RetentionLimits
from streambroker_core.model import Archive, Buffer, Export, PeKey, PortKey, port_of
from streambroker_core.model.schema import from_items
from streambroker_core.wire.agent_rpc.job import Declare
from streambroker_core.wire.broker.view import SCHEMA_POLICIES, ExportPort, View
from streambroker_core.wire.manifests import ports as manifest

log = logging.getLogger("pe_agent")

_EXPORTS = """
SELECT export FROM streams UNION SELECT export FROM publishers UNION SELECT export FROM readers
"""


class ExportRegistry:
    """Exports by key. Thread-safe.

    Attributes:
        reported_ended: ports of the exports that the last poll reported as ended.
    """

    def __init__(
        self,
        pe: PeKey,
        directory: Path,
        store: Store,
        committer: Committer,
        *,
        notifier: Notifier,
        declarations: Declarations,
        report_due: threading.Event,
        storage: StorageTier | None = None,
        max_readers: int = MAX_READERS,
    ) -> None:
        """Create without exports; ``report_due`` is set when one ends or resumes."""
        self.reported_ended: frozenset[str] = frozenset()
        self._pe = pe
        self._directory = directory
        self._store = store
        self._committer = committer
        self._notifier = notifier
        self._declarations = declarations
        self._report_due = report_due
        self._storage = storage
        self._max_readers = max_readers
        self._exports: dict[str, AgentExport] = {}
        self._tick_errors: dict[str, str] = {}
        self._lock = threading.Lock()

    def recover(self, progress: Callable[[str, int, int], None]) -> None:
        """Recover the exports that the store has."""
        for (key,) in self._store.query(_EXPORTS):
            self.get_or_create(key).recover(progress)

    @contextmanager
    def held_still(self) -> Iterator[list[StreamLog]]:
        """Hold all exports between two changes of their state, and yield their logs."""
        with self._lock, ExitStack() as stack:
            states = [export.state for _, export in sorted(self._exports.items())]
            for state in states:
                stack.enter_context(state.publishing)
            for state in states:
                stack.enter_context(state.lock)
            yield [stream.log for state in states for stream in state.streams.values()]

    def by_key(self) -> dict[str, AgentExport]:
        """Return a copy of all exports, by key."""
        return dict(self._exports)

    def blocking_readers(self, port: str) -> list[BlockingReader]:
        """Return the readers that block an export now; none if it does not exist."""
        export = self._exports.get(f"{self._pe}/{port}")
        return [] if export is None else export.backpressure.blocking_readers()

    def wait_chain(self, port: str, query: str, gated: bool) -> list[str]:
        """Return the exports a query waits for at one of ours, see `Backpressure.wait_chain`."""
        export = self._exports.get(f"{self._pe}/{port}")
        return [] if export is None else export.backpressure.wait_chain(query, gated=gated)

    def publishing_runs(self, key: str) -> set[str]:
        """Return the run of the query that has an export's lease; empty if none has."""
        export = self._exports.get(key)
        return set() if export is None else export.state.publishing_runs()

    def get_or_create(self, key: str) -> AgentExport:
        """Return an export, created if missing."""
        with self._lock:
            if key not in self._exports:
                state = ExportState(
                    key,
                    self._directory / port_of(key),
                    self._store,
                    self._committer,
                    notify=partial(self._on_change, key),
                    storage=self._storage,
                )
                state.ledger.planner.max_readers = self._max_readers
                self._exports[key] = AgentExport(state)
                self.apply_declared_limits(self._exports[key])
            return self._exports[key]

    def apply_declared_limits(self, export: AgentExport) -> None:
        """Apply the declared buffer limits until the first view arrives."""
        spec = self._declaration(export.key).get("spec")
        if spec is None:
            return
        try:
            declared = manifest.read_spec("Export", spec, key=PortKey.parse(export.key))
            if isinstance(declared, Export):
                limits = _to_limits(declared.buffer, declared.archive)
                export.declare(
                    limits, declared.durability, declared.schema_policy, declared.policies
                )
        except StreambrokerError as error:
            log.warning(
                "cannot read the declared buffer limits of export %s: %s", export.key, error
            )

    def check_declared(self, key: str, request: Declare) -> None:
        """Check the columns of a declaration against those published last.

        Raises:
            SchemaIncompatibleError: the export's schema policy does not allow them.
        """
        if request.schema is None or key not in self._exports:
            return
        policy = SCHEMA_POLICIES.get((request.spec or {}).get("schemaPolicy", ""), "backward")
        self._exports[key].check_columns(
            from_items(request.schema), policy, redeclare=request.redeclare
        )

    def _declaration(self, key: str) -> dict[str, Any]:
        return self._declarations.by_name.get(f"export/{port_of(key)}", {})

    def _on_change(self, key: str) -> None:
        """Wake the export's waiters; wake the link if the export has ended or resumed."""
        self._notifier.notify(key)
        export = self._exports.get(key)
        if export is not None and export.state.ended() != (port_of(key) in self.reported_ended):
            self._report_due.set()

    def ended(self) -> frozenset[str]:
        """Return the exports that have ended, by port."""
        exports = dict(self._exports)
        return frozenset(port_of(key) for key, e in exports.items() if e.state.ended())

    def get(self, port_or_key: str) -> AgentExport:
        """Return an export that is declared or that this agent has opened (view or log).

        Raises:
            PortNotDeclaredError: the export is neither.
        """
        open_ = self._exports.get(port_or_key)
        if open_ is not None:
            return open_
        port = port_of(port_or_key)
        key = f"{self._pe}/{port}"
        known = key in self._exports or f"export/{port}" in self._declarations.by_name
        if ("/" in port_or_key and port_or_key != key) or not known:
            raise PortNotDeclaredError(
                f"export {port_or_key if '/' in port_or_key else key} does not exist at agent"
                f" {self._pe}. Declare it with publish(), `streambroker apply` or kubectl, or"
                " correct the option `export`."
            )
        return self.get_or_create(key)

    def apply_view(self, view: View) -> None:
        """Apply limits, routes and revocations of a view; withdraw exports that it lacks."""
        for port in {*view.exports, *(port_of(k) for k in list(self._exports))}:
            try:
                self._apply_export_view(port, view.exports.get(port))
            except Exception:
                # A failed log of one export must not keep the others from their routes.
                log.exception("cannot apply the view to an export", extra={"port": port})

    def _apply_export_view(self, port: str, export: ExportPort | None) -> None:
        exported = self.get_or_create(f"{self._pe}/{port}")
        if export is None:
            declared = self._declaration(exported.key)
            exported.withdraw(declared=bool(declared.get("spec")) and not declared["told"])
            return
        exported.set_durability(export.durability)
        exported.set_schema_policy(export.schema_policy)
        exported.policies.apply(export.policies)
        exported.set_limits(_to_limits(export.buffer, export.archive))
        policies = {str(r.import_): r.policy for r in export.routes}
        exported.set_routes(policies, export.revoked)

    def tick(self) -> None:
        """Apply age limits and grace periods; log each error once."""
        for export in list(self._exports.values()):
            try:
                export.tick()
            except Exception as error:
                if self._tick_errors.get(export.key) != str(error):
                    log.exception(
                        "cannot apply the limits of an export", extra={"export": export.key}
                    )
                self._tick_errors[export.key] = str(error)

    def status(self) -> dict[str, Any]:
        """Return the status of all exports, by key."""
        return {key: export.status() for key, export in sorted(self._exports.items())}

    def close(self) -> None:
        """Close the logs."""
        for export in self._exports.values():
            export.state.close()


def _to_limits(buffer: Buffer, archive: Archive | None) -> RetentionLimits:
    return RetentionLimits(
        max_bytes=buffer.max_bytes,
        max_age=buffer.max_age_s,
        grace=buffer.grace_s,
        wait_limit=buffer.wait_limit_s,
        archive_bytes=None if archive is None else archive.max_bytes,
        archive_age=None if archive is None else archive.max_age_s,
    )
