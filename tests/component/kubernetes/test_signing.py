"""An agent and a broker of a real cluster whose API server goes away."""

from __future__ import annotations

from pathlib import Path

from pe_agent.agent.broker_link import BrokerLink
from pe_agent.agent.hosts import Hosts
from pe_agent.tokens import Token
from streambroker_core.model import PeKey
from support.cluster import ApiServer
from support.operators import Agent, make_key, operator
from support.waiting import until


def test_a_registered_agent_registers_and_polls_without_the_api_server(
    own_api: ApiServer, tmp_path: Path
) -> None:
    make_key(own_api, "default")
    pod = Agent(own_api, "default", "feed")
    hosts = Hosts(PeKey.parse("default/feed/0"), tmp_path, progress=lambda *_: None)
    with operator(own_api, tmp_path, "default", "--feeder", "reflector") as broker:
        link = BrokerLink(
            hosts,
            broker.url,
            location="grpc+tcp://127.0.0.1:1",
            instance="ab" * 8,
            host="127.0.0.1",
            token=Token(pod.token),
        )
        link._round()
        own_api.stop()
        until(lambda: broker.call(pod.token, "GET", pod.path)[0] == 503, 40.0, "no review is left")
        link._register_again = 0.0
        polls = link.status()["polls"]
        link._round()

        assert link.status()["polls"] == polls + 1
        link.close()
    hosts.close()
