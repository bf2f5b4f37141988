"""A resource that matches nothing gets a sentence about the nearest, not too often."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from streambroker_core.board import ExportApplied, ImportApplied
from streambroker_core.diagnose import take_snapshot
from streambroker_core.model import Export, Resource, kind_of
from streambroker_operator.kubernetes.status import nearest_port as nearest
from streambroker_operator.kubernetes.status.nearest_port import (
    MIN_AGE_S,
    NearestSentences,
    nearest_sentence,
)
from streambroker_operator.kubernetes.status.writer import Name
from support.core.resources import board_of, export_of, import_of

NEWS = export_of("feed/news", properties={"kind": "news"})
WISH = import_of()


def said_of(one: Resource, *others: Resource) -> str:
    bench = Bench(one, *others)
    bench.work(one)
    return bench.said(one)


class Bench:
    """A board, a clock that only tests move, and what was offered to the writer."""

    def __init__(self, *resources: Resource) -> None:
        self.board = board_of(*resources)
        self.now = 1000.0
        self.offers: list[Name] = []
        self.nearest = NearestSentences(
            self.board.reader, self.offers.append, clock=lambda: self.now
        )

    def work(self, *resources: Resource) -> list[Name]:
        """Ask for sentences, compute, and return what was offered."""
        for one in resources:
            self.nearest.get((kind_of(one), one.uid), one.generation)
        self.offers.clear()
        asyncio.run(self.nearest.compute_due())
        return list(self.offers)

    def said(self, one: Resource) -> str:
        return self.nearest.get((kind_of(one), one.uid), one.generation) or ""

    def change(self, export: Export, **properties: Any) -> Export:
        changed = replace(export, generation=export.generation + 1, properties=properties)
        version = max(self.board.reader.point) + 1
        self.board.handle(ExportApplied(export=changed, version=version))
        return changed


def test_the_sentence_of_an_import_names_the_nearest_export_and_what_it_lacks() -> None:
    assert said_of(WISH, NEWS) == (
        "No Export matches. The nearest is default/feed/0/news, 1 change away:"
        " needs kind = trade, has news."
    )


def test_the_sentence_of_an_export_names_the_nearest_import() -> None:
    assert said_of(NEWS, WISH).startswith(
        "No Import matches. The nearest is default/alerts/0/trades, 1 change away: "
    )


def test_exports_that_the_namespace_may_not_read_are_not_named() -> None:
    secret = export_of("other/feed/0/news", properties={"kind": "secret"})
    assert said_of(WISH, secret) == "There is no Export in reach of its namespace."
    assert "secret" in said_of(WISH, replace(secret, allowed_namespaces=("default",)))


def test_imports_of_other_namespaces_are_not_named() -> None:
    assert said_of(NEWS, import_of("other/alerts/0/a")) == (
        "There is no Import in reach of its namespace."
    )


def test_a_message_with_a_full_stop_does_not_get_a_second_one() -> None:
    export = export_of("feed/news", schema=[{"name": "bid", "type": "double"}])
    board = board_of(WISH, export)
    text = nearest_sentence(take_snapshot(board.reader), replace(WISH, filter="price > 1"))
    assert text.endswith("there are `bid`.")


def test_a_sentence_is_computed_again_only_after_the_board_has_changed() -> None:
    bench = Bench(WISH, NEWS)
    assert bench.work(WISH) == [("Import", WISH.uid)]

    bench.now += 10_000
    assert bench.work() == []

    bench.change(NEWS, kind="weather")
    assert bench.work() == [("Import", WISH.uid)]
    assert "has weather" in bench.said(WISH)


def test_a_sentence_that_changes_all_the_time_is_computed_less_and_less_often() -> None:
    bench, export, computed = Bench(WISH, NEWS), NEWS, 0
    bench.work(WISH)
    for number in range(100):
        bench.now += MIN_AGE_S
        export = bench.change(export, kind=f"k{number}")
        computed += len(bench.work())
    assert 3 <= computed <= 8


def test_a_changed_resource_does_not_wait_for_its_pace() -> None:
    bench = Bench(WISH, NEWS)
    bench.work(WISH)
    changed = replace(WISH, generation=2, subscription='kind == "sport"')
    bench.board.handle(ImportApplied(import_=changed, version=max(bench.board.reader.point) + 1))

    assert bench.nearest.get(("Import", WISH.uid), 2) is None
    assert bench.work(changed) == [("Import", WISH.uid)]


def test_a_resource_that_matches_by_now_is_forgotten() -> None:
    bench = Bench(WISH, NEWS)
    bench.work(WISH)
    bench.now += MIN_AGE_S
    bench.change(NEWS, kind="trade")

    assert bench.work() == []
    assert bench.nearest.get(("Import", WISH.uid), 1) is None


def test_a_turn_ends_when_its_time_is_used_up(monkeypatch: Any) -> None:
    wishes = [import_of(f"alerts{n}/trades") for n in range(5)]
    bench = Bench(NEWS, *wishes)
    monkeypatch.setattr(nearest, "WORK_S", 0.0)

    turns = [bench.work(*wishes) for _ in range(5)]

    assert [len(turn) for turn in turns] == [1, 1, 1, 1, 1]
    assert {name for turn in turns for name in turn} == {("Import", w.uid) for w in wishes}


def rests(monkeypatch: Any, took: list[float], busy: list[bool]) -> list[float]:
    """Return how long the thread rests before each turn, in seconds.

    Args:
        monkeypatch: replaces sleep and work.
        took: how long each computation takes.
        busy: for each turn, whether many statuses wait.
    """
    bench, rested = Bench(), []

    async def sleep(seconds: float) -> None:
        rested.append(seconds)
        if not busy:
            raise asyncio.CancelledError

    async def work() -> None:
        bench.now += took.pop(0)

    monkeypatch.setattr("streambroker_operator.kubernetes.status.nearest_port.asyncio.sleep", sleep)
    monkeypatch.setattr(bench.nearest, "compute_due", work)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(bench.nearest.run(lambda: True, lambda: busy.pop(0)))
    assert not took
    return rested


def test_the_thread_rests_three_times_as_long_as_it_computed(monkeypatch: Any) -> None:
    assert rests(monkeypatch, [2.0, 0.1], [False, False]) == pytest.approx([1.0, 6.0, 1.0])


def test_nothing_is_computed_while_many_statuses_wait(monkeypatch: Any) -> None:
    assert rests(monkeypatch, [5.0], [True, True, False]) == [1.0, 1.0, 1.0, 15.0]
