"""How a broker takes its first lists in while it goes on with everything else."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from streambroker_core.board import Board, BoardReader, ImportApplied, Synced
from streambroker_core.model import Resource
from streambroker_operator import cooperative as long_work
from streambroker_operator.agents.hint_sender import HintSender
from streambroker_operator.runtime.runtime import Runtime
from streambroker_operator.storage.sqlite_store import Store
from support.core.resources import export_of, import_of, pe

COUNT = 40
EXPORTS = [export_of(f"feed{n}/p", uid=f"e{n}") for n in range(COUNT)]
IMPORTS = [import_of(f"alerts{n}/p", uid=f"i{n}") for n in range(COUNT)]
LATE = import_of("late/p", uid="late")


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runtime]:
    monkeypatch.setattr(long_work, "TURN_S", -1.0)
    store, sender = Store(tmp_path / "broker.db"), HintSender()
    yield Runtime(store, sender)
    sender.close()
    store.close()


def synced(kind: str, resources: list[Resource]) -> Synced:
    return Synced(kind=kind, listed=tuple((one, 1) for one in resources), version=1)  # type: ignore[arg-type]


async def both(runtime: Runtime) -> None:
    await asyncio.gather(
        runtime.feed.load(synced("Export", list(EXPORTS))),
        runtime.feed.load(synced("Import", list(IMPORTS))),
    )


def all_views(board: BoardReader) -> dict[str, str | None]:
    jobs = [*(f"feed{n}" for n in range(COUNT)), *(f"alerts{n}" for n in range(COUNT)), "late"]
    return {job: board.version(pe(job)) for job in jobs}


def expected(*more: ImportApplied) -> dict[str, str | None]:
    board = Board()
    board.handle_all((synced("Export", list(EXPORTS)), synced("Import", list(IMPORTS)), *more))
    return all_views(board.reader)


async def test_others_have_their_turn_while_lists_are_taken_in(runtime: Runtime) -> None:
    loading = asyncio.ensure_future(both(runtime))
    turns = 0
    while not loading.done():
        await asyncio.sleep(0)
        turns += 1

    assert turns > 4 * COUNT
    assert all_views(runtime.board) == expected()


async def test_there_are_no_views_until_all_of_them_are_there(runtime: Runtime) -> None:
    loading = asyncio.ensure_future(both(runtime))
    while not runtime.board.synced:
        assert not loading.done()
        await asyncio.sleep(0)

    assert all_views(runtime.board) == expected()
    await loading


@pytest.mark.parametrize("turns", range(0, 6 * COUNT, 7))
async def test_what_the_feed_tells_meanwhile_comes_after_the_list(
    runtime: Runtime, turns: int
) -> None:
    loading = asyncio.ensure_future(both(runtime))
    for _ in range(turns):
        await asyncio.sleep(0)
    news = ImportApplied(import_=LATE, version=2)
    runtime.feed.deliver(news)
    await loading

    assert all_views(runtime.board) == expected(news)
    assert len(runtime.board.routes_of("Import", "late")) == COUNT


@pytest.mark.parametrize("turns", range(0, 4 * COUNT, 7))
async def test_a_feed_that_is_cut_does_not_leave_half_a_list(runtime: Runtime, turns: int) -> None:
    loading = asyncio.ensure_future(both(runtime))
    for _ in range(1 + turns):
        await asyncio.sleep(0)
    loading.cancel()
    await asyncio.gather(loading, return_exceptions=True)
    await both(runtime)

    assert all_views(runtime.board) == expected()
    assert runtime.board.holder("Import", IMPORTS[0].key) is IMPORTS[0]
