"""Target of an availableNow run: the current heads of an import."""

from __future__ import annotations

import logging
import time
from typing import Any, NamedTuple

from pe_agent.agent.imports.import_state import ImportState
from streambroker_core.errors import StreambrokerError
from streambroker_core.wire.broker.view import ImportPort

log = logging.getLogger("pe_agent")

HEADS_SECONDS = 10.0
RETRY_SECONDS = 0.5


class RoutesUnknownError(StreambrokerError):
    """The agent has no view yet, or one from before the import was declared."""

    code = "RoutesUnknown"


class _HeadsResult(NamedTuple):
    heads: dict[str, int]
    missing: list[str]
    ended: list[str]


class AvailableNowTarget(ImportState):
    """Requests of a run before it begins."""

    def heads(self, port: str, wait: float = 0.0) -> dict[str, Any]:
        """Return the current head of each stream of an import: the target of availableNow.

        Returns:
            ``{"heads": {stream: next}, "missing": [export], "ended": [export], "control": next}``.
            ``missing`` exports have not responded for ``wait`` seconds; this run reads nothing of
            them. ``ended`` ones get no epochs for now. ``control`` is the next control log number.

        Raises:
            PortNotDeclaredError: the import is not declared.
            RoutesUnknownError: its routes are not known yet.
        """
        key, deadline = f"{self._pe}/{port}", time.monotonic() + min(HEADS_SECONDS, wait)
        while True:
            seen = self._notifier.version((key,))
            import_ = self._find_import(port)
            result = self._fetch_heads(import_, key) if import_ else _HeadsResult({}, [], [])
            missing = result.missing
            left = deadline - time.monotonic()
            if left <= 0 or (import_ is not None and not missing) or self._notifier.closed:
                break
            self._notifier.wait(seen, min(left, RETRY_SECONDS), (key,))
        if import_ is None:
            raise RoutesUnknownError(
                f"the routes of import {key} are not known yet: has its agent reached the broker?"
                " `away` of pe.status()['broker'] shows why not."
            )
        self.missing_exports[port] = missing
        return {**result._asdict(), "control": self.control_log.next_seq}

    def _fetch_heads(self, import_: ImportPort, key: str) -> _HeadsResult:
        result = _HeadsResult({}, [], [])
        for route in import_.routes:
            export = str(route.export)
            if route.location is None:
                result.missing.append(export)
                continue
            try:
                heads, ended = self.peers.fetch_heads(route, key)
            except StreambrokerError as error:
                log.info("export %s does not answer: %s", export, error)
                result.missing.append(export)
                continue
            result.heads.update(heads)
            result.ended.extend([export] if ended else [])
        return result
