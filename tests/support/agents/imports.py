"""An import host whose exporters are functions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pe_agent.agent.imports.available_now import AvailableNowTarget
from pe_agent.agent.imports.backpressure import QueryGates
from pe_agent.agent.imports.import_state import ImportState
from pe_agent.agent.imports.offset_planner import OffsetPlanner
from pe_agent.agent.imports.peer_agents import PeerAgents
from pe_agent.agent.imports.slice_planner import SlicePlanner
from pe_agent.agent.notifier import Notifier
from pe_agent.agent.state.route_table import RouteTable
from pe_agent.agent.state.store import Store
from pe_agent.transport.flight_errors import AgentRefusedError, AgentUnreachableError
from streambroker_core.ledger.retention import BlockingReader
from streambroker_core.model import PeKey, PortKey
from streambroker_core.wire.broker.view import ImportPort, ImportRoute, View, with_version
from support.agents.rpc import ask

A, B = "default/feed/0/a", "default/feed/0/b"
Reply = Callable[[dict[str, Any]], dict[str, Any]]


def plan(stream: str, from_: int, next_: int, **more: Any) -> dict[str, Any]:
    """Return one stream of an exporter's answer."""
    usual = {"dropped": [0, 0], "duplicates": [0, 0], "moved": False}
    return {"stream": stream, "from": from_, "next": next_, **usual, **more}


def answer(*plans: dict[str, Any], size: int = 0, routed: bool = True) -> dict[str, Any]:
    last = ["q", plans[-1]["next"] - 1] if plans else None
    return {"planned": list(plans), "bytes": size, "last": last, "routed": routed, "misfits": []}


class Bench:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.replies: dict[str, Reply] = {}
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.known: dict[str, dict[str, int]] = {}
        self.declared: set[str] = set()
        self.holders: dict[str, list[BlockingReader]] = {}
        self.open()

    def open(self) -> None:
        self.news = Notifier()
        self.routes = RouteTable(self.directory / "routes.json")
        self.store = Store(self.directory / "state.sqlite")
        state = ImportState(
            "default/alerts/0",
            self.routes,
            self.store,
            self.news,
            lambda port: port in self.declared,
        )
        self.readers = state.readers
        queries = QueryGates(state.pe, self.news, lambda port: self.holders.get(port, []))
        self.host = OffsetPlanner(state, SlicePlanner(state), AvailableNowTarget(state), queries)

    def connect(
        self, *exports: str, filter_: str | None = None, ports: tuple[str, ...] = ("in",)
    ) -> None:
        routes = tuple(
            ImportRoute(
                export=PortKey.parse(export),
                uid=export,
                location=f"grpc+tcp://{export.rpartition('/')[2]}:1",
                capability="cap",
            )
            for export in exports
        )
        imports = {
            port: ImportPort(uid=port, routes=routes, start="earliest", filter=filter_)
            for port in ports
        }
        view = View(pe=PeKey.parse("default/alerts/0"), imports=imports)
        self.routes.apply(with_version(view))

    def call(self, action: str, body: dict[str, Any]) -> dict[str, Any]:
        self.asked.append((action, body))
        return self.replies[body["export"]](body)

    def next(self, start: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
        usual = {"import": "in", "session": "one", "columns": ["n"], "max_bytes": 100, "wait": 0}
        return ask(self.host.next_offset, {**usual, "start": start, **more})

    def offset(self, start: dict[str, Any] | None = None) -> dict[str, Any]:
        found: dict[str, Any] = self.next(start)["offset"]
        return found

    def cut(self, start: dict[str, Any] | None, end: dict[str, Any], **more: Any) -> dict[str, Any]:
        """Return what ``partitions`` is answered."""
        request = {"import": "in", "session": "one", "start": start, "end": end, **more}
        return ask(self.host.slices.plan_slices, request)


def bench(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Return one; ``replies`` says what each exporter answers, ``known`` its heads."""
    one = Bench(directory)

    class Client:
        def __init__(self, location: str, token: str = "") -> None:
            self.location = location

        def call(self, action: str, *, timeout: float = 10.0, **body: Any) -> dict[str, Any]:
            return one.call(action, body)

    for module in ("plan_batches", "slice_planner"):
        monkeypatch.setattr(f"pe_agent.agent.imports.{module}.AgentClient", Client)
    monkeypatch.setattr(PeerAgents, "heads", lambda _, export: one.known.get(export))
    return one


def away(_: dict[str, Any]) -> dict[str, Any]:
    raise AgentUnreachableError("away")


def refused(code: str) -> Reply:
    def reply(_: dict[str, Any]) -> dict[str, Any]:
        raise AgentRefusedError(code, "no")

    return reply
