"""Exports in object storage: what they cost in time and in requests.

The S3 server of the tests runs on this machine. So a request takes less than to a cloud, and the
server shares the cores. Requests are counted by a proxy, in agents of their own: it would be in the
way of what is timed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import rows
from measure import Figures, Settings, quantile, turns
from peer_jars import PeerMissingError
from processes import Agent, Broker, Family, until

PURPOSE = "an export on the disk alone, with `local` uploads behind it, and `stored` in a bucket"
WAYS = ("disk", "local", "stored")
SMALL_ROWS = 100
PUBLISHES, QUICK_PUBLISHES = 100, 10
BYTES, QUICK_BYTES = 4_000_000_000, 160_000_000
"""Size of the logs whose requests are counted."""
RECOVERED_BYTES = 10_000_000_000
EPOCH_ROWS = 100_000
PUT, GET = 0.005 / 1000, 0.0004 / 1000
"""List prices of S3 Standard in us-east-1, in dollars a request. A LIST costs as much as a PUT."""
MONTH = 0.023
"""Dollars for a GB and a month."""
PRICED = "November 2026"


class Side:
    """An agent with one export.

    Args:
        way: one of `WAYS`.
        name: of job and export.
    """

    def __init__(self, place: Path, broker: str, way: str, name: str, max_bytes: str) -> None:
        self._how: tuple[Path, str, str] = place, f"feed-{name}", broker
        self.name, self.way, self.published = name, way, 0
        self.storage = None if way == "disk" else "s3://rows/bench"
        self.agent = self.start()
        durability: dict[str, Any] = {"durability": "stored"} if way == "stored" else {}
        self.agent.export(name, max_bytes=max_bytes, **durability)
        until(lambda: self._export() is not None, "the export")

    def start(self) -> Agent:
        """Start the agent, also in an empty directory."""
        self.agent = Agent(*self._how, storage=self.storage)
        return self.agent

    def publish(self, batches: list[Any]) -> None:
        """Publish an epoch."""
        self.agent.publish(self.name, self.published, [batches])
        self.published += 1

    def await_upload(self) -> None:
        """Wait until the bucket has everything."""
        if self.storage is not None:
            until(self._is_uploaded, "upload", 600.0)

    def _export(self) -> dict[str, Any] | None:
        exports = self.agent.client.call("status")["exports"]
        found: dict[str, Any] | None = exports.get(f"{self.agent.pe}/{self.name}")
        return found

    def _is_uploaded(self) -> bool:
        export = self._export()
        return export is not None and export["storage"]["bytes"] == 0

    def end(self) -> None:
        """End the agent."""
        self.agent.end()


@contextlib.contextmanager
def servers(place: Path) -> Iterator[Any]:
    """Run an S3 server and a proxy in front of it; yield the proxy and the server's address."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from support.storage.proxy import proxy
    from support.storage.servers import MISSING, is_built, s3_server

    if not is_built():
        raise PeerMissingError(MISSING)
    before = dict(os.environ)
    with s3_server(place / "s3") as environment, proxy(environment["AWS_ENDPOINT_URL"]) as made:
        aws = {name: text for name, text in environment.items() if name.startswith("AWS_")}
        os.environ.update(aws)
        try:
            yield made, aws["AWS_ENDPOINT_URL"]
        finally:
            os.environ.clear()
            os.environ.update(before)


def run(settings: Settings) -> Figures:
    """Measure."""
    figures, family = Figures(), Family()
    with servers(settings.place) as (proxy, server):
        try:
            broker = family.with_(Broker(settings.place)).url
            sides = {
                way: family.with_(Side(settings.place, broker, way, way, rows.BUFFER))
                for way in WAYS
            }
            _rounds(settings, figures, sides)
            os.environ["AWS_ENDPOINT_URL"] = proxy.url
            for way in WAYS[1:]:
                settings.say(f"counting requests under {way}")
                _count(
                    settings,
                    figures,
                    proxy,
                    Side(settings.place, broker, way, f"counted-{way}", "8Gi"),
                )
            os.environ["AWS_ENDPOINT_URL"] = server
            _recovery(settings, figures, broker, family)
        finally:
            family.end()
    for way in WAYS[1:]:
        figures.ratio(f"{way} / disk, rows", f"{way}: rows", "disk: rows")
        figures.ratio(
            f"{way} / disk, small publish", f"{way}: small publish", "disk: small publish"
        )
    figures.note(
        f"Costs are list prices of S3 Standard in us-east-1, {PRICED}: ${PUT * 1000:g} for 1,000"
        f" PUT or LIST, ${GET * 1000:g} for 1,000 GET, ${MONTH:g} for a GB and a month. DELETE is"
        " free."
    )
    figures.note(
        "Under local the PUTs of small epochs depend on the time alone: one every two seconds, and"
        " a snapshot every ten."
    )
    return figures


