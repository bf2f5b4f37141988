"""What an agent holds in memory, and what callers without certificate or token can add."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from pe_agent.transport.broker_trust import AGENT_NAME
from support.agents.agents import AgentProcess
from support.processes.certificates import AGENT, Authority

MIB = 1 << 20
LARGE = 96 * MIB
LITTLE = 16 * MIB
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
REQUIRED = {"STREAMBROKER_AGENT_CLIENTS": "required"}


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "tls", "agents", AGENT)


@pytest.fixture
def agent(tmp_path: Path, authority: Authority) -> Iterator[AgentProcess]:
    """An agent that asks its callers for certificates."""
    yield from started(
        AgentProcess(tmp_path / "a", "feed", secured=authority, environment=REQUIRED, fresh=True)
    )


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[AgentProcess]:
    """An agent on loopback without TLS."""
    yield from started(AgentProcess(tmp_path / "plain", "feed", fresh=True))


def started(agent: AgentProcess) -> Iterator[AgentProcess]:
    agent.prepare()
    agent.start()
    yield agent
    agent.kill()


class Peak:
    """How far the memory of an agent's process rises, in bytes."""

    def __init__(self, agent: AgentProcess) -> None:
        assert agent.process is not None
        self._proc = Path(f"/proc/{agent.process.pid}")
        (self._proc / "clear_refs").write_text("5")
        self._rest = self._read("VmRSS")

    def _read(self, name: str) -> int:
        lines = (self._proc / "status").read_text().splitlines()
        (found,) = [line.split()[1] for line in lines if line.startswith(f"{name}:")]
        return int(found) << 10

    def bytes(self) -> int:
        return self._read("VmHWM") - self._rest


def client(agent: AgentProcess, authority: Authority, own: Authority | None) -> flight.FlightClient:
    """Return a bare client that trusts the agents' CA and shows a certificate, or none."""
    shown = {}
    if own is not None:
        pair = own.certificate.read_bytes(), own.key.read_bytes()
        shown = {"cert_chain": pair[0], "private_key": pair[1]}
    return flight.FlightClient(
        agent.location,
        tls_root_certs=authority.ca.read_bytes(),
        override_hostname=AGENT_NAME,
        **shown,
    )


def refused(caller: flight.FlightClient, action: str) -> str:
    """Send a large request without a token and return why it is refused."""
    large = flight.Action(action, pa.py_buffer(bytes(LARGE)))
    with pytest.raises((flight.FlightError, pa.ArrowException, OSError)) as raised:
        list(caller.do_action(large, flight.FlightCallOptions(timeout=60)))
    caller.close()
    return str(raised.value)


def test_an_agent_does_without_pandas(plain: AgentProcess) -> None:
    assert plain.process is not None
    maps = Path(f"/proc/{plain.process.pid}/maps").read_text()

    assert "/pyarrow/" in maps
    assert "/pandas/" not in maps


@pytest.mark.parametrize("shows", ["nothing", "another CA's"])
def test_a_large_request_without_certificate_takes_none_of_an_agents_memory(
    agent: AgentProcess, authority: Authority, tmp_path: Path, shows: str
) -> None:
    own = None if shows == "nothing" else Authority(tmp_path / "tls", "other", AGENT)
    peak = Peak(agent)
    for action in ("peer.plan", "status"):
        refused(client(agent, authority, own), action)
    assert peak.bytes() <= LITTLE
    assert agent.status()["pe"] == agent.pe


def test_bytes_that_are_sent_without_waiting_for_an_answer_take_none_either(
    agent: AgentProcess, authority: Authority
) -> None:
    context = ssl.create_default_context(cafile=authority.ca)
    context.set_alpn_protocols(["h2"])
    peak, chunk = Peak(agent), bytes(MIB)
    bare = socket.create_connection(("127.0.0.1", agent.port), timeout=30)
    with (
        contextlib.suppress(OSError),  # the agent breaks off
        bare,
        context.wrap_socket(bare, server_hostname=AGENT_NAME) as connection,
    ):
        connection.sendall(PREFACE)
        for _ in range(LARGE // MIB):
            connection.sendall(chunk)
    assert peak.bytes() <= LITTLE


def test_with_certificate_and_without_token_a_request_is_read_and_neither_copied_nor_parsed(
    agent: AgentProcess, authority: Authority
) -> None:
    peak = Peak(agent)
    assert "TokenWrong" in refused(client(agent, authority, authority), "status")
    assert "BodyInvalid" in refused(client(agent, authority, authority), "peer.plan")
    assert peak.bytes() <= 4.5 * LARGE


def put(caller: flight.FlightClient, rows: pa.RecordBatch) -> None:
    with caller.do_put(flight.FlightDescriptor.for_command(b"{}"), rows.schema)[0] as writer:
        for _ in range(4):
            writer.write_batch(rows)


def exchange(caller: flight.FlightClient, rows: pa.RecordBatch) -> None:
    with caller.do_exchange(flight.FlightDescriptor.for_command(b"{}"))[0] as writer:
        writer.begin(rows.schema)
        for _ in range(4):
            writer.write_batch(rows)


@pytest.mark.parametrize(("send", "code"), [(put, "TokenWrong"), (exchange, "BodyInvalid")])
def test_rows_without_token_are_refused_before_they_are_read(
    plain: AgentProcess, send: Callable[[flight.FlightClient, pa.RecordBatch], None], code: str
) -> None:
    rows = pa.record_batch({"n": pa.array(bytes(LARGE // 4), pa.uint8())})
    peak = Peak(plain)
    caller = flight.FlightClient(plain.location)
    with pytest.raises((flight.FlightError, pa.ArrowException)) as raised:
        send(caller, rows)
    caller.close()
    assert code in str(raised.value)
    assert peak.bytes() <= LITTLE
