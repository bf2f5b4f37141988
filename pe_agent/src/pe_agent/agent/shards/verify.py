"""Verification of a shard agent's parts of epochs: as sealed, every frame readable.

A lossy reader needs the result before its batch is sliced, because a task that meets loss fails. A
verified part is not read again until a task finds damage.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from pe_agent.agent.exports.stream.export_stream import ExportStream
from pe_agent.agent.exports.stream.manifests import Manifest, shard_identity
from pe_agent.log.errors import AddressGone, LogCorrupt
from streambroker_core.wire.agent_rpc.stages import BrokenParts

CALL_BUDGET_SECONDS = 0.5
"""Time limit for reading parts in one call; the next call continues."""


class ShardVerifier:
    """Verified parts of one agent. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._verified: dict[str, dict[int, Manifest]] = {}

    def verify(
        self, streams: Mapping[str, ExportStream | None], parts: Mapping[str, Mapping[str, Any]]
    ) -> BrokenParts:
        """Return missing and damaged parts, with reasons.

        ``parts`` has the identities that the home has, by stream and epoch.
        """
        until, broken = self._clock() + CALL_BUDGET_SECONDS, dict[str, dict[str, str]]()
        for id_, epochs in parts.items():
            stream = streams.get(id_)
            self._forget_changed(id_, stream)
            for epoch, expected in epochs.items():
                if self._clock() > until:
                    return BrokenParts(broken=broken, done=False)
                why = self._find_damage(stream, int(epoch), expected)
                if why is not None:
                    broken.setdefault(id_, {})[epoch] = why
        return BrokenParts(broken=broken, done=True)

    def mark_unverified(self, stream: str, epoch: int) -> None:
        """Verify a part again before its next use: a task could not read it."""
        with self._lock:
            self._verified.get(stream, {}).pop(epoch, None)

    def forget(self, stream: str) -> None:
        """Remove a stream."""
        with self._lock:
            self._verified.pop(stream, None)

    def _forget_changed(self, id_: str, stream: ExportStream | None) -> None:
        now = {} if stream is None else stream.manifests
        with self._lock:
            good = {
                n: part for n, part in self._verified.pop(id_, {}).items() if now.get(n) is part
            }
            if good:
                self._verified[id_] = good

    def _find_damage(self, stream: ExportStream | None, epoch: int, expected: Any) -> str | None:
        part = None if stream is None else stream.manifests.get(epoch)
        while stream is not None and part is not None:
            if shard_identity(part) != expected:
                return "the part stored under its number differs from the published one"
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
        return "it is missing; was the agent's data directory replaced?"
