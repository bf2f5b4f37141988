"""Run a broker: store, runtime, REST and hints, until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from aiohttp import web

from streambroker_operator.auth import TokenFile, is_loopback
from streambroker_operator.errors import AddressError, OpenError
from streambroker_operator.hinting import HintSender
from streambroker_operator.rest import create_app
from streambroker_operator.rest.app import MAX_HEADER
from streambroker_operator.rest.limits import Limits
from streambroker_operator.runtime import Runtime
from streambroker_operator.store import Store

_log = logging.getLogger("streambroker")

SHUTDOWN_S = 0.5
"""How long requests under way may take when the broker stops, in seconds."""


class Broker:
    """A broker in this process.

    Args:
        db: the SQLite file.
        host: address to listen at.
        port: TCP port; 0 picks a free one.
        tokens: file of those who may call; without it anybody may, and the address has to be
            of this machine alone.
        insecure: listen without tokens at whatever address, and answer to whatever name.
        limits: how much one caller may ask for.
    """

    def __init__(
        self,
        *,
        db: Path,
        host: str = "127.0.0.1",
        port: int = 8470,
        tokens: Path | None = None,
        insecure: bool = False,
        limits: Limits | None = None,
    ) -> None:
        self._db = db
        self._host = host
        self._port = port
        self._tokens = tokens
        self._insecure = insecure
        self._limits = limits
        self.url = ""

    async def start(self) -> None:
        """Open the store, fill the board, listen; afterwards `url` is set.

        Raises:
            OpenError: others could reach it, and there are no tokens.
            TokensError: the token file cannot be used.
            StoreError: the file cannot be used.
            AddressError: the address is taken.
        """
        tokens = self._guard()
        self._store = Store(self._db)
        self._sender = HintSender()
        self.runtime = Runtime(self._store, self._sender)
        self.runtime.start()
        local = is_loopback(self._host) and not self._insecure
        app = create_app(self.runtime, tokens, self._limits, local=local)
        try:
            self._runner, self.url = await listen(app, self._host, self._port)
        except AddressError:
            self._close()
            raise

    def _guard(self) -> TokenFile | None:
        if self._tokens is not None:
            return TokenFile(self._tokens)
        if is_loopback(self._host):
            return None
        if not self._insecure:
            raise OpenError(
                f"{self._host} is not of this machine alone, and without tokens whoever reaches it"
                " can change every route. Give a token file with --tokens, listen at 127.0.0.1, or"
                " say --insecure if that is what you want."
            )
        _log.warning(
            "%s is not of this machine alone, and this broker asks nobody who they are: whoever "
            "reaches it can change every route",
            self._host,
        )
        return None

    async def failed(self) -> None:
        """Return never: it has no part that could fail by itself."""
        await asyncio.Event().wait()

    async def stop(self) -> None:
        """Answer what is under way, then close everything."""
        self.runtime.close()
        await self._runner.cleanup()
        self._close()

    def _close(self) -> None:
        self._sender.close()
        self._store.close()


async def listen(
    app: web.Application,
    host: str,
    port: int,
    *,
    tls: ssl.SSLContext | None = None,
    option: str = "--port",
) -> tuple[web.AppRunner, str]:
    """Begin to answer requests to an application; return what ends it, and its URL.

    Args:
        app: what is asked.
        host: address to listen at.
        port: TCP port; 0 picks a free one.
        tls: shows the certificate; None for plain HTTP.
        option: by which another port is chosen.

    Raises:
        AddressError: the address is taken, or is not of this machine.
    """
    runner = web.AppRunner(
        app,
        access_log=None,
        # Bodies are unpacked, and long headers refused, where there is an answer for it.
        auto_decompress=False,
        max_field_size=MAX_HEADER,
        shutdown_timeout=SHUTDOWN_S,
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port, ssl_context=tls).start()
    except OSError as error:
        await runner.cleanup()
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise AddressError(
            f"Cannot listen at {host}:{port}: {reason}. Is a broker running there already?"
            f" Choose another port with {option}, or 0 for any."
        ) from error
    shown = f"[{host}]" if ":" in host else host
    scheme = "http" if tls is None else "https"
    return runner, f"{scheme}://{shown}:{runner.addresses[0][1]}"


class Served(Protocol):
    """A broker that can be started and stopped.

    Attributes:
        url: where it is asked, once it is started.
    """

    url: str

    async def start(self) -> None:
        """Begin to answer requests."""

    async def stop(self) -> None:
        """End."""

    async def failed(self) -> None:
        """Return when it cannot go on."""


async def serve(broker: Served, ready: Callable[[str], None]) -> None:
    """Run a broker until SIGTERM or SIGINT, or until it cannot go on.

    Args:
        broker: not started yet.
        ready: called once with the URL when requests are answered.

    Raises:
        StoreError: the file cannot be used.
        AddressError: the address is taken.
        RuntimeError: it could not go on; the log says why.
    """
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    await broker.start()
    try:
        ready(broker.url)
        ends = [asyncio.ensure_future(end) for end in (stopping.wait(), broker.failed())]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()
        if not stopping.is_set():
            raise RuntimeError("a part of the broker failed")
    finally:
        await broker.stop()
