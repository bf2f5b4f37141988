"""How long a broker takes from its database to a board that is served.

The resources are written as the store writes them, one PE per port. The start is a process of
its own, as it is in use: it ends when REST has answered a PE's view.
"""

from __future__ import annotations

import json
import random
import time
import urllib.request
from contextlib import closing
from pathlib import Path

import population
from measure import Figures, Settings
from processes import Broker

from streambroker_core.matching import ScanMatcher
from streambroker_core.model import Resource, kind_of
from streambroker_core.wire.encoding.canonical import canonical
from streambroker_core.wire.manifests.ports import write_spec
from streambroker_operator.storage.sqlite_store import Store

PURPOSE = "start with 10,000 Exports and 10,000 Imports: SQLite -> served board"
EACH = 10_000
TRIED = 100
"""Imports that the scan answers, for the comparison."""


def run(settings: Settings) -> Figures:
    """Measure whole starts, and beside them what matching by a scan would take alone."""
    figures = Figures()
    count = EACH // (10 if settings.quick else 1)
    path = settings.place / "broker.sqlite"
    rng = random.Random(1)
    resources: list[Resource] = []
    for number in range(count):
        resources += (population.export(rng, number), population.import_(rng, number))
    write(path, resources)
    started(settings.place)  # compiles what a broker imports
    for _ in range(settings.rounds):
        figures.yardstick()
        figures.add("start to answered view", started(settings.place), "s")
        figures.add("matching by a scan, alone", scanned(resources, count), "s")
    figures.ratio("scan / start", "matching by a scan, alone", "start to answered view")
    figures.note(f"{count:,} Exports, {count:,} Imports, {2 * count:,} PEs; interpreter included.")
    figures.note(f"The scan is measured with {TRIED} Imports and multiplied.")
    return figures


def write(path: Path, resources: list[Resource]) -> None:
    """Fill a new database, in one transaction where the broker makes one per change."""
    store = Store(path)
    with closing(store), store.file.transaction():
        for version, resource in enumerate(resources, 1):
            key = resource.key
            place = (key.namespace, key.job, key.pe)
            store.file.db.execute(
                "INSERT INTO resources (kind, namespace, job, pe, port, uid, name, generation, "
                "created, version, spec) VALUES (?, ?, ?, ?, ?, ?, '', 1, ?, ?, ?)",
                (
                    kind_of(resource),
                    *place,
                    key.port,
                    resource.uid,
                    resource.created,
                    version,
                    canonical(write_spec(resource)).decode(),
                ),
            )
            store.file.db.execute(
                "INSERT OR IGNORE INTO pes (namespace, job, pe, version) VALUES (?, ?, ?, ?)",
                (*place, version),
            )
        store.file.db.execute("UPDATE meta SET value = ? WHERE name = 'version'", (len(resources),))


def started(place: Path) -> float:
    """Return the seconds from the start of a broker to its first view."""
    began = time.perf_counter()
    broker = Broker(place)
    try:
        with urllib.request.urlopen(f"{broker.url}/api/subscriptions/job/alerts-0/pe/0") as answer:
            view = json.load(answer)
        seconds = time.perf_counter() - began
    finally:
        broker.end()
    if not view:
        raise AssertionError("the view is empty")
    return seconds


def scanned(resources: list[Resource], count: int) -> float:
    """Return the seconds that a scan takes for all pairs, from a few Imports."""
    scan = ScanMatcher()
    imports = []
    for resource in resources:
        if kind_of(resource) == "Export":
            scan.put(resource)
        else:
            imports.append(resource)
    began = time.perf_counter()
    for import_ in imports[:TRIED]:
        scan.outcomes_for(import_)
    return (time.perf_counter() - began) * count / TRIED
