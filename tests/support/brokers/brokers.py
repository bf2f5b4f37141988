"""Real brokers for tests: in this process, or in one of their own."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from streambroker_core.wire.manifests.quotas import Quotas
from streambroker_operator.broker import Broker
from streambroker_operator.lineage import LineageTarget
from streambroker_operator.rest.guard.rate_limits import RateLimits
from support.brokers.conformance import assert_conforms
from support.processes.forks import CLI, program

EXPORT = {
    "application": {"name": "market.Feed"},
    "properties": {"kind": "trade", "level": 5},
    "schema": [{"name": "price", "type": "double"}],
}
IMPORT = {"subscription": 'kind == "trade"', "filter": "price > 10.0"}
EXPORTS: list[dict[str, Any]] = [
    EXPORT,
    {"properties": {"kind": "quote"}, "allowFilter": False},
    {"streamId": "s"},
    {"properties": {"kind": "trade"}, "congestionPolicy": "drop"},
]
IMPORTS: list[dict[str, Any]] = [
    IMPORT,
    {"subscription": 'kind == "quote" || level > 1'},
    {"streams": [{"streamId": "s"}]},
    {"subscription": 'kind == "trade"', "filter": "size > 1"},
    {"subscription": "kind =="},
]
"""Specs of each kind, one of which is refused."""
TOKENS = {"ops": "ops-0123456789abcdef", "job": "job-0123456789abcdef"}


def bearer(who: str) -> dict[str, Any]:
    return {"Authorization": f"Bearer {TOKENS[who]}"}


@dataclass(frozen=True)
class Answer:
    status: int
    body: Any
    headers: Mapping[str, str]

    @property
    def code(self) -> Any:
        return self.body.get("code") if isinstance(self.body, dict) else None


class Rest:
    """A client of one broker; paths begin below ``/api/subscriptions``, or with ``/api/``."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url = url
        self.session = session

    async def __call__(
        self, method: str, path: str, body: Any = None, *, data: bytes | None = None, **headers: str
    ) -> Answer:
        """Send a request; header names are written with ``_`` for ``-``."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if method in ("PUT", "PATCH", "POST"):
            data = json.dumps(body).encode() if data is None else data
            sent.setdefault("Content-Type", "application/json")
        where = path if path.startswith("/api/") else f"/api/subscriptions{path}"
        async with self.session.request(
            method, f"{self.url}{where}", headers=sent, data=data
        ) as answer:
            text = await answer.read()
            assert_conforms(method, answer.url.raw_path, answer.status, answer.headers, text)
            found = await answer.json(content_type=None) if text else None
            return Answer(status=answer.status, body=found, headers=answer.headers.copy())


@asynccontextmanager
async def running_broker(
    db: Path,
    limits: RateLimits | None = None,
    lineage: LineageTarget | None = None,
    quotas: Quotas | None = None,
) -> AsyncIterator[tuple[Broker, Rest]]:
    """Run a broker on a free port of this machine, with a client."""
    broker = Broker(db=db, port=0, limits=limits, lineage=lineage, quotas=quotas)
    await broker.start()
    try:
        async with aiohttp.ClientSession() as session:
            yield broker, Rest(broker.url, session)
    finally:
        await broker.stop()


_LIMITED = """
import os, resource, sys
limit, *command = sys.argv[1:]
resource.setrlimit(resource.RLIMIT_NOFILE, (int(limit), int(limit)))
os.execv(sys.executable, [sys.executable, *command])
"""
"""A program that runs another one with a limit of file descriptors."""


class BrokerProcess:
    """``streambroker up`` in a process of its own."""

    def __init__(self, db: Path, *arguments: str, descriptors: int | None = None) -> None:
        limited = ["-c", _LIMITED, str(descriptors)] if descriptors else []
        self.process = program(
            [*limited, *CLI, "up", "--db", str(db), *(arguments or ("--port", "0"))],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            environment={**os.environ, "PYTHONUNBUFFERED": "1"},
        )

    def first_line(self) -> str:
        """Wait for its first line; empty if it ends without one."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def url(self) -> str:
        line = self.first_line()
        assert line.startswith("streambroker listening on http"), self.end()
        return line.rpartition(" ")[2]

    def end(self, timeout: float = 10.0) -> tuple[int, str]:
        """Wait for the end; return exit code and what it said on stderr."""
        _, errors = self.process.communicate(timeout=timeout)
        return self.process.wait(), errors

    def kill(self) -> None:
        """End it without a chance to tidy up."""
        self.process.kill()
        self.process.communicate()


async def received(queue: asyncio.Queue[bytes]) -> bytes:
    """Return the next datagram, or fail after five seconds."""
    return await asyncio.wait_for(queue.get(), 5.0)


class Datagrams(asyncio.DatagramProtocol):
    """Keep what arrives by UDP."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[bytes] = asyncio.Queue()

    def datagram_received(self, data: bytes, addr: tuple[str | Any, int]) -> None:
        self.queue.put_nowait(data)


@asynccontextmanager
async def udp_ear() -> AsyncIterator[tuple[str, asyncio.Queue[bytes]]]:
    """Listen for datagrams on a free port; yield ``host:port`` and their queue."""
    transport, protocol = await asyncio.get_running_loop().create_datagram_endpoint(
        Datagrams, local_addr=("127.0.0.1", 0)
    )
    host, port = transport.get_extra_info("sockname")
    try:
        yield f"{host}:{port}", protocol.queue
    finally:
        transport.close()
