"""Why the feed of one kind is lost, which may change while it is."""

from __future__ import annotations

import logging

import pytest

from streambroker_core.board import BoardEvent
from streambroker_core.model import RULE
from streambroker_operator.kubernetes.client.kubeconfig import Access
from streambroker_operator.kubernetes.client.watch_client import ApiClient, ApiError
from streambroker_operator.kubernetes.watch.informer import KindFeed


async def test_the_last_reason_is_the_one_that_is_reported_and_followers_end_once() -> None:
    reported: list[BoardEvent] = []
    client = ApiClient(Access(server="http://127.0.0.1:1"))
    feed = KindFeed(client, RULE, (), reported.append)
    lost: list[str] = []
    feed.on_lost = lambda: lost.append(feed.health.reason)

    feed.mark_lost("Forbidden")
    feed.mark_lost("CrdMissing")
    feed.mark_lost("CrdMissing")

    assert feed.health.reason == "CrdMissing"
    assert lost == ["Forbidden"]
    assert reported == []


async def test_one_line_says_that_a_kind_is_followed_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    feed = KindFeed(ApiClient(Access(server="http://127.0.0.1:1")), RULE, (), lambda _: None)

    feed.health.mark_alive()
    for _ in range(3):
        feed.health.on_failed(ApiError(0, "no answer"))
    for _ in range(3):
        feed.health.mark_alive()

    kind = "PatternProcessors"
    assert caplog.messages == [f"watching {kind} failed: no answer", f"watching {kind} works again"]
