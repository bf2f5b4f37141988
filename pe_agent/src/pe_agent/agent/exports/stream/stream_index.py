"""Index of a stream: its epochs and stages, and how much of each segment they need."""

from __future__ import annotations

import threading
from collections import Counter

from pe_agent.agent.exports.stream.manifests import Block, Manifest, Stage
from pe_agent.log.frames import Address
from streambroker_core.errors import StreambrokerError


class StageDiscardedError(StreambrokerError):
    """A stage was discarded while its task wrote it; nothing of it is kept."""

    code = "NotAdmitted"


class StreamIndex:
    """Epochs and stages of one stream. Only the stream's owner changes epochs.

    Attributes:
        lock: guards stages and needed bytes; may span several calls.
        addresses: of the manifests' frames, by epoch.
        staged_bytes: bytes of the stages in the log.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.manifests: dict[int, Manifest] = {}
        self.addresses: dict[int, Address] = {}
        self.stages: dict[str, Stage] = {}
        self.staged_bytes = 0
        self._needed: Counter[int] = Counter()
        self._pinned_keys = set[str]()

    def add_stage(self, stage: Stage) -> None:
        """Add a stage with its frames, if it has any."""
        with self.lock:
            self.stages[stage.id] = stage
            self._count(stage.addresses())
            self.staged_bytes += stage.bytes

    def add_frame(self, stage: Stage, address: Address, block: Block | None) -> None:
        """Add a frame to a stage: a block, or the stage's end.

        Raises:
            StageDiscardedError: the stage was discarded in the meantime.
        """
        with self.lock:
            if stage.id not in self.stages:
                raise StageDiscardedError(
                    f"stage {stage.id} of batch {stage.batch} was discarded: the batch was"
                    " published or aborted, or a newer run has taken over."
                )
            self._count([address])
            stage.last_segment = address.segment
            stage.bytes += address.length
            self.staged_bytes += address.length
            if block is None:
                stage.end_address = address
            else:
                stage.blocks.append(block)
                stage.rows += block.rows

    def remove_stage(self, stage: str) -> None:
        """Remove a stage if it is known."""
        with self.lock:
            known = self.stages.pop(stage, None)
            if known is not None:
                self._count(known.addresses(), -1)
                self.staged_bytes -= known.bytes

    def add_epoch(self, manifest: Manifest, address: Address) -> None:
        """Add an epoch, or replace it: its frames have been moved."""
        epoch = manifest.epoch
        if epoch in self.manifests:
            self._count(self.epoch_addresses(epoch), -1)
        self.manifests[epoch], self.addresses[epoch] = manifest, address
        self._count(self.epoch_addresses(epoch))

    def remove_epoch(self, epoch: int) -> None:
        """Remove an epoch if it is known."""
        if epoch in self.manifests:
            self._count(self.epoch_addresses(epoch), -1)
            del self.manifests[epoch], self.addresses[epoch]

    def pin_epoch(self, manifest: Manifest, address: Address) -> None:
        """Keep segments and objects of an epoch that is not durable yet."""
        self._pinned_keys |= manifest.object_keys()
        self._count([address, *(block.address for block in manifest.log_blocks)])

    def unpin_epoch(self, manifest: Manifest, address: Address) -> None:
        """End what `pin_epoch` did."""
        self._pinned_keys -= manifest.object_keys()
        self._count([address, *(block.address for block in manifest.log_blocks)], -1)

    def object_keys(self) -> set[str]:
        """Return the keys of all objects that an epoch has, or may get."""
        manifests = list(self.manifests.values())
        return self._pinned_keys.union(*(one.object_keys() for one in manifests))

    def epoch_addresses(self, epoch: int) -> list[Address]:
        """Return the addresses of an epoch's frames in this log."""
        return [self.addresses[epoch], *(b.address for b in self.manifests[epoch].log_blocks)]

    def _count(self, frames: list[Address], sign: int = 1) -> None:
        with self.lock:
            for frame in frames:
                self._needed[frame.segment] += sign * frame.length
                if not self._needed[frame.segment]:
                    del self._needed[frame.segment]

    def needed_bytes(self, segment: int) -> int:
        """Return the needed bytes of a segment; frames of a stage and an epoch count twice."""
        with self.lock:
            return self._needed[segment]

    def first_open_segment(self) -> int | None:
        """Return the first segment with frames of open stages, None without such stages."""
        open_stages = (s.last_segment for s in self.stages.values() if not s.complete)
        return min(open_stages, default=None)

    def is_needed(self, segment: int) -> bool:
        """Return whether a stage or an epoch needs a segment."""
        floor = self.first_open_segment()
        return self.needed_bytes(segment) > 0 or (floor is not None and segment >= floor)
