"""A store of tables over failures: of the disk, of a reader's file, of the driver at any step."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pe_agent.aligned.control_source import ControlReader
from pe_agent.log.line_tail import Lines
from pe_agent.side.tables import store as tables_module
from pe_agent.side.tables import versions as versions_module
from pe_agent.side.tables.announcements import READERS, VersionOffsets
from pe_agent.side.tables.cache import CachedTables
from pe_agent.side.tables.versions import Versions, read_version, version_path
from streambroker.operators import ControlFile
from streambroker.side import Table, TableError, TableStore
from streambroker_core.side import SideInput
from streambroker_core.side.errors import SideDefinitionError, SideVersionError
from support.processes.waiting import until
from support.sides.rates import RATES, put_rates


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TableStore]:
    with TableStore(tmp_path / "store") as made:
        yield made


def rates(name: str = "rates") -> SideInput:
    return SideInput(name=name, kind="map", key=("currency",), schema=RATES, static=True)


def content(table: Table, version: str) -> dict[str, float]:
    found = read_version(table.folder, version, rates())
    return dict(zip(*(column.to_pylist() for column in found.columns), strict=True))


def announced(store: TableStore) -> list[str]:
    return [str(one.payload["version"]) for one in store.control.tuples()]


@pytest.mark.parametrize("name", ["control", "readers", "lock", "a-b", ""])
def test_a_table_has_a_name_that_nothing_else_in_the_folder_has(
    store: TableStore, tmp_path: Path, name: str
) -> None:
    """What is not a version is removed from the folder of a table: of `readers`, all of it."""
    put_rates(tmp_path / "in", EUR=1.0)
    with pytest.raises(TableError, match="use a name of letters, digits and _ that is not in use"):
        store.folder(name, tmp_path / "in")


def test_addresses_are_no_folders(store: TableStore) -> None:
    """Else a folder of that name would be made here, and no worker would see it."""
    with pytest.raises(TableError, match="a store is a folder that driver and workers see as fil"):
        TableStore("s3://bucket/side")
    with pytest.raises(TableError, match=r"store.frame\('rates', lambda: spark.read"):
        store.folder("rates", "hdfs://name/rates")


def test_a_worker_that_does_not_see_the_store_says_so(tmp_path: Path) -> None:
    shelves = CachedTables(folders={"rates": str(tmp_path)})
    with pytest.raises(SideVersionError, match=r"v1-0\.arrow does not exist, or this worker"):
        shelves(rates(), "v1-0")


def test_one_side_input_of_a_name_is_one_table_of_a_store(
    store: TableStore, tmp_path: Path
) -> None:
    """Announcements say the name alone: a query would look for a version in the other's folder."""
    put_rates(tmp_path / "in", EUR=1.0)
    first, second = (store.folder(name, tmp_path / "in", every=None) for name in ("a", "b"))
    first.bind(rates())
    with pytest.raises(SideDefinitionError, match="table a of the same store is a side input of"):
        second.bind(rates())
    second.bind(rates("more"))
    assert len(announced(store)) == 2


