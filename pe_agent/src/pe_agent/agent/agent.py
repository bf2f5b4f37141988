"""State owner of one agent."""

from __future__ import annotations

import hmac
import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from pe_agent.agent.exports.export import AgentExport
from pe_agent.agent.exports.export_state import ExportState
from pe_agent.agent.exports.stream.block_reader import Readable, ReadRequest
from pe_agent.agent.imports.available_now import AvailableNowTarget
from pe_agent.agent.imports.backpressure import QueryGates
from pe_agent.agent.imports.import_state import ImportState, PortNotDeclaredError
from pe_agent.agent.imports.offset_planner import OffsetPlanner
from pe_agent.agent.imports.slice_planner import SlicePlanner
from pe_agent.agent.notifier import Notifier
from pe_agent.agent.reports import prometheus as metrics
from pe_agent.agent.reports.rule_metrics import RuleMetricsStore
from pe_agent.agent.reports.rules import RuleState
from pe_agent.agent.reports.side_inputs import SideReports
from pe_agent.agent.shards import read_grant as grants
from pe_agent.agent.shards.shard_agents import ShardAgents
from pe_agent.agent.shards.shard_store import ShardStore
from pe_agent.agent.state.control_log import ControlLog
from pe_agent.agent.state.route_table import RouteTable
from pe_agent.agent.state.store import Store
from pe_agent.log.commit import Committer
from pe_agent.log.scrub import Scrub
from pe_agent.transport.flight_errors import AgentUnreachableError
from streambroker_core.errors import CapabilityError, StreambrokerError
from streambroker_core.ledger.retention import BlockingReader, RetentionLimits
from streambroker_core.ledger.routes import NotRoutedError
from streambroker_core.model import Buffer, Export, PeKey, PortKey, pe_of, port_of
from streambroker_core.model.schema import to_ddl
from streambroker_core.wire.agent_rpc.job import (
    CurrentView,
    Declare,
    GetSchema,
    GetView,
    ImportSchema,
)
from streambroker_core.wire.agent_rpc.peer import PeerCredentials
from streambroker_core.wire.broker import capability
from streambroker_core.wire.broker.view import ExportPort, View, encode
from streambroker_core.wire.manifests import ports as manifest

log = logging.getLogger("pe_agent")

TICK_SECONDS = 1.0
_EXPORTS = """
SELECT export FROM streams UNION SELECT export FROM publishers UNION SELECT export FROM readers
"""


class FilterForbiddenError(StreambrokerError):
    """The export does not allow filters; nothing was planned."""

    code = "FilterForbidden"


class HomeForeignError(StreambrokerError):
    """The data directory belongs to another PE."""

    code = "HomeForeign"


class AuthorizedRead(NamedTuple):
    """Export that another agent may read, and the start policy of the reader's import.

    Without ``granted`` the caller may read what was planned before, but acknowledges nothing.
    """

    export: AgentExport
    policy: str
    granted: bool = True


