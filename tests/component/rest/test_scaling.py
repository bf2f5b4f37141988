"""The page about KEDA: its triggers, applied to a broker and agents with a known lag."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from streambroker_operator.broker import Broker
from support.agents.agents import AgentProcess, Publishing, leave_two_unread, rows
from support.brokers.brokers import TOKENS, Rest, bearer
from support.processes.forks import AGENT

PAGE = (Path(__file__).parents[3] / "docs/how-to/scale-by-lag.md").read_text()
READER = "keda-0123456789abcdef"
COLUMNS = [{"name": "n", "type": "bigint"}, {"name": "name", "type": "string"}]
TRADES = {"properties": {"kind": "trade"}, "schema": COLUMNS}
PATIENCE_S = 60.0
QUERY = r'#\((?P<key>\w+)=="(?P<text>[^"]*)"\)(?P<all>#?)'
STEP = re.compile(rf"(?P<by>^|[.|])(?:(?P<name>\w+)|{QUERY})")


class ScalerError(Exception):
    """What makes KEDA keep the replicas."""


class NoNumberError(ScalerError):
    """There is no number at the location."""


def objects(mark: str) -> list[dict[str, Any]]:
    found = re.search(rf"^```yaml {mark}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    return list(yaml.safe_load_all(found[1]))


def trigger(mark: str) -> dict[str, Any]:
    (found,) = objects(mark)[-1]["spec"]["triggers"]
    return dict(found)


def gjson(value: Any, path: str) -> Any:
    """Return what GJSON finds: members, and queries ``#(key=="text")`` for the first, ``…#`` all.

    None stands for null and for nothing. After ``…#`` only ``|`` goes on with the list itself.
    """
    steps = list(STEP.finditer(path))
    assert "".join(step[0] for step in steps) == path
    for before, step in zip([None, *steps], steps, strict=False):
        assert not (before and before["all"]) or step["by"] == "|", "this maps over all"
        if step["name"]:
            value = value.get(step["name"]) if isinstance(value, dict) else None
            continue
        items = value if isinstance(value, list) else []
        found = [item for item in items if item.get(step["key"]) == step["text"]]
        value = found if step["all"] else next(iter(found), None)
    return value


@dataclass
class Scaler:
    """KEDA's trigger ``metrics-api`` of the page, with a token from the Secret that it names."""

    url: str
    session: aiohttp.ClientSession

    async def value(self, token: str) -> float:
        said = trigger("metrics-api")["metadata"]
        path = urlsplit(said["url"])
        headers = {"Authorization": f"Bearer {token}"}
        async with self.session.get(f"{self.url}{path.path}?{path.query}", headers=headers) as got:
            if got.status != 200:
                raise ScalerError(f"api returned {got.status}")
            found = gjson(json.loads(await got.read()), said["valueLocation"])
        if isinstance(found, bool) or not isinstance(found, int | float):
            raise NoNumberError(repr(found))
        return float(found)

    async def until(self, lag: float) -> None:
        """Ask until the value is ``lag``; asking makes agents report each second."""
        async with asyncio.timeout(PATIENCE_S):
            while await self.value_or_none() != lag:
                await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=0.1)

    async def value_or_none(self) -> float | None:
        try:
            return await self.value(READER)
        except NoNumberError:
            return None


@dataclass
class Jobs:
    rest: Rest
    keda: Scaler
    feed: AgentProcess
    alerts: AgentProcess


