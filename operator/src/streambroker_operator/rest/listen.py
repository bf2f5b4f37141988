"""Serve an application on an address, with limits on connections."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable
from typing import cast

from aiohttp import web

from streambroker_operator.errors import AddressError
from streambroker_operator.rest.app import MAX_HEADER
from streambroker_operator.rest.guard.connections import HttpLogger, Listener, track_connection

SHUTDOWN_S = 0.5
"""Time limit for running requests when the broker stops, in seconds."""


async def listen(
    app: web.Application,
    host: str,
    port: int,
    *,
    connection_limits: tuple[int, int],
    tls: ssl.SSLContext | None = None,
    option: str = "--port",
) -> tuple[web.AppRunner, str]:
    """Start serving an application; return its runner and its URL.

    Port 0 picks a free one. The connection limits are in total, and per address. `option` is the
    command-line option for another port, for the error message.

    Raises:
        AddressError: the address is taken, or does not belong to this machine.
    """
    listener = Listener(*connection_limits, tls)
    app.middlewares.insert(0, track_connection)
    app.on_shutdown.append(listener.close)
    runner = web.AppRunner(
        app,
        access_log=None,
        logger=HttpLogger(listener.counter),
        # The application itself unpacks bodies and refuses long headers, to return a problem.
        auto_decompress=False,
        max_field_size=MAX_HEADER,
        shutdown_timeout=SHUTDOWN_S,
    )
    await runner.setup()
    server = cast(Callable[[], asyncio.Protocol], runner.server)
    try:
        await listener.open(host, port, server)
    except OSError as error:
        await runner.cleanup()
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise AddressError(
            f"Cannot listen at {host}:{port}: {reason}. Is a broker running there already?"
            f" Choose another port with {option}, or 0 for any."
        ) from error
    url_host = f"[{host}]" if ":" in host else host
    scheme = "http" if tls is None else "https"
    return runner, f"{scheme}://{url_host}:{listener.port}"
