"""How long a change of a filter takes from the REST request to the agent's route table."""

from __future__ import annotations

import itertools
import json
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import rows
from links import ANSWER, PORT
from measure import Figures, Settings, quantile, turns
from processes import Agent, Broker, Child

from pe_agent.transport.broker_client import BrokerClient, pe_path
from streambroker_core.model.schema import parse_ddl, to_items
from streambroker_core.wire.broker.registration import POLL_S

PURPOSE = "REST filter change -> routes of 50 agents, 100 changes/s, by hint and by the next poll"
AGENTS = 50
PROCESSES = 5
CHANGES_PER_SECOND = 100
SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
VARIANTS = ("hints", "no hints", "processes")
SECONDS = {"hints": 10.0, "no hints": POLL_S * 1.1, "processes": 10.0}
QUICK_S = 2.0
Found = Callable[[str, int], "float | None"]


class Watched:
    """One agent in a process of its own, and when its view had each generation of its import."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.seen: list[tuple[int, float]] = []
        self.ended = threading.Event()
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        seen, newest = "", 0
        while not self.ended.is_set():
            answer = self.agent.client.call("view", seen=seen, wait=1.0)
            now = time.perf_counter()
            seen = answer["version"]
            ports = (answer["view"] or {}).get("imports", {})
            generation = ports.get(PORT, {}).get("generation", 0)
            if generation > newest:
                newest = generation
                self.seen.append((generation, now))


class Links(Child):
    """Many agents in one process; see :mod:`links`."""

    def __init__(self, place: Path, url: str, jobs: list[str]) -> None:
        command = [sys.executable, "-m", "links", url, str(place), *jobs]
        super().__init__(command, place / "links.log")
        self.line("ready")

    def ask(self, order: str) -> Any:
        """Give an order and wait for its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(order + "\n")
        self.process.stdin.flush()
        return json.loads(self.line(ANSWER))


class Bench:
    """A broker, an exporting agent, and importing ones with a route each."""

    def __init__(self, settings: Settings) -> None:
        self.broker = Broker(settings.place)
        self.client = BrokerClient(self.broker.url, "default")
        self._filters = itertools.count(1)
        self.takers = [f"taker-{number}" for number in range(AGENTS)]
        self.links = Links(settings.place, self.broker.url, ["feed", *self.takers])
        schema = to_items(parse_ddl(rows.DDL))
        self._declare("feed", "export/out", {"properties": {"kind": "out"}, "schema": schema})
        for job in self.takers:
            spec = {"subscription": 'kind == "out"', "filter": "a > 0"}
            self._declare(job, f"import/{PORT}", spec)
        self.watched: dict[str, Watched] = {}
        for number in range(PROCESSES):
            agent = Agent(settings.place, f"alone-{number}", self.broker.url)
            agent.import_(PORT, subscription='kind == "out"', filter="a > 0")
            agent.await_route(PORT)
            self.watched[f"alone-{number}"] = Watched(agent)

    def _declare(self, job: str, port: str, spec: dict[str, Any]) -> None:
        self.client.request("PUT", f"{pe_path(job, 0)}/{port}", spec)

    def end(self) -> None:
        """End all processes."""
        for one in self.watched.values():
            one.ended.set()
            one.agent.end()
        self.links.end()
        self.broker.end()

    def measure(self, variant: str, seconds: float) -> list[float]:
        """Change filters; return seconds until each change was in its agent's routes."""
        if variant == "processes":
            return self._changes(list(self.watched), seconds, self._of_processes)
        self.links.ask("hints on" if variant == "hints" else "hints off")
        return self._changes(self.takers, seconds, self._of_links)

    def _of_processes(self) -> dict[str, list[tuple[int, float]]]:
        return {job: list(one.seen) for job, one in self.watched.items()}

    def _of_links(self) -> dict[str, list[tuple[int, float]]]:
        found: dict[str, list[tuple[int, float]]] = self.links.ask("seen")
        return found

    def _changes(
        self,
        jobs: list[str],
        seconds: float,
        seen: Callable[[], dict[str, list[tuple[int, float]]]],
    ) -> list[float]:
        due = time.perf_counter()
        sent: list[tuple[str, float, int]] = []

        def change(number: int, at: float) -> None:
            time.sleep(max(0.0, at - time.perf_counter()))
            job = jobs[number % len(jobs)]
            path = f"{pe_path(job, 0)}/import/{PORT}/filter"
            began = time.perf_counter()
            answer = self.client.request("PUT", path, {"filter": f"a > {next(self._filters)}"})
            sent.append((job, began, int(answer.body["generation"])))

        with ThreadPoolExecutor(8) as pool:
            orders = [
                pool.submit(change, number, due + number / CHANGES_PER_SECOND)
                for number in range(int(seconds * CHANGES_PER_SECOND))
            ]
        for order in orders:
            order.result()
        return took_of(sent, seen)


def took_of(
    sent: list[tuple[str, float, int]], seen: Callable[[], dict[str, list[tuple[int, float]]]]
) -> list[float]:
    """Return the seconds from sending each change until its agent had it, once all have theirs.

    Args:
        sent: of each its job, when it was sent, and its generation.
        seen: returns by job what was applied: generation and time.
    """
    deadline = time.perf_counter() + 2 * POLL_S
    while True:
        found = seen()
        took = [_took(found[job], generation, began) for job, began, generation in sent]
        known = [seconds for seconds in took if seconds is not None]
        if len(known) == len(sent):
            return known
        if time.perf_counter() > deadline:
            raise RuntimeError(f"{len(sent) - len(known)} changes were not seen in 60 s")
        time.sleep(0.1)


def _took(seen: list[tuple[int, float]], generation: int, began: float) -> float | None:
    at = next((at for known, at in seen if known >= generation), None)
    return None if at is None else at - began


def run(settings: Settings) -> Figures:
    """Measure; a round without hints covers a whole poll interval."""
    figures = Figures()
    bench = Bench(settings)
    try:
        for variant in ("hints", "processes"):
            bench.measure(variant, QUICK_S)
        for round_ in range(1, settings.rounds + 1):
            figures.yardstick()
            for name in turns(VARIANTS, round_):
                took = bench.measure(name, QUICK_S if settings.quick else SECONDS[name])
                for label, share in SHARES.items():
                    figures.add(f"{name}: {label}", quantile(took, share) * 1e3, "ms")
            settings.say(f"round {round_} of {settings.rounds} done")
    finally:
        bench.end()
    figures.ratio("hints / no hints, p50", "hints: p50", "no hints: p50")
    figures.note(
        f"{CHANGES_PER_SECOND} changes/s in turn over {AGENTS} importing agents with a route each"
        " to one exporter, whose view changes every time; from sending the PUT to the agent's"
        " route table (file flushed) with that generation or a later one."
    )
    figures.note(
        f"The {AGENTS} agents and the exporter are one process: the real link and route table of"
        f" each, no rows. `processes` is the same with {PROCESSES} agents in processes of their"
        " own. Broker, agents and the client are on the same cores."
    )
    figures.note(
        f"no hints: the agents gave an address where nobody listens and poll every {POLL_S} s."
    )
    return figures
