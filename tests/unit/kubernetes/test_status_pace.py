"""Statuses are written for people and for agents: together no faster than the one may be."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from streambroker_operator.kubernetes.api import Answer
from streambroker_operator.kubernetes.objects import Objects
from streambroker_operator.kubernetes.registrations import Registrations
from streambroker_operator.kubernetes.status_pace import BURST, IN_FLIGHT, PER_S, StatusPace
from streambroker_operator.kubernetes.status_writer import Name, StatusWrite, StatusWriter
from support.api_servers import Call, FakeApi
from support.kube_calls import true
from support.resources import board_of, import_of, pe, registration
from support.virtual_loop import run

COUNT = 300


class Bench:
    """A writer of statuses with much to do, and agents of as many Imports."""

    def __init__(self, delay_s: float = 0.02) -> None:
        self.api = FakeApi(self.answer, delay_s)
        self.wanted: set[Name] = {("Export", str(n)) for n in range(COUNT)}
        names = [f"job{n}" for n in range(COUNT)]
        self.board = board_of(*(replace(import_of(f"{x}/p", uid=x), name=x) for x in names))
        pace = StatusPace()
        self.writer = StatusWriter(self.api, self, leads=lambda: True, pace=pace)
        self.agents = Registrations(Objects(self.api), self.board, pace)

    def draw(self, name: Name) -> StatusWrite | None:
        if name not in self.wanted:
            return None
        return StatusWrite(
            kind=name[0], namespace="default", name=name[1], uid=name[1], status={"matches": 1}
        )

    def wrote(self, write: StatusWrite, answer: Mapping[str, Any]) -> None:
        self.wanted.discard((write.kind, write.uid))

    def answer(self, call: Call) -> Answer:
        name = call.path.removesuffix("/status").rpartition("/")[2]
        spec = {"job": name, "port": "p", "subscription": 'kind == "trade"'}
        metadata = {"name": name, "namespace": "default", "uid": name, "resourceVersion": "12"}
        kind = {"apiVersion": "streambroker.io/v1alpha1", "kind": "Import"}
        status = {"status": call.body["status"]} if call.body else {}
        return Answer(status=200, body={**kind, "metadata": metadata, "spec": spec, **status})

    def run(self, agents: Any) -> tuple[float, float]:
        """Return when the agents' and when all statuses were written."""

        async def main() -> tuple[float, float]:
            for name in list(self.wanted):
                self.writer.offer(name)
            assert await true(lambda: len(self.wanted) < COUNT - BURST, 60.0)
            began = asyncio.get_running_loop().time()
            await agents(self.agents)
            first = asyncio.get_running_loop().time() - began
            assert await true(lambda: self.writer.idle, 600.0)
            return first, asyncio.get_running_loop().time()

        return run(main(), self.writer.run())

    @property
    def writes(self) -> list[Call]:
        return [call for call in self.api.calls if call.method == "PATCH"]


def test_agents_go_ahead_and_the_other_statuses_wait_for_it() -> None:
    bench = Bench()

    async def register(agents: Registrations) -> None:
        jobs = (pe(f"job{n}") for n in range(COUNT))
        await asyncio.gather(*(agents.register(job, registration()) for job in jobs))

    first, last = bench.run(register)
    rest = (2 * COUNT - BURST) / PER_S

    assert len(bench.writes) == 2 * COUNT
    assert first < rest / 4
    assert rest <= last <= rest + 3
    assert most_at_once(bench.writes, bench.api.delay_s) == IN_FLIGHT


def most_at_once(calls: list[Call], took_s: float) -> int:
    """Return how many of calls that took so long were under way together."""
    return max(sum(one.at <= call.at < one.at + took_s for one in calls) for call in calls)


def test_what_no_agent_waits_for_is_no_faster_than_the_rest() -> None:
    bench = Bench(delay_s=0.001)

    async def announce(agents: Registrations) -> None:
        bench.wanted.clear()
        for n in range(COUNT):
            agents._endpoints.registered(pe(f"job{n}"), registration(), None, 0)
            live = bench.answer(Call(0.0, "GET", f"/job{n}", {}, {})).body
            agents.saw("Import", dict(live))
        await agents.announce()

    first, _ = bench.run(announce)

    told = [one for one in bench.writes if one.query["fieldManager"] == "streambroker-agent"]
    assert len(told) == COUNT
    assert first >= (COUNT - BURST) / PER_S
