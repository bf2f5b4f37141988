"""Where an agent listens, and whether it has to ask its callers for certificates."""

from __future__ import annotations

from pathlib import Path

import pytest

from pe_agent.agent.process import AgentServer, parse_settings
from pe_agent.job.agent.agent_process import AgentProcess
from pe_agent.transport.agent_tls import (
    AgentCertificate,
    AgentTrust,
    NotSecuredError,
    are_clients_required,
    check_secured,
    is_insecure,
    is_loopback,
)
from pe_agent.transport.broker_trust import TrustError
from streambroker_core.model import PeKey

LOCAL = ("127.0.0.1", "127.8.0.1", "localhost")
OPEN = ("0.0.0.0", "10.1.2.3", "agent.example.org", "192.168.0.1", "")


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CLIENTS", "INSECURE", "CERTIFICATE", "KEY", "CA"):
        monkeypatch.delenv(f"STREAMBROKER_AGENT_{name}", raising=False)


@pytest.mark.parametrize("host", LOCAL)
def test_on_loopback_callers_need_no_certificate_unless_that_is_asked_for(host: str) -> None:
    assert is_loopback(host)
    assert not are_clients_required(None, host, insecure=False)
    assert not are_clients_required("any", host, insecure=False)
    assert are_clients_required("required", host, insecure=False)


@pytest.mark.parametrize("host", OPEN)
def test_where_other_machines_reach_the_agent_callers_need_a_certificate(host: str) -> None:
    assert not is_loopback(host)
    assert are_clients_required(None, host, insecure=False)
    assert are_clients_required("required", host, insecure=True)
    assert not are_clients_required(None, host, insecure=True)
    assert not are_clients_required("any", host, insecure=True)
    with pytest.raises(NotSecuredError, match="--insecure"):
        are_clients_required("any", host, insecure=False)


def test_the_environment_says_it_for_a_program_that_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert (is_insecure(None), is_insecure(True), is_insecure(False)) == (False, True, False)
    monkeypatch.setenv("STREAMBROKER_AGENT_INSECURE", "allow")
    assert (is_insecure(None), is_insecure(False)) == (True, False)
    monkeypatch.setenv("STREAMBROKER_AGENT_INSECURE", "yes")
    with pytest.raises(TrustError, match="has to be `allow`"):
        is_insecure(None)
    monkeypatch.setenv("STREAMBROKER_AGENT_CLIENTS", "some")
    with pytest.raises(TrustError, match="`required`, or `any`"):
        are_clients_required(None, "127.0.0.1", insecure=False)


def test_what_is_missing_to_ask_for_certificates_is_named_with_a_way_out(tmp_path: Path) -> None:
    own = AgentCertificate(chain=tmp_path / "crt", key=tmp_path / "key")
    none, some = AgentTrust(), AgentTrust(pem=b"ca")
    for certificate, trust in ((None, none), (own, none), (None, some)):
        with pytest.raises(
            NotSecuredError, match=r"AgentTls.certificate.*--tls-self-signed.*=allow"
        ):
            check_secured("default/a/0", "10.1.2.3", certificate, trust, required=True)
        with pytest.raises(TrustError, match="requires certificates of its callers"):
            check_secured("default/a/0", "127.0.0.1", certificate, trust, required=True)
        check_secured("default/a/0", "10.1.2.3", certificate, trust, required=False)
    check_secured("default/a/0", "10.1.2.3", own, some, required=True)


@pytest.mark.parametrize("more", [[], ["--clients", "required"]])
def test_an_agent_that_others_would_reach_does_not_start(tmp_path: Path, more: list[str]) -> None:
    given = ["--home", str(tmp_path / "a"), "--job", "feed", "--host", "192.0.2.1", *more]
    with pytest.raises(NotSecuredError, match=r"agent of default/feed/0 at 192\.0\.2\.1"):
        AgentServer(parse_settings(given))
    assert parse_settings([*given[:6], "--insecure"]).clients_required is False


def test_a_driver_passes_on_that_callers_need_no_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AgentProcess, "_adopt_or_start", lambda *_: None)
    monkeypatch.setattr(AgentProcess, "_keep_alive", lambda _: None)
    pe = PeKey.parse("default/feed/0")

    def command(allowed: bool | None) -> list[str]:
        made = AgentProcess(
            pe, tmp_path, broker=None, linger=1, host="10.1.2.3", port=0, insecure=allowed
        )
        return made._command(0)

    assert "--insecure" not in command(None)
    assert "--insecure" in command(True)
    monkeypatch.setenv("STREAMBROKER_AGENT_INSECURE", "allow")
    assert "--insecure" in command(None)
    assert "--insecure" not in command(False)
