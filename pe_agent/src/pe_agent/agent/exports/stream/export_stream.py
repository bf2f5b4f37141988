"""One stream of an export: rows and epochs in its log."""

from __future__ import annotations

import json
import logging
import secrets
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import pyarrow as pa

from pe_agent.agent.exports.stream.compactor import Compactor
from pe_agent.agent.exports.stream.manifests import AnyBlock, Block, Manifest, Stage
from pe_agent.agent.exports.stream.schema_versions import SchemaVersions
from pe_agent.agent.exports.stream.stream_index import StreamIndex
from pe_agent.log.errors import AddressGone, ObjectCorrupt
from pe_agent.log.frames import Address, Kind
from pe_agent.log.log import StreamLog
from pe_agent.log.objects.direct import DirectObjects
from streambroker_core.control.tuples.epoch_control import IndexedControl, decode
from streambroker_core.errors import StreambrokerError
from streambroker_core.model.policies import Restriction

log = logging.getLogger("pe_agent")


class RowsDifferError(StreambrokerError):
    """The columns of rows differ from those of the stream."""

    code = "SchemaMismatch"


class VisibleStream(Protocol):
    """What a reader may see of a stream: all of it, or what policies leave of it."""

    id: str

    @property
    def ddl(self) -> str:
        """The newest columns as Spark DDL."""

    @property
    def schema(self) -> pa.Schema:
        """The newest columns in Arrow."""

    @property
    def versions(self) -> SchemaVersions:
        """Columns of the stream, by epoch."""

    @property
    def manifests(self) -> Mapping[int, Manifest]:
        """Epochs, by number."""

    @property
    def restriction(self) -> Restriction | None:
        """What policies leave; None for everything."""

    @property
    def objects(self) -> DirectObjects | None:
        """What a reader may read from the bucket."""

    def read(self, block: AnyBlock, ddl: str) -> pa.RecordBatch:
        """Read one block; ``ddl`` has the columns of its epoch."""


