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
from pe_agent.agent.exports.publisher import StageMissingError, StageTooLargeError, verified
from pe_agent.agent.exports.stream.block_reader import BytesCache
from pe_agent.agent.exports.stream.export_stream import HostedStream
from pe_agent.agent.exports.stream.manifests import Manifest, Stage
from pe_agent.agent.exports.stream.row_filter import passing_rows
from pe_agent.agent.shards import read_grant as grants
from pe_agent.agent.shards.read_grant import Grant, GrantError
from pe_agent.agent.shards.verify import Parts
from pe_agent.agent.state.orphan_logs import Unnamed
from pe_agent.agent.state.store import Store
from pe_agent.log.commit import Committer
from pe_agent.log.errors import LogError
from pe_agent.log.log import StreamLog
from streambroker_core.errors import StreambrokerError
from streambroker_core.model import pe_of

log = logging.getLogger("pe_agent")

COUNTS = 200_000
"""Of how many blocks and filters the rows that passed are remembered; others are counted anew."""


NOT_THERE = "it was read to its end and removed, or the agent's data directory was replaced"


class PartMissingError(StreambrokerError):
    """A fellow cannot give its part of an epoch; nothing was skipped."""

    code = "DataLoss"

    def __init__(self, pe: str, epochs: str, why: str) -> None:
        super().__init__(
            f"agent {pe} does not have its part of {epochs}: {why}. Nothing was skipped; the query"
            " stops here. Restore that agent's data directory, or start the importer with a new"
            " checkpoint, or without them: fail_on_data_loss=False."
        )


@dataclass(slots=True)
class _Kept:
    """One stream of a foreign export; ``lock`` is for seals, releases and sweeps."""

    export: str
    stream: HostedStream
    turn: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