@pytest.fixture
async def jobs(tmp_path: Path) -> AsyncIterator[Jobs]:
    """A broker with the ports of the page, and the agents of both jobs, which do not run yet."""
    file = tmp_path / "tokens.yaml"
    ops = {"name": "ops", "token": TOKENS["ops"], "role": "admin"}
    keda = {"name": "keda", "token": READER, "role": "reader"}
    file.write_text(yaml.safe_dump({"tokens": [ops, keda]}))
    file.chmod(0o600)
    broker = Broker(db=tmp_path / "broker.db", port=0, tokens=file)
    await broker.start()
    environment = {"STREAMBROKER_TOKEN": TOKENS["ops"], "STREAMBROKER_METRICS_PORT": "0"}
    feed, alerts = (
        AgentProcess(
            tmp_path / job,
            job,
            broker=broker.url,
            environment=environment,
            main=(*AGENT, "--namespace", "jobs"),
        )
        for job in ("feed", "alerts")
    )
    try:
        async with aiohttp.ClientSession() as session:
            rest = Rest(broker.url, session)
            alert = {"subscription": 'kind == "trade"', "start": "earliest"}
            await put(rest, "/job/feed/pe/0/export/trades", TRADES)
            await put(rest, "/job/alerts/pe/0/import/trades", alert)
            yield Jobs(rest, Scaler(broker.url, session), feed, alerts)
    finally:
        feed.kill()
        alerts.kill()
        await broker.stop()


async def put(rest: Rest, path: str, body: dict[str, Any]) -> None:
    answer = await rest("PUT", f"{path}?namespace=jobs", body, **bearer("ops"))
    assert answer.status == 201


def scraped(agent: AgentProcess, query: str) -> float:
    """Return what the query of the page, a sum over a label, is of an agent's own metrics."""
    asked = re.fullmatch(r'sum\((\w+)\{(\w+)="([^"]*)"\}\)', query)
    assert asked is not None
    url = f"http://127.0.0.1:{agent.address['metrics']}/metrics"
    with urllib.request.urlopen(url, timeout=30) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    values = [
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == asked[1] and sample.labels.get(asked[2]) == asked[3]
    ]
    assert values, "Prometheus would have no value"
    return float(sum(values))


async def test_the_value_is_the_lag_once_the_agent_has_reported_and_a_query_has_read(
    jobs: Jobs,
) -> None:
    with pytest.raises(NoNumberError, match="None"):
        await jobs.keda.value(READER)

    await asyncio.to_thread(jobs.feed.start)
    await jobs.keda.until(0)

    # Another export of the import, first in the list, whose agent has reported nothing.
    await asyncio.to_thread(jobs.alerts.start)
    reading = asyncio.ensure_future(asyncio.to_thread(leave_two_unread, jobs.feed, jobs.alerts))
    await jobs.keda.until(20)
    await reading
    await put(jobs.rest, "/job/archive/pe/0/export/trades", TRADES)
    top = (await jobs.rest("GET", "/top?namespace=jobs", **bearer("ops"))).body["routes"]
    query = trigger("prometheus")["metadata"]["query"]

    assert [route["lagRows"] for route in top] == [None, 20]
    assert await jobs.keda.value(READER) == 20
    assert await asyncio.to_thread(scraped, jobs.feed, query) == 20

    # The importing job is away, as with no replica: the rows that it has not read still count.
    jobs.alerts.kill()
    await asyncio.to_thread(Publishing(jobs.feed).publish, 3, rows(30, 5))
    await jobs.keda.until(25)


async def test_a_wrong_token_is_refused(jobs: Jobs) -> None:
    with pytest.raises(ScalerError, match="api returned 401"):
        await jobs.keda.value("wrong-0123456789abcdef")


def test_the_objects_of_the_page_belong_together() -> None:
    authentication, by_broker = objects("metrics-api")
    (by_prometheus,) = objects("prometheus")
    (secret,) = authentication["spec"]["secretTargetRef"]

    assert trigger("metrics-api")["authenticationRef"] == {
        "name": authentication["metadata"]["name"]
    }
    assert secret["parameter"] == "token"
    assert f"create secret generic {secret['name']} " in PAGE
    for scaled in (by_broker, by_prometheus):
        (metadata,) = (one["metadata"] for one in scaled["spec"]["triggers"])
        assert scaled["spec"]["maxReplicaCount"] == 1
        assert {type(value) for value in metadata.values()} == {str}  # KEDA takes texts alone.
