"""Snapshots of an agent: what they have, what is refused, and what a restored agent publishes."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pe_agent.agent import snapshots
from pe_agent.agent.actions import job_actions
from pe_agent.agent.agent import Agent
from pe_agent.agent.exports.export_state import ExportState
from pe_agent.agent.snapshots import SnapshotFailedError
from pe_agent.log.log import StreamLog
from streambroker_core.ledger.losses import DataLossError
from streambroker_core.ledger.plan import Plan, PlanRequest
from streambroker_core.ledger.retention import RetentionLimits
from streambroker_core.model import PeKey
from streambroker_core.wire.broker.snapshot import FILE, SnapshotInvalidError
from streambroker_operator.storage.snapshot import TargetInUseError, check, restore
from support.agents.exports import IMPORT, PUBLISHER, READER, plan_one, rows
from support.processes.waiting import until

PE = PeKey.parse("default/feed/0")
PORTS = ("trades", "quotes")
ROWS = 4
SEGMENT = 3000
SNAPSHOTS = 6


@pytest.fixture(autouse=True)
def _small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = ExportState.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "segment_bytes", SEGMENT)


class Job:
    """An agent in this process, and the queries that publish to its exports."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.agent = Agent(PE, home, progress=lambda *_: None)
        for port in PORTS:
            self.export(port).set_routes({IMPORT: "wait"})

    def export(self, port: str = "trades") -> Any:
        return self.agent.exports.get_or_create(f"{PE}/{port}")

    def publish(self, *batches: int, port: str = "trades") -> None:
        for batch in batches:
            publisher, named = self.export(port).publisher, {**PUBLISHER, "batch": batch}
            assert publisher.admit(**named, renewed=None)["admitted"]
            data = rows(ROWS * batch, ROWS, 200)
            stage = publisher.stage(**named, schema=data.schema, batches=[data])
            assert publisher.publish(**named, stages=[stage])["published"]

    def plan(self, port: str = "trades", **more: Any) -> Plan:
        named: dict[str, Any] = {**READER, "positions": {}, **more}
        if named["positions"]:
            named.setdefault("has_opened", True)
            named.setdefault("own_streams", frozenset(named["positions"]))
        return plan_one(self.export(port), PlanRequest(**named), filter_=None, columns=None)

    def numbers(self, port: str = "trades") -> list[int]:
        """Return the column ``n`` of all rows that the export has, in order."""
        found: list[int] = []
        for stream in self.export(port).state.streams.values():
            for _, manifest in sorted(stream.manifests.items()):
                for block in manifest.blocks:
                    found += stream.read(block, manifest.ddl).column("n").to_pylist()
        return found

    def stream(self, port: str = "trades") -> str:
        return str(list(self.export(port).state.streams)[-1])

    def batches(self, plan: Plan, port: str = "trades") -> list[int]:
        return [
            self.export(port).state.streams[p.stream].manifests[n].batch
            for p in plan.planned
            for n in range(p.from_, p.next)
        ]

    def snapshot(self, name: str = "one") -> Path:
        """Take a whole snapshot; return its directory."""
        actions = job_actions(self.agent)

        def complete() -> Any:
            found = actions.handle("agent.snapshot", {"name": name})
            return found if found["state"] == "complete" else None

        return Path(until(complete, 60.0, "snapshot complete")["path"])

    def facts(self) -> dict[str, Any]:
        """Return what an agent has to have again, without what depends on the time."""
        found: dict[str, Any] = {}
        for key, export in self.agent.exports.by_key().items():
            status = export.status()
            readers = {
                id_: {name: one[name] for name in ("positions", "planned", "delivered", "import")}
                for id_, one in status["readers"].items()
            }
            streams = {
                id_: {name: one[name] for name in ("next", "retained", "rows", "schema")}
                for id_, one in status["streams"].items()
            }
            found[key] = {
                "readers": readers,
                "streams": streams,
                "publisher": status["publisher"],
                "rows": status["publishedRows"],
                "damaged": status["damaged"],
            }
        return {**found, "control": self.agent.status()["controlLog"]["waiting"]}

    def close(self) -> None:
        self.agent.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], Job]]:
    """Start agents in directories of these names."""
    running: list[Job] = []

    def open_(name: str) -> Job:
        home = tmp_path / name
        home.mkdir(exist_ok=True)
        running.append(Job(home))
        return running[-1]

    yield open_
    for job in running:
        job.close()


@pytest.fixture
def job(start: Callable[[str], Job]) -> Job:
    return start("agent")


