"""Everything one agent owns, and the actions its own job may ask for."""

from __future__ import annotations

import base64
import hmac
import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from pe_agent.agent.exports.export import HostedExport, Limits
from pe_agent.agent.exports.stream.block_reader import Read, Readable
from pe_agent.agent.imports.offset_planner import ImportHost, UnknownPortError
from pe_agent.agent.notifier import News
from pe_agent.agent.reports import prometheus as metrics
from pe_agent.agent.reports.rule_metrics import JobFigures
from pe_agent.agent.reports.rules import JobRules
from pe_agent.agent.reports.side_inputs import JobSides
from pe_agent.agent.shards import read_grant as grants
from pe_agent.agent.shards.shard_agents import Fellows
from pe_agent.agent.shards.shard_store import StageHost
from pe_agent.agent.state.control_log import ControlLog
from pe_agent.agent.state.route_table import RouteTable
from pe_agent.agent.state.store import Store
from pe_agent.log.commit import Committer
from pe_agent.log.scrub import Scrub
from pe_agent.transport.flight_errors import AgentUnreachableError
from streambroker_core.control.tuples.epoch_control import read_placed
from streambroker_core.errors import CapabilityError, StreambrokerError
from streambroker_core.ledger.ledger import Holder, NotRoutedError
from streambroker_core.model import Buffer, Export, PeKey, PortKey, pe_of, port_of
from streambroker_core.model.schema import to_ddl
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


class Asked(NamedTuple):
    """What another agent asks about: the export, and the policy of the reader's import.

    Without ``granted`` it may have what the reader was given before, and acknowledges nothing.
    """

    export: HostedExport
    policy: str
    granted: bool = True


