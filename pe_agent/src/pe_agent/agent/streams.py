"""One stream in the agent: its log, its schema, and the index of its epochs and stages."""

from __future__ import annotations

import json
import secrets
import zlib
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from pe_agent.agent.manifests import Block, Manifest, Stage
from pe_agent.log import Address, Committer, Kind, StreamLog
from streambroker_core.errors import StreambrokerError


class RowsDifferError(StreambrokerError):
    """Rows whose columns are not those of the stream."""

    code = "SchemaMismatch"


class HostedStream:
    """Rows in, epochs out. Appending is safe from many threads; the index has one owner.

    Attributes:
        reached: next epoch and rows before it, by the manifests in the log when it was opened,
            those of removed epochs among them; no number is given twice.
    """

    def __init__(
        self, id_: str, *, log: StreamLog, query: str, ddl: str, schema: pa.Schema
    ) -> None:
        self.id = id_
        self.log = log
        self.query = query
        self.ddl = ddl
        self.schema = schema
        self.manifests: dict[int, Manifest] = {}
        self.stages: dict[str, Stage] = {}
        self._addresses: dict[int, Address] = {}
        self.reached = (0, 0)

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
    ) -> HostedStream:
        """Create or recover the stream's log and build the index from its frames."""
        log = StreamLog.open(
            directory, segment_bytes=segment_bytes, committer=committer, progress=progress
        )
        stream = HostedStream(id_, log=log, query=query, ddl=ddl, schema=schema)
        stream._recover()
        return stream

    def _recover(self) -> None:
        blocks: dict[str, list[Block]] = {}
        present = {s.number for s in self.log.segments()}
        for address, kind, meta in self.log.frames():
            if kind == Kind.MANIFEST:
                manifest = Manifest.decode(meta)
                self.reached = max(self.reached, (manifest.epoch + 1, manifest.rows_after))
                if manifest.segments() <= present:
                    self.manifests[manifest.epoch] = manifest
                    self._addresses[manifest.epoch] = address
            elif kind == Kind.STAGE_DATA:
                data = json.loads(meta)
                blocks.setdefault(data["s"], []).append(Block(address, data["n"]))
            elif kind == Kind.STAGE_END:
                self._recover_stage(json.loads(meta), blocks)

    def _recover_stage(self, end: dict[str, object], blocks: dict[str, list[Block]]) -> None:
        found = blocks.pop(str(end["stage"]), [])
        if len(found) != end["blocks"]:
            return
        stage = Stage(
            floor=min((b.address.segment for b in found), default=0),
            id=str(end["stage"]),
            stream=self.id,
            query=str(end["query"]),
            run=str(end["run"]),
            batch=int(str(end["batch"])),
            blocks=found,
            rows=int(str(end["rows"])),
            crc=int(str(end["crc"])),
            bytes=sum(b.bytes for b in found),
            complete=True,
        )
        self.stages[stage.id] = stage

    # -- writing -----------------------------------------------------------------------------

    def begin(self, *, query: str, run: str, batch: int) -> Stage:
        """Open a stage; the segments it lies in are kept from now on."""
        stage = Stage(id=secrets.token_hex(8), stream=self.id, query=query, run=run, batch=batch)
        stage.floor = self.log.segments()[-1].number
        self.stages[stage.id] = stage
        return stage

    def append(self, stage: Stage, batch: pa.RecordBatch) -> None:
        """Append one record batch of a stage; durable after :meth:`finish`."""
        if batch.schema != self.schema:
            batch = self._shaped(batch)
        payload = batch.serialize()
        stage.crc = zlib.crc32(payload, stage.crc)
        meta = json.dumps({"s": stage.id, "n": batch.num_rows}).encode()
        address = self.log.append(Kind.STAGE_DATA, meta, payload)
        stage.blocks.append(Block(address, batch.num_rows))
        stage.rows += batch.num_rows
        stage.bytes += address.length

    def _shaped(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        try:
            return batch.cast(self.schema)
        except (pa.ArrowException, ValueError, KeyError) as error:
            raise RowsDifferError(
                f"rows of columns ({_columns(batch.schema)}) came for stream {self.id}, which has"
                f" ({_columns(self.schema)}): {error}. Nothing of the stage is kept."
            ) from error

    def finish(self, stage: Stage) -> None:
        """Close a stage; returns when all of it is on the disk."""
        address = self.log.append(Kind.STAGE_END, stage.end(), b"")
        self.log.sync(address)
        stage.complete = True

    def discard(self, stage: str) -> None:
        """Forget a stage that no manifest will name; its bytes go with their segment."""
        self.stages.pop(stage, None)

    def publish(self, manifest: Manifest) -> None:
        """Make an epoch durable and visible in the index."""
        address = self.log.append(Kind.MANIFEST, manifest.encode(), b"")
        self.log.sync(address)
        self.manifests[manifest.epoch] = manifest
        self._addresses[manifest.epoch] = address

    # -- reading and removing ----------------------------------------------------------------

    def read(self, block: Block) -> pa.RecordBatch:
        """Read one block from the log; its checksum is verified."""
        payload = self.log.read(block.address)
        return pa.ipc.read_record_batch(pa.py_buffer(payload), self.schema)

    def remove(self, epochs: list[int]) -> None:
        """Take epochs out of the index and delete the segments that nothing needs any more."""
        for epoch in epochs:
            self.manifests.pop(epoch, None)
            self._addresses.pop(epoch, None)
        needed = {segment for m in self.manifests.values() for segment in m.segments()}
        needed |= {a.segment for a in self._addresses.values()}
        floor = min((stage.floor for stage in list(self.stages.values())), default=None)
        self.log.remove_segments(
            lambda number: number in needed or (floor is not None and number >= floor)
        )

    def sweep_stages(self, *, run: str, batch: int) -> None:
        """Forget the stages that no manifest will name: of published batches or earlier runs."""
        for stage in list(self.stages.values()):
            if stage.batch <= batch or stage.run != run:
                del self.stages[stage.id]


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{f.name} {f.type}" for f in schema)
