"""One agent that has a log in a bucket, without exports, for tests of several that own it."""

from __future__ import annotations

from pathlib import Path

from pe_agent.agent.storage import ownership
from pe_agent.log.commit import Committer
from pe_agent.log.frames import Address, Kind
from pe_agent.log.log import StreamLog
from pe_agent.log.objects.bucket import Bucket, BucketError
from pe_agent.log.objects.chain import Chain
from pe_agent.log.objects.restore import StoredLog, fetcher, read_stored_log, restore_files
from pe_agent.log.objects.uploader import LogUploader

SEGMENT_BYTES = 700


class FaultyBucket(Bucket):
    """A bucket whose next calls fail, before or after they had their effect.

    Attributes:
        faults: for each of the next calls that write whether it fails, and whether it has its
            effect nevertheless.
    """

    def __init__(self, of: Bucket) -> None:
        super().__init__(of.url, of._store, of._prefix)
        self.faults: list[tuple[bool, bool]] = []

    def folder(self, name: str) -> FaultyBucket:
        inner = FaultyBucket(super().folder(name))
        inner.faults = self.faults
        return inner

    def put_new(self, key: str, data: bytes) -> bool:
        fails, has_effect = self.faults.pop() if self.faults else (False, True)
        done = super().put_new(key, data) if has_effect else False
        if fails:
            raise BucketError("a fault")
        return done

    def put(self, key: str, data: bytes) -> None:
        fails, has_effect = self.faults.pop() if self.faults else (False, True)
        if has_effect:
            super().put(key, data)
        if fails:
            raise BucketError("a fault")


class OneAgent:
    """One agent of the PE: takes over, has a log, and uploads when the test lets it."""

    def __init__(self, bucket: Bucket, directory: Path, committer: Committer) -> None:
        self.bucket = FaultyBucket(bucket)
        self.directory = directory
        self.owner = ownership.claim(bucket)
        self.snapshots = Chain(bucket, ownership.STATE, self.owner)
        earlier = ownership.take_over(bucket, self.owner)
        self.folder = self.bucket.folder("stream")
        stored = StoredLog()
        if earlier is not None:
            stored = read_stored_log(
                self.folder,
                owner=earlier.owner,
                by=self.owner,
                recorded=earlier.streams["stream"],
            )
            restore_files(self.folder, stored, directory)
        self.log = StreamLog.open(
            directory,
            segment_bytes=SEGMENT_BYTES,
            committer=committer,
            fetch=fetcher(self.folder, stored, directory),
        )
        last = self.log.segments()[-1]
        stored.cut((last.number, last.end))
        self.recovered = {
            address: bytes(self.log.read(address))
            for address, _, _ in self.log.recovered_frames(set(Kind))
        }
        self.appended: dict[Address, bytes] = {}
        self.uploader = LogUploader(
            self.folder,
            self.owner,
            self.log,
            uploaded=stored.uploaded,
            inherited=stored.inherited(),
            request=lambda _: True,
            before=self.save,
        )
        self.log.uploader = self.uploader

    def save(self) -> None:
        self.snapshots.append(*ownership.encode(b"", {"stream": self.uploader.record()}))

    def upload(self) -> None:
        self.log.flush()
        self.uploader.flush()

    def stored(self) -> dict[Address, bytes]:
        """Return the own frames that the bucket has."""
        return {
            address: data
            for address, data in self.appended.items()
            if (address.segment, address.offset + address.length) <= self.uploader.uploaded
        }
