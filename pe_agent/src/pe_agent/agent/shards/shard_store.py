"""Shard store: stages and parts of epochs kept for exports of another PE of the job (the home).

The home *seals* the stages of an epoch: they become this agent's part of it, named by the epoch's
number. The home reports obsolete data as levels: which epochs it retains, and the last published
batch. Levels only rise, so a late one is harmless. A late seal is detected by its ``turn``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from pe_agent.agent.exports.export_state import SEGMENT_BYTES
from pe_agent.agent.exports.publisher import StageMissingError, StageTooLargeError, verify_stage
from pe_agent.agent.exports.stream import retained_epochs as retained
from pe_agent.agent.exports.stream.block_reader import BytesCache, ReadRequest
from pe_agent.agent.exports.stream.export_stream import ExportStream
from pe_agent.agent.exports.stream.manifests import Manifest, Stage
from pe_agent.agent.exports.stream.row_filter import count_passing_rows
from pe_agent.agent.exports.stream.stream_directory import StreamDirectory
from pe_agent.agent.shards import read_grant as grants
from pe_agent.agent.shards.read_grant import Grant, GrantError
from pe_agent.agent.shards.verify import ShardVerifier
from pe_agent.agent.state.store import Store
from pe_agent.log.commit import Committer
from pe_agent.log.errors import LogError
from pe_agent.log.log import StreamLog
from streambroker_core.errors import StreambrokerError
from streambroker_core.model import pe_of
from streambroker_core.wire.agent_rpc.stages import (
    BrokenParts,
    PassingRows,
    Released,
    SealedBlocks,
    SealedStages,
    StageCount,
    StageRelease,
    StageSeal,
    StageVerify,
)

log = logging.getLogger("pe_agent")

MAX_COUNTS = 200_000
"""Cached row counts by block and filter; counts beyond this are computed again."""


MISSING_REASON = "it was read to its end and removed, or the agent's data directory was replaced"


class ShardMissingError(StreambrokerError):
    """A shard agent's part of an epoch is missing; nothing was skipped."""

    code = "DataLoss"

    def __init__(self, pe: str, epochs: str, reason: str) -> None:
        super().__init__(
            f"agent {pe} does not have its part of {epochs}: {reason}. Nothing was skipped; the"
            " query stops here. Restore that agent's data directory, or start the importer with a"
            " new checkpoint, or without them: fail_on_data_loss=False."
        )


@dataclass(slots=True)
class _StoredStream:
    """One stream of a foreign export; ``lock`` serializes seals, releases and sweeps."""

    export: str
    stream: ExportStream
    seal_number: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


