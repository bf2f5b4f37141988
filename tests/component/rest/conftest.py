"""A broker and a client of its REST interface."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.brokers import EXPORT, IMPORT, Rest, running_broker


@pytest.fixture
async def rest(tmp_path: Path) -> AsyncIterator[Rest]:
    """An empty broker."""
    async with running_broker(tmp_path / "broker.db") as (_, client):
        yield client


@pytest.fixture
async def pair(rest: Rest) -> Rest:
    """A broker with one export that one import matches."""
    assert (await rest("PUT", "/job/feed/pe/0/export/trades", EXPORT)).status == 201
    assert (await rest("PUT", "/job/alerts/pe/0/import/trades", IMPORT)).status == 201
    return rest