def _rounds(settings: Settings, figures: Figures, sides: dict[str, Side]) -> None:
    large, few = rows.batches(settings.rows), [rows.batch(0, SMALL_ROWS)]
    for side in sides.values():
        for _ in range(1 if settings.quick else 2 * rows.KEPT):
            side.publish(large)
        side.await_upload()
    count = QUICK_PUBLISHES if settings.quick else PUBLISHES
    for round_ in range(1, settings.rounds + 1):
        figures.yardstick()
        for way in turns(WAYS, round_):
            side = sides[way]
            seconds = _timed(lambda s=side: s.publish(large))  # type: ignore[misc]
            figures.add(f"{way}: rows", settings.rows / seconds / 1e6, "M rows/s")
            seconds += _timed(side.await_upload)
            if side.storage is not None:
                figures.add(f"{way}: rows in the bucket", settings.rows / seconds / 1e6, "M rows/s")
        for way in turns(WAYS, round_):
            side = sides[way]
            times = [_timed(lambda s=side: s.publish(few)) for _ in range(count)]  # type: ignore[misc]
            figures.add(f"{way}: small publish", quantile(times, 0.5) * 1e3, "ms")
            figures.add(f"{way}: small publish, p99", quantile(times, 0.99) * 1e3, "ms")
            side.await_upload()


def _count(settings: Settings, figures: Figures, proxy: Any, side: Side) -> None:
    """Count the requests of small epochs and of a GB."""
    try:
        few, large = [rows.batch(0, SMALL_ROWS)], rows.batches(EPOCH_ROWS)
        side.publish(few)
        side.await_upload()
        count = QUICK_PUBLISHES if settings.quick else PUBLISHES
        small = _requests(proxy, side, few, count)
        figures.add(f"{side.way}: PUTs of a small epoch", small["PUT"] / count, "")
        epochs = (QUICK_BYTES if settings.quick else BYTES) // (EPOCH_ROWS * rows.ROW_BYTES)
        many = _requests(proxy, side, large, epochs)
        size = epochs * EPOCH_ROWS * rows.ROW_BYTES / 1e9
        for kind in ("PUT", "GET", "LIST", "DELETE"):
            figures.add(f"{side.way}: {kind} per GB", many[kind] / size, "")
        price = (many["PUT"] + many["POST"] + many["LIST"]) * PUT + many["GET"] * GET
        figures.add(f"{side.way}: requests of a GB in epochs of 8 MB", price / size, "$")
        price = small["PUT"] * PUT / count * 1e6
        figures.add(f"{side.way}: PUTs of a million small epochs", price, "$")
    finally:
        side.end()


def _requests(proxy: Any, side: Side, batches: list[Any], count: int) -> Counter[str]:
    before = Counter(proxy.requests)
    for _ in range(count):
        side.publish(batches)
    side.await_upload()
    return Counter({kind: n - before[kind] for kind, n in proxy.requests.items()})


def _recovery(settings: Settings, figures: Figures, broker: str, family: Family) -> None:
    """Start an agent with an empty directory, and read what it finds in the bucket."""
    size = QUICK_BYTES if settings.quick else RECOVERED_BYTES
    settings.say(f"filling a log of {size / 1e9:.1f} GB")
    side = family.with_(Side(settings.place, broker, "local", "recovered", "16Gi"))
    taker = family.with_(Agent(settings.place, "taker", broker))
    taker.import_("in", subscription='kind == "recovered"', filter=None)
    taker.await_route("in")
    batches = rows.batches(EPOCH_ROWS)
    side.publish(batches)
    start = taker.plan("in", None, 1)  # opens the route: from now on all is kept
    for _ in range(size // (EPOCH_ROWS * rows.ROW_BYTES)):
        side.publish(batches)
    side.await_upload()
    what = f"recovery of {size / 1e9:.2g} GB"
    for round_ in range(settings.rounds + 1):
        side.end()
        shutil.rmtree(side.agent.home)
        start_seconds = _timed(side.start)
        first = _timed(lambda: _read(taker, start, 1))
        all_ = _timed(lambda: _read(taker, start, 16 << 30))
        if round_ or settings.quick:
            figures.add(f"{what}: until it listens", start_seconds, "s")
            figures.add(f"{what}: first epoch read after that", first, "s")
            figures.add(f"{what}: all epochs read after that", all_, "s")


def _read(taker: Agent, start: dict[str, Any], max_bytes: int) -> None:
    end = taker.plan("in", start, max_bytes)
    for _ in taker.read("in", start, end):
        pass


def _timed(way: Callable[[], object]) -> float:
    began = time.perf_counter()
    way()
    return time.perf_counter() - began
