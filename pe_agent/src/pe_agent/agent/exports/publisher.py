"""Publishing side of an export: admission, staging, commit.

Core's publisher and ledger decide; this module applies the decisions to the log and the store.
"""

from __future__ import annotations

import base64
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
from pe_agent.agent.exports.control_sender import ControlSender
from pe_agent.agent.exports.epoch_writer import EpochWriter
from pe_agent.agent.exports.export_state import ExportState
from pe_agent.agent.exports.stream.export_stream import ExportStream
from pe_agent.agent.exports.stream.manifests import Manifest, ManifestControl, ObjectBlock, Stage
from pe_agent.log.errors import LogError
from pe_agent.log.objects.direct import attempt_of
from streambroker_core.control.tuples.epoch_control import (
    IndexedControl,
    deduplicate_indexed,
)
from streambroker_core.control.tuples.window_bounds import make_control_head
from streambroker_core.errors import StreambrokerError
from streambroker_core.ledger.publisher import Publisher, PublisherBusy

log = logging.getLogger("pe_agent")

BATCH_BYTES = 1 << 30
"""Minimum byte limit of one batch; ``buffer.maxBytes`` raises it."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Commit:
    """Commit of a driver; see `ExportPublisher.publish`. ``rows`` is the total of the stages."""

    query: str
    run: str
    batch: int
    stages: Sequence[dict[str, Any]]
    ddl: str | None
    rows: int
    control: Sequence[IndexedControl]
    schema: pa.Schema | None
    traceparent: str | None

    def is_new(self, publisher: Publisher, now: float) -> bool:
        """Return whether the batch is to be published; raises like core's `Publisher.publish`."""
        return publisher.publish(
            query=self.query,
            run=self.run,
            batch=self.batch,
            rows=self.rows,
            schema=self.ddl,
            now=now,
            control=len(self.control),
        )


