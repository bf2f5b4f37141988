"""A widget that shows the routes, rates and lag of one job while it runs; needs ``anywidget``."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from pe_agent.job.statuses import ExportStatus, PeStatus
from streambroker_core.errors import StreambrokerError


class LiveView(anywidget.AnyWidget):
    """The ports of a PE, read from its agent again and again until `close`.

    Attributes:
        state: what is shown: ``pe``, ``exports`` and ``imports`` with their numbers, ``error`` if
            the agent did not answer.
    """

    _esm = Path(__file__).parent / "live_view.js"
    state = traitlets.Dict().tag(sync=True)

    def __init__(
        self, status: Callable[[], PeStatus], interval: float, stopped: threading.Event
    ) -> None:
        """Show ``status()`` every ``interval`` seconds until ``stopped`` is set."""
        super().__init__()
        self._fetch, self._interval, self._stopped = status, interval, stopped
        self._ended = threading.Event()
        self._published: dict[str, tuple[float, int]] = {}
        self.update()
        threading.Thread(target=self._follow, daemon=True, name="live view").start()

    def update(self) -> None:
        """Read the agent's status now."""
        try:
            status = self._fetch()
        except StreambrokerError as error:
            self.state = {**self.state, "error": str(error)}
            return
        now = time.monotonic()
        self.state = {
            "pe": status.pe,
            "exports": [self._export(port, of, now) for port, of in sorted(status.exports.items())],
            "imports": [
                {
                    "import": of.import_,
                    "alive": of.alive,
                    "ended": of.ended,
                    "dropped": of.dropped_rows,
                    "lost": of.lost_rows,
                    "refused": "; ".join(of.refused.values()),
                }
                for of in status.imports.values()
            ],
            "away": dict(status.away),
            "error": None,
        }

    def _export(self, port: str, of: ExportStatus, now: float) -> Mapping[str, Any]:
        before, rows = self._published.get(port, (now, of.published_rows))
        self._published[port] = (now, of.published_rows)
        rate = (of.published_rows - rows) / (now - before) if now > before else 0.0
        return {
            "port": port,
            "published": of.published_rows,
            "rowsPerSecond": round(max(0.0, rate), 1),
            "held": of.held_bytes,
            "limit": of.limit_bytes,
            "waitingFor": list(of.waiting_for),
            "ended": of.ended,
            "readers": [
                {
                    "import": reader.import_,
                    "alive": reader.alive,
                    "policy": reader.policy,
                    "lagRows": reader.lag_rows,
                    "lagSeconds": reader.lag_seconds,
                    "congestion": reader.congestion,
                    "dropped": reader.dropped_rows,
                    "lost": reader.lost_rows,
                }
                for reader in of.readers.values()
            ],
        }

    def _follow(self) -> None:
        while not (self._ended.wait(self._interval) or self._stopped.is_set()):
            self.update()

    def close(self) -> None:
        """End the view; the last state stays visible until the notebook removes it."""
        self._ended.set()
        super().close()
