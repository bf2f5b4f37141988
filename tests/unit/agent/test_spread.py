"""The home of an export whose stages lie at fellows: one epoch, counted and released there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pe_agent.agent.exporting.blocks import BlockReader, Read
from pe_agent.agent.exporting.exports import HostedExport
from pe_agent.agent.exporting.publishing import StageMissingError
from pe_agent.agent.fellows import grants
from pe_agent.agent.fellows.grants import Grant
from pe_agent.agent.fellows.stages import StageHost
from pe_agent.agent.store import Store
from pe_agent.flight_errors import AgentUnreachableError
from pe_agent.log import Committer
from support.exports import DDL, SCHEMA, Bench, bench, rows

HOME = "default/feed/0"
ONE, TWO = "default/feed/1", "default/feed/2"


class Job:
    """A home and two fellows in this process, and what can go wrong between them."""

    def __init__(self, directory: Path, home: Bench) -> None:
        self.directory, self.home = directory, home
        self.stores: dict[str, Store] = {}
        self.hosts: dict[str, StageHost] = {}
        self.committer = Committer(threads=1)
        self.after_seal: Callable[[], None] = lambda: None
        self.away: set[str] = set()
        for pe in (ONE, TWO):
            self.open(pe)
        self.connect()

    def open(self, pe: str) -> None:
        at = self.directory / pe[-1]
        at.mkdir(exist_ok=True)
        self.stores[pe] = Store(at / "state.sqlite")
        self.stores[pe].set("token", pe)
        self.hosts[pe] = StageHost(pe, at / "kept", self.stores[pe], self.committer)

    def connect(self) -> HostedExport:
        self.home.export.fellows = self
        return self.home.export

    def close(self) -> None:
        for pe, host in self.hosts.items():
            host.close()
            self.stores[pe].close()
        self.committer.close()

    def reopen_home(self) -> HostedExport:
        self.home.reopen()
        return self.connect()

    def staging(self) -> list[dict[str, str]]:
        return [{"pe": pe, "location": "", "token": ""} for pe in (ONE, TWO)]

    def seal(self, bodies: Mapping[str, dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
        for pe in bodies:
            if pe in self.away:
                raise AgentUnreachableError(f"{pe} does not answer")
        told = {pe: self.hosts[pe].seal(body)["stages"] for pe, body in bodies.items()}
        self.after_seal()
        return told

    def admit(self, batch: int) -> dict[str, Any]:
        return self.home.export.admit(
            query="q", run="r", batch=batch, ddl=DDL, renewed=None, schema=SCHEMA
        )

    def stage(self, at: str, batch: int, *batches: pa.RecordBatch) -> dict[str, Any]:
        if at == HOME:
            return self.home.stage(batch, *batches)
        command = {"home": self.home.export.key, "stream": self.home.stream, "limit": 1 << 30}
        command |= {"query": "q", "run": "r", "batch": batch, "ddl": DDL}
        return self.hosts[at].stage(command, SCHEMA, batches)

    def publish(self, batch: int, *at: str) -> dict[str, Any]:
        """Publish two blocks of five rows at each of these agents, as one partition each."""
        self.admit(batch)
        stages = []
        for partition, pe in enumerate(at):
            first = 100 * batch + 10 * partition
            stages.append(self.stage(pe, batch, rows(first, 5), rows(first + 5, 5)))
        return self.home.commit(batch, *stages)

    def release(self) -> None:
        export = self.home.export
        for pe, host in self.hosts.items():
            for owed in export.owed(pe):
                body = {"export": export.key, "stream": owed.stream, "epochs": [owed.epoch]}
                counted = host.count({**body, "filter": owed.filter})
                export.settle(owed, counted["rows"][owed.epoch])
            known = host.release({"home": HOME, "exports": {}})["streams"].get(export.key, [])
            levels = export.levels(pe, known)
            host.release({"home": HOME, "exports": {export.key: levels}})

    def read(self, epoch: int, filter_: str | None = None) -> dict[str, list[int]]:
        """Return column ``n`` of a planned epoch, by the agent that has it."""
        stream = self.home.stream
        told = self.home.replan({stream: (epoch, epoch + 1)}, filter_=filter_)
        agents = [HOME, *told.agents]
        blocks = [(b[2] if len(b) > 2 else 0) for b in told.blocks[stream][epoch]]
        given = Grant(
            export=self.home.export.key,
            reader="reader",
            ranges={stream: (epoch, epoch + 1)},
            filter=filter_,
            columns=None,
        )
        result = {}
        for number in sorted(set(blocks)):
            pe = agents[number]
            ticket = {"export": given.export, "stream": stream, "grant": grants.sign(pe, given)}
            source = self.home.export if pe == HOME else self.hosts[pe].reading(ticket)
            piece = (epoch, 0, blocks.count(number))
            asked = Read(
                reader="reader", stream=stream, pieces=(piece,), filter=filter_, columns=None
            )
            found = BlockReader().batches(source, asked)
            result[pe] = [n for batch, _ in found for n in batch.column("n").to_pylist()]
        return result

    def epochs(self, pe: str) -> int:
        streams = self.hosts[pe].status().get(self.home.export.key, {}).values()
        return sum(s["epochs"] for s in streams)

    def figures(self) -> list[int]:
        told = self.home.export.status()["readers"]["reader"]
        return [told[name] for name in ("delivered", "filtered", "counting")]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    with bench(tmp_path) as home:
        home.route()
        made = Job(tmp_path, home)
        yield made
        made.close()


def test_an_epoch_over_three_agents_is_one_epoch(job: Job) -> None:
    assert job.admit(0)["stream"] == job.home.stream
    assert [f["pe"] for f in job.admit(0)["fellows"]] == [ONE, TWO]
    assert job.publish(0, HOME, ONE, TWO, ONE)["epoch"] == 0
    (planned,) = job.home.plan().planned
    assert (planned.from_, planned.next) == (0, 1)
    assert job.read(0) == {
        HOME: list(range(10)),
        ONE: [*range(10, 20), *range(30, 40)],
        TWO: list(range(20, 30)),
    }
    size = job.home.export.status()["streams"][job.home.stream]["bytes"]
    there = [job.hosts[pe].status()[job.home.export.key][job.home.stream] for pe in (ONE, TWO)]
    assert size > sum(s["bytes"] for s in there) * 0.9, "maxBytes counts what fellows have, too"


def test_it_is_the_same_after_a_restart_of_the_home(job: Job) -> None:
    job.publish(0, ONE, HOME)
    job.publish(1, TWO)
    job.home.plan()
    before = [job.read(n) for n in (0, 1)]
    job.reopen_home()
    assert [job.read(n) for n in (0, 1)] == before
    assert job.publish(2, TWO)["epoch"] == 2


def test_a_home_that_ends_between_seal_and_manifest_publishes_again(job: Job) -> None:
    class KilledError(Exception): ...

    def kill() -> None:
        raise KilledError

    job.after_seal = kill
    job.admit(0)
    stages = [job.stage(ONE, 0, rows(0, 5)), job.stage(HOME, 0, rows(5, 5))]
    with pytest.raises(KilledError):
        job.home.commit(0, *stages)
    export = job.reopen_home()
    assert export.heads() == {job.home.stream: 0}
    job.after_seal = lambda: None
    job.release()
    assert job.home.commit(0, *stages)["epoch"] == 0
    assert job.home.commit(0, *stages)["published"] is False
    job.home.plan()
    assert job.read(0) == {ONE: [0, 1, 2, 3, 4], HOME: [5, 6, 7, 8, 9]}


def test_nothing_is_published_while_a_fellow_is_away_or_lacks_a_stage(job: Job) -> None:
    job.admit(0)
    stages = [job.stage(ONE, 0, rows(0, 5)), job.stage(TWO, 0, rows(5, 5))]
    job.away = {TWO}
    with pytest.raises(AgentUnreachableError):
        job.home.commit(0, *stages)
    job.away = set()
    with pytest.raises(StageMissingError):
        job.home.commit(0, {**stages[0], "crc": 5}, stages[1])
    assert job.home.export.heads() == {job.home.stream: 0}
    assert job.home.commit(0, *stages)["epoch"] == 0


def test_rows_at_fellows_are_counted_there_after_they_were_acknowledged(job: Job) -> None:
    job.publish(0, HOME, ONE, TWO)
    filter_ = "n % 2 == 0"
    job.home.plan(filter_=filter_)
    assert len(job.read(0, filter_)[ONE]) == 5
    job.home.plan({job.home.stream: 1}, filter_=filter_)
    assert job.figures() == [5, 5, 20]
    job.reopen_home()
    assert job.figures() == [5, 5, 20]
    job.release()
    assert job.figures() == [15, 15, 0]
    job.release()
    assert job.figures() == [15, 15, 0]


def test_a_part_is_kept_until_it_is_counted(job: Job) -> None:
    job.home.limit(max_bytes=1)
    job.publish(0, ONE)
    job.home.plan(filter_="n < 3")
    job.home.plan({job.home.stream: 1}, filter_="n < 3")
    job.home.export.renew("reader", "default/alerts/0/trades", 100.0)
    job.publish(1, ONE)
    assert 0 not in job.home.export.streams[job.home.stream].manifests
    levels = job.home.export.levels(ONE, [job.home.stream])
    assert levels[job.home.stream]["kept"] == [[1, 2], [0, 1]]
    job.release()
    assert job.figures() == [3, 7, 0]
    assert job.epochs(ONE) == 1


def test_what_a_fellow_cannot_count_any_more_is_counted_as_delivered(job: Job) -> None:
    job.publish(0, ONE)
    job.home.plan(filter_="n < 3")
    job.home.plan({job.home.stream: 1}, filter_="n < 3")
    job.hosts[ONE].release(
        {"home": HOME, "exports": {job.home.export.key: {job.home.stream: None}}}
    )
    job.release()
    assert job.figures() == [10, 0, 0]


def test_what_is_removed_here_is_removed_there_and_does_not_come_back(job: Job) -> None:
    job.home.limit(max_bytes=1)
    job.home.route("drop")
    for batch in range(4):
        job.publish(batch, ONE, HOME)
    assert job.epochs(ONE) == 4
    job.release()
    assert job.epochs(ONE) == 1
    assert job.hosts[ONE].status()[job.home.export.key][job.home.stream]["stages"] == 0
    export = job.reopen_home()
    assert sorted(export.streams[job.home.stream].manifests) == [3]
    job.home.plan()
    assert job.read(3)[ONE] == list(range(300, 310))


def test_a_stream_of_a_home_that_lost_its_log_is_removed(job: Job, tmp_path: Path) -> None:
    job.publish(0, ONE)
    with bench(tmp_path / "new") as fresh:
        job.home = fresh
        job.connect()
        fresh.publish(0, rows(0, 1))
        job.release()
        assert job.hosts[ONE].status() == {}


def test_an_agent_without_fellows_answers_admissions_as_ever(job: Job) -> None:
    job.home.export.fellows = None
    assert job.admit(0) == {"admitted": True}
    assert job.home.export.streams == {}
