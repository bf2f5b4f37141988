"""Why the feed of one kind is lost, which may change while it is."""

from __future__ import annotations

from streambroker_core.board import Event
from streambroker_core.model import RULE
from streambroker_operator.kubernetes.access import Access
from streambroker_operator.kubernetes.client import ApiClient
from streambroker_operator.kubernetes.feed import KindFeed


async def test_the_last_reason_is_the_one_that_is_told_and_followers_end_once() -> None:
    told: list[Event] = []
    client = ApiClient(Access(server="http://127.0.0.1:1"))
    feed = KindFeed(client, RULE, (), told.append)
    lost: list[str] = []
    feed.on_lost = lambda: lost.append(feed.reason)

    feed.lose("Forbidden")
    feed.lose("CrdMissing")
    feed.lose("CrdMissing")

    assert feed.reason == "CrdMissing"
    assert lost == ["Forbidden"]
    assert told == []