class ExportStream:
    """Stages rows and publishes epochs. Appending is thread-safe; the index has one owner.

    Attributes:
        manifests: epochs in the log, by number.
        stages: stages in the log, by id.
        recovered_position: next epoch and rows before it, from all manifests in the log at open,
            including those of removed epochs; so no epoch number is used twice.
        compactor: frees disk space; only the index's owner may call it.
        objects: what tasks have put into the bucket; None without object storage.
        versions: columns of the stream, by epoch.
        restriction: none; see `VisibleStream`.
    """

    restriction = None

    def __init__(
        self,
        id_: str,
        *,
        log: StreamLog,
        query: str,
        ddl: str,
        schema: pa.Schema,
        segment_bytes: int,
        objects: DirectObjects | None = None,
    ) -> None:
        """Build the index from the frames of an opened log."""
        self.id = id_
        self.log = log
        self.query = query
        self.versions = SchemaVersions(ddl, schema)
        self.objects = objects
        self._index = StreamIndex()
        self.manifests = self._index.manifests
        self.stages = self._index.stages
        self.recovered_position = (0, 0)
        self.compactor = Compactor(id_, log, self._index, segment_bytes=segment_bytes)
        self._recover()

    @property
    def ddl(self) -> str:
        """The newest columns as Spark DDL."""
        return self.versions.newest.ddl

    @property
    def schema(self) -> pa.Schema:
        """The newest columns in Arrow."""
        return self.versions.newest.schema

    @property
    def staged_bytes(self) -> int:
        """Bytes of the stages in the log."""
        return self._index.staged_bytes

    def _recover(self) -> None:
        """Index the recovered frames; skip the blocks of published stages."""
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
                for b in manifest.log_blocks
            ):
                self._index.add_epoch(manifest, address)
        self._recover_stages(
            {
                id_: (end, address)
                for id_, (end, address) in ends.items()
                if end["batch"] > published.get(end["query"], -1)
            }
        )
        self.log.forget_recovered()

    def _recover_stages(self, ends: Mapping[str, tuple[dict[str, Any], Address]]) -> None:
        blocks: dict[str, list[AnyBlock]] = {id_: [] for id_ in ends}
        for address, _, meta in self.log.recovered_frames({Kind.STAGE_DATA}) if ends else ():
            data = json.loads(meta)
            if data["s"] in blocks:
                blocks[data["s"]].append(Block(address, data["n"]))
        for id_, (end, address) in ends.items():
            if len(blocks[id_]) == end["blocks"]:
                stage = Stage(
                    id=id_,
                    stream=self.id,
                    query=end["query"],
                    run=end["run"],
                    batch=end["batch"],
                    blocks=blocks[id_],
                    rows=end["rows"],
                    crc=end["crc"],
                    bytes=sum(b.bytes for b in blocks[id_]) + address.length,
                    complete=True,
                    end_address=address,
                )
                self._index.add_stage(stage)

    # -- writing -----------------------------------------------------------------------------

    def begin(self, *, query: str, run: str, batch: int, ddl: str = "") -> Stage:
        """Open a stage for rows of these columns; its segments are retained from now on."""
        id_ = secrets.token_hex(8)
        stage = Stage(id=id_, stream=self.id, query=query, run=run, batch=batch, ddl=ddl)
        with self._index.lock:
            stage.last_segment = self.log.segments()[-1].number
            self._index.add_stage(stage)
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
        schema = self.versions.of(stage.ddl or self.ddl).schema
        if batch.schema != schema:
            batch = self._cast_batch(batch, schema)
        payload = batch.serialize()
        stage.crc = zlib.crc32(payload, stage.crc)
        meta = json.dumps({"s": stage.id, "n": batch.num_rows}).encode()
        address = self.log.append(Kind.STAGE_DATA, meta, payload)
        self._index.add_frame(stage, address, Block(address, batch.num_rows))

    def _cast_batch(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        try:
            return batch.cast(schema)
        except (pa.ArrowException, ValueError, KeyError) as error:
            raise RowsDifferError(
                f"rows of columns ({_describe_columns(batch.schema)}) arrived for stream"
                f" {self.id}, which has ({_describe_columns(schema)}): {error}. Nothing of"
                " the stage is kept."
            ) from error

    def finish(self, stage: Stage) -> None:
        """Close a stage; durable when this returns."""
        address = self.log.append(Kind.STAGE_END, stage.encode_end(), b"")
        self._index.add_frame(stage, address, None)
        self.log.sync(address)
        stage.complete = True

    def discard(self, stage: str) -> None:
        """Remove a stage from the index; the compactor frees its disk space."""
        self._index.remove_stage(stage)

    def publish(self, manifest: Manifest, control: bytes = b"") -> None:
        """Make an epoch durable and add it to the index, with its control tuples if any."""
        address = self.append_epoch(manifest, control)
        self.log.sync(address)
        self.add_epoch(manifest, address)

    def append_epoch(self, manifest: Manifest, control: bytes = b"") -> Address:
        """Append an epoch to the log, which keeps it and its blocks until `add_epoch`."""
        address = self.log.append(Kind.MANIFEST, manifest.encode(), control)
        self._index.pin_epoch(manifest, address)
        return address

    def add_epoch(self, manifest: Manifest, address: Address) -> None:
        """Add an epoch to the index, once the log is synced up to its address."""
        self._index.add_epoch(manifest, address)
        self._index.unpin_epoch(manifest, address)

    # -- reading and removing ----------------------------------------------------------------

    def read(self, block: AnyBlock, ddl: str) -> pa.RecordBatch:
        """Read one block from the log or the bucket, and verify its checksum.

        ``ddl`` has the columns of its epoch, and so of the result.

        Raises:
            LogCorrupt: the block is damaged, or its object is missing.
            AddressGone: its segment was removed.
            BucketError: the object storage is unavailable.
        """
        payload: bytes | memoryview
        if isinstance(block, Block):
            payload = self.log.read(block.address)
        elif self.objects is None:
            raise ObjectCorrupt(
                f"{self.id}/{block.key}",
                offset=block.offset,
                reason="it is in object storage, and the agent was started without",
            )
        else:
            payload = self.objects.read(block.key, block.offset, block.bytes, block.crc)
        schema = self.versions.of(ddl).schema
        return pa.ipc.read_record_batch(pa.py_buffer(payload), schema)

    def read_control(self, epoch: int) -> list[IndexedControl]:
        """Read the control tuples of an epoch from the log; empty if there are none.

        Raises:
            LogCorrupt: the tuples are damaged.
            AddressGone: the epoch was removed.
        """
        while (manifest := self.manifests.get(epoch)) is not None and manifest.control:
            address = self._index.addresses.get(epoch)
            try:
                return decode(bytes(self.log.read(address))) if address else []
            except AddressGone:
                if self._index.addresses.get(epoch) == address:
                    raise
        return []

    def epoch_bytes(self, epoch: int) -> int:
        """Return the bytes of an epoch in the log: its stages and its manifest."""
        return self.manifests[epoch].bytes + self._index.addresses[epoch].length

    def remove(self, epochs: list[int]) -> None:
        """Remove epochs from the index and free their disk space."""
        for epoch in epochs:
            self._index.remove_epoch(epoch)
        self.compactor.forget_epochs(epochs)
        self.compactor.run()

    def sweep_stages(self, is_obsolete: Callable[[Stage], bool]) -> None:
        """Discard obsolete stages."""
        for stage in list(self.stages.values()):
            if is_obsolete(stage):
                self.discard(stage.id)

    def object_keys(self) -> set[str]:
        """Return the keys of all objects that an epoch has, or may get."""
        return self._index.object_keys()

    def damaged_segments(self) -> list[str]:
        """Return damaged segments as ``<stream>/<segment file>`` paths."""
        return [f"{self.id}/{number:010d}.segment" for number in sorted(self.log.damaged)]


def _describe_columns(schema: pa.Schema) -> str:
    return ", ".join(f"{f.name} {f.type}" for f in schema)
