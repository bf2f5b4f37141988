"""A job's requests to a broker that speaks TLS."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import streambroker as sb
from pe_agent.transport.broker_client import BrokerClient, pe_path
from pe_agent.transport.broker_trust import BrokerTrust, TrustError
from streambroker.functions import set_export_properties
from streambroker_client.errors import BrokerUnavailableError
from support.brokers.brokers import EXPORT, running_broker
from support.processes.certificates import Authority, also_by_tls

PORT = f"{pe_path('feed', 0)}/export/trades"


class Secured:
    """A broker at two ports, and the authority that its certificate comes from."""

    def __init__(self, plain: str, port: int, shown: Any, authority: Authority) -> None:
        self.plain, self.port = plain, port
        self.shown, self.authority = shown, authority
        self.url = f"https://127.0.0.1:{port}"

    async def declare(self, url: str, trust: BrokerTrust | None = None) -> int:
        """Declare an export; return the answer's status."""
        client = BrokerClient(url, "default", trust=trust)
        return (await asyncio.to_thread(client.request, "PUT", PORT, EXPORT)).status

    async def refusal(self, url: str, trust: BrokerTrust | None = None) -> BrokerUnavailableError:
        with pytest.raises(BrokerUnavailableError) as raised:
            await self.declare(url, trust)
        return raised.value


@pytest.fixture
async def secured(tmp_path: Path) -> AsyncIterator[Secured]:
    authority = Authority(tmp_path / "tls", "first")
    shown = authority.context()
    async with (
        running_broker(tmp_path / "broker.db") as (broker, _),
        also_by_tls(broker, shown) as port,
    ):
        yield Secured(broker.url, port, shown, authority)


async def test_a_broker_whose_certificate_comes_from_the_given_ca_is_asked_by_tls(
    secured: Secured,
) -> None:
    assert await secured.declare(secured.url, BrokerTrust(secured.authority.ca)) == 201


async def test_without_a_ca_the_system_decides_and_the_remedy_is_reported(secured: Secured) -> None:
    error = await secured.refusal(secured.url)

    assert "give the CA's file with `BrokerAuth.ca` or STREAMBROKER_CA" in str(error)
    assert not error.sent


async def test_a_certificate_of_another_ca_is_refused(secured: Secured, tmp_path: Path) -> None:
    other = Authority(tmp_path / "tls", "other")
    error = await secured.refusal(secured.url, BrokerTrust(other.ca))

    assert "not signed by a trusted CA" in str(error)


async def test_a_certificate_for_another_name_is_refused(secured: Secured) -> None:
    url = f"https://localhost:{secured.port}"
    error = await secured.refusal(url, BrokerTrust(secured.authority.ca))

    assert "Its certificate is for another name" in str(error)


async def test_https_where_the_broker_speaks_no_tls_says_to_use_http(secured: Secured) -> None:
    url = secured.plain.replace("http:", "https:")
    error = await secured.refusal(url, BrokerTrust(secured.authority.ca))

    assert f"If it does not use TLS, use {secured.plain}." in str(error)
    assert not error.sent


async def test_http_where_the_broker_speaks_tls_says_to_use_https(secured: Secured) -> None:
    error = await secured.refusal(f"http://127.0.0.1:{secured.port}")

    assert f"If it uses TLS, use {secured.url}." in str(error)


async def test_another_ca_in_the_file_holds_from_the_next_request(
    secured: Secured, tmp_path: Path
) -> None:
    file, other = tmp_path / "ca.crt", Authority(tmp_path / "tls", "other")
    file.write_bytes(secured.authority.ca.read_bytes())
    trust = BrokerTrust(file)
    assert await secured.declare(secured.url, trust) == 201

    secured.shown.load_cert_chain(other.certificate, other.key)
    assert "not signed by a trusted CA" in str(await secured.refusal(secured.url, trust))
    file.write_text("half of a fi")
    assert "not signed by a trusted CA" in str(await secured.refusal(secured.url, trust))
    file.write_bytes(other.ca.read_bytes())
    assert await secured.declare(secured.url, trust) == 200


@pytest.mark.parametrize("way", ["ca", "environment"])
async def test_start_takes_the_ca_for_the_program_and_for_its_agent(
    way: str, secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    auth = sb.BrokerAuth(ca=secured.authority.ca if way == "ca" else None)
    if way == "environment":
        monkeypatch.setenv("STREAMBROKER_CA", str(secured.authority.ca))
    # All that start() wants of a session.
    spark: Any = SimpleNamespace(dataSource=SimpleNamespace(register=lambda _: None))

    def program() -> tuple[int, str]:
        home = tmp_path / "home"
        pe = sb.start(spark, job="feed", broker=secured.url, data_dir=home, auth=auth)
        try:
            pe.broker().request("PUT", PORT, EXPORT)
            outcome = set_export_properties(pe, "trades", {"kind": "quote"}, wait="programmed")
        finally:
            pe.stop(end_agent=True)
        return outcome.code, outcome.message

    assert await asyncio.to_thread(program) == (0, "")


def test_start_refuses_a_ca_that_is_none_before_anything_is_started(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("no certificate")
    with pytest.raises(TrustError, match=r"it is not PEM\. Correct `BrokerAuth.ca`"):
        sb.start(
            cast(Any, None),
            job="feed",
            data_dir=tmp_path / "home",
            auth=sb.BrokerAuth(ca=tmp_path / "ca.crt"),
        )

    assert not (tmp_path / "home").exists()