class ExportPublisher:
    """Requests of the publishing query to an export. Public methods are thread-safe."""

    def __init__(
        self,
        state: ExportState,
        epochs: EpochWriter,
        backpressure: Backpressure,
        control: ControlSender,
    ) -> None:
        self._state = state
        self._publisher = state.publisher
        self._ledger = state.ledger
        self._key = state.key
        self._epochs = epochs
        self._backpressure = backpressure
        self._control = control
        self._admitted: tuple[str, int] | None = None
        self._run_in_bucket: str | None = None
        self._readmitted: frozenset[tuple[str, int]] = frozenset()

    def admit(
        self,
        *,
        query: str,
        run: str,
        batch: int,
        ddl: str,
        renewed: int | None,
    ) -> dict[str, Any]:
        """Decide whether a task may stage rows now (action ``publisher.admit``).

        Returns:
            ``{"admitted": true}``, or ``{"occupied": …}`` while another query's lease runs, or
            ``{"waiting": …}`` while ``wait`` readers have not finished the epochs that fill the
            log.

        Raises:
            SchemaIncompatibleError: the export's schema policy does not allow the columns.
            SelfWaitError: those readers wait for this query themselves (deadlock).
            StorageMissingError: the export demands object storage, and the agent has none.
            FencedError, PublisherInUseError, BatchDiffersError: see core's ledger.publisher.
        """
        self._state.check_storage()
        with self._state.lock:
            now, before = self._state.clock(), self._publisher.run
            flight = self._state.in_flight
            if flight is not None and flight != (query, run):
                renewals = self._publisher.renewals
                return {"occupied": {"holder": flight[0], "renewed": renewals, "seconds": 1.0}}
            self._check_columns(query, run, batch, ddl)
            verdict = self._publisher.admit(
                query=query, run=run, batch=batch, schema=ddl, now=now, renewed=renewed
            )
            if isinstance(verdict, PublisherBusy):
                seconds = max(0.0, verdict.lease_expires - now)
                occupied = {"holder": verdict.holder, "renewed": verdict.renewed}
                return {"occupied": {**occupied, "seconds": seconds}}
            if self._publisher.run != before:
                self._epochs.sweep_stages()
                if batch and self._publisher.last is None:
                    log.warning(
                        "the log of export %s is new, but its query continues with batch %d: what"
                        " importers had not read of earlier batches is lost. Was the data directory"
                        " deleted or replaced? If you have a copy, stop the job and restore it.",
                        self._key,
                        batch,
                    )
            self._state.save_publisher()
            if self._publisher.is_published(batch):
                self._readmitted |= {(run, batch)}
                return {"admitted": True}
            if self._admitted != (run, batch):
                waiting = self._backpressure.check_admission(query, now)
                if waiting:
                    return {"waiting": waiting}
            self._admitted = (run, batch)
            return {"admitted": True, **({"direct": True} if self._is_direct() else {})}

    def _check_columns(self, query: str, run: str, batch: int, ddl: str) -> None:
        """Check columns of a query that would be admitted; others learn that they have to wait."""
        if query == self._publisher.query:
            self._publisher.check_run(run)
            if self._publisher.is_published(batch):
                return
        elif self._state.clock() < self._publisher.lease_expires:
            return
        self._state.check_columns(ddl, self._state.schema_policy)

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
            with contextlib.suppress(LogError), self._state.lock:
                self._epochs.reclaim()
        return stage.summary()

    def _is_direct(self) -> bool:
        """Return whether tasks may put rows into the object storage themselves."""
        storage = self._state.storage
        return self._state.durability == "stored" and storage is not None and storage.is_shared

    def upload(
        self,
        *,
        query: str,
        run: str,
        batch: int,
        ddl: str,
        schema: pa.Schema,
        key: str | None = None,
    ) -> dict[str, Any]:
        """Return where a task writes an object with rows; ``key`` is one from an earlier call.

        Raises:
            NotAdmittedError: the batch is not admitted, or was published meanwhile.
            BucketError: the agent's credentials cannot sign.
        """
        begun = self._stream_for_stage(query, run, batch, ddl, schema)
        objects = None if begun is None else begun.objects
        if begun is None or objects is None:
            raise NotAdmittedError(f"batch {batch} of {self._key} takes no objects now.")
        if self._run_in_bucket != run:
            # A successor that does not know the run would delete its objects.
            with self._state.lock:
                self._state.save_publisher(durable=True)
            self._state.save_stored()
            self._run_in_bucket = run
        if key is None:
            key = objects.new_key(run, batch)
        elif attempt_of(key) != (run, batch):
            raise NotAdmittedError(f"{key} is no object of batch {batch} of {self._key}.")
        return {
            "url": objects.put_url(key),
            "key": key,
            "stream": begun.id,
            "arrow": base64.b64encode(begun.versions.of(ddl).schema.serialize()).decode(),
        }

    def _check_size(self, stream: ExportStream, batch: int, requested: int) -> None:
        staged, limit = stream.staged_bytes, self._batch_limit()
        if staged + requested > limit:
            raise StageTooLargeError(
                batch, self._key, staged=staged, requested=requested, limit=limit
            )

    def _batch_limit(self) -> int:
        return max(self._ledger.retention.limits.max_bytes, BATCH_BYTES)

    def _begin_stage(
        self, query: str, run: str, batch: int, ddl: str, schema: pa.Schema
    ) -> tuple[ExportStream, Stage] | None:
        with self._state.lock:
            current = self._stream_for_stage(query, run, batch, ddl, schema)
            if current is None:
                return None
            return current, current.begin(query=query, run=run, batch=batch, ddl=ddl)

    def _stream_for_stage(
        self, query: str, run: str, batch: int, ddl: str, schema: pa.Schema
    ) -> ExportStream | None:
        """Return the stream that takes a task's rows; None if the batch was published."""
        with self._state.lock:
            admitted = self._admitted == (run, batch) or (run, batch) in self._readmitted
            if self._publisher.query != query or not admitted:
                raise NotAdmittedError(
                    f"batch {batch} of query {query} is not admitted to {self._key}: the"
                    " task has to ask for admission again."
                )
            self._publisher.check_run(run)
            self._publisher.renew(query, self._state.clock())
            if self._publisher.is_published(batch):
                return None
            return self._epochs.stream_for_batch(query, batch, ddl, schema)

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
        traceparent: str | None = None,
    ) -> dict[str, Any]:
        """Publish the stages of a batch as one epoch, exactly once.

        ``stages`` are summaries returned by :meth:`stage`, in partition order. ``ddl`` is the Spark
        schema of the rows, None without rows and control. ``control`` has tuples with their row
        position in the batch; copies count once. Control without rows requires ``schema``.
        ``traceparent`` is the span of this commit.

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
        placed = deduplicate_indexed(control, rows, f"batch {batch} of {self._key}", query)
        request = _Commit(
            query=query,
            run=run,
            batch=batch,
            stages=stages,
            ddl=ddl,
            rows=rows,
            control=placed,
            schema=schema,
            traceparent=traceparent,
        )
        with self._state.publishing:
            self._check_objects(request)
            return self._publish(request)

    def _check_objects(self, request: _Commit) -> None:
        """Look for the objects of a batch that is to be published.

        Raises:
            StageMissingError: one is missing or has another size: no task has written it there.
            StageTooLargeError: the objects exceed the byte limit of a batch.
            BucketError: the object storage is unavailable.
        """
        expected = {
            key: sum(size for size, _, _ in blocks)
            for stage in request.stages
            for key, blocks in stage.get("objects", {}).items()
        }
        with self._state.lock:
            stream = self._state.newest
            objects = None if stream is None else stream.objects
            if not expected or self._publisher.is_published(request.batch) or objects is None:
                return
        if sum(expected.values()) > self._batch_limit():
            raise StageTooLargeError(
                request.batch,
                self._key,
                staged=0,
                requested=sum(expected.values()),
                limit=self._batch_limit(),
            )
        found = objects.sizes(request.run, request.batch)
        missing = [key for key, size in expected.items() if found.get(key) != size]
        if missing:
            raise StageMissingError(
                f"{missing[0]} of batch {request.batch} of {self._key} is not in the bucket as its"
                " task has written it. Nothing was published. With file:///… mount the directory"
                " at the same place on all executors."
            )

    def _publish(self, request: _Commit) -> dict[str, Any]:
        epoch: int | None = None
        with contextlib.ExitStack() as flight:
            with self._state.lock:
                is_new = request.is_new(self._publisher, self._state.clock())
                if not is_new:
                    self._discard_republished(request)
                elif request.rows or request.control:
                    manifest, stream = self._build_manifest(request)
                    address = self._epochs.append(stream, manifest, request.control)
                    epoch = manifest.epoch
                    flight.enter_context(self._state.epoch_in_flight())
            if not is_new:
                # An agent that was killed may have recovered the batch from its disk alone.
                self._state.sync_stored()
                return {"published": False, "epoch": None, "stream": None}
            if epoch is not None:
                # Not under the lock: it may take as long as the object storage is away.
                stream.log.sync(address)
            flight.enter_context(self._state.lock)
            if epoch is not None:
                self._epochs.add(stream, manifest, request.control, address)
            # Before the store is written: if that fails, the batch is published nevertheless.
            gap = self._publisher.record_published(
                batch=request.batch,
                rows=request.rows,
                schema=request.ddl,
                control=len(request.control),
            )
            if gap:
                log.warning(
                    "batch %s of export %s follows batch %s: was the checkpoint restored?",
                    request.batch,
                    self._key,
                    request.batch - gap - 1,
                )
            if epoch is not None:
                self._epochs.record_position(stream, manifest)
            # An epoch is in the log; a batch without one leaves only this trace.
            self._state.save_publisher(durable=epoch is None)
            self._admitted, self._readmitted = None, frozenset()
        if epoch is None:
            self._state.save_stored()
        self._control.emit_waiting()
        with self._state.lock:
            self._epochs.sweep_stages()
            self._state.sweep()
        self._state.notify()
        return {
            "published": True,
            "epoch": epoch,
            "stream": None if epoch is None else stream.id,
        }

    def _discard_republished(self, request: _Commit) -> None:
        for summary in request.stages:
            self._epochs.discard_stage(summary["stage"])
        self._epochs.sweep_stages()
        if self._admitted == (request.run, request.batch):
            self._admitted = None
        if request.query != self._publisher.query:
            self._state.save_publisher(durable=True)

    def _build_manifest(self, request: _Commit) -> tuple[Manifest, ExportStream]:
        named = [s for s in request.stages if s["rows"]]
        stream = self._stream_for_commit(request, staged=bool(named))
        stages = [
            self._read_objects(stream, s, request)
            if "objects" in s
            else verify_stage(stream, s, f"export {self._key}")
            for s in named
        ]
        ledger_stream = self._ledger.streams[stream.id]
        manifest = Manifest(
            epoch=ledger_stream.next,
            query=request.query,
            run=request.run,
            batch=request.batch,
            rows=request.rows,
            bytes=sum(s.bytes for s in stages),
            published=self._state.clock(),
            ddl=str(request.ddl),
            rows_before=ledger_stream.rows,
            blocks=tuple(block for stage in stages for block in stage.blocks),
            gap=self._publisher.gap_before(request.batch),
            control=_manifest_control(ledger_stream.next, request.control),
            traceparent=request.traceparent,
        )
        return manifest, stream

    def _read_objects(
        self, stream: ExportStream, summary: Mapping[str, Any], request: _Commit
    ) -> Stage:
        """Return the stage of a task's summary whose rows are in objects.

        Raises:
            StageMissingError: the objects are of another batch or stream, or the batch was aborted.
        """
        run, batch = request.run, request.batch
        stage = Stage(summary["stage"], stream.id, request.query, run, batch)
        for key, sizes in summary["objects"].items():
            offset = 0
            for size, rows, crc in sizes:
                stage.blocks.append(ObjectBlock(key, offset, size, rows, crc))
                offset += size
            stage.bytes += offset
        is_of_batch = all(attempt_of(key) == (run, batch) for key in summary["objects"])
        if (
            not is_of_batch
            or summary["stream"] != stream.id
            or self._publisher.is_stale(run, batch)
            or sum(block.rows for block in stage.blocks) != summary["rows"]
        ):
            raise StageMissingError(
                f"the objects of stage {summary['stage']} are not of batch {batch} of stream"
                f" {stream.id}, or the batch was aborted; nothing was published."
            )
        return stage

    def _stream_for_commit(self, request: _Commit, *, staged: bool) -> ExportStream:
        """Return the stream in which a batch is published; a batch without rows may open it."""
        stream = self._state.newest
        if not staged and request.schema is not None and request.ddl is not None:
            return self._epochs.stream_for_batch(
                request.query, request.batch, request.ddl, request.schema
            )
        if stream is None or not staged:
            raise StageMissingError(
                f"batch {request.batch} of {self._key} names no stage of this agent."
            )
        return stream

    def abort(self, *, query: str, run: str, batch: int, stages: list[str]) -> None:
        """Discard all stages of a batch, known to the driver or not; published batches stay."""
        with self._state.publishing, self._state.lock:
            for stage in stages:
                self._epochs.discard_stage(stage)
            if self._admitted == (run, batch):
                self._admitted = None
            if self._publisher.abort(query=query, run=run, batch=batch):
                self._state.save_publisher()
            self._epochs.sweep_stages()

    def finish(self, *, query: str | None, run: str | None) -> None:
        """Mark the export as ended for its readers; a later epoch revokes this.

        Raises:
            PublisherInUseError, FencedError: see core's ledger.publisher.
        """
        with self._state.lock:
            self._publisher.finish(query, run, self._state.end_position())
            free = self._state.clock() >= self._publisher.lease_expires
            self._state.save_publisher(lease_released=free, durable=True)
        self._state.notify()

    def renew_publisher(self, query: str) -> None:
        """Renew the publisher lease: the publishing driver is alive."""
        with self._state.lock:
            self._publisher.renew(query, self._state.clock())

    def end_publisher_lease(self, query: str) -> None:
        """End the lease of a stopped query, durably: a restarted agent need not wait for it."""
        with self._state.lock:
            self._publisher.end_lease(query, self._state.clock())
            self._state.save_publisher(lease_released=query == self._publisher.query)


def verify_stage(stream: ExportStream | None, summary: Mapping[str, Any], location: str) -> Stage:
    """Return the stage of a task's summary (``stage``, ``rows``, ``crc``).

    Raises:
        StageMissingError: the stage is missing, incomplete, or differs from the summary.
    """
    stage = stream.stages.get(summary["stage"]) if stream else None
    if stage is None or not stage.complete:
        raise StageMissingError(
            f"stage {summary['stage']} is not in the log of {location} (was the agent's data"
            " directory replaced?). Nothing was published; the query stops and replays."
        )
    if (stage.rows, stage.crc) != (summary["rows"], summary["crc"]):
        raise StageMissingError(
            f"stage {stage.id} has {stage.rows} rows and crc {stage.crc} in the log of {location},"
            f" the task reported {summary['rows']} and {summary['crc']}. Nothing was published."
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
