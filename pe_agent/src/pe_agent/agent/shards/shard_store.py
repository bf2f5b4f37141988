"""What a fellow keeps for the exports of another PE of its job: stages, and parts of epochs.

A stage that the home publishes is *sealed*: the stages of one epoch become this agent's part of
it, named by the epoch's number. What is of no use any more the home tells by levels: which epochs
it still has, and which batch it published last. Levels only rise, so one that comes late does no
harm; a seal that comes late is told by its ``turn``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from pe_agent.agent.exports.export_state import SEGMENT_BYTES
from pe_agent.agent.exports.publisher import StageMissingError, StageTooLargeError, verify_stage
from pe_agent.agent.exports.stream.block_reader import BytesCache
from pe_agent.agent.exports.stream.export_stream import ExportStream
from pe_agent.agent.exports.stream.manifests import Manifest, Stage
from pe_agent.agent.exports.stream.row_filter import count_passing_rows
from pe_agent.agent.shards import read_grant as grants
from pe_agent.agent.shards.read_grant import Grant, GrantError
from pe_agent.agent.shards.verify import ShardVerifier
from pe_agent.agent.state.orphan_logs import OrphanLogs
from pe_agent.agent.state.store import Store
from pe_agent.log.commit import Committer
from pe_agent.log.errors import LogError
from pe_agent.log.log import StreamLog
from streambroker_core.errors import StreambrokerError
from streambroker_core.model import pe_of

log = logging.getLogger("pe_agent")

MAX_COUNTS = 200_000
"""Of how many blocks and filters the rows that passed are remembered; others are counted anew."""


MISSING_REASON = "it was read to its end and removed, or the agent's data directory was replaced"


class ShardMissingError(StreambrokerError):
    """A fellow cannot give its part of an epoch; nothing was skipped."""

    code = "DataLoss"

    def __init__(self, pe: str, epochs: str, reason: str) -> None:
        super().__init__(
            f"agent {pe} does not have its part of {epochs}: {reason}. Nothing was skipped; the"
            f" query"
            " stops here. Restore that agent's data directory, or start the importer with a new"
            " checkpoint, or without them: fail_on_data_loss=False."
        )


@dataclass(slots=True)
class _StoredStream:
    """One stream of a foreign export; ``lock`` is for seals, releases and sweeps."""

    export: str
    stream: ExportStream
    seal_number: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


class ShardStore:
    """All that one agent keeps for others. Safe from any thread."""

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
        self._directory = directory
        self._store = store
        self._orphan_logs = OrphanLogs(store, "kept", directory)
        self._orphan_logs.remove_all()
        self._committer = committer
        self._segment_bytes = segment_bytes
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
            self._stored[id_] = _StoredStream(export, self._open(id_, query, ddl, schema, progress))

    def _open(
        self,
        id_: str,
        query: str,
        ddl: str,
        schema: pa.Schema,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> ExportStream:
        return ExportStream.open(
            id_,
            self._directory / id_,
            committer=self._committer,
            query=query,
            ddl=ddl,
            schema=schema,
            segment_bytes=self._segment_bytes,
            progress=None if progress is None else lambda n, of: progress(id_, n, of),
            is_shard=True,
        )

    def _find(self, export: str, stream: str) -> _StoredStream | None:
        kept = self._stored.get(stream)
        return kept if kept is not None and kept.export == export else None

    # -- staging -----------------------------------------------------------------------------

    def stage(
        self,
        command: Mapping[str, Any],
        schema: pa.Schema,
        batches: Iterable[pa.RecordBatch],
    ) -> dict[str, Any]:
        """Write one task's rows; durable when this returns.

        Args:
            command: ``home`` (key of the export), ``stream``, ``query``, ``run``, ``batch``,
                ``ddl``, and ``limit``: the bytes that the batch may take here.
            schema: that of the rows.
            batches: the rows.

        Raises:
            StageTooLargeError: the batch would take more; the stage is discarded.
            LogFull: the disk is full; what was written of this stage is discarded.
        """
        kept = self._ensure_stream(command, schema.remove_metadata())
        stream, batch = kept.stream, int(command["batch"])
        stage = stream.begin(query=command["query"], run=command["run"], batch=batch)
        limit = int(command["limit"])
        stream.write(stage, batches, lambda more: self._check_size(kept, stage, more, limit))
        return {**stage.summary(), "agent": self._pe}

    def _ensure_stream(self, command: Mapping[str, Any], schema: pa.Schema) -> _StoredStream:
        export, id_ = str(command["home"]), str(command["stream"])
        query, ddl = str(command["query"]), str(command["ddl"])
        with self._lock:
            kept = self._stored.get(id_)
            if kept is None:
                self._orphan_logs.add(id_)
                kept = _StoredStream(export, self._open(id_, query, ddl, schema))
                with self._store.transaction(durable=True) as db:
                    db.execute(
                        "INSERT OR REPLACE INTO kept_streams VALUES (?, ?, ?, ?, ?)",
                        (id_, export, query, ddl, bytes(schema.serialize())),
                    )
                    self._orphan_logs.forget(id_, db)
                self._stored[id_] = kept
        if (kept.export, kept.stream.query, kept.stream.ddl) != (export, query, ddl):
            raise StageMissingError(f"stream {id_} is not of export {export} and query {query}.")
        return kept

    def _check_size(self, stored: _StoredStream, stage: Stage, requested: int, limit: int) -> None:
        of = (stage.run, stage.batch)
        staged = sum(s.bytes for s in list(stored.stream.stages.values()) if (s.run, s.batch) == of)
        if staged + requested > limit:
            of_what = f"{stored.export} at agent {self._pe}"
            raise StageTooLargeError(
                stage.batch, of_what, staged=staged, requested=requested, limit=limit
            )

    # -- what the home says ------------------------------------------------------------------

    def seal(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Make stages this agent's part of an epoch; durable when this returns.

        Asked again, it answers alike. Another part of the same epoch takes the place of one that
        the home has not published.

        Args:
            body: ``export``, ``stream``, ``epoch``, ``query``, ``run``, ``batch``, ``published``,
                ``stages`` (summaries), and ``turn``, which rises with each call of the home.

        Returns:
            ``{"stages": [{"bytes", "blocks": [[rows, bytes], …]}, …]}``, in the same order.

        Raises:
            StageMissingError: a stage is not here, or not as it was told, or the call comes late.
        """
        kept = self._find(str(body["export"]), str(body["stream"]))
        if kept is None:
            raise StageMissingError(
                f"stream {body['stream']} is not at agent {self._pe} (was its data directory"
                " replaced?). Nothing was published; the query stops and replays."
            )
        with kept.lock:
            stream, epoch = kept.stream, int(body["epoch"])
            if int(body["turn"]) < kept.seal_number:
                raise StageMissingError(
                    f"epoch {epoch} of stream {stream.id} was sealed by a later call meanwhile."
                )
            stages = [verify_stage(stream, s, f"agent {self._pe}") for s in body["stages"]]
            kept.seal_number = int(body["turn"])
            part = Manifest(
                epoch=epoch,
                query=body["query"],
                run=body["run"],
                batch=body["batch"],
                rows=sum(s.rows for s in stages),
                bytes=sum(s.bytes for s in stages),
                published=float(body["published"]),
                ddl=stream.ddl,
                rows_before=0,
                blocks=tuple(b for s in stages for b in s.blocks),
            )
            known = stream.manifests.get(epoch)
            if known is None or (known.run, known.blocks) != (part.run, part.blocks):
                stream.remove([epoch])
                stream.publish(part)
            return {
                "stages": [
                    {"bytes": s.bytes, "blocks": [[b.rows, b.bytes] for b in s.blocks]}
                    for s in stages
                ]
            }

    def release(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Give back what the home needs no more.

        Args:
            body: ``home`` (its PE), and ``exports`` with levels by stream: null for one that the
                home has no more, else ``next``, ``kept`` (epochs ``[first, next)`` below it that it
                has), ``sign``, ``query``, ``batch`` (published last), ``runs`` (replaced ones),
                ``aborted`` (run and batch). What is not named stays.

        Returns:
            ``streams`` by export, which this agent keeps for that home, and ``sent``: rows, bytes
            and the query that reads, by export and reader, since it was asked last.
        """
        for export, levels in body["exports"].items():
            for id_, level in levels.items():
                kept = self._find(export, id_)
                if kept is not None and level is None:
                    self._remove(id_)
                elif kept is not None:
                    with kept.lock:
                        _release_epochs(kept.stream, level)
        streams: dict[str, list[str]] = {}
        for id_, kept in list(self._stored.items()):
            if pe_of(kept.export) == body["home"]:
                streams.setdefault(kept.export, []).append(id_)
        return {"streams": streams, "sent": self._sent.take(body["home"])}

    def _remove(self, id_: str) -> None:
        with self._lock:
            kept = self._stored.pop(id_, None)
            self._verifier.forget(id_)
            with self._store.transaction() as db:
                db.execute("DELETE FROM kept_streams WHERE stream = ?", (id_,))
                self._orphan_logs.add(id_, db)
            if kept is not None:
                kept.stream.log.close()
            self._orphan_logs.remove(id_)

    # -- reading -----------------------------------------------------------------------------

    def open_read(self, request: Mapping[str, Any]) -> GrantedRead:
        """Return what a ticket with a grant may read.

        Raises:
            GrantError: it is not the home's, or not for this.
            PartMissingError: the stream is not here.
        """
        stream = str(request["stream"])
        wanted = f"epochs {describe_epochs(request)} of stream {stream} of {request['export']}"
        try:
            grant = grants.verify(self._store.get("token") or "", request.get("grant"))
        except GrantError as error:
            raise GrantError(f"agent {self._pe} does not give {wanted}: {error}") from None
        if grant.export != request["export"] or stream not in grant.ranges:
            raise GrantError(f"the grant is for {grant.export}, not for {wanted}")
        kept = self._find(grant.export, stream)
        if kept is None:
            raise ShardMissingError(self._pe, wanted, MISSING_REASON)
        return GrantedRead(self._pe, kept.stream, grant, self._counts, self._sent, self._verifier)

    def verify(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return which parts cannot be given; see :meth:`ShardVerifier.verify`."""
        kept = {id_: self._find(str(body["export"]), id_) for id_ in body["streams"]}
        return self._verifier.verify({s: k.stream if k else None for s, k in kept.items()}, body)

    def count(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return how many rows of parts pass a filter: ``{"rows": {epoch: rows}}``.

        Null for a part that is not here, or cannot be read.
        """
        kept = self._find(str(body["export"]), str(body["stream"]))
        return {
            "rows": {n: self._count_passing(kept, int(n), body["filter"]) for n in body["epochs"]}
        }

    def _count_passing(self, stored: _StoredStream | None, epoch: int, filter_: str) -> int | None:
        part = stored.stream.manifests.get(epoch) if stored else None
        if stored is None or part is None:
            return None
        total = 0
        for index, block in enumerate(part.local_blocks):
            noted = self._counts.get((stored.stream.id, epoch, index, filter_))
            try:
                total += (
                    count_passing_rows(stored.stream, block, filter_) if noted is None else noted
                )
            except LogError as error:
                log.warning("part of epoch %s of %s: %s", epoch, stored.stream.id, error)
                return None
        return total

    def logs(self) -> list[StreamLog]:
        """Return the logs of all that is kept."""
        return [kept.stream.log for kept in self._stored.values()]

    # -- seen from outside -------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Return figures for people: what is kept, by export and stream."""
        result: dict[str, Any] = {}
        for id_, kept in list(self._stored.items()):
            result.setdefault(kept.export, {})[id_] = {
                "epochs": len(kept.stream.manifests),
                "stages": len(kept.stream.stages),
                "bytes": sum(s.bytes for s in kept.stream.log.segments()),
                "damaged": kept.stream.damaged_segments(),
            }
        return result

    def close(self) -> None:
        """Close the logs."""
        with self._lock:
            for kept in self._stored.values():
                kept.stream.log.close()


class GrantedRead:
    """One stream at a fellow, as a grant opens it; read by the agent's block reader."""

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

    def find_readable(
        self,
        reader: str,
        stream: str,
        epoch: int,
        *,
        filter_: str | None,
        columns: Sequence[str] | None,
        query: str | None = None,
    ) -> Manifest | None:
        """Return the part of an epoch if it is granted just so, else None; whoever's task asks.

        ``query`` is told to the home, which would not hear of it where all rows lie at fellows.

        Raises:
            PartMissingError: it is granted and not here.
        """
        if not self._grant.covers(reader, stream, epoch, filter_, columns):
            return None
        self._query = query
        part = self.streams[stream].manifests.get(epoch)
        if part is None:
            raise ShardMissingError(self._pe, self._describe_epoch(stream, epoch), MISSING_REASON)
        return part

    def unreadable_error(self, stream: str, epoch: int, error: LogError) -> StreambrokerError:
        """Return what a reader is told of a damaged block: whose it is, and that it is loss."""
        self._verifier.mark_unverified(stream, epoch)
        return ShardMissingError(self._pe, self._describe_epoch(stream, epoch), str(error))

    def _describe_epoch(self, stream: str, epoch: int) -> str:
        return f"epoch {epoch} of stream {stream} of {self._grant.export}"

    def count_block(self, reader: str, stream: str, epoch: int, block: int, rows: int) -> None:
        """Remember how many rows of a block passed, for when the home asks."""
        if self._grant.filter is not None:
            self._counts.put((stream, epoch, block, self._grant.filter), rows, 1)

    def count_sent(self, reader: str, rows: int, size: int) -> None:
        """Note what goes over the wire, for when the home asks."""
        self._sent.add(self._grant.export, reader, rows, size, self._query)

    def count_control(self, reader: str, deliveries: Iterable[str]) -> None:
        """Note nothing: control tuples are in manifests, which the home has."""


class _SentCounts:
    """What was sent, by export and reader, until the home takes it: rows, bytes, and the query."""

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
    """Return which epochs a ticket is for, in words."""
    numbers = [int(p[0]) for p in request.get("pieces", ())] or [0]
    return f"{min(numbers)} to {max(numbers)}"


def _release_epochs(stream: ExportStream, level: Mapping[str, Any]) -> None:
    """Remove the parts of epochs that the home has no more, and the stages it will not publish."""
    kept = [(int(first), int(next_)) for first, next_ in level["kept"]]
    gone = [
        n
        for n in list(stream.manifests)
        if n < int(level["next"]) and not any(first <= n < next_ for first, next_ in kept)
    ]
    runs, aborted = frozenset(level["runs"]), level["aborted"]

    def useless(stage: Stage) -> bool:
        if level["sealed"] or stage.run in runs or [stage.run, stage.batch] == aborted:
            return True
        return stage.query == level["query"] and stage.batch <= int(level["batch"])

    stream.sweep_stages(useless)
    if gone:
        stream.remove(gone)
    else:
        stream.reclaim()
