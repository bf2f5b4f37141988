"""Statuses are written as fast as the API server answers; those that agents wait for go first."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from streambroker_operator.kubernetes.apply.registrations import Registrations
from streambroker_operator.kubernetes.client.http_api import Answer
from streambroker_operator.kubernetes.client.objects import Objects
from streambroker_operator.kubernetes.client.rate_limiter import (
    FIRST_IN_FLIGHT,
    MAX_IN_FLIGHT,
    SLOW_S,
    CongestionWindow,
    WriteRateLimiter,
)
from streambroker_operator.kubernetes.status.writer import Name, StatusWrite, StatusWriter
from support.clusters.calls import true
from support.core.resources import board_of, import_of, pe, registration
from support.kubernetes.fake_server import Call, FakeApi
from support.virtual.loop import run

COUNT = 300


class Bench:
    """A writer of statuses with much to do, and agents of as many Imports."""

    def __init__(self, delay_s: float = 0.02, per_s: float = 0.0) -> None:
        self.api = FakeApi(self.answer, delay_s)
        self.wanted: set[Name] = {("Export", str(n)) for n in range(COUNT)}
        names = [f"job{n}" for n in range(COUNT)]
        self.board = board_of(*(replace(import_of(f"{x}/p", uid=x), name=x) for x in names))
        pace = WriteRateLimiter(per_s)
        self.writer = StatusWriter(self.api, self, leads=lambda: True, rate_limiter=pace)
        self.agents = Registrations(Objects(self.api), self.board.reader, pace)

    def build(self, name: Name) -> StatusWrite | None:
        if name not in self.wanted:
            return None
        return StatusWrite(
            kind=name[0], namespace="default", name=name[1], uid=name[1], status={"matches": 1}
        )

    def on_written(self, write: StatusWrite, answer: Mapping[str, Any]) -> None:
        self.wanted.discard((write.kind, write.uid))

    def answer(self, call: Call) -> Answer:
        name = call.path.removesuffix("/status").rpartition("/")[2]
        spec = {"job": name, "port": "p", "subscription": 'kind == "trade"'}
        metadata = {"name": name, "namespace": "default", "uid": name, "resourceVersion": "12"}
        kind = {"apiVersion": "streambroker.io/v1alpha1", "kind": "Import"}
        status = {"status": call.body["status"]} if call.body else {}
        body: Any = {**kind, "metadata": metadata, "spec": spec, **status}
        return Answer(status=200, body=body)

    def run(self, agents: Any) -> tuple[float, float]:
        """Return when the agents' and when all statuses were written."""

        async def main() -> tuple[float, float]:
            for name in list(self.wanted):
                self.writer.offer(name)
            assert await true(lambda: len(self.wanted) < COUNT - 20, 60.0)
            began = asyncio.get_running_loop().time()
            await agents(self.agents)
            first = asyncio.get_running_loop().time() - began
            assert await true(lambda: self.writer.is_idle, 600.0)
            return first, asyncio.get_running_loop().time()

        return run(main(), self.writer.run())

    @property
    def writes(self) -> list[Call]:
        return [call for call in self.api.calls if call.method == "PATCH"]


def test_agents_go_ahead_and_the_other_statuses_wait_for_it() -> None:
    bench = Bench(per_s=40.0)

    async def register(agents: Registrations) -> None:
        jobs = (pe(f"job{n}") for n in range(COUNT))
        await asyncio.gather(*(agents.register(job, registration()) for job in jobs))

    first, last = bench.run(register)
    rest = (2 * COUNT - 20) / 40.0

    assert len(bench.writes) == 2 * COUNT
    assert first < rest / 4
    assert rest <= last <= rest + 3
    assert most_at_once(bench.writes, bench.api.delay_s) <= MAX_IN_FLIGHT


def test_of_requests_that_wait_for_a_place_those_of_agents_get_the_next() -> None:
    pace, order = WriteRateLimiter(), list[str]()

    async def write(name: str, ahead: bool) -> None:
        async with pace.write(has_priority=ahead):
            order.append(name)
            await asyncio.sleep(1.0)

    async def main() -> None:
        names = ["a", "b", "c", "d", "agent"]
        await asyncio.gather(*(write(name, name == "agent") for name in names))

    run(main())

    assert order[:FIRST_IN_FLIGHT] == ["a", "b"]
    assert order[FIRST_IN_FLIGHT] == "agent"


def test_who_stops_waiting_for_a_place_takes_none_and_blocks_nobody() -> None:
    pace = WriteRateLimiter()

    async def main() -> None:
        for _ in range(FIRST_IN_FLIGHT):
            await pace.acquire()
        waiting = [asyncio.ensure_future(pace.acquire()) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        pace.release()
        # This one has its place already, and does not know it yet.
        waiting[1].cancel()
        await asyncio.wait(waiting, timeout=1.0)
        assert [one.cancelled() for one in waiting] == [True, True, False]
        pace.release()
        pace.release()
        await asyncio.wait_for(pace.acquire(), 1.0)

    run(main())


def test_quick_answers_raise_what_is_in_flight_to_the_limit() -> None:
    window, now = CongestionWindow(), 0.0
    for _ in range(1000):
        window.on_answer(now, now + 0.005)
        now += 0.005

    assert window.size == MAX_IN_FLIGHT


def test_slow_answers_and_refusals_halve_what_is_in_flight_once_for_all_that_met_them() -> None:
    window = CongestionWindow()
    for n in range(1000):
        window.on_answer(n * 0.005, (n + 1) * 0.005)

    for _ in range(MAX_IN_FLIGHT):
        window.on_answer(10.0, 10.0 + 2 * SLOW_S)
    assert window.size == MAX_IN_FLIGHT // 2

    window.on_answer(11.0, 11.01, refused=True)
    assert window.size == MAX_IN_FLIGHT // 4


def test_one_request_is_always_in_flight() -> None:
    window = CongestionWindow()
    for n in range(100):
        window.on_answer(float(n), n + 0.5, refused=True)

    assert window.size == 1


def test_an_api_server_far_away_is_not_slow_as_long_as_it_answers_as_it_always_does() -> None:
    window = CongestionWindow()
    for n in range(1000):
        window.on_answer(float(n), n + 0.25)
    assert window.size == MAX_IN_FLIGHT

    window.on_answer(2000.0, 2001.0)
    assert window.size == MAX_IN_FLIGHT // 2


def most_at_once(calls: list[Call], took_s: float) -> int:
    """Return how many of calls that took so long were under way together."""
    return max(sum(one.at <= call.at < one.at + took_s for one in calls) for call in calls)


def test_what_no_agent_waits_for_is_no_faster_than_the_rest() -> None:
    bench = Bench(delay_s=0.001, per_s=40.0)

    async def announce(agents: Registrations) -> None:
        bench.wanted.clear()
        for n in range(COUNT):
            agents.endpoints.on_registered(pe(f"job{n}"), registration(), None, 0)
            live = bench.answer(Call(0.0, "GET", f"/job{n}", {}, {})).body
            agents.observe(live)
        await agents.announce()

    first, _ = bench.run(announce)

    reported = [one for one in bench.writes if one.query["fieldManager"] == "streambroker-agent"]
    assert len(reported) == COUNT
    assert first >= (COUNT - 20) / 40.0
