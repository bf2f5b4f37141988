"""Control tuples from outside in a cluster: whichever replica is asked, and by whom."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from streambroker_core.wire.broker.agent_commands import (
    CommandResult,
    decode_commands,
    encode_results,
)
from support.agents.emitting import LOG, CommandAgent
from support.clusters.api_server import ApiServer
from support.clusters.calls import grant, make_account, token_of
from support.clusters.replicas import Operator, SignedAgent, declare, make_key, operator
from support.processes.waiting import until

STREAMS = "streambroker.io"
TUPLE = {"type": "EndOfDay", "delivery": "END_WINDOW"}
TRADES = "/export/trades/control"


@pytest.fixture
def replicas(api: ApiServer, tmp_path: Path, namespace: str) -> Iterator[list[Operator]]:
    """The one that leads, and another one."""
    make_key(api, namespace)
    with ExitStack() as both:
        found = [both.enter_context(operator(api, tmp_path, namespace)) for _ in range(2)]
        until(lambda: any(one.leads for one in found), 20.0, "one leads")
        yield sorted(found, key=lambda one: not one.leads)


@contextmanager
def fetching(agent: SignedAgent, *brokers: Operator) -> Iterator[CommandAgent]:
    """Have an agent ask the given replicas in turn, as a Service lets it."""
    command_agent, ended = CommandAgent(), threading.Event()

    def run() -> None:
        while not ended.wait(0.02):
            for broker in brokers:
                rounds(agent, broker, command_agent)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield command_agent
    finally:
        ended.set()
        thread.join(30.0)


def rounds(agent: SignedAgent, broker: Operator, command_agent: CommandAgent) -> None:
    done: list[CommandResult] = []
    while True:
        try:
            reported = broker.call(agent.token, "POST", agent.at("/errands"), encode_results(done))
        except OSError:
            return
        commands = decode_commands(reported[1]) if reported[0] == 200 else []
        if not commands:
            return
        done = [command_agent.answer(one) for one in commands]


def ready(api: ApiServer, namespace: str, replicas: list[Operator]) -> SignedAgent:
    """Return the agent of an Export that all replicas know."""
    feed = SignedAgent(api, namespace, "feed")
    feed.register(replicas[0])
    declare(api, namespace)

    def known() -> bool:
        asked = [one.call(feed.token, "GET", feed.at("/export/trades"))[0] for one in replicas]
        return set(asked) == {200}

    until(known, 20.0, "all know the export and whose it is")
    return feed


def test_any_replica_takes_a_tuple_and_any_hands_it_to_the_agent(
    api: ApiServer, replicas: list[Operator], namespace: str
) -> None:
    feed = ready(api, namespace, replicas)
    found: list[tuple[int, Any]] = []
    for asked in replicas:
        for fetched in replicas:
            with fetching(feed, fetched):
                name = {"Request-Id": f"{len(found)}"}
                sent = asked.call(feed.token, "POST", feed.at(TRADES), TUPLE, **name)
                state = asked.call(feed.token, "GET", feed.at(f"{TRADES}/{LOG}/0"))
            found.append((sent[0], sent[1].get("id")))
            found.append((state[0], state[1].get("id")))

    assert found == [(201, f"{LOG}/0"), (200, f"{LOG}/0")] * 4


def test_one_request_at_both_replicas_is_one_tuple(
    api: ApiServer, replicas: list[Operator], namespace: str
) -> None:
    feed = ready(api, namespace, replicas)
    with fetching(feed, *replicas) as agent:
        sent = [
            one.call(feed.token, "POST", feed.at("/control"), TUPLE, **{"Request-Id": "a"})
            for one in (*replicas, replicas[0])
        ]

    assert [(status, answer["seq"]) for status, answer, _ in sent] == [(201, 0)] * 3
    assert len(agent.requests) == 1


@pytest.mark.slow
def test_when_the_one_that_leads_is_killed_the_request_is_repeated_and_makes_one_tuple(
    api: ApiServer, replicas: list[Operator], namespace: str
) -> None:
    leader, other = replicas
    feed = ready(api, namespace, replicas)
    ask = feed.token, "POST", feed.at(TRADES), TUPLE
    with fetching(feed, other) as agent:
        first = other.call(*ask, **{"Request-Id": "a"})
        leader.kill()
        away = other.call(*ask, **{"Request-Id": "b"})
        until(lambda: other.leads, 40.0, "the other leads")
        again = other.call(*ask, **{"Request-Id": "b"})
        same = other.call(*ask, **{"Request-Id": "b"})

    assert (first[0], first[1]["seq"]) == (201, 0)
    assert (away[0], away[1]["code"]) == (503, "AgentAway")
    assert [(one[0], one[1]["seq"]) for one in (again, same)] == [(201, 1)] * 2
    assert len(agent.requests) == 2


GRANTS = {
    # The resource that a caller may patch: whether it may send to importers, and to operators.
    "exports/control": (True, False),
    "exports": (True, False),
    "imports/control": (False, True),
    "imports": (False, True),
    "exports/properties": (False, False),
}


def test_the_clusters_rules_say_who_may_send(
    api: ApiServer, replicas: list[Operator], namespace: str
) -> None:
    feed, asked, taken = ready(api, namespace, replicas), replicas[0], 0
    with fetching(feed, *replicas) as agent:
        for granted, allowed in GRANTS.items():
            person = granted.replace("/", "-")
            make_account(api, namespace, person)
            token = token_of(api, namespace, person)
            user = f"system:serviceaccount:{namespace}:{person}"
            grant(api, f"{person}-{namespace}", user, (STREAMS, granted, "patch"))
            sent = [
                asked.call(token, "POST", feed.at(path), TUPLE)[0] for path in (TRADES, "/control")
            ]
            taken += sum(allowed)

            assert sent == [201 if may else 403 for may in allowed], granted
            assert asked.call(token, "POST", feed.at("/errands"), {})[0] == 403, granted
            assert len(agent.requests) == taken, granted
