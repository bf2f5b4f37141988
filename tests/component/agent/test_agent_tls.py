"""Rows between agents, and from a job to its agent, over TLS."""

from __future__ import annotations

import pickle
import shutil
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pyarrow.flight as flight
import pytest

import streambroker as sb
from pe_agent.job.agent.agent_process import AgentFailedError
from pe_agent.job.agent.agent_process import AgentProcess as Launched
from pe_agent.transport import agent_tls
from pe_agent.transport.agent_client import AgentClient
from pe_agent.transport.agent_tls import AgentTrust
from pe_agent.transport.broker_trust import TrustError
from pe_agent.transport.flight_errors import AgentUnreachableError
from streambroker_core.model import PeKey
from support.agents.agents import AgentProcess, Pair, Publishing, Reading, pair, rows
from support.processes.certificates import AGENT, Authority
from support.processes.ports import free_port
from support.processes.waiting import until

BLOCKS, ROWS = 40, 20_000

# The standard library leaves a socket unclosed that the other side closes before the handshake, as
# an agent does that takes another certificate in.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"), "agents", AGENT)


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Pair]:
    place = tmp_path_factory.mktemp("secured")
    yield from pair(place, exporting=authority, importing=authority)


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[AgentProcess]:
    """One agent whose certificate a test may replace."""
    agent = AgentProcess(tmp_path / "feed", "feed", secured=Authority(tmp_path, "own", AGENT))
    agent.prepare()
    yield agent
    agent.kill()


def shown_at(agent: AgentProcess) -> str:
    """Return the certificate that a new connection sees."""
    return ssl.get_server_certificate(("127.0.0.1", agent.port))


def refusal(location: str, trust: AgentTrust) -> str:
    with pytest.raises(AgentUnreachableError) as raised:
        AgentClient(location, trust=trust).call("peer.watch", wait=0, lease=1.0, exports={})
    return str(raised.value)


# ---- who is called ---------------------------------------------------------------------------


def test_rows_reach_an_importer_over_tls_alone(agents: Pair) -> None:
    Publishing(agents.exporter).publish(0, rows(0, 5), rows(5, 5))
    reading = Reading(agents.importer)
    end = reading.end(None)

    assert agents.exporter.location.startswith("grpc+tls://")
    assert reading.read(None, end) == list(range(10))
    assert agents.exporter.address["location"] == agents.exporter.location


def test_an_agent_of_another_ca_is_refused_and_the_setting_is_named(
    agents: Pair, tmp_path: Path
) -> None:
    other = Authority(tmp_path, "other", AGENT)

    said = refusal(agents.exporter.location, AgentTrust(other.ca))
    assert "is not signed by a trusted CA" in said
    assert "`AgentTls.ca` or STREAMBROKER_AGENT_CA" in said


def test_a_certificate_of_the_ca_that_is_not_an_agents_is_refused(tmp_path: Path) -> None:
    rest = Authority(tmp_path, "rest", "DNS:streambroker.streambroker.svc,IP:127.0.0.1")
    pair_ = (rest.certificate.read_bytes(), rest.key.read_bytes())
    server = flight.FlightServerBase("grpc+tls://127.0.0.1:0", tls_certificates=[pair_])
    try:
        said = refusal(f"grpc+tls://127.0.0.1:{server.port}", AgentTrust(rest.ca))
    finally:
        server.shutdown()

    assert "it has to contain the DNS name streambroker-agent" in said


def test_an_agent_with_tls_is_not_called_without_a_ca(agents: Pair) -> None:
    said = refusal(agents.exporter.location, AgentTrust())

    assert "uses TLS, and no trusted certificates are configured" in said
    assert "STREAMBROKER_AGENT_CA" in said


def test_a_caller_without_tls_gets_nothing_from_an_agent_with_it(agents: Pair) -> None:
    said = refusal(f"grpc+tcp://127.0.0.1:{agents.exporter.port}", AgentTrust())

    assert "does not answer" in said


def test_who_trusts_a_ca_calls_no_agent_without_tls_unless_allowed(
    tmp_path: Path, authority: Authority
) -> None:
    agent = AgentProcess(tmp_path / "plain", "plain")
    agent.prepare()
    try:
        agent.start()
        said = refusal(agent.location, AgentTrust(authority.ca))
        assert "only agents with TLS are called" in said
        assert "set STREAMBROKER_AGENT_PLAIN=allow" in said
        allowed = AgentTrust(authority.ca, plain=True)
        assert AgentClient(agent.location, trust=allowed).call(
            "peer.watch", wait=0, lease=1.0, exports={}
        ) == {"exports": {}}
    finally:
        agent.kill()


