"""Loss that nobody agreed to, at a reader that goes on in spite of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pe_agent.transport.flight_errors import AgentRefusedError, AgentUnreachableError
from streambroker_core.errors import StreambrokerError
from support.agents.imports import A, B, Bench, answer, away, bench, plan, refused


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return bench(tmp_path, monkeypatch)


def read(made: Bench) -> dict[str, Any]:
    """Return the offset of a reader that has two epochs of one stream to read."""
    made.connect(A)
    made.replies[A] = lambda _: answer(plan("s", 0, 2))
    return made.offset()


def status(made: Bench, offset: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = made.host.status()["readers"][offset["reader"]]
    return found


def blocks(epochs: dict[str, Any], gone: dict[str, Any]) -> Any:
    return lambda _: {"blocks": epochs, "gone": gone}


def test_a_loss_that_the_exporter_tells_is_in_the_offset_and_the_status(made: Bench) -> None:
    first = read(made)
    assert "lost" not in first
    made.replies[A] = lambda _: answer(plan("s", 5, 6, lost=[3, 30], dropped=[1, 7], moved=True))
    later = made.next(first, lossy=True)["offset"]
    assert made.asked[-1][1]["lossy"] is True
    assert (later["lost"], later["dropped"]) == ({"s": [3, 30]}, {"s": [1, 7]})
    assert (status(made, later)["lost"], status(made, later)["dropped"]) == ([3, 30], [1, 7])
    made.replies[A] = lambda _: answer(plan("s", 9, 10, lost=[3, None], moved=True))
    assert made.next(later, lossy=True)["offset"]["lost"] == {"s": [6, None]}


def test_a_loss_with_nothing_behind_it_is_reported_at_once(made: Bench) -> None:
    first = read(made)
    made.replies[A] = lambda _: answer(plan("s", 5, 5, lost=[3, 30], moved=True))
    later = made.next(first, lossy=True)["offset"]
    assert (later["streams"], later["lost"]) == ({"s": {"from": 5, "next": 5}}, {"s": [3, 30]})


def test_planned_epochs_that_are_gone_are_left_out_and_in_the_next_offset_once(
    made: Bench,
) -> None:
    end = read(made)
    made.replies[A] = blocks({"s": {"1": [[4, 40]]}}, {"s": [[0, 1, 6]]})
    for _ in range(2):
        reported = made.cut(None, end, lossy=True)
        assert [s["pieces"] for s in reported["slices"]] == [[[1, 0, 1]]]
        assert reported["lost"] == {"s": [(0, 1)]}
    assert made.asked[-1][1]["lossy"] is True
    made.store.close()
    made.open()
    made.connect(A)
    made.replies[A] = lambda _: answer(plan("s", 2, 2))
    for _ in range(2):
        behind = made.next(end, lossy=True)["offset"]
        assert behind == {**end, "lost": {"s": [1, 6]}}
    assert status(made, behind)["lost"] == [1, 6]
    assert made.next(behind, lossy=True) == {"offset": None}
    assert status(made, behind)["lost"] == [1, 6]


def test_what_a_batch_misses_is_not_in_the_offset_before_the_batch_is_done(made: Bench) -> None:
    end = read(made)
    made.replies[A] = blocks({"s": {}}, {"s": [[0, 2, 6]]})
    assert made.cut(None, end, lossy=True)["slices"] == []
    made.replies[A] = lambda _: answer(plan("s", 0, 2))
    assert made.next(None, lossy=True, mint=end["reader"])["offset"] == end
    made.replies[A] = lambda _: answer(plan("s", 2, 4))
    later = made.next({**end, "lost": {"s": [2, 6]}}, lossy=True)["offset"]
    made.replies[A] = blocks({"s": {}}, {"s": [[2, 4, 9]]})
    made.cut({**end, "lost": {"s": [2, 6]}}, later, lossy=True)
    made.replies[A] = lambda _: answer(plan("s", 2, 4))
    assert made.next({**end, "lost": {"s": [2, 6]}}, lossy=True)["offset"] == later


def test_a_whole_batch_misses_nothing_of_the_one_before(made: Bench) -> None:
    first = read(made)
    made.replies[A] = blocks({"s": {}}, {"s": [[0, 2, 6]]})
    made.cut(None, first, lossy=True)
    made.replies[A] = lambda _: answer(plan("s", 2, 3))
    second = made.next(first, lossy=True)["offset"]
    made.replies[A] = blocks({"s": {"2": [[1, 1]]}}, {})
    assert made.cut(first, second, lossy=True)["lost"] == {}
    made.replies[A] = lambda _: answer(plan("s", 3, 4, lost=[1, 5]))
    third = made.next(second, lossy=True)["offset"]
    assert (second["lost"], third["lost"]) == ({"s": [2, 6]}, {"s": [3, 11]})


def test_a_stream_that_nobody_has_is_lost_when_it_is_given_up(made: Bench) -> None:
    end = read(made)
    end = {**end, "streams": {"elsewhere": {"from": 3, "next": 5}}}
    made.known[A] = {"s": 2}
    for request in ({"lossy": True}, {"lossy": False, "give_up": True}):
        with pytest.raises(AgentUnreachableError, match="has stream elsewhere"):
            made.cut(None, end, **request)
    assert made.cut(None, end, lossy=True, give_up=True) == {
        "slices": [],
        "lost": {"elsewhere": [(3, 5)]},
    }
    made.replies[A] = lambda _: answer()
    assert made.next(end, lossy=True)["offset"]["lost"] == {"elsewhere": [2, None]}


def test_a_stream_is_not_given_up_while_an_exporter_that_may_have_it_is_silent(
    made: Bench,
) -> None:
    end = read(made)
    end = {**end, "streams": {"elsewhere": {"from": 3, "next": 5}}}
    with pytest.raises(AgentUnreachableError):
        made.cut(None, end, lossy=True, give_up=True)
    made.known[A] = {}
    made.connect(A, B)
    with pytest.raises(AgentUnreachableError):
        made.cut(None, end, lossy=True, give_up=True)


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (away, "AgentUnreachable"),
        (refused("UnknownPort"), "PlanRefused"),
        (refused("NotRouted"), "PlanRefused"),
    ],
)
def test_an_exporter_is_given_up_only_when_its_route_is_cut(
    made: Bench, reply: Any, code: str
) -> None:
    """One that answers and refuses is never taken for one that is away."""
    end = read(made)
    made.replies[A] = reply
    with pytest.raises(StreambrokerError) as failed:
        made.cut(None, end, lossy=True, give_up=True)
    assert failed.value.code == code
    made.connect()
    with pytest.raises(StreambrokerError):
        made.cut(None, end, lossy=True)
    assert made.cut(None, end, lossy=True, give_up=True)["lost"] == {"s": [(0, 2)]}


def test_a_reader_that_is_not_lossy_asks_for_none_and_stops(made: Bench) -> None:
    end = read(made)
    assert made.asked[-1][1]["lossy"] is False
    made.replies[A] = refused("DataLoss")
    with pytest.raises(AgentRefusedError):
        made.cut(None, end)
    assert made.asked[-1][1]["lossy"] is False
