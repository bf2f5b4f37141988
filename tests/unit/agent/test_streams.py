"""Rows and epochs of one stream on its log: what is needed stays, the rest goes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from pe_agent.agent.exports.stream.export_stream import ExportStream, RowsDifferError
from pe_agent.agent.exports.stream.manifests import Block, Manifest, ManifestVersionError, Stage
from pe_agent.log.commit import Committer
from pe_agent.log.frames import Address, Kind
from pe_agent.log.log import StreamLog
from support.agents.exports import DDL, SCHEMA, rows

SEGMENT = 4096


class Bench:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.committer = Committer(threads=1)
        self.stream = self.open()

    def open(self) -> ExportStream:
        directory = self.directory / "s"
        log = StreamLog.open(directory, committer=self.committer, segment_bytes=SEGMENT)
        return ExportStream("s", log=log, query="q", ddl=DDL, schema=SCHEMA, segment_bytes=SEGMENT)

    def reopen(self) -> ExportStream:
        self.stream.log.close()
        self.stream = self.open()
        return self.stream

    def stage(self, batch: int, *batches: pa.RecordBatch) -> Stage:
        stage = self.stream.begin(query="q", run="r", batch=batch)
        for one in batches:
            self.stream.append(stage, one)
        self.stream.finish(stage)
        return stage

    def publish(self, epoch: int, stage: Stage, before: int = 0) -> None:
        self.stream.publish(manifest(epoch, stage, before))
        self.stream.sweep_stages(lambda s: s.batch <= stage.batch)

    def segments(self) -> list[int]:
        return [s.number for s in self.stream.log.segments()]


def manifest(epoch: int, stage: Stage, before: int = 0) -> Manifest:
    return Manifest(
        epoch=epoch,
        query="q",
        run="r",
        batch=stage.batch,
        rows=stage.rows,
        bytes=stage.bytes,
        published=12.5,
        ddl=DDL,
        rows_before=before,
        blocks=tuple(stage.blocks),
    )


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Bench]:
    one = Bench(tmp_path)
    yield one
    one.stream.log.close()
    one.committer.close()


def test_a_manifest_survives_its_bytes() -> None:
    stage = Stage(id="a", stream="s", query="q", run="r", batch=3, rows=7, bytes=9)
    stage.blocks = [Block(Address(1, 64, 200), 7)]
    one = manifest(4, stage, 70)
    assert Manifest.decode(one.encode()) == one


@pytest.mark.compatibility(
    "manifest of an epoch",
    "a newer version is refused by name",
)
def test_a_manifest_of_a_newer_release_is_refused_by_name() -> None:
    stage = Stage(id="a", stream="s", query="q", run="r", batch=3)
    body = {**json.loads(manifest(4, stage).encode()), "v": 5}
    with pytest.raises(ManifestVersionError, match="epoch 4 has manifest version 5"):
        Manifest.decode(json.dumps(body).encode())


def test_epochs_and_whole_stages_are_found_again(made: Bench) -> None:
    made.publish(0, made.stage(0, rows(0, 3), rows(3, 2)))
    waiting = made.stage(1, rows(5, 4))
    begun = made.stream.begin(query="q", run="r", batch=1)
    made.stream.append(begun, rows(9, 1))
    stream = made.reopen()
    assert [(m.epoch, m.rows) for m in stream.manifests.values()] == [(0, 5)]
    found = stream.stages[waiting.id]
    assert (found.rows, found.crc, found.bytes, found.complete) == (
        waiting.rows,
        waiting.crc,
        waiting.bytes,
        True,
    )
    assert found.blocks == waiting.blocks
    assert begun.id not in stream.stages
    assert stream.read(found.blocks[0], DDL).column("n").to_pylist() == [5, 6, 7, 8]


def test_segments_go_with_the_epochs_in_them(made: Bench) -> None:
    for epoch in range(4):
        made.publish(epoch, made.stage(epoch, rows(0, 3, size=1500)))
    assert len(made.segments()) > 3
    made.stream.remove([0, 1, 2])
    kept = {b.address.segment for b in made.stream.manifests[3].log_blocks}
    assert set(made.segments()) >= kept
    assert 1 not in made.segments()
    assert [m.epoch for m in made.reopen().manifests.values()][-1] == 3


def test_the_segments_of_a_stage_under_way_stay(made: Bench) -> None:
    begun = made.stream.begin(query="q", run="r", batch=9)
    made.publish(0, made.stage(0, rows(0, 3, size=1500)))
    made.stream.append(begun, rows(0, 1))
    made.publish(1, made.stage(1, rows(0, 3, size=1500)))
    made.publish(2, made.stage(2, rows(0, 3, size=1500)))
    made.stream.stages[begun.id] = begun
    made.stream.remove([0, 1])
    made.stream.finish(begun)
    assert made.stream.read(begun.blocks[0], DDL).num_rows == 1
    assert begun.id in made.reopen().stages


def test_a_segment_is_kept_for_a_stage_from_its_beginning_though_no_block_is_reported(
    made: Bench,
) -> None:
    begun = made.stream.begin(query="q", run="r", batch=9)
    address = made.stream.log.append(Kind.STAGE_DATA, b'{"s": "x", "n": 1}', b"rows")
    for epoch in range(3):
        stage = made.stage(epoch, rows(0, 3, size=1500))
        made.stream.publish(manifest(epoch, stage))
        made.stream.discard(stage.id)
    made.stream.remove([0, 1, 2])
    assert bytes(made.stream.log.read(address)) == b"rows"
    made.stream.discard(begun.id)
    made.stream.remove([])
    assert address.segment not in made.segments()


def test_rows_of_equal_columns_are_cast_to_the_streams_types(made: Bench) -> None:
    large = pa.schema([("n", pa.int32()), ("name", pa.large_string())])
    batch = pa.RecordBatch.from_pydict({"n": [1], "name": ["a"]}, schema=large)
    stage = made.stage(0, batch)
    assert made.stream.read(stage.blocks[0], DDL).schema == SCHEMA


@pytest.mark.parametrize(
    "columns",
    [{"n": [1]}, {"name": ["a"], "n": [1]}, {"n": ["x"], "name": ["a"]}],
    ids=["one missing", "other order", "other type"],
)
def test_rows_of_other_columns_are_refused_with_both_sides(
    made: Bench, columns: dict[str, list[object]]
) -> None:
    stage = made.stream.begin(query="q", run="r", batch=0)
    with pytest.raises(RowsDifferError, match="which has \\(n int64, name string\\)"):
        made.stream.append(stage, pa.RecordBatch.from_pydict(columns))
    assert stage.blocks == []


def test_stages_are_swept_by_batch_and_by_run(made: Bench) -> None:
    kept, done = made.stage(2, rows(0, 1)), made.stage(1, rows(0, 1))
    foreign = made.stream.begin(query="q", run="old", batch=2)
    made.stream.sweep_stages(lambda s: s.batch <= 1 or s.run != "r")
    assert list(made.stream.stages) == [kept.id]
    assert done.id not in made.stream.stages
    assert foreign.id not in made.stream.stages


def test_a_stage_whose_rows_are_not_all_there_is_not_a_stage(made: Bench) -> None:
    stage = made.stream.begin(query="q", run="r", batch=0)
    made.stream.append(stage, rows(0, 1))
    stage.blocks.append(stage.blocks[0])
    made.stream.finish(stage)
    assert made.reopen().stages == {}


def test_a_stage_and_an_epoch_are_reported_only_when_they_are_safe(
    made: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = made.stream.begin(query="q", run="r", batch=0)
    made.stream.append(stage, rows(0, 1))
    whole: list[bool] = []
    plain = made.stream.log.sync

    def sync(upto: Address | None = None) -> None:
        whole.append(stage.complete or bool(made.stream.manifests))
        assert upto is not None
        assert upto > stage.addresses()[-2]
        plain(upto)

    monkeypatch.setattr(made.stream.log, "sync", sync)
    made.stream.finish(stage)
    stage.complete = False
    made.stream.publish(manifest(0, stage))
    assert whole == [False, False]
    assert list(made.stream.manifests) == [0]
