"""Control tuples through a real broker to a real agent: at once, and once over every kill."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pe_agent.transport.broker_client import BrokerAnswer, BrokerClient
from streambroker_client.errors import BrokerUnavailableError
from support.agents.agents import AgentProcess, Publishing, rows
from support.brokers.brokers import EXPORT, BrokerProcess
from support.cuts.points import OUTSIDE, VARIABLE, Cut, search_path
from support.processes.ports import free_port
from support.processes.waiting import until

SECONDS = 60.0
PE = "/job/feed/pe/0"
TRADES = f"{PE}/export/trades"
TUPLE = {"type": "EndOfDay", "payload": {"day": "2013-01-01"}, "delivery": "END_WINDOW"}


@dataclass
class Outside:
    """A broker, the agent of job ``feed``, and somebody who has no driver."""

    folder: Path
    port: int
    broker: BrokerProcess
    agent: AgentProcess

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start_broker(self) -> None:
        self.broker = BrokerProcess(self.folder / "broker.db", "--port", str(self.port))
        assert self.broker.url() == self.url

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> BrokerAnswer:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        client = BrokerClient(self.url, "default")
        return client.request(method, path, body, headers=sent, timeout=SECONDS)

    def send(self, path: str, request: str) -> dict[str, Any]:
        """Send the tuple until somebody answers, as a caller is told to."""
        found: list[dict[str, Any]] = []

        def sent() -> bool:
            try:
                found.append(self.ask("POST", path, TUPLE, Request_Id=request).body)
            except BrokerUnavailableError:
                return False
            return True

        until(sent, SECONDS, f"an answer to request {request}")
        return found[0]

    def close(self) -> None:
        self.agent.kill()
        self.broker.kill()


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Outside]:
    """An export with one epoch, and all processes up."""
    port = free_port()
    broker = BrokerProcess(tmp_path / "broker.db", "--port", str(port))
    held = {VARIABLE: str(tmp_path / "cuts"), "PYTHONPATH": search_path(held=True)}
    agent = AgentProcess(
        tmp_path / "feed", "feed", broker=f"http://127.0.0.1:{port}", environment=held
    )
    one = Outside(tmp_path, port, broker, agent)
    try:
        assert broker.url() == one.url
        one.ask("PUT", TRADES, EXPORT)
        agent.start()
        until(lambda: agent.status()["exports"], SECONDS, "the export at its agent")
        Publishing(agent).publish(0, rows(0, 2))
        yield one
    finally:
        one.close()


def test_a_tuple_comes_through_the_broker_at_once_and_its_state_is_reported(
    outside: Outside,
) -> None:
    sent = outside.ask("POST", f"{TRADES}/control", TUPLE)
    own = outside.ask("POST", f"{PE}/control", TUPLE)
    state = outside.ask("GET", f"{TRADES}/control/{sent.body['id']}")
    seq = sent.body["seq"]
    known = outside.agent.client.call("export.emitted", export="trades", seq=seq)

    assert (sent.status, own.status, state.status) == (201, 201, 200)
    assert (sent.body["epoch"], sent.body["stream"]) == (1, known["stream"])
    assert state.body == known
    assert own.body["id"] == outside.agent.client.call("control.entry", seq=0)["id"]
    assert outside.agent.status()["controlLog"]["accepted"] == {"END_WINDOW": 1}


@pytest.mark.parametrize("victim", ["agent", "broker"])
@pytest.mark.parametrize("step", OUTSIDE)
def test_whichever_process_is_killed_at_whichever_step_the_request_makes_one_tuple(
    outside: Outside, step: str, victim: str
) -> None:
    path = f"{PE}/control" if "control log" in step else f"{TRADES}/control"
    cut = Cut(outside.folder / "cuts", step)
    with ThreadPoolExecutor(1) as caller:
        sending: Future[dict[str, Any]] = caller.submit(outside.send, path, "a")
        until(lambda: cut.reached() is not None, SECONDS, step)
        if victim == "agent":
            outside.agent.kill()
            cut.disarm()
            outside.agent.start()
        else:
            outside.broker.kill()
            outside.start_broker()
            cut.disarm()
        sent = sending.result(SECONDS)
    again, other = outside.send(path, "a"), outside.send(path, "b")

    assert (sent["seq"], again["id"], other["seq"]) == (0, sent["id"], 1)
    assert [one.get("epoch") for one in (sent, again, other)] in ([1, 1, 2], [None] * 3)


def test_another_broker_that_knows_nothing_of_the_request_gets_the_same_identity(
    outside: Outside,
) -> None:
    first = outside.send(f"{TRADES}/control", "a")
    outside.broker.kill()
    for one in outside.folder.glob("broker.db*"):
        one.unlink()
    outside.start_broker()
    outside.ask("PUT", TRADES, EXPORT)
    outside.agent.restart()

    def known() -> bool:
        try:
            return bool(outside.ask("GET", f"{TRADES}/control/{first['id']}").body)
        except BrokerUnavailableError:
            return False

    until(known, SECONDS, "the agent at the new broker")
    assert outside.send(f"{TRADES}/control", "a")["id"] == first["id"]
