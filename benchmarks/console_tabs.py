"""Open consoles without a browser: ``python -m console_tabs URL COUNT SECONDS``.

Each follows the events, and loads the graph every 5 s and once after events, as the page does. It
writes a line once all have the graph, and in the end the statuses of all answers as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter

import aiohttp

POLL_S = 5.0
"""``METRICS_MS`` in console/src/live.ts."""
SETTLE_S = 0.2
RETRY_S = 1.0
API = "/api/subscriptions"


class Tab:
    """One console."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self._url, self._session = url + API, session
        self._changed = asyncio.Event()
        self.loaded = asyncio.Event()
        self.statuses: Counter[int] = Counter()

    async def follow(self) -> None:
        """Follow the events."""
        query = {"namespace": "default"}
        while True:
            async with self._session.get(f"{self._url}/events", params=query) as answer:
                self.statuses[answer.status] += 1
                async for line in answer.content:
                    if line.startswith(b"data:"):
                        self._changed.set()
            await asyncio.sleep(RETRY_S)

    async def load(self, delay: float) -> None:
        """Load the graph again and again."""
        await asyncio.sleep(delay)
        query = {"namespace": "default"}
        while True:
            async with self._session.get(f"{self._url}/graph", params=query) as answer:
                self.statuses[answer.status] += 1
                await answer.read()
            self.loaded.set()
            try:
                await asyncio.wait_for(self._changed.wait(), POLL_S)
                await asyncio.sleep(SETTLE_S)
            except TimeoutError:
                pass
            self._changed.clear()


async def watch(url: str, count: int, seconds: float) -> dict[int, int]:
    """Keep consoles open; return how often each status was answered."""
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        tabs = [Tab(url, session) for _ in range(count)]
        tasks = [asyncio.create_task(tab.follow()) for tab in tabs]
        tasks += [
            asyncio.create_task(tab.load(n * POLL_S / max(1, count))) for n, tab in enumerate(tabs)
        ]
        await asyncio.gather(*(tab.loaded.wait() for tab in tabs))
        sys.stdout.write("loaded\n")
        sys.stdout.flush()
        await asyncio.sleep(seconds)
        failed = [error for one in tasks if one.done() and (error := one.exception())]
        for one in tasks:
            one.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if failed:
        raise RuntimeError(f"consoles ended: {failed[0]}")
    return dict(sum((tab.statuses for tab in tabs), Counter[int]()))


def main() -> None:
    """Keep consoles open, and report."""
    url, count, seconds = sys.argv[1:]
    sys.stdout.write(json.dumps(asyncio.run(watch(url, int(count), float(seconds)))) + "\n")


if __name__ == "__main__":
    main()
