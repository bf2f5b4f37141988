"""An agent that ends in order: who waits is let go once, and who fails is not refused."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pe_agent.agent.actions import job_actions
from pe_agent.agent.agent import Agent
from pe_agent.agent.server.flight_service import AgentService
from pe_agent.transport.agent_client import AgentClient
from streambroker_core.model import PeKey
from streambroker_core.wire.broker import capability
from support.agents.agents import error_code
from support.processes.ports import free_port
from support.processes.waiting import until

SECONDS = 10.0
TOKEN = "token"
KEY, EXPORT, IMPORT = b"key", "default/feed/0/watched", "default/alerts/0/trades"
OPENS = capability.sign(
    KEY, reader_import=IMPORT, export=EXPORT, filter_allowed=True, policy="wait"
)
LONG: dict[str, dict[str, Any]] = {
    "view": {"seen": None, "wait": SECONDS},
    "schema": {"port": "in", "wait": SECONDS},
    "reader.heads": {"import": "in", "wait": SECONDS},
    "peer.watch": {
        "exports": {
            EXPORT: {"heads": {}, "imports": {IMPORT: {"capability": OPENS, "readers": {}}}}
        },
        "wait": SECONDS,
        "lease": 5.0,
    },
    "reader.next": {
        "import": "in",
        "session": "one",
        "columns": ["n"],
        "max_bytes": 1,
        "wait": SECONDS,
    },
}


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Agent]:
    hosts = Agent(PeKey.parse("default/feed/0"), tmp_path, progress=lambda *_: None)
    job_actions(hosts).handle("declare", {"kind": "import", "port": "in", "spec": None})
    job_actions(hosts).handle("declare", {"kind": "export", "port": "watched", "spec": None})
    hosts.key = KEY
    yield hosts
    hosts.close()


@pytest.fixture
def client(hosts: Agent) -> Iterator[AgentClient]:
    service = AgentService("grpc://127.0.0.1:0", hosts, TOKEN)
    yield AgentClient(f"grpc+tcp://127.0.0.1:{service.port}", TOKEN)
    service.shutdown()


def test_whatever_fails_while_the_agent_ends_may_be_tried_again(
    hosts: Agent, client: AgentClient
) -> None:
    publish: dict[str, Any] = {"query": "q", "run": "r", "batch": 0, "stages": [], "ddl": None}
    job_actions(hosts).handle("declare", {"kind": "export", "port": "out", "spec": None})
    admit: dict[str, Any] = {"query": "q", "run": "r", "batch": 0, "ddl": "n bigint"}
    client.call("publisher.admit", export="out", renewed=None, **admit)
    assert error_code(client.call, "publisher.admit", export="none", renewed=None, **admit) == (
        "UnknownPort"
    )
    hosts.notifier.close()
    hosts.store.close()
    assert error_code(client.call, "publisher.publish", export="out", **publish) == (
        "AgentUnreachable"
    )


@pytest.mark.parametrize("action", LONG)
def test_who_waits_is_let_go_when_the_agent_ends_and_does_not_turn_round(
    hosts: Agent, client: AgentClient, action: str
) -> None:
    body = dict(LONG[action])
    if action == "reader.next":
        body["start"] = client.call(action, **{**body, "start": None, "wait": 0})["offset"]
    looked = []
    seen = hosts.notifier.version

    def looking(keys: Any) -> int:
        looked.append(keys)
        return seen(keys)

    hosts.notifier.version = looking  # type: ignore[method-assign]
    asked = threading.Thread(target=lambda: error_code_or_answer(client, action, body))
    asked.start()
    until(hosts.notifier.waiters, SECONDS, "it waits")
    before = len(looked)
    hosts.notifier.close()
    asked.join(SECONDS)
    assert not asked.is_alive()
    assert len(looked) <= before + 1


def error_code_or_answer(client: AgentClient, action: str, body: dict[str, Any]) -> None:
    try:
        client.call(action, timeout=2 * SECONDS, **body)
    except Exception as error:
        assert getattr(error, "code", "") == "AgentUnreachable"  # noqa: PT017


def test_an_agent_listens_once_it_can_answer(hosts: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """Callers of an agent that was killed wait for the next one, and call it at once."""
    port, found = free_port(), []

    def look(agent: Agent) -> Any:
        with socket.socket() as caller:
            found.append(caller.connect_ex(("127.0.0.1", port)))
        return job_actions(agent)

    monkeypatch.setattr("pe_agent.agent.server.flight_service.job_actions", look)
    service = AgentService(f"grpc://127.0.0.1:{port}", hosts, TOKEN)
    try:
        assert found == [errno.ECONNREFUSED]
        assert "exports" in AgentClient(f"grpc+tcp://127.0.0.1:{port}", TOKEN).call("status")
    finally:
        service.shutdown()
