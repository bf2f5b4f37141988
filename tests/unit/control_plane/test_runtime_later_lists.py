"""How a broker that answers takes in a list after a gap, while it goes on with everything else."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from streambroker_core.board import (
    Board,
    CaughtUp,
    ExportApplied,
    ExportRemoved,
    FeedLost,
    ImportApplied,
    Synced,
)
from streambroker_core.model import Resource
from streambroker_core.wire.broker.view import with_version
from streambroker_operator import cooperative as long_work
from streambroker_operator.agents.hint_sender import HintSender
from streambroker_operator.runtime.runtime import Runtime
from streambroker_operator.storage.sqlite_store import Store
from support.core.resources import board_of, export_of, import_of, picture

COUNT = 60
STAYS, CHANGES, GOES, COMES = (
    [export_of(f"feed{n}/{name}", uid=f"{name}{n}") for n in range(COUNT)]
    for name in ("stays", "changes", "goes", "comes")
)
CHANGED = [replace(one, properties={"kind": "quote"}, generation=2) for one in CHANGES]
IMPORT = import_of("alerts/p", uid="i")
LATE_EXPORT = export_of("feed/late", uid="late-export")
LATE = import_of("late/p", uid="late")


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runtime]:
    monkeypatch.setattr(long_work, "TURN_S", -1.0)
    store, sender = Store(tmp_path / "broker.db"), HintSender()
    board = board_of(*STAYS, *CHANGES, *GOES, IMPORT)
    yield Runtime(store, sender, board)
    sender.close()
    store.close()


def listed(*resources: Resource, version: int) -> Synced:
    return Synced(kind="Export", listed=tuple((one, version) for one in resources), version=version)


LATER = listed(*STAYS, *CHANGED, *COMES, version=20)


def expected() -> Board:
    board = board_of(*STAYS, *CHANGES, *GOES, IMPORT)
    board.handle(LATER)
    return board


async def test_others_have_their_turn_and_find_a_whole_board(runtime: Runtime) -> None:
    loading = asyncio.ensure_future(runtime.feed.load(LATER))
    board, turns, states = runtime.board, 0, set()
    while not loading.done():
        await asyncio.sleep(0)
        turns += 1
        here = {route.export_uid for route in board.routes()}
        states.add(len(here))
        assert here >= {one.uid for one in STAYS}
        view = board.view(IMPORT.key.owner)
        assert view is not None
        assert with_version(view).version == view.version
        assert board.point == (10, 10) or picture(board) == picture(expected().reader)

    assert turns > 5 * COUNT
    assert len(states) > 2
    assert picture(board) == picture(expected().reader)


async def test_what_is_as_it_was_is_reported_to_nobody(runtime: Runtime) -> None:
    count = runtime.change_log.count
    await runtime.feed.load(listed(*STAYS, *CHANGES, *GOES, version=20))

    assert runtime.change_log.count == count


async def test_all_changes_are_reported_once(runtime: Runtime) -> None:
    before = runtime.change_log.count
    await runtime.feed.load(LATER)
    reported = runtime.change_log.events_after(before, 10_000)

    assert reported is not None
    assert len([one for one in reported if one.name == "export"]) == 3 * COUNT


@pytest.mark.parametrize("turns", range(0, 8 * COUNT, 41))
async def test_what_the_feed_tells_meanwhile_is_not_lost(runtime: Runtime, turns: int) -> None:
    loading = asyncio.ensure_future(runtime.feed.load(LATER))
    for _ in range(turns):
        await asyncio.sleep(0)
    news = ImportApplied(import_=LATE, version=21), ExportRemoved(uid=COMES[0].uid, version=22)
    for one in news:
        runtime.feed.deliver(one)
    await loading
    board = expected()
    board.handle_all(news)

    assert picture(runtime.board) == picture(board.reader)


@pytest.mark.parametrize("turns", range(1, 8 * COUNT, 41))
async def test_a_feed_that_is_lost_meanwhile_is_lost_after_the_list(
    runtime: Runtime, turns: int
) -> None:
    loading = asyncio.ensure_future(runtime.feed.load(LATER))
    for _ in range(turns):
        await asyncio.sleep(0)
    # The next list decides about what was seen since the last one; this is not the next one.
    runtime.feed.deliver(ExportApplied(export=LATE_EXPORT, version=21))
    runtime.feed.deliver(FeedLost(kind="Export"))
    await loading

    assert runtime.board.stale
    assert runtime.board.get("Export", LATE_EXPORT.uid) is LATE_EXPORT


@pytest.mark.parametrize("turns", range(1, 8 * COUNT, 41))
async def test_the_loss_of_one_kind_comes_before_its_next_list_while_another_is_taken_in(
    runtime: Runtime, turns: int
) -> None:
    runtime.feed.deliver(ImportApplied(import_=LATE, version=30))
    loading = asyncio.ensure_future(runtime.feed.load(LATER))
    for _ in range(turns):
        await asyncio.sleep(0)
    runtime.feed.deliver(FeedLost(kind="Import", reason="Restored"))
    # Of the restored store, in which what came after version 10 never was.
    await runtime.feed.load(Synced(kind="Import", listed=((IMPORT, 10),), version=15))
    await loading

    assert not runtime.board.stale
    assert runtime.board.get("Import", LATE.uid) is None


@pytest.mark.parametrize("turns", range(1, 8 * COUNT, 41))
async def test_a_feed_that_is_cut_does_not_leave_half_a_list(runtime: Runtime, turns: int) -> None:
    loading = asyncio.ensure_future(runtime.feed.load(LATER))
    for _ in range(turns):
        await asyncio.sleep(0)
    loading.cancel()
    await asyncio.gather(loading, return_exceptions=True)
    await runtime.feed.load(LATER)

    assert picture(runtime.board) == picture(expected().reader)


async def test_a_write_that_the_store_has_lost_is_logged_counted_and_shown_to_followers(
    runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    filtered = replace(IMPORT, filter="price > 1.0", generation=2)
    runtime.feed.deliver(ImportApplied(import_=filtered, version=14, ahead_of_feed=True))
    place = runtime.change_log.count

    runtime.feed.deliver(CaughtUp(kind="Import", version=20))

    assert runtime.board.imports() == [IMPORT]
    assert runtime.publisher.fallen_back == {("Import", "changed"): 1}
    assert [r.message for r in caplog.records if "lost a change" in r.message] == [
        "Import with uid i: the API server lost a change made by this broker, after a"
        " restore for instance; its older version applies again"
    ]
    news = runtime.change_log.events_after(place, 10) or []
    assert [change.name for change in news].count("import") == 1
