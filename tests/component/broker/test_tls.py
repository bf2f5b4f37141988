"""A broker without Kubernetes that speaks TLS, and what of a secret travels without."""

from __future__ import annotations

import asyncio
import os
import ssl
import stat
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from pe_agent.job.agent.agent_process import AgentProcess
from pe_agent.transport.broker_client import BrokerClient, pe_path
from pe_agent.transport.broker_trust import BrokerTrust
from pe_agent.transport.tokens import Token
from streambroker_core.model import PeKey
from streambroker_operator.broker import Broker
from streambroker_operator.errors import OpenError
from streambroker_operator.security import certificate as tls
from streambroker_operator.security import self_signed
from streambroker_operator.security.self_signed import write_certificates
from support.brokers.brokers import EXPORT, TOKENS, BrokerProcess, Rest, running_broker
from support.processes.certificates import Authority
from support.processes.waiting import until

AGENT = {"instance": "0123456789abcdef", "location": "grpc+tcp://h:1", "hint": None}
PORT = f"{pe_path('feed', 0)}/export/trades"
SECONDS = 30.0


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    path = tmp_path / "tokens.yaml"
    path.write_text(f"tokens: [{{name: ops, token: {TOKENS['ops']}, role: admin}}]")
    path.chmod(0o600)
    return path


@asynccontextmanager
async def started(broker: Broker) -> AsyncIterator[Broker]:
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


# ---- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.1.2.3"])
async def test_tokens_are_refused_without_tls_where_other_machines_reach_the_broker(
    tmp_path: Path, tokens: Path, host: str
) -> None:
    with pytest.raises(OpenError, match="without TLS") as refusal:
        await Broker(db=tmp_path / "b.db", port=0, host=host, tokens=tokens).start()

    assert "--tls-self-signed" in str(refusal.value)
    assert not (tmp_path / "b.db").exists()


async def test_tls_does_not_take_the_place_of_tokens(tmp_path: Path) -> None:
    pair = write_certificates(tmp_path / "tls", "0.0.0.0")
    with pytest.raises(OpenError, match="--tokens"):
        await Broker(db=tmp_path / "b.db", port=0, host="0.0.0.0", certificate=pair).start()


async def test_insecure_lets_tokens_travel_in_clear_and_warns(
    tmp_path: Path, tokens: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broker = Broker(db=tmp_path / "b.db", port=0, host="0.0.0.0", tokens=tokens, insecure=True)
    async with started(broker):
        assert "any machine on the network can read the tokens" in caplog.text


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--tls-cert", "x"), "Give --tls-cert and --tls-key together"),
        (("--tls-cert", "x", "--tls-key", "y", "--tls-self-signed", "z"), "not both"),
        (("--tls-cert", "x", "--tls-key", "y"), "x and y are not a certificate with its key"),
    ],
)
def test_options_that_give_no_certificate_are_refused(
    tmp_path: Path, options: tuple[str, ...], problem: str
) -> None:
    code, errors = BrokerProcess(tmp_path / "b.db", "--port", "0", *options).end()

    assert code != 0
    assert problem in errors


def test_without_the_program_openssl_the_refusal_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OpenError, match="the program openssl is missing"):
        write_certificates(tmp_path / "tls", "127.0.0.1")


# ---- what is served ----------------------------------------------------------------------------


def test_up_makes_a_ca_that_the_command_line_and_agents_trust(
    tmp_path: Path, tokens: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "tls"
    given = ["--host", "0.0.0.0", "--tokens", str(tokens), "--tls-self-signed", str(folder)]
    broker = BrokerProcess(tmp_path / "broker.db", "--port", "0", *given)
    url = broker.url().replace("0.0.0.0", "127.0.0.1")
    agent = None
    try:
        assert broker.first_line() == f"clients need STREAMBROKER_CA={folder / 'ca.crt'}"
        monkeypatch.setenv("STREAMBROKER_CA", str(folder / "ca.crt"))
        monkeypatch.setenv("STREAMBROKER_TOKEN", TOKENS["ops"])
        client = BrokerClient(url, "default", Token(TOKENS["ops"]), BrokerTrust(folder / "ca.crt"))
        assert client.request("PUT", PORT, EXPORT).status == 201
        command = ["streambroker", "--url", url, "get", "exports", "-o", "name"]
        shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        assert shown.stdout == "export/feed-0-trades\n"
        pe, home = PeKey.parse("default/feed/0"), tmp_path / "home"
        agent = AgentProcess(
            pe, home, broker=url, linger=20, host="127.0.0.1", port=0, token=Token(TOKENS["ops"])
        )
        status = agent.client.call
        until(lambda: status("status")["view"] is not None, SECONDS, "a view")
    finally:
        if agent is not None:
            agent.stop(end_agent=True)
        broker.kill()


def test_the_ca_and_the_pairs_of_agents_stay_and_the_broker_has_a_new_pair(tmp_path: Path) -> None:
    def read() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    write_certificates(tmp_path, "127.0.0.1")
    before = read()
    write_certificates(tmp_path, "10.1.2.3")
    after = read()

    changed = {name for name, content in after.items() if before[name] != content}
    assert sorted(after) == sorted(
        [
            "ca.crt",
            "ca.key",
            *(f"{n}.{e}" for n in ("broker", "agent", "client") for e in ("crt", "key")),
        ]
    )
    assert changed == {"broker.crt", "broker.key"}
    secret = [path for path in tmp_path.iterdir() if path.suffix == ".key"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in secret} == {0o600}


def test_without_the_cas_key_what_is_there_is_used(tmp_path: Path) -> None:
    write_certificates(tmp_path, "127.0.0.1")
    (tmp_path / "ca.key").unlink()
    before = (tmp_path / "broker.crt").read_bytes()

    assert write_certificates(tmp_path, "10.1.2.3")[0].read_bytes() == before


@pytest.mark.parametrize(("name", "serves"), [("agent", True), ("client", False)])
def test_only_the_agents_pair_passes_as_an_agent(tmp_path: Path, name: str, serves: bool) -> None:
    write_certificates(tmp_path, "127.0.0.1")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / f"{name}.crt", tmp_path / f"{name}.key")
    client = ssl.create_default_context(cafile=tmp_path / "ca.crt")

    assert handshakes(server, client, "streambroker-agent") == serves


