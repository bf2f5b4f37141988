"""Positions in streams that nothing is read from any more: kept for a while, and not for ever."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.agents.imports import A, B, Bench, answer, bench, plan


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return bench(tmp_path, monkeypatch)


def limit(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr("pe_agent.agent.imports.offset_planner.MAX_OLD_POSITIONS", count)


def read(
    made: Bench, start: dict[str, Any] | None, export: str, stream: str, **more: Any
) -> dict[str, Any]:
    """Return the offset behind one epoch more of a stream, the only news."""
    reported = {**plan(stream, 0, 1), **more}
    made.replies = dict.fromkeys((A, B), lambda _: answer(routed=False))
    made.replies[export] = lambda _: answer(reported)
    return made.offset(start)


def successors(made: Bench) -> dict[str, Any]:
    """Return the offset of a reader that has read four streams of one export, from z to w."""
    made.connect(A)
    offset = None
    for number, stream in enumerate("zyxw"):
        offset = read(made, offset, A, stream, dropped=[1, number])
    assert offset is not None
    return offset


def test_while_an_exporter_says_nothing_all_its_streams_may_go_on(
    made: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, 0)
    assert set(successors(made)["streams"]) == set("zyxw")


def test_of_a_route_that_is_cut_the_newest_positions_stay(
    made: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, 2)
    offset = successors(made)
    made.connect(B)
    offset = read(made, offset, B, "t")
    assert set(offset["streams"]) == set("xwt")
    assert offset["dropped"] == {"": [2, 1], "x": [1, 2], "w": [1, 3]}
    homes = made.store.states("own_readers", "id")[offset["reader"]]["homes"]
    assert set(homes) == set("xwt")


def test_what_an_exporter_has_forgotten_goes_before_what_may_come_back(
    made: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.connect(B)
    cut = read(made, None, B, "t")
    made.connect(A)
    made.known[A] = {"w": 1, "x": 1}
    offset = read(made, read(made, cut, A, "x"), A, "w")
    made.known[A] = {"w": 1}
    limit(monkeypatch, 1)
    offset = read(made, offset, A, "w", next=2)
    assert set(offset["streams"]) == set("tw")
    limit(monkeypatch, 0)
    offset = read(made, offset, A, "w", next=3)
    assert set(offset["streams"]) == set("w")


def test_a_stream_of_which_its_exporter_has_just_reported_is_not_left_over(
    made: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its plan comes before the heads that have it."""
    limit(monkeypatch, 0)
    made.connect(A)
    made.known[A] = {"z": 1}
    offset = read(made, read(made, None, A, "z"), A, "y")
    assert set(offset["streams"]) == set("zy")


def test_what_is_left_over_is_no_reason_for_a_batch(
    made: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    offset = successors(made)
    made.connect(B)
    made.replies = dict.fromkeys((A, B), lambda _: answer(routed=False))
    limit(monkeypatch, 0)
    assert made.next(offset) == {"offset": None}
    homes = made.store.states("own_readers", "id")[offset["reader"]]["homes"]
    assert set(homes) == set("zyxw")


def opened(made: Bench, start: dict[str, Any] | None, *plans: dict[str, Any]) -> dict[str, Any]:
    """Return the offset in which export A is open and nothing of it was read."""
    made.connect(A)
    made.replies[A] = lambda _: {**answer(*plans), "last": None}
    return made.offset(start)


def test_an_export_of_which_nothing_was_read_is_forgotten_with_its_route(made: Bench) -> None:
    offset = opened(made, None)
    assert offset["last"] == {A: None}
    made.connect(A, B)
    offset = read(made, offset, B, "t")
    assert offset["last"] == {A: None, B: ["q", 0]}, "it has a route"
    made.connect(B)
    offset = read(made, offset, B, "t", next=2)
    assert offset["last"] == {B: ["q", 1]}
    made.connect(A, B)
    made.replies[A] = lambda _: answer(plan("z", 0, 1))
    made.asked.clear()
    assert made.offset(offset)["last"] == {A: ["q", 0], B: ["q", 1]}
    (body,) = [b for action, b in made.asked if b["export"] == A and action == "peer.plan"]
    assert body["known"] is False, "it is opened as one that was never read"


def test_an_export_with_a_position_is_known_for_as_long_as_that(
    made: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    offset = opened(made, None, plan("z", 4, 4))
    assert (offset["last"], set(offset["streams"])) == ({A: None}, {"z"})
    made.connect(B)
    offset = read(made, offset, B, "t")
    assert set(offset["last"]) == {A, B}
    limit(monkeypatch, 0)
    offset = read(made, offset, B, "t", next=2)
    assert (set(offset["last"]), set(offset["streams"])) == ({B}, {"t"})


def test_an_export_that_was_read_is_known_for_ever(
    made: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, 0)
    offset = successors(made)
    made.connect(B)
    offset = read(made, offset, B, "t")
    assert (set(offset["last"]), set(offset["streams"])) == ({A, B}, {"t"})


def test_an_export_to_be_forgotten_is_no_reason_for_a_batch(made: Bench) -> None:
    offset = opened(made, None)
    made.connect(B)
    made.replies[B] = lambda _: answer(routed=False)
    assert made.next(offset) == {"offset": None}
