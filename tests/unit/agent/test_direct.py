"""Objects that tasks put into the bucket of an export: what deletes them, what a commit accepts."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pe_agent.agent.exports.publisher import NotAdmittedError, StageMissingError
from pe_agent.agent.exports.stream.block_reader import BlockReader, ReadRequest
from pe_agent.agent.exports.stream.export_stream import ExportStream
from pe_agent.log.errors import LogFailed
from pe_agent.log.objects.bucket import Bucket, BucketUrlError, open_bucket
from pe_agent.log.objects.uploader import LogUploader
from pe_agent.transport.object_transfer import ObjectTransferError, put_object
from support.agents.exports import DDL, PUBLISHER, SCHEMA, Bench, rows


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    return open_bucket(f"file://{tmp_path}/shared").folder("default/feed/0")


def started(tmp_path: Path, bucket: Bucket, name: str) -> Bench:
    made = Bench(tmp_path / name, bucket=bucket)
    made.open()
    made.export.set_durability("stored")
    return made


def uploaded(made: Bench, batch: int, first: int, **more: Any) -> dict[str, Any]:
    """Write ten rows as a task does; return the summary of its stage."""
    named = {**PUBLISHER, **more}
    target = made.export.publisher.upload(
        query=named["query"], run=named["run"], batch=batch, ddl=named["ddl"], schema=SCHEMA
    )
    data = rows(first, 10).serialize().to_pybytes()
    put_object(target["url"], data)
    return {
        "stage": target["key"],
        "stream": target["stream"],
        "rows": 10,
        "bytes": len(data),
        "objects": {target["key"]: [[len(data), 10, zlib.crc32(data)]]},
    }


def publish(made: Bench, batch: int, first: int, **more: Any) -> None:
    assert made.admit(batch, **more)["direct"]
    made.commit(batch, uploaded(made, batch, first, **more), **more)


def stream_of(made: Bench) -> ExportStream:
    (stream,) = made.export.state.streams.values()
    return stream


def collect(made: Bench) -> None:
    """Delete obsolete objects, as it is done every minute."""
    objects = stream_of(made).objects
    assert objects is not None
    objects.flush()


def numbers(made: Bench) -> list[int]:
    stream = stream_of(made)
    found: list[int] = []
    for _, manifest in sorted(stream.manifests.items()):
        for block in manifest.blocks:
            found += stream.read(block, manifest.ddl).column("n").to_pylist()
    return found


def save(made: Bench) -> None:
    assert made.storage is not None
    made.storage.save()


def test_an_idle_agent_that_was_superseded_deletes_nothing(tmp_path: Path, bucket: Bucket) -> None:
    old = started(tmp_path, bucket, "old")
    publish(old, 0, 0)
    save(old)
    new = started(tmp_path, bucket, "new")
    new.now += 100
    publish(new, 1, 10, run="run-2")
    collect(old)
    assert numbers(new) == list(range(20))


def test_a_successor_knows_the_run_whose_task_has_a_url(tmp_path: Path, bucket: Bucket) -> None:
    old = started(tmp_path, bucket, "old")
    publish(old, 0, 0)
    save(old)
    assert old.admit(1, run="run-2")["direct"]
    staged = uploaded(old, 1, 10, run="run-2")
    new = started(tmp_path, bucket, "new")
    collect(new)
    new.commit(1, staged, run="run-2")
    assert numbers(new) == list(range(20))


def test_an_epoch_whose_sync_failed_keeps_its_objects_for_the_restart(
    tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = started(tmp_path, bucket, "feed")
    publish(made, 0, 0)
    save(made)
    assert made.admit(1)["direct"]
    staged, log = uploaded(made, 1, 10), stream_of(made).log
    plain = log.sync

    def fail(*args: Any, **_: Any) -> None:
        plain(*args, is_local=True)
        raise LogFailed(log.directory, reason="test")

    monkeypatch.setattr(log, "sync", fail)
    with pytest.raises(LogFailed):
        made.commit(1, staged)
    made.admit(1, run="run-2")
    collect(made)
    made.close()
    again = started(tmp_path, bucket, "feed")
    assert numbers(again) == list(range(20))


def test_a_commit_after_an_abort_publishes_nothing(tmp_path: Path, bucket: Bucket) -> None:
    made = started(tmp_path, bucket, "feed")
    publish(made, 0, 0)
    assert made.admit(1)["direct"]
    staged = uploaded(made, 1, 10)
    named = {name: PUBLISHER[name] for name in ("query", "run")}
    made.export.publisher.abort(**named, batch=1, stages=[])
    with pytest.raises(StageMissingError, match="aborted"):
        made.commit(1, staged)
    assert numbers(made) == list(range(10))


@pytest.mark.parametrize("wrong", ["missing", "shorter", "other rows", "other stream"])
def test_a_commit_whose_objects_differ_publishes_nothing(
    tmp_path: Path, bucket: Bucket, wrong: str
) -> None:
    made = started(tmp_path, bucket, "feed")
    assert made.admit(0)["direct"]
    staged = uploaded(made, 0, 0)
    (path,) = (tmp_path / "shared").glob("**/direct/*/*/*")
    if wrong == "missing":
        path.unlink()
    elif wrong == "shorter":
        path.write_bytes(path.read_bytes()[:-1])
    elif wrong == "other rows":
        staged["rows"] = 11
    else:
        staged["stream"] = "another"
    with pytest.raises(StageMissingError):
        made.commit(0, staged)
    assert numbers(made) == []


def test_a_task_without_the_shared_directory_fails(tmp_path: Path, bucket: Bucket) -> None:
    with pytest.raises(ObjectTransferError, match="No such file"):
        put_object((tmp_path / "elsewhere" / "object").as_uri(), b"rows")
    with pytest.raises(BucketUrlError, match="write file:///shared/dir"):
        open_bucket("file://shared/dir")


@pytest.mark.parametrize("key", ["../{run}/0/x", "parts/{run}/0/x", "direct/{run}/0/..", "x"])
def test_only_keys_of_a_batch_are_signed(tmp_path: Path, bucket: Bucket, key: str) -> None:
    made = started(tmp_path, bucket, "feed")
    made.admit(0)
    named = {name: PUBLISHER[name] for name in ("query", "run", "ddl")}
    with pytest.raises(NotAdmittedError):
        made.export.publisher.upload(
            **named, batch=0, schema=SCHEMA, key=key.format(run=PUBLISHER["run"])
        )


def test_a_stray_object_keeps_no_other_from_being_deleted(tmp_path: Path, bucket: Bucket) -> None:
    made = started(tmp_path, bucket, "feed")
    assert made.admit(0)["direct"]
    uploaded(made, 0, 0)  # an attempt that is not committed
    publish(made, 0, 0)
    folder = bucket.folder(f"streams/{stream_of(made).id}")
    folder.put("direct/readme", b"")
    collect(made)
    assert len(folder.list("direct")) == 2
    assert "readme" in folder.list("direct")


WIDER = pa.schema([("n", pa.int64()), ("name", pa.string()), ("more", pa.string())])
WIDER_DDL = f"{DDL}, `more` string"


def publish_wider(made: Bench, batch: int, first: int) -> None:
    """Publish two rows with one more column, in an object."""
    named: dict[str, Any] = {**PUBLISHER, "ddl": WIDER_DDL}
    assert made.admit(batch, ddl=WIDER_DDL)["direct"]
    target = made.export.publisher.upload(**named, batch=batch, schema=WIDER)
    columns = [pa.array([first, first + 1]), pa.array(["x", "y"]), pa.array(["a", "b"])]
    data = pa.RecordBatch.from_arrays(columns, schema=WIDER).serialize().to_pybytes()
    put_object(target["url"], data)
    objects = {target["key"]: [[len(data), 2, zlib.crc32(data)]]}
    stage = {"stage": target["key"], "stream": target["stream"], "rows": 2, "bytes": len(data)}
    made.commit(batch, {**stage, "objects": objects}, ddl=WIDER_DDL)


def test_new_columns_are_in_the_bucket_before_their_rows(tmp_path: Path, bucket: Bucket) -> None:
    old = started(tmp_path, bucket, "old")
    publish(old, 0, 0)
    publish_wider(old, 1, 10)

    stream = stream_of(started(tmp_path, bucket, "new"))  # with nothing but the bucket

    (block,) = stream.manifests[1].blocks
    assert stream.read(block, stream.manifests[1].ddl).column("more").to_pylist() == ["a", "b"]
    (block,) = stream.manifests[0].blocks
    assert stream.read(block, stream.manifests[0].ddl).schema.names == ["n", "name"]


def test_tasks_read_objects_of_one_version_with_its_columns(tmp_path: Path, bucket: Bucket) -> None:
    made = started(tmp_path, bucket, "feed")
    made.route()
    publish(made, 0, 0)
    publish_wider(made, 1, 10)
    made.plan()

    def found(*epochs: int, columns: tuple[str, ...] | None = None) -> pa.Schema | None:
        read = ReadRequest(
            reader="reader", stream=made.stream, pieces=tuple((e, 0, 1) for e in epochs),
            filter=None, columns=columns,
        )  # fmt: skip
        objects = BlockReader().find_objects(made.export.plans, read)
        return None if objects is None else objects[1]

    assert found(0) == SCHEMA
    assert found(1) == WIDER
    assert found(0, 1) is None, "they need one schema, so the agent sends them"
    made.plan(columns=["more"])
    assert found(0, columns=("more",)) is None
    assert found(1, columns=("more",)) == WIDER


def test_the_bucket_has_new_columns_before_their_rows_also_if_it_follows_later(
    tmp_path: Path, bucket: Bucket
) -> None:
    """Rows are safe on the disk here; parts are uploaded more often than the agent's state."""
    old = Bench(tmp_path / "old", bucket=bucket)
    old.open()
    old.publish(0, rows(0, 2))
    uploader = stream_of(old).log.uploader
    assert isinstance(uploader, LogUploader)
    uploader.flush()
    save(old)
    row = rows(2, 1).append_column("more", pa.array(["a"]))
    old.publish(1, row, ddl=WIDER_DDL)
    uploader.flush()

    stream = stream_of(started(tmp_path, bucket, "new"))  # with nothing but the bucket

    (block,) = stream.manifests[1].blocks
    assert stream.read(block, stream.manifests[1].ddl).column("more").to_pylist() == ["a"]
