"""State of one export: log, ledger and store, with retention."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from pathlib import Path

import msgspec

from pe_agent.agent.exports.state_codec import encode_publisher, encode_reader
from pe_agent.agent.exports.stream import retained_epochs as retained
from pe_agent.agent.exports.stream.delivery_counts import DeliveryCounts
from pe_agent.agent.exports.stream.export_stream import ExportStream
from pe_agent.agent.exports.stream.schema_check import Wanted, check_columns
from pe_agent.agent.exports.stream.stream_directory import StreamDirectory
from pe_agent.agent.state.store import FORGOTTEN, REMOVED, Store
from pe_agent.agent.storage.tier import StorageTier
from pe_agent.log.commit import Committer
from pe_agent.log.objects.direct import attempt_of
from streambroker_core.errors import StreambrokerError
from streambroker_core.ledger.ledger import Ledger
from streambroker_core.ledger.publisher import Publisher
from streambroker_core.model import Durability
from streambroker_core.model.policies import encode_restriction
from streambroker_core.model.schema import SchemaPolicy, parse_ddl

SEGMENT_BYTES = 64 << 20
_SAVE_PUBLISHER = "INSERT OR REPLACE INTO publishers VALUES (?, ?)"
_SAVE_READER = (
    "INSERT INTO readers VALUES (?, ?, ?) ON CONFLICT (export, id) DO UPDATE"
    " SET state = excluded.state"
)


_STARTED = time.time() - time.monotonic()


def steady_clock() -> float:
    """Return Unix seconds that never jump, so that setting a clock ends no lease."""
    return _STARTED + time.monotonic()


class StorageMissingError(StreambrokerError):
    """An export demands object storage, and its agent has none."""

    code = "StorageMissing"


class ExportState:
    """State and retention of one export of this agent's PE; only owner of its lock and store.

    Callers of its methods hold ``lock``, except for `heads`, `ended`, `check_storage`,
    `save_stored` and `close`.

    Attributes:
        lock: guards the state and the objects built on it; rows are written outside it.
        publishing: held for a whole publish; acquired before ``lock``.
    """

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
        storage: StorageTier | None = None,
    ) -> None:
        self.key = key
        self.storage = storage
        self.durability: Durability = "local"
        self.schema_policy: SchemaPolicy = "backward"
        self.in_flight: tuple[str | None, str | None] | None = None
        """Query and run of the publisher while an epoch is synced; no other is admitted."""
        self.store = store
        self.notify = notify
        self.clock = clock
        self.lock = threading.RLock()
        self.publishing = threading.RLock()
        self.directory = StreamDirectory(store, key, directory, committer, segment_bytes, storage)
        self.streams: dict[str, ExportStream] = {}
        self.ledger = Ledger()
        self.ledger.routes.restore_cut(store.value(f"cut/{key}", json.loads, []))
        self.publisher = Publisher(key)
        self.deliveries = DeliveryCounts(self.streams, self._rows_between)

    @property
    def newest(self) -> ExportStream | None:
        """The growing stream, None if the next epoch opens one."""
        last = next(reversed(self.streams.values()), None)
        return None if last is None or self.ledger.streams[last.id].sealed else last

    def _rows_between(self, stream: str, first: int, next_: int) -> int:
        known = self.ledger.streams.get(stream)
        return 0 if known is None else known.rows_between(first, next_)

    def present_epochs(self, stream: str, first: int, next_: int) -> Iterator[int]:
        """Yield the numbers of the retained epochs in ``[first, next)``."""
        known = self.ledger.streams.get(stream)
        for low, high in () if known is None else known.retained_ranges(first, next_):
            yield from range(low, high)

    def heads(self) -> dict[str, int]:
        """Return the next epoch number of each stream."""
        with self.lock:
            return {s.id: s.next for s in self.ledger.streams.values()}

    def ended(self) -> bool:
        """Return whether the publisher has reported the end, and no epoch followed."""
        with self.lock:
            return self.publisher.ended == self.end_position()

    def end_position(self) -> tuple[str, int]:
        """Return the last stream with an epoch, and its next epoch number."""
        streams = [s for s in self.ledger.streams.values() if s.next]
        return (streams[-1].id, streams[-1].next) if streams else ("", 0)

    def sweep(self) -> None:
        """Remove epochs, logs and streams that no reader needs and no limit retains."""
        for name, epochs in self.ledger.retention.sweep(self.clock()).items():
            self.streams[name].remove(epochs)
        oldest = True
        for stream in list(self.ledger.streams.values()):
            empty = stream.sealed and not stream.epochs and not stream.missing
            oldest = oldest and empty
            if empty and stream.id in self.streams:
                self._remove_log(stream.id)
            oldest = oldest and not self.ledger.claims.is_unread(stream.id)
            if oldest:
                self.ledger.forget_stream(stream.id)
                self.store.write("UPDATE streams SET sealed = ? WHERE id = ?", FORGOTTEN, stream.id)

    def add_stream(self, stream: ExportStream) -> None:
        """Add a stream's log; retained epochs are stored before it removes segments."""
        id_ = stream.id
        self.streams[id_] = stream
        stream.compactor.before_drop = partial(self._record_retained, id_)
        if stream.objects is not None:
            stream.objects.find_obsolete = partial(self._find_obsolete, stream)

    def _record_retained(self, id_: str) -> None:
        retained.record(self.store, id_, retained.current_level(self.ledger.streams[id_]))

    def _find_obsolete(self, stream: ExportStream, keys: Collection[str]) -> list[str]:
        """Return the keys of objects that no epoch has and no commit can name.

        The retained epochs are stored first, as before segments are removed.
        """
        with self.lock:
            if stream.id not in self.streams:
                return []
            self._record_retained(stream.id)
            needed, found = stream.object_keys(), list[str]()
            for key in keys:
                attempt = attempt_of(key)
                if attempt and key not in needed and self.publisher.is_stale(*attempt):
                    found.append(key)
            return found

    def _remove_log(self, id_: str) -> None:
        """Delete the log of a stream without epochs; its totals are kept."""
        known = self.ledger.streams[id_]
        with self.store.transaction() as db:
            db.execute(
                "UPDATE streams SET sealed = ?, next = ?, rows = ? WHERE id = ?",
                (REMOVED, known.next, known.rows, id_),
            )
            retained.forget(id_, db)
            self.directory.add_orphan(id_, db)
        self.streams.pop(id_).log.close()
        self.directory.remove_orphan(id_)

    def save_reader(self, id_: str) -> None:
        """Store a reader with its counts."""
        self.save_rows([self.reader_row(id_)])

    def save_rows(self, rows: Iterable[tuple[str, ...]]) -> None:
        """Store readers as `reader_row` returned them, in one write."""
        self.store.write_all(_SAVE_READER, rows)

    def reader_row(self, id_: str) -> tuple[str, str, str]:
        """Return what is stored of a reader, with its counts."""
        reader = self.ledger.readers[id_]
        state = encode_reader(reader, self.deliveries.for_reader(id_))
        pinned = self.deliveries.restrictions.get(id_)
        if pinned is not None:
            state["restriction"] = encode_restriction(pinned)
        state["rows_before"] = {
            s.id: [
                [n, s.rows_before(n)]
                for n in sorted(reader.referenced_epochs(s.id))
                if s.has_sum(n)
            ]
            for s in self.ledger.streams.values()
        }
        return self.key, id_, msgspec.json.encode(state).decode()

    def save_publisher(self, *, lease_released: bool = False, durable: bool = False) -> None:
        """Store the publisher; ``durable`` survives a power failure."""
        state = encode_publisher(self.publisher, lease_released=lease_released)
        row = (self.key, json.dumps(state))
        if durable:
            with self.store.transaction(durable=True) as db:
                db.execute(_SAVE_PUBLISHER, row)
        else:
            self.store.write(_SAVE_PUBLISHER, *row)

    def set_durability(self, durability: Durability) -> None:
        """Set what the next epochs wait for."""
        self.durability = durability
        self.directory.is_required = durability == "stored"
        for stream in self.streams.values():
            if stream.log.uploader is not None:
                stream.log.uploader.is_required = self.directory.is_required

    def check_storage(self) -> None:
        """Raise StorageMissingError if the export demands storage that the agent lacks."""
        if self.durability == "stored" and self.storage is None:
            raise StorageMissingError(
                f"export {self.key} has the durability `stored`, and its agent has no object"
                " storage. Start the job with `storage=` or $STREAMBROKER_STORAGE, or set the"
                " durability to `local`."
            )

    def check_columns(self, ddl: str, policy: SchemaPolicy) -> None:
        """Compare a publisher's columns, as DDL, with those that were published last, if any.

        Raises:
            SchemaIncompatibleError: the policy does not allow the change.
        """
        with self.lock:
            published = (s.versions.published for s in reversed(self.streams.values()))
            last = next((v for v in published if v.first_epoch is not None), None)
            if last is None or last.ddl == ddl:
                return
            before, after = parse_ddl(last.ddl), parse_ddl(ddl)
            now = self.clock()
            readers = [
                Wanted(
                    import_=reader.import_,
                    columns=self.deliveries.wanted.get(reader.id),
                    names=self.deliveries.for_reader(reader.id).columns,
                    filter=self.deliveries.for_reader(reader.id).filter,
                )
                for reader in self.ledger.readers.values()
                if reader.routed and not reader.once and self.ledger.claims.has_claims(reader, now)
            ]
        check_columns(self.key, policy, before, after, readers)

    @contextlib.contextmanager
    def epoch_in_flight(self) -> Iterator[None]:
        """Keep the publisher while an appended epoch is synced; entered with ``lock`` held."""
        self.in_flight = self.publisher.query, self.publisher.run
        try:
            yield
        finally:
            self.in_flight = None

    def publishing_runs(self) -> set[str]:
        """Return the newest run of the query that has the lease; empty if none has."""
        with self.lock:
            run, lives = self.publisher.run, self.publisher.lease_expires > self.clock()
            return {run} if run is not None and lives else set()

    def save_stored(self) -> None:
        """Under ``stored``, wait until the bucket has the state; callers do not hold ``lock``."""
        if self.durability == "stored" and self.storage is not None:
            self.storage.save()

    def sync_stored(self) -> None:
        """Under ``stored``, wait until the bucket has log and state; called without ``lock``."""
        newest = self.newest
        if self.durability == "stored" and newest is not None:
            newest.log.sync()
        self.save_stored()

    def close(self) -> None:
        """Close the logs."""
        with self.lock:
            for stream in self.streams.values():
                stream.log.close()