def append(job: Job, request: str) -> int:
    """Append a tuple to the control log; return its number."""
    named = {"request": request, "what": {"type": "T", "payload": request, "delivery": "BEGIN"}}
    return int(job_actions(job.agent).handle("control.append", named)["seq"])


def emit(job: Job, request: str) -> dict[str, Any]:
    """Send a tuple to the importers of an export."""
    what = {"type": "T", "payload": request, "delivery": "BEGIN"}
    named = {"export": "trades", "request": request, "what": what}
    found: dict[str, Any] = job_actions(job.agent).handle("export.emit", named)
    return found


def test_a_restored_agent_has_what_the_agent_had_at_the_snapshot(
    job: Job, start: Callable[[str], Job], tmp_path: Path
) -> None:
    job.publish(*range(12))
    job.publish(0, 1, port="quotes")
    job.plan()
    first = job.stream()
    job.plan(positions={first: 5}, last=("q", 4))
    append(job, "a")
    wanted, numbers = job.facts(), job.numbers()
    assert len(list((job.home / "log/trades" / first).glob("*.segment"))) > 2
    folder = job.snapshot()
    job.publish(*range(12, 20))
    job.plan(positions={first: 15}, last=("q", 14))
    append(job, "b")
    restore(folder, tmp_path / "restored")
    again = start("restored")
    assert again.facts() == wanted
    assert again.numbers() == numbers == list(range(12 * ROWS))
    assert not (again.home / "restored").exists()


def test_secrets_are_in_no_snapshot(job: Job) -> None:
    job.agent.store.set("key", "a secret key")
    text = (job.snapshot() / "state.sqlite").read_bytes()
    assert b"a secret key" not in text
    assert job.agent.token.encode() not in text


