"""Which connections have to go, and what the log has of it."""

from __future__ import annotations

import logging
import resource

import pytest

from streambroker_operator.rest.guard.connections import (
    HEADER_S,
    IDLE_S,
    LATE,
    ClientConnection,
    ConnectionCounter,
    ConnectionTable,
    connection_limit,
)


def connections(room: ConnectionTable, *addresses: str) -> list[ClientConnection]:
    found = [ClientConnection(address, float(number)) for number, address in enumerate(addresses)]
    for one in found:
        room.add(one)
    return found


def test_a_connection_that_has_been_silent_for_longest_makes_room() -> None:
    room = ConnectionTable(3, 3)
    first, second, _ = connections(room, "a", "b", "c")
    room.mark_busy(first)

    assert room.eviction_candidate("d") is second
    room.mark_idle(first)
    assert room.eviction_candidate("d") is second
    room.remove(second)
    assert room.eviction_candidate("d") is None
    assert room.has_room("d")


def test_an_address_with_too_many_gives_up_its_own() -> None:
    room = ConnectionTable(10, 2)
    _, mine, _ = connections(room, "other", "a", "a")

    assert room.eviction_candidate("a") is mine
    assert room.eviction_candidate("other") is None


def test_connections_at_work_make_no_room() -> None:
    room = ConnectionTable(2, 2)
    for one in connections(room, "a", "a"):
        room.mark_busy(one)

    assert room.eviction_candidate("a") is None
    assert not room.has_room("a")
    assert not room.has_room("b")


def test_what_is_closed_is_forgotten() -> None:
    room = ConnectionTable(2, 2)
    for one in connections(room, "a", "a"):
        room.mark_busy(one)
        room.remove(one)
        room.remove(one)
        room.mark_idle(one)

    assert room.has_room("a")
    assert room.expired(1e9) == []
    assert room.longest_idle() is None


@pytest.mark.parametrize(("requests", "seconds"), [(0, HEADER_S), (1, IDLE_S)])
def test_a_silent_connection_has_its_time_and_one_at_work_has_all_it_needs(
    requests: int, seconds: float
) -> None:
    room = ConnectionTable(2, 2)
    silent, busy = connections(room, "a", "a")
    silent.requests = requests
    room.mark_busy(busy)

    assert room.expired(silent.idle_since + seconds) == []
    assert room.expired(silent.idle_since + seconds + 0.1) == [silent]


class Stuck:
    """A transport whose peer takes as much as the test says."""

    def __init__(self, unsent: int) -> None:
        self.unsent = unsent

    def get_write_buffer_size(self) -> int:
        return self.unsent


def test_who_takes_nothing_of_an_answer_is_late_and_who_takes_a_little_is_not() -> None:
    connection = ClientConnection("a", 0.0)
    peer = Stuck(100)
    connection.transport = peer  # type: ignore[assignment]
    for second in range(0, 600, 60):
        peer.unsent -= 1
        assert not connection.is_expired(float(second), is_idle=False)

    assert not connection.is_expired(540.0 + IDLE_S, is_idle=False)
    assert connection.is_expired(541.0 + IDLE_S, is_idle=False)


def test_the_log_has_one_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "streambroker.connections")
    tally = ConnectionCounter()
    for second in range(121):
        for _ in range(100):
            tally.note(LATE, "10.0.0.1")
        tally.report(float(second))

    lines = [record.getMessage() for record in caplog.records]
    assert [line.split()[1] for line in lines] == ["100", "6000", "6000"]
    assert lines[0] == "connections: 100 were silent for too long; 100 of them from 10.0.0.1"


@pytest.mark.parametrize(
    ("soft", "room"), [(200, 150), (1_024, 768), (65_536, 5_000), (resource.RLIM_INFINITY, 5_000)]
)
def test_there_are_fewer_places_than_descriptors(
    soft: int, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, soft))
    assert connection_limit(5_000) == room
