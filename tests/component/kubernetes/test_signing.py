"""An agent of a job and a broker of a real cluster, also when its API server is away."""

from __future__ import annotations

from pathlib import Path

from pe_agent.agent.actions import job_actions
from pe_agent.agent.agent import Agent
from pe_agent.agent.broker.link import BrokerLink
from pe_agent.transport.tokens import Token
from streambroker_core.model import PeKey
from support.clusters.api_server import GROUP, ApiServer
from support.clusters.replicas import SignedAgent, make_key, operator
from support.processes.waiting import until


def linked(hosts: Agent, url: str, pod: SignedAgent) -> BrokerLink:
    return BrokerLink(
        hosts,
        url,
        location="grpc+tcp://127.0.0.1:1",
        instance="ab" * 8,
        host="127.0.0.1",
        token=Token(pod.token),
    )


def test_a_registered_agent_registers_and_polls_without_the_api_server(
    own_api: ApiServer, tmp_path: Path
) -> None:
    make_key(own_api, "default")
    pod = SignedAgent(own_api, "default", "feed")
    hosts = Agent(PeKey.parse("default/feed/0"), tmp_path, progress=lambda *_: None)
    with operator(own_api, tmp_path, "default") as broker:
        link = linked(hosts, broker.url, pod)
        link._sync()
        own_api.stop()
        change = pod.token, "PUT", pod.at("/import/in/filter"), {"filter": "price > 1.0"}
        until(lambda: broker.call(*change)[0] == 503, 40.0, "no review is left")
        assert broker.call(pod.token, "GET", pod.path)[0] == 200, "the last review lets it read"
        link._registrar._next = 0.0
        polls = link.status()["polls"]
        link._sync()

        assert link.status()["polls"] == polls + 1
        link.close()
    hosts.close()


def test_what_a_job_declares_belongs_to_what_it_names(
    api: ApiServer, tmp_path: Path, namespace: str
) -> None:
    make_key(api, namespace)
    pod = SignedAgent(api, namespace, "feed")
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "feed-program", "uid": "0-1"}
    hosts = Agent(PeKey.parse(f"{namespace}/feed/0"), tmp_path, progress=lambda *_: None)
    with operator(api, tmp_path, namespace) as broker:
        link = linked(hosts, broker.url, pod)
        link._sync()
        for port, owned in (("own", owner), ("free", None)):
            spec = {"properties": {"kind": port}}
            job_actions(hosts).handle(
                "declare", {"kind": "export", "port": port, "spec": spec, "owner": owned}
            )
        link._sync()
        link.close()
    hosts.close()

    items = api.request("GET", f"{GROUP}/namespaces/{namespace}/exports").body["items"]
    found = {one["spec"]["port"]: one["metadata"].get("ownerReferences") for one in items}
    assert found == {"own": [owner], "free": None}
