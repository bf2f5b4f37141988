"""The lease of a reader, renewed by the process that reads."""

from __future__ import annotations

import logging
import threading
import time

from pe_agent.transport.agent_client import Caller, send
from streambroker_core.errors import StreambrokerError
from streambroker_core.wire.agent_rpc.reader import ReaderLeave, ReaderRenew

log = logging.getLogger("pe_agent")

RENEW_SECONDS = 1.0
RENEWED_SECONDS = 2.0


class Lease:
    """Renews a reader's lease from the source process, for as long as that process runs.

    ``renewed_at`` is the start of the last other call that renewed it (monotonic seconds).
    """

    def __init__(self, client: Caller, reader: str, session: str) -> None:
        self.renewed_at = time.monotonic()
        self._client, self._reader, self._session = client, reader, session
        self._ended = threading.Event()
        threading.Thread(target=self._run, daemon=True, name="reader lease").start()

    def _run(self) -> None:
        while not self._ended.wait(RENEW_SECONDS):
            if time.monotonic() < self.renewed_at + RENEWED_SECONDS:
                continue
            try:
                renew = ReaderRenew(reader=self._reader, session=self._session)
                send(self._client, renew, timeout=2.0)
            except Exception as error:
                # Keep the thread: the driver restarts its agent, and the lease must not expire.
                log.info("lease not renewed: %s", error)

    def end(self) -> None:
        """Release the lease, so that a restart need not wait for its expiry."""
        self._ended.set()
        try:
            leave = ReaderLeave(reader=self._reader, session=self._session)
            send(self._client, leave, timeout=1.0)
        except StreambrokerError as error:
            log.info("lease not released: %s", error)
