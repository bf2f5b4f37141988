"""A job of three agents: its exports are spread over them, and each of them is killed."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from pe_agent.transport.agent_client import AgentClient
from pe_agent.transport.flight_errors import AgentRefusedError, AgentUnreachableError
from support.agents.agents import SCHEMA, error_code
from support.agents.shards import CUT_AFTER_SEAL, FAR, Job, Tasks, Writing, in_task, job, wide
from support.agents.sources import Run
from support.processes.frozen import frozen
from support.processes.ports import free_port
from support.processes.waiting import until

pytestmark = pytest.mark.slow

PORTS = (
    "spread",
    "filtered",
    "first",
    "second",
    "middle",
    "dead",
    "sealed",
    "released",
    "moved",
    "homeless",
    "taken",
    "waits",
    "lost",
    "frozen",
    "itself",
    "long",
)
BLOCKS, WIDE = 24, 1 << 20
"""More than what the network holds on its way."""


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    directory = tmp_path_factory.mktemp("many")
    filtered = {"filter": "n % 5 == 0"}
    yield from job(
        directory, PORTS, filtered=filtered, released={"max_bytes": 2_000}, itself={"max_bytes": 1}
    )


@pytest.fixture
def feed(agents: Job) -> Job:
    """All agents, present."""
    for fellow in agents.fellows:
        if fellow.process is None:
            fellow.start()
    agents.renew()
    agents.announce()
    agents.present()
    return agents


def all_rows(count: int) -> list[int]:
    return list(range(count))


def holders(tickets: list[dict[str, Any]]) -> list[str]:
    return sorted({t.get("agent", "home") for t in tickets})


def at(tickets: list[dict[str, Any]], pe: str) -> dict[str, Any]:
    (found,) = [t for t in tickets if t.get("agent") == pe]
    return found


def test_partitions_are_spread_and_the_importer_sees_one_stream(feed: Job) -> None:
    writing, tasks = Writing(feed, "spread"), Tasks(feed, "spread")
    for batch in range(3):
        writing.publish(batch, partitions=7)
    end = tasks.reading.end(None)
    assert len(end["streams"]) == 1
    tickets = tasks.tickets(None, end)
    assert holders(tickets) == ["default/feed/1", "default/feed/2", "home"]
    by_agent = {t.get("agent", "home"): sorted(tasks.read(t)) for t in tickets}
    assert by_agent["home"][:30] == [*range(10), *range(30, 40), *range(60, 70)]
    assert by_agent["default/feed/1"][:20] == [*range(10, 20), *range(40, 50)]
    assert sorted(n for rows in by_agent.values() for n in rows) == all_rows(3 * 70)


def test_what_passes_a_filter_is_counted_at_all_agents(feed: Job) -> None:
    writing, tasks = Writing(feed, "filtered"), Tasks(feed, "filtered")
    for batch in range(2):
        writing.publish(batch, partitions=6)
    rows, end = tasks.follow(2)
    assert rows == [n for n in range(120) if n % 5 == 0]
    tasks.reading.next(end)

    def counted() -> bool:
        arrived = feed.home.reader_status(end["reader"], "filtered")
        return (arrived["delivered"], arrived["filtered"], arrived["counting"]) == (24, 96, 0)

    until(counted, FAR, "delivered 24 and filtered 96 of 120")


def test_a_fellow_that_dies_in_the_first_batch_of_a_task_is_passed_over(feed: Job) -> None:
    writing, victim = Writing(feed, "first"), feed.fellows[0]
    staged = [writing.task(0, 0, iter([wide(0, 5)]))]
    victim.kill()
    staged.append(writing.task(0, 1, iter([wide(5, 5), wide(10, 5)])))
    assert staged[1].stage is not None
    assert staged[1].stage["agent"] == "default/feed/2"
    writing.commit(0, staged)
    assert Tasks(feed, "first").follow(1)[0] == all_rows(15)


def test_a_fellow_that_dies_in_the_second_batch_fails_the_task_and_it_is_repeated(
    feed: Job,
) -> None:
    writing, victim = Writing(feed, "second"), feed.fellows[0]

    def rows() -> Iterator[pa.RecordBatch]:
        yield wide(0, 5)
        yield wide(5, 5)
        victim.kill()
        for n in range(BLOCKS):
            yield wide(10 + n, 1, WIDE)

    with pytest.raises(AgentUnreachableError):
        writing.task(0, 1, rows())
    again = writing.task(0, 1, iter([wide(0, 5), wide(5, 5)]))
    writing.commit(0, [again])
    assert Tasks(feed, "second").follow(1)[0] == all_rows(10)


def large(feed: Job, port: str) -> tuple[Tasks, dict[str, Any]]:
    """Publish an epoch of which the first fellow has many blocks; return its ticket there."""
    writing, tasks = Writing(feed, port), Tasks(feed, port)
    staged = [writing.task(0, 0, iter([wide(BLOCKS, 3)]))]
    staged.append(writing.task(0, 1, iter(wide(n, 1, WIDE) for n in range(BLOCKS))))
    writing.commit(0, staged)
    end = tasks.reading.end(None)
    return tasks, at(tasks.tickets(None, end), feed.fellows[0].pe)


def once(do: Callable[[], object]) -> Callable[[int], None]:
    """Return a listener that does something when the first batch has arrived."""

    def arrived(number: int) -> None:
        if number == 0:
            do()

    return arrived


def test_a_reader_goes_on_when_a_fellow_was_killed_and_started_again(feed: Job) -> None:
    tasks, ticket = large(feed, "middle")
    assert tasks.read(ticket, once(feed.fellows[0].restart)) == all_rows(BLOCKS)


def test_a_fellow_that_stays_away_fails_the_task_by_its_name_and_its_epochs(feed: Job) -> None:
    tasks, ticket = large(feed, "dead")
    tasks.reconnect = 3.0
    with pytest.raises(AgentUnreachableError) as failed:
        tasks.read(ticket, once(feed.fellows[0].kill))
    message = str(failed.value)
    assert f"Epochs 0 to 0 of stream {ticket['stream']} of default/feed/0/dead" in message
    assert "at agent default/feed/1 for 3 s. Nothing was skipped" in message
    feed.fellows[0].start()
    end = tasks.reading.end(None)
    assert tasks.all(None, end) == all_rows(BLOCKS + 3)


def test_a_home_that_is_killed_between_seal_and_manifest_publishes_the_batch_once(
    feed: Job,
) -> None:
    writing, home = Writing(feed, "sealed"), feed.home
    writing.publish(0)
    staged = writing.stage(1, 3, 5)
    usual, home.main = home.main, ("-c", CUT_AFTER_SEAL)
    home.restart()
    home.main = usual

    def revive() -> None:
        assert home.process is not None
        home.process.wait(FAR)
        home.restart()

    thread = threading.Thread(target=revive)
    thread.start()
    with contextlib.suppress(AgentUnreachableError):  # it may take longer than a commit tries
        writing.commit(1, staged)
    thread.join()
    writing.commit(1, staged)
    assert [part["epochs"] for part in feed.kept("sealed")] == [2, 2]
    writing.run = "run-2"
    writing.publish(1)
    writing.publish(2)
    rows, end = Tasks(feed, "sealed").follow(3)
    assert rows == all_rows(90)
    assert [p["next"] for p in end["streams"].values()] == [3]


def test_a_commit_waits_for_a_fellow_that_was_killed_with_stages_of_the_batch(feed: Job) -> None:
    writing, victim = Writing(feed, "waits"), feed.fellows[0]
    staged = writing.stage(0, 3, 5)
    late = writing.task(0, 2, iter([wide(20, 5), wide(25, 5)]))  # by a speculative attempt
    victim.kill()
    writing.reconnect = 3.0
    with pytest.raises(AgentUnreachableError):
        writing.commit(0, staged)
    assert all(s["next"] == 0 for s in feed.home.export_status("waits")["streams"].values())
    victim.start()
    writing.reconnect = FAR
    writing.commit(0, [*staged[:2], late])
    assert Tasks(feed, "waits").follow(1)[0] == all_rows(30)
    until(lambda: all(p["stages"] == 0 for p in feed.kept("waits")), FAR, "no stages left")


def test_a_run_that_ended_before_its_commit_leaves_nothing_behind(feed: Job) -> None:
    writing = Writing(feed, "taken")
    writing.stage(0, 3, 5)
    assert [part["stages"] for part in feed.kept("taken")] == [1, 1]
    writing.run = "run-2"
    writing.publish(0)
    until(
        lambda: [(p["epochs"], p["stages"]) for p in feed.kept("taken")] == [(1, 0), (1, 0)],
        FAR,
        "no stages at fellows",
    )
    assert Tasks(feed, "taken").follow(1)[0] == all_rows(30)


def test_what_is_acknowledged_goes_from_all_agents(feed: Job) -> None:
    writing, tasks = Writing(feed, "released"), Tasks(feed, "released")
    start: dict[str, Any] | None = None
    rows: list[int] = []
    for batch in range(6):
        writing.publish(batch, size=100)
        end = tasks.reading.end(start)
        rows += tasks.all(start, end)
        start = end
        tasks.reading.next(start)
    assert sorted(rows) == all_rows(6 * 30)
    until(
        lambda: all(p["epochs"] <= 1 and p["stages"] == 0 for p in feed.kept("released")),
        FAR,
        "the read epochs removed at the fellows",
    )


def test_a_fellow_that_moves_is_followed_by_tasks_and_by_the_home(feed: Job) -> None:
    tasks, ticket = large(feed, "moved")
    mover, other = feed.fellows
    old = mover.port

    def move() -> None:
        mover.kill()
        other.kill()
        mover.port, other.port = free_port(), old  # what answers there is not who is looked for
        other.start()
        mover.start()
        feed.announce()

    assert tasks.read(ticket, once(move)) == all_rows(BLOCKS)
    assert tasks.read(ticket) == all_rows(BLOCKS), "by the old address, where the other one is"
    writing = Writing(feed, "moved")
    feed.present()
    writing.commit(1, [writing.task(1, 1, iter([wide(BLOCKS + 3, 1)]))])
    assert tasks.follow(2)[0] == all_rows(BLOCKS + 4)


def test_while_the_home_is_away_tasks_read_at_fellows_and_nothing_is_published(feed: Job) -> None:
    tasks, ticket = large(feed, "homeless")
    writing = Writing(feed, "homeless", reconnect=3.0)
    staged = [writing.task(1, 1, iter([wide(BLOCKS + 3, 1)]))]
    feed.home.kill()
    try:
        assert tasks.read(ticket) == all_rows(BLOCKS)
        with pytest.raises(AgentUnreachableError):
            writing.commit(1, staged)
    finally:
        feed.home.start()
    writing.reconnect = FAR
    writing.commit(1, staged)
    assert tasks.follow(2)[0] == all_rows(BLOCKS + 4)


def test_what_a_fellow_has_lost_stops_its_readers_and_new_epochs_are_read(feed: Job) -> None:
    tasks, ticket = large(feed, "lost")
    victim = feed.fellows[0]
    feed.lose(victim)
    began = time.monotonic()
    with pytest.raises(AgentRefusedError) as failed:
        tasks.read(ticket)
    what = f"epochs 0 to 0 of stream {ticket['stream']} of {feed.home.pe}/lost"
    assert f"agent default/feed/1 does not send {what}: " in str(failed.value)
    assert failed.value.code == "GrantInvalid"
    end = tasks.reading.end(None)
    fresh = at(tasks.tickets(None, end), victim.pe)
    with pytest.raises(AgentRefusedError) as failed:
        tasks.read(fresh)
    assert f"agent default/feed/1 does not have its part of {what}: " in str(failed.value)
    assert "data directory was replaced. Nothing was skipped" in str(failed.value)
    assert failed.value.code == "DataLoss"
    assert time.monotonic() < began + tasks.reconnect / 2, "an answer is not waited for"
    feed.present()
    writing = Writing(feed, "lost")
    writing.commit(1, [writing.task(1, 1, iter([wide(0, 5)]))])
    last = tasks.reading.end(end)
    assert tasks.all(end, last) == all_rows(5)


def test_an_export_that_waits_for_who_reads_at_fellows_alone_knows_its_query(feed: Job) -> None:
    tasks, ticket = large(feed, "itself")
    with in_task("query of itself", "run-1", 0, 0):
        tasks.read(ticket)
    writing = Writing(feed, "itself", reconnect=3.0)

    def refused() -> bool:
        return error_code(writing.task, 1, 0, iter([wide(0, 1)])) == "SelfWait"

    until(refused, FAR, "the publishing query is refused: it would wait for itself")


def test_who_reads_at_a_fellow_for_long_and_asks_nobody_is_alive_and_reads_on(feed: Job) -> None:
    large(feed, "long")
    run = Run(feed.pair.importer, "long")
    end = until(lambda: found if (found := run.plan())["streams"] else None, FAR, "a plan")
    parts = run.source.partitions(run.at, end)
    (slow,) = [p for p in parts if p.value.get("agent")]
    rows = run.source.read(slow)
    next(rows)
    feed.home.restart()
    feed.pair.importer.restart()

    def alive() -> bool:
        try:
            at_home = feed.home.reader_status(end["reader"], "long")
            own = feed.pair.importer.status()["imports"]["readers"].get(end["reader"], {})
        except AgentUnreachableError:
            return False  # its channel of before does not know yet that it is back
        return bool(at_home["alive"] and at_home["planned"] and own.get("alive"))

    until(alive, FAR, "the reader counts as alive anew, and its epochs as planned")
    assert len(list(rows)) == BLOCKS - 1
    run.stop()


def test_a_fellow_that_stands_still_gets_no_stages(feed: Job) -> None:
    still, writing = feed.fellows[0], Writing(feed, "frozen")
    assert still.process is not None
    with frozen(still.process.pid):
        until(lambda: feed.home.status()["fellows"][still.pe]["away"], FAR, "it is noticed")
        writing.publish(0, partitions=4)
        tasks = Tasks(feed, "frozen")
        tickets = tasks.tickets(None, tasks.reading.end(None))
        assert holders(tickets) == ["default/feed/2", "home"]
        assert sorted(n for t in tickets for n in tasks.read(t)) == all_rows(40)


def test_what_fellows_do_for_a_home_they_do_for_nobody_without_their_token(feed: Job) -> None:
    stranger = AgentClient(feed.fellows[0].location, "guessed")
    for action in ("stage.seal", "stage.release", "stage.count", "fellows"):
        assert error_code(stranger.call, action) == "TokenWrong"
    command = {"home": f"{feed.home.pe}/doors", "stream": "s", "limit": 1 << 20}
    assert error_code(stranger.put, command, SCHEMA, [wide(0, 1)]) == "TokenWrong"
    ticket = {"export": command["home"], "stream": "s", "agent": feed.fellows[0].pe}
    ticket |= {"reader": "r", "pieces": [[0, 0, 1]], "filter": None, "columns": None}
    for grant in ("", "e30=.00", 5):
        assert error_code(lambda g=grant: list(stranger.get({**ticket, "grant": g}))) == (
            "GrantInvalid"
        )
