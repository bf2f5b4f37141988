"""What anybody may send to an agent, without its token: the log takes a line a minute of it."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from pe_agent.transport.agent_client import AgentClient
from pe_agent.transport.broker_trust import AGENT_NAME
from support.agents.agents import AgentProcess
from support.processes.certificates import Authority
from support.processes.ports import free_port

TIMES = 20
BODIES = (
    b"",
    b"{}",
    b"[]",
    b"\xff\xfe",
    b"[" * 10_000,
    '{"token": "\u00fc"}'.encode(),
    b'{"export": 1, "import": [], "reader": {}}',
    b'{"exports": {"a": 1}, "lease": 1, "wait": 0}',
    b'{"reader": 1, "stream": 2, "pieces": [["a"]], "filter": null, "columns": 5, "export": "x"}',
)
ACTIONS = ("peer.plan", "peer.replan", "peer.watch", "peer.leave", "peer.where", "status", "none")


@pytest.fixture(params=["plain", "tls"])
def agent(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[AgentProcess]:
    secured = (
        Authority(tmp_path / "tls", "feed", f"DNS:{AGENT_NAME}") if request.param == "tls" else None
    )
    metrics = str(free_port())
    one = AgentProcess(
        tmp_path / "feed",
        "feed",
        secured=secured,
        environment={"STREAMBROKER_METRICS_PORT": metrics},
    )
    one.prepare()
    try:
        yield one.start()
    finally:
        one.kill()


def raw(port: int, data: bytes) -> None:
    """Send bytes and break off with a reset."""
    with socket.create_connection(("127.0.0.1", port)) as opened:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        opened.sendall(data)


def _act(client: flight.FlightClient, action: flight.Action) -> object:
    return list(client.do_action(action))


def _get(client: flight.FlightClient, ticket: flight.Ticket) -> object:
    return client.do_get(ticket).read_all()


def _put(client: flight.FlightClient, put: flight.FlightDescriptor, schema: pa.Schema) -> object:
    return client.do_put(put, schema)[0].close()


def calls(client: flight.FlightClient) -> Iterator[Callable[[], object]]:
    """Give calls that nobody with an agent of this release makes."""
    schema = pa.schema([("n", pa.int64())])
    for body in BODIES:
        for action in ACTIONS:
            yield partial(_act, client, flight.Action(action, body))
        yield partial(_get, client, flight.Ticket(body))
        for put in (flight.FlightDescriptor.for_command(body), flight.FlightDescriptor.for_path()):
            yield partial(_put, client, put, schema)
    yield lambda: list(client.list_flights())
    yield lambda: list(client.list_actions())


def test_junk_without_a_token_writes_no_trace_and_a_line_a_minute(agent: AgentProcess) -> None:
    drawn = random.Random(7)
    ports = (agent.port, int(agent.address["metrics"]))
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
    for _ in range(TIMES):
        for port in ports:
            for data in (drawn.randbytes(500), b"GET / HTTP/1.1\r\n\r\n", hello, b"PRI * HTTP/2.0"):
                with contextlib.suppress(OSError):
                    raw(port, data)
    trust = {}
    if agent.secured is not None:
        trust = {"tls_root_certs": agent.secured.ca.read_bytes(), "override_hostname": AGENT_NAME}
    refused = 0
    with flight.FlightClient(agent.location, **trust) as client:
        for call in calls(client):
            try:
                call()
            except (flight.FlightError, pa.ArrowException):
                refused += 1
    assert refused > len(BODIES) * len(ACTIONS) / 2
    assert agent.status()["pe"] == agent.pe, "it goes on"
    reported = agent.log.read_text()
    assert "Traceback" not in reported
    assert len(reported.splitlines()) <= 3, reported


def test_an_error_of_a_call_with_the_token_has_its_trace(agent: AgentProcess) -> None:
    client = AgentClient(agent.location, agent.address["token"], agent.trust)
    with pytest.raises(Exception, match="lacks a field"):
        client.call("publisher.admit")
    assert "Traceback" in agent.log.read_text()
