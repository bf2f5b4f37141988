"""From a PATCH at a real API server to the agents' routes: at two rates, and a burst.

API server, etcd, broker, agents and whoever makes the changes share the cores. In each round the
API server is changed alone, too, without a broker: nobody can be faster than its answer.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import mean
from typing import Any

from change_to_route import Links, took_of
from feed import processor_seconds
from kube_resources import Cluster, Place, api_server, child_of
from links import PORT
from measure import Figures, Settings, quantile, turns

from streambroker_operator.kubernetes.watch.informer import FEEDERS

PURPOSE = "a broker on a real API server: PATCH -> routes of 50 agents, and a burst of 1,000"
AGENTS = 50
RATES = (10, 100)
SECONDS = 10.0
PORTS = 20
"""Imports of each agent that is there for the burst: so many times `AGENTS` change in it."""
STATUS_S = 30.0
SETTLED_S = 3.0
SETTLE_S = 15.0
"""How long nothing is written once a broker has told of all agents that have just come."""
ALONE = "API server alone"
SHARES = (("p50", 0.5), ("p99", 0.99))


def run(settings: Settings) -> Figures:
    """Run one API server; each round changes it alone, and with a broker of each feeder."""
    figures = Figures()
    with api_server(settings, figures, "changes") as api:
        if api is None:
            return figures
        from support.clusters.replicas import SignedAgent, make_key

        make_key(api, "default")
        os.environ["STREAMBROKER_TOKEN"] = SignedAgent(api, "default", "jobs").token
        bench = Cluster(api)
        declare(bench)
        for round_ in range(settings.rounds):
            figures.yardstick()
            for name in turns((ALONE, *FEEDERS), round_):
                if name == ALONE:
                    alone(settings, figures, bench)
                else:
                    measure(settings, figures, api, bench, name)
            settings.say(f"round {round_ + 1} of {settings.rounds} done")
    figures.note(
        f"{AGENTS} agents with one Import each, one of them changed at a time; from sending the"
        " PATCH to the agent's route table (file flushed). The exporter's view has all routes."
    )
    figures.note(
        f"Burst: one change of each of {AGENTS * PORTS:,} Imports of {AGENTS} more agents, by eight"
        f" at a time; {PORTS} exporters. Then one of them 10 times a second for {STATUS_S:.0f} s."
    )
    figures.note("Agents are real links and route tables in one process of Python, without rows.")
    figures.note("All on the same cores: API server, etcd, broker, kopf, agents, and who changes.")
    return figures


def takers() -> list[Place]:
    """Return the places that are changed at a rate."""
    return [(f"taker-{number}", PORT) for number in range(AGENTS)]


def burst_places() -> list[Place]:
    """Return the places that are changed at once."""
    return [(f"many-{agent}", f"p{port}") for port in range(PORTS) for agent in range(AGENTS)]


def jobs() -> list[str]:
    """Return the jobs of all agents."""
    places = [*takers(), *burst_places()]
    return ["feed", *(f"feed-{n}" for n in range(PORTS)), *dict.fromkeys(job for job, _ in places)]


def declare(bench: Cluster) -> None:
    """Make all Exports and Imports."""
    bench.declare("Export", "feed", job="feed", port="out", properties={"kind": "out"})
    for number in range(PORTS):
        job, kind = f"feed-{number}", {"kind": f"p{number}"}
        bench.declare("Export", job, job=job, port="out", properties=kind)
    for job, port in [*takers(), *burst_places()]:
        wanted = f'kind == "{"out" if port == PORT else port}"'
        bench.declare("Import", f"{job}-{port}", job=job, port=port, subscription=wanted)


@contextmanager
def broker_and_agents(settings: Settings, api: Any, *options: str) -> Iterator[tuple[Any, Links]]:
    """Run a broker and all agents."""
    from support.clusters.replicas import operator

    with operator(api, settings.place, "default", *options) as broker:
        place = settings.place / f"agents-{time.monotonic_ns()}"
        place.mkdir()
        links = Links(place, broker.url, jobs())
        try:
            yield broker, links
        finally:
            links.end()


def alone(settings: Settings, figures: Figures, bench: Cluster) -> None:
    """Change without a broker: what remains of the time if that took none."""
    for rate in RATES:
        sent = bench.changed(takers(), rate, 2.0 if settings.quick else SECONDS)
        for label, share in SHARES:
            answered = quantile([one[3] for one in sent], share) * 1e3
            figures.add(f"{ALONE}: answer at {rate} changes/s, {label}", answered, "ms")


def measure(settings: Settings, figures: Figures, api: Any, bench: Cluster, feeder: str) -> None:
    """Change at several rates, then all at once."""
    seconds = 2.0 if settings.quick else SECONDS
    with broker_and_agents(settings, api, "--feeder", feeder) as (broker, links):
        settled(bench, 1.0 if settings.quick else SETTLE_S)
        bench.changed(takers(), 10, 2.0)
        for rate in RATES:
            before, began = spent(api, broker, links), time.perf_counter()
            sent = bench.changed(takers(), rate, seconds)
            took_s = time.perf_counter() - began
            after = spent(api, broker, links)
            changes = [(job, began, generation) for (job, _), began, generation, _ in sent]
            took = took_of(changes, lambda: links.ask("seen"))
            name = f"{feeder}, {rate} changes/s"
            answers = [one[3] for one in sent]
            behind = [max(0.0, a - b) for a, b in zip(took, answers, strict=True)]
            ways = {"PATCH -> agent": took, "the API server's answer": answers}
            for way, times in {**ways, "its answer -> agent": behind}.items():
                for label, share in SHARES:
                    figures.add(f"{name}: {way}, {label}", quantile(times, share) * 1e3, "ms")
            for who, used in after.items():
                figures.add(f"{name}: processor, {who}", (used - before[who]) / took_s, "cores")
            figures.add(f"{name}: changes made", len(sent) / took_s, "per s")
        burst(settings, figures, bench, links, feeder)


def spent(api: Any, broker: Any, links: Links) -> dict[str, float]:
    """Return what the processes have used of the cores, in seconds."""
    kopf = child_of(broker.process.pid, "kopf_child")
    pids = {
        "API server": api.program.pid,
        "etcd": api.etcd.program.pid,
        "broker": broker.process.pid,
        **({} if kopf is None else {"kopf": kopf}),
        "agents": links.process.pid,
    }
    return {
        **{who: processor_seconds(pid) for who, pid in pids.items()},
        "who changes": time.process_time(),
    }


def settled(bench: Cluster, seconds: float = SETTLED_S) -> None:
    """Wait until no statuses were written for so long."""
    count, since = -1, time.perf_counter()
    while time.perf_counter() - since < seconds:
        time.sleep(0.5)
        now = bench.status_writes().total()
        if now != count:
            count, since = now, time.perf_counter()


def burst(settings: Settings, figures: Figures, bench: Cluster, links: Links, feeder: str) -> None:
    """Change every Import once as fast as the API server takes it, and watch what follows."""
    seconds = 2.0 if settings.quick else SECONDS
    # What changed all the time is written at last after ten seconds.
    time.sleep(0.0 if settings.quick else 10.0)
    settled(bench)
    every = burst_places()
    again = every[:1]
    quiet = quantile([one[3] for one in bench.changed(again, 10, seconds)], 0.99)
    settled(bench)
    before = bench.status_writes()
    sent = bench.changed(every, 0, 0.0)
    last = max(began + answer for _, began, _, answer in sent)
    # One of the first agent's is changed on and on: how long does that take meanwhile?
    during = bench.changed(again, 10, STATUS_S)
    wanted = {place: generation for place, _, generation, _ in sent if place not in again}
    newest = links.ask("newest")
    came = {place: newest[place[0]][place[1]] for place in wanted}
    behind = sum(came[place][0] != generation for place, generation in wanted.items())
    if behind:
        raise RuntimeError(f"{behind} agents have not run the last change after 30 s")
    name = f"{feeder}, burst of {len(every):,}"
    took = max(0.0, *(at - last for _, at in came.values()))
    figures.add(f"{name}: API server", last - min(one[1] for one in sent), "s")
    figures.add(f"{name}: its last answer -> all agents", took, "s")
    busy = quantile([one[3] for one in during], 0.99)
    figures.add(f"{name}: a PATCH before, p99", quiet * 1e3, "ms")
    figures.add(f"{name}: a PATCH while statuses are written, p99", busy * 1e3, "ms")
    figures.add(f"{name}: the second over the first", busy / quiet, "ratio")
    written = bench.status_writes() - before
    each = [written[f"{job}-{port}"] for job, port in wanted]
    figures.add(f"{name}: status writes of an object in {STATUS_S:.0f} s", mean(each), "each")
    odd = sum(n != 1 for n in each)
    figures.add(f"{name}: objects with more or fewer than one", odd, "objects")
