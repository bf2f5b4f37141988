"""State owner of one agent."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pe_agent.agent.exports import read_grant as grants
from pe_agent.agent.exports.registry import ExportRegistry
from pe_agent.agent.exports.stream.block_reader import Readable, ReadRequest
from pe_agent.agent.exports.stream.throttle import SendThrottle
from pe_agent.agent.imports.available_now import AvailableNowTarget
from pe_agent.agent.imports.backpressure import QueryGates
from pe_agent.agent.imports.import_state import ImportState
from pe_agent.agent.imports.offset_planner import OffsetPlanner
from pe_agent.agent.imports.slice_planner import SlicePlanner
from pe_agent.agent.notifier import Notifier
from pe_agent.agent.reports import prometheus as metrics
from pe_agent.agent.reports.health import FINAL_CODES, PortProblems
from pe_agent.agent.reports.prometheus import Family
from pe_agent.agent.reports.rule_metrics import RuleMetricsStore
from pe_agent.agent.reports.rules import RuleState
from pe_agent.agent.reports.side_inputs import SideReports
from pe_agent.agent.reports.windows import WindowReports
from pe_agent.agent.snapshots import SnapshotFailedError, Snapshots
from pe_agent.agent.state.control_log import ControlLog
from pe_agent.agent.state.declarations import Declarations
from pe_agent.agent.state.route_table import RouteTable
from pe_agent.agent.state.store import Store
from pe_agent.agent.state.view_queries import ViewQueries
from pe_agent.agent.storage.tier import StorageTier
from pe_agent.agent.tracing import Tracing
from pe_agent.log.commit import Committer
from pe_agent.log.scrub import Scrub
from pe_agent.transport.flight_errors import AgentUnreachableError
from streambroker_core.errors import StreambrokerError
from streambroker_core.ledger.planner import MAX_READERS
from streambroker_core.model import PeKey, PortKey, pe_of, port_of
from streambroker_core.wire.agent_rpc.job import Declare, QueryEnd
from streambroker_core.wire.agent_rpc.reader import ReaderLeave, ReaderNext, ReaderSlices
from streambroker_core.wire.broker.snapshot import RESTORED
from streambroker_core.wire.broker.view import View
from streambroker_core.wire.reports.health import PortId, write_health

log = logging.getLogger("pe_agent")

TICK_SECONDS = 1.0
_Read = TypeVar("_Read", ReaderNext, ReaderSlices)
_Answer = TypeVar("_Answer")


class HomeForeignError(StreambrokerError):
    """The data directory belongs to another PE."""

    code = "HomeForeign"


class Agent:
    """Single owner of the agent's state: routes, exports, imports, declarations."""

    def __init__(
        self,
        pe: PeKey,
        home: Path,
        *,
        progress: Callable[[str, int, int], None],
        broker_status: Callable[[], Mapping[str, Any]] = dict,
        listener_status: Callable[[], Mapping[str, str | None] | None] = lambda: None,
        storage: StorageTier | None = None,
        token: str = "",
        max_readers: int = MAX_READERS,
        tracing: Tracing | None = None,
    ) -> None:
        """Recover the state of a data directory; ``token`` is for one that has none yet."""
        self.pe = pe
        self.home = home
        self.storage = storage
        self.notifier = Notifier()
        self.store = Store(home / "state.sqlite")
        self._check_owner()
        restored = home / RESTORED
        is_restored = restored.exists()
        if is_restored:
            self.store.branch()
        self.routes = RouteTable(home / "routes.json")
        self.committer = Committer()
        self.token = self.store.identity("token", token)
        self.key: bytes = self.store.value("key", bytes.fromhex, b"")
        self.driver_last_seen = time.monotonic()
        self.broker_last_seen: float | None = None
        """Time of the broker's last response, in Unix seconds; None since the start without one."""
        self.report_due = threading.Event()
        """Set when a declaration or the end of an export must be reported to the broker now."""
        self.stopping = threading.Event()
        self._broker_status = broker_status
        self._listener_status = listener_status
        self._last_tick = -TICK_SECONDS
        self.declarations = Declarations(self.store)
        self.view_queries = ViewQueries(self.routes, self.store, self.notifier)
        self.exports = ExportRegistry(
            pe,
            home / "log",
            self.store,
            self.committer,
            notifier=self.notifier,
            declarations=self.declarations,
            report_due=self.report_due,
            storage=storage,
            max_readers=max_readers,
        )
        begun = time.monotonic()
        self.control_log = ControlLog(self.store, self.notifier.notify)
        self.rule_state = RuleState(
            lambda: self.routes.view,
            self.store,
            self.notifier,
            is_broker_away=lambda: bool(broker_status().get("away")),
        )
        self.side_reports = SideReports()
        self.window_reports = WindowReports()
        self.rule_metrics = RuleMetricsStore()
        state = ImportState(
            str(pe),
            self.routes,
            self.store,
            self.notifier,
            lambda port: f"import/{port}" in self.declarations.by_name,
            self.control_log,
        )
        state.readers.max_readers = max_readers
        self.tracing = state.tracing = tracing
        queries = QueryGates(str(pe), self.notifier, self.exports.blocking_readers)
        queries.find_wait_chain = self.exports.wait_chain
        state.peers.find_wait_chains = queries.wait_chains
        self.imports = OffsetPlanner(state, SlicePlanner(state), AvailableNowTarget(state), queries)
        self.problems = PortProblems(self.store, self._find_runs, state.readers.has_room)
        state.on_loss = lambda import_, lost: self.problems.note_loss(port_of(import_), lost)
        self._snapshots = Snapshots(pe, home, self.store, self.exports)
        self.scrub = Scrub()
        self.throttle = SendThrottle(self.stopping)
        self.exports.recover(progress)
        if is_restored:
            for export in self.exports.by_key().values():
                export.note_restored()
            restored.unlink()
            log.warning("the data directory %s was restored", home)
        if storage is not None:
            storage.start(self.store)
        for export in self.exports.by_key().values():
            for stream in export.state.streams.values():
                self.scrub.add(stream.log)
        self.recovery_seconds = time.monotonic() - begun
        self.routes.load()
        self.routes.add_listener(self._apply_view)

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

    def _apply_view(self, view: View) -> None:
        self.exports.apply_view(view)
        self.imports.state.peers.apply_view(view)
        self.notifier.notify()

    def declare(self, request: Declare) -> None:
        """Store a declaration of the job; the broker link reports it as soon as possible.

        Raises:
            SchemaIncompatibleError: the export's schema policy does not allow the columns.
        """
        key = str(PortKey.parse(f"{self.pe}/{request.port}"))
        if request.kind == "export":
            self.exports.check_declared(key, request)
        self.declarations.add(request)
        if request.kind == "export":
            self.exports.apply_declared_limits(self.exports.get_or_create(key))
        self.report_due.set()

    def resolve_ticket(self, ticket: Mapping[str, Any], read: ReadRequest) -> Readable:
        """Return the export that a ticket reads.

        Raises:
            AgentUnreachableError: the ticket is for another agent, the former user of this address.
            GrantError, PortNotDeclaredError: there is nothing to read.
        """
        export = str(ticket["export"])
        wanted = pe_of(export)
        if wanted != str(self.pe):
            raise AgentUnreachableError(
                f"the address now belongs to agent {self.pe}; agent {wanted} is no longer there."
            )
        grants.check(self.token, ticket, read)
        return self.exports.get(export).plans

    def import_of(self, ticket: Mapping[str, Any], reader: str) -> str:
        """Return the import of a reader of the ticket's export; the reader if it is unknown."""
        known = self.exports.get(str(ticket["export"])).state.ledger.readers.get(reader)
        return reader if known is None else known.import_

    def _find_runs(self, port: PortId) -> set[str]:
        """Return the runs that read or publish a port now."""
        kind, key = port[0], f"{self.pe}/{port[1]}"
        if kind == "Export":
            return self.exports.publishing_runs(key)
        readers = self.imports.state.readers
        queries = self.imports.queries.runs_of(readers.alive().get(key, ()))
        return readers.sessions(key) | queries

    def answer_read(self, handler: Callable[[_Read], _Answer], request: _Read) -> _Answer:
        """Answer a call of a reader; an error after which its query ends is a problem."""
        try:
            return handler(request)
        except StreambrokerError as error:
            if error.code in FINAL_CODES:
                self.problems.note_failure([("Import", request.import_)], error.code, str(error))
            raise

    def end_query(self, request: QueryEnd) -> None:
        """Remove a run of a query; one that has failed is a problem of its ports."""
        ports: list[PortId] = [("Export", port) for port in request.exports]
        ports += [("Import", port) for port in self.imports.imports_of(request.query)]
        if request.code:
            self.problems.note_failure(ports, request.code, request.message, request.run or "")
        else:
            self.problems.note_end(ports, request.run or "")
        self.imports.queries.end(request)

    def take_snapshot(self, name: str) -> dict[str, Any]:
        """Begin or look at a snapshot; see `Snapshots.take`.

        Raises:
            SnapshotFailedError: its exports are in object storage.
        """
        if self.storage is not None:
            raise SnapshotFailedError(
                f"the exports of {self.pe} are in object storage, which an empty data directory"
                " continues from. Keep versions of the bucket's objects in place of snapshots."
            )
        return self._snapshots.take(name)

    def end_reader(self, request: ReaderLeave) -> None:
        """Release the lease of a process that stops; without a query it has ended well."""
        reader = self.imports.leave(request.reader, request.session)
        if reader is not None and reader.frame is None:
            self.problems.note_end([("Import", port_of(reader.import_))], request.session)

    def renew_driver(self) -> None:
        """Record that the driver runs."""
        self.driver_last_seen = time.monotonic()

    def status(self) -> dict[str, Any]:
        """Return the status of all parts of the agent."""
        exports, imports, sides = (
            self.exports.status(),
            self.imports.status(),
            self.side_reports.status(),
        )
        for export in exports.values():
            for id_, reader in export["readers"].items():
                reader["throttledSeconds"] = self.throttle.seconds(id_)
        read = [(side, self.imports.imports_of(side["query"])) for side in sides]
        view = self.routes.view
        ports = view.imports if view else ()
        return {
            "pe": str(self.pe),
            "view": view.version if view else None,
            "exports": exports,
            "imports": imports,
            "losses": {f"{self.pe}/{p}": self.problems.losses[p] for p in ports},
            "health": write_health(
                self.problems.health(exports, imports["readers"], read, self.rule_metrics.failed())
            ),
            "controlLog": {
                "accepted": dict(self.control_log.accepted),
                "applied": dict(self.control_log.applied),
                "waiting": self.control_log.backlog(),
            },
            "broker": self._broker_status(),
            "certificate": self._listener_status(),
            "sides": sides,
            "ruleFigures": self.rule_metrics.status(),
            "ruleWaiting": self.rule_metrics.waiting(),
            "declarations": self.declarations.status(),
            "storage": None if self.storage is None else self.storage.status(),
        }

    def metrics(self) -> str:
        """Return the agent's metrics in Prometheus text format."""
        return metrics.render_text(self.status(), self._own_metrics())

    def collect_metrics(self) -> Iterator[Family]:
        """Yield the same metrics: name, help text, samples."""
        return metrics.collect(self.status(), self._own_metrics())

    def _own_metrics(self) -> dict[str, float]:
        return {
            "recovery_seconds": self.recovery_seconds,
            "scrub_verified_bytes_total": self.scrub.verified_bytes,
            "scrub_waiting_segments": self.scrub.waiting,
        }

    def tick(self) -> None:
        """Apply age limits and grace periods, at most once per `TICK_SECONDS`."""
        now = time.monotonic()
        if now < self._last_tick + TICK_SECONDS:
            return
        self._last_tick = now
        self.exports.tick()
        self.problems.tick()
        if self.storage is not None:
            self.storage.tick()

    def close(self) -> None:
        """Wake all waiting calls, then close the files."""
        self.notifier.close()
        self.scrub.close()
        self.imports.state.peers.close()
        if self.storage is not None:
            self.storage.close()
        self.exports.close()
        self.committer.close()
        self.store.close()
