"""What an importing agent asks of an exporter's, call by call, on a connection of its own."""

from __future__ import annotations

import json
import secrets
from typing import Any

import pyarrow.flight as flight
import rows

from pe_agent.agent.imports.peer_agents import READER_LEASE
from pe_agent.transport.agent_client import OPTIONS


class Importing:
    """An agent with one import of one export, and one reader."""

    def __init__(self, location: str, import_: str, route: tuple[str, str]) -> None:
        self._client = flight.FlightClient(location, generic_options=OPTIONS)
        self._import, (self._export, self._capability) = import_, route
        self._reader = secrets.token_hex(16)
        self._heads: dict[str, int] | None = None

    def _call(self, action: str, **body: Any) -> dict[str, Any]:
        results = self._client.do_action(
            flight.Action(action, json.dumps(body).encode()), flight.FlightCallOptions(timeout=60.0)
        )
        answer: dict[str, Any] = json.loads(next(iter(results)).body.to_pybytes())
        return answer

    def plan(self, positions: dict[str, int], *, budget: int = 1) -> dict[str, Any]:
        """Acknowledge and plan; a reader that is new begins behind what there is."""
        return self._call(
            "peer.plan",
            export=self._export,
            reader=self._reader,
            capability=self._capability,
            start="latest",
            known=bool(positions),
            last=None,
            positions=positions,
            own=list(positions),
            limit=None,
            budget=budget,
            one=True,
            schema=None,
            lease=60.0,
            filter=None,
            columns=rows.SCHEMA.names,
            **{"import": self._import},
        )

    def watch(self, wait: float) -> bool:
        """Wait for news; return whether some came."""
        asked = {"capability": self._capability, "readers": [self._reader]}
        reported = self._call(
            "peer.watch",
            exports={self._export: {"heads": self._heads, "imports": {self._import: asked}}},
            wait=wait,
            lease=READER_LEASE,
        )
        before, self._heads = self._heads, reported["exports"][self._export]["heads"]
        return before != self._heads

    def read(self, stream: str, epoch: int, blocks: int) -> int:
        """Read an epoch that is planned; return its rows."""
        ticket = {
            "export": self._export,
            "reader": self._reader,
            "stream": stream,
            "pieces": [[epoch, 0, blocks]],
            "filter": None,
            "columns": rows.SCHEMA.names,
            "skip": 0,
        }
        chunks = self._client.do_get(flight.Ticket(json.dumps(ticket).encode()))
        return sum(chunk.data.num_rows for chunk in chunks)


def routes(view: dict[str, Any], pe: str, ports: list[str]) -> dict[str, tuple[str, str]]:
    """Return the export that each of an agent's imports is routed to, and what opens it."""
    found = {port: view["imports"][port]["routes"][0] for port in ports}
    return {f"{pe}/{port}": (to["export"], to["capability"]) for port, to in found.items()}
