"""Object storage behind the exports of one agent.

The log of a stream is on the local disk as without it. Behind it, what is safe on disk is uploaded,
and the agent's database as a snapshot. An agent of the same PE with an empty directory, on any
machine, goes on from there: with the same streams, epochs and claims of readers.

A snapshot is written before the first part of a stream, and before objects are deleted. So no
stream has objects of which no snapshot knows, and no epoch loses objects while a snapshot has it.
"""

from __future__ import annotations

import json
import logging
import shutil
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pe_agent.agent.state.store import Store
from pe_agent.agent.storage import ownership
from pe_agent.agent.storage.ownership import Snapshot
from pe_agent.log import segments
from pe_agent.log.commit import Committer
from pe_agent.log.errors import Superseded
from pe_agent.log.log import StreamLog
from pe_agent.log.objects.bucket import Bucket, BucketError
from pe_agent.log.objects.chain import Chain
from pe_agent.log.objects.direct import DirectObjects
from pe_agent.log.objects.pieces import Recorded
from pe_agent.log.objects.restore import StoredLog, fetcher, read_stored_log, restore_files
from pe_agent.log.objects.uploader import LogUploader
from streambroker_core.errors import StreambrokerError

log = logging.getLogger("pe_agent")

UPLOAD_SECONDS = 2.0
"""Longest time between uploads of what is synced."""
SNAPSHOT_SECONDS = 10.0
"""Longest time between snapshots of a changed database."""
UPLOAD_THREADS = 4
DATABASE = "state.sqlite"


class StorageForeignError(StreambrokerError):
    """Directory and bucket both have exports, which are not the same."""

    code = "StorageForeign"


