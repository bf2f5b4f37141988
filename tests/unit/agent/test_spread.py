"""The home of an export whose stages lie at fellows: one epoch, counted and released there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pe_agent.agent.exports.publisher import StageMissingError
from pe_agent.transport.flight_errors import AgentUnreachableError
from support.agents.exports import bench, rows
from support.agents.rpc import ask
from support.agents.spread import HOME, ONE, TWO, Job


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
    assert export.state.heads() == {job.home.stream: 0}
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
    assert job.home.export.state.heads() == {job.home.stream: 0}
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
    job.home.export.plans.renew_reader("reader", "default/alerts/0/trades", 100.0)
    job.publish(1, ONE)
    assert 0 not in job.home.export.state.streams[job.home.stream].manifests
    levels = job.home.export.shards.retained_levels(ONE, [job.home.stream])
    assert levels[job.home.stream]["kept"] == [[1, 2], [0, 1]]
    job.release()
    assert job.figures() == [3, 7, 0]
    assert job.epochs(ONE) == 1


def test_a_part_that_is_acknowledged_meanwhile_is_kept_until_it_is_counted(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.home.limit(max_bytes=1)
    job.publish(0, ONE)
    job.home.plan(filter_="n < 3")
    export, stream, owed = job.home.export, job.home.stream, job.home.export.shards.pending_counts

    def acknowledged() -> None:
        job.home.plan({stream: 1}, filter_="n < 3")
        job.publish(1, HOME)

    def first_owed(agent: str) -> Any:
        found = owed(agent)
        monkeypatch.setattr(export.shards, "pending_counts", owed)
        meanwhile.start()
        meanwhile.join(0.3)  # it ends here only where nothing holds it back
        return found

    meanwhile = threading.Thread(target=acknowledged)
    monkeypatch.setattr(export.shards, "pending_counts", first_owed)
    level = export.shards.retained_levels(ONE, [stream])[stream]
    meanwhile.join()
    assert [o.epoch for o in export.shards.pending_counts(ONE)] == [0]
    assert any(first <= 0 < next_ for first, next_ in level["kept"])


def test_what_a_fellow_cannot_count_any_more_is_counted_as_delivered(job: Job) -> None:
    job.publish(0, ONE)
    job.home.plan(filter_="n < 3")
    job.home.plan({job.home.stream: 1}, filter_="n < 3")
    levels = {job.home.export.key: {job.home.stream: None}}
    ask(job.hosts[ONE].release, {"home": HOME, "exports": levels})
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
    assert sorted(export.state.streams[job.home.stream].manifests) == [3]
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
    job.home.export.shards.agents = None
    assert job.admit(0) == {"admitted": True}
    assert job.home.export.state.streams == {}