class Hosts:
    """One owner of the agent's state: routes, exports, imports, declarations."""

    def __init__(self, pe: PeKey, home: Path, *, progress: Callable[[str, int, int], None]) -> None:
        self.pe = pe
        self.home = home
        self.news = News()
        self.store = Store(home / "state.sqlite")
        self._check_owner()
        self.routes = RouteTable(home / "routes.json")
        self.committer = Committer()
        self.token = self.store.identity("token")
        self.key: bytes = self.store.value("key", bytes.fromhex, b"")
        self.driver_seen = time.monotonic()
        self.broker_heard: float | None = None
        """When the broker answered last, since 1970; None if it has not since the start."""
        self.untold = threading.Event()
        """The broker is to hear of a declaration, or of the end of an export, now."""
        self.ended_told: frozenset[str] = frozenset()
        """Exports of which the broker heard with the last poll that they have ended, by port."""
        self.stopping = threading.Event()
        self.broker_status: Callable[[], dict[str, Any]] = dict
        self.listener_status: Callable[[], dict[str, Any] | None] = lambda: None
        self._ill: dict[str, str] = {}
        self._ticked = -TICK_SECONDS
        self._exports: dict[str, HostedExport] = {}
        self._lock = threading.Lock()
        self.fellows = Fellows(str(pe), self.store, lambda: dict(self._exports))
        begun = time.monotonic()
        self.stages = StageHost(
            str(pe), home / "kept", self.store, self.committer, progress=progress
        )
        self._declarations: dict[str, dict[str, Any]] = self.store.states("declarations", "port")
        self.control_log = ControlLog(self.store, self.news.tell)
        self.rules = JobRules(
            lambda: self.routes.view,
            self.store,
            self.news,
            away=lambda: bool(self.broker_status().get("away")),
        )
        self.sides = JobSides()
        self.figures = JobFigures()
        self.imports = ImportHost(
            str(pe),
            self.routes,
            self.store,
            self.news,
            lambda port: f"import/{port}" in self._declarations,
            self._holders,
            self.control_log,
        )
        self.imports.queries.chain_of = self._chain
        self.imports.peers.chains = self.imports.queries.chains
        self.scrub = Scrub()
        for (key,) in self.store.query(_EXPORTS):
            self._recover(self._host(key), progress)
        for stream_log in self.stages.logs():
            self.scrub.add(stream_log)
        self.recovery_seconds = time.monotonic() - begun
        self.fellows.start()
        self.routes.load()
        self.routes.listen(self._follow)

    def _recover(self, hosted: HostedExport, progress: Callable[[str, int, int], None]) -> None:
        hosted.recover(progress)
        for stream in hosted.streams.values():
            self.scrub.add(stream.log)

    def _check_owner(self) -> None:
        """Refuse a data directory that was another PE's: its log and cursors are not ours.

        Raises:
            HomeForeignError: it was.
        """
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

    def _holders(self, port: str) -> list[Holder]:
        """Return who makes an export wait; nobody if there is none of that name."""
        export = self._exports.get(f"{self.pe}/{port}")
        return [] if export is None else export.waits_for()

    def _chain(self, port: str, query: str, gated: bool) -> list[str]:
        """Return for which exports a query waits at one of ours, see `WaitingSide.chain`."""
        export = self._exports.get(f"{self.pe}/{port}")
        return [] if export is None else export.chain(query, gated=gated)

    def _host(self, key: str) -> HostedExport:
        with self._lock:
            if key not in self._exports:
                self._exports[key] = HostedExport(
                    key,
                    self.home / "log" / port_of(key),
                    self.store,
                    self.committer,
                    notify=partial(self._tell, key),
                )
                self._exports[key].fellows = self.fellows
                self._expect(self._exports[key])
            return self._exports[key]

    def _expect(self, hosted: HostedExport) -> None:
        """Let an export keep what its declaration says, as long as no view has said anything."""
        spec = self._declaration(hosted.key).get("spec")
        if spec is None:
            return
        try:
            declared = manifest.read_spec("Export", spec, key=PortKey.parse(hosted.key))
            if isinstance(declared, Export):
                hosted.declare(_limits(declared.buffer))
        except StreambrokerError as error:
            log.warning("what export %s may keep is not known yet: %s", hosted.key, error)

    def _declaration(self, key: str) -> dict[str, Any]:
        """Return how the job declares an export, empty if it does not."""
        return self._declarations.get(f"export/{port_of(key)}", {})

    def _tell(self, key: str) -> None:
        """Tell those who wait of an export, and the broker if it has ended or goes on."""
        self.news.tell(key)
        export = self._exports.get(key)
        if export is not None and export.ended() != (port_of(key) in self.ended_told):
            self.untold.set()

    def ended(self) -> frozenset[str]:
        """Return the exports that have ended, by port."""
        exports = dict(self._exports)
        return frozenset(port_of(key) for key, e in exports.items() if e.ended())

    def export(self, port_or_key: str) -> HostedExport:
        """Return an export that a view, a declaration or the log knows.

        Raises:
            UnknownPortError: none does.
        """
        port = port_of(port_or_key)
        key = f"{self.pe}/{port}"
        known = key in self._exports or f"export/{port}" in self._declarations
        if ("/" in port_or_key and port_or_key != key) or not known:
            raise UnknownPortError(
                f"export {port_or_key if '/' in port_or_key else key} does not exist at agent"
                f" {self.pe}. Declare it with publish(), `streambroker apply` or kubectl, or"
                " correct the option `export`."
            )
        return self._host(key)

    def readable(self, ticket: Mapping[str, Any], read: Read) -> Readable:
        """Return what a ticket is for: an export, or what is kept here of one of a fellow.

        Raises:
            AgentUnreachableError: the ticket is for another agent, which had this address before.
            GrantError, PartMissingError, UnknownPortError: there is nothing to read.
        """
        export, fellow = str(ticket["export"]), ticket.get("agent")
        wanted = pe_of(export) if fellow is None else fellow
        if wanted != str(self.pe):
            raise AgentUnreachableError(
                f"agent {wanted} is not at this address any more: agent {self.pe} is."
            )
        if fellow is not None:
            return self.stages.reading(ticket)
        grants.check(self.token, ticket, read)
        return self.export(export)

    def _follow(self, view: View) -> None:
        """Bring exports and watches in line with a view."""
        for port in {*view.exports, *(port_of(k) for k in list(self._exports))}:
            try:
                self._follow_export(port, view.exports.get(port))
            except Exception:
                # A failed log of one export must not keep the others from their routes.
                log.exception("export does not follow its view", extra={"port": port})
        self.imports.peers.follow(view)
        self.news.tell()

    def _follow_export(self, port: str, export: ExportPort | None) -> None:
        hosted = self._host(f"{self.pe}/{port}")
        if export is None:
            declared = self._declaration(hosted.key)
            hosted.withdraw(declared=bool(declared.get("spec")) and not declared["told"])
            return
        hosted.set_limits(_limits(export.buffer))
        policies = {str(r.import_): r.policy for r in export.routes}
        hosted.set_routes(policies, export.revoked)

    def peer(self, body: Mapping[str, Any], *, planned: bool = False) -> Asked:
        """Return what another agent asks about, if it may.

        A caller that opens an export, or wants new epochs, shows a capability. A pass is enough
        for what a reader has planned, and where its route is gone: nothing new is given then.

        Args:
            body: ``export``, ``import``, ``capability``, and ``reader``, ``pass`` and ``filter`` if
                any.
            planned: it is about what a known reader has planned; that goes on without a capability.

        Raises:
            CapabilityError, FilterForbiddenError, UnknownPortError, RevokedError.
        """
        export, import_ = self.export(str(body["export"])), str(body["import"])
        export.ledger.check_revoked(import_)
        reader = export.ledger.readers.get(str(body.get("reader")))
        if reader is not None and reader.import_ != import_:
            raise NotRoutedError(f"reader {reader.id} belongs to another import")
        knows = reader is not None and self.knows(export.key, import_, reader.id, body.get("pass"))
        if reader is not None and knows and not reader.routed:
            return Asked(export, reader.policy)
        try:
            granted = self._granted(export, import_, body.get("capability"))
        except CapabilityError:
            if reader is None or not (planned and knows):
                raise
            return Asked(export, reader.policy, granted=False)
        if reader is not None:
            return Asked(export, reader.policy)
        if body.get("filter") is not None and not granted.filter_allowed:
            raise FilterForbiddenError(f"export {export.key} does not allow filters")
        return Asked(export, granted.policy)

    def pass_for(self, export: str, import_: str, reader: str) -> str:
        """Return what the agent of a reader shows where it has no capability that counts."""
        return grants.pass_for(self.token, export, import_, reader)

    def knows(self, export: str, import_: str, reader: str, pass_: object) -> bool:
        """Whether a caller shows the pass of a reader: its id alone is no secret."""
        wanted = self.pass_for(export, import_, reader)
        return hmac.compare_digest(str(pass_ or "").encode(), wanted.encode())

    def _granted(
        self, export: HostedExport, import_: str, token: str | None
    ) -> capability.Capability:
        """Return what a capability allows; it may have ended if nobody could get a new one."""
        if not self.key:
            raise CapabilityError(
                "missing", f"agent {self.pe} has no key to check one with: it never registered"
            )
        now: float | None = time.time()
        told = None if token is None else capability.end_told(str(token))
        if told is not None and (self.broker_heard or 0.0) < told:
            now = None if export.ledger.has_route(import_) else now
        return capability.verify(self.key, token, reader_import=import_, export=export.key, now=now)

    def check_filter(self, export: HostedExport, filter_: str | None) -> None:
        """Refuse new plans with a filter where the export has come to forbid them.

        Raises:
            FilterForbiddenError: it has; what is planned is read on.
        """
        port = self.routes.exported(port_of(export.key))
        if filter_ is not None and port is not None and not port.allow_filter:
            raise FilterForbiddenError(f"export {export.key} does not allow filters")

    # -- actions of the own job --------------------------------------------------------------

    @property
    def actions(self) -> dict[str, Callable[[dict[str, Any]], dict[str, Any]]]:
        """Return what the own job may ask, by action name."""
        return {
            "publisher.admit": self._admit,
            "publisher.publish": self._publish,
            "publisher.abort": self._abort,
            "publisher.renew": self._renew_publisher,
            "publisher.renounce": self._renounce,
            "publisher.finish": self._finish,
            "export.emit": lambda b: self.export(b["export"]).emit(b["request"], b["what"]),
            "export.emitted": lambda b: self.export(b["export"]).emitted(int(b["seq"])),
            "control.append": lambda b: self.control_log.append(b["request"], b["what"]),
            "control.entry": lambda b: self.control_log.entry(int(b["seq"])),
            "rules.wanted": self.rules.wanted,
            "rules.report": self.rules.report,
            "rules.leave": self.rules.leave,
            "rules.figures": self.figures.take,
            "sides.told": self.sides.take,
            "sides.running": self.sides.running,
            "reader.next": self.imports.next,
            "reader.slices": self.imports.slices,
            "reader.renew": lambda b: {
                "renewed": self.imports.readers.renew(b["reader"], b["session"])
            },
            "reader.leave": self._leave,
            "reader.heads": lambda b: self.imports.heads(b["import"], float(b.get("wait", 0))),
            "reader.where": lambda b: {
                "location": self.imports.where(
                    b["export"], b["stream"], b["reader"], b.get("agent")
                )
            },
            "query.begin": self.imports.begin_query,
            "query.end": self._end_query,
            "declare": self._declare,
            "schema": self._schema,
            "view": self._view,
            "status": self._status,
            "driver.renew": self._driver,
            "stop": self._stop,
            "fellows": self.fellows.told,
            "stage.seal": self.stages.seal,
            "stage.release": self.stages.release,
            "stage.count": self.stages.count,
            "stage.verify": self.stages.verify,
        }

    def _admit(self, body: dict[str, Any]) -> dict[str, Any]:
        return self.export(body["export"]).admit(
            query=body["query"],
            run=body["run"],
            batch=body["batch"],
            ddl=body["ddl"],
            renewed=body["renewed"],
            schema=_arrow(body.get("arrow")),
        )

    def _publish(self, body: dict[str, Any]) -> dict[str, Any]:
        return self.export(body["export"]).publish(
            query=body["query"],
            run=body["run"],
            batch=body["batch"],
            stages=body["stages"],
            ddl=body["ddl"],
            control=read_placed(body.get("control") or []),
            schema=_arrow(body.get("arrow")),
        )

    def _abort(self, body: dict[str, Any]) -> dict[str, Any]:
        self.export(body["export"]).abort(
            query=body["query"], run=body["run"], batch=body["batch"], stages=body["stages"]
        )
        return {}

    def _renew_publisher(self, body: dict[str, Any]) -> dict[str, Any]:
        self.export(body["export"]).renew_publisher(body["query"])
        return {}

    def _renounce(self, body: dict[str, Any]) -> dict[str, Any]:
        self.export(body["export"]).renounce(body["query"])
        return {}

    def _finish(self, body: dict[str, Any]) -> dict[str, Any]:
        self.export(body["export"]).finish(query=body.get("query"), run=body.get("run"))
        return {}

    def _leave(self, body: dict[str, Any]) -> dict[str, Any]:
        self.imports.leave(body["reader"], body["session"])
        return {}

    def _end_query(self, body: dict[str, Any]) -> dict[str, Any]:
        self.imports.queries.end(body)
        return {}

    def _driver(self, _body: dict[str, Any]) -> dict[str, Any]:
        self.driver_seen = time.monotonic()
        return {}

    def _stop(self, _body: dict[str, Any]) -> dict[str, Any]:
        self.stopping.set()
        return {}

    # -- declarations ------------------------------------------------------------------------

    def _declare(self, body: dict[str, Any]) -> dict[str, Any]:
        """Remember what the job declares; the link tells the broker as soon as it can.

        ``spec`` null attaches to the resource that exists; ``schema`` is what an export's rows
        have, whatever the resource says.
        """
        PortKey.parse(f"{self.pe}/{body['port']}")
        name = f"{body['kind']}/{body['port']}"
        state = {
            "spec": body["spec"],
            "schema": body.get("schema"),
            "redeclare": bool(body.get("redeclare")),
            "owner": body.get("owner"),
            "told": False,
        }
        self._declarations[name] = state
        self.save_declaration(name)
        if body["kind"] == "export":
            self._expect(self._host(f"{self.pe}/{body['port']}"))
        self.untold.set()
        return {}

    def declarations(self) -> dict[str, dict[str, Any]]:
        """Return what the job declared, by ``kind/port``; ``told`` once the broker has it."""
        return self._declarations

    def save_declaration(self, name: str) -> None:
        """Write what is known of one declaration."""
        self.store.write(
            "INSERT OR REPLACE INTO declarations VALUES (?, ?)",
            name,
            json.dumps(self._declarations[name]),
        )

    # -- questions ---------------------------------------------------------------------------

    def _schema(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the schema of an import as DDL: its own, the one before, or the first match's."""
        port, wait = body["port"], min(10.0, float(body["wait"]))
        ddl = self.news.until(
            (), wait, lambda: self._schema_of(port), lambda told: told is not None
        )
        if ddl is not None:
            self.store.write("INSERT OR REPLACE INTO schemas VALUES (?, ?)", port, ddl)
        return {"ddl": ddl}

    def _schema_of(self, port: str) -> str | None:
        import_ = self.routes.imported(port)
        if import_ is not None and import_.schema is not None:
            return to_ddl(import_.schema)
        rows = self.store.query("SELECT ddl FROM schemas WHERE import = ?", port)
        if rows:
            return str(rows[0][0])
        schemas = [r.schema for r in import_.routes if r.schema is not None] if import_ else []
        return to_ddl(schemas[0]) if schemas else None

    def _view(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the view as the agent has it; after ``wait`` seconds if it is ``seen`` still."""
        view = self.news.until(
            (),
            min(10.0, float(body.get("wait", 0))),
            lambda: self.routes.view,
            lambda found: _version(found) != body.get("seen"),
        )
        return {"version": _version(view), "view": None if view is None else encode(view)}

    def _status(self, _body: dict[str, Any]) -> dict[str, Any]:
        return {
            "pe": str(self.pe),
            "view": self.routes.view.version if self.routes.view else None,
            "exports": {k: e.status() for k, e in sorted(self._exports.items())},
            "imports": self.imports.status(),
            "controlLog": {
                "accepted": dict(self.control_log.accepted),
                "applied": dict(self.control_log.applied),
                "waiting": self.control_log.waiting(),
            },
            "broker": self.broker_status(),
            "certificate": self.listener_status(),
            "fellows": self.fellows.status(),
            "sides": self.sides.status(),
            "ruleFigures": self.figures.status(),
            "ruleWaiting": self.figures.waiting(),
            "kept": self.stages.status(),
            "declarations": {
                n: {"told": d["told"], "differs": d.get("differs")}
                for n, d in self._declarations.items()
            },
        }

    def metrics(self) -> str:
        """Return the agent's figures for Prometheus."""
        own = {
            "recovery_seconds": self.recovery_seconds,
            "scrub_verified_bytes_total": self.scrub.verified_bytes,
            "scrub_waiting_segments": self.scrub.waiting,
        }
        return metrics.text(self._status({}), own)

    # -- life --------------------------------------------------------------------------------

    def tick(self) -> None:
        """Let age and grace pass, once a second; called a few times a second."""
        now = time.monotonic()
        if now < self._ticked + TICK_SECONDS:
            return
        self._ticked = now
        for hosted in list(self._exports.values()):
            try:
                hosted.tick()
            except Exception as error:
                if self._ill.get(hosted.key) != str(error):
                    log.exception("export cannot be kept in order", extra={"export": hosted.key})
                self._ill[hosted.key] = str(error)

    def close(self) -> None:
        """Let all waiting calls go and close the files."""
        self.news.close()
        self.scrub.close()
        self.imports.peers.close()
        self.fellows.close()
        for hosted in self._exports.values():
            hosted.close()
        self.stages.close()
        self.committer.close()
        self.store.close()


def _version(view: View | None) -> str | None:
    return None if view is None else view.version


def _limits(buffer: Buffer) -> Limits:
    return Limits(
        max_bytes=buffer.max_bytes,
        max_age=buffer.max_age_s,
        grace=buffer.grace_s,
        wait_limit=buffer.wait_limit_s,
    )


def _arrow(text: str | None) -> pa.Schema | None:
    return None if text is None else pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