class StorageTier:
    """Uploads and snapshots of one agent. Thread-safe.

    Attributes:
        owner: number of this agent's ownership.
    """

    def __init__(self, bucket: Bucket, home: Path) -> None:
        """Take over what the bucket has of this PE; afterwards earlier owners write nothing more.

        A directory that is not the one of the last owner is moved aside.

        Raises:
            StorageForeignError: the directory has exports that were never in this bucket, and the
                bucket has others.
            Superseded: another agent started at the same time, later.
            BucketError: the store is unavailable.
        """
        self._bucket = bucket
        self._home = home
        self._committer = Committer(threads=UPLOAD_THREADS)
        self._uploaders: dict[str, LogUploader] = {}
        self._removed: list[LogUploader] = []
        """Uploads of streams whose objects are still to be deleted."""
        self._saving = threading.Lock()
        self._saved: tuple[int, dict[str, Recorded]] | None = None
        """Changes of the database and streams in the last snapshot."""
        self._deleted_before = 0
        self._next_upload = self._next_snapshot = 0.0
        self._store: Store | None = None
        self.error: str | None = None
        self.owner = ownership.claim(bucket)
        self._snapshots = Chain(bucket, ownership.STATE, self.owner)
        self._earlier = ownership.take_over(bucket, self.owner)
        if self._earlier is not None:
            self._restore_database(self._earlier)

    # -- at the start ------------------------------------------------------------------------

    def _restore_database(self, snapshot: Snapshot) -> None:
        path, secrets = self._home / DATABASE, dict[str, str]()
        if path.exists():
            store = Store(path)
            owners = self._recorded_owners(store)
            has_streams = bool(store.query("SELECT 1 FROM streams LIMIT 1"))
            secrets = store.secrets()
            store.close()
            if snapshot.owner in owners:
                return
            if has_streams and not owners:
                raise StorageForeignError(
                    f"{self._home} has exports that are not in {self._bucket.url}, and the bucket"
                    " has exports of another data directory. Start the agent with an empty"
                    " directory to continue those, or give it another storage URL."
                )
        self._move_aside()
        fresh = self._home / f"{DATABASE}.new"
        fresh.write_bytes(snapshot.database)
        store = Store(fresh)
        for name, value in secrets.items():
            store.set(name, value)
        store.close()  # its write-ahead log is merged
        fresh.rename(path)

    def _recorded_owners(self, store: Store) -> list[int]:
        owners: list[int] = store.value(self._meta_key(), json.loads, [])
        return owners

    def _meta_key(self) -> str:
        return f"storage/{self._bucket.url}"

    def _move_aside(self) -> None:
        """Move what another agent has continued meanwhile; the copy before is replaced.

        The database goes last: while it is there, the next start moves the rest.
        """
        names = ("log", f"{DATABASE}-wal", f"{DATABASE}-shm", DATABASE)
        found = [self._home / name for name in names if (self._home / name).exists()]
        if not found:
            return
        aside = self._home / "superseded"
        aside.mkdir(exist_ok=True)
        for path in found:
            target = aside / path.name
            _remove(target)
            path.rename(target)
        log.error(
            "another agent has continued the exports of %s; its files are in %s now",
            self._home,
            aside,
        )

    def start(self, store: Store) -> None:
        """Begin uploads and snapshots; call it once, after all logs are open."""
        # All of them, until a snapshot tells which of them the bucket continues.
        owners = [*self._recorded_owners(store), self.owner]
        store.set(self._meta_key(), json.dumps(owners))
        self._store = store
        self._committer.request(self)

    def open_log(
        self, id_: str, directory: Path, open_: Callable[[Callable[[int], None] | None], StreamLog]
    ) -> StreamLog:
        """Open a stream's log, with the files that the bucket has and the directory lacks.

        ``open_`` opens the log, given a function that fetches segments.

        Raises:
            Superseded, BucketError: see `__init__`.
        """
        folder = self._bucket.folder(f"streams/{id_}")
        stored, earlier = StoredLog(), self._earlier
        if earlier is not None and id_ in earlier.streams:
            stored = read_stored_log(
                folder, owner=earlier.owner, by=self.owner, recorded=earlier.streams[id_]
            )
            restore_files(folder, stored, directory)
        fetch = fetcher(folder, stored, directory)
        opened = open_(fetch)
        last = opened.segments()[-1]
        if (last.number, last.end) < stored.uploaded:
            # The disk has lost what the bucket has.
            opened.close()
            for path in directory.glob(f"*{segments.SUFFIX}"):
                path.unlink()
            restore_files(folder, stored, directory)
            opened = open_(fetch)
            last = opened.segments()[-1]
            # A part may end inside a frame, which recovery cuts.
            stored.cut((last.number, last.end))
        stored.bodies.clear()
        uploader = LogUploader(
            folder,
            self.owner,
            opened,
            uploaded=stored.uploaded,
            inherited=stored.inherited(),
            request=self._request,
            before=self.save,
        )
        opened.uploader = uploader
        self._uploaders[id_] = uploader
        return opened

    def direct_objects(self, id_: str) -> DirectObjects | None:
        """Return what tasks put into a stream's folder; None if they cannot reach the bucket."""
        if not self.is_shared:
            return None
        return DirectObjects(
            self._bucket.folder(f"streams/{id_}"),
            request=self._request,
            save=partial(self.save, force=True),
        )

    @property
    def is_shared(self) -> bool:
        """Whether tasks on other machines reach the bucket."""
        return self._bucket.is_shared

    def _request(self, one: LogUploader | DirectObjects) -> bool:
        if self._store is None:
            return False
        self._committer.request(one)
        return True

    # -- while it runs -----------------------------------------------------------------------

    def save(self, *, force: bool = False) -> None:
        """Write a snapshot, unless the last one has all changes; with ``force`` in any case.

        A snapshot that is written shows that no other agent has taken over before.

        Raises:
            Superseded: another agent has taken over.
            BucketError: the store is unavailable; the next call tries again.
        """
        store = self._store
        if store is None:
            return
        with self._saving:
            # The database last: it must know the epochs that removed segments had as removed.
            streams = {id_: one.record() for id_, one in list(self._uploaders.items())}
            state = store.changes, streams
            if state == self._saved and not force:
                return
            number = self._snapshots.append(*ownership.encode(store.snapshot(), streams))
            if self._saved is None:
                store.set(self._meta_key(), json.dumps([self.owner]))
                ownership.delete_earlier(self._bucket, self.owner)
            self._saved = state
            obsolete = range(self._deleted_before, number - ownership.KEPT_SNAPSHOTS)
            self._snapshots.delete(obsolete)
            self._deleted_before = max(self._deleted_before, obsolete.stop)

    def flush(self) -> None:
        """Write a snapshot in the background; errors are kept in `error`."""
        try:
            self.save()
        except (BucketError, Superseded) as error:
            for uploader in self.uploaders() if isinstance(error, Superseded) else ():
                uploader.request()  # each finds its own chain sealed, and fails its log
            if self.error is None:
                log.warning("the state of the exports is not uploaded: %s", error)
            self.error = str(error)
        else:
            self.error = None

    def fail(self, error: Exception) -> None:
        """Record an unexpected error; the next tick tries again."""
        log.error("cannot upload the state of the exports", exc_info=error)
        self.error = repr(error)

    def tick(self) -> None:
        """Request uploads that are due; called about once a second."""
        now = time.monotonic()
        if now >= self._next_upload:
            self._next_upload = now + UPLOAD_SECONDS
            for uploader in list(self._uploaders.values()):
                status = uploader.status()
                if status.bytes or status.error:
                    uploader.request()
            self._removed = [one for one in self._removed if not one.is_closed]
            for uploader in self._removed:
                uploader.request()
        if now >= self._next_snapshot:
            self._next_snapshot = now + SNAPSHOT_SECONDS
            self._committer.request(self)

    def uploaders(self) -> list[LogUploader]:
        """Return the uploads of all streams."""
        return list(self._uploaders.values())

    def forget(self, id_: str) -> None:
        """Delete a stream whose log was removed."""
        uploader = self._uploaders.pop(id_, None)
        if uploader is not None:
            self._removed.append(uploader)
            uploader.remove()

    def status(self) -> dict[str, str | int | None]:
        """Return bucket, owner, and why the last snapshot failed, None after a success."""
        return {"url": self._bucket.url, "owner": self.owner, "error": self.error}

    def close(self) -> None:
        """Upload what is left, then stop."""
        self._bucket.end_retries()
        for uploader in list(self._uploaders.values()):
            uploader.request_all()
        if self._store is not None:
            self._committer.request(self)
        self._committer.close()
        for uploader in list(self._uploaders.values()):
            uploader.close()


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
