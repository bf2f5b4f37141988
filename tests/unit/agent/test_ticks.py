"""When a source of ticks gives one: by a plan that is fixed, or in a file that a driver writes."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from pe_agent.aligned.control_source import ControlReader
from pe_agent.aligned.timeout_ticks import TickFile, TickOffsets, TickPlan, tick_seconds

HOURLY = TickPlan(seconds=3600.0, due=0)


class Clock:
    """The time of the machine, in milliseconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000_000
        monkeypatch.setattr(time, "time", lambda: self.now / 1000)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_a_tick_comes_with_the_time_and_once_where_all_is_read_that_is_there() -> None:
    reader = ControlReader(TickOffsets(HOURLY))
    start = reader.initialOffset()
    end = reader.latestOffset(start, None)
    assert end["tick"] > start["tick"]
    (part,) = reader.partitions(start, end)
    (batch,) = reader.read(part)
    sent = json.loads(batch.column(0)[0].as_py())
    assert (sent["type"], sent["payload"]) == ("SideTick", {"number": end["tick"]})
    later = {"tick": end["tick"] + 5}
    assert reader.latestOffset(later, None) == later
    assert reader.partitions(end, end) == []
    assert (tick_seconds(60.0), tick_seconds(0.1)) == (15.0, 0.5)


def test_without_a_time_limit_there_is_no_tick_and_the_place_of_an_earlier_one_stays() -> None:
    reader = ControlReader(TickOffsets(TickPlan()))
    at = reader.initialOffset()
    assert reader.latestOffset(at, None) == at
    reader.prepareForTriggerAvailableNow()
    assert reader.latestOffset({"tick": 1_500}, None) == {"tick": 1_500}


def test_ticks_go_on_when_a_query_starts_again_with_another_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the checkpoint has of them must not lie beyond those that come."""
    now = 1_000_000.0
    monkeypatch.setattr(time, "time", lambda: now)
    at = ControlReader(TickOffsets(TickPlan())).initialOffset()
    for seconds in (0.5, 15.0, 0.5, 60.0):
        reader = ControlReader(TickOffsets(TickPlan(seconds=seconds, due=0)))
        before = reader.latestOffset(at, None)
        now += seconds
        at = reader.latestOffset(before, None)
        assert len(reader.partitions(before, at)) == 1


def test_a_source_is_silent_until_the_file_has_a_time_limit_and_then_begins_with_a_tick(
    tmp_path: Path, clock: Clock
) -> None:
    """With the first tick every bucket reports when something is due, also after a restart."""
    file = TickFile(tmp_path)
    reader = ControlReader(TickOffsets(file.path))
    at: Mapping[str, int] = reader.initialOffset()
    assert reader.latestOffset(at, None) == at
    file.update(seconds=2.0)
    at = reader.latestOffset(at, None)
    assert at == {"tick": clock.now}
    clock.now += 60_000
    assert reader.latestOffset(at, None) == at
    assert ControlReader(TickOffsets(file.path)).latestOffset(at, None) == {"tick": clock.now}


def test_a_tick_comes_when_something_is_due_and_not_before(tmp_path: Path, clock: Clock) -> None:
    file = TickFile(tmp_path)
    file.update(seconds=2.0)
    reader = ControlReader(TickOffsets(file.path))
    at = reader.latestOffset(reader.initialOffset(), None)
    due = clock.now + 10_000
    file.update(due=due * 1000)
    clock.now = due - 1
    assert reader.latestOffset(at, None) == at
    clock.now = due
    assert reader.latestOffset(at, None) == {"tick": due}


def test_however_much_is_due_a_timeout_has_at_most_four_ticks(tmp_path: Path, clock: Clock) -> None:
    file = TickFile(tmp_path)
    file.update(seconds=tick_seconds(8.0))
    reader, ticks = ControlReader(TickOffsets(file.path)), list[int]()
    at: Mapping[str, int] = reader.initialOffset()
    for _ in range(800):
        file.update(due=clock.now * 1000)
        given = reader.latestOffset(at, None)
        if given != at:
            ticks.append(given["tick"])
        at, clock.now = given, clock.now + 10
    assert ticks == [1_000_000, 1_002_000, 1_004_000, 1_006_000]


def test_a_query_that_reads_what_there_is_gets_one_tick(tmp_path: Path, clock: Clock) -> None:
    file = TickFile(tmp_path)
    file.update(seconds=0.5)
    reader = ControlReader(TickOffsets(file.path))
    reader.prepareForTriggerAvailableNow()
    at = reader.latestOffset(reader.initialOffset(), None)
    assert at == {"tick": clock.now}
    file.update(due=0)
    clock.now += 10_000
    assert reader.latestOffset(at, None) == at


def test_a_file_that_is_gone_changes_nothing_until_the_next_plan(
    tmp_path: Path, clock: Clock
) -> None:
    file = TickFile(tmp_path)
    file.update(seconds=0.5)
    reader = ControlReader(TickOffsets(file.path))
    at = reader.latestOffset(reader.initialOffset(), None)
    file.path.unlink()
    clock.now += 10_000
    assert reader.latestOffset(at, None) == at
    file.update(due=clock.now * 1000)
    assert reader.latestOffset(at, None) == {"tick": clock.now}
