"""Publishing side of an export: admission, staging, commit.

Core's publisher and ledger decide; this module applies the decisions to the log and the store.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from pe_agent.agent.exports.backpressure import Backpressure
from pe_agent.agent.exports.shard_coordinator import SealedStage, ShardCoordinator, join_blocks
from pe_agent.agent.exports.state_codec import save_publisher
from pe_agent.agent.exports.stream import retained_epochs as retained
from pe_agent.agent.exports.stream.export_stream import ExportStream
from pe_agent.agent.exports.stream.manifests import Manifest, ManifestControl, Stage
from pe_agent.agent.state.store import GROWING, SEALED
from pe_agent.log.errors import LogError
from streambroker_core.control.tuples.epoch_control import (
    IndexedControl,
    deduplicate_indexed,
    encode,
)
from streambroker_core.control.tuples.window_bounds import make_control_head
from streambroker_core.errors import StreambrokerError
from streambroker_core.ledger.epochs import Epoch, Stream
from streambroker_core.ledger.publisher import PublisherBusy

log = logging.getLogger("pe_agent")

BATCH_BYTES = 1 << 30
"""Minimum byte limit of one batch; ``buffer.maxBytes`` raises it."""
EPOCH_MEMORY = 1200
"""Bytes of agent memory per epoch, without its blocks (measured on CPython)."""
BLOCK_MEMORY = 250
"""Bytes of agent memory per block of an epoch."""


class StageMissingError(StreambrokerError):
    """The batch names a stage that is missing or incomplete here; nothing was published."""

    code = "StageMissing"


class NotAdmittedError(StreambrokerError):
    """Rows arrived without admission: another query publishes, or the log is full."""

    code = "NotAdmitted"


class StageTooLargeError(StreambrokerError):
    """A batch exceeds the byte limit of its export; nothing was published."""

    code = "StageTooLarge"

    def __init__(self, batch: int, target: str, *, staged: int, requested: int, limit: int) -> None:
        super().__init__(
            f"batch {batch} of {target} has staged {staged:,} bytes and requests {requested:,}"
            f" more; it may have {limit:,} there. Nothing of it is published: let the query read"
            " less at once (maxBytesPerBatch, maxOffsetsPerTrigger), or raise the export's"
            " buffer.maxBytes."
        )


@dataclass(frozen=True, slots=True)
class _CommitRequest:
    """Commit of a driver; see :meth:`ExportPublisher.publish`."""

    query: str
    run: str
    batch: int
    stages: list[dict[str, Any]]
    ddl: str | None
    rows: int
    control: list[IndexedControl]
    schema: pa.Schema | None


class ExportPublisher(Backpressure, ShardCoordinator):
    """Requests of the publishing query to an export. Public methods are thread-safe."""

    _admitted: tuple[str, int] | None = None
    _readmitted: frozenset[tuple[str, int]] = frozenset()

    def admit(
        self,
        *,
        query: str,
        run: str,
        batch: int,
        ddl: str,
        renewed: int | None,
        schema: pa.Schema | None = None,
    ) -> dict[str, Any]:
        """Decide whether a task may stage rows now (action ``publisher.admit``).

        A task that passes the schema of its rows may be sent to shard agents. The response then
        names export and stream, the staging shard agents, and the byte limit of a batch at each.

        Returns:
            ``{"admitted": true}``, or ``{"occupied": …}`` while another query's lease runs, or
            ``{"waiting": …}`` while ``wait`` readers have not finished the epochs that fill the
            log.

        Raises:
            SelfWaitError: those readers wait for this query themselves (deadlock).
            FencedError, PublisherInUseError, BatchDiffersError: see core's ledger.publisher.
        """
        with self._lock:
            now, before = self._clock(), self.publisher.run
            verdict = self.publisher.admit(
                query=query, run=run, batch=batch, schema=ddl, now=now, renewed=renewed
            )
            if isinstance(verdict, PublisherBusy):
                return {
                    "occupied": {
                        "holder": verdict.holder,
                        "renewed": verdict.renewed,
                        "seconds": max(0.0, verdict.lease_expires - now),
                    }
                }
            if self.publisher.run != before:
                self._sweep_stages()
            save_publisher(self.publisher, self._store)
            if self.publisher.is_published(batch):
                self._readmitted |= {(run, batch)}
                return {"admitted": True}
            if self._admitted != (run, batch):
                holders = self._check_admission(query, now)
                if holders:
                    return {
                        "waiting": {
                            "held": self.ledger.retention.held_bytes(now),
                            "limit": self.ledger.retention.limits.max_bytes,
                            "memory": self.ledger.retention.held_memory(now),
                            "memory_limit": self.ledger.retention.max_memory,
                            "since": self.wait_times.since(now),
                            "holders": [
                                {
                                    "reader": h.reader,
                                    "import": h.import_,
                                    "bytes": h.bytes,
                                    "away": h.away,
                                }
                                for h in holders
                            ],
                        }
                    }
            self._admitted = (run, batch)
            shard_agents = (
                self.shard_agents.staging_agents()
                if self.shard_agents and schema is not None
                else []
            )
            if not shard_agents:
                return {"admitted": True}
            return {
                "admitted": True,
                "home": self.key,
                "stream": self._stream_for_batch(query, batch, ddl, schema).id,
                "limit": self._batch_limit(),
                "fellows": shard_agents,
            }

    def stage(
        self,
        *,
        query: str,
        run: str,
        batch: int,
        ddl: str,
        schema: pa.Schema,
        batches: Iterable[pa.RecordBatch],
    ) -> dict[str, Any]:
        """Write one task's rows to the log; durable when this returns.

        Rows of a published batch are only counted: its commit needs nothing else.

        Raises:
            NotAdmittedError: the task did not ask for admission, or the admission has ended.
            StageTooLargeError: the batch exceeds its byte limit; the stage is discarded.
            LogFull: the disk is full; the written part of the stage is discarded.
        """
        begun = self._begin_stage(query, run, batch, ddl, schema)
        if begun is None:
            return _count_only(batches)
        stream, stage = begun
        try:
            stream.write(stage, batches, partial(self._check_size, stream, batch))
        finally:
            with contextlib.suppress(LogError), self._lock:
                self._reclaim()
        return stage.summary()

    def _check_size(self, stream: ExportStream, batch: int, requested: int) -> None:
        staged, limit = stream.staged_bytes, self._batch_limit()
        if staged + requested > limit:
            raise StageTooLargeError(
                batch, self.key, staged=staged, requested=requested, limit=limit
            )

    def _batch_limit(self) -> int:
        return max(self.ledger.retention.limits.max_bytes, BATCH_BYTES)

    def _begin_stage(
        self, query: str, run: str, batch: int, ddl: str, schema: pa.Schema
    ) -> tuple[ExportStream, Stage] | None:
        with self._lock:
            admitted = self._admitted == (run, batch) or (run, batch) in self._readmitted
            if self.publisher.query != query or not admitted:
                raise NotAdmittedError(
                    f"batch {batch} of query {query} is not admitted to {self.key}: the task has to"
                    " ask for admission again."
                )
            self.publisher.check_run(run)
            self.publisher.renew(query, self._clock())
            if self.publisher.is_published(batch):
                return None
            current = self._stream_for_batch(query, batch, ddl, schema)
            return current, current.begin(query=query, run=run, batch=batch)

    def _stream_for_batch(
        self, query: str, batch: int, ddl: str, schema: pa.Schema
    ) -> ExportStream:
        """Return the stream that a batch is written to.

        Three batches open a new stream: a query's first batch, one with another schema, and one
        before which batches are missing. Readers would take the last one for a missing batch.
        """
        current = self.newest
        if current is None or (current.query, current.ddl) != (query, ddl):
            return self._open_stream(query, ddl, schema)
        if self.publisher.gap_before(batch) and self.ledger.streams[current.id].next:
            return self._open_stream(query, ddl, schema)
        return current

    def _open_stream(self, query: str, ddl: str, schema: pa.Schema) -> ExportStream:
        id_ = secrets.token_hex(8)
        schema = schema.remove_metadata()
        self._orphan_logs.add(id_)
        stream = ExportStream.open(
            id_,
            self._directory / id_,
            committer=self._committer,
            query=query,
            ddl=ddl,
            schema=schema,
            segment_bytes=self._segment_bytes,
        )
        with self._store.transaction(durable=True) as db:
            seal = "UPDATE streams SET sealed = ? WHERE export = ? AND sealed = ?"
            db.execute(seal, (SEALED, self.key, GROWING))
            db.execute(
                "INSERT INTO streams (id, export, ord, ddl, arrow, sealed, next, rows, query)"
                " SELECT ?, ?, COALESCE(MAX(ord), 0) + 1, ?, ?, ?, 0, 0, ?"
                " FROM streams WHERE export = ?",
                (id_, self.key, ddl, bytes(schema.serialize()), GROWING, query, self.key),
            )
            retained.write(id_, retained.current_level(Stream(id_)), db)
            self._orphan_logs.forget(id_, db)
        self._add_stream(stream)
        self.ledger.open(id_)
        self._notify()
        return stream

    def publish(
        self,
        *,
        query: str,
        run: str,
        batch: int,
        stages: list[dict[str, Any]],
        ddl: str | None,
        control: Iterable[IndexedControl] = (),
        schema: pa.Schema | None = None,
    ) -> dict[str, Any]:
        """Publish the stages of a batch as one epoch, exactly once.

        ``stages`` are summaries returned by :meth:`stage`, in partition order. ``ddl`` is the Spark
        schema of the rows, None without rows and control. ``control`` has tuples with their row
        position in the batch; copies count once. Control without rows requires ``schema``.

        Returns:
            ``{"published": bool, "epoch": int | null, "stream": id | null}``. ``published`` is
            false if the batch was published before. A batch without rows and control has no epoch.

        Raises:
            StageMissingError: a stage is missing here or differs from its summary.
            ControlError, ControlLimitError: the control tuples do not fit one epoch.
            FencedError, PublisherInUseError, BatchDiffersError: see core's ledger.publisher.
        """
        ddl = None if ddl is None else sys.intern(ddl)  # one copy in memory for all epochs
        rows = sum(s["rows"] for s in stages)
        placed = deduplicate_indexed(control, rows, f"batch {batch} of {self.key}", query)
        commit = _CommitRequest(query, run, batch, stages, ddl, rows, placed, schema)
        with self._publishing:
            sealed = self._seal_remote_stages(
                query=query, run=run, batch=batch, stages=stages, ddl=ddl, control=len(placed)
            )
            return self._publish(commit, sealed)

    def _publish(
        self, request: _CommitRequest, sealed: Mapping[str, SealedStage]
    ) -> dict[str, Any]:
        with self._lock:
            fresh = self.publisher.publish(
                query=request.query,
                run=request.run,
                batch=request.batch,
                rows=request.rows,
                schema=request.ddl,
                now=self._clock(),
                control=len(request.control),
            )
            if not fresh:
                self._discard_republished(request)
                return {"published": False, "epoch": None, "stream": None}
            response: dict[str, Any] = {"published": True, "epoch": None, "stream": None}
            if request.rows or request.control:
                manifest, stream = self._build_manifest(request, sealed)
                self._append_epoch(stream, manifest, request.control)
                response.update(epoch=manifest.epoch, stream=stream.id)
            # Before the store is written: if that fails, the batch is published nevertheless.
            gap = self.publisher.record_published(
                batch=request.batch,
                rows=request.rows,
                schema=request.ddl,
                control=len(request.control),
            )
            if gap:
                log.warning(
                    "batch %s of export %s follows batch %s: was the checkpoint restored?",
                    request.batch,
                    self.key,
                    request.batch - gap - 1,
                )
            if response["epoch"] is not None:
                self._record_position(stream, manifest)
            # An epoch is in the log; a batch without one leaves only this trace.
            save_publisher(self.publisher, self._store, durable=response["epoch"] is None)
            self._admitted, self._readmitted = None, frozenset()
            self._emit_waiting()
            self._sweep_stages()
            self._sweep()
        self._notify()
        return response

    def _emit_waiting(self) -> None:
        """Publish waiting external control tuples in an epoch of their own."""

    def _discard_republished(self, request: _CommitRequest) -> None:
        for summary in request.stages:
            self._discard_stage(summary["stage"])
        self._sweep_stages()
        if self._admitted == (request.run, request.batch):
            self._admitted = None
        if request.query != self.publisher.query:
            save_publisher(self.publisher, self._store, durable=True)

    def _append_epoch(
        self, stream: ExportStream, manifest: Manifest, control: Sequence[IndexedControl] = ()
    ) -> None:
        stream.publish(manifest, encode(control) if control else b"")
        self.ledger.publish(
            stream.id, to_ledger_epoch(manifest, stream.epoch_bytes(manifest.epoch))
        )
        self.published_rows += manifest.rows
        self.published.update(one.delivery.value for _, one in control)

    def _record_position(self, stream: ExportStream, manifest: Manifest) -> None:
        """Store the end position of a stream; it outlives the stream's epochs."""
        self._store.write(
            "UPDATE streams SET next = ?, rows = ? WHERE id = ?",
            manifest.epoch + 1,
            manifest.rows_after,
            stream.id,
        )

    def _build_manifest(
        self, request: _CommitRequest, sealed: Mapping[str, SealedStage]
    ) -> tuple[Manifest, ExportStream]:
        named = [s for s in request.stages if s["rows"]]
        stream = self._stream_for_commit(request, staged=bool(named))
        stages = {
            s["stage"]: verify_stage(stream, s, f"export {self.key}")
            for s in named
            if s["stage"] not in sealed
        }
        ledger_stream = self.ledger.streams[stream.id]
        blocks, agents = join_blocks(
            [
                ((), sealed[s["stage"]])
                if s["stage"] in sealed
                else (stages[s["stage"]].blocks, None)
                for s in named
            ]
        )
        manifest = Manifest(
            epoch=ledger_stream.next,
            query=request.query,
            run=request.run,
            batch=request.batch,
            rows=request.rows,
            bytes=sum(s.bytes for s in stages.values()) + sum(s.bytes for s in sealed.values()),
            published=self._clock(),
            ddl=str(request.ddl),
            rows_before=ledger_stream.rows,
            blocks=blocks,
            agents=agents,
            gap=self.publisher.gap_before(request.batch),
            control=_manifest_control(ledger_stream.next, request.control),
        )
        return manifest, stream

    def _stream_for_commit(self, request: _CommitRequest, *, staged: bool) -> ExportStream:
        """Return the stream in which a batch is published; a batch without rows may open it."""
        stream = self.newest
        if not staged and request.schema is not None and request.ddl is not None:
            return self._stream_for_batch(request.query, request.batch, request.ddl, request.schema)
        if stream is None or not staged:
            raise StageMissingError(
                f"batch {request.batch} of {self.key} names no stage of this agent."
            )
        return stream

    def abort(self, *, query: str, run: str, batch: int, stages: list[str]) -> None:
        """Discard all stages of a batch, known to the driver or not; published batches stay."""
        with self._publishing, self._lock:
            for stage in stages:
                self._discard_stage(stage)
            if self._admitted == (run, batch):
                self._admitted = None
            if self.publisher.abort(query=query, run=run, batch=batch):
                save_publisher(self.publisher, self._store)
            self._sweep_stages()

    def finish(self, *, query: str | None, run: str | None) -> None:
        """Mark the export as ended for its readers; a later epoch revokes this.

        Raises:
            PublisherInUseError, FencedError: see core's ledger.publisher.
        """
        with self._lock:
            self.publisher.finish(query, run, self._end_position())
            free = self._clock() >= self.publisher.lease_expires
            save_publisher(self.publisher, self._store, lease_released=free, durable=True)
        self._notify()

    def renew_publisher(self, query: str) -> None:
        """Renew the publisher lease: the publishing driver is alive."""
        with self._lock:
            self.publisher.renew(query, self._clock())

    def end_publisher_lease(self, query: str) -> None:
        """End the lease of a stopped query, durably: a restarted agent need not wait for it."""
        with self._lock:
            self.publisher.end_lease(query, self._clock())
            save_publisher(
                self.publisher, self._store, lease_released=query == self.publisher.query
            )

    def _discard_stage(self, stage: str) -> None:
        for stream in self.streams.values():
            stream.discard(stage)

    def _sweep_stages(self) -> None:
        """Discard stages that no commit can name any more, and free their disk space."""
        for stream in self.streams.values():
            stream.sweep_stages(lambda s: self.publisher.is_stale(s.run, s.batch))
        self._reclaim()

    def _reclaim(self) -> None:
        for stream in self.streams.values():
            stream.reclaim()


