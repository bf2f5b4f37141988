"""Simulated agents that poll: ``python -m polls URL SECONDS RATE HOW ETAGS``.

Each poll is what the link does: a connection of its own for every request. ``ask`` sends the GET
alone, ``register`` the registration before each, ``ours`` before each twentieth, which is every ten
minutes, as agents do. Prints statuses and times as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

LOCATION, HINT = "grpc+tcp://127.0.0.1:1", "127.0.0.1:9"
EVERY = {"ask": 0, "register": 1, "ours": 20}
"""How many polls go with one registration; 0 for none."""
AGENT = f'{{"instance":"%016x","location":"{LOCATION}","hint":"{HINT}"}}'


class Crowd:
    """Agents that poll one broker.

    Args:
        etags: of the agents' views, in quotes.
        every: how many polls go with one registration; 0 for none.
    """

    def __init__(self, url: str, etags: list[str], *, every: int) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._etags = etags
        self._every = every
        self.statuses: Counter[int] = Counter()
        self.took: list[float] = []

    async def poll(self, number: int) -> None:
        """Do one poll."""
        path = f"/api/subscriptions/job/alerts-{number}/pe/0?namespace=default"
        began = time.perf_counter()
        if self._every and not number % self._every:
            body = AGENT % number
            head = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            await self._request(f"PUT {path}", head + body)
        await self._request(f"GET {path}", f"If-None-Match: {self._etags[number]}\r\n\r\n")
        self.took.append(time.perf_counter() - began)

    async def _request(self, line: str, rest: str) -> None:
        reader, writer = await asyncio.open_connection(self._host, self._port)
        try:
            text = f"{line} HTTP/1.1\r\nHost: {self._host}\r\nAccept: application/json\r\n{rest}"
            writer.write(text.encode())
            status = int((await reader.readline()).split()[1])
            self.statuses[status] += 1
        finally:
            writer.close()

    async def go_on(self, seconds: float, rate: float) -> None:
        """Poll at an even rate, agent after agent."""
        began = time.perf_counter()
        polls: set[asyncio.Task[None]] = set()
        for number in range(int(seconds * rate)):
            await asyncio.sleep(max(0.0, began + number / rate - time.perf_counter()))
            poll = asyncio.create_task(self.poll(number % len(self._etags)))
            polls.add(poll)
            poll.add_done_callback(polls.discard)
        await asyncio.gather(*polls)


def main() -> None:
    """Poll, and say how that went."""
    url, seconds, rate, how, etags = sys.argv[1:]
    crowd = Crowd(url, json.loads(Path(etags).read_text()), every=EVERY[how])
    asyncio.run(crowd.go_on(float(seconds), float(rate)))
    sys.stdout.write(json.dumps({"statuses": crowd.statuses, "took": crowd.took}) + "\n")


if __name__ == "__main__":
    main()
