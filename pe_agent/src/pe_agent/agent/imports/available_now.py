"""Target of an availableNow run: the current heads of an import."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from pe_agent.agent.imports.import_state import ImportState
from streambroker_core.errors import StreambrokerError
from streambroker_core.wire.agent_rpc.reader import ImportHeads, ReaderHeads
from streambroker_core.wire.broker.view import ImportPort

log = logging.getLogger("pe_agent")

HEADS_SECONDS = 10.0
RETRY_SECONDS = 0.5


class RoutesUnknownError(StreambrokerError):
    """The agent has no view yet, or one from before the import was declared."""

    code = "RoutesUnknown"


class AvailableNowTarget:
    """Requests of a run before it begins.

    Attributes:
        missing_exports: exports of which the last run reads nothing, by import.
    """

    def __init__(self, state: ImportState) -> None:
        self._state = state
        self.missing_exports: dict[str, Sequence[str]] = {}

    def heads(self, request: ReaderHeads) -> ImportHeads:
        """Return the current head of each stream of an import: the target of availableNow.

        Exports that have not responded for ``wait`` seconds are missing.

        Raises:
            PortNotDeclaredError: the import is not declared.
            RoutesUnknownError: its routes are not known yet.
        """
        port, wait = request.import_, min(HEADS_SECONDS, request.wait)
        key, deadline = f"{self._state.pe}/{port}", time.monotonic() + wait
        while True:
            seen = self._state.notifier.version((key,))
            import_ = self._state.find_import(port)
            found = self._fetch_heads(import_, key) if import_ else None
            left = deadline - time.monotonic()
            if left <= 0 or (found and not found.missing) or self._state.notifier.closed:
                break
            self._state.notifier.wait(seen, min(left, RETRY_SECONDS), (key,))
        if found is None:
            raise RoutesUnknownError(
                f"the routes of import {key} are not known yet: has its agent reached the broker?"
                " `away` of pe.status()['broker'] shows why not."
            )
        self.missing_exports[port] = found.missing
        return found

    def _fetch_heads(self, import_: ImportPort, key: str) -> ImportHeads:
        heads: dict[str, int] = {}
        missing: list[str] = []
        ended: list[str] = []
        for route in import_.routes:
            export = str(route.export)
            if route.location is None:
                missing.append(export)
                continue
            try:
                head = self._state.peers.fetch_heads(route, key)
            except StreambrokerError as error:
                log.info("export %s does not answer: %s", export, error)
                missing.append(export)
                continue
            heads.update(head.heads or {})
            ended.extend([export] if head.ended else [])
        next_seq = self._state.control_log.next_seq
        return ImportHeads(heads=heads, missing=missing, ended=ended, control=next_seq)
