"""The link to the broker outlives whatever one round meets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pe_agent.agent.broker_link import BrokerLink
from pe_agent.agent.hosts import Hosts
from streambroker_core.model import PeKey
from support.waiting import until


@pytest.fixture
def link(tmp_path: Path) -> Iterator[BrokerLink]:
    """A link to a broker that is not there."""
    hosts = Hosts(PeKey.parse("default/feed/0"), tmp_path, progress=lambda *_: None)
    link = BrokerLink(
        hosts,
        "http://127.0.0.1:9",
        location="grpc+tcp://127.0.0.1:1",
        instance="ab" * 8,
        host="127.0.0.1",
    )
    yield link
    link.close()
    hosts.close()


def test_a_round_that_fails_for_whatever_reason_is_followed_by_another(
    link: BrokerLink, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rounds: list[int] = []

    def round_() -> None:
        rounds.append(len(rounds))
        link.wake()
        if len(rounds) < 3:
            raise OSError("no space left on device")

    monkeypatch.setattr(link, "_round", round_)
    link.start()
    until(lambda: len(rounds) >= 3, 10, "a third round")

    assert "no space left on device" in caplog.text
