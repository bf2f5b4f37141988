"""Own changes and the feed that tells of them once more, on a real API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from streambroker_core.board import Board, BoardEvent
from streambroker_core.model import Import, PortKey
from streambroker_operator.agents.hint_sender import HintSender
from streambroker_operator.kubernetes.client.kubeconfig import Access
from streambroker_operator.kubernetes.client.watch_client import ApiClient
from streambroker_operator.kubernetes.watch.reflector import ReflectorFeeder
from streambroker_operator.runtime.runtime import Runtime
from support.clusters.api_server import ApiServer
from support.clusters.writes import ALERTS, FEED, Others, Replica

WANTED = {**ALERTS, "subscription": 'kind == "trade"'}
WAIT_S = 30.0


class Fed:
    """A broker's runtime behind a reflector."""

    def __init__(self, replica: Replica, runtime: Runtime) -> None:
        self.replica, self.runtime = replica, runtime
        self.key = PortKey.parse(f"{replica.namespace}/alerts/0/trades")
        self._news = asyncio.Event()

    def deliver(self, event: BoardEvent) -> None:
        self.runtime.feed.deliver(event)
        self._news.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until the feed has told enough for something to hold."""
        while not holds():
            self._news.clear()
            await asyncio.wait_for(self._news.wait(), WAIT_S)

    @property
    def import_(self) -> Import | None:
        stored = self.runtime.store.get("Import", self.key)
        if stored is None:
            return None
        assert isinstance(stored.resource, Import)
        return stored.resource


@pytest.fixture
def others(api: ApiServer, namespace: str, tmp_path: Path) -> Others:
    found = Others(api, namespace, tmp_path)
    found.declare("Export", {**FEED, "properties": {"kind": "trade"}})
    found.declare("Import", WANTED)
    return found


@pytest.fixture
async def fed(api: ApiServer, namespace: str, others: Others) -> AsyncIterator[Fed]:
    board, sender = Board(), HintSender()
    replica = Replica(api, namespace, board=board)
    runtime = Runtime(replica.store, sender, board)
    runtime.feed.start()
    access = Access(server=api.url, token=api.tokens["admin"], ca_file=str(api.ca))
    found = Fed(replica, runtime)
    client = ApiClient(access)
    feeding = asyncio.ensure_future(ReflectorFeeder(client, [namespace]).run(found.deliver))
    await found.until(lambda: board.reader.synced)
    yield found
    for session in (client._connection._session, replica._calls._connection._session):
        if session is not None and session.connector is not None:
            # Without a farewell: nobody waits for the server's.
            await session.connector.close(abort_ssl=True)
    feeding.cancel()
    with suppress(asyncio.CancelledError):
        await feeding
    runtime.publisher.close()
    sender.close()
    await replica.close()
    for _ in range(10):  # connections need these turns to close
        await asyncio.sleep(0)


async def test_a_change_is_reported_once_though_the_feed_brings_it_back(fed: Fed) -> None:
    assert fed.import_ is not None
    changed = replace(fed.import_, filter="price > 2.0")
    written = await fed.runtime.put(changed, touched=(("filter",),))
    assert fed.import_.filter == "price > 2.0"
    count, version = fed.runtime.change_log.count, written.stored.version
    await fed.until(lambda: fed.runtime.board.point[1] >= version)
    assert fed.runtime.change_log.count == count
    assert [route.filter for route in fed.runtime.board.routes()] == ["price > 2.0"]


async def test_changes_of_others_come_by_the_feed(fed: Fed, others: Others) -> None:
    others.declare("Import", {**WANTED, "start": "earliest"})
    await fed.until(lambda: fed.import_ is not None and fed.import_.start == "earliest")
    assert fed.import_ is not None
    await fed.runtime.put(replace(fed.import_, filter="price > 2.0"), touched=(("filter",),))
    assert (fed.import_.start, fed.import_.filter) == ("earliest", "price > 2.0")


async def test_what_was_deleted_stays_so_until_somebody_makes_it_again(
    fed: Fed, others: Others
) -> None:
    assert fed.import_ is not None
    uid, point = fed.import_.uid, fed.runtime.board.point[1]
    written = await fed.runtime.delete("Import", fed.key)
    assert written is not None
    assert [cut.reason for cut in written.cut] == ["ImportRemoved"]
    assert fed.import_ is None
    await fed.until(lambda: fed.runtime.board.point[1] > point)
    assert fed.import_ is None
    others.declare("Import", WANTED)
    await fed.until(lambda: fed.import_ is not None)
    assert fed.import_.uid != uid