def test_a_version_whose_announcement_failed_is_announced_with_the_next_look(
    store: TableStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_rates(tmp_path / "in", EUR=1.0)
    table = store.folder("rates", tmp_path / "in", every=None)
    table.bind(rates())
    append = store.control.append

    def full(*_: Any, **__: Any) -> Any:
        raise OSError("no space left")

    monkeypatch.setattr(store.control, "append", full)
    put_rates(tmp_path / "in", EUR=2.0)
    table.poll()
    assert "no space left" in (table.state().error or "")
    assert len(announced(store)) == 1
    monkeypatch.setattr(store.control, "append", append)
    table.poll()
    assert table.state().error is None
    assert announced(store)[1:] == [table.state().version]
    table.poll()
    assert len(announced(store)) == 2


def test_tables_are_looked_at_again_after_a_folder_was_away(
    store: TableStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that reads them lives on, whatever it meets."""
    failed: list[float] = []

    def away(table: Table, now: float) -> bool:
        if len(failed) < 3:
            failed.append(now)
            raise OSError("stale file handle")
        return due(table, now)

    due = Table.is_due
    monkeypatch.setattr(tables_module, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(Table, "is_due", away)
    put_rates(tmp_path / "in", EUR=1.0)
    table = store.folder("rates", tmp_path / "in", every=0.1)
    put_rates(tmp_path / "in", EUR=2.0)
    until(lambda: content(table, table.state().version) == {"EUR": 2.0}, 20.0, "the new version")
    assert len(failed) == 3


def test_a_database_that_does_not_answer_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other tables are read meanwhile; the store can be closed, and what comes later is dropped."""
    monkeypatch.setattr(tables_module, "CLOSE_SECONDS", 0.3)
    answers, asked = threading.Event(), threading.Event()
    path = str(tmp_path / "db")

    def connect() -> sqlite3.Connection:
        if threading.current_thread() is not threading.main_thread():
            asked.set()
            answers.wait(20.0)
        return sqlite3.connect(path)

    put_rates(tmp_path / "in", EUR=1.0)
    with TableStore(tmp_path / "store") as store:
        slow = store.query("slow", connect, "select 'EUR' as currency, random() as rate", every=0.1)
        quick = store.folder("quick", tmp_path / "in", every=0.1)
        assert asked.wait(20.0)
        put_rates(tmp_path / "in", EUR=2.0)
        until(
            lambda: content(quick, quick.state().version) == {"EUR": 2.0}, 20.0, "the new version"
        )
    before = Versions(slow.folder).retained
    answers.set()
    until(lambda: "is closed" in (slow.state().error or ""), 20.0, "the late answer")
    assert Versions(slow.folder).retained == before


def test_versions_are_kept_for_a_query_whose_file_is_damaged(tmp_path: Path) -> None:
    put_rates(tmp_path / "in", EUR=1.0)
    with TableStore(tmp_path / "store", grace=60.0) as store:
        table = store.folder("rates", tmp_path / "in", every=None)
        table.bind(rates())
        (store.path / READERS).mkdir()
        damaged = store.path / READERS / "one.json"
        damaged.write_text('{"next"')
        for value in (2.0, 3.0):
            put_rates(tmp_path / "in", EUR=value)
            table.refresh()
        store.clean()
        assert len(table.state().kept) == 3
        os.utime(damaged, (0, time.time() - 61.0))
        store.clean()
        assert len(table.state().kept) == 1
        assert not damaged.exists()


def versions_of(part: Any) -> list[str]:
    return [json.loads(line)["payload"]["version"] for line in part.value]


def begun(store: TableStore, tmp_path: Path) -> tuple[Table, ControlReader, dict[str, Any]]:
    """Return a table with one version, a reader, and its offset behind that version."""
    put_rates(tmp_path / "in", EUR=0.0)
    table = store.folder("rates", tmp_path / "in", every=None)
    table.bind(rates())
    reader = ControlReader(VersionOffsets(store.path / "control"))
    return table, reader, reader.latestOffset(reader.initialOffset(), None)


def test_a_query_that_stands_keeps_two_versions_and_not_all_that_came_since(
    store: TableStore, tmp_path: Path
) -> None:
    """That of its last window, and the last one of the window that it may have to run again."""
    table, reader, done = begun(store, tmp_path)
    names = [table.state().version]
    for value in range(1, 6):
        put_rates(tmp_path / "in", EUR=float(value))
        names.append(table.refresh().version)
        if value == 3:
            planned = reader.latestOffset(done, None)
    store.clean()
    assert table.state().kept == (names[0], names[3], names[5])
    (part,) = reader.partitions(done, planned)
    assert versions_of(part) == [names[3]]
    assert content(table, names[3]) == {"EUR": 3.0}
    assert not version_path(table.folder, names[4]).exists()
    reader.latestOffset(planned, None)
    store.clean()
    assert table.state().kept == (names[3], names[5])
    again = Versions(table.folder)
    assert [one.name for one in again.retained] == [names[3], names[5]]


def test_a_driver_that_starts_again_keeps_what_queries_need_that_do_not_run_yet(
    tmp_path: Path,
) -> None:
    """Between the table and the query that has it as a side input much may happen."""
    with TableStore(tmp_path / "store") as store:
        table, _, _ = begun(store, tmp_path)
        names = [table.state().version]
        for value in (1.0, 2.0):
            put_rates(tmp_path / "in", EUR=value)
            names.append(table.refresh().version)
    with TableStore(tmp_path / "store") as store:
        table = store.folder("rates", tmp_path / "in", every=None)
        store.clean()
        assert table.state().kept == (names[0], names[2])
        for path in (store.path / READERS).iterdir():
            path.unlink()
        store.clean()
        assert table.state().kept == (names[2],)


@pytest.mark.parametrize("once", [False, True], ids=["on and on", "available now"])
def test_a_version_that_a_window_is_about_to_have_stays_while_the_next_one_comes(
    store: TableStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, once: bool
) -> None:
    """However announcement and removal fall between the steps in which an offset is made."""
    table, reader, done = begun(store, tmp_path)
    put_rates(tmp_path / "in", EUR=1.0)
    table.refresh()
    count = Lines.count
    values = iter(range(2, 9))

    here = threading.get_ident()

    def meanwhile(self: Lines) -> int:
        found = count(self)
        if threading.get_ident() != here:  # the store counts requests of its own
            return found
        put_rates(tmp_path / "in", EUR=float(next(values)))
        table.refresh()
        store.clean()
        return found

    with monkeypatch.context() as patched:
        patched.setattr(Lines, "count", meanwhile)
        if once:
            reader.prepareForTriggerAvailableNow()
        planned = reader.latestOffset(done, None)
    store.clean()
    (part,) = reader.partitions(done, planned)
    for version in versions_of(part):
        assert version in table.state().kept
    if once:
        assert reader.latestOffset(planned, None) == planned


def test_a_store_that_is_closed_leaves_its_folder_to_others(tmp_path: Path) -> None:
    put_rates(tmp_path / "in", EUR=1.0)
    with TableStore(tmp_path / "store") as store:
        table = store.folder("rates", tmp_path / "in", every=None)
    for use in (table.refresh, lambda: table.bind(rates())):
        with pytest.raises(TableError, match="is closed; open it again"):
            use()
    assert announced(store) == []


class Killed(BaseException):
    """Ends what is being done where it stands, as a kill does."""


STEPS: dict[str, tuple[Any, str]] = {
    "the version is to be written": (versions_module, "_write_table"),
    "its digest is to be taken": (versions_module, "_sync_and_digest"),
    "it is to be listed": (Versions, "_write_journal"),
    "its sorted copy is to be written": (Versions, "write_sorted"),
    "it is to be announced": (ControlFile, "append"),
    "it is to be noted as announced": (Versions, "record_announcement"),
}


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_a_driver_that_ends_at_any_step_leaves_versions_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, after: bool
) -> None:
    """What was announced is there as it was; the next driver announces what was not."""
    monkeypatch.setattr(tables_module, "_CLEAN_SECONDS", 1e6)  # no query asks for the first one
    put_rates(tmp_path / "in", USD=1.0, EUR=1.0)
    with TableStore(tmp_path / "store") as store:
        table = store.folder("rates", tmp_path / "in", every=None)
        table.bind(rates())
        first = table.state().version
        put_rates(tmp_path / "in", USD=2.0, EUR=2.0)
        owner, name = STEPS[step]
        real = getattr(owner, name)

        def kill(*of: Any, **reported: Any) -> Any:
            if after:
                real(*of, **reported)
            raise Killed

        with monkeypatch.context() as patched:
            patched.setattr(owner, name, kill)
            with pytest.raises(Killed):
                table.poll()
        for version in announced(store):
            assert len(content(table, version)) == 2
    with TableStore(tmp_path / "store") as store:
        table = store.folder("rates", tmp_path / "in", every=None)
        table.bind(rates())
        second = table.state().version
        assert (content(table, first), content(table, second)) == (
            {"USD": 1.0, "EUR": 1.0},
            {"USD": 2.0, "EUR": 2.0},
        )
        assert list(dict.fromkeys(announced(store))) == [first, second]
        listed = {
            one["name"] for one in json.loads((table.folder / "versions.json").read_text())["kept"]
        }
        assert {version_path(table.folder, one) for one in listed} == set(
            table.folder.glob("*.arrow")
        )
        reader = ControlReader(VersionOffsets(store.path / "control"))
        start = reader.initialOffset()
        (part,) = reader.partitions(start, reader.latestOffset(start, None))
        assert versions_of(part) == [second]
