"""The exporting side of an agent: admission, staging, publishing, plans and reads of one export.

The decisions are made by the publisher and the ledger of core; this file performs them on the
log and the store, one lock per export, disk writes of rows outside of it.
"""

from __future__ import annotations

import json
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from pe_agent.agent.claims_state import (
    decode_reader,
    encode_reader,
    restore_publisher,
    save_publisher,
)
from pe_agent.agent.deliveries import Deliveries
from pe_agent.agent.figures import export_figures
from pe_agent.agent.manifests import Manifest, Stage
from pe_agent.agent.masks import misfit
from pe_agent.agent.store import Store
from pe_agent.agent.streams import HostedStream
from pe_agent.log import Committer
from streambroker_core.errors import StreambrokerError
from streambroker_core.ledger import Answer, Ask, Cursor, Epoch, Ledger, Limits, Stream
from streambroker_core.publishing import Occupied, Publisher

SEGMENT_BYTES = 64 << 20


_STARTED = time.time() - time.monotonic()


def steady_clock() -> float:
    """Return seconds since 1970 that never jump: leases must not end because a clock was set."""
    return _STARTED + time.monotonic()


class StageMissingError(StreambrokerError):
    """A stage that the batch names is not here or is not whole; nothing was published."""

    code = "StageMissing"


class NotAdmittedError(StreambrokerError):
    """Rows came without admission: another query publishes, or the log is full."""

    code = "NotAdmitted"