def handshakes(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> bool:
    """Say whether a client takes a server by a name, without a network."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(down, up, server_hostname=name),
        server.wrap_bio(up, down, server_side=True),
    ]
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError:
                return False
    return True


async def test_a_renewed_certificate_is_shown_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "CHECK_INTERVAL_S", 0.05)
    authority = Authority(tmp_path / "tls", "first")
    pair = (authority.certificate, authority.key)

    async with started(Broker(db=tmp_path / "b.db", port=0, certificate=pair)) as broker:
        where = ("127.0.0.1", int(broker.url.rpartition(":")[2]))
        before = await asyncio.to_thread(ssl.get_server_certificate, where)
        await asyncio.to_thread(authority.issue, "IP:127.0.0.1")

        def renewed() -> bool:
            return ssl.get_server_certificate(where) != before

        await asyncio.to_thread(until, renewed, SECONDS, "the new certificate")


async def test_the_end_of_a_certificate_is_known_also_when_it_is_renewed(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "tls", "first")
    used = tls.Certificate(authority.certificate, authority.key)
    await asyncio.to_thread(
        self_signed.issue_pair, tmp_path, ["DNS:one"], 40_000
    )  # after 2050, where certificates write the year in another way
    ends = {path: openssl_end(path) for path in (authority.certificate, tmp_path / "server.crt")}
    assert used.valid_until == ends[authority.certificate]
    authority.certificate.write_bytes((tmp_path / "server.crt").read_bytes())
    authority.key.write_bytes((tmp_path / "server.key").read_bytes())
    used.reload_if_changed()
    assert used.valid_until == ends[tmp_path / "server.crt"]
    assert ends[tmp_path / "server.crt"] > ssl.cert_time_to_seconds("Jan  1 00:00:00 2050 GMT")


def openssl_end(certificate: Path) -> float:
    """Return what openssl prints of the end of a certificate."""
    command = ["openssl", "x509", "-noout", "-enddate", "-in", str(certificate)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(ssl.cert_time_to_seconds(done.stdout.strip().partition("=")[2]))


# ---- the agent's key ---------------------------------------------------------------------------


@asynccontextmanager
async def recorded(port: int) -> AsyncIterator[tuple[str, bytearray]]:
    """Pass connections on to a port; yield the address, and all that went either way."""
    seen = bytearray()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(65_536):
            seen.extend(chunk)
            writer.write(chunk)
        writer.close()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pump(reader, back), pump(there, writer), return_exceptions=True)

    server = await asyncio.start_server(pass_on, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", seen
    finally:
        server.close()


async def test_the_key_of_an_agent_is_in_nothing_that_a_reader_of_the_network_sees(
    tmp_path: Path,
) -> None:
    pe = PeKey.parse("default/feed/0")

    def start(url: str) -> AgentProcess:
        return AgentProcess(pe, tmp_path / "home", broker=url, linger=20, host="127.0.0.1", port=0)

    def follows(agent: AgentProcess) -> bool:
        status = agent.client.call("status")
        return status["view"] is not None and not status["broker"]["away"]

    async with running_broker(tmp_path / "b.db") as (broker, rest):
        assert (await rest("PUT", "/job/feed/pe/0/export/trades", EXPORT)).status == 201
        async with recorded(int(broker.url.rpartition(":")[2])) as (url, seen):
            agent = await asyncio.to_thread(start, url)
            try:
                await asyncio.to_thread(until, lambda: follows(agent), SECONDS, "a view")
            finally:
                await asyncio.to_thread(agent.stop, end_agent=True)
        registration = broker.runtime.board.registration(pe)
        assert registration is not None
        key = broker.runtime.agent_key(pe, registration)

    assert b'"sealed"' in seen
    assert key.hex().encode() not in seen
    assert key not in seen


async def test_a_key_is_not_sent_in_clear_to_another_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streambroker_operator.rest.agents.pe.is_loopback", lambda _: False)
    async with running_broker(tmp_path / "b.db") as (_, rest):
        answer = await rest("PUT", "/job/feed/pe/0", AGENT)
        known = await rest("GET", "/job/feed/pe/0")

    assert (answer.status, answer.code, known.status) == (400, "KeyInClear", 404)


async def test_over_tls_the_key_is_sent_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "tls"
    pair = await asyncio.to_thread(write_certificates, folder, "127.0.0.1")
    trust = ssl.create_default_context(cafile=folder / "ca.crt")
    body: dict[str, Any] = {**AGENT, "exchange": os.urandom(32).hex()}
    async with (
        started(Broker(db=tmp_path / "b.db", port=0, certificate=pair)) as broker,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust)) as session,
    ):
        answer = await Rest(broker.url, session)("PUT", "/job/feed/pe/0", body)

    assert sorted(answer.body) == ["hinted", "key", "poll"]
