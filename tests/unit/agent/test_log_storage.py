"""Logs in object storage, with several agents that believe to own a stream."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from obstore.exceptions import AlreadyExistsError

from pe_agent.agent.storage import ownership
from pe_agent.log.commit import Committer
from pe_agent.log.errors import AddressGone, LogError, Superseded
from pe_agent.log.frames import Address, Kind
from pe_agent.log.log import StreamLog
from pe_agent.log.objects import bucket as bucket_module
from pe_agent.log.objects import stream_folder, uploader
from pe_agent.log.objects.bucket import Bucket, BucketError, open_bucket
from pe_agent.log.objects.chain import Chain, seal
from pe_agent.log.objects.restore import fetcher, read_stored_log, restore_files
from support.agents.logs import body
from support.processes.ports import free_port
from support.storage.one_agent import SEGMENT_BYTES, OneAgent

PART_BYTES = 150
"""Less than many frames, so that parts end inside of them."""


class StorageMachine(RuleBasedStateMachine):
    """Agents that take over from each other while the earlier ones go on.

    What an agent has seen stored must be in the log of each later agent, under its address, unless
    the agent in charge removed its segment.
    """

    def __init__(self) -> None:
        super().__init__()
        self.before, stream_folder.PART_BYTES = stream_folder.PART_BYTES, PART_BYTES
        self.bucket = open_bucket("memory://")
        self.place = Path(tempfile.mkdtemp())
        self.committer = Committer(threads=1)
        self.counter = 0
        self.acknowledged: dict[Address, bytes] = {}
        self.removed: set[int] = set()
        self.agents: list[OneAgent] = []
        self.take_over()

    @rule()
    def take_over(self) -> None:
        agent = OneAgent(self.bucket, self.place / str(len(self.agents)), self.committer)
        for address, data in self.acknowledged.items():
            if address.segment not in self.removed:
                assert agent.recovered.get(address) == data
        self.agents.append(agent)

    @rule()
    def restart(self) -> None:
        """The last agent starts again with its directory, after a kill."""
        old = self.agents[-1]
        self.upload(len(self.agents) - 1)
        old.log.close()
        agent = OneAgent(self.bucket, old.directory, self.committer)
        for address, data in self.acknowledged.items():
            if address.segment not in self.removed:
                assert agent.recovered.get(address) == data
        self.agents[-1] = agent

    @rule(which=st.integers(0, 9), size=st.integers(0, 400))
    def append(self, which: int, size: int) -> None:
        agent = self.agents[which % len(self.agents)]
        self.counter += 1
        data = body(self.counter, size)
        try:
            address = agent.log.append(Kind.NOTE, b"%d" % self.counter, data)
        except Superseded:
            assert agent is not self.agents[-1]
        else:
            agent.appended[address] = data

    @rule(
        which=st.integers(0, 9),
        faults=st.lists(st.tuples(st.booleans(), st.booleans()), max_size=3),
    )
    def fail(self, which: int, faults: list[tuple[bool, bool]]) -> None:
        agent = self.agents[which % len(self.agents)]
        agent.bucket.faults[:] = [(fails, has or not fails) for fails, has in faults]

    @rule(which=st.integers(0, 9))
    def upload(self, which: int) -> None:
        agent = self.agents[which % len(self.agents)]
        before = agent.stored()
        agent.upload()
        new = {a: data for a, data in agent.stored().items() if a not in before}
        if agent is not self.agents[-1]:
            # A put whose response was lost, and which the later agents have read.
            for address, data in new.items():
                assert address.segment in self.removed or (
                    self.agents[-1].recovered.get(address) == data
                )
            return
        assert not agent.uploader.superseded
        for address, data in new.items():
            assert self.acknowledged.setdefault(address, data) == data

    @precondition(lambda self: len(self.agents[-1].log.segments()) > 1)
    @rule(count=st.integers(1, 3))
    def drop(self, count: int) -> None:
        agent = self.agents[-1]
        numbers = [one.number for one in agent.log.segments()][:-1][:count]
        agent.log.drop(lambda number: number not in numbers)
        self.removed.update(numbers)

    def teardown(self) -> None:
        for agent in self.agents:
            agent.log.close()
        self.committer.close()
        shutil.rmtree(self.place)
        stream_folder.PART_BYTES = self.before


TestStorage = StorageMachine.TestCase
EXAMPLES = 25 if os.environ.get("HYPOTHESIS_PROFILE") != "long" else 10_000
TestStorage.settings = settings(max_examples=EXAMPLES, stateful_step_count=40, deadline=None)


def test_frames_in_storage_only_are_fetched_when_they_are_read(tmp_path: Path) -> None:
    bucket, committer = open_bucket("memory://"), Committer(threads=1)
    first = OneAgent(bucket, tmp_path / "1", committer)
    addresses = [first.log.append(Kind.NOTE, b"", body(n, 300)) for n in range(10)]
    first.uploader.request_all()
    first.upload()
    assert first.uploader.status() == (0, 0.0, None, False)

    earlier = ownership.take_over(bucket, ownership.claim(bucket))
    assert earlier is not None
    folder, directory = bucket.folder("stream"), tmp_path / "2"
    stored = read_stored_log(folder, owner=1, by=2, recorded=earlier.streams["stream"])
    restore_files(folder, stored, directory)
    numbers = sorted(int(path.stem) for path in directory.glob("*.segment"))
    assert numbers == [addresses[-1].segment]

    log = StreamLog.open(
        directory,
        segment_bytes=SEGMENT_BYTES,
        committer=committer,
        fetch=fetcher(folder, stored, directory),
    )
    assert [bytes(log.read(address)) for address in addresses] == [body(n, 300) for n in range(10)]
    numbers = sorted(int(path.stem) for path in directory.glob("*.segment"))
    assert numbers == sorted({address.segment for address in addresses})
    assert not list(directory.glob("*.remote"))
    log.close()
    first.log.close()
    committer.close()


def test_a_kill_while_files_are_restored_leaves_only_whole_ones(tmp_path: Path) -> None:
    """What a kill would leave is read at each call and return of the threads that restore."""
    bucket, committer = open_bucket("memory://"), Committer(threads=1)
    first = OneAgent(bucket, tmp_path / "1", committer)
    for n in range(10):
        first.log.append(Kind.NOTE, b"", body(n, 300))
    first.uploader.request_all()
    first.upload()
    directory, found = tmp_path / "2", set[str]()

    def read(_frame: FrameType, _event: str, _call: object) -> None:
        found.update(path.read_text() for path in directory.glob("*.remote"))

    threading.setprofile(read)
    try:
        second = OneAgent(bucket, directory, committer)
    finally:
        threading.setprofile(None)

    assert found
    assert "" not in found
    second.log.close()
    first.log.close()
    committer.close()


def test_a_superseded_agent_appends_no_more_and_still_reads(tmp_path: Path) -> None:
    bucket, committer = open_bucket("memory://"), Committer(threads=1)
    first = OneAgent(bucket, tmp_path / "1", committer)
    stored = first.log.append(Kind.NOTE, b"", b"stored")
    first.upload()
    second = OneAgent(bucket, tmp_path / "2", committer)
    assert second.recovered == {stored: b"stored"}
    late = first.log.append(Kind.NOTE, b"", b"late")
    first.uploader.is_required = True
    first.upload()

    with pytest.raises(Superseded, match="another agent of this PE has taken over"):
        first.log.append(Kind.NOTE, b"", b"more")
    with pytest.raises(Superseded):
        first.uploader.wait((late.segment, late.offset + late.length))
    assert bytes(first.log.read(late)) == b"late"
    own = second.log.append(Kind.NOTE, b"", b"own")
    second.upload()
    third = OneAgent(bucket, tmp_path / "3", committer)
    assert third.recovered == {stored: b"stored", own: b"own"}
    for agent in (first, second, third):
        agent.log.close()
    committer.close()


@dataclass
class Clock:
    """The clock of the uploader, set by hand; two seconds are between two looks at the lag."""

    now: float = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(uploader, "time", clock)
    return clock


def test_uploads_that_keep_up_have_no_lag_though_something_waits_each_time(
    tmp_path: Path, clock: Clock
) -> None:
    committer = Committer(threads=1)
    agent, found = OneAgent(open_bucket("memory://"), tmp_path, committer), []
    for number in range(50):
        agent.log.append(Kind.NOTE, b"%d" % number, b"frame")
        agent.log.flush()
        found.append(agent.uploader.status())
        clock.now += 2.0
        agent.uploader.flush()
    assert {one.seconds for one in found} == {0.0}
    assert min(one.bytes for one in found) > 0
    agent.log.close()
    committer.close()


@pytest.mark.parametrize(
    ("then", "in_parts"), [("it fills", {1}), ("it rests", {1, 3}), ("the agent ends", {1, 3})]
)
def test_a_segment_that_fills_before_the_next_upload_is_uploaded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str, in_parts: set[int]
) -> None:
    committer = Committer(threads=1)
    found: set[int] = set()
    put_parts = stream_folder.StreamFolder.put_parts

    def record(folder: Any, segment: Any, start: int) -> Any:
        found.update({segment.number} if start < segment.end else ())
        return put_parts(folder, segment, start)

    monkeypatch.setattr(stream_folder.StreamFolder, "put_parts", record)
    agent = OneAgent(open_bucket("memory://"), tmp_path, committer)

    def append_until(number: int) -> None:
        while agent.log.append(Kind.NOTE, b"", bytes(100)).segment < number:
            pass

    append_until(1)
    agent.upload()
    append_until(3)
    if then == "the agent ends":
        agent.uploader.request_all()
    agent.upload()
    assert (agent.uploader.uploaded[0] == 3) == (then == "the agent ends")
    if then == "it fills":
        append_until(4)
    agent.upload()
    assert found == in_parts
    assert agent.uploader.uploaded[0] >= 3
    agent.log.close()
    committer.close()


def test_the_lag_is_the_age_of_the_oldest_bytes_that_wait(tmp_path: Path, clock: Clock) -> None:
    committer = Committer(threads=1)
    agent, seconds = OneAgent(open_bucket("memory://"), tmp_path, committer), []
    ends: list[tuple[int, int]] = []
    for number in range(1_000):
        address = agent.log.append(Kind.NOTE, b"%d" % number, b"frame")
        agent.log.flush()
        ends.append((address.segment, address.offset + address.length))
        if number >= 500:  # a bucket that takes as much as is published, 500 frames later
            agent.uploader.uploaded = ends[number - 500]
        seconds.append(agent.uploader.status().seconds)
        clock.now += 2.0
    assert seconds[:500] == [2.0 * number for number in range(500)]
    assert min(seconds[500:]) >= 1_000.0 * 15 / 16 - 2.0
    assert max(seconds[500:]) <= 1_000.0
    agent.uploader.request_all()
    agent.upload()
    assert agent.uploader.status()[:2] == (0, 0.0)
    agent.log.close()
    committer.close()


def test_a_repeated_error_of_the_bucket_has_the_same_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_module, "ATTEMPTS", 1)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "tests")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "tests")
    bucket, texts = open_bucket("s3://rows/prefix"), set()
    for _ in range(3):
        with pytest.raises(BucketError, match="s3://rows/prefix: PutObject of key failed") as found:
            bucket.put_new("key", b"")
        texts.add(str(found.value))
    assert len(texts) == 1


def test_a_segment_that_is_missing_in_the_bucket_is_named(tmp_path: Path) -> None:
    bucket, committer = open_bucket("memory://"), Committer(threads=1)
    first = OneAgent(bucket, tmp_path / "1", committer)
    addresses = [first.log.append(Kind.NOTE, b"", body(n, 300)) for n in range(6)]
    first.upload()
    second = OneAgent.__new__(OneAgent)
    earlier = ownership.take_over(bucket, ownership.claim(bucket))
    assert earlier is not None
    folder = bucket.folder("stream")
    stored = read_stored_log(folder, owner=1, by=2, recorded=earlier.streams["stream"])
    restore_files(folder, stored, tmp_path / "2")
    folder.delete([stored.pieces[1][0].key])
    second.log = StreamLog.open(
        tmp_path / "2",
        segment_bytes=SEGMENT_BYTES,
        committer=committer,
        fetch=fetcher(folder, stored, tmp_path / "2"),
    )
    with pytest.raises(LogError, match=r"segments/0000000001-0000000001.segment is missing in mem"):
        second.log.read(addresses[0])
    with pytest.raises(AddressGone):
        second.log.read(Address(99, 4096, 40))
    second.log.close()
    first.log.close()
    committer.close()


def test_a_seal_is_behind_what_the_owner_wrote_while_it_was_put() -> None:
    bucket = open_bucket("memory://")
    owner = Chain(bucket, "parts", 1)
    for _ in range(3):
        owner.append({})

    class Busy(Bucket):
        """Lets the owner write, and delete all but its last link, before the first put."""

        is_busy = True

        def put_new(self, key: str, data: bytes) -> bool:
            if self.is_busy:
                self.is_busy = False
                for _ in range(3):
                    owner.append({})
                owner.delete(range(5))
            return super().put_new(key, data)

    numbers = seal(Busy(bucket.url, bucket._store, bucket._prefix), "parts", 1, by=2)
    assert numbers[-1] == 5
    with pytest.raises(Superseded):
        owner.append({})


def test_a_conflict_with_a_put_under_way_is_no_takeover() -> None:
    bucket = open_bucket("memory://")

    class Conflicting(Bucket):
        """Reports a conflict twice, as S3 does while another put of the key is under way."""

        conflicts = 2

        def _call(self, permission: str, key: str, operation: Any) -> Any:
            if permission == "PutObject" and self.conflicts:
                self.conflicts -= 1
                raise AlreadyExistsError("409")
            return super()._call(permission, key, operation)

    chain = Chain(Conflicting(bucket.url, bucket._store, bucket._prefix), "parts", 1)
    assert chain.append({}, b"x") == 0
    assert bucket.list("parts/0000000001")
