"""How long a change of a filter takes from the REST request to the agent's route table."""

from __future__ import annotations

import itertools
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from measure import Figures, Settings, quantile, turns
from processes import Agent, Broker

from pe_agent.agent.store import Store
from pe_agent.broker_client import BrokerClient, pe_path
from streambroker_core.wire.registration import POLL_S

PURPOSE = "REST filter change -> agent's view, 100 changes/s, by hint and by the next poll"
AGENTS = 5
CHANGES_PER_SECOND = 100
SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
VARIANTS = ("hints", "no hints")


class Watched:
    """One importing agent, and when each generation of its import was first seen in its view."""

    def __init__(self, agent: Agent, port: str) -> None:
        self.agent, self.port = agent, port
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
            generation = ports.get(self.port, {}).get("generation", 0)
            if generation > newest:
                newest = generation
                self.seen.append((generation, now))

    def when(self, generation: int) -> float | None:
        """Return when a generation, or a later one, was first seen."""
        return next((at for known, at in list(self.seen) if known >= generation), None)


class Bench:
    """A broker, an exporting agent and importing ones with a route each."""

    def __init__(self, settings: Settings) -> None:
        self.broker = Broker(settings.place)
        self.client = BrokerClient(self.broker.url, "default")
        self.feed = Agent(settings.place, "feed", self.broker.url)
        self.feed.export("out")
        self.watched = []
        self._filters = itertools.count(1)
        for number in range(AGENTS):
            agent = Agent(settings.place, f"taker-{number}", self.broker.url)
            agent.import_("in", subscription='kind == "out"', filter="a > 0")
            agent.await_route("in")
            self.watched.append(Watched(agent, "in"))

    def end(self) -> None:
        """End all processes."""
        for one in self.watched:
            one.ended.set()
            one.agent.end()
        self.feed.end()
        self.broker.end()

    def hints(self, on: bool, known: dict[str, str]) -> None:
        """Register the agents anew, with the address for hints they had, or without one."""
        for one in self.watched:
            _, job, pe = one.agent.pe.split("/")
            self.client.request(
                "PUT",
                pe_path(job, int(pe)),
                {
                    "instance": _instance(one.agent.home),
                    "location": one.agent.client.location,
                    "hint": known[job] if on else None,
                },
            )

    def changes(self, seconds: float) -> list[float]:
        """Change filters at the given rate; return seconds until each was in the agent's view."""
        due = time.perf_counter()
        sent: list[tuple[Watched, float, int]] = []

        def change(number: int, at: float) -> None:
            time.sleep(max(0.0, at - time.perf_counter()))
            one = self.watched[number % AGENTS]
            path = f"{pe_path(one.agent.pe.split('/')[1], 0)}/import/{one.port}/filter"
            began = time.perf_counter()
            answer = self.client.request("PUT", path, {"filter": f"a > {next(self._filters)}"})
            sent.append((one, began, int(answer.body["generation"])))

        with ThreadPoolExecutor(8) as pool:
            orders = [
                pool.submit(change, number, due + number / CHANGES_PER_SECOND)
                for number in range(int(seconds * CHANGES_PER_SECOND))
            ]
        for order in orders:
            order.result()
        return self._until_seen(sent)

    def _until_seen(self, sent: list[tuple[Watched, float, int]]) -> list[float]:
        took = []
        deadline = time.perf_counter() + 60.0
        for one, began, generation in sent:
            while (at := one.when(generation)) is None and time.perf_counter() < deadline:
                time.sleep(0.01)
            if at is None:
                raise RuntimeError(f"generation {generation} was not seen in 60 s")
            took.append(at - began)
        return took


def _instance(home: Path) -> str:
    store = Store(home / "state.sqlite")
    try:
        return str(store.get("instance"))
    finally:
        store.close()


def _hints(database: Path) -> dict[str, str]:
    """Return where the broker sends each job's hints."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as db:
        return dict(db.execute("SELECT job, hint FROM pes"))


def run(settings: Settings) -> Figures:
    """Measure; a round without hints covers a whole poll interval."""
    figures = Figures()
    bench = Bench(settings)
    known = _hints(settings.place / "broker.sqlite")
    seconds = {"hints": 10.0, "no hints": 5.0 if settings.quick else POLL_S * 1.1}
    try:
        bench.changes(2.0)
        for round_ in range(1, settings.rounds + 1):
            figures.yardstick()
            for name in turns(VARIANTS, round_):
                bench.hints(name == "hints", known)
                took = bench.changes(seconds[name])
                for label, share in SHARES.items():
                    figures.add(f"{name}: {label}", quantile(took, share) * 1e3, "ms")
            settings.say(f"round {round_} of {settings.rounds} done")
    finally:
        bench.end()
    figures.ratio("hints / no hints, p50", "hints: p50", "no hints: p50")
    figures.note(
        f"{CHANGES_PER_SECOND} changes/s in turn over {AGENTS} importing agents, each with"
        " a route; from sending the PUT to a view of the agent with that generation or a"
        " later one; broker, agents and the client on the same cores."
    )
    figures.note(
        f"no hints: the agents are registered without an address for hints and poll every"
        f" {POLL_S} s."
    )
    return figures
