"""Agents and brokers of the last release work with those of this one, and so do their folders."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pe_agent.transport.broker_client import BrokerAnswer, BrokerClient
from streambroker_client.errors import BrokerUnavailableError
from support.agents.agents import AgentProcess, Publishing, rows
from support.agents.collector import collecting
from support.agents.connected import Connected
from support.agents.sources import Run
from support.processes.jobs import Broker
from support.processes.releases import Release
from support.processes.waiting import until

SECONDS = 30.0
BROKER, FEED, ALERTS = "broker", "feed", "alerts"
ALL = (BROKER, FEED, ALERTS)
KIND = 'kind == "trade"'
EVEN = "n % 2 == 0"
TRADES = "/job/feed/pe/0/export/trades"
IMPORT = "/job/alerts/pe/0/import/trades"
TUPLE = {"type": "EndOfDay", "payload": {"day": "2013-01-01"}, "delivery": "END_WINDOW"}


class Mixed(Connected):
    """Two agents and a broker, some of which are of the last release.

    Args:
        folder: for all files.
        released: the last release.
        old: which processes are of it.
    """

    def __init__(self, folder: Path, released: Release, old: tuple[str, ...]) -> None:
        super().__init__(folder, dict.fromkeys(old, released.search_path))
        self.client = BrokerClient(self.broker.url, "default")
        self.publisher = Publishing(self.exporter)
        self.batches = 0

    def begin(self) -> None:
        """Start both agents, declare a port of each, and wait until they are connected."""
        self.start()
        self.declare(self.exporter, "export", properties={"kind": "trade"})
        self.declare(self.importer, "import", subscription=KIND, start="earliest")
        until(lambda: self.at() == self.exporter.location, SECONDS, "the route at the importer")
        until(lambda: self.exported().get("routes"), SECONDS, "the route at the exporter")

    def ask(self, method: str, path: str, body: Any = None) -> BrokerAnswer:
        """Ask the broker; one that is starting, or waits for an agent, is asked again."""

        def answered() -> BrokerAnswer | None:
            try:
                return self.client.request(method, path, body, timeout=SECONDS)
            except BrokerUnavailableError:
                return None

        return until(answered, SECONDS, f"an answer to {method} {path}")

    def publish(self) -> list[int]:
        """Publish ten more rows as an epoch of their own; return them."""
        first = 10 * self.batches
        done = self.publisher.publish(self.batches, rows(first, 10))
        assert (done["published"], done["epoch"]) == (True, self.batches)
        self.batches += 1
        return list(range(first, first + 10))

    def replace(self, name: str, released: Release | None = None) -> None:
        """Kill a process, and start another on its files and at its address.

        It is of this release, or of ``released``.
        """
        if name == BROKER:
            self.broker.kill()
            self.broker = self.broker.restart(released.search_path if released else "")
            return
        agent = self.exporter if name == FEED else self.importer
        agent.kill()
        agent.environment = {"PYTHONPATH": released.search_path} if released else None
        agent.start()

    def set_filter(self, text: str) -> None:
        """Change the import's filter at the broker, and wait until both agents know it."""
        self.ask("PUT", f"{IMPORT}/filter", {"filter": text})

        def known() -> bool:
            (route,) = self.exported()["routes"]
            return bool(self.imported().get("filter") == route.get("filter") == text)

        until(known, SECONDS, "the filter at both agents")

    def figures(self, run: Run) -> tuple[int, int, list[int], list[int]]:
        """Return how many rows were delivered, filtered, dropped and lost, by epoch and row."""
        run.plan()
        found = self.exporter.reader_status(run.at["reader"])
        return found["delivered"], found["filtered"], found["dropped"], found["lost"]

    def await_figures(self, run: Run, delivered: int, filtered: int) -> None:
        """Wait until so many rows are acknowledged; none of them may be dropped or lost."""
        wanted = (delivered, filtered, [0, 0], [0, 0])
        until(lambda: self.figures(run) == wanted, SECONDS, f"each row counted once: {wanted}")


def up_to(run: Run, epochs: int) -> dict[str, Any]:
    """Return the end of a batch that reads all epochs below ``epochs``."""

    def planned() -> dict[str, Any] | None:
        end = run.plan()
        return end if [part["next"] for part in end["streams"].values()] == [epochs] else None

    return until(planned, SECONDS, f"a plan up to epoch {epochs}")


@pytest.fixture
def mixed(tmp_path: Path, released: Release) -> Iterator[Callable[..., Mixed]]:
    """Return what starts processes, given which of them are of the last release."""
    made: list[Mixed] = []

    def begin(*old: str) -> Mixed:
        made.append(Mixed(tmp_path, released, old))
        made[-1].begin()
        return made[-1]

    yield begin
    for one in made:
        one.end()


def version_of(process: AgentProcess | Broker, released: Release) -> str:
    """Return ``old`` for a process with the sources of the last release, else ``new``."""
    started = process.process
    assert started is not None
    environment = Path(f"/proc/{started.pid}/environ").read_text()
    return "old" if released.search_path in environment else "new"


