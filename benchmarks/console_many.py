"""What 50 open consoles cost the broker while nothing changes, and while something does."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from typing import Any

import cpu
import population
from cold_start import write
from console_tabs import POLL_S
from measure import Figures, Settings
from processes import Broker, environment

from pe_agent.transport.broker_client import BrokerClient
from streambroker_core.model import Resource
from streambroker_operator.rest.guard.rate_limits import RateLimits

PURPOSE = "50 open consoles at 10,000 x 10,000: processor time and memory of the broker"
PORTS, CONSOLES = 10_000, 50
CHANGES = 5
CHANGED = "/job/feed-0/pe/0/export/out/properties"


def run(settings: Settings) -> Figures:
    """Measure; all rounds are of one broker."""
    figures = Figures()
    count = PORTS // (20 if settings.quick else 1)
    seconds = 10.0 if settings.quick else 30.0
    rng = random.Random(1)
    resources: list[Resource] = []
    for number in range(count):
        resources += (population.export(rng, number), population.import_(rng, number))
    write(settings.place / "broker.sqlite", resources)
    broker = Broker(settings.place)
    try:
        client = BrokerClient(broker.url, "default")
        client.request("GET", "/graph", timeout=60.0)
        for round_ in range(1, settings.rounds + 1):
            figures.yardstick()
            before = cpu.resident(broker.process.pid)
            for way in ("alone", "at rest", f"{CHANGES} changes"):
                spent = _share(broker, client, way, seconds)
                figures.add(f"{way}: processor of the broker", spent, "cores")
                # The broker sees with its next comment that the consoles have gone.
                time.sleep(RateLimits().keepalive_s + 1)
            grown = cpu.resident(broker.process.pid) - before
            figures.add("memory on top", grown, "MiB")
            settings.say(f"round {round_} of {settings.rounds} done")
    finally:
        broker.end()
    figures.note(
        f"{count:,} Exports and as many Imports. A console follows the events and loads the graph"
        f" every {POLL_S:.0f} s and after each change, as the page does; {CONSOLES} of them in a"
        f" process of their own, for {seconds:.0f} s. Changes are evenly spread over that time."
    )
    return figures


def _share(broker: Broker, client: BrokerClient, way: str, seconds: float) -> float:
    """Return the share of a core that the broker uses."""
    consoles = 0 if way == "alone" else CONSOLES
    command = [sys.executable, "-m", "console_tabs", broker.url, str(consoles), str(seconds)]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as tabs:
        assert tabs.stdout is not None
        tabs.stdout.readline()
        before, began = cpu.seconds(broker.process.pid), time.monotonic()
        for n in range(CHANGES if way.endswith("changes") else 0):
            time.sleep(max(0.0, began + (n + 0.5) * seconds / CHANGES - time.monotonic()))
            client.request("PUT", CHANGED, {"level": n}, timeout=60.0)
        time.sleep(max(0.0, began + seconds - time.monotonic()))
        spent = cpu.seconds(broker.process.pid) - before
        statuses: dict[str, Any] = json.loads(tabs.stdout.read())
    if set(statuses) - {"200"}:
        raise RuntimeError(f"requests were refused: {statuses}")
    return spent / seconds
