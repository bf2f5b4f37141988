"""Whether a fellow can give its parts of epochs: as they were sealed, every frame readable.

A reader that goes on over loss has to know that before its batch is cut, because a task that meets
loss fails. What was read once is not read again until a task finds it damaged.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from pe_agent.agent.exports.stream.export_stream import ExportStream
from pe_agent.agent.exports.stream.manifests import Manifest, shard_identity
from pe_agent.log.errors import AddressGone, LogCorrupt

CALL_BUDGET_SECONDS = 0.5
"""For so long parts are read for one call; the next one goes on behind them."""


class ShardVerifier:
    """What is known of the parts of one agent. Safe from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._verified: dict[str, dict[int, Manifest]] = {}

    def verify(
        self, streams: Mapping[str, ExportStream | None], body: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return which parts cannot be given, and why.

        Args:
            streams: those that are asked about, None for one that is not here.
            body: ``streams`` with what the home has of each part: ``{stream: {epoch: …}}``.

        Returns:
            ``{"broken": {stream: {epoch: why}}, "done": bool}``; not done if there was more to
            read than one call may, and the caller asks again.
        """
        until, broken = self._clock() + CALL_BUDGET_SECONDS, dict[str, dict[str, str]]()
        for id_, epochs in body["streams"].items():
            stream = streams.get(id_)
            self._forget_changed(id_, stream)
            for epoch, told in epochs.items():
                if self._clock() > until:
                    return {"broken": broken, "done": False}
                why = self._find_damage(stream, int(epoch), told)
                if why is not None:
                    broken.setdefault(id_, {})[epoch] = why
        return {"broken": broken, "done": True}

    def mark_unverified(self, stream: str, epoch: int) -> None:
        """A task could not read a part: it is read again before it counts as good."""
        with self._lock:
            self._verified.get(stream, {}).pop(epoch, None)

    def forget(self, stream: str) -> None:
        """A stream was removed."""
        with self._lock:
            self._verified.pop(stream, None)

    def _forget_changed(self, id_: str, stream: ExportStream | None) -> None:
        """Forget what was moved, replaced or removed since it was read."""
        now = {} if stream is None else stream.manifests
        with self._lock:
            good = {
                n: part for n, part in self._verified.pop(id_, {}).items() if now.get(n) is part
            }
            if good:
                self._verified[id_] = good

    def _find_damage(self, stream: ExportStream | None, epoch: int, expected: Any) -> str | None:
        """Return why a part cannot be given, None if it can."""
        part = None if stream is None else stream.manifests.get(epoch)
        while stream is not None and part is not None:
            if shard_identity(part) != expected:
                return "what is there under its number is not what was published"
            with self._lock:
                if self._verified.get(stream.id, {}).get(epoch) is part:
                    return None
            try:
                for block in part.local_blocks:
                    stream.log.read(block.address)
            except (AddressGone, LogCorrupt) as error:
                before, part = part, stream.manifests.get(epoch)
                if part is before:
                    return str(error)
                continue
            with self._lock:
                self._verified.setdefault(stream.id, {})[epoch] = part
            return None
        return "it is not there; was the agent's data directory replaced?"
