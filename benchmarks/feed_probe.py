"""One feeder alone in a process: ``python -m feed_probe FEEDER COUNT``, access on standard input.

Answers with seconds, memory and the delay of a timer in the feeder's own loop, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

from measure import quantile

from streambroker_core.board import BoardEvent, Synced
from streambroker_operator.kubernetes.client.kubeconfig import Access
from streambroker_operator.kubernetes.client.watch_client import ApiClient
from streambroker_operator.kubernetes.watch.informer import ApiFeeder
from streambroker_operator.kubernetes.watch.kopf_feeder import KopfFeeder
from streambroker_operator.kubernetes.watch.reflector import ReflectorFeeder

ANSWER = "@@ "
"""As in :mod:`processes`, which would bring in what a feeder does not need."""
BEAT_S = 0.005
QUIET_S = 2.0
"""Without an event from kopf for so long, its first lists are through."""


class Probe:
    """Counts what a feeder tells, and looks at the loop meanwhile."""

    def __init__(self, feeder: ApiFeeder, count: int) -> None:
        self._feeder, self._count = feeder, count
        self._synced: list[float] = []
        self._all = asyncio.Event()
        self._delays: list[float] = []
        self._began = 0.0

    async def run(self) -> dict[str, tuple[float, str]]:
        """Measure from the start to the last thing that a start brings."""
        self._began = time.perf_counter()
        beating = asyncio.ensure_future(self._beat())
        feeding = asyncio.ensure_future(self._feeder.run(self._deliver))
        await self._all.wait()
        figures = {"start to synced": (max(self._synced) - self._began, "s")}
        if isinstance(self._feeder, KopfFeeder):
            figures["start to kopf has listed too"] = (await self._kopf_listed(), "s")
            assert self._feeder.process is not None
            figures["memory of kopf's process"] = (_memory(self._feeder.process.pid), "MiB")
        figures["memory"] = (_memory("self"), "MiB")
        figures["delay of the loop, p99"] = (quantile(self._delays, 0.99) * 1e3, "ms")
        figures["delay of the loop, max"] = (max(self._delays) * 1e3, "ms")
        for task in (feeding, beating):
            task.cancel()
        await asyncio.gather(feeding, beating, return_exceptions=True)
        return figures

    def _deliver(self, event: BoardEvent) -> None:
        if isinstance(event, Synced):
            if len(tuple(event.listed)) != self._count:
                raise RuntimeError(f"{len(tuple(event.listed))} {event.kind}s")
            self._synced.append(time.perf_counter())
            if len(self._synced) == 2:
                self._all.set()

    async def _kopf_listed(self) -> float:
        """Return the seconds until kopf has told of everything once: its lists ask for sweeps."""
        feeds, last = list(self._feeder.feeds.values()), time.perf_counter()
        heard = 0
        while time.perf_counter() - last < QUIET_S or not heard:
            now = sum(feed.health.event_count for feed in feeds)
            if now != heard:
                heard, last = now, time.perf_counter()
            await asyncio.sleep(0.02)
        if heard < 2 * self._count:
            raise RuntimeError(f"kopf told of {heard} objects")
        return last - self._began

    async def _beat(self) -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(BEAT_S)
            self._delays.append(time.perf_counter() - before - BEAT_S)


def _memory(pid: int | str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"no memory of {pid}")


def main() -> None:
    """Measure, and answer in one line."""
    name, count = sys.argv[1], int(sys.argv[2])
    client = ApiClient(Access(**json.loads(sys.stdin.readline())))
    feeder = KopfFeeder(client) if name == "kopf" else ReflectorFeeder(client)
    print(ANSWER + json.dumps(asyncio.run(Probe(feeder, count).run())), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
