"""Capabilities end: what the exporter's agent takes then, and how an importer's gets new ones."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pe_agent.agent.agent import Agent
from pe_agent.agent.broker import capability_renewal
from pe_agent.agent.broker.capability_renewal import first_expiry
from pe_agent.agent.broker.link import BrokerLink
from pe_agent.agent.server.peer_access import AuthorizedRead, PeerAccess
from pe_agent.transport.broker_client import BrokerAnswer
from streambroker_core.errors import CapabilityError
from streambroker_core.ledger.plan import PlanRequest
from streambroker_core.model import PeKey, PortKey
from streambroker_core.wire.agent_rpc.codec import decode
from streambroker_core.wire.agent_rpc.peer import PeerCredentials
from streambroker_core.wire.broker import capability
from streambroker_core.wire.broker.capability import DAY_S
from streambroker_core.wire.broker.view import (
    ExportPort,
    ExportRoute,
    ImportPort,
    ImportRoute,
    View,
    encode,
    with_version,
)
from support.agents.exports import plan_one

EXPORT, IMPORT = "default/feed/0/trades", "default/alerts/0/trades"
KEY = b"k" * 32


def token(ends: float | None) -> str:
    return capability.sign(
        KEY,
        reader_import=IMPORT,
        export=EXPORT,
        filter_allowed=False,
        policy="wait",
        expires=None if ends is None else int(ends),
    )


# -- the exporter's agent ------------------------------------------------------------------------


@pytest.fixture
def feed(tmp_path: Path) -> Iterator[Agent]:
    hosts = Agent(PeKey.parse("default/feed/0"), tmp_path, progress=lambda *_: None)
    hosts.key = KEY
    routed(hosts, IMPORT)
    yield hosts
    hosts.close()


def routed(hosts: Agent, *imports: str) -> None:
    routes = tuple(ExportRoute(import_=PortKey.parse(i), uid=i) for i in imports)
    port = ExportPort(uid="e", stream_id="s", routes=routes)
    hosts.routes.apply(with_version(View(pe=hosts.pe, exports={"trades": port})))


def authorize(hosts: Agent, shown: dict[str, Any], *, planned: bool = False) -> AuthorizedRead:
    return PeerAccess(hosts).authorize(decode(PeerCredentials, shown), planned=planned)


def opens(hosts: Agent, ends: float | None) -> bool:
    asked = {"export": EXPORT, "import": IMPORT, "reader": "new", "capability": token(ends)}
    try:
        authorize(hosts, asked)
    except CapabilityError as error:
        if error.reason != "expired":
            raise
        return False
    return True


def test_a_capability_that_has_ended_opens_nothing_once_the_broker_was_heard_of(
    feed: Agent,
) -> None:
    now = time.time()
    feed.broker_last_seen = now
    assert not opens(feed, now - 10)
    assert opens(feed, now + 1000)
    assert opens(feed, None)


def test_while_the_broker_is_away_it_opens_what_the_own_routes_have(feed: Agent) -> None:
    now = time.time()
    for heard in (None, now - 20):
        feed.broker_last_seen = heard
        assert opens(feed, now - 10)
    routed(feed, "default/other/0/trades")
    assert not opens(feed, now - 10)
    assert opens(feed, now + 1000)


def test_one_that_is_not_genuine_opens_nothing_whatever_it_says(feed: Agent) -> None:
    feed.key = b"x" * 32
    for ends in (None, 0, time.time() + 1000):
        asked = {"export": EXPORT, "import": IMPORT, "capability": token(ends)}
        with pytest.raises(CapabilityError, match="forged"):
            authorize(feed, asked)


def test_a_known_reader_shows_a_capability_or_its_pass_and_its_id_alone_is_nothing(
    feed: Agent,
) -> None:
    export = feed.exports.get(EXPORT)
    asked: dict[str, Any] = {"export": EXPORT, "import": IMPORT, "reader": "known"}
    ask = PlanRequest(reader="known", import_=IMPORT, policy="wait", start="latest", positions={})
    plan_one(export, ask, filter_=None, columns=None)
    own = {"pass": PeerAccess(feed).pass_for(EXPORT, IMPORT, "known")}
    others = {"pass": PeerAccess(feed).pass_for(EXPORT, IMPORT, "other")}
    for shown in (None, token(None) + "x"):
        for more in ({}, others):
            with pytest.raises(CapabilityError):
                authorize(feed, {**asked, **more, "capability": shown}, planned=True)
        with pytest.raises(CapabilityError):
            authorize(feed, {**asked, **own, "capability": shown})
        assert not authorize(feed, {**asked, **own, "capability": shown}, planned=True).granted
    assert authorize(feed, {**asked, "capability": token(None)}).granted
    with pytest.raises(CapabilityError):
        authorize(feed, {**asked, **others, "reader": "other", "capability": None}, planned=True)

    routed(feed, "default/other/0/trades")
    assert authorize(feed, {**asked, **own, "capability": None}).granted
    with pytest.raises(CapabilityError):
        authorize(feed, {**asked, "capability": None})


# -- the importer's agent ------------------------------------------------------------------------


@pytest.fixture
def link(tmp_path: Path) -> Iterator[BrokerLink]:
    """A link to a broker that is not there."""
    hosts = Agent(PeKey.parse("default/alerts/0"), tmp_path, progress=lambda *_: None)
    made = BrokerLink(
        hosts,
        "http://127.0.0.1:9",
        location="grpc+tcp://127.0.0.1:1",
        instance="ab" * 8,
        host="127.0.0.1",
    )
    yield made
    made.close()
    hosts.close()


def view(*ends: float | None) -> View:
    routes = tuple(
        ImportRoute(
            export=PortKey.parse(f"default/feed/{n}/trades"),
            uid=f"e{n}",
            capability=token(end),
            issuer="x",
        )
        for n, end in enumerate(ends)
    )
    port = ImportPort(uid="i", subscription="a == 1", routes=routes)
    return with_version(View(pe=PeKey.parse("default/alerts/0"), imports={"trades": port}))


def test_a_view_whose_capabilities_run_out_is_asked_for_as_a_whole(
    link: BrokerLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, heard = time.time(), []
    answers = [view(now + 5 * DAY_S, now + 2 * DAY_S), view(now + 7 * DAY_S, now + 6 * DAY_S)]

    def request(*_: Any, headers: dict[str, str], **__: Any) -> BrokerAnswer:
        if "If-None-Match" in headers:
            return BrokerAnswer(304, {}, None)
        return BrokerAnswer(200, {}, encode(answers.pop(0)))

    monkeypatch.setattr(link._client, "request", request)
    link._agent.routes.add_listener(lambda taken: heard.append(first_expiry(taken)))
    link._poll()
    link._poll()
    assert heard == [int(now + 2 * DAY_S)]
    monkeypatch.setattr(capability_renewal, "wall_clock", lambda: now + 2 * DAY_S - 0.19 * DAY_S)
    link._poll()
    link._poll()
    assert heard == [int(now + 2 * DAY_S), int(now + 6 * DAY_S)]
    kept = link._agent.routes
    kept.load()
    assert kept.view is not None
    assert first_expiry(kept.view) == int(now + 6 * DAY_S)


def test_capabilities_without_an_end_are_not_asked_for_again(
    link: BrokerLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    link._agent.routes.apply(view(None, None))
    monkeypatch.setattr(capability_renewal, "wall_clock", lambda: 10.0**12)
    assert not link._renewal.is_due(view(None))
    assert link._renewal.is_due(view(None, 10.0**11))


def test_not_all_agents_ask_at_once(link: BrokerLink) -> None:
    assert 0.2 * DAY_S <= link._renewal._margin <= 0.9 * DAY_S