class Publishing(threading.Thread):
    """Publishes batch n of both exports in turn, and lets readers follow."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.job, self.published = job, 0
        self.failed: list[BaseException] = []
        self.ended = threading.Event()

    def run(self) -> None:
        try:
            while not self.ended.is_set():
                for port in PORTS:
                    self.job.publish(self.published, port=port)
                self.published += 1
                if self.published % 7 == 0:
                    for port in PORTS:
                        at = {self.job.stream(port): self.published - 2}
                        self.job.plan(port, positions=at, last=("q", self.published - 3))
        except BaseException as error:
            self.failed.append(error)

    def await_more(self, batches: int) -> None:
        wanted = self.published + batches
        until(lambda: self.failed or self.published >= wanted, 60.0, "more batches")


def test_a_snapshot_is_of_one_moment_of_all_exports_while_they_publish(
    job: Job, start: Callable[[str], Job], tmp_path: Path
) -> None:
    for port in PORTS:
        job.export(port).set_limits(RetentionLimits(max_bytes=5 * SEGMENT))
    publishing = Publishing(job)
    publishing.start()
    try:
        for number in range(SNAPSHOTS):
            publishing.await_more(6)
            job.snapshot(f"s{number}")
    finally:
        publishing.ended.set()
        publishing.join()
    assert not publishing.failed
    for number in range(SNAPSHOTS):
        restore(job.home / f"snapshots/s{number}", tmp_path / f"r{number}")
        again = start(f"r{number}")
        counts = [check_rows(again, port) for port in PORTS]
        assert counts[0] - counts[1] in (0, ROWS)


def check_rows(job: Job, port: str) -> int:
    """Compare the rows that an export keeps with those published; return how many there were."""
    status = job.export(port).status()
    assert (status["damaged"], status["gaps"]) == ([], 0)
    count, found = int(status["publishedRows"]), job.numbers(port)
    assert found == list(range(found[0], count))
    for reader in status["readers"].values():
        assert found[0] <= ROWS * min(reader["positions"].values())
    return count


def test_the_next_batch_of_a_restored_export_is_in_a_successor(
    job: Job, start: Callable[[str], Job], tmp_path: Path
) -> None:
    job.publish(0, 1, 2)
    old = job.stream()
    restore(job.snapshot(), tmp_path / "restored")
    again = start("restored")
    again.publish(3)
    assert again.stream() != old
    assert again.export().status()["streams"][old]["next"] == 3
    behind = again.plan(positions={old: 2}, last=("q", 1))
    assert again.batches(behind) == [2, 3]
    exact = again.plan(positions={old: 3}, last=("q", 2))
    assert again.batches(exact) == [3]
    assert [p.lost for p in exact.planned] == [(0, 0)] * len(exact.planned)


def test_a_reader_ahead_of_the_snapshot_stops_however_much_is_published_since(
    job: Job, start: Callable[[str], Job], tmp_path: Path
) -> None:
    job.publish(0, 1, 2)
    old, folder = job.stream(), job.snapshot()
    job.publish(3, 4, 5)
    restore(folder, tmp_path / "restored")
    again = start("restored")
    again.publish(*range(3, 10))
    for _ in range(2):
        with pytest.raises(DataLossError, match=r"epochs 3 to 5 of stream .* older copy"):
            again.plan(positions={old: 6}, last=("q", 5))
    lossy = again.plan(positions={old: 6}, last=("q", 5), skip_lost=True)
    assert again.batches(lossy) == [6, 7, 8, 9]
    assert [p.duplicates for p in lossy.planned if p.stream != old] == [(3, 3 * ROWS)]


def test_a_reader_that_has_read_a_stream_after_the_snapshot_stops(
    job: Job, start: Callable[[str], Job], tmp_path: Path
) -> None:
    """It stands at the end of what the snapshot has: only its last batch shows that it is ahead."""
    job.publish(0, 1, 2)
    old, folder = job.stream(), job.snapshot()
    ahead: dict[str, Any] = {"positions": {old: 3, "a later stream": 2}, "last": ("q", 4)}
    restore(folder, tmp_path / "restored")
    again = start("restored")
    again.publish(3, 4, 5)
    for reopened in (False, True):
        if reopened:
            again.close()
            again = start("restored")
        with pytest.raises(DataLossError, match=r"has read batch 4 of query q, and an older copy"):
            again.plan(**ahead)
        exact = again.plan(reader="exact", positions={old: 3}, last=("q", 2))
        assert again.batches(exact) == [3, 4, 5]
        beyond = again.plan(reader="beyond", positions={old: 3, again.stream(): 3}, last=("q", 5))
        assert again.batches(beyond) == []
    again.publish(6)
    assert again.batches(again.plan(**ahead, skip_lost=True)) == [5, 6]


def test_control_tuples_after_a_restore_have_numbers_of_their_own(
    job: Job, start: Callable[[str], Job], tmp_path: Path
) -> None:
    job.publish(0)
    before = [append(job, "a"), emit(job, "a")["seq"]]
    folder = job.snapshot()
    used = [append(job, "b"), emit(job, "b")["seq"]]
    restore(folder, tmp_path / "restored")
    again = start("restored")
    control = again.agent.control_log
    assert control.backlog() == 0
    control.acknowledge("behind", before[0])
    control.acknowledge("ahead", used[0] + 1)
    later = append(again, "c")
    assert later > used[0] + 1000
    assert append(again, "a") == before[0]
    assert control.backlog() == 2
    for at, wanted in ((before[0], ["a", "c"]), (used[0] + 1, ["c"])):
        tuples = control.read_range(control.id, at, later + 1, skip_lost=False)
        assert [one.payload for one in tuples] == wanted
    with pytest.raises(DataLossError, match="control tuples"):
        control.read_range(control.id, before[0], used[0] + 1, skip_lost=False)
    sent = emit(again, "d")
    assert sent["seq"] > used[1] + 1000
    assert emit(again, "a")["seq"] == before[1]
    assert sent["epoch"] is None
    again.publish(1)
    status = job_actions(again.agent).handle(
        "export.emitted", {"export": "trades", "seq": sent["seq"]}
    )
    assert (status["stream"], status["epoch"]) == (again.stream(), 1)


def test_a_second_restore_leaves_out_numbers_again(
    job: Job, start: Callable[[str], Job], tmp_path: Path
) -> None:
    restore(job.snapshot(), tmp_path / "second")
    second = start("second")
    restore(second.snapshot("two"), tmp_path / "third")
    third = start("third")
    assert append(third, "a") > append(second, "a") + 1000


def test_a_snapshot_is_taken_once_and_survives_a_restart(
    job: Job, start: Callable[[str], Job]
) -> None:
    job.publish(0)
    folder = job.snapshot()
    manifest = (folder / FILE).read_text()
    job.publish(1)
    assert job.snapshot() == folder
    job.close()
    assert start("agent").snapshot() == folder
    assert (folder / FILE).read_text() == manifest


def test_a_full_disk_fails_the_snapshot_by_name_and_the_next_call_takes_it(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.publish(0)
    with monkeypatch.context() as patched:

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        patched.setattr(snapshots, "_copy_segment", full)
        with pytest.raises(SnapshotFailedError, match=r"'one' of default/feed/0 failed.*No space"):
            job.snapshot()
    with pytest.raises(SnapshotInvalidError, match="no readable manifest"):
        check(job.home / "snapshots/one")
    job.publish(1)
    check(job.snapshot())


def test_one_snapshot_is_taken_at_a_time(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    go, copy = threading.Event(), snapshots._write_manifest

    def slow(*arguments: Any) -> None:
        assert go.wait(60.0)
        copy(*arguments)

    monkeypatch.setattr(snapshots, "_write_manifest", slow)
    assert job.agent.take_snapshot("one")["state"] == "running"
    assert job.agent.take_snapshot("one")["state"] == "running"
    with pytest.raises(SnapshotFailedError, match="taking the snapshot 'one'"):
        job.agent.take_snapshot("two")
    job.publish(0)
    go.set()
    check(job.snapshot())


def test_what_is_published_while_a_segment_is_copied_is_not_in_the_snapshot(
    job: Job, start: Callable[[str], Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The header of the segment says by then that more of it is safe."""
    go, copy = threading.Event(), snapshots._copy_segment

    def slow(growing: Any) -> None:
        assert go.wait(60.0)
        copy(growing)

    monkeypatch.setattr(snapshots, "_copy_segment", slow)
    job.publish(0)
    assert job.agent.take_snapshot("one")["state"] == "running"
    job.publish(1)
    go.set()
    restore(job.snapshot(), tmp_path / "restored")
    again = start("restored")
    assert again.numbers() == list(range(ROWS))
    (stream,) = again.export().state.streams.values()
    assert stream.log.recovered.lost_bytes == 0