class Agent:
    """Single owner of the agent's state: routes, exports, imports, declarations."""

    def __init__(self, pe: PeKey, home: Path, *, progress: Callable[[str, int, int], None]) -> None:
        self.pe = pe
        self.home = home
        self.notifier = Notifier()
        self.store = Store(home / "state.sqlite")
        self._check_owner()
        self.routes = RouteTable(home / "routes.json")
        self.committer = Committer()
        self.token = self.store.identity("token")
        self.key: bytes = self.store.value("key", bytes.fromhex, b"")
        self.driver_last_seen = time.monotonic()
        self.broker_last_seen: float | None = None
        """Time of the broker's last response, in Unix seconds; None since the start without one."""
        self.report_due = threading.Event()
        """Set when a declaration or the end of an export must be reported to the broker now."""
        self.reported_ended: frozenset[str] = frozenset()
        """Ports of the exports that the last poll reported as ended."""
        self.stopping = threading.Event()
        self.broker_status: Callable[[], dict[str, Any]] = dict
        self.listener_status: Callable[[], dict[str, Any] | None] = lambda: None
        self._tick_errors: dict[str, str] = {}
        self._last_tick = -TICK_SECONDS
        self._exports: dict[str, AgentExport] = {}
        self._lock = threading.Lock()
        self.shard_agents = ShardAgents(str(pe), self.store, lambda: dict(self._exports))
        begun = time.monotonic()
        self.shard_store = ShardStore(
            str(pe), home / "kept", self.store, self.committer, progress=progress
        )
        self._declarations: dict[str, dict[str, Any]] = self.store.states("declarations", "port")
        self.control_log = ControlLog(self.store, self.notifier.notify)
        self.rule_state = RuleState(
            lambda: self.routes.view,
            self.store,
            self.notifier,
            is_broker_away=lambda: bool(self.broker_status().get("away")),
        )
        self.side_reports = SideReports()
        self.rule_metrics = RuleMetricsStore()
        state = ImportState(
            str(pe),
            self.routes,
            self.store,
            self.notifier,
            lambda port: f"import/{port}" in self._declarations,
            self.control_log,
        )
        queries = QueryGates(str(pe), self.notifier, self._blocking_readers)
        queries.find_wait_chain = self._wait_chain
        state.peers.find_wait_chains = queries.wait_chains
        self.imports = OffsetPlanner(state, SlicePlanner(state), AvailableNowTarget(state), queries)
        self.scrub = Scrub()
        for (key,) in self.store.query(_EXPORTS):
            self._recover(self._get_or_create_export(key), progress)
        for stream_log in self.shard_store.logs():
            self.scrub.add(stream_log)
        self.recovery_seconds = time.monotonic() - begun
        self.shard_agents.start()
        self.routes.load()
        self.routes.add_listener(self._apply_view)

    def _recover(self, export: AgentExport, progress: Callable[[str, int, int], None]) -> None:
        export.recover(progress)
        for stream in export.state.streams.values():
            self.scrub.add(stream.log)

    def _check_owner(self) -> None:
        """Refuse the data directory of another PE: its log and cursors belong to that PE."""
        owner = self.store.get("pe")
        if owner is None:
            self.store.set("pe", str(self.pe))
        elif owner != str(self.pe):
            self.store.close()
            raise HomeForeignError(
                f"the data directory {self.home} belongs to {owner}, not to {self.pe}. Give this"
                " job a `data_dir` of its own."
            )

    # -- exports -----------------------------------------------------------------------------

    def _blocking_readers(self, port: str) -> list[BlockingReader]:
        export = self._exports.get(f"{self.pe}/{port}")
        return [] if export is None else export.backpressure.blocking_readers()

    def _wait_chain(self, port: str, query: str, gated: bool) -> list[str]:
        """Return the exports a query waits for at one of ours, see `Backpressure.wait_chain`."""
        export = self._exports.get(f"{self.pe}/{port}")
        return [] if export is None else export.backpressure.wait_chain(query, gated=gated)

    def _get_or_create_export(self, key: str) -> AgentExport:
        with self._lock:
            if key not in self._exports:
                state = ExportState(
                    key,
                    self.home / "log" / port_of(key),
                    self.store,
                    self.committer,
                    notify=partial(self._on_export_change, key),
                )
                self._exports[key] = AgentExport(state, self.shard_agents)
                self._apply_declared_limits(self._exports[key])
            return self._exports[key]

    def _apply_declared_limits(self, export: AgentExport) -> None:
        """Apply the declared buffer limits until the first view arrives."""
        spec = self._declaration(export.key).get("spec")
        if spec is None:
            return
        try:
            declared = manifest.read_spec("Export", spec, key=PortKey.parse(export.key))
            if isinstance(declared, Export):
                export.declare(_to_limits(declared.buffer))
        except StreambrokerError as error:
            log.warning(
                "cannot read the declared buffer limits of export %s: %s", export.key, error
            )

    def _declaration(self, key: str) -> dict[str, Any]:
        return self._declarations.get(f"export/{port_of(key)}", {})

    def _on_export_change(self, key: str) -> None:
        """Wake the export's waiters; wake the link if the export has ended or resumed."""
        self.notifier.notify(key)
        export = self._exports.get(key)
        if export is not None and export.state.ended() != (port_of(key) in self.reported_ended):
            self.report_due.set()

    def ended_exports(self) -> frozenset[str]:
        """Return the exports that have ended, by port."""
        exports = dict(self._exports)
        return frozenset(port_of(key) for key, e in exports.items() if e.state.ended())

    def get_export(self, port_or_key: str) -> AgentExport:
        """Return an export that is declared or that this agent has opened (view or log).

        Raises:
            PortNotDeclaredError: the export is neither.
        """
        port = port_of(port_or_key)
        key = f"{self.pe}/{port}"
        known = key in self._exports or f"export/{port}" in self._declarations
        if ("/" in port_or_key and port_or_key != key) or not known:
            raise PortNotDeclaredError(
                f"export {port_or_key if '/' in port_or_key else key} does not exist at agent"
                f" {self.pe}. Declare it with publish(), `streambroker apply` or kubectl, or"
                " correct the option `export`."
            )
        return self._get_or_create_export(key)

    def resolve_ticket(self, ticket: Mapping[str, Any], read: ReadRequest) -> Readable:
        """Return what a ticket reads: an export, or a shard stream stored here for another agent.

        Raises:
            AgentUnreachableError: the ticket is for another agent, the former user of this address.
            GrantError, ShardMissingError, PortNotDeclaredError: there is nothing to read.
        """
        export, shard_agent = str(ticket["export"]), ticket.get("agent")
        wanted = pe_of(export) if shard_agent is None else shard_agent
        if wanted != str(self.pe):
            raise AgentUnreachableError(
                f"the address now belongs to agent {self.pe}; agent {wanted} is no longer there."
            )
        if shard_agent is not None:
            return self.shard_store.open_read(ticket)
        grants.check(self.token, ticket, read)
        return self.get_export(export).plans

    def _apply_view(self, view: View) -> None:
        for port in {*view.exports, *(port_of(k) for k in list(self._exports))}:
            try:
                self._apply_export_view(port, view.exports.get(port))
            except Exception:
                # A failed log of one export must not keep the others from their routes.
                log.exception("cannot apply the view to an export", extra={"port": port})
        self.imports.state.peers.apply_view(view)
        self.notifier.notify()

    def _apply_export_view(self, port: str, export: ExportPort | None) -> None:
        exported = self._get_or_create_export(f"{self.pe}/{port}")
        if export is None:
            declared = self._declaration(exported.key)
            exported.withdraw(declared=bool(declared.get("spec")) and not declared["told"])
            return
        exported.set_limits(_to_limits(export.buffer))
        policies = {str(r.import_): r.policy for r in export.routes}
        exported.set_routes(policies, export.revoked)

    def authorize_peer(self, shown: PeerCredentials, *, planned: bool = False) -> AuthorizedRead:
        """Authorize another agent's request; return its export and start policy.

        A caller that opens an export or plans new epochs needs a capability. A pass is enough to
        read what a reader has ``planned``, or after its route is gone: then nothing new is planned.

        Raises:
            CapabilityError, FilterForbiddenError, PortNotDeclaredError, RevokedError.
        """
        export, import_ = self.get_export(shown.export), shown.import_
        export.state.ledger.routes.check_revoked(import_)
        reader = export.state.ledger.readers.get(shown.reader or "")
        if reader is not None and reader.import_ != import_:
            raise NotRoutedError(f"reader {reader.id} belongs to another import")
        has_valid_pass = reader is not None and self.is_pass_valid(
            export.key, import_, reader.id, shown.pass_
        )
        if reader is not None and has_valid_pass and not reader.routed:
            return AuthorizedRead(export, reader.policy)
        try:
            verified = self._verify_capability(export, import_, shown.capability)
        except CapabilityError:
            if reader is None or not (planned and has_valid_pass):
                raise
            return AuthorizedRead(export, reader.policy, granted=False)
        if reader is not None:
            return AuthorizedRead(export, reader.policy)
        if shown.filter is not None and not verified.filter_allowed:
            raise FilterForbiddenError(f"export {export.key} does not allow filters")
        return AuthorizedRead(export, verified.policy)

    def pass_for(self, export: str, import_: str, reader: str) -> str:
        """Return the pass that authenticates a reader's agent where it has no valid capability."""
        return grants.pass_for(self.token, export, import_, reader)

    def is_pass_valid(self, export: str, import_: str, reader: str, pass_: object) -> bool:
        """Return whether a caller shows the pass of a reader: the reader id is no secret."""
        wanted = self.pass_for(export, import_, reader)
        return hmac.compare_digest(str(pass_ or "").encode(), wanted.encode())

    def _verify_capability(
        self, export: AgentExport, import_: str, token: str | None
    ) -> capability.Capability:
        """Verify a capability.

        An expired one counts on an existing route if the broker was away since its expiry.
        """
        if not self.key:
            raise CapabilityError(
                "missing", f"agent {self.pe} has no key to verify one: it never registered"
            )
        now: float | None = time.time()
        claimed_expiry = None if token is None else capability.claimed_expiry(str(token))
        if claimed_expiry is not None and (self.broker_last_seen or 0.0) < claimed_expiry:
            now = None if import_ in export.state.ledger.routes.policies else now
        return capability.verify(self.key, token, reader_import=import_, export=export.key, now=now)

    def check_filter(self, export: AgentExport, filter_: str | None) -> None:
        """Refuse new plans with a filter if the export forbids filters now.

        Raises:
            FilterForbiddenError: filters are forbidden; planned epochs can still be read.
        """
        port = self.routes.find_export(port_of(export.key))
        if filter_ is not None and port is not None and not port.allow_filter:
            raise FilterForbiddenError(f"export {export.key} does not allow filters")

    def renew_driver(self) -> None:
        """Record that the driver runs."""
        self.driver_last_seen = time.monotonic()

    # -- declarations ------------------------------------------------------------------------

    def declare(self, request: Declare) -> None:
        """Store a declaration of the job; the broker link reports it as soon as possible."""
        key = str(PortKey.parse(f"{self.pe}/{request.port}"))
        name = f"{request.kind}/{request.port}"
        self._declarations[name] = {
            "spec": request.spec,
            "schema": request.schema,
            "redeclare": request.redeclare,
            "owner": request.owner,
            "told": False,
        }
        self.save_declaration(name)
        if request.kind == "export":
            self._apply_declared_limits(self._get_or_create_export(key))
        self.report_due.set()

    def declarations(self) -> dict[str, dict[str, Any]]:
        """Return the job's declarations, by ``kind/port``; ``told`` once the broker has them."""
        return self._declarations

    def save_declaration(self, name: str) -> None:
        """Store the state of one declaration."""
        self.store.write(
            "INSERT OR REPLACE INTO declarations VALUES (?, ?)",
            name,
            json.dumps(self._declarations[name]),
        )

    # -- read-only actions -------------------------------------------------------------------

    def find_schema(self, request: GetSchema) -> ImportSchema:
        """Return an import's schema as DDL: its own, the stored one, or a matched export's."""
        port, wait = request.port, min(10.0, request.wait)
        ddl = self.notifier.wait_for(
            (), wait, lambda: self._current_schema(port), lambda told: told is not None
        )
        if ddl is not None:
            self.store.write("INSERT OR REPLACE INTO schemas VALUES (?, ?)", port, ddl)
        return ImportSchema(ddl=ddl)

    def _current_schema(self, port: str) -> str | None:
        import_ = self.routes.find_import(port)
        if import_ is not None and import_.schema is not None:
            return to_ddl(import_.schema)
        rows = self.store.query("SELECT ddl FROM schemas WHERE import = ?", port)
        if rows:
            return str(rows[0][0])
        schemas = [r.schema for r in import_.routes if r.schema is not None] if import_ else []
        return to_ddl(schemas[0]) if schemas else None

    def wait_for_view(self, request: GetView) -> CurrentView:
        """Return the agent's view; wait at most 10 seconds while it is the one that was seen."""
        view = self.notifier.wait_for(
            (),
            min(10.0, request.wait),
            lambda: self.routes.view,
            lambda found: _view_version(found) != request.seen,
        )
        return CurrentView(version=_view_version(view), view=None if view is None else encode(view))

    def status(self) -> dict[str, Any]:
        """Return the status of all parts of the agent."""
        return {
            "pe": str(self.pe),
            "view": self.routes.view.version if self.routes.view else None,
            "exports": {k: e.status() for k, e in sorted(self._exports.items())},
            "imports": self.imports.status(),
            "controlLog": {
                "accepted": dict(self.control_log.accepted),
                "applied": dict(self.control_log.applied),
                "waiting": self.control_log.backlog(),
            },
            "broker": self.broker_status(),
            "certificate": self.listener_status(),
            "fellows": self.shard_agents.status(),
            "sides": self.side_reports.status(),
            "ruleFigures": self.rule_metrics.status(),
            "ruleWaiting": self.rule_metrics.waiting(),
            "kept": self.shard_store.status(),
            "declarations": {
                n: {"told": d["told"], "differs": d.get("differs")}
                for n, d in self._declarations.items()
            },
        }

    def metrics(self) -> str:
        """Return the agent's metrics in Prometheus text format."""
        own = {
            "recovery_seconds": self.recovery_seconds,
            "scrub_verified_bytes_total": self.scrub.verified_bytes,
            "scrub_waiting_segments": self.scrub.waiting,
        }
        return metrics.render_text(self.status(), own)

    # -- lifecycle ---------------------------------------------------------------------------

    def tick(self) -> None:
        """Apply age limits and grace periods, at most once per `TICK_SECONDS`."""
        now = time.monotonic()
        if now < self._last_tick + TICK_SECONDS:
            return
        self._last_tick = now
        for export in list(self._exports.values()):
            try:
                export.tick()
            except Exception as error:
                if self._tick_errors.get(export.key) != str(error):
                    log.exception(
                        "cannot apply the limits of an export", extra={"export": export.key}
                    )
                self._tick_errors[export.key] = str(error)

    def close(self) -> None:
        """Wake all waiting calls, then close the files."""
        self.notifier.close()
        self.scrub.close()
        self.imports.state.peers.close()
        self.shard_agents.close()
        for export in self._exports.values():
            export.state.close()
        self.shard_store.close()
        self.committer.close()
        self.store.close()


def _view_version(view: View | None) -> str | None:
    return None if view is None else view.version


def _to_limits(buffer: Buffer) -> RetentionLimits:
    return RetentionLimits(
        max_bytes=buffer.max_bytes,
        max_age=buffer.max_age_s,
        grace=buffer.grace_s,
        wait_limit=buffer.wait_limit_s,
    )
