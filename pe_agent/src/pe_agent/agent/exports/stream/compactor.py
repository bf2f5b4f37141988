"""Disk space of a stream's log: removes segments and moves frames out of others."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection
from dataclasses import replace

from pe_agent.agent.exports.stream.manifests import Block, Manifest
from pe_agent.agent.exports.stream.stream_index import StreamIndex
from pe_agent.log.errors import LogError
from pe_agent.log.frames import Address, Kind
from pe_agent.log.log import StreamLog

log = logging.getLogger("pe_agent")


class Compactor:
    """Frees the disk space that a stream's index does not need.

    Segments without a needed frame are removed at once. When the garbage in other segments exceeds
    one segment, frames are moved. Only the owner of the index may call this.

    Attributes:
        before_drop: called before segments are removed, to let the owner store which epochs are
            retained. Other epochs missing at the next start were not removed by this agent.
    """

    def __init__(
        self, stream: str, blocks: StreamLog, index: StreamIndex, *, segment_bytes: int
    ) -> None:
        self.before_drop: Callable[[], None] = lambda: None
        self._stream = stream
        self._blocks = blocks
        self._index = index
        self._segment_bytes = segment_bytes
        self._unmovable: dict[int, int] = {}
        """Damaged segments that cannot be moved, with the epoch of the damaged block."""
        self._moved: dict[int, tuple[int, int]] = {}
        """Rewritten segments, with the end of the log then: they stay until the bucket has it."""

    def forget_epochs(self, epochs: Collection[int]) -> None:
        """Try damaged segments again whose damaged epoch is removed."""
        self._unmovable = {n: epoch for n, epoch in self._unmovable.items() if epoch not in epochs}

    def run(self) -> None:
        """Remove segments that are not needed.

        While the garbage in the others exceeds one segment, the segment with most garbage is
        rewritten and removed. A segment with a damaged block stays until its epoch is removed.
        """
        floor, moved = self._drop_segments(), set[int]()
        while (victim := self._choose_victim(floor)) is not None and victim not in moved:
            moved.add(victim)
            if not self._is_readable(victim):
                continue
            try:
                self._rewrite_segment(victim)
            except LogError as error:
                log.warning(
                    "cannot rewrite segment %s of stream %s: %s", victim, self._stream, error
                )
                return
            floor = self._drop_segments()

    def _drop_segments(self) -> int | None:
        """Remove segments without needed frames; return the first segment of open stages."""
        index = self._index
        with index.lock:
            due = not all(self._is_kept(one.number) for one in self._blocks.segments()[:-1])
        if due:
            self.before_drop()
        with index.lock:
            self._blocks.drop(self._is_kept)
            return index.first_open_segment()

    def _is_kept(self, segment: int) -> bool:
        uploader, end = self._blocks.uploader, self._moved.get(segment)
        if end is not None and (uploader is None or uploader.uploaded >= end):
            del self._moved[segment]
            end = None
        return end is not None or self._index.is_needed(segment)

    def _choose_victim(self, floor: int | None) -> int | None:
        garbage = {
            one.number: one.bytes - self._index.needed_bytes(one.number)
            for one in self._blocks.segments()[:-1]
            if (floor is None or one.number < floor)
            and one.number not in self._unmovable
            and one.number not in self._moved
            and self._blocks.is_on_disk(one.number)
        }
        if sum(garbage.values()) <= self._segment_bytes:
            return None
        with self._index.lock:
            staged = {a.segment for s in self._index.stages.values() for a in s.addresses()}
        garbage = {n: size for n, size in garbage.items() if n not in staged}
        if sum(garbage.values()) <= self._segment_bytes:
            return None
        return max(garbage, key=garbage.__getitem__)

    def _is_readable(self, segment: int) -> bool:
        """Return whether all needed frames of a segment are readable; record damage."""
        for epoch, manifest in self._index.manifests.items():
            control = [self._index.addresses[epoch]] if manifest.control else []
            for address in (*control, *(b.address for b in manifest.log_blocks)):
                if address.segment != segment:
                    continue
                try:
                    self._blocks.read(address)
                except LogError as error:
                    log.warning(
                        "cannot read segment %s of stream %s, keeping it: %s",
                        segment,
                        self._stream,
                        error,
                    )
                    self._unmovable[segment] = epoch
                    return False
        return True

    def _rewrite_segment(self, segment: int) -> None:
        """Append the needed frames of a segment again, with new manifests that point to them."""
        moved: list[tuple[Manifest, Address]] = []
        for epoch, manifest in self._index.manifests.items():
            if any(a.segment == segment for a in self._index.epoch_addresses(epoch)):
                blocks = tuple(
                    self._rewrite_block(b)
                    if isinstance(b, Block) and b.address.segment == segment
                    else b
                    for b in manifest.blocks
                )
                fresh = replace(manifest, blocks=blocks)
                control = self._blocks.read(self._index.addresses[epoch]) if fresh.control else b""
                moved.append((fresh, self._blocks.append(Kind.MANIFEST, fresh.encode(), control)))
        # The bucket deletes the old frames once it has these.
        self._blocks.sync(is_local=True)
        for fresh, address in moved:
            self._index.add_epoch(fresh, address)
        if self._blocks.uploader is not None:
            last = self._blocks.segments()[-1]
            self._moved[segment] = last.number, last.end

    def _rewrite_block(self, block: Block) -> Block:
        meta = json.dumps({"s": "moved", "n": block.rows}).encode()
        payload = self._blocks.read(block.address)
        return Block(self._blocks.append(Kind.STAGE_DATA, meta, payload), block.rows)