@pytest.mark.parametrize("name", ["", "..", "a/b", "A", "-a", "x" * 64])
def test_a_name_that_is_no_name_is_refused(job: Job, name: str) -> None:
    with pytest.raises(SnapshotInvalidError, match="is not the name of a snapshot"):
        job.agent.take_snapshot(name)


def _drop(folder: Path) -> None:
    (folder / FILE).unlink()


def _shorten(folder: Path) -> None:
    path = next(iter(folder.rglob("*.segment")))
    path.write_bytes(path.read_bytes()[:-1])


def _flip(folder: Path) -> None:
    path = next(iter(folder.rglob("*.segment")))
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


def _lose(folder: Path) -> None:
    (folder / "state.sqlite").unlink()


def _age(folder: Path) -> None:
    found = json.loads((folder / FILE).read_text())
    (folder / FILE).write_text(json.dumps({**found, "format": 2}))


def _leave(folder: Path) -> None:
    found = json.loads((folder / FILE).read_text())
    found["files"]["../x"] = found["files"]["state.sqlite"]
    (folder / FILE).write_text(json.dumps(found))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_drop, "is not a complete snapshot"),
        (_shorten, "is damaged: log/.*segment is not as it was saved .[0-9]+ bytes"),
        (_flip, "is damaged: log/.*segment is not as it was saved .[0-9]+ bytes"),
        (_lose, "is damaged: state.sqlite is not as it was saved .missing"),
        (_age, "has format 2, this release reads format 1"),
        (_leave, "'../x' leaves the snapshot"),
    ],
)
def test_a_snapshot_that_is_not_whole_is_refused_and_nothing_is_restored(
    job: Job, tmp_path: Path, damage: Callable[[Path], None], message: str
) -> None:
    job.publish(0)
    folder = shutil.copytree(job.snapshot(), tmp_path / "copy")
    damage(folder)
    with pytest.raises(SnapshotInvalidError, match=message):
        check(folder)
    with pytest.raises(SnapshotInvalidError, match=message):
        restore(folder, tmp_path / "restored")
    assert not (tmp_path / "restored").exists()


def test_a_directory_with_something_in_it_is_not_restored_to(job: Job) -> None:
    folder = job.snapshot()
    with pytest.raises(TargetInUseError, match="restored to an empty directory"):
        restore(folder, job.home)


def test_what_a_restored_agent_cuts_and_drops_leaves_the_snapshot_as_it_is(
    job: Job, start: Callable[[str], Job], tmp_path: Path
) -> None:
    job.publish(*range(12))
    folder = job.snapshot()
    restore(folder, tmp_path / "restored")
    again = start("restored")
    for one in (job, again):
        one.export().set_limits(RetentionLimits(max_bytes=0, max_age=0.0))
        one.export().set_routes({})
        one.publish(12)
        one.export().tick()
    assert isinstance(next(iter(again.export().state.streams.values())).log, StreamLog)
    check(folder)
