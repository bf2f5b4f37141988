"""Streams and epochs of an export in its log: opens streams, appends epochs, discards stages."""

from __future__ import annotations

import logging
import secrets
import time
from collections import Counter
from collections.abc import Sequence

import pyarrow as pa

from pe_agent.agent.exports.export_state import ExportState
from pe_agent.agent.exports.stream import retained_epochs as retained
from pe_agent.agent.exports.stream.export_stream import ExportStream
from pe_agent.agent.exports.stream.manifests import Manifest
from pe_agent.agent.exports.stream.schema_versions import SchemaVersion
from pe_agent.agent.state.store import EVOLVED_FORMAT, GROWING, SEALED
from pe_agent.log.frames import Address
from streambroker_core.control.tuples.epoch_control import IndexedControl, encode
from streambroker_core.ledger.epochs import Epoch, Stream
from streambroker_core.model.schema import parse_ddl
from streambroker_core.model.schema_changes import compare_schemas

log = logging.getLogger("pe_agent")

EPOCH_MEMORY = 1200
"""Bytes of agent memory per epoch, without its blocks (measured on CPython)."""
BLOCK_MEMORY = 250
"""Bytes of agent memory per block of an epoch."""
TRACE_MEMORY = 110
"""Bytes of agent memory for the trace context of an epoch."""