class StageHost:
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
        self._unnamed = Unnamed(store, "kept", directory)
        self._unnamed.remove_all()
        self._committer = committer
        self._segment_bytes = segment_bytes
        self._lock = threading.Lock()
        self._kept: dict[str, _Kept] = {}
        self._counts = BytesCache(COUNTS)
        self._sent = _Sent()
        self._parts = Parts()
        for id_, export, query, ddl, arrow in store.query(
            "SELECT stream, export, query, ddl, arrow FROM kept_streams"
        ):
            with store.row("kept_streams", id_):
                schema = pa.ipc.read_schema(pa.py_buffer(arrow))
            self._kept[id_] = _Kept(export, self._open(id_, query, ddl, schema, progress))

    def _open(
        self,
        id_: str,
        query: str,
        ddl: str,
        schema: pa.Schema,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> HostedStream:
        return HostedStream.open(
            id_,
            self._directory / id_,
            committer=self._committer,
            query=query,
            ddl=ddl,
            schema=schema,
            segment_bytes=self._segment_bytes,
            progress=None if progress is None else lambda n, of: progress(id_, n, of),
            parts=True,
        )

    def _found(self, export: str, stream: str) -> _Kept | None:
        kept = self._kept.get(stream)
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
        kept = self._taken_in(command, schema.remove_metadata())
        stream, batch = kept.stream, int(command["batch"])
        stage = stream.begin(query=command["query"], run=command["run"], batch=batch)
        limit = int(command["limit"])
        stream.write(stage, batches, lambda more: self._check_size(kept, stage, more, limit))
        return {**stage.summary(), "agent": self._pe}

    def _taken_in(self, command: Mapping[str, Any], schema: pa.Schema) -> _Kept:
        export, id_ = str(command["home"]), str(command["stream"])
        query, ddl = str(command["query"]), str(command["ddl"])
        with self._lock:
            kept = self._kept.get(id_)
            if kept is None:
                self._unnamed.add(id_)
                kept = _Kept(export, self._open(id_, query, ddl, schema))
                with self._store.transaction(durable=True) as db:
                    db.execute(
                        "INSERT OR REPLACE INTO kept_streams VALUES (?, ?, ?, ?, ?)",
                        (id_, export, query, ddl, bytes(schema.serialize())),
                    )
                    self._unnamed.forget(id_, db)
                self._kept[id_] = kept
        if (kept.export, kept.stream.query, kept.stream.ddl) != (export, query, ddl):
            raise StageMissingError(f"stream {id_} is not of export {export} and query {query}.")
        return kept

    def _check_size(self, kept: _Kept, stage: Stage, more: int, limit: int) -> None:
        of = (stage.run, stage.batch)
        staged = sum(s.bytes for s in list(kept.stream.stages.values()) if (s.run, s.batch) == of)
        if staged + more > limit:
            of_what = f"{kept.export} at agent {self._pe}"
            raise StageTooLargeError(stage.batch, of_what, staged=staged, more=more, limit=limit)

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
        kept = self._found(str(body["export"]), str(body["stream"]))
        if kept is None:
            raise StageMissingError(
                f"stream {body['stream']} is not at agent {self._pe} (was its data directory"
                " replaced?). Nothing was published; the query stops and replays."
            )
        with kept.lock:
            stream, epoch = kept.stream, int(body["epoch"])
            if int(body["turn"]) < kept.turn:
                raise StageMissingError(
                    f"epoch {epoch} of stream {stream.id} was sealed by a later call meanwhile."
                )
            stages = [verified(stream, s, f"agent {self._pe}") for s in body["stages"]]
            kept.turn = int(body["turn"])
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
                has), ``sealed``, ``query``, ``batch`` (published last), ``runs`` (replaced ones),
                ``aborted`` (run and batch). What is not named stays.

        Returns:
            ``streams`` by export, which this agent keeps for that home, and ``sent``: rows, bytes
            and the query that reads, by export and reader, since it was asked last.
        """
        for export, levels in body["exports"].items():
            for id_, level in levels.items():
                kept = self._found(export, id_)
                if kept is not None and level is None:
                    self._remove(id_)
                elif kept is not None:
                    with kept.lock:
                        _release(kept.stream, level)
        streams: dict[str, list[str]] = {}
        for id_, kept in list(self._kept.items()):
            if pe_of(kept.export) == body["home"]:
                streams.setdefault(kept.export, []).append(id_)
        return {"streams": streams, "sent": self._sent.take(body["home"])}

    def _remove(self, id_: str) -> None:
        with self._lock:
            kept = self._kept.pop(id_, None)
            self._parts.forget(id_)
            with self._store.transaction() as db:
                db.execute("DELETE FROM kept_streams WHERE stream = ?", (id_,))
                self._unnamed.add(id_, db)
            if kept is not None:
                kept.stream.log.close()
            self._unnamed.remove(id_)

    # -- reading -----------------------------------------------------------------------------

    def reading(self, request: Mapping[str, Any]) -> GrantedRead:
        """Return what a ticket with a grant may read.

        Raises:
            GrantError: it is not the home's, or not for this.
            PartMissingError: the stream is not here.
        """
        stream = str(request["stream"])
        wanted = f"epochs {epochs_of(request)} of stream {stream} of {request['export']}"
        try:
            grant = grants.verify(self._store.get("token") or "", request.get("grant"))
        except GrantError as error:
            raise GrantError(f"agent {self._pe} does not give {wanted}: {error}") from None
        if grant.export != request["export"] or stream not in grant.ranges:
            raise GrantError(f"the grant is for {grant.export}, not for {wanted}")
        kept = self._found(grant.export, stream)
        if kept is None:
            raise PartMissingError(self._pe, wanted, NOT_THERE)
        return GrantedRead(self._pe, kept.stream, grant, self._counts, self._sent, self._parts)

    def verify(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return which parts cannot be given; see :meth:`Parts.verify`."""
        kept = {id_: self._found(str(body["export"]), id_) for id_ in body["streams"]}
        return self._parts.verify({s: k.stream if k else None for s, k in kept.items()}, body)

    def count(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return how many rows of parts pass a filter: ``{"rows": {epoch: rows}}``.

        Null for a part that is not here, or cannot be read.
        """
        kept = self._found(str(body["export"]), str(body["stream"]))
        return {"rows": {n: self._passing(kept, int(n), body["filter"]) for n in body["epochs"]}}

    def _passing(self, kept: _Kept | None, epoch: int, filter_: str) -> int | None:
        part = kept.stream.manifests.get(epoch) if kept else None
        if kept is None or part is None:
            return None
        total = 0
        for index, block in enumerate(part.own):
            noted = self._counts.get((kept.stream.id, epoch, index, filter_))
            try:
                total += passing_rows(kept.stream, block, filter_) if noted is None else noted
            except LogError as error:
                log.warning("part of epoch %s of %s: %s", epoch, kept.stream.id, error)
                return None
        return total

    def logs(self) -> list[StreamLog]:
        """Return the logs of all that is kept."""
        return [kept.stream.log for kept in self._kept.values()]

    # -- seen from outside -------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Return figures for people: what is kept, by export and stream."""
        result: dict[str, Any] = {}
        for id_, kept in list(self._kept.items()):
            result.setdefault(kept.export, {})[id_] = {
                "epochs": len(kept.stream.manifests),
                "stages": len(kept.stream.stages),
                "bytes": sum(s.bytes for s in kept.stream.log.segments()),
                "damaged": kept.stream.damaged(),
            }
        return result

    def close(self) -> None:
        """Close the logs."""
        with self._lock:
            for kept in self._kept.values():
                kept.stream.log.close()


class GrantedRead:
    """One stream at a fellow, as a grant opens it; read by the agent's block reader."""

    def __init__(
        self,
        pe: str,
        stream: HostedStream,
        grant: Grant,
        counts: BytesCache,
        sent: _Sent,
        parts: Parts,
    ) -> None:
        self._pe, self._grant, self._counts, self._sent = pe, grant, counts, sent
        self._parts = parts
        self._query: str | None = None
        self.streams: Mapping[str, HostedStream] = {stream.id: stream}

    def may_read(
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
            raise PartMissingError(self._pe, self._named(stream, epoch), NOT_THERE)
        return part

    def unreadable(self, stream: str, epoch: int, error: LogError) -> StreambrokerError:
        """Return what a reader is told of a damaged block: whose it is, and that it is loss."""
        self._parts.doubt(stream, epoch)
        return PartMissingError(self._pe, self._named(stream, epoch), str(error))

    def _named(self, stream: str, epoch: int) -> str:
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


class _Sent:
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


def epochs_of(request: Mapping[str, Any]) -> str:
    """Return which epochs a ticket is for, in words."""
    numbers = [int(p[0]) for p in request.get("pieces", ())] or [0]
    return f"{min(numbers)} to {max(numbers)}"


def _release(stream: HostedStream, level: Mapping[str, Any]) -> None:
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