class HostedExport:
    """One export of this agent's PE. All public calls are safe from any thread."""

    def __init__(
        self,
        key: str,
        directory: Path,
        store: Store,
        committer: Committer,
        *,
        notify: Callable[[], None],
        clock: Callable[[], float] = steady_clock,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        self.key = key
        self.streams: dict[str, HostedStream] = {}
        self.ledger = Ledger()
        self.publisher = Publisher(key)
        self.deliveries = Deliveries(self.streams)
        self._directory = directory
        self._store = store
        self._committer = committer
        self._notify = notify
        self._clock = clock
        self._segment_bytes = segment_bytes
        self._lock = threading.RLock()
        self._admitted: tuple[str, int] | None = None
        self._withdrawn: float | None = None

    # -- start and limits --------------------------------------------------------------------

    def recover(self, progress: Callable[[str, int, int], None] | None = None) -> None:
        """Open the logs that exist and rebuild the ledger from them and the store."""
        rows = self._store.query(
            "SELECT id, query, ddl, arrow, sealed, next, rows FROM streams WHERE export = ?"
            " AND sealed <> 2 ORDER BY ord",
            self.key,
        )
        forgotten = "SELECT id FROM streams WHERE export = ? AND sealed = 2"
        self.ledger.forgotten.update(id_ for (id_,) in self._store.query(forgotten, self.key))
        for id_, query, ddl, arrow, sealed, next_, total in rows:
            if sealed == 3:
                self.ledger.streams[id_] = Stream(id_, sealed=True)
                self.ledger.streams[id_].skip_to(next_, total)
                continue
            told = None if progress is None else lambda n, of, s=id_: progress(s, n, of)
            hosted = HostedStream.open(
                id_,
                self._directory / id_,
                committer=self._committer,
                query=query,
                ddl=ddl,
                schema=pa.ipc.read_schema(pa.py_buffer(arrow)),
                segment_bytes=self._segment_bytes,
                progress=told,
            )
            self.streams[id_] = hosted
            self._restore_stream(hosted, bool(sealed), next_, total)
        restore_publisher(self.publisher, self._store, self.streams.values(), now=self._clock())
        for id_, state in self._store.query(
            "SELECT id, state FROM readers WHERE export = ?", self.key
        ):
            reader, delivery = decode_reader(
                json.loads(state), streams=self.ledger.streams, now=self._clock()
            )
            self.ledger.readers[id_] = reader
            self.deliveries.restore(id_, delivery)
            for name, sums in json.loads(state).get("rows_before", {}).items():
                if name in self.ledger.streams:
                    for number, rows_before in sums:
                        self.ledger.streams[name].recall(number, rows_before)
        self._sweep_stages()

    def _restore_stream(self, hosted: HostedStream, sealed: bool, next_: int, total: int) -> None:
        stream = Stream(hosted.id)
        self.ledger.streams[hosted.id] = stream
        stream.sealed = sealed
        for m in sorted(hosted.manifests.values(), key=lambda m: m.epoch):
            stream.skip_to(m.epoch, m.rows_before)
            stream.add(_epoch(m))
        next_, total = max((next_, total), hosted.reached)
        if stream.next < next_:
            stream.skip_to(next_, total)

    def set_limits(self, limits: Limits) -> None:
        """Take what the export may keep."""
        with self._lock:
            self.ledger.limits = limits
            self._withdrawn = None
            self._sweep()
        self._notify()

    def set_routes(self, policies: Mapping[str, str]) -> None:
        """Take this export's part of the agent's own view: policy by import."""
        with self._lock:
            before = {r.id: (r.policy, r.routed) for r in self.ledger.readers.values()}
            self.ledger.set_routes(policies)
            for reader in self.ledger.readers.values():
                if before[reader.id] != (reader.policy, reader.routed):
                    self._save_reader(reader.id)
            self._sweep()
        self._notify()

    def withdraw(self) -> None:
        """The Export was deleted: routes are cut, the log is kept for grace."""
        with self._lock:
            if self._withdrawn is None:
                self._withdrawn = self._clock()
        self.set_routes({})

    def tick(self) -> None:
        """Let age, size and grace take what they may; called about once a second."""
        with self._lock:
            limits = self.ledger.limits
            if self._withdrawn is not None and self._clock() > self._withdrawn + limits.grace:
                self.ledger.limits = replace(limits, max_bytes=0, max_age=0.0)
            self._sweep()

    # -- publishing --------------------------------------------------------------------------

    def admit(
        self, *, query: str, run: str, batch: int, ddl: str, renewed: int | None
    ) -> dict[str, Any]:
        """Decide whether a task may stage rows now; see the ``publisher.admit`` action.

        Returns:
            ``{"admitted": true}``, or ``{"occupied": …}`` while another query's lease runs, or
            ``{"waiting": …}`` while the log is full of what ``wait`` readers have not finished.
        """
        with self._lock:
            now = self._clock()
            verdict = self.publisher.admit(
                query=query, run=run, batch=batch, schema=ddl, now=now, renewed=renewed
            )
            if isinstance(verdict, Occupied):
                return {
                    "occupied": {
                        "holder": verdict.holder,
                        "renewed": verdict.renewed,
                        "seconds": max(0.0, verdict.until - now),
                    }
                }
            save_publisher(self.publisher, self._store)
            again = self.publisher.last is not None and batch <= self.publisher.last.batch
            if self._admitted != (run, batch) and not again:
                holders = self.ledger.blocked_by(now)
                if holders:
                    return {
                        "waiting": {
                            "held": self.ledger.held_bytes(now),
                            "limit": self.ledger.limits.max_bytes,
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
            return {"admitted": True}

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

        Raises:
            NotAdmittedError: the task did not ask, or its admission is over.
            LogFull: the disk is full; what was written of this stage is discarded.
        """
        stream = self._stream_for(query, run, batch, ddl, schema)
        stage = stream.begin(query=query, run=run, batch=batch)
        try:
            for record_batch in batches:
                if record_batch.num_rows:
                    stream.append(stage, record_batch)
            stream.finish(stage)
        except BaseException:
            stream.discard(stage.id)
            raise
        return stage.summary()

    def _stream_for(
        self, query: str, run: str, batch: int, ddl: str, schema: pa.Schema
    ) -> HostedStream:
        with self._lock:
            if self.publisher.query != query or self._admitted != (run, batch):
                raise NotAdmittedError(
                    f"batch {batch} of query {query} is not admitted to {self.key}: the task has to"
                    " ask for admission again."
                )
            self.publisher.check_run(run)
            self.publisher.renew(query, self._clock())
            current = next(reversed(self.streams.values()), None)
            if current is None or (current.query, current.ddl) != (query, ddl):
                current = self._open_stream(query, ddl, schema)
            return current

    def _open_stream(self, query: str, ddl: str, schema: pa.Schema) -> HostedStream:
        id_ = secrets.token_hex(8)
        schema = schema.remove_metadata()
        stream = HostedStream.open(
            id_,
            self._directory / id_,
            committer=self._committer,
            query=query,
            ddl=ddl,
            schema=schema,
            segment_bytes=self._segment_bytes,
        )
        with self._store.transaction(durable=True) as db:
            db.execute("UPDATE streams SET sealed = 1 WHERE export = ? AND sealed = 0", (self.key,))
            db.execute(
                "INSERT INTO streams (id, export, ord, ddl, arrow, sealed, next, rows, query)"
                " SELECT ?, ?, COALESCE(MAX(ord), 0) + 1, ?, ?, 0, 0, 0, ?"
                " FROM streams WHERE export = ?",
                (id_, self.key, ddl, bytes(schema.serialize()), query, self.key),
            )
        self.streams[id_] = stream
        self.ledger.open(id_)
        self._notify()
        return stream

    def publish(
        self, *, query: str, run: str, batch: int, stages: list[dict[str, Any]], ddl: str | None
    ) -> dict[str, Any]:
        """Make the stages of a batch an epoch, whole and once.

        Args:
            query: streaming query id.
            run: its run id.
            batch: its batch id.
            stages: summaries as :meth:`stage` returned them, in partition order.
            ddl: Spark schema of the rows, None if there are none.

        Returns:
            ``{"published": bool, "epoch": int | null, "stream": id | null}``; not published again
            if it was already, no epoch if the batch has no rows.

        Raises:
            StageMissingError: a stage is not here, or not as it was told.
            FencedError, PublisherInUseError, BatchDiffersError: see core.publishing.
        """
        rows = sum(s["rows"] for s in stages)
        with self._lock:
            fresh = self.publisher.publish(
                query=query, run=run, batch=batch, rows=rows, schema=ddl, now=self._clock()
            )
            if not fresh:
                for summary in stages:
                    self._discard(summary["stage"])
                self._admitted = None
                return {"published": False, "epoch": None, "stream": None}
            answer: dict[str, Any] = {"published": True, "epoch": None, "stream": None}
            if rows:
                manifest, stream = self._manifest(query, run, batch, stages, str(ddl))
                stream.publish(manifest)
                self.ledger.publish(stream.id, _epoch(manifest))
                answer.update(epoch=manifest.epoch, stream=stream.id)
            self.publisher.published(batch=batch, rows=rows, schema=ddl)
            if rows:
                self._store.write(
                    "UPDATE streams SET next = ?, rows = ? WHERE id = ?",
                    manifest.epoch + 1,
                    manifest.rows_before + rows,
                    stream.id,
                )
            save_publisher(self.publisher, self._store)
            self._admitted = None
            self._sweep_stages()
            self._sweep()
        self._notify()
        return answer

    def _manifest(
        self, query: str, run: str, batch: int, summaries: list[dict[str, Any]], ddl: str
    ) -> tuple[Manifest, HostedStream]:
        stream = next(reversed(self.streams.values()), None)
        stages = [self._verified(stream, s) for s in summaries if s["rows"]]
        if stream is None or not stages:
            raise StageMissingError(f"batch {batch} of {self.key} names no stage of this agent.")
        known = self.ledger.streams[stream.id]
        manifest = Manifest(
            epoch=known.next,
            query=query,
            run=run,
            batch=batch,
            rows=sum(s.rows for s in stages),
            bytes=sum(s.bytes for s in stages),
            published=self._clock(),
            ddl=ddl,
            rows_before=known.rows_before[known.next],
            blocks=tuple(b for s in stages for b in s.blocks),
        )
        return manifest, stream

    def _verified(self, stream: HostedStream | None, summary: dict[str, Any]) -> Stage:
        stage = stream.stages.get(summary["stage"]) if stream else None
        if stage is None or not stage.complete:
            raise StageMissingError(
                f"stage {summary['stage']} of {self.key} is not in the log (was the agent's data"
                " directory replaced?). Nothing was published; the query stops and replays."
            )
        if (stage.rows, stage.crc) != (summary["rows"], summary["crc"]):
            raise StageMissingError(
                f"stage {stage.id} of {self.key} has {stage.rows} rows and crc {stage.crc}, the"
                f" task reported {summary['rows']} and {summary['crc']}. Nothing was published."
            )
        return stage

    def abort(self, *, query: str, run: str, batch: int, stages: list[str]) -> None:
        """Discard stages of a batch that was not published; after a publish nothing changes."""
        with self._lock:
            for stage in stages:
                self._discard(stage)
            if self._admitted == (run, batch):
                self._admitted = None

    def renew_publisher(self, query: str) -> None:
        """The publishing driver lives."""
        with self._lock:
            self.publisher.renew(query, self._clock())

    def renounce(self, query: str) -> None:
        """The publishing query ended in order; also an agent that restarts need not wait for it."""
        with self._lock:
            self.publisher.renounce(query, self._clock())
            save_publisher(self.publisher, self._store, free=query == self.publisher.query)

    def _discard(self, stage: str) -> None:
        for stream in self.streams.values():
            stream.discard(stage)

    def _sweep_stages(self) -> None:
        last = self.publisher.last.batch if self.publisher.last else -1
        run = next(reversed(self.publisher.runs), "")
        for stream in self.streams.values():
            stream.sweep_stages(run=run, batch=last)

    # -- readers -----------------------------------------------------------------------------

    def plan(
        self,
        ask: Ask,
        *,
        filter_: str | None,
        columns: list[str] | None,
        unfit: Collection[str] = (),
    ) -> Answer:
        """Acknowledge a reader's position, pin its next epochs, remember under which filter.

        Nothing is planned of the streams in ``unfit``; see :meth:`misfits`.
        """
        with self._lock:
            now = self._clock()
            self._finish(ask)
            if unfit:
                limit = self.heads() if ask.limit is None else ask.limit
                ask = replace(ask, limit={s: n for s, n in limit.items() if s not in unfit})
            answer = self.ledger.plan(ask, now)
            if answer.routed:
                self.deliveries.begin(ask.reader, filter_, columns, answer.planned)
            self._save_reader(ask.reader)
            self._forget_evicted()
            self._sweep()
        if answer.finished:
            self._notify()
        return answer

    def misfits(
        self, filter_: str | None, columns: list[str] | None, schema: str | None
    ) -> dict[str, str]:
        """Return the streams that a reader cannot read, and why not.

        Args:
            filter_: its filter.
            columns: names of the columns it wants, None for all.
            schema: those columns with their types, as DDL; None if it does not say.
        """
        wanted = None if columns is None else tuple(columns)
        told = {s.id: misfit(s, filter_, wanted, schema) for s in list(self.streams.values())}
        return {stream: why for stream, why in told.items() if why is not None}

    def replan(
        self,
        ask: Ask,
        ranges: Mapping[str, tuple[int, int]],
        *,
        filter_: str | None,
        columns: list[str] | None,
    ) -> dict[str, dict[int, list[list[int]]]]:
        """Register a checkpointed plan again.

        Returns:
            Its blocks: ``{stream: {epoch: [[rows, bytes], …]}}``.
        """
        with self._lock:
            self._finish(ask)
            self.ledger.replan(ask, ranges, self._clock())
            self.deliveries.begin(ask.reader, filter_, columns)
            self._save_reader(ask.reader)
            return {
                name: {
                    n: [[b.rows, b.bytes] for b in self.streams[name].manifests[n].blocks]
                    for n in range(first, next_)
                }
                for name, (first, next_) in ranges.items()
            }

    def may_read(self, reader: str, stream: str, epoch: int) -> Manifest | None:
        """Return the manifest if the reader has planned the epoch, else None."""
        with self._lock:
            if not self.ledger.is_planned(reader, stream, epoch):
                return None
            hosted = self.streams.get(stream)
            return None if hosted is None else hosted.manifests.get(epoch)

    def count_block(self, reader: str, stream: str, epoch: int, block: int, rows: int) -> None:
        """Note how many rows of a block passed the filter; a repeated read changes nothing."""
        with self._lock:
            self.deliveries.passed(reader, stream, epoch, block, rows)

    def _forget_evicted(self) -> None:
        for id_ in self.ledger.evicted:
            self.deliveries.forget(id_)
            self._store.write("DELETE FROM readers WHERE export = ? AND id = ?", self.key, id_)
        self.ledger.evicted.clear()

    def _finish(self, ask: Ask) -> None:
        reader = self.ledger.readers.get(ask.reader)
        if reader is not None:
            self.deliveries.finish(reader, ask.positions)

    def renew(self, reader: str, import_: str, seconds: float) -> None:
        """The agent of a reader's import says that it lives for ``seconds`` more."""
        with self._lock:
            if self._is_of(reader, import_):
                self.ledger.renew(reader, self._clock() + seconds)

    def leave(self, reader: str, import_: str) -> None:
        """A reader's process ended in order."""
        with self._lock:
            if self._is_of(reader, import_):
                self.ledger.leave(reader, self._clock())

    def _is_of(self, reader: str, import_: str) -> bool:
        known = self.ledger.readers.get(reader)
        return known is not None and known.import_ == import_

    def heads(self) -> dict[str, int]:
        """Return the number the next epoch of each stream gets."""
        with self._lock:
            return {s.id: s.next for s in self.ledger.streams.values()}

    # -- retention ---------------------------------------------------------------------------

    def _sweep(self) -> None:
        for name, epochs in self.ledger.sweep(self._clock()).items():
            self.streams[name].remove(epochs)
        oldest = True
        for stream in list(self.ledger.streams.values()):
            oldest = oldest and stream.sealed and not stream.epochs
            if stream.sealed and not stream.epochs and stream.id in self.streams:
                self._remove_log(stream.id)
            oldest = oldest and not self.ledger.wanted(stream.id)
            if oldest:
                self.ledger.forget_stream(stream.id)
                self._store.write("UPDATE streams SET sealed = 2 WHERE id = ?", stream.id)

    def _remove_log(self, id_: str) -> None:
        """Give back the disk of a stream without epochs; what it was stays known."""
        self._store.write("UPDATE streams SET sealed = 3 WHERE id = ?", id_)
        self.streams.pop(id_).log.close()
        shutil.rmtree(self._directory / id_, ignore_errors=True)

    def _save_reader(self, id_: str) -> None:
        reader = self.ledger.readers[id_]
        state = encode_reader(reader, self.deliveries.of(id_))
        state["rows_before"] = {
            name: [[n, self.ledger.streams[name].rows_between(0, n)] for n in _ends(cursor)]
            for name, cursor in reader.cursors.items()
        }
        self._store.write(
            "INSERT OR REPLACE INTO readers VALUES (?, ?, ?)", self.key, id_, json.dumps(state)
        )

    # -- seen from outside -------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Return figures for people: streams, readers, what is held and by whom."""
        with self._lock:
            return export_figures(self, self._clock())

    def close(self) -> None:
        """Close the logs."""
        with self._lock:
            for stream in self.streams.values():
                stream.log.close()


def _ends(cursor: Cursor) -> set[int]:
    """Return the positions a reader may come back with."""
    return {cursor.next, *(cursor.planned or ())}


def _epoch(manifest: Manifest) -> Epoch:
    return Epoch(
        number=manifest.epoch,
        rows=manifest.rows,
        bytes=manifest.bytes,
        published=manifest.published,
        query=manifest.query,
        batch=manifest.batch,
    )


__all__ = ["HostedExport", "Limits", "NotAdmittedError", "StageMissingError"]
