"""Parts that fellows have lost: what a reader that goes on in spite of it is cut without."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pe_agent.agent.shards.shard_store import ShardMissingError
from pe_agent.transport.flight_errors import AgentUnreachableError
from streambroker_core.ledger.planner import OvertakenError
from support.agents.exports import bench, rows
from support.agents.rpc import ask
from support.agents.spread import HOME, ONE, TWO, Job


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    """Epochs 0 to 4, of ten rows at each agent; only 1, 3 and 4 have some at the first fellow."""
    with bench(tmp_path) as home:
        home.route()
        made = Job(tmp_path, home)
        for batch, at in enumerate([(HOME,), (HOME, ONE), (TWO,), (ONE, TWO), (ONE,)]):
            made.publish(batch, *at)
        made.home.plan()
        yield made
        made.close()


def reported(job: Job, first: int, next_: int, **more: Any) -> tuple[list[int], Any]:
    """Return the epochs that a batch is cut into, and what it is cut without."""
    again = job.cut(first, next_, **more)
    return sorted(again.blocks[job.home.stream]), again.missing.get(job.home.stream)


def finished(job: Job, next_: int) -> list[int]:
    """Acknowledge; return rows delivered, filtered and lost, once all is counted."""
    job.home.plan({job.home.stream: next_}, skip_lost=True)
    job.release()
    assert job.reported["counting"] == 0
    return [job.reported["delivered"], job.reported["filtered"], job.reported["lost"][1]]


def test_epochs_are_left_out_whole_of_which_a_fellow_has_lost_its_part(job: Job) -> None:
    assert reported(job, 0, 5) == ([0, 1, 2, 3, 4], None)
    job.lose(ONE)
    assert reported(job, 0, 5) == ([0, 2], [(1, 2, 20), (3, 5, 30)])
    assert job.read(2) == {TWO: list(range(200, 210))}


def test_what_is_left_out_is_counted_as_lost_when_the_batch_is_finished(job: Job) -> None:
    job.lose(ONE)
    reported(job, 0, 5)
    assert job.reported["lost"] == [0, 0]
    assert finished(job, 5) == [20, 0, 50]
    assert job.reported["lost"] == [3, 50]
    assert job.home.export.status()["publishedRows"] == 20 + 50
    assert finished(job, 5) == [20, 0, 50]


def test_with_a_filter_the_rows_of_lost_epochs_are_neither_delivered_nor_filtered(
    job: Job,
) -> None:
    job.lose(ONE)
    filter_ = "n % 2 == 0"
    reported(job, 0, 5, filter_=filter_)
    job.home.plan({job.home.stream: 5}, skip_lost=True, filter_=filter_)
    job.release()
    assert job.figures() == [10, 10, 0]
    assert job.reported["lost"] == [3, 50]


def test_a_replay_leaves_the_same_out_though_it_can_be_had_again(job: Job, tmp_path: Path) -> None:
    job.shut(ONE)
    copy = tmp_path / "copy"
    (tmp_path / "1").rename(copy)
    job.open(ONE)
    before = reported(job, 0, 5)
    job.shut(ONE)
    job.take_back(ONE, copy)
    assert reported(job, 0, 5) == before
    job.reopen_home()
    assert reported(job, 0, 5) == before == ([0, 2], [(1, 2, 20), (3, 5, 30)])
    assert finished(job, 5) == [20, 0, 50]
    job.publish(5, ONE)
    job.home.plan({job.home.stream: 5}, skip_lost=True)
    assert reported(job, 5, 6) == ([5], None)


def test_a_replay_leaves_more_out_where_more_is_lost_and_counts_each_once(job: Job) -> None:
    job.lose(ONE)
    reported(job, 0, 5)
    job.lose(TWO)
    assert reported(job, 0, 5) == ([0], [(1, 2, 20), (2, 3, 10), (3, 5, 30)])
    assert finished(job, 5) == [10, 0, 60]


def test_another_batch_is_not_cut_without_what_an_earlier_one_missed(job: Job) -> None:
    job.lose(ONE)
    reported(job, 0, 3)
    job.home.plan({job.home.stream: 3}, skip_lost=True)
    assert job.reported["lost"] == [1, 20]
    assert reported(job, 3, 5) == ([], [(3, 5, 30)])
    assert finished(job, 5) == [20, 0, 50]


def test_an_older_checkpoint_counts_once_what_it_misses_again(job: Job) -> None:
    job.lose(ONE)
    reported(job, 0, 5)
    assert finished(job, 5) == [20, 0, 50]
    job.home.plan({job.home.stream: 0}, skip_lost=True)
    assert reported(job, 0, 5) == ([0, 2], [(1, 2, 20), (3, 5, 30)])
    assert finished(job, 5) == [20, 0, 50]


def test_a_silent_fellow_has_lost_nothing(job: Job) -> None:
    job.away = {ONE}
    with pytest.raises(AgentUnreachableError):
        reported(job, 0, 5)
    assert reported(job, 0, 1) == ([0], None)
    assert reported(job, 2, 3) == ([2], None)
    job.away = set()
    assert reported(job, 0, 5) == ([0, 1, 2, 3, 4], None)
    assert finished(job, 5) == [70, 0, 0]


def test_a_part_that_cannot_be_read_is_lost_and_the_others_of_its_fellow_are_not(job: Job) -> None:
    job.damage(ONE, 3)
    assert reported(job, 0, 5) == ([0, 1, 2, 4], [(3, 4, 20)])
    assert finished(job, 5) == [50, 0, 20]


def test_a_part_that_was_good_and_failed_a_task_is_read_again(job: Job) -> None:
    assert reported(job, 0, 5) == ([0, 1, 2, 3, 4], None)
    job.damage(ONE, 3)
    assert reported(job, 0, 5) == ([0, 1, 2, 3, 4], None), "it was read a moment ago"
    with pytest.raises(ShardMissingError) as failed:
        job.read(3)
    assert f"agent {ONE} does not have its part of epoch 3 of stream {job.home.stream}" in str(
        failed.value
    )
    assert f"of {job.home.export.key}: " in str(failed.value)
    assert "checksum" in str(failed.value)
    assert failed.value.code == "DataLoss"
    assert reported(job, 0, 5) == ([0, 1, 2, 4], [(3, 4, 20)])


def test_a_part_that_is_not_the_published_one_is_lost(job: Job) -> None:
    stream = job.hosts[ONE]._stored[job.home.stream].stream
    job.admit(5)
    late = {"batch": 4, "first": 900}
    stage = job.stage(ONE, late["batch"], rows(late["first"], 5), rows(905, 4))
    body = {"export": job.home.export.key, "stream": job.home.stream, "epoch": 4, "query": "q"}
    body |= {"run": "another", "batch": 4, "published": 1.0, "turn": 2**63 - 1, "stages": [stage]}
    ask(job.hosts[ONE].seal, body)
    assert stream.manifests[4].rows == 9
    assert reported(job, 0, 5) == ([0, 1, 2, 3], [(4, 5, 10)])


def test_a_reader_that_is_not_lossy_asks_no_fellow_and_its_task_is_informed(job: Job) -> None:
    job.lose(ONE)
    reported(job, 0, 5)
    job.asked.clear()
    assert reported(job, 0, 5, skip_lost=False) == ([0, 1, 2, 3, 4], None)
    assert job.asked == []
    with pytest.raises(ShardMissingError) as failed:
        job.read(1)
    message = str(failed.value)
    assert f"agent {ONE} does not have its part of epochs 1 to 1 of stream" in message
    assert "directory was replaced. Nothing was skipped" in message


def test_a_fellow_is_asked_about_its_own_parts_of_the_batch_alone(job: Job) -> None:
    reported(job, 0, 1)
    assert job.asked == []
    reported(job, 1, 2)
    assert job.asked == [ONE]
    reported(job, 1, 4)
    assert job.asked[1:] == [ONE, TWO]


def test_an_answer_that_comes_after_another_plan_was_made_changes_nothing(job: Job) -> None:
    job.lose(ONE)
    reported(job, 0, 3)
    usual = job.find_broken

    def late(requests: Any) -> Any:
        job.find_broken = usual  # type: ignore[method-assign]
        job.home.plan({job.home.stream: 3}, skip_lost=True)
        reported(job, 3, 5)
        return usual(requests)

    job.find_broken = late  # type: ignore[method-assign]
    with pytest.raises(OvertakenError, match="another plan"):
        reported(job, 0, 3)
    assert finished(job, 5) == [20, 0, 50]