class ShardStore:
    """All streams that one agent keeps for others. Thread-safe."""

    def __init__(
        self,
        pe: str,
        directory: Path,
        store: Store,
        committer: Committer,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> None:
        self._pe = pe
        self._store = store
        self._directory = StreamDirectory(store, "kept", directory, committer, segment_bytes)
        self._directory.remove_orphans()
        self._lock = threading.Lock()
        self._stored: dict[str, _StoredStream] = {}
        self._counts = BytesCache(MAX_COUNTS)
        self._sent = _SentCounts()
        self._verifier = ShardVerifier()
        for id_, export, query, ddl, arrow in store.query(
            "SELECT stream, export, query, ddl, arrow FROM kept_streams"
        ):
            with store.reading_row("kept_streams", id_):
                schema = pa.ipc.read_schema(pa.py_buffer(arrow))
            stream = self._directory.open(
                id_, query=query, ddl=ddl, schema=schema, progress=progress, is_shard=True
            )
            self._stored[id_] = _StoredStream(export, stream)

    def _find(self, export: str, stream: str) -> _StoredStream | None:
        stored = self._stored.get(stream)
        return stored if stored is not None and stored.export == export else None

    # -- staging -----------------------------------------------------------------------------

    def stage(
        self,
        command: Mapping[str, Any],
        schema: pa.Schema,
        batches: Iterable[pa.RecordBatch],
    ) -> dict[str, Any]:
        """Write one task's rows; durable when this returns.

        ``command`` has ``home`` (key of the export), ``stream``, ``query``, ``run``, ``batch``,
        ``ddl``, and ``limit``, the maximum bytes of the batch at this agent.

        Raises:
            StageTooLargeError: the batch exceeds its limit; the stage is discarded.
            LogFull: the disk is full; the written part of the stage is discarded.
        """
        stored = self._ensure_stream(command, schema.remove_metadata())
        stream, batch = stored.stream, int(command["batch"])
        stage = stream.begin(query=command["query"], run=command["run"], batch=batch)
        limit = int(command["limit"])
        stream.write(stage, batches, lambda more: self._check_size(stored, stage, more, limit))
        return {**stage.summary(), "agent": self._pe}

    def _ensure_stream(self, command: Mapping[str, Any], schema: pa.Schema) -> _StoredStream:
        export, id_ = str(command["home"]), str(command["stream"])
        query, ddl = str(command["query"]), str(command["ddl"])
        with self._lock:
            stored = self._stored.get(id_)
            if stored is None:
                self._directory.add_orphan(id_)
                stream = self._directory.open(
                    id_, query=query, ddl=ddl, schema=schema, is_shard=True
                )
                stored = _StoredStream(export, stream)
                with self._store.transaction(durable=True) as db:
                    db.execute(
                        "INSERT OR REPLACE INTO kept_streams VALUES (?, ?, ?, ?, ?)",
                        (id_, export, query, ddl, bytes(schema.serialize())),
                    )
                    self._directory.forget_orphan(id_, db)
                self._stored[id_] = stored
        if (stored.export, stored.stream.query, stored.stream.ddl) != (export, query, ddl):
            raise StageMissingError(f"stream {id_} is not of export {export} and query {query}.")
        return stored

    def _check_size(self, stored: _StoredStream, stage: Stage, requested: int, limit: int) -> None:
        attempt = (stage.run, stage.batch)
        staged = sum(
            s.bytes for s in list(stored.stream.stages.values()) if (s.run, s.batch) == attempt
        )
        if staged + requested > limit:
            of_what = f"{stored.export} at agent {self._pe}"
            raise StageTooLargeError(
                stage.batch, of_what, staged=staged, requested=requested, limit=limit
            )

    # -- commands of the home ----------------------------------------------------------------

    def seal(self, request: StageSeal) -> SealedStages:
        """Make stages this agent's part of an epoch; durable when this returns.

        Idempotent. Another part of the same epoch replaces one that the home has not published.

        Raises:
            StageMissingError: a stage is missing or differs from its summary, or the call is late.
        """
        stored = self._find(request.export, request.stream)
        if stored is None:
            raise StageMissingError(
                f"stream {request.stream} is not at agent {self._pe} (was its data directory"
                " replaced?). Nothing was published; the query stops and replays."
            )
        with stored.lock:
            stream, epoch = stored.stream, request.epoch
            if request.turn < stored.seal_number:
                raise StageMissingError(
                    f"epoch {epoch} of stream {stream.id} was sealed by a later call meanwhile."
                )
            stages = [verify_stage(stream, s, f"agent {self._pe}") for s in request.stages]
            stored.seal_number = request.turn
            part = Manifest(
                epoch=epoch,
                query=request.query,
                run=request.run,
                batch=request.batch,
                rows=sum(s.rows for s in stages),
                bytes=sum(s.bytes for s in stages),
                published=request.published,
                ddl=stream.ddl,
                rows_before=0,
                blocks=tuple(b for s in stages for b in s.blocks),
            )
            known = stream.manifests.get(epoch)
            if known is None or (known.run, known.blocks) != (part.run, part.blocks):
                stream.remove([epoch])
                stream.publish(part)
            return SealedStages(
                stages=[
                    SealedBlocks(bytes=s.bytes, blocks=[(b.rows, b.bytes) for b in s.blocks])
                    for s in stages
                ]
            )

    def release(self, request: StageRelease) -> Released:
        """Free what the home does not need any more; return what is kept for it."""
        for export, levels in request.exports.items():
            for id_, level in levels.items():
                stored = self._find(export, id_)
                if stored is not None and level is None:
                    self._remove(id_)
                elif stored is not None:
                    with stored.lock:
                        _release_epochs(stored.stream, level)
        streams: dict[str, list[str]] = {}
        for id_, stored in list(self._stored.items()):
            if pe_of(stored.export) == request.home:
                streams.setdefault(stored.export, []).append(id_)
        return Released(streams=streams, sent=self._sent.take(request.home))

    def _remove(self, id_: str) -> None:
        with self._lock:
            stored = self._stored.pop(id_, None)
            self._verifier.forget(id_)
            with self._store.transaction() as db:
                db.execute("DELETE FROM kept_streams WHERE stream = ?", (id_,))
                self._directory.add_orphan(id_, db)
            if stored is not None:
                stored.stream.log.close()
            self._directory.remove_orphan(id_)

    # -- reading -----------------------------------------------------------------------------

    def open_read(self, request: Mapping[str, Any]) -> GrantedRead:
        """Return what a ticket with a grant may read.

        Raises:
            GrantError: the grant is not from the home, or not for this read.
            ShardMissingError: the stream is not here.
        """
        stream = str(request["stream"])
        wanted = f"epochs {describe_epochs(request)} of stream {stream} of {request['export']}"
        try:
            grant = grants.verify(self._store.get("token") or "", request.get("grant"))
        except GrantError as error:
            raise GrantError(f"agent {self._pe} does not send {wanted}: {error}") from None
        if grant.export != request["export"] or stream not in grant.ranges:
            raise GrantError(f"the grant is for {grant.export}, not for {wanted}")
        stored = self._find(grant.export, stream)
        if stored is None:
            raise ShardMissingError(self._pe, wanted, MISSING_REASON)
        return GrantedRead(self._pe, stored.stream, grant, self._counts, self._sent, self._verifier)

    def verify(self, request: StageVerify) -> BrokenParts:
        """Return the missing or damaged parts; see :meth:`ShardVerifier.verify`."""
        stored = {id_: self._find(request.export, id_) for id_ in request.streams}
        streams = {s: k.stream if k else None for s, k in stored.items()}
        return self._verifier.verify(streams, request.streams)

    def count(self, request: StageCount) -> PassingRows:
        """Return the passing rows by epoch, None for missing or unreadable parts."""
        stored = self._find(request.export, request.stream)
        counts = {n: self._count_passing(stored, n, request.filter) for n in request.epochs}
        return PassingRows(rows={str(n): rows for n, rows in counts.items()})

    def _count_passing(self, stored: _StoredStream | None, epoch: int, filter_: str) -> int | None:
        part = stored.stream.manifests.get(epoch) if stored else None
        if stored is None or part is None:
            return None
        total = 0
        for index, block in enumerate(part.local_blocks):
            cached = self._counts.get((stored.stream.id, epoch, index, filter_))
            try:
                total += (
                    count_passing_rows(stored.stream, block, filter_) if cached is None else cached
                )
            except LogError as error:
                log.warning(
                    "cannot count part of epoch %s of %s: %s", epoch, stored.stream.id, error
                )
                return None
        return total

    def logs(self) -> list[StreamLog]:
        """Return the logs of all streams."""
        return [stored.stream.log for stored in self._stored.values()]

    # -- status ------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Return the status by export and stream."""
        result: dict[str, Any] = {}
        for id_, stored in list(self._stored.items()):
            result.setdefault(stored.export, {})[id_] = {
                "epochs": len(stored.stream.manifests),
                "stages": len(stored.stream.stages),
                "bytes": sum(s.bytes for s in stored.stream.log.segments()),
                "damaged": stored.stream.damaged_segments(),
            }
        return result

    def close(self) -> None:
        """Close the logs."""
        with self._lock:
            for stored in self._stored.values():
                stored.stream.log.close()


class GrantedRead:
    """One stream of a shard as a grant opens it; read by the agent's block reader."""

    def __init__(
        self,
        pe: str,
        stream: ExportStream,
        grant: Grant,
        counts: BytesCache,
        sent: _SentCounts,
        verifier: ShardVerifier,
    ) -> None:
        self._pe, self._grant, self._counts, self._sent = pe, grant, counts, sent
        self._verifier = verifier
        self._query: str | None = None
        self.streams: Mapping[str, ExportStream] = {stream.id: stream}

    def find_readable(self, read: ReadRequest, epoch: int) -> Manifest | None:
        """Return the part of an epoch if the grant covers this read, else None.

        Its query is forwarded to the home, which sees no read if all rows are at shard agents.

        Raises:
            ShardMissingError: the part is granted, but missing.
        """
        if not self._grant.covers(read, epoch):
            return None
        self._query = read.query
        part = self.streams[read.stream].manifests.get(epoch)
        if part is None:
            missing = self._describe_epoch(read.stream, epoch)
            raise ShardMissingError(self._pe, missing, MISSING_REASON)
        return part

    def unreadable_error(self, stream: str, epoch: int, error: LogError) -> StreambrokerError:
        """Return the error for a damaged block: data loss, with agent and epoch."""
        self._verifier.mark_unverified(stream, epoch)
        return ShardMissingError(self._pe, self._describe_epoch(stream, epoch), str(error))

    def _describe_epoch(self, stream: str, epoch: int) -> str:
        return f"epoch {epoch} of stream {stream} of {self._grant.export}"

    def count_block(self, reader: str, stream: str, epoch: int, block: int, rows: int) -> None:
        """Cache how many rows of a block passed the filter, for the home's count."""
        if self._grant.filter is not None:
            self._counts.put((stream, epoch, block, self._grant.filter), rows, 1)

    def count_sent(self, reader: str, rows: int, size: int) -> None:
        """Record sent rows and bytes, for the next release call."""
        self._sent.add(self._grant.export, reader, rows, size, self._query)

    def count_control(self, reader: str, deliveries: Iterable[str]) -> None:
        """Record nothing: the home has the manifests with the control tuples."""


class _SentCounts:
    """Rows, bytes and query sent, by export and reader, until the home fetches them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: dict[str, dict[str, tuple[int, int, str | None]]] = {}

    def add(self, export: str, reader: str, rows: int, size: int, query: str | None) -> None:
        with self._lock:
            of = self._sums.setdefault(export, {})
            before = of.get(reader, (0, 0, None))
            of[reader] = (before[0] + rows, before[1] + size, query or before[2])

    def take(self, home: str) -> dict[str, dict[str, tuple[int, int, str | None]]]:
        with self._lock:
            of_home = [export for export in self._sums if pe_of(export) == home]
            return {export: self._sums.pop(export) for export in of_home}


def describe_epochs(request: Mapping[str, Any]) -> str:
    """Return the epoch range of a ticket, for messages."""
    numbers = [int(p[0]) for p in request.get("pieces", ())] or [0]
    return f"{min(numbers)} to {max(numbers)}"


def _release_epochs(stream: ExportStream, level: Mapping[str, Any]) -> None:
    """Remove parts of epochs that the home has removed, and stages it will not publish."""
    obsolete = [n for n in list(stream.manifests) if not retained.is_retained(n, level)]
    runs, aborted = frozenset(level["runs"]), level["aborted"]

    def useless(stage: Stage) -> bool:
        if level["sealed"] or stage.run in runs or [stage.run, stage.batch] == aborted:
            return True
        return stage.query == level["query"] and stage.batch <= int(level["batch"])

    stream.sweep_stages(useless)
    if obsolete:
        stream.remove(obsolete)
    else:
        stream.compactor.run()
