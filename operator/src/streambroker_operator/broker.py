"""Run a broker (store, runtime, REST and hints) until it is stopped."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from streambroker_core.wire.manifests.quotas import Quotas
from streambroker_operator.agents.hint_sender import HintSender
from streambroker_operator.errors import AddressError, OpenError
from streambroker_operator.lineage import LineageSender, LineageTarget
from streambroker_operator.rest.app import create_app
from streambroker_operator.rest.guard.connections import connection_limit
from streambroker_operator.rest.guard.rate_limits import RateLimits
from streambroker_operator.rest.listen import listen
from streambroker_operator.runtime.runtime import Runtime
from streambroker_operator.security.certificate import Certificate
from streambroker_operator.security.token_file import TokenFile, is_loopback
from streambroker_operator.storage.sqlite_store import Store

_log = logging.getLogger("streambroker")


class Broker:
    """A broker in this process.

    Args:
        db: the SQLite file.
        host: address to listen on.
        port: TCP port; 0 picks a free one.
        tokens: token file; without it every caller has access, and the address must be loopback.
        insecure: allow any address without tokens or TLS, and any host name.
        limits: rate limits of callers.
        certificate: certificate file and key file; None for no TLS.
        page: whether the page is served at ``/ui/``.
        peek: whether callers may look at rows.
        lineage: receives the graph; None for no receiver.
        quotas: of namespaces.
    """

    def __init__(
        self,
        *,
        db: Path,
        host: str = "127.0.0.1",
        port: int = 8470,
        tokens: Path | None = None,
        insecure: bool = False,
        limits: RateLimits | None = None,
        certificate: tuple[Path, Path] | None = None,
        page: bool = True,
        peek: bool = True,
        lineage: LineageTarget | None = None,
        quotas: Quotas | None = None,
    ) -> None:
        self._db = db
        self._host = host
        self._port = port
        self._tokens = tokens
        self._insecure = insecure
        self._limits = limits
        self._certificate = certificate
        self._served, self._quotas = (page, peek), quotas
        self._certificate_task: asyncio.Task[None] | None = None
        self._lineage = None if lineage is None else LineageSender(lineage)
        self.url = ""

    async def start(self) -> None:
        """Open the store, fill the board and listen; sets `url`.

        Raises:
            OpenError: the address is not loopback and tokens or TLS are missing, or the
                certificate cannot be used.
            TokensError: the token file cannot be used.
            StoreError: the database file cannot be used.
            AddressError: the address is taken.
        """
        tokens = self._read_tokens()
        certificate = None if self._certificate is None else Certificate(*self._certificate)
        self._store = Store(self._db)
        if self._store.loss_warning:
            _log.warning("%s", self._store.loss_warning)
        self._sender = HintSender()
        self.runtime = Runtime(self._store, self._sender, quotas=self._quotas)
        self.runtime.feed.start()
        local = is_loopback(self._host) and not self._insecure
        page, peek = self._served
        app = create_app(self.runtime, tokens, self._limits, local=local, page=page, peek=peek)
        tls = None if certificate is None else certificate.context
        limits = self._limits or RateLimits()
        port_limits = limits.connection_limits(connection_limit(limits.connections))
        try:
            self._runner, self.url = await listen(
                app, self._host, self._port, connection_limits=port_limits, tls=tls
            )
        except AddressError:
            self._close()
            raise
        if certificate is not None:
            self._certificate_task = asyncio.create_task(certificate.follow())
        if self._lineage is not None:
            self._lineage.start(self.runtime)

    def _read_tokens(self) -> TokenFile | None:
        """Return the tokens; refuse a non-loopback address without tokens or without TLS."""
        tokens = None if self._tokens is None else TokenFile(self._tokens)
        if is_loopback(self._host):
            return tokens
        if tokens is None:
            danger = "without tokens every caller that reaches it can change every route"
            remedy = "Give a token file with --tokens"
        elif self._certificate is None:
            danger = "without TLS any machine on the network can read the tokens"
            remedy = "Give --tls-cert and --tls-key, or --tls-self-signed"
        else:
            return tokens
        problem = f"{self._host} can be reached from other machines, and {danger}"
        if not self._insecure:
            raise OpenError(
                f"{problem}. {remedy}, listen at 127.0.0.1, or accept the risk with --insecure."
            )
        _log.warning("%s", problem)
        return tokens

    async def wait_failed(self) -> None:
        """Wait forever: this broker has no component that can fail by itself."""
        await asyncio.Event().wait()

    async def stop(self) -> None:
        """Finish running requests, then close everything."""
        if self._certificate_task is not None:
            self._certificate_task.cancel()
        if self._lineage is not None:
            await self._lineage.stop()
        self.runtime.publisher.close()
        await self._runner.cleanup()
        self._close()

    def _close(self) -> None:
        self._sender.close()
        self._store.close()


class RunnableBroker(Protocol):
    """A broker that can be started and stopped; `url` is set once it is started."""

    url: str

    async def start(self) -> None:
        """Start serving requests."""

    async def stop(self) -> None:
        """Stop serving."""

    async def wait_failed(self) -> None:
        """Wait until a component fails."""


async def serve(broker: RunnableBroker, ready: Callable[[str], None]) -> None:
    """Run a broker until SIGTERM or SIGINT, or until a component fails.

    Calls `ready` once with the URL when the broker serves requests.

    Raises:
        StoreError: the database file cannot be used.
        AddressError: the address is taken.
        RuntimeError: a component failed; the log has the cause.
    """
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stopping.set)
    await broker.start()
    try:
        ready(broker.url)
        ends = [asyncio.ensure_future(end) for end in (stopping.wait(), broker.wait_failed())]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()
        if not stopping.is_set():
            raise RuntimeError("broker component failed, shutting down")
    finally:
        await broker.stop()