@pytest.mark.parametrize(
    ("exporting", "importing", "reported"),
    [(True, False, "no trusted certificates are configured"), (False, True, "does not use TLS")],
    ids=["importer without a CA", "exporter without TLS"],
)
def test_an_importer_tells_why_it_does_not_read(
    exporting: bool, importing: bool, reported: str, tmp_path: Path, authority: Authority
) -> None:
    how: dict[str, Any] = {
        "exporting": authority if exporting else None,
        "importing": authority if importing else None,
    }
    with contextmanager(pair)(tmp_path, **how) as both:
        Publishing(both.exporter).publish(0, rows(0, 3))
        offset = Reading(both.importer).next(None)["offset"]
        away = until(lambda: both.importer.status()["imports"]["away"], 30, "agent is unreachable")

        assert reported in away[both.exporter.location]
        assert offset["streams"] == {}


def test_a_ca_that_replaces_another_holds_from_the_next_call(
    agents: Pair, tmp_path: Path, authority: Authority
) -> None:
    file, other = tmp_path / "ca.crt", Authority(tmp_path, "other", AGENT)
    shutil.copy(other.ca, file)
    trust = AgentTrust(file)
    assert "not signed by a trusted CA" in refusal(agents.exporter.location, trust)
    shutil.copy(authority.ca, file)
    client = AgentClient(agents.exporter.location, str(agents.exporter.address["token"]), trust)
    assert client.call("status")["pe"] == agents.exporter.pe
    file.write_text("half of a fi")
    assert client.call("status")["pe"] == agents.exporter.pe


def test_what_a_task_is_given_needs_no_file(tmp_path: Path, authority: Authority) -> None:
    file = tmp_path / "ca.crt"
    shutil.copy(authority.ca, file)
    given = pickle.loads(pickle.dumps(AgentTrust(file).snapshot()))
    file.unlink()

    assert given.anchors() == authority.ca.read_bytes()
    with pytest.raises(AgentUnreachableError):
        given.anchors_for("grpc+tcp://127.0.0.1:1")


# ---- another certificate ---------------------------------------------------------------------


def test_a_certificate_is_replaced_while_rows_are_read_and_written(tmp_path: Path) -> None:
    own = Authority(tmp_path, "own", AGENT)
    with contextmanager(pair)(tmp_path, exporting=own, importing=own) as both:
        feed = Publishing(both.exporter)
        feed.publish(0, *(rows(n * ROWS, ROWS) for n in range(BLOCKS)))
        reading = Reading(both.importer)
        end = reading.end(None)
        (ticket,) = reading.slices(None, end)
        read = AgentClient(ticket["location"], trust=both.importer.trust).get(ticket)
        numbers = next(read)[0].column("n").to_pylist()

        def written() -> Iterator[Any]:
            yield rows(BLOCKS * ROWS, 5)
            renew(own, both.exporter)
            yield rows(BLOCKS * ROWS + 5, 5)

        feed.admit(1)
        first, rest = rows(0, 0).schema, written()
        command = {"export": "trades", "query": feed.query, "run": feed.run, "batch": 1}
        stage = both.exporter.client.put({**command, "ddl": feed.ddl}, first, rest)
        until(lambda: answers(both.exporter), 30, "the exporter answers")
        feed.commit(1, [stage])
        numbers += [n for batch, _ in read for n in batch.column("n").to_pylist()]

        assert numbers == list(range(BLOCKS * ROWS))
        after = reading.end(end)
        assert reading.read(end, after) == list(range(BLOCKS * ROWS, BLOCKS * ROWS + 10))


def renew(own: Authority, agent: AgentProcess, names: str = AGENT) -> None:
    """Give an agent another certificate and wait until new connections see it."""
    before, port = shown_at(agent), agent.port
    own.issue(names)
    until(lambda: own.certificate.read_text() == safely(agent), 10.0, "the new certificate")
    assert shown_at(agent) != before
    assert agent.port == port


def safely(agent: AgentProcess) -> str:
    """Return the certificate that is seen, or nothing while nobody listens."""
    try:
        return shown_at(agent)
    except OSError:
        return ""


def answers(agent: AgentProcess) -> bool:
    try:
        return bool(agent.status()["pe"] == agent.pe)
    except AgentUnreachableError:
        return False


def test_a_renewed_certificate_is_in_the_status_and_keeps_the_address(alone: AgentProcess) -> None:
    own = cast(Authority, alone.secured)
    alone.start()
    first = alone.status()["certificate"]
    assert (first["sha256"], first["error"]) == (own.fingerprint(), None)
    assert first["until"].endswith("GMT")

    renew(own, alone)
    until(lambda: answers(alone), 30, "the agent answers")
    assert alone.status()["certificate"]["sha256"] == own.fingerprint() != first["sha256"]


