"""What 10,000 agents that poll cost the broker while nothing changes."""

from __future__ import annotations

import json
import random
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import population
from cold_start import write
from cpu import used
from measure import Figures, Settings, quantile, turns
from polls import HINT, LOCATION
from processes import Broker, environment

from pe_agent.transport.broker_client import BrokerClient
from streambroker_core.model import Resource
from streambroker_core.wire.broker.registration import POLL_S

PURPOSE = "10,000 agents polling every 30 s, all answered 304: share of a core that the broker uses"
AGENTS = 10_000
WAYS = ("ask", "ours", "register", "nobody")


def run(settings: Settings) -> Figures:
    """Measure; in one poll period every agent polls once."""
    figures = Figures()
    count = AGENTS // (20 if settings.quick else 1)
    seconds = 3.0 if settings.quick else float(POLL_S)
    rng = random.Random(1)
    resources: list[Resource] = []
    for number in range(count):
        resources += (population.export(rng, number), population.import_(rng, number))
    write(settings.place / "broker.sqlite", resources)
    registered(settings.place / "broker.sqlite", count)
    broker = Broker(settings.place)
    try:
        etags = etags_of(broker.url, count, settings.place)
        for round_ in range(1, settings.rounds + 1):
            figures.yardstick()
            for way in turns(WAYS, round_):
                measure(figures, broker, way, seconds, etags)
            settings.say(f"round {round_} of {settings.rounds} done")
    finally:
        broker.end()
    figures.note(
        f"{AGENTS:,} PEs with an import each; every {POLL_S} s each asks once, on a connection of"
        f" its own: {AGENTS / POLL_S:.0f} polls/s, evenly spread. `register`: with the registration"
        " before it; `ours`: with one before each"
        " twentieth, as the agents do. The agents are simulated in a process of their own, whose"
        " time is not counted; the times are theirs. `nobody`: the broker alone."
    )
    return figures


def registered(database: Path, count: int) -> None:
    """Let the broker know all agents already, so that a registration is nothing new."""
    with closing(sqlite3.connect(database)) as db, db:
        db.executemany(
            "UPDATE pes SET instance = ?, location = ?, hint = ? WHERE job = ?",
            ((f"{n:016x}", LOCATION, HINT, f"alerts-{n}") for n in range(count)),
        )


def etags_of(url: str, count: int, place: Path) -> Path:
    """Keep the ETags of all views in a file, in order of the agents."""
    client = BrokerClient(url, "default")
    found: dict[str, str] = {}
    query = {"limit": "500"}
    while True:
        page = client.request("GET", "/pes", query=query, timeout=60.0).body
        found |= {item["job"]: item["version"] for item in page["items"]}
        if "continue" not in page:
            break
        query["continue"] = page["continue"]
    path = place / "etags.json"
    path.write_text(json.dumps([f'"{found[f"alerts-{n}"]}"' for n in range(count)]))
    return path


def polls(url: str, seconds: float, rate: float, how: str, etags: Path) -> Any:
    """Let the agents poll."""
    command = [sys.executable, "-m", "polls", url, str(seconds), str(rate), how, str(etags)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def measure(figures: Figures, broker: Broker, way: str, seconds: float, etags: Path) -> None:
    """Add the broker's share of a core over some seconds, and how long its answers took."""
    before = _seconds(broker)
    if way == "nobody":
        time.sleep(seconds)
    else:
        reported = polls(broker.url, seconds, AGENTS / POLL_S, way, etags)
        _all_current(reported["statuses"], way)
        for label, share in (("p50", 0.5), ("p99", 0.99)):
            figures.add(f"{way}: poll, {label}", quantile(reported["took"], share) * 1e3, "ms")
    figures.add(f"{way}: broker", (_seconds(broker) - before) / seconds, "cores")


def _all_current(statuses: dict[str, int], way: str) -> None:
    """See that all was answered as it is when nothing changes."""
    wanted = {"304"} if way == "ask" else {"200", "304"}
    if set(statuses) != wanted:
        raise RuntimeError(f"polls were answered otherwise than expected: {statuses}")


def _seconds(broker: Broker) -> float:
    return sum(seconds for _, seconds in used(broker.process.pid).values())
