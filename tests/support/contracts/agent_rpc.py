"""What agents send to each other and are sent by their job: JSON of each action, as transmitted.

Two jobs run in this process: ``feed`` and ``alerts``. The data source and the importer's agent make
their own calls. The calls of the driver are written here as it makes them.
Values that differ from run to run are replaced.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.flight as flight

from pe_agent.agent.agent import Agent
from pe_agent.agent.imports import readers
from pe_agent.agent.imports.peer_agents import PeerAgents, _Watch
from pe_agent.agent.server.flight_service import AgentService
from pe_agent.agent.state.store import Store
from pe_agent.agent.storage.tier import StorageTier
from pe_agent.datasource import source
from pe_agent.datasource.batch_reader import StreambrokerBatchReader
from pe_agent.datasource.options import BatchRange, Options
from pe_agent.datasource.packer import Packing
from pe_agent.datasource.sink import StreambrokerStreamWriter
from pe_agent.datasource.slice_reader import Slice, SliceReader
from pe_agent.datasource.source import StreambrokerStreamReader
from pe_agent.log.objects.bucket import open_bucket
from pe_agent.transport.agent_client import AgentClient, send
from pe_agent.transport.agent_tls import AgentTrust
from pe_agent.transport.rows.object_writer import MIN_BYTES
from pe_agent.transport.rows.reader_lease import Lease
from streambroker_core.model import PeKey, pe_of
from streambroker_core.wire.agent_rpc.peer import (
    PeerObjects,
    PeerPlan,
    PeerPlans,
    PlanGroup,
    PlanReader,
)
from streambroker_core.wire.broker.view import View, with_version
from support.agents.agents import DDL, Plumbing, error_code, export_view, import_view
from support.agents.tasks import STRUCT, in_task, wide

EXPORT, IMPORT = "default/feed/0/trades", "default/alerts/0/trades"
TUPLE = {"type": "EndOfDay", "payload": {"day": "2013-01-01"}, "delivery": "BEGIN"}

_ID = re.compile(r"(?<![0-9A-Za-z])[0-9a-f]{16,64}(?![0-9A-Za-z])")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT[0-9:]+Z")
_TEXT = re.compile(r"[A-Za-z0-9+/_=-]{60,}")
_LARGEST = 64


@dataclass
class _Recorder:
    """The calls so far, with what differs from run to run replaced."""

    locations: dict[str, str] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)
    calls: list[dict[str, Any]] = field(default_factory=list)
    shapes: set[tuple[str, str, str]] = field(default_factory=set)

    def note(self, action: str, request: bytes, response: Any) -> None:
        sent, received = self.replace(json.loads(request)), self.replace(response)
        shape = (action, repr(_shape(sent)), repr(_shape(received)))
        if shape not in self.shapes:
            self.shapes.add(shape)
            self.calls.append({"action": action, "request": sent, "response": received})

    def replace(self, value: Any) -> Any:
        if isinstance(value, dict):
            named = sorted(value, key=lambda key: "" if _ID.search(key) else key)
            shown = {self._text(k): self.replace(value[k]) for k in named}
            if "alive" in shown:
                shown["alive"] = "<boolean>"
            return dict(sorted(shown.items()))
        if isinstance(value, list):
            return [self.replace(v) for v in value]
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, float) and (value < 1 or value != int(value)):
            return "<seconds>"
        if isinstance(value, int) and value >= _LARGEST:
            return "<number>"
        return value

    def _text(self, text: str) -> str:
        for location, name in self.locations.items():
            text = text.replace(location, f"<address of {name}>")
        text = _ID.sub(self._id, text)
        return _TIME.sub("<time>", _TEXT.sub("<text>", text))

    def _id(self, found: re.Match[str]) -> str:
        return self.ids.setdefault(found[0], f"<id {len(self.ids) + 1}>")


def _shape(value: Any) -> Any:
    """Return keys and types: of calls that agree in both only the first is kept."""
    if isinstance(value, dict):
        return [(k, _shape(v)) for k, v in value.items()]
    return [_shape(v) for v in value] if isinstance(value, list) else type(value)


class _Client:
    """A Flight client that records what it sends and receives."""

    def __init__(self, recorder: _Recorder, client: flight.FlightClient) -> None:
        self._recorder, self._client = recorder, client

    def do_action(self, action: flight.Action, options: Any) -> Iterator[Any]:
        results = list(self._client.do_action(action, options))
        response = json.loads(results[0].body.to_pybytes())
        self._recorder.note(action.type, action.body.to_pybytes(), response)
        return iter(results)

    def do_put(self, descriptor: flight.FlightDescriptor, schema: pa.Schema, options: Any) -> Any:
        writer, reader = self._client.do_put(descriptor, schema, options)

        def read() -> Any:
            response = reader.read()
            shown = json.loads(response.to_pybytes())
            self._recorder.note("(rows sent)", descriptor.command, shown)
            return response

        return writer, SimpleNamespace(read=read)

    def do_get(self, ticket: flight.Ticket) -> Any:
        chunks = list(self._client.do_get(ticket))
        shown = [
            None if c.app_metadata is None else json.loads(bytes(c.app_metadata)) for c in chunks
        ]
        self._recorder.note("(rows received)", ticket.ticket, shown)
        return _Chunks(chunks)


class _Chunks:
    def __init__(self, chunks: list[Any]) -> None:
        self._chunks = iter(chunks)

    def __iter__(self) -> Iterator[Any]:
        return self._chunks

    def __next__(self) -> Any:
        return next(self._chunks)

    def cancel(self) -> None: ...


class _Served:
    def __init__(self, folder: Path, pe: str, recorder: _Recorder) -> None:
        self.pe, self.key = pe, bytes(32)
        folder.mkdir()
        store = Store(folder / "state.sqlite")
        store.set("key", self.key.hex())
        store.close()
        bucket = open_bucket(f"file://{folder.with_suffix('.bucket')}")
        self.agent = Agent(
            PeKey.parse(pe),
            folder,
            progress=lambda *_: None,
            storage=StorageTier(bucket, folder) if pe == pe_of(EXPORT) else None,
        )
        recorder.locations[str(folder.parent)] = "folder"
        self.service = AgentService("grpc+tcp://127.0.0.1:0", self.agent, self.agent.token)
        self.location = f"grpc+tcp://127.0.0.1:{self.service.port}"
        recorder.locations[self.location] = pe

    @property
    def client(self) -> AgentClient:
        return AgentClient(self.location, self.agent.token, AgentTrust())

    def options(self, **more: Any) -> Options:
        return Options(port="trades", agent=self.location, token=self.agent.token, **more)

    def close(self) -> None:
        self.service.shutdown()
        self.agent.close()


def recorded(folder: Path) -> list[dict[str, Any]]:
    """Return the calls of two jobs that exchange rows and control tuples."""
    recorder = _Recorder()
    with ExitStack() as stack:
        real = AgentClient._client
        stack.enter_context(
            mock.patch.object(AgentClient, "_client", lambda one: _Client(recorder, real(one)))
        )
        # Their calls come at any time; they are made below.
        stack.enter_context(mock.patch.object(PeerAgents, "_watch"))
        stack.enter_context(mock.patch.object(Lease, "_run"))
        stack.enter_context(mock.patch.object(source, "PREFETCH_WAIT_SECONDS", 0.0))
        stack.enter_context(mock.patch.object(readers, "READER_LEASE", 600.0))
        home, alerts = (
            _Served(folder / pe.replace("/", "-"), pe, recorder)
            for pe in ("default/feed/0", "default/alerts/0")
        )
        for one in (home, alerts):
            stack.callback(one.close)
        _driver(home, alerts)
        _connect(home, alerts)
        _publish(home, alerts)
        _control(home, alerts)
        _read(home, alerts)
        _reports(alerts)
        _end(home, alerts)
    return recorder.calls


def _driver(home: _Served, alerts: _Served) -> None:
    for one, kind, spec in (
        (home, "export", {"properties": {"kind": "trade"}}),
        (alerts, "import", {"subscription": 'kind == "trade"'}),
    ):
        declared: dict[str, Any] = {"spec": spec, "schema": None, "redeclare": False, "owner": None}
        one.client.call("declare", kind=kind, port="trades", **declared)
    home.client.call("driver.renew", timeout=2.0)
    alerts.client.call("view")


def _connect(home: _Served, alerts: _Served) -> None:
    how = Plumbing(filter="n > 3", max_bytes=1 << 20, durability="stored")
    exporting: View = export_view(home, alerts.pe, how)  # type: ignore[arg-type]
    importing: View = import_view(alerts, home, how)  # type: ignore[arg-type]
    home.agent.routes.apply(with_version(exporting))
    alerts.agent.routes.apply(with_version(importing))
    alerts.client.call("view", seen="", wait=1.0)
    alerts.client.call("schema", port="trades", wait=0.0)


def _writer(home: _Served) -> StreambrokerStreamWriter:
    return StreambrokerStreamWriter(STRUCT, home.options(reconnect=5.0), overwrite=False)


def _publish(home: _Served, alerts: _Served) -> None:
    for batch in range(2):
        staged = []
        for partition in range(2):
            with in_task("query-1", "run-1", batch, partition):
                rows = iter([wide(10 * batch + 2 * partition, 2)])
                with mock.patch(
                    "pe_agent.transport.rows.stage_writer.MIN_BYTES", 1 if batch else MIN_BYTES
                ):
                    staged.append(_writer(home).write(rows))
        _writer(home).commit([*staged], batch)
    _writer(home).commit([*staged], 1)
    with in_task("query-1", "run-1", 2, 0):
        staged = [_writer(home).write(iter([wide(0, 1)]))]
    _writer(home).abort([*staged], 2)
    _admit(home, "query-2", "run-2", 0)
    home.client.call("publisher.renew", export="trades", query="query-1")


def _admit(home: _Served, query: str, run: str, batch: int) -> None:
    named: dict[str, Any] = {"query": query, "run": run, "batch": batch, "ddl": DDL}
    home.client.call("publisher.admit", export="trades", **named, renewed=None)


def _control(home: _Served, alerts: _Served) -> None:
    sent = home.client.call("export.emit", export="trades", request="r1", what=TUPLE)
    home.client.call("export.emitted", export="trades", seq=sent["seq"])
    home.client.call("export.peek", export="trades", limit=2)
    alerts.client.call("agent.snapshot", name="nightly")
    sent = alerts.client.call("control.append", request="r1", what=TUPLE)
    alerts.client.call("control.entry", seq=sent["seq"])


def _reader(alerts: _Served, **more: Any) -> StreambrokerStreamReader:
    return StreambrokerStreamReader(STRUCT, alerts.options(reconnect=5.0, **more))


def _read(home: _Served, alerts: _Served) -> None:
    begun: dict[str, Any] = {"query": "query-3", "run": "run-3", "frames": ["frame-1"]}
    alerts.client.call("query.begin", **begun, exports=[], foreign=False)
    peers = alerts.agent.imports.state.peers
    watched = _Watch(home.location, {EXPORT: {IMPORT: None}})
    peers._watch_once(AgentClient(home.location), watched)
    packing = Packing(columns=DDL, input="in", log=True)
    for reader in (
        _reader(alerts, frame="frame-1"),
        _reader(alerts, packing=packing, skip_lost=True),
    ):
        reader.prepareForTriggerAvailableNow()
        start, ended = reader.initialOffset(), False
        everything = reader.getDefaultReadLimit()
        while not ended:
            end = reader.latestOffset(start, everything)
            ended = end == start
            if not ended:
                for one in reader.partitions(start, end):
                    assert isinstance(one, Slice)
                    if "location" in one.value:
                        slices = SliceReader(one, reader._options, STRUCT, reader._client)
                        list(slices.blocks.read({**one.value, "query": "query-3"}))
                        send(AgentClient(home.location), PeerObjects(ticket=one.value))
            start = end
        reader._calls.limit = None
        reader._prefetch(start)
        alerts.client.call("reader.renew", reader=start["reader"], session=reader._calls._session)
    batch = StreambrokerBatchReader(STRUCT, alerts.options(reconnect=5.0), BatchRange())
    (planned,) = (one for one in batch.partitions() if isinstance(one, Slice))
    alerts.client.call("reader.done", reader=planned.value["reader"], slice=1)
    _fill(home, alerts)
    routes = alerts.agent.routes.find_import("trades")
    assert routes is not None
    peers._watch_once(
        AgentClient(home.location),
        _Watch(home.location, {EXPORT: {IMPORT: routes.routes[0].capability}}),
    )
    stream = next(iter(start["streams"]))
    read = {"export": EXPORT, "stream": stream, "reader": start["reader"]}
    alerts.client.call("reader.where", **read)
    body: dict[str, Any] = {"import": "trades", "session": "other", "start": start, "columns": []}
    body |= {"max_bytes": 1, "limit": None, "wait": 0.0, "renewals": None}
    alerts.client.call("reader.next", **body)
    alerts.client.call("reader.leave", reader=start["reader"], session="other", timeout=1.0)
    pass_ = alerts.agent.imports.state.readers.find_pass(start["reader"], EXPORT)
    peers.report_leave(home.location, EXPORT, IMPORT, start["reader"], pass_)


def _fill(home: _Served, alerts: _Served) -> None:
    """Ask for admission while a reader holds more than the export may keep."""
    how = Plumbing(filter="n > 3", max_bytes=1)
    small: View = export_view(home, alerts.pe, how)  # type: ignore[arg-type]
    home.agent.routes.apply(with_version(small))
    _admit(home, "query-1", "run-1", 3)


def _reports(alerts: _Served) -> None:
    discoverer: dict[str, Any] = {"discoverer": "d1", "query": "query-3"}
    alerts.client.call("rules.wanted", **discoverer, known=None, wait=0.0)
    alerts.client.call("rules.report", **discoverer, rules={}, enabled={"spike": 1})
    alerts.client.call("rules.leave", discoverer="d1")
    waiting = {"rows": 1, "first": None, "watermark": None}
    figures: dict[str, Any] = {"operator": "o", "log": "l", "rules": [], "waiting": waiting}
    alerts.client.call("rules.figures", **figures)
    bucket = {"query": "q", "operator": "o", "bucket": 0, "window": 1, "sides": []}
    alerts.client.call("sides.told", buckets=[bucket])
    alerts.client.call("sides.running", queries=["q"])
    windows = {"operator-1": [{"bucket": 0, "window": 1, "rules": []}]}
    alerts.client.call("windows.report", operators=windows)
    alerts.client.call("windows.reported", operator="operator-1", first=0)


def _end(home: _Served, alerts: _Served) -> None:
    for one in (home, alerts):
        one.client.call("status", timeout=5.0)
    alerts.client.call("query.end", query="query-3", run="run-3")
    home.client.call("publisher.renounce", export="trades", query="query-1")
    home.client.call("publisher.finish", export="trades", query=None, run=None)
    assert error_code(home.client.call, "peer.plan", export=EXPORT) == "BodyInvalid"
    _plan_together(home, alerts)
    home.client.call("stop", timeout=2.0)


def _plan_together(home: _Served, alerts: _Served) -> None:
    routes = alerts.agent.routes.find_import("trades")
    assert routes is not None
    plan = PeerPlan(
        export=EXPORT,
        import_=IMPORT,
        reader="a" * 32,
        lease=5.0,
        positions={},
        filter=None,
        columns=None,
        capability=routes.routes[0].capability,
    )
    other = PlanReader(import_=IMPORT, reader="b" * 32)
    send(AgentClient(home.location), PeerPlans(groups=[PlanGroup(plan=plan, others=[other])]))
