"""How long each feeder takes to list and follow 20,000 resources of a real API server.

The feeder is alone in a process of its own, see :mod:`feed_probe`; what it tells is counted and
thrown away, so that matching is not measured. The API server and etcd share the cores with it.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from dataclasses import asdict
from pathlib import Path

import aiohttp
import population
import pytest
from measure import Figures, Settings, turns
from processes import ANSWER, Child

from streambroker_core.model import Resource, kind_of
from streambroker_core.wire.manifests.ports import write_manifest
from streambroker_operator.kubernetes.client.kubeconfig import Access, Credentials, from_kubeconfig

PURPOSE = "10,000 Exports and 10,000 Imports of a real API server: reflector and kopf -> synced"
EACH = 10_000
AT_ONCE = 32
FEEDERS = ("reflector", "kopf")
_TICKS = os.sysconf("SC_CLK_TCK")


def run(settings: Settings) -> Figures:
    """Fill an API server, then measure each feeder's start in turn."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from support.clusters.api_server import running_api_server
    from support.clusters.programs import assets

    figures = Figures()
    try:
        programs = assets()
    except pytest.skip.Exception as missing:
        figures.note(f"not measured: {missing}")
        return figures
    count = EACH // (10 if settings.quick else 1)
    with running_api_server(programs, settings.place / "cluster") as api:
        access = from_kubeconfig(api.kubeconfig())
        asyncio.run(fill(access, count))
        settings.say(f"{2 * count:,} resources are there")
        for round_ in range(settings.rounds):
            figures.yardstick()
            for feeder in turns(FEEDERS, round_):
                before = processor_seconds(api.program.pid)
                measured(figures, settings.place, access, feeder, count)
                spent = processor_seconds(api.program.pid) - before
                figures.add(f"{feeder}: processor of the API server meanwhile", spent, "s")
    figures.note(f"{count:,} Exports, {count:,} Imports, without status; pages of 500.")
    figures.note("kopf's own figures include its process; it is synced by our list before kopf.")
    return figures


def measured(figures: Figures, place: Path, access: Access, feeder: str, count: int) -> None:
    """Start a feeder, wait until it has seen everything, and take its figures."""
    child = Child(
        [sys.executable, "-m", "feed_probe", feeder, str(count)], place / f"feed-{feeder}.log"
    )
    assert child.process.stdin is not None
    child.process.stdin.write(json.dumps(asdict(access)) + "\n")
    child.process.stdin.flush()
    try:
        for name, (value, unit) in json.loads(child.line(ANSWER)).items():
            figures.add(f"{feeder}: {name}", value, unit)
    finally:
        child.end()


def processor_seconds(pid: int) -> float:
    """Return what a process has used of the cores."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


async def fill(access: Access, count: int) -> None:
    """Create the resources."""
    rng, made = random.Random(1), list[Resource]()
    for number in range(count):
        made += (population.export(rng, number), population.import_(rng, number))
    credentials, gate = Credentials(access), asyncio.Semaphore(AT_ONCE)
    headers = {"Authorization": f"Bearer {credentials.token()}"}
    async with aiohttp.ClientSession(headers=headers, trust_env=False) as session:

        async def create(resource: Resource) -> None:
            manifest = write_manifest(resource)
            metadata = manifest["metadata"]
            manifest["metadata"] = {"name": metadata["name"], "namespace": "default"}
            plural = f"{kind_of(resource).lower()}s"
            path = f"/apis/{manifest['apiVersion']}/namespaces/default/{plural}"
            async with (
                gate,
                session.post(access.server + path, json=manifest, ssl=credentials.tls()) as answer,
            ):
                if answer.status != 201:
                    raise RuntimeError(await answer.text())

        await asyncio.gather(*map(create, made))
