"""An agent that serves only who shows a certificate: other agents, its job, its executors."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from pe_agent.job.agent.agent_process import AgentFailedError
from pe_agent.job.agent.agent_process import AgentProcess as Launched
from pe_agent.transport.agent_client import AgentClient
from pe_agent.transport.agent_tls import AgentCertificate, AgentTrust
from pe_agent.transport.flight_errors import AgentUnreachableError
from streambroker_core.model import PeKey
from support.agents.agents import AgentProcess, Publishing, Reading, pair, rows
from support.processes.certificates import AGENT, Authority
from support.processes.waiting import until

REQUIRED = {"STREAMBROKER_AGENT_CLIENTS": "required"}
SECONDS = 20.0


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "tls", "agents", AGENT)


@pytest.fixture
def agent(tmp_path: Path, authority: Authority) -> Iterator[AgentProcess]:
    agent = AgentProcess(tmp_path / "feed", "feed", secured=authority, environment=REQUIRED)
    agent.prepare()
    agent.start()
    yield agent
    agent.kill()


def ask(agent: AgentProcess, trust: AgentTrust) -> None:
    AgentClient(agent.location, trust=trust).call("peer.watch", wait=0, lease=1.0, exports={})


def refusal(agent: AgentProcess, trust: AgentTrust) -> str:
    with pytest.raises(AgentUnreachableError) as raised:
        ask(agent, trust)
    return str(raised.value)


def own(authority: Authority) -> AgentCertificate:
    return AgentCertificate(chain=authority.certificate, key=authority.key)


def test_rows_go_from_agent_to_agent_where_both_ask_for_certificates(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in REQUIRED.items():
        monkeypatch.setenv(name, value)
    for agents in pair(tmp_path, exporting=authority, importing=authority):
        Publishing(agents.exporter).publish(0, rows(0, 5), rows(5, 5))
        reading = Reading(agents.importer)
        assert reading.read(None, reading.end(None)) == list(range(10))


def test_who_shows_nothing_is_refused_and_learns_what_to_give(
    agent: AgentProcess, authority: Authority
) -> None:
    said = refusal(agent, AgentTrust(authority.ca))

    assert "STREAMBROKER_AGENT_CERTIFICATE" in said
    ask(agent, authority.trust())


def test_a_certificate_of_another_ca_is_refused(
    agent: AgentProcess, authority: Authority, tmp_path: Path
) -> None:
    other = Authority(tmp_path / "tls", "other", AGENT)

    assert "does not answer" in refusal(agent, AgentTrust(authority.ca, certificate=own(other)))


def test_a_caller_need_not_be_an_agent(agent: AgentProcess, authority: Authority) -> None:
    chain = authority.certificate.with_name("worker.crt"), authority.key.with_name("worker.key")
    kept = authority.certificate.read_bytes(), authority.key.read_bytes()
    authority.issue("DNS:worker")
    shutil.copy(authority.certificate, chain[0])
    shutil.copy(authority.key, chain[1])
    authority.certificate.write_bytes(kept[0])
    authority.key.write_bytes(kept[1])

    ask(agent, AgentTrust(authority.ca, certificate=AgentCertificate(chain=chain[0], key=chain[1])))


def test_another_ca_for_callers_is_taken_in_while_the_agent_runs(
    agent: AgentProcess, authority: Authority, tmp_path: Path
) -> None:
    other = Authority(tmp_path / "tls", "other", AGENT)
    theirs = AgentTrust(pem=authority.ca.read_bytes(), certificate=own(other))
    assert "does not answer" in refusal(agent, theirs)

    authority.ca.write_bytes(authority.ca.read_bytes() + other.ca.read_bytes())

    def admitted() -> bool:
        try:
            ask(agent, theirs)
        except AgentUnreachableError:
            return False
        return True

    until(admitted, SECONDS, "the new CA's callers are served")


@pytest.mark.parametrize("how", ["argument", "environment"])
@pytest.mark.parametrize("serves", ["any", "required", None])
def test_only_an_agent_that_asks_for_certificates_is_adopted_where_they_are_required(
    tmp_path: Path,
    authority: Authority,
    monkeypatch: pytest.MonkeyPatch,
    how: str,
    serves: str | None,
) -> None:
    """An agent of a release that does not say counts as one that does not ask."""
    asks = REQUIRED if serves == "required" else {}
    agent = AgentProcess(tmp_path / "feed", "feed", secured=authority, environment=asks)
    agent.prepare()
    agent.start()
    assert agent.address["clients"] == (serves or "any")
    if serves is None:
        address = {k: v for k, v in agent.address.items() if k != "clients"}
        (agent.home / "agent.json").write_text(json.dumps(address))
    if how == "environment":
        monkeypatch.setenv("STREAMBROKER_AGENT_CLIENTS", "required")
    adopted: list[Launched] = []

    def adopt(clients: str | None) -> None:
        adopted.append(
            Launched(
                PeKey.parse(agent.pe),
                agent.home,
                broker=None,
                linger=20,
                host="127.0.0.1",
                port=0,
                certificate=own(authority),
                trust=AgentTrust(authority.ca, certificate=own(authority)),
                clients=clients,
            )
        )

    try:
        if serves == "required":
            adopt("required" if how == "argument" else None)
            assert adopted[0].client.location == agent.location
        else:
            with pytest.raises(AgentFailedError, match=r"certificates are required here. Stop it"):
                adopt("required" if how == "argument" else None)
            adopt("any")
        ask(agent, authority.trust())
    finally:
        for one in adopted:
            one.stop(end_agent=False)
        agent.kill()


@pytest.mark.parametrize("missing", ["certificate", "ca"])
def test_an_agent_that_cannot_ask_does_not_start(
    tmp_path: Path, authority: Authority, missing: str
) -> None:
    given = {
        "certificate": {"STREAMBROKER_AGENT_CA": str(authority.ca)},
        "ca": {
            "STREAMBROKER_AGENT_CERTIFICATE": str(authority.certificate),
            "STREAMBROKER_AGENT_KEY": str(authority.key),
        },
    }[missing]
    agent = AgentProcess(tmp_path / "feed", "feed", environment={**REQUIRED, **given})
    agent.prepare()

    assert "requires certificates of its callers" in agent.refusal()


def test_a_key_never_travels_and_is_read_where_a_task_runs(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trust = authority.trust()
    assert trust.pair() == (authority.certificate.read_bytes(), authority.key.read_bytes())
    sent = pickle.dumps(trust.snapshot())
    assert authority.key.read_bytes() not in sent

    for file in (authority.certificate, authority.key):
        shutil.move(file, tmp_path / file.name)
    there = pickle.loads(sent)
    assert there.pair() is None
    monkeypatch.setenv("STREAMBROKER_AGENT_CERTIFICATE", str(tmp_path / authority.certificate.name))
    monkeypatch.setenv("STREAMBROKER_AGENT_KEY", str(tmp_path / authority.key.name))
    assert there.pair() == trust.pair()


def test_files_that_are_no_pair_leave_the_one_before(authority: Authority) -> None:
    trust = authority.trust()
    before = trust.pair()
    assert before is not None
    certificate = authority.certificate.read_bytes()

    authority.issue(AGENT)
    issued = authority.certificate.read_bytes(), authority.key.read_bytes()
    authority.certificate.write_bytes(certificate)
    assert trust.pair() == before

    authority.certificate.write_bytes(issued[0])
    assert trust.pair() == issued