class EpochWriter:
    """Writes the log of an export; callers of its methods hold the export's lock.

    Attributes:
        published_rows: rows of all streams ever published; never decreases.
        published: control tuples in epochs since the agent's start, by delivery.
    """

    def __init__(self, state: ExportState) -> None:
        self._state = state
        self._ledger = state.ledger
        self.published_rows = 0
        self.published: Counter[str] = Counter()

    def stream_for_batch(self, query: str, batch: int, ddl: str, schema: pa.Schema) -> ExportStream:
        """Return the stream that a batch is written to.

        Three batches open a new stream: a query's first batch, one with columns in which earlier
        rows cannot be read, and one before which batches are missing. Readers would take the last
        one for a missing batch. Added columns and wider types are a new version in the stream.
        """
        current = self._state.newest
        if current is None or current.query != query:
            return self._open_stream(query, ddl, schema)
        if self._state.publisher.gap_before(batch) and self._ledger.streams[current.id].next:
            return self._open_stream(query, ddl, schema)
        if current.ddl != ddl:
            before = current.versions.published.ddl
            if not compare_schemas(parse_ddl(before), parse_ddl(ddl)).keeps_stream:
                return self._open_stream(query, ddl, schema)
            self._add_version(current, ddl, schema.remove_metadata())
        return current

    def _add_version(self, stream: ExportStream, ddl: str, schema: pa.Schema) -> None:
        """Add a version to a stream, durably, before its first rows are written."""
        version = SchemaVersion(
            number=stream.versions.newest.number + 1,
            ddl=ddl,
            schema=schema,
            opened=time.time(),
        )
        with self._state.store.transaction(durable=True) as db:
            db.execute(
                "INSERT INTO stream_schemas VALUES (?, ?, ?, ?, NULL, ?)",
                (
                    stream.id,
                    version.number,
                    ddl,
                    bytes(schema.serialize()),
                    version.opened,
                ),
            )
            db.execute("INSERT OR REPLACE INTO meta VALUES ('format', ?)", (str(EVOLVED_FORMAT),))
        if stream.log.uploader is not None:
            stream.log.uploader.require_snapshot()
        stream.versions.add(version)
        log.info("export %s: version %s of %s", self._state.key, version.number, stream.id)

    def restore_versions(self, stream: ExportStream, *, has_rows: bool) -> None:
        """Restore the later versions of a stream from the store, and their epochs from the log.

        ``has_rows``: rows were published, though their epochs may be gone.
        """
        store = self._state.store
        rows = store.query(
            "SELECT number, ddl, arrow, first_epoch, opened FROM stream_schemas WHERE stream = ?"
            " ORDER BY number",
            stream.id,
        )
        with store.reading_row("stream_schemas", stream.id):
            for number, ddl, arrow, first_epoch, opened in rows:
                version = SchemaVersion(
                    number=number,
                    ddl=ddl,
                    schema=pa.ipc.read_schema(pa.py_buffer(arrow)),
                    first_epoch=first_epoch,
                    opened=opened,
                )
                stream.versions.add(version)
        first = stream.versions.all[0]
        if has_rows:
            first.first_epoch = 0
        for _, manifest in sorted(stream.manifests.items()):
            self._note_rows(stream, manifest)

    def _note_rows(self, stream: ExportStream, manifest: Manifest) -> None:
        version = stream.versions.note_rows(manifest.ddl, manifest.epoch) if manifest.rows else None
        if version is not None and version.number > 1:
            self._state.store.write(
                "UPDATE stream_schemas SET first_epoch = ? WHERE stream = ? AND number = ?",
                manifest.epoch,
                stream.id,
                version.number,
            )

    def _open_stream(self, query: str, ddl: str, schema: pa.Schema) -> ExportStream:
        id_ = secrets.token_hex(8)
        schema = schema.remove_metadata()
        self._state.directory.add_orphan(id_)
        stream = self._state.directory.open(id_, query=query, ddl=ddl, schema=schema)
        with self._state.store.transaction(durable=True) as db:
            seal = "UPDATE streams SET sealed = ? WHERE export = ? AND sealed = ?"
            db.execute(seal, (SEALED, self._state.key, GROWING))
            db.execute(
                "INSERT INTO streams (id, export, ord, ddl, arrow, sealed, next, rows, query)"
                " SELECT ?, ?, COALESCE(MAX(ord), 0) + 1, ?, ?, ?, 0, 0, ?"
                " FROM streams WHERE export = ?",
                (
                    id_,
                    self._state.key,
                    ddl,
                    bytes(schema.serialize()),
                    GROWING,
                    query,
                    self._state.key,
                ),
            )
            retained.write(id_, retained.current_level(Stream(id_)), db)
            self._state.directory.forget_orphan(id_, db)
        self._state.add_stream(stream)
        self._ledger.open(id_)
        self._state.notify()
        return stream

    def append(
        self, stream: ExportStream, manifest: Manifest, control: Sequence[IndexedControl]
    ) -> Address:
        """Append an epoch with its control tuples. The caller syncs the log, then calls `add`."""
        return stream.append_epoch(manifest, encode(control) if control else b"")

    def add(
        self,
        stream: ExportStream,
        manifest: Manifest,
        control: Sequence[IndexedControl],
        address: Address,
    ) -> None:
        """Let readers plan an epoch that is durable."""
        stream.add_epoch(manifest, address)
        self._note_rows(stream, manifest)
        self._ledger.publish(
            stream.id, to_ledger_epoch(manifest, stream.epoch_bytes(manifest.epoch))
        )
        self.published_rows += manifest.rows
        self.published.update(one.delivery.value for _, one in control)

    def record_position(self, stream: ExportStream, manifest: Manifest) -> None:
        """Store the end position of a stream; it outlives the stream's epochs."""
        self._state.store.write(
            "UPDATE streams SET next = ?, rows = ? WHERE id = ?",
            manifest.epoch + 1,
            manifest.rows_after,
            stream.id,
        )

    def discard_stage(self, stage: str) -> None:
        """Discard a stage, if it is in one of the streams."""
        for stream in self._state.streams.values():
            stream.discard(stage)

    def sweep_stages(self) -> None:
        """Discard stages that no commit can name any more, and free their disk space."""
        for stream in self._state.streams.values():
            stream.sweep_stages(lambda s: self._state.publisher.is_stale(s.run, s.batch))
        self.reclaim()

    def reclaim(self) -> None:
        """Free disk space that no stage and no epoch needs."""
        for stream in self._state.streams.values():
            stream.compactor.run()


def to_ledger_epoch(manifest: Manifest, size: int) -> Epoch:
    """Return the ledger's epoch for a manifest; ``size`` is in bytes."""
    return Epoch(
        number=manifest.epoch,
        rows=manifest.rows,
        bytes=size,
        published=manifest.published,
        query=manifest.query,
        batch=manifest.batch,
        gap=manifest.gap,
        memory=EPOCH_MEMORY
        + BLOCK_MEMORY * len(manifest.blocks)
        + (TRACE_MEMORY if manifest.traceparent else 0),
        control=manifest.control.head if manifest.control else None,
    )
