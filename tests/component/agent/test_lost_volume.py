"""An exporter's data directory goes with its pod, as an emptyDir does: readers are told."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from pe_agent.transport.flight_errors import AgentRefusedError
from support.agents.agents import Pair, Publishing, Reading, pair, rows


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[Pair]:
    yield from pair(tmp_path)


def lose_volume(agents: Pair) -> None:
    """Have the exporter's agent start anew where there is nothing but what its broker tells it."""
    agents.exporter.kill()
    shutil.rmtree(agents.exporter.home)
    agents.exporter.prepare()
    agents.plumb()
    agents.exporter.start()


def test_who_has_read_all_goes_on_in_the_successor_stream(agents: Pair) -> None:
    publisher, reader = Publishing(agents.exporter), Reading(agents.importer)
    start = reader.open()
    publisher.publish(0, rows(0, 3))
    end = reader.end(start)
    assert reader.read(start, end) == [0, 1, 2]
    reader.next(end)
    old = set(agents.exporter.export_status()["streams"])

    lose_volume(agents)
    again = Publishing(agents.exporter, run="run-2")
    again.publish(1, rows(3, 3))
    after = reader.end(end)

    assert reader.read(end, after) == [3, 4, 5]
    assert not old & set(agents.exporter.export_status()["streams"])
    assert after["last"] == {f"{agents.exporter.pe}/trades": ["query-1", 1]}
    (reported,) = agents.importer.status()["imports"]["readers"].values()
    (stream,) = agents.exporter.export_status()["streams"]
    assert reported["successors"] == 1
    assert reported["successor"] == {"export": f"{agents.exporter.pe}/trades", "stream": stream}
    assert "is new, but its query continues with batch 1:" in agents.exporter.log.read_text()


def test_what_is_published_again_over_a_lost_log_is_reported_at_both_ends(agents: Pair) -> None:
    publisher, reader = Publishing(agents.exporter), Reading(agents.importer)
    start = reader.open()
    for batch in range(2):
        publisher.publish(batch, rows(3 * batch, 3))
    end = reader.end(start)
    assert reader.read(start, end) == [0, 1, 2, 3, 4, 5]

    lose_volume(agents)
    again = Publishing(agents.exporter, run="run-2")
    for batch in range(3):
        again.publish(batch, rows(3 * batch, 3))
    after = reader.end(end)
    assert reader.read(end, after) == [6, 7, 8]
    reader.next(after)

    (reported,) = agents.importer.status()["imports"]["readers"].values()
    (of_export,) = agents.exporter.export_status()["readers"].values()
    assert reported["duplicates"] == of_export["duplicates"] == [2, 6]
    assert (reported["lagEpochs"], of_export["lagRows"]) == (0, 0)
    assert "is new, but its query continues" not in agents.exporter.log.read_text()


def test_who_has_not_read_all_is_informed_of_the_loss(agents: Pair) -> None:
    publisher, reader = Publishing(agents.exporter), Reading(agents.importer)
    start = reader.open()
    publisher.publish(0, rows(0, 3))
    end = reader.end(start)
    assert reader.read(start, end) == [0, 1, 2]
    publisher.publish(1, rows(3, 3))

    lose_volume(agents)
    again = Publishing(agents.exporter, run="run-2")
    again.publish(2, rows(6, 3))
    with pytest.raises(AgentRefusedError, match=r"from 1 on of stream .* lost its log") as refused:
        reader.end(end)

    assert refused.value.code == "DataLoss"