@pytest.mark.parametrize(
    "old",
    [
        (BROKER, FEED),
        (BROKER, ALERTS),
        *(pytest.param(one, marks=pytest.mark.slow) for one in ((FEED,), (ALERTS,))),
    ],
    ids=["old broker and exporter", "old broker and importer", "old exporter", "old importer"],
)
@pytest.mark.compatibility(
    "agents and broker",
    "rows, control tuples and filters pass between old and new ones, in each combination",
)
def test_rows_and_control_pass_between_an_old_and_a_new_agent_and_a_filter_set_later_holds(
    mixed: Callable[..., Mixed], released: Release, old: tuple[str, ...]
) -> None:
    one = mixed(*old)
    processes: dict[str, AgentProcess | Broker]
    processes = {BROKER: one.broker, FEED: one.exporter, ALERTS: one.importer}
    versions = {name: version_of(process, released) for name, process in processes.items()}
    assert versions == {name: "old" if name in old else "new" for name in ALL}
    run = Run(one.importer)
    published = one.publish()
    assert run.read(up_to(run, 1)) == published

    one.set_filter(EVEN)
    published = one.publish()
    end = up_to(run, 2)
    assert end["filter"] == EVEN
    assert run.read(end) == published[::2]
    one.await_figures(run, delivered=15, filtered=5)

    sent = one.ask("POST", f"{TRADES}/control", TUPLE)
    assert (sent.status, sent.body["epoch"]) == (201, 2)
    known = one.exporter.client.call("export.emitted", export="trades", seq=sent.body["seq"])
    assert one.ask("GET", f"{TRADES}/control/{sent.body['id']}").body == known
    run.stop()


@pytest.mark.compatibility(
    "data directories and the database",
    "new agents and a new broker go on with what killed old ones have left",
)
def test_what_old_agents_have_published_planned_and_counted_goes_on_at_new_ones(
    mixed: Callable[..., Mixed],
) -> None:
    """Both folders and the broker's file are those that killed processes have left."""
    one = mixed(*ALL)
    run = Run(one.importer)
    read = one.publish()
    assert run.read(up_to(run, 1)) == read
    planned = one.publish()
    end = up_to(run, 2)
    own = one.ask("POST", "/job/feed/pe/0/control", TUPLE).body["id"]
    unread = [*one.publish(), *one.publish()]
    (stream,) = one.exporter.export_status()["streams"]
    run.stop()
    for agent in (one.importer, one.exporter):
        agent.kill()
    for name in ALL:
        one.replace(name)

    again = Run(one.importer, at=run.at)
    assert again.read(end) == planned
    assert again.read(up_to(again, 4)) == unread
    one.await_figures(again, delivered=40, filtered=0)
    replay = Publishing(one.exporter, run="run-2")
    assert replay.publish(3, rows(30, 10))["published"] is False
    one.publisher = replay
    last = one.publish()
    assert again.read(up_to(again, 5)) == last
    assert list(one.exporter.export_status()["streams"]) == [stream]
    assert one.exporter.client.call("control.entry", seq=0)["id"] == own
    again.stop()


@pytest.mark.parametrize(
    "order",
    [(BROKER, ALERTS, FEED), pytest.param((FEED, ALERTS, BROKER), marks=pytest.mark.slow)],
    ids=" then ".join,
)
@pytest.mark.compatibility(
    "agents and broker",
    "each is upgraded and rolled back under load; every row is counted",
)
def test_rows_flow_on_while_one_process_after_the_other_is_upgraded_and_rolled_back(
    mixed: Callable[..., Mixed], released: Release, order: tuple[str, ...]
) -> None:
    """What was declared stays: a filter is that of the broker before until it is set again."""
    one = mixed(*ALL)
    run = Run(one.importer, reconnect=SECONDS)
    for release, divisor in ((None, 2), (released, 5)):
        one.set_filter(f"n % {divisor} == 0")
        for name in order:
            published = one.publish()
            assert run.read(up_to(run, one.batches)) == published[::divisor]
            one.replace(name, release)
            if name == ALERTS:
                run.stop()
                run = Run(one.importer, at=run.at, reconnect=SECONDS)
        processes = (one.broker, one.exporter, one.importer)
        expected = "old" if release else "new"
        assert [version_of(process, released) for process in processes] == [expected] * 3
    one.set_filter(EVEN)
    published = one.publish()
    assert run.read(up_to(run, one.batches)) == published[::2]
    one.await_figures(run, delivered=26, filtered=44)
    run.stop()


@pytest.mark.compatibility(
    "manifest of an epoch",
    "with a trace it is read by an old agent, from a new one and from its directory",
)
def test_epochs_with_a_trace_are_read_by_old_agents(
    mixed: Callable[..., Mixed], released: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    with collecting() as collector:
        for name, value in collector.environment().items():
            monkeypatch.setenv(name, value)
        one = mixed(ALERTS)
        run = Run(one.importer)
        published = one.publish()
        assert run.read(up_to(run, 1)) == published
        published = one.publish()
        until(lambda: len(collector.named("publish")) == 2, SECONDS, "both epochs are traced")
        one.replace(FEED, released)
        assert version_of(one.exporter, released) == "old"
        assert run.read(up_to(run, 2)) == published
        run.stop()
