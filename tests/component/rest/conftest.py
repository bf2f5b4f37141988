"""A broker and a client of its REST interface."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import yaml

from streambroker_operator.broker import Broker
from support.brokers.brokers import EXPORT, IMPORT, TOKENS, Rest, bearer, running_broker

FEED, ALERTS = "/job/feed/pe/0/export/trades", "/job/alerts/pe/0/import/trades"


@pytest.fixture
async def rest(tmp_path: Path) -> AsyncIterator[Rest]:
    """An empty broker."""
    async with running_broker(tmp_path / "broker.db") as (_, client):
        yield client


@pytest.fixture
async def pair(rest: Rest) -> Rest:
    """A broker with one export that one import matches."""
    assert (await rest("PUT", FEED, EXPORT)).status == 201
    assert (await rest("PUT", ALERTS, IMPORT)).status == 201
    return rest


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Rest]:
    """A broker with a pair in the namespace ``default`` and an export in ``lab``."""
    file = tmp_path / "tokens.yaml"
    ops = {"name": "ops", "token": TOKENS["ops"], "role": "admin"}
    job = {"name": "job", "token": TOKENS["job"], "jobs": ["default/alerts"]}
    file.write_text(yaml.safe_dump({"tokens": [ops, job]}))
    file.chmod(0o600)
    broker = Broker(db=tmp_path / "broker.db", port=0, tokens=file)
    await broker.start()
    try:
        async with aiohttp.ClientSession() as session:
            rest = Rest(broker.url, session)
            for path, body in ((FEED, EXPORT), (ALERTS, IMPORT), (FEED + "?namespace=lab", EXPORT)):
                assert (await rest("PUT", path, body, **bearer("ops"))).status == 201
            yield rest
    finally:
        await broker.stop()
