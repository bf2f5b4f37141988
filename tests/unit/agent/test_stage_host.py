"""A fellow alone: stages are kept, sealed once, read by grant, released by levels."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pe_agent.agent.exports.publisher import StageMissingError, StageTooLargeError
from pe_agent.agent.exports.stream.block_reader import BlockReader, NotPlannedError, ReadRequest
from pe_agent.agent.exports.stream.stream_directory import StreamDirectory
from pe_agent.agent.shards import read_grant as grants
from pe_agent.agent.shards.read_grant import Grant, GrantError
from pe_agent.agent.shards.shard_store import ShardMissingError, ShardStore
from pe_agent.agent.state.store import Store
from pe_agent.log.commit import Committer
from support.agents.exports import DDL, SCHEMA, killed_in, rows
from support.agents.rpc import ask

EXPORT = "default/feed/0/trades"
PE = "default/feed/1"


@dataclass
class Fellow:
    directory: Path
    host: ShardStore = field(init=False)
    store: Store = field(init=False)
    committer: Committer = field(init=False)
    turn: int = 0

    def open(self) -> Fellow:
        self.directory.mkdir(exist_ok=True)
        self.store = Store(self.directory / "state.sqlite")
        self.store.set("token", "secret")
        self.committer = Committer(threads=1)
        self.host = ShardStore(
            PE, self.directory / "kept", self.store, self.committer, segment_bytes=4096
        )
        return self

    def close(self) -> None:
        self.host.close()
        self.committer.close()
        self.store.close()

    def reopen(self) -> None:
        self.close()
        self.open()

    def stage(self, batch: int, *batches: pa.RecordBatch, run: str = "r", **more: Any) -> Any:
        command = {"home": EXPORT, "stream": "s", "query": "q", "run": run, "batch": batch}
        command |= {"ddl": DDL, "limit": 1 << 30, **more}
        return self.host.stage(command, SCHEMA, batches)

    def seal(self, epoch: int, *stages: Any, run: str = "r", turn: int | None = None) -> Any:
        self.turn += 1
        body = {"export": EXPORT, "stream": "s", "epoch": epoch, "query": "q", "run": run}
        body |= {"batch": epoch, "published": 1.0, "stages": stages}
        return ask(self.host.seal, {**body, "turn": self.turn if turn is None else turn})

    def release(self, next_: int, *kept: list[int], **more: Any) -> Any:
        level = {"next": next_, "kept": kept, "sealed": False, "query": "q", "batch": next_ - 1}
        level |= {"runs": [], "aborted": None, **more}
        return ask(self.host.release, {"home": "default/feed/0", "exports": {EXPORT: {"s": level}}})

    def read(
        self, epoch: int, *, filter_: str | None = None, query: str | None = None, **grant: Any
    ) -> list[int]:
        given = {"export": EXPORT, "reader": "reader", "ranges": {"s": (epoch, epoch + 1)}}
        text = grants.sign(
            "secret", Grant(**{**given, "filter": filter_, "columns": None, **grant})
        )
        ticket = {"export": EXPORT, "stream": "s", "grant": text, "pieces": [[epoch, 0, 1]]}
        opened = self.host.open_read(ticket)
        count = (
            len(self.host._stored["s"].stream.manifests[epoch].local_blocks) if grant == {} else 1
        )
        asked = ReadRequest(
            reader="reader",
            stream="s",
            pieces=((epoch, 0, count),),
            filter=filter_,
            columns=None,
            query=query,
        )
        found = BlockReader().read_batches(opened, asked)
        return [n for batch, _ in found for n in batch.column("n").to_pylist()]

    @property
    def bytes(self) -> int:
        found: int = self.host.status()[EXPORT]["s"]["bytes"]
        return found


@pytest.fixture
def fellow(tmp_path: Path) -> Iterator[Fellow]:
    made = Fellow(tmp_path / "fellow").open()
    yield made
    made.close()


def test_sealed_stages_are_read_in_the_order_in_which_they_were_sealed(fellow: Fellow) -> None:
    first, second = fellow.stage(0, rows(0, 3), rows(3, 3)), fellow.stage(0, rows(6, 2))
    assert first["agent"] == PE
    reported = fellow.seal(0, second, first)["stages"]
    assert [[r for r, _ in s["blocks"]] for s in reported] == [[2], [3, 3]]
    assert fellow.read(0) == [6, 7, 0, 1, 2, 3, 4, 5]


def test_stages_and_parts_outlive_the_process(fellow: Fellow) -> None:
    sealed, staged = fellow.stage(0, rows(0, 3)), fellow.stage(1, rows(3, 3))
    before = fellow.seal(0, sealed)
    fellow.reopen()
    assert fellow.seal(0, sealed) == before, "the home asks again when it has not heard the answer"
    assert fellow.read(0) == [0, 1, 2]
    fellow.seal(1, staged)
    assert fellow.read(1) == [3, 4, 5]


def test_a_part_that_was_not_published_gives_way_to_another(fellow: Fellow) -> None:
    fellow.seal(0, fellow.stage(0, rows(0, 3)))
    fellow.seal(0, fellow.stage(0, rows(7, 2), run="later"), run="later")
    assert fellow.read(0) == [7, 8]
    fellow.reopen()
    assert fellow.read(0) == [7, 8]


def test_a_part_that_gave_way_gives_its_disk_back(fellow: Fellow) -> None:
    for run in ("one", "two", "three", "four"):
        stage = fellow.stage(0, rows(0, 4, size=2000), run=run)
        fellow.seal(0, stage, run=run)
    before = fellow.bytes
    fellow.release(0, runs=["one", "two", "three"])
    assert fellow.bytes <= before - 2 * 8000
    assert fellow.read(0) == [0, 1, 2, 3]


def test_a_seal_that_comes_late_changes_nothing(fellow: Fellow) -> None:
    old = fellow.stage(0, rows(0, 3))
    fellow.seal(0, fellow.stage(0, rows(7, 2), run="later"), run="later", turn=9)
    with pytest.raises(StageMissingError, match="by a later call"):
        fellow.seal(0, old, turn=8)
    assert fellow.read(0) == [7, 8]


def test_a_stage_that_is_not_as_it_was_reported_is_not_sealed(fellow: Fellow) -> None:
    stage = fellow.stage(0, rows(0, 3))
    for wrong in ({"rows": 2}, {"crc": 1}, {"stage": "none"}):
        with pytest.raises(StageMissingError):
            fellow.seal(0, {**stage, **wrong})
    assert fellow.host.status()[EXPORT]["s"]["epochs"] == 0


def test_a_batch_may_not_take_more_than_its_limit(fellow: Fellow) -> None:
    fellow.stage(0, rows(0, 3), limit=1000)
    with pytest.raises(StageTooLargeError, match=r"at agent default/feed/1 .* may have 1,000"):
        fellow.stage(0, rows(0, 3, size=900), limit=1000)
    assert fellow.host.status()[EXPORT]["s"]["stages"] == 1


def test_what_the_home_has_no_more_is_removed_with_its_disk(fellow: Fellow) -> None:
    for epoch in range(20):
        fellow.seal(epoch, fellow.stage(epoch, rows(epoch, 1, size=1000)))
    before = fellow.bytes
    assert fellow.release(20, [4, 5], [18, 20])["streams"] == {EXPORT: ["s"]}
    assert fellow.bytes < before - 8 * 1000
    assert [fellow.read(n) for n in (4, 18, 19)] == [[4], [18], [19]]
    with pytest.raises(ShardMissingError, match="epoch 5 of stream s"):
        fellow.read(5, ranges={"s": (0, 20)})


def test_what_a_crash_leaves_of_a_stream_that_is_not_kept_goes_at_the_next_start(
    fellow: Fellow, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = fellow.directory / "kept"
    with killed_in(monkeypatch, StreamDirectory, "forget_orphan"):
        fellow.stage(0, rows(0, 5))
    assert [p.name for p in kept.iterdir()] == ["s"]
    fellow.reopen()
    assert list(kept.iterdir()) == []

    fellow.stage(0, rows(0, 5))
    fellow.reopen()
    assert [p.name for p in kept.iterdir()] == ["s"]
    gone = {"home": "default/feed/0", "exports": {EXPORT: {"s": None}}}
    with killed_in(monkeypatch, shutil, "rmtree"):
        ask(fellow.host.release, gone)
    fellow.reopen()
    assert list(kept.iterdir()) == []


def test_a_part_that_is_not_published_yet_is_not_released(fellow: Fellow) -> None:
    fellow.seal(0, fellow.stage(0, rows(0, 3)))
    fellow.release(0)
    assert fellow.read(0) == [0, 1, 2]


@pytest.mark.parametrize(
    ("level", "left"),
    [
        ({"batch": 0}, 1),
        ({"batch": -1}, 2),
        ({"batch": -1, "runs": ["r"]}, 0),
        ({"batch": -1, "aborted": ["r", 1]}, 1),
        ({"batch": -1, "sealed": True}, 0),
        ({"batch": 7, "query": "another"}, 2),
    ],
)
def test_stages_go_when_the_home_will_not_publish_them(
    fellow: Fellow, level: dict[str, Any], left: int
) -> None:
    fellow.stage(0, rows(0, 3))
    fellow.stage(1, rows(3, 3))
    fellow.release(0, **level)
    assert fellow.host.status()[EXPORT]["s"]["stages"] == left


def test_a_stream_that_the_home_does_not_know_is_removed(fellow: Fellow) -> None:
    fellow.seal(0, fellow.stage(0, rows(0, 3)))
    part = {"run": "r", "batch": 0, "rows": [3]}
    asked = {"export": EXPORT, "streams": {"s": {"0": part}}}
    assert ask(fellow.host.verify, asked) == {"broken": {}, "done": True}
    elsewhere = ask(fellow.host.verify, {**asked, "export": "default/feed/0/other"})
    assert list(elsewhere["broken"]["s"]) == ["0"]
    body = {"home": "default/feed/0", "exports": {EXPORT: {"s": None}}}
    assert ask(fellow.host.verify, asked) == {"broken": {}, "done": True}
    assert ask(fellow.host.release, body) == {"streams": {}, "sent": {}}
    assert fellow.host._verifier._verified == {}
    assert list(ask(fellow.host.verify, asked)["broken"]["s"]) == ["0"]
    assert not list((fellow.directory / "kept").iterdir())
    with pytest.raises(ShardMissingError, match="stream s"):
        fellow.read(0, ranges={"s": (0, 1)})
    fellow.reopen()
    assert fellow.host.status() == {}


@pytest.mark.parametrize(
    "other",
    [
        {"reader": "other"},
        {"ranges": {"s": (1, 9)}},
        {"filter": "n > 1"},
        {"columns": ("n",)},
    ],
)
def test_a_grant_for_something_else_opens_nothing(fellow: Fellow, other: dict[str, Any]) -> None:
    fellow.seal(0, fellow.stage(0, rows(0, 3)))
    with pytest.raises(NotPlannedError):
        fellow.read(0, **other)


def test_a_grant_of_another_home_opens_nothing(fellow: Fellow) -> None:
    fellow.seal(0, fellow.stage(0, rows(0, 3)))
    given = Grant(export=EXPORT, reader="r", ranges={"s": (0, 1)}, filter=None, columns=None)
    good = grants.sign("secret", given)
    for bad in (None, "", "x.y", grants.sign("other", given), good[:-1], "A" + good):
        with pytest.raises(GrantError):
            fellow.host.open_read({"export": EXPORT, "stream": "s", "grant": bad})
    for elsewhere in ({"export": "default/feed/0/other"}, {"stream": "t"}):
        with pytest.raises(GrantError):
            fellow.host.open_read({"export": EXPORT, "stream": "s", "grant": good, **elsewhere})
    assert grants.verify("secret", good) == given


def test_rows_that_pass_are_counted_whether_they_were_read_or_not(fellow: Fellow) -> None:
    for epoch in range(2):
        fellow.seal(epoch, fellow.stage(epoch, rows(0, 5), rows(5, 5)))
    assert fellow.read(0, filter_="n > 6") == [7, 8, 9]
    body = {"export": EXPORT, "stream": "s", "filter": "n > 6", "epochs": [0, 1, 2]}
    assert ask(fellow.host.count, body) == {"rows": {"0": 3, "1": 3, "2": None}}
    assert ask(fellow.host.count, {**body, "stream": "none"})["rows"]["0"] is None


def test_what_was_sent_is_reported_to_the_home_once(fellow: Fellow) -> None:
    fellow.seal(0, fellow.stage(0, rows(0, 5), rows(5, 5)))
    fellow.read(0, query="q1")
    fellow.read(0, filter_="n > 6")
    ((reader, (count, size, query)),) = fellow.release(1, [0, 1])["sent"][EXPORT].items()
    assert (reader, count, query) == ("reader", 13, "q1")
    assert size > 13 * 8
    assert fellow.release(1, [0, 1])["sent"] == {}