@pytest.mark.parametrize("bad", ["not PEM", "another key", "another name", "half gone"])
def test_a_certificate_that_cannot_be_used_leaves_the_one_before(
    bad: str, alone: AgentProcess, tmp_path: Path
) -> None:
    own = cast(Authority, alone.secured)
    alone.start()
    before = shown_at(alone)
    if bad == "not PEM":
        own.certificate.write_text("half of a fi")
    elif bad == "another key":
        shutil.copy(Authority(tmp_path, "other", AGENT).key, own.key)
    elif bad == "another name":
        own.issue("DNS:somebody")
    else:
        own.key.unlink()
    error = until(lambda: alone.status()["certificate"]["error"], 10.0, "the error is told")

    assert "not a certificate of an agent with its key" in error
    stays = "cannot reload the certificate, keeping the previous one"
    until(lambda: stays in alone.log.read_text(), 10.0, "the log has it, too")
    assert shown_at(alone) == before
    renew(own, alone)
    until(lambda: answers(alone), 30, "the agent answers")
    assert alone.status()["certificate"]["error"] is None


def test_an_agent_does_not_start_with_what_it_cannot_show(alone: AgentProcess) -> None:
    own = cast(Authority, alone.secured)
    own.issue("DNS:somebody")

    said = alone.refusal()
    assert said.startswith("ArgumentInvalid: ")
    assert "the certificate has to contain the DNS name streambroker-agent" in said


def test_an_agent_that_ends_waits_for_nobody_who_stands_still(tmp_path: Path) -> None:
    own = Authority(tmp_path, "own", AGENT)
    with contextmanager(pair)(tmp_path, exporting=own, importing=own) as both:
        batches = (rows(n * ROWS, ROWS) for n in range(BLOCKS))
        Publishing(both.exporter).publish(0, *batches)
        reading = Reading(both.importer)
        (ticket,) = reading.slices(None, reading.end(None))
        stands = AgentClient(ticket["location"], trust=both.importer.trust).get(ticket)
        next(stands)
        renew(own, both.exporter)
        process = both.exporter.process
        assert process is not None
        both.exporter.stop()

        assert process.returncode == 0
        assert not (both.exporter.home / "agent.json").exists()
        stands.close()  # type: ignore[attr-defined]  # a generator


def test_the_switch_for_agents_without_tls_is_one_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMBROKER_AGENT_PLAIN", "yes")
    with pytest.raises(TrustError, match="it has to be `allow`, or nothing"):
        agent_tls.resolve_agent_trust(None)
    monkeypatch.setenv("STREAMBROKER_AGENT_PLAIN", "allow")
    assert agent_tls.resolve_agent_trust(None).plain


# ---- a job and its agent ---------------------------------------------------------------------


def test_a_job_starts_and_adopts_its_agent_over_tls(tmp_path: Path, authority: Authority) -> None:
    how: dict[str, Any] = {
        "broker": None,
        "linger": 60.0,
        "host": "127.0.0.1",
        "port": free_port(),
        "trust": AgentTrust(authority.ca),
    }
    certificate = agent_tls.resolve_certificate(authority.certificate, authority.key)
    key = PeKey.parse("default/feed/0")
    first = Launched(key, tmp_path / "home", certificate=certificate, **how)
    try:
        second = Launched(key, tmp_path / "home", **how)
        assert second.client.location == first.client.location
        assert second.client.location.startswith("grpc+tls://")
        second.stop(end_agent=False)
    finally:
        first.stop(end_agent=True)
    with pytest.raises(AgentFailedError, match="would have no certificate"):
        Launched(key, tmp_path / "home", **how)


def test_a_job_with_a_ca_does_not_adopt_an_agent_without_tls_and_says_why(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    how: dict[str, Any] = {"broker": None, "linger": 60.0, "host": "127.0.0.1", "port": 0}
    key = PeKey.parse("default/feed/0")
    plain = Launched(key, tmp_path / "home", **how)
    monkeypatch.setattr("pe_agent.job.agent.agent_process.ADOPT_SECONDS", 0.0)
    try:
        with pytest.raises(AgentFailedError, match=r"HomeInUse.*cannot be adopted.*not use TLS"):
            Launched(
                key,
                tmp_path / "home",
                certificate=agent_tls.resolve_certificate(authority.certificate, authority.key),
                trust=AgentTrust(authority.ca),
                **how,
            )
    finally:
        plain.stop(end_agent=True)


@pytest.mark.parametrize(
    ("given", "reported"),
    [
        ({"certificate": "a"}, "give both `AgentTls.certificate` and `AgentTls.key`"),
        ({"certificate": "a", "key": "b"}, "could not call its own agent"),
        ({"ca": "nowhere"}, "No such file.*Correct `AgentTls.ca`"),
        ({"ca": __file__}, "it is not PEM.*Correct `AgentTls.ca`"),
    ],
)
def test_start_refuses_half_of_what_tls_needs_before_anything_is_started(
    given: dict[str, Any], reported: str, tmp_path: Path
) -> None:
    agent = sb.AgentOptions(tls=sb.AgentTls(**given))
    with pytest.raises(TrustError, match=reported):
        sb.start(cast(Any, None), job="feed", data_dir=tmp_path / "home", agent=agent)
    assert not (tmp_path / "home").exists()
