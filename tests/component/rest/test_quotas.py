"""Quotas at a real broker: what is refused, warned of and shown, and what agents are given."""

from __future__ import annotations

from pathlib import Path

import pytest

from streambroker_core.wire.manifests.quotas import read_quotas
from streambroker_operator.cli import main
from support.brokers.brokers import EXPORT, IMPORT, running_broker
from support.brokers.commands import Cli

QUOTAS = read_quotas(
    {
        "default": {"ports": 2, "bytes": "2Gi"},
        "lab": {"readerBytesPerSecond": "1Mi", "jobBytesPerSecond": 5000},
    }
)
FEED, ALERTS = "/job/feed/pe/0/export/trades", "/job/alerts/pe/0/import/trades"


async def test_a_port_above_the_quota_is_refused_and_the_last_one_has_a_warning(
    tmp_path: Path,
) -> None:
    async with running_broker(tmp_path / "broker.db", quotas=QUOTAS) as (_, rest):
        first = await rest("PUT", FEED, {**EXPORT, "buffer": {"maxBytes": "1Gi"}})
        second = await rest("PUT", ALERTS, IMPORT)
        third = await rest("PUT", "/job/more/pe/0/import/trades", IMPORT)
        larger = await rest("PATCH", FEED, {"spec": {"buffer": {"maxBytes": "3Gi"}}})
        elsewhere = await rest("PUT", f"{FEED}?namespace=lab", EXPORT)
        again = await rest("PUT", ALERTS, {**IMPORT, "filter": "price > 1.0"})
        used = (await rest("GET", "/quota")).body

    assert [one.status for one in (first, second, elsewhere, again)] == [201, 201, 201, 200]
    assert "warnings" not in first.body
    assert "uses 2 of the 2 ports of its quota" in second.body["warnings"][0]
    for refused in (third, larger):
        assert (refused.status, refused.code) == (422, "QuotaExceeded")
        assert "have the quota of the broker raised" in refused.body["detail"]
    assert used == {
        "namespace": "default",
        "ports": {"used": 2, "limit": 2},
        "bytes": {"used": 1 << 30, "limit": 2 << 30},
        "readerBytesPerSecond": None,
        "jobBytesPerSecond": None,
    }


async def test_an_agent_gets_the_rates_of_its_namespace_with_its_report(tmp_path: Path) -> None:
    async with running_broker(tmp_path / "broker.db", quotas=QUOTAS) as (_, rest):
        given = []
        for namespace in ("default", "lab"):
            await rest("PUT", f"{FEED}?namespace={namespace}", EXPORT)
            path = f"/job/feed/pe/0/report?namespace={namespace}"
            given.append((await rest("PUT", path, {"exports": {}})).body["rates"])
    assert given == [{"reader": None, "job": None}, {"reader": 1 << 20, "job": 5000}]


async def test_describe_shows_what_is_used_of_a_quota(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with running_broker(tmp_path / "broker.db", quotas=QUOTAS) as (_, rest):
        cli = Cli(rest, capsys, tmp_path)
        for namespace in ("default", "lab"):
            body = {**EXPORT, "buffer": {"maxBytes": "1Gi"}}
            await rest("PUT", f"{FEED}?namespace={namespace}", body)
        _, limited, _ = await cli("describe", "export", "feed/0/trades")
        _, free, _ = await cli("-n", "lab", "describe", "export", "feed/0/trades")
    lines = [line for line in limited.splitlines() if line.startswith("  Quota: ")]
    assert lines == [
        "  Quota:    default uses 1 of 2 ports",
        "  Quota:    default uses 1.0Gi of 2.0Gi bytes",
    ]
    assert "Quota" not in free


def test_wrong_quotas_are_refused_at_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    for text, place in (("{", "JSON"), ('{"jobs": {"port": 1}}', "jobs.port")):
        assert main(["up", "--quotas", text]) == 2
        assert place in capsys.readouterr().err
