"""How far an import reaches now: the target of a run that reads what there is and ends."""

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
    """What the exporters of an import say."""

    heads: dict[str, int]
    missing: list[str]
    ended: list[str]


class AvailableNowTarget(ImportState):
    """What a run asks before it begins."""

    def heads(self, port: str, wait: float = 0.0) -> dict[str, Any]:
        """Return how far each stream of an import reaches now; the target of availableNow.

        Args:
            port: the import.
            wait: seconds to wait for exporters that do not answer.

        Returns:
            ``{"heads": {stream: next}, "missing": [export], "ended": [export]}``: of those that
            still do not answer nothing is read in this run; what they have stays there. Those that
            have ended get nothing more for now. With them ``control``, the number that the next
            entry of the control log gets.

        Raises:
            UnknownPortError: nobody declared it.
            RoutesUnknownError: what it is connected to is not known yet.
        """
        key, deadline = f"{self._pe}/{port}", time.monotonic() + min(HEADS_SECONDS, wait)
        while True:
            seen = self._notifier.version((key,))
            import_ = self._find_import(port)
            found = self._fetch_heads(import_, key) if import_ else _HeadsResult({}, [], [])
            missing = found.missing
            left = deadline - time.monotonic()
            if left <= 0 or (import_ is not None and not missing) or self._notifier.closed:
                break
            self._notifier.wait(seen, min(left, RETRY_SECONDS), (key,))
        if import_ is None:
            raise RoutesUnknownError(
                f"it is not known yet what import {key} is connected to: has its agent reached the"
                " broker? `away` of pe.status()['broker'] says why not."
            )
        self.missing_exports[port] = missing
        return {**found._asdict(), "control": self.control_log.next_seq}

    def _fetch_heads(self, import_: ImportPort, key: str) -> _HeadsResult:
        found = _HeadsResult({}, [], [])
        for route in import_.routes:
            export = str(route.export)
            if route.location is None:
                found.missing.append(export)
                continue
            try:
                heads, ended = self.peers.fetch_heads(route, key)
            except StreambrokerError as error:
                log.info("export %s does not answer: %s", export, error)
                found.missing.append(export)
                continue
            found.heads.update(heads)
            found.ended.extend([export] if ended else [])
        return found