def verify_stage(stream: ExportStream | None, summary: Mapping[str, Any], location: str) -> Stage:
    """Return the stage of a task's summary (``stage``, ``rows``, ``crc``).

    Raises:
        StageMissingError: the stage is missing, incomplete, or differs from the summary.
    """
    stage = stream.stages.get(summary["stage"]) if stream else None
    if stage is None or not stage.complete:
        raise StageMissingError(
            f"stage {summary['stage']} is not in the log of {location} (was the agent's data"
            f" directory"
            " replaced?). Nothing was published; the query stops and replays."
        )
    if (stage.rows, stage.crc) != (summary["rows"], summary["crc"]):
        raise StageMissingError(
            f"stage {stage.id} has {stage.rows} rows and crc {stage.crc} in the log of {location},"
            f" the"
            f" task reported {summary['rows']} and {summary['crc']}. Nothing was published."
        )
    return stage


def _count_only(batches: Iterable[pa.RecordBatch]) -> dict[str, Any]:
    rows = sum(batch.num_rows for batch in batches)
    return {"stage": secrets.token_hex(8), "stream": None, "rows": rows, "bytes": 0, "crc": 0}


def _manifest_control(epoch: int, control: Sequence[IndexedControl]) -> ManifestControl | None:
    if not control:
        return None
    return ManifestControl(
        head=make_control_head(epoch, (one for _, one in control)), query_tuples=len(control)
    )


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
        memory=EPOCH_MEMORY + BLOCK_MEMORY * len(manifest.blocks),
        control=manifest.control.head if manifest.control else None,
    )
