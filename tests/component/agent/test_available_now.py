"""A run that reads what there is and ends: it waits for what it needs, and does not end without."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pe_agent.datasource.source import ExportRefusesError
from pe_agent.transport.flight_errors import AgentUnreachableError
from support.agents.agents import AgentProcess, Pair, Publishing, error_code, pair, rows
from support.agents.sources import Run
from support.processes.waiting import until

SECONDS = 30.0
EXPORT = "default/feed/0/trades"


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[Pair]:
    yield from pair(tmp_path)


def publish(agents: Pair, epochs: int) -> None:
    for batch in range(epochs):
        Publishing(agents.exporter).publish(batch, rows(10 * batch, 10))


class Doing:
    """A call in a thread of its own."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._ended: list[Any] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._ended.append(self._call())
        except Exception as error:
            self._ended.append(error)

    def result(self) -> Any:
        self._thread.join(SECONDS)
        assert self._ended, "it goes on"
        return self._ended[0]


def away(agents: Pair) -> Callable[[], bool]:
    return lambda: agents.exporter.location in agents.importer.status()["imports"]["away"]


def test_a_run_waits_for_an_exporter_that_is_away_when_it_begins(agents: Pair) -> None:
    publish(agents, 2)
    agents.exporter.kill()
    until(away(agents), SECONDS, "the exporter is away")
    run = Run(agents.importer, reconnect=SECONDS)
    begun = Doing(run.source.prepareForTriggerAvailableNow)
    until(lambda: agents.importer.status()["imports"]["missing"] == {}, SECONDS, "nothing is told")
    agents.exporter.start()
    assert begun.result() is None
    assert [n for batch in run.batches() for n in batch] == list(range(20))
    run.stop()


def test_a_run_that_could_read_nothing_fails_and_names_the_export(agents: Pair) -> None:
    publish(agents, 1)
    agents.exporter.kill()
    run = Run(agents.importer, reconnect=0.5)
    with pytest.raises(AgentUnreachableError, match=EXPORT):
        run.source.prepareForTriggerAvailableNow()
    assert agents.importer.status()["imports"]["missing"] == {"trades": [EXPORT]}
    run.stop()
    agents.exporter.start()
    again = Run(agents.importer, reconnect=SECONDS)
    again.source.prepareForTriggerAvailableNow()
    assert agents.importer.status()["imports"]["missing"] == {}


def test_a_run_waits_for_an_exporter_that_goes_away_in_the_middle(agents: Pair) -> None:
    publish(agents, 3)
    run = Run(agents.importer, reconnect=SECONDS, max_bytes=1)
    run.source.prepareForTriggerAvailableNow()
    read = [next(iter(run.batches()))]
    agents.exporter.kill()
    until(away(agents), SECONDS, "the exporter is away")
    rest = Doing(lambda: list(run.batches()))
    agents.exporter.start()
    read += rest.result()
    assert [n for batch in read for n in batch] == list(range(30))
    run.stop()


@pytest.mark.parametrize("which", ["exporter", "importer"])
def test_a_run_fails_when_an_agent_it_needs_stays_away(agents: Pair, which: str) -> None:
    publish(agents, 2)
    run = Run(agents.importer, reconnect=0.5, max_bytes=1)
    run.source.prepareForTriggerAvailableNow()
    run.read(run.plan())
    gone: AgentProcess = getattr(agents, which)
    gone.kill()
    with pytest.raises(
        AgentUnreachableError, match=EXPORT if which == "exporter" else f":{agents.importer.port} "
    ):
        list(run.batches())


def test_a_run_fails_when_an_export_refuses_what_it_needs(agents: Pair) -> None:
    publish(agents, 1)
    agents.plumb(filter="prize > 1")
    agents.importer.restart()
    run = Run(agents.importer, reconnect=0.5)
    run.source.prepareForTriggerAvailableNow()
    with pytest.raises(ExportRefusesError, match=f"{EXPORT}: .*prize"):
        list(run.batches())
    run.stop()
    agents.plumb(filter="n > 3")
    agents.importer.restart()
    again = Run(agents.importer, reconnect=SECONDS, at=run.at)
    again.source.prepareForTriggerAvailableNow()
    assert [n for batch in again.batches() for n in batch] == list(range(4, 10))
    again.stop()


@pytest.mark.parametrize("why", ["filter", "revoked"])
def test_a_run_to_the_end_fails_when_only_an_export_that_refuses_is_left(
    agents: Pair, why: str
) -> None:
    publish(agents, 1)
    if why == "filter":
        agents.plumb(filter="prize > 1")
    else:
        agents.plumb(revoked=("default/alerts",))
    agents.exporter.restart()
    agents.importer.restart()
    run = Run(agents.importer, reconnect=1.0, stop_at_end=True)
    run.source.prepareForTriggerAvailableNow()
    with pytest.raises(ExportRefusesError, match="prize" if why == "filter" else "revoked"):
        list(run.batches())
    run.stop()


def test_a_run_that_has_read_all_ends_although_the_exporter_is_away(agents: Pair) -> None:
    publish(agents, 2)
    run = Run(agents.importer, reconnect=SECONDS)
    run.source.prepareForTriggerAvailableNow()
    read: list[int] = []
    while len(read) < 20:
        read += run.read(run.plan())
    agents.exporter.kill()
    until(away(agents), SECONDS, "the exporter is away")
    assert run.plan() == run.at


def test_a_run_without_routes_fails_instead_of_reading_nothing(tmp_path: Path) -> None:
    alone = AgentProcess(tmp_path / "alerts", "alerts")
    alone.prepare()
    alone.start()
    try:
        run = Run(alone, reconnect=0.5)
        assert error_code(run.source.prepareForTriggerAvailableNow) == "RoutesUnknown"
    finally:
        alone.kill()
