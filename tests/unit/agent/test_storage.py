"""Exports in object storage: an agent without its directory, and two agents of one PE."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pe_agent.agent.exports.export_state import StorageMissingError
from pe_agent.agent.storage import ownership
from pe_agent.agent.storage.tier import StorageForeignError
from pe_agent.log.errors import Superseded
from pe_agent.log.frames import Kind
from pe_agent.log.log import StreamLog
from pe_agent.log.objects.bucket import Bucket, BucketUnfitError, BucketUrlError, open_bucket
from streambroker_core.ledger.losses import DataLossError
from support.agents.exports import Bench, Killed, rows
from support.agents.logs import frames_of


@pytest.fixture(params=["memory", "file"])
def bucket(request: pytest.FixtureRequest, tmp_path: Path) -> Bucket:
    url = "memory://" if request.param == "memory" else f"file://{tmp_path}/shared"
    return open_bucket(url).folder("default/feed/0")


@dataclass
class Machine:
    """Starts agents of one PE, each in its own directory, and ends them all."""

    bucket: Bucket
    place: Path
    agents: list[Bench]

    def start(self, name: str, **more: Any) -> Bench:
        agent = Bench(self.place / name, bucket=self.bucket, **more)
        agent.open()
        self.agents.append(agent)
        return agent

    def uploaded(self, agent: Bench) -> None:
        """Upload what an agent has, at once."""
        assert agent.storage is not None
        agent.storage.save()
        for stream in agent.export.state.streams.values():
            stream.log.flush()
        for uploader in agent.storage.uploaders():
            uploader.flush()
        agent.storage.save()


@pytest.fixture
def machine(bucket: Bucket, tmp_path: Path) -> Iterator[Machine]:
    made = Machine(bucket, tmp_path, [])
    yield made
    for agent in made.agents:
        agent.close()


def read(agent: Bench, stream: str) -> list[int]:
    """Return column ``n`` of all rows of a stream."""
    export_stream = agent.export.state.streams[stream]
    return [
        value
        for _, manifest in sorted(export_stream.manifests.items())
        for block in manifest.blocks
        for value in export_stream.read(block, manifest.ddl).column("n").to_pylist()
    ]


def test_an_agent_with_an_empty_directory_goes_on_with_streams_and_claims(
    machine: Machine,
) -> None:
    first = machine.start("1")
    first.route("wait")
    for batch in range(3):
        first.publish(batch, rows(10 * batch, 10))
    stream = first.stream
    first.plan()
    first.plan({stream: 2})
    machine.uploaded(first)
    kept = read(first, stream)
    shutil.rmtree(first.directory)

    second = machine.start("2")
    second.route("wait")
    assert second.stream == stream
    assert read(second, stream) == kept
    assert second.publish(2, rows(20, 10))["published"] is False
    assert second.publish(3, rows(30, 10))["epoch"] == 3
    assert not second.export.status()["missing"]
    (planned,) = second.plan({stream: 2}).planned
    assert (planned.from_, planned.next) == (2, 4)


def test_secrets_stay_out_of_the_bucket(machine: Machine, bucket: Bucket) -> None:
    first = machine.start("1")
    token = first.store.identity("token")
    first.publish(0, rows(0, 10))
    machine.uploaded(first)

    second = machine.start("2")
    assert second.store.get("token") is None
    assert second.stream == first.stream
    for key in bucket.list("state"):
        content = bucket.get(f"state/{key}")
        assert content is not None
        assert token.encode() not in content


def test_a_restart_in_the_same_directory_keeps_what_was_not_uploaded(machine: Machine) -> None:
    first = machine.start("1")
    first.publish(0, rows(0, 10))
    machine.uploaded(first)
    for uploader in first.storage.uploaders():  # type: ignore[union-attr]
        uploader.close()
    first.publish(1, rows(10, 10))
    first.close()

    first.open()
    assert read(first, first.stream) == list(range(20))
    machine.uploaded(first)
    second = machine.start("2")
    assert read(second, second.stream) == list(range(20))


def test_many_streams_and_segments_come_back(machine: Machine) -> None:
    first = machine.start("1", segment_bytes=2000)
    for batch in range(20):
        first.publish(batch, rows(10 * batch, 10, size=50))
    old = first.stream
    machine.uploaded(first)
    first.now += 100
    for batch in range(5):
        first.publish(batch, rows(1000 + batch, 1), query="other")
    machine.uploaded(first)

    second = machine.start("2", segment_bytes=2000)
    assert list(second.export.state.streams) == list(first.export.state.streams)
    assert len(list((second.directory / "log" / old).glob("*.remote"))) > 3
    assert read(second, old) == list(range(200))
    assert not list((second.directory / "log" / old).glob("*.remote"))
    assert read(second, second.stream) == list(range(1000, 1005))


def test_what_readers_have_finished_goes_from_the_bucket(machine: Machine, bucket: Bucket) -> None:
    first = machine.start("1", segment_bytes=2000)
    first.route("wait")
    for batch in range(20):
        first.publish(batch, rows(10 * batch, 10, size=50))
    machine.uploaded(first)
    stream = first.stream
    before = sum(bucket.list(f"streams/{stream}").values())
    first.plan()
    first.plan({stream: 20})
    first.limit(max_bytes=1)
    machine.uploaded(first)
    assert sum(bucket.list(f"streams/{stream}").values()) < before / 4

    second = machine.start("2", segment_bytes=2000)
    assert second.publish(20, rows(200, 10, size=50))["epoch"] == 20
    assert not second.export.status()["missing"]


def test_the_earlier_of_two_agents_publishes_no_more(machine: Machine) -> None:
    first = machine.start("1")
    first.publish(0, rows(0, 10))
    machine.uploaded(first)
    second = machine.start("2")
    assert second.publish(1, rows(10, 10))["epoch"] == 1
    machine.uploaded(second)

    first.publish(1, rows(90, 10))
    for uploader in first.storage.uploaders():  # type: ignore[union-attr]
        uploader.flush()
    with pytest.raises(Superseded, match="another agent of this PE"):
        first.publish(2, rows(20, 10))
    third = machine.start("3")
    assert read(third, third.stream) == list(range(20))


def test_a_directory_that_another_agent_continued_is_moved_aside(machine: Machine) -> None:
    first = machine.start("1")
    first.publish(0, rows(0, 10))
    machine.uploaded(first)
    second = machine.start("2")
    second.publish(1, rows(10, 10))
    machine.uploaded(second)
    first.publish(1, rows(90, 10))
    first.close()

    first.open()
    assert read(first, first.stream) == list(range(20))
    copy = sqlite3.connect(first.directory / "superseded" / "state.sqlite")
    assert copy.execute("SELECT next FROM streams").fetchall() == [(2,)]
    copy.close()


@pytest.mark.parametrize("step", ["rename", "write_bytes"])
def test_a_start_that_was_killed_while_it_moved_files_is_repeated(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    first = machine.start("1")
    first.publish(0, rows(0, 10))
    machine.uploaded(first)
    second = machine.start("2")
    second.publish(1, rows(10, 10))
    machine.uploaded(second)
    first.publish(1, rows(90, 10))
    first.close()

    plain, calls = getattr(Path, step), list[Path]()

    def killed(self: Path, *arguments: Any) -> Any:
        if self.parent == first.directory:
            calls.append(self)
            if len(calls) == (2 if step == "rename" else 1):
                raise Killed
        return plain(self, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(Path, step, killed)
        with pytest.raises(Killed):
            first.open()
    first.open()
    assert read(first, first.stream) == list(range(20))


def test_a_directory_with_exports_of_its_own_is_not_replaced(
    machine: Machine, tmp_path: Path
) -> None:
    own = Bench(tmp_path / "own")
    own.open()
    own.publish(0, rows(0, 10))
    own.close()
    first = machine.start("1")
    first.publish(0, rows(0, 10))
    machine.uploaded(first)

    own.bucket = machine.bucket
    with pytest.raises(StorageForeignError, match="has exports that are not in"):
        own.open()


def test_each_start_leaves_a_few_small_objects(machine: Machine, bucket: Bucket) -> None:
    first = machine.start("1")
    first.publish(0, rows(0, 10))
    for _ in range(12):
        machine.uploaded(first)
        first.reopen()
    machine.uploaded(first)
    assert first.storage is not None
    assert first.storage.owner == 13
    assert len(bucket.list("owners")) == 8
    sizes = {key: size for key, size in bucket.list("state").items() if size > 200}
    assert {key.partition("/")[0] for key in sizes} == {"0000000013"}

    second = machine.start("2")
    assert read(second, second.stream) == list(range(10))


def test_exports_that_were_on_the_disk_alone_are_uploaded(machine: Machine, tmp_path: Path) -> None:
    own = Bench(tmp_path / "own")
    own.open()
    own.publish(0, rows(0, 10))
    own.close()
    own.bucket = machine.bucket
    own.open()
    machine.agents.append(own)
    machine.uploaded(own)

    second = machine.start("2")
    assert read(second, second.stream) == list(range(10))


class Unconditional(Bucket):
    """A bucket without conditional puts."""

    def put_new(self, key: str, data: bytes) -> bool:
        self.put(key, data)
        return True


def test_a_store_without_conditional_puts_is_refused(bucket: Bucket, tmp_path: Path) -> None:
    own = Bench(tmp_path, bucket=Unconditional(bucket.url, bucket._store, bucket._prefix))
    with pytest.raises(BucketUnfitError, match="the object store ignores `If-None-Match"):
        own.open()


class OldListing(Bucket):
    """A bucket whose lists are those from before the last starts."""

    def list(self, folder: str) -> dict[str, int]:
        return {}


def test_an_agent_takes_a_new_number_though_the_listing_is_old(bucket: Bucket) -> None:
    assert [ownership.claim(bucket) for _ in range(2)] == [1, 2]
    old = OldListing(bucket.url, bucket._store, bucket._prefix)
    assert ownership.claim(old) == 3


@pytest.mark.parametrize("url", ["s3://", "/data", "ftp://bucket/x", "", "s3:bucket"])
def test_a_url_without_a_bucket_is_refused(url: str) -> None:
    with pytest.raises(BucketUrlError, match="names no bucket: write s3://bucket/prefix or"):
        open_bucket(url)


class Slow(Bucket):
    """A bucket whose writes wait until the test opens it."""

    def __init__(self, of: Bucket, gate: threading.Event) -> None:
        super().__init__(of.url, of._store, of._prefix)
        self.gate = gate

    def folder(self, name: str) -> Slow:
        return Slow(super().folder(name), self.gate)

    def put_new(self, key: str, data: bytes) -> bool:
        assert self.gate.wait(60)
        return super().put_new(key, data)

    def put(self, key: str, data: bytes) -> None:
        assert self.gate.wait(60)
        super().put(key, data)


@pytest.fixture
def gate() -> threading.Event:
    gate = threading.Event()
    gate.set()
    return gate


def test_a_stored_export_is_published_once_the_bucket_has_it(
    machine: Machine, gate: threading.Event
) -> None:
    machine.bucket = Slow(machine.bucket, gate)
    first = machine.start("1")
    first.export.set_durability("stored")
    assert first.publish(0, rows(0, 10))["epoch"] == 0
    second = machine.start("2")
    assert read(second, second.stream) == list(range(10))


def manifest_frames(log: StreamLog) -> int:
    return sum(kind == Kind.MANIFEST for _, kind, _ in frames_of(log))


def test_an_export_answers_while_a_publish_waits_for_the_bucket(
    machine: Machine, gate: threading.Event
) -> None:
    machine.bucket = Slow(machine.bucket, gate)
    first = machine.start("1")
    first.route("wait")
    first.export.set_durability("stored")
    first.publish(0, rows(0, 10))
    first.plan()
    first.admit(1)
    stage = first.stage(1, rows(10, 10))
    gate.clear()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(first.commit, 1, stage)
        log = first.export.state.streams[first.stream].log
        while manifest_frames(log) < 2:
            assert not waiting.done()
        try:
            assert first.export.status()["streams"][first.stream]["next"] == 1
            (planned,) = first.plan({first.stream: 1}).planned
            assert (planned.from_, planned.next) == (1, 1)
            assert not waiting.done()
        finally:
            gate.set()
        assert waiting.result(60)["epoch"] == 1
    (planned,) = first.plan({first.stream: 1}).planned
    assert (planned.from_, planned.next) == (1, 2)


def test_a_local_export_does_not_wait_for_the_bucket(
    machine: Machine, gate: threading.Event
) -> None:
    machine.bucket = Slow(machine.bucket, gate)
    first = machine.start("1")
    machine.uploaded(first)
    gate.clear()
    assert first.publish(0, rows(0, 10))["epoch"] == 0
    assert first.export.status()["storage"]["bytes"] > 0
    gate.set()


def test_a_new_reader_of_a_stored_export_keeps_its_claims(machine: Machine) -> None:
    first = machine.start("1", segment_bytes=2000)
    first.route("wait")
    first.export.set_durability("stored")
    for batch in range(10):
        first.publish(batch, rows(10 * batch, 10, size=50))
    first.plan()

    second = machine.start("2", segment_bytes=2000)
    second.limit(max_bytes=1)
    second.export.tick()
    assert read(second, second.stream) == list(range(100))


def test_an_export_that_demands_storage_needs_some(tmp_path: Path) -> None:
    own = Bench(tmp_path / "own")
    own.open()
    own.export.set_durability("stored")
    with pytest.raises(StorageMissingError, match="its agent has no object storage"):
        own.admit(0)
    own.reopen()
    with pytest.raises(StorageMissingError):
        own.admit(0)
    own.export.set_durability("local")
    own.publish(0, rows(0, 1))
    own.close()


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("position", [1, 2])
def test_what_a_local_export_has_lost_is_an_error_for_readers(
    machine: Machine, position: int, known: bool
) -> None:
    first = machine.start("1")
    first.route("wait")
    first.publish(0, rows(0, 10))
    if known:  # to the bucket, by the last snapshot
        first.plan()
    machine.uploaded(first)
    for uploader in first.storage.uploaders():  # type: ignore[union-attr]
        uploader.close()
    first.publish(1, rows(10, 10))
    stream = first.stream
    shutil.rmtree(first.directory)

    second = machine.start("2")
    second.route("wait")
    assert read(second, stream) == list(range(10))
    second.publish(2, rows(20, 10))
    assert second.stream != stream
    with pytest.raises(DataLossError, match=f"1 .*of stream {stream} are gone"):
        second.plan({stream: position}, own_streams=frozenset([stream]), last=("q", position - 1))


def test_no_other_query_publishes_while_an_epoch_waits_for_the_bucket(
    machine: Machine, gate: threading.Event
) -> None:
    machine.bucket = Slow(machine.bucket, gate)
    first = machine.start("1")
    first.export.set_durability("stored")
    first.publish(0, rows(0, 10))
    first.admit(1)
    stage = first.stage(1, rows(10, 10))
    log = first.export.state.streams[first.stream].log
    gate.clear()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(first.commit, 1, stage)
        try:
            while manifest_frames(log) < 2:
                assert not waiting.done()
            first.export.publisher.end_publisher_lease("q")
            assert "occupied" in first.admit(0, query="other", run="other-run")
        finally:
            gate.set()
        assert waiting.result(60)["epoch"] == 1
    assert first.publish(0, rows(50, 10), query="other", run="other-run")["published"]


def test_moved_frames_are_in_the_bucket_before_their_old_segment_goes(machine: Machine) -> None:
    first = machine.start("1", segment_bytes=2000)
    first.route("wait")
    for batch in range(12):
        first.publish(batch, rows(10 * batch, 10, size=50))
    machine.uploaded(first)
    stream = first.export.state.streams[first.stream]
    for epoch in (1, 2, 4, 5, 7, 8, 10):
        stream._index.remove_epoch(epoch)
    kept = read(first, first.stream)
    before = {one.number for one in stream.log.segments()}
    stream.compactor.run()
    assert machine.bucket.list(f"streams/{first.stream}/segments")
    assert len(before) > 3
    second = machine.start("2", segment_bytes=2000)
    assert set(kept) <= set(read(second, first.stream))


def test_a_segment_that_was_uploaded_in_part_and_dropped_does_not_come_back(
    machine: Machine,
) -> None:
    first = machine.start("1", segment_bytes=2000)
    first.route("wait")
    first.publish(0, rows(0, 10, size=50))
    machine.uploaded(first)
    for uploader in first.storage.uploaders():  # type: ignore[union-attr]
        uploader.close()
    for batch in range(1, 12):
        first.publish(batch, rows(10 * batch, 10, size=50))
    first.plan()
    first.plan({first.stream: 11})
    first.limit(max_bytes=1)
    first.export.tick()
    first.close()

    first.open()
    assert read(first, first.stream)[-10:] == list(range(110, 120))
