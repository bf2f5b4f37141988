"""Lineage of replicas over a real API server: one sends, and the next one after it has gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from streambroker_operator import lineage
from streambroker_operator.lineage import LineageTarget
from support.brokers.lineage import name_of, receiver
from support.clusters.api_server import ApiServer
from support.clusters.replicas import Operator, declare, make_key, operator_here
from support.processes.waiting import until


async def test_one_of_two_replicas_sends_and_the_other_takes_over(
    api: ApiServer, tmp_path: Path, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lineage, "WINDOW_S", 0.2)
    make_key(api, namespace)
    names = [f"{namespace}.{name}" for name in ("feed.0.trades", "feed.0", "alerts.0")]
    async with receiver() as got, AsyncExitStack() as both:
        stops = {}
        for pod in ("a", "b"):
            own = await both.enter_async_context(AsyncExitStack())
            running = replica(api, tmp_path, namespace, LineageTarget(url=got.url), pod)
            stops[await own.enter_async_context(running)] = own
        declare(api, namespace)
        leader, other = await asyncio.to_thread(sorted_by_lead, list(stops))
        reader = await got.until_named(names[2], 1)
        while not reader["inputs"]:  # It was sent before its Export was there.
            reader = await got.until_named(names[2], len(got.by_name[names[2]]) + 1)
        assert {name_of(one) for one in got.events} <= set(names)
        assert await asyncio.to_thread(sent, leader) == len(got.events)
        assert await asyncio.to_thread(sent, other) == 0

        before = {name: len(events) for name, events in got.by_name.items()}
        await stops[leader].aclose()
        for name in names:
            await got.until_named(name, before[name] + 1)
        assert {name_of(one) for one in got.events[-3:]} == set(names)
        assert await asyncio.to_thread(sent, other) == 3


async def test_a_replica_that_cannot_send_says_so_and_stays_ready(
    api: ApiServer, tmp_path: Path, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lineage, "WINDOW_S", 0.2)
    make_key(api, namespace)
    target = LineageTarget(url="http://127.0.0.1:1/api/v1/lineage")
    async with replica(api, tmp_path, namespace, target, "a") as broker:
        declare(api, namespace)
        failed = 'streambroker_lineage_events_total{result="failed"}'
        await asyncio.to_thread(until, lambda: value(broker, failed) > 0, 60.0, "it failed")

        status, text = await asyncio.to_thread(broker.probe, "/readyz")
        assert status == 200
        assert "[+]lineage not sent: Cannot connect to host 127.0.0.1:1" in text
        assert await asyncio.to_thread(value, broker, "streambroker_lineage_pending") > 0


@asynccontextmanager
async def replica(
    api: ApiServer, folder: Path, namespace: str, target: LineageTarget, pod: str
) -> AsyncIterator[Operator]:
    """Run a replica in a thread of its own, so that the receiver's loop goes on."""
    running = operator_here(api, folder, namespace, pod=pod, lineage=target)
    found = await asyncio.to_thread(running.__enter__)
    try:
        yield found
    finally:
        await asyncio.to_thread(running.__exit__, None, None, None)


def sorted_by_lead(replicas: list[Operator]) -> list[Operator]:
    until(lambda: any(one.leads for one in replicas), 60.0, "one leads")
    return sorted(replicas, key=lambda one: not one.leads)


def sent(replica: Operator) -> float:
    return value(replica, 'streambroker_lineage_events_total{result="sent"}')


def value(replica: Operator, sample: str) -> float:
    lines = replica.probe("/metrics")[1].splitlines()
    return next(float(one.rpartition(" ")[2]) for one in lines if one.startswith(f"{sample} "))
