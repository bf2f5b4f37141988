"""One stream of an export: its log, its schema, and the index of its epochs and stages."""

from __future__ import annotations

import json
import logging
import secrets
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from pe_agent.agent.exports.stream.manifests import Block, Manifest, Stage
from pe_agent.agent.exports.stream.segment_usage import SegmentUsage
from pe_agent.log.commit import Committer
from pe_agent.log.errors import AddressGone, LogError
from pe_agent.log.frames import Kind
from pe_agent.log.log import Address, StreamLog
from streambroker_core.control.tuples.epoch_control import IndexedControl, decode
from streambroker_core.errors import StreambrokerError

log = logging.getLogger("pe_agent")


class RowsDifferError(StreambrokerError):
    """The columns of rows differ from those of the stream."""

    code = "SchemaMismatch"


class StageDiscardedError(StreambrokerError):
    """A stage was discarded while its task wrote it; nothing of it is kept."""

    code = "NotAdmitted"


class ExportStream:
    """Stages rows and publishes epochs. Appending is thread-safe; the index has one owner.

    Segments without a needed frame are removed at once. When the garbage in other segments exceeds
    one segment, frames are moved.

    Attributes:
        staged_bytes: bytes of the stages in the log.
        recovered_position: next epoch and rows before it, from all manifests in the log at open,
            including those of removed epochs; so no epoch number is used twice.
        before_drop: called before segments are removed, to let the owner store which epochs are
            retained. Other epochs missing at the next start were not removed by this agent.
    """

    def __init__(
        self,
        id_: str,
        *,
        log: StreamLog,
        query: str,
        ddl: str,
        schema: pa.Schema,
        segment_bytes: int,
    ) -> None:
        self.id = id_
        self.log = log
        self.query = query
        self.ddl = ddl
        self.schema = schema
        self.manifests: dict[int, Manifest] = {}
        self.stages: dict[str, Stage] = {}
        self.staged_bytes = 0
        self.recovered_position = (0, 0)
        self.before_drop: Callable[[], None] = lambda: None
        self._segment_bytes = segment_bytes
        self._addresses: dict[int, Address] = {}
        self._usage = SegmentUsage()
        self._unmovable: dict[int, int] = {}
        """Damaged segments that cannot be moved, with the epoch of the damaged block."""

    @staticmethod
    def open(
        id_: str,
        directory: Path,
        *,
        committer: Committer,
        query: str,
        ddl: str,
        schema: pa.Schema,
        segment_bytes: int,
        progress: Callable[[int, int], None] | None = None,
        is_shard: bool = False,
    ) -> ExportStream:
        """Create or recover the stream's log and build the index from its frames.

        With ``is_shard`` all stages are kept: a shard has no manifests of what is published.
        """
        log = StreamLog.open(
            directory, segment_bytes=segment_bytes, committer=committer, progress=progress
        )
        stream = ExportStream(
            id_, log=log, query=query, ddl=ddl, schema=schema, segment_bytes=segment_bytes
        )
        stream._recover(is_shard)
        return stream

    def _recover(self, is_shard: bool) -> None:
        """Build the index from the recovered frames; skip the blocks of published stages."""
        present = {s.number: s.end for s in self.log.segments()}
        ends: dict[str, tuple[dict[str, Any], Address]] = {}
        published: dict[str, int] = {}
        for address, kind, meta in self.log.recovered_frames({Kind.MANIFEST, Kind.STAGE_END}):
            if kind == Kind.STAGE_END:
                end = json.loads(meta)
                ends[end["stage"]] = end, address
                continue
            manifest = Manifest.decode(meta)
            self.recovered_position = max(
                self.recovered_position, (manifest.epoch + 1, manifest.rows_after)
            )
            published[manifest.query] = max(manifest.batch, published.get(manifest.query, -1))
            if all(
                b.address.offset + b.bytes <= present.get(b.address.segment, 0)
                for b in manifest.local_blocks
            ):
                self.manifests[manifest.epoch] = manifest
                self._addresses[manifest.epoch] = address
        self._recover_stages(
            {
                id_: (end, address)
                for id_, (end, address) in ends.items()
                if is_shard or end["batch"] > published.get(end["query"], -1)
            }
        )
        self.log.forget_recovered()
        for epoch in self.manifests:
            self._usage.add(self._epoch_addresses(epoch))
        for stage in self.stages.values():
            self._usage.add(stage.addresses())
            self.staged_bytes += stage.bytes

    def _recover_stages(self, ends: Mapping[str, tuple[dict[str, Any], Address]]) -> None:
        blocks: dict[str, list[Block]] = {id_: [] for id_ in ends}
        for address, _, meta in self.log.recovered_frames({Kind.STAGE_DATA}) if ends else ():
            data = json.loads(meta)
            if data["s"] in blocks:
                blocks[data["s"]].append(Block(address, data["n"]))
        for id_, (end, address) in ends.items():
            self._recover_stage(end, address, blocks[id_])

    def _recover_stage(self, end: dict[str, Any], address: Address, blocks: list[Block]) -> None:
        if len(blocks) != end["blocks"]:
            return
        stage = Stage(
            id=end["stage"],
            stream=self.id,
            query=end["query"],
            run=end["run"],
            batch=end["batch"],
            blocks=blocks,
            rows=end["rows"],
            crc=end["crc"],
            bytes=sum(b.bytes for b in blocks) + address.length,
            complete=True,
            end_address=address,
        )
        self.stages[stage.id] = stage

    # -- writing -----------------------------------------------------------------------------

    def begin(self, *, query: str, run: str, batch: int) -> Stage:
        """Open a stage; its segments are retained from now on."""
        stage = Stage(id=secrets.token_hex(8), stream=self.id, query=query, run=run, batch=batch)
        with self._usage.lock:
            stage.last_segment = self.log.segments()[-1].number
            self.stages[stage.id] = stage
        return stage

    def write(
        self, stage: Stage, batches: Iterable[pa.RecordBatch], check: Callable[[int], None]
    ) -> None:
        """Write a task's rows as a stage; durable when this returns, discarded on any error.

        ``check`` raises if the stage may not grow by that number of bytes.
        """
        try:
            for batch in batches:
                if batch.num_rows:
                    check(batch.nbytes)
                    self.append(stage, batch)
            self.finish(stage)
        except BaseException:
            self.discard(stage.id)
            raise

    def append(self, stage: Stage, batch: pa.RecordBatch) -> None:
        """Append one record batch of a stage; durable after :meth:`finish`.

        Raises:
            StageDiscardedError: its batch was published, aborted or replaced in the meantime.
        """
        if batch.schema != self.schema:
            batch = self._cast_batch(batch)
        payload = batch.serialize()
        stage.crc = zlib.crc32(payload, stage.crc)
        meta = json.dumps({"s": stage.id, "n": batch.num_rows}).encode()
        address = self.log.append(Kind.STAGE_DATA, meta, payload)
        self._count_frame(stage, address, Block(address, batch.num_rows))

    def _count_frame(self, stage: Stage, address: Address, block: Block | None) -> None:
        with self._usage.lock:
            if stage.id not in self.stages:
                raise StageDiscardedError(
                    f"stage {stage.id} of batch {stage.batch} was discarded: the batch was"
                    " published or aborted, or a newer run has taken over."
                )
            self._usage.add([address])
            stage.last_segment = address.segment
            stage.bytes += address.length
            self.staged_bytes += address.length
            if block is None:
                stage.end_address = address
            else:
                stage.blocks.append(block)
                stage.rows += block.rows

    def _cast_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        try:
            return batch.cast(self.schema)
        except (pa.ArrowException, ValueError, KeyError) as error:
            raise RowsDifferError(
                f"rows of columns ({_describe_columns(batch.schema)}) arrived for stream"
                f" {self.id}, which has ({_describe_columns(self.schema)}): {error}. Nothing of"
                " the stage is kept."
            ) from error

    def finish(self, stage: Stage) -> None:
        """Close a stage; durable when this returns."""
        address = self.log.append(Kind.STAGE_END, stage.encode_end(), b"")
        self._count_frame(stage, address, None)
        self.log.sync(address)
        stage.complete = True

    def discard(self, stage: str) -> None:
        """Remove a stage from the index; :meth:`reclaim` frees its disk space."""
        with self._usage.lock:
            known = self.stages.pop(stage, None)
            if known is not None:
                self._usage.release(known.addresses())
                self.staged_bytes -= known.bytes

    def publish(self, manifest: Manifest, control: bytes = b"") -> None:
        """Make an epoch durable and add it to the index, with its control tuples if any."""
        address = self.log.append(Kind.MANIFEST, manifest.encode(), control)
        self._usage.add([address, *(b.address for b in manifest.local_blocks)])
        self.log.sync(address)
        self.manifests[manifest.epoch] = manifest
        self._addresses[manifest.epoch] = address

    # -- reading and removing ----------------------------------------------------------------

    def read(self, block: Block) -> pa.RecordBatch:
        """Read one block from the log and verify its checksum."""
        payload = self.log.read(block.address)
        return pa.ipc.read_record_batch(pa.py_buffer(payload), self.schema)

    def read_control(self, epoch: int) -> list[IndexedControl]:
        """Read the control tuples of an epoch from the log; empty if there are none.

        Raises:
            LogCorrupt: the tuples are damaged.
            AddressGone: the epoch was removed.
        """
        while (manifest := self.manifests.get(epoch)) is not None and manifest.control:
            address = self._addresses.get(epoch)
            try:
                return decode(bytes(self.log.read(address))) if address else []
            except AddressGone:
                if self._addresses.get(epoch) == address:
                    raise
        return []

    def epoch_bytes(self, epoch: int) -> int:
        """Return the bytes of an epoch in the log: its stages and its manifest."""
        return self.manifests[epoch].bytes + self._addresses[epoch].length

    def _epoch_addresses(self, epoch: int) -> list[Address]:
        return [self._addresses[epoch], *(b.address for b in self.manifests[epoch].local_blocks)]

    def remove(self, epochs: list[int]) -> None:
        """Remove epochs from the index and free their disk space."""
        for epoch in epochs:
            if epoch in self.manifests:
                self._usage.release(self._epoch_addresses(epoch))
                del self.manifests[epoch], self._addresses[epoch]
        removed = frozenset(epochs)
        self._unmovable = {n: epoch for n, epoch in self._unmovable.items() if epoch not in removed}
        self.reclaim()

    def sweep_stages(self, is_obsolete: Callable[[Stage], bool]) -> None:
        """Discard obsolete stages."""
        for stage in list(self.stages.values()):
            if is_obsolete(stage):
                self.discard(stage.id)

    # -- disk --------------------------------------------------------------------------------

    def damaged_segments(self) -> list[str]:
        """Return damaged segments as ``<stream>/<segment file>`` paths."""
        return [f"{self.id}/{number:010d}.segment" for number in sorted(self.log.damaged)]

    def reclaim(self) -> None:
        """Remove segments that are not needed; only the index owner may call this.

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
                log.warning("cannot rewrite segment %s of stream %s: %s", victim, self.id, error)
                return
            floor = self._drop_segments()

    def _drop_segments(self) -> int | None:
        """Remove segments without needed frames; return the first segment of open stages."""
        with self._usage.lock:
            _, keep = self._needed_segments()
            due = not all(keep(one.number) for one in self.log.segments()[:-1])
        if due:
            self.before_drop()
        with self._usage.lock:
            floor, keep = self._needed_segments()
            self.log.remove_segments(keep)
            return floor

    def _needed_segments(self) -> tuple[int | None, Callable[[int], bool]]:
        floor = min((s.last_segment for s in self.stages.values() if not s.complete), default=None)
        return (
            floor,
            lambda n: self._usage.needed_bytes(n) > 0 or (floor is not None and n >= floor),
        )

    def _choose_victim(self, floor: int | None) -> int | None:
        garbage = {
            one.number: one.bytes - self._usage.needed_bytes(one.number)
            for one in self.log.segments()[:-1]
            if (floor is None or one.number < floor) and one.number not in self._unmovable
        }
        if sum(garbage.values()) <= self._segment_bytes:
            return None
        with self._usage.lock:
            staged = {a.segment for s in self.stages.values() for a in s.addresses()}
        garbage = {n: size for n, size in garbage.items() if n not in staged}
        if sum(garbage.values()) <= self._segment_bytes:
            return None
        return max(garbage, key=garbage.__getitem__)

    def _is_readable(self, segment: int) -> bool:
        """Return whether all needed frames of a segment are readable; record damage."""
        for epoch, manifest in self.manifests.items():
            for address in self._payload_addresses(epoch, manifest):
                if address.segment != segment:
                    continue
                try:
                    self.log.read(address)
                except LogError as error:
                    log.warning(
                        "cannot read segment %s of stream %s, keeping it: %s",
                        segment,
                        self.id,
                        error,
                    )
                    self._unmovable[segment] = epoch
                    return False
        return True

    def _payload_addresses(self, epoch: int, manifest: Manifest) -> list[Address]:
        control = [self._addresses[epoch]] if manifest.control else []
        return [*control, *(b.address for b in manifest.local_blocks)]

    def _rewrite_segment(self, segment: int) -> None:
        """Append the needed frames of a segment again, with new manifests that point to them."""
        moved: dict[int, tuple[Manifest, Address]] = {}
        for epoch, manifest in self.manifests.items():
            if any(a.segment == segment for a in self._epoch_addresses(epoch)):
                blocks = tuple(
                    self._rewrite_block(b)
                    if isinstance(b, Block) and b.address.segment == segment
                    else b
                    for b in manifest.blocks
                )
                fresh = replace(manifest, blocks=blocks)
                control = self.log.read(self._addresses[epoch]) if manifest.control else b""
                moved[epoch] = fresh, self.log.append(Kind.MANIFEST, fresh.encode(), control)
        self.log.sync()
        for epoch, (fresh, address) in moved.items():
            self._usage.release(self._epoch_addresses(epoch))
            self.manifests[epoch], self._addresses[epoch] = fresh, address
            self._usage.add(self._epoch_addresses(epoch))

    def _rewrite_block(self, block: Block) -> Block:
        meta = json.dumps({"s": "moved", "n": block.rows}).encode()
        payload = self.log.read(block.address)
        return Block(self.log.append(Kind.STAGE_DATA, meta, payload), block.rows)


def _describe_columns(schema: pa.Schema) -> str:
    return ", ".join(f"{f.name} {f.type}" for f in schema)
