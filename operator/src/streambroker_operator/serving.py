"""Run a broker: store, runtime, REST and hints, until it is told to stop."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

from aiohttp import web

from streambroker_operator.errors import AddressError
from streambroker_operator.hinting import HintSender
from streambroker_operator.rest import create_app
from streambroker_operator.runtime import Runtime
from streambroker_operator.store import Store

SHUTDOWN_S = 0.5
"""How long requests under way may take when the broker stops, in seconds."""


class Broker:
    """A broker in this process.

    Args:
        db: the SQLite file.
        host: address to listen at.
        port: TCP port; 0 picks a free one.
    """

    def __init__(self, *, db: Path, host: str = "127.0.0.1", port: int = 8470) -> None:
        self._db = db
        self._host = host
        self._port = port
        self.url = ""

    async def start(self) -> None:
        """Open the store, fill the board, listen; afterwards `url` is set.

        Raises:
            StoreError: the file cannot be used.
            AddressError: the address is taken.
        """
        self._store = Store(self._db)
        self._sender = HintSender()
        self.runtime = Runtime(self._store, self._sender)
        self.runtime.start()
        self._runner = web.AppRunner(
            create_app(self.runtime), access_log=None, shutdown_timeout=SHUTDOWN_S
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self._port)
        try:
            await site.start()
        except OSError as error:
            await self.stop()
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise AddressError(
                f"Cannot listen at {self._host}:{self._port}: {reason}. "
                "Is a broker running there already? Choose another port with --port, or 0 for any."
            ) from error
        self.url = _url(self._host, self._runner.addresses[0])

    async def stop(self) -> None:
        """Answer what is under way, then close everything."""
        self.runtime.close()
        await self._runner.cleanup()
        self._sender.close()
        self._store.close()


def _url(host: str, address: tuple[str, int]) -> str:
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{address[1]}"


async def serve(broker: Broker, ready: Callable[[str], None]) -> None:
    """Run a broker until SIGTERM or SIGINT.

    Args:
        broker: not started yet.
        ready: called once with the URL when requests are answered.

    Raises:
        StoreError: the file cannot be used.
        AddressError: the address is taken.
    """
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    await broker.start()
    try:
        ready(broker.url)
        await stopping.wait()
    finally:
        await broker.stop()
