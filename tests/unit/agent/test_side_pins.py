"""Pins: which version of a table a micro-batch has, who chooses it, and how long it is kept."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from pe_agent.aligned.control_source import ControlReader
from pe_agent.side.map_partitions import PartitionJoiner
from pe_agent.side.tables import pins
from pe_agent.side.tables import store as tables_module
from pe_agent.side.tables.announcements import CONTROL_FILE, VersionOffsets
from pe_agent.side.tables.cache import cached_tables_for
from pe_agent.side.tables.pins import LOCK, PINS, SEEN_FILE, MicroBatch, current_batch, pin_for
from pe_agent.side.tables.versions import JOURNAL, Versions, read_version, sorted_path, version_path
from streambroker.side import PinError, Table, TableError, TableStore
from streambroker_core.side import SideInput, SideJoin
from streambroker_core.side.errors import SideError, SideVersionError
from support.sides.rates import RATES, RecordingAgent, put_rates

TRADES = pa.schema([("id", pa.string()), ("currency", pa.string())])


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TableStore]:
    monkeypatch.setattr(tables_module, "_CLEAN_SECONDS", 1e6)  # here it is cleaned by hand
    with TableStore(tmp_path / "store") as made:
        yield made


def rates(**reported: Any) -> SideInput:
    return SideInput(
        name="rates", kind="map", key=("currency",), schema=RATES, static=True, **reported
    )


def bound(store: TableStore, tmp_path: Path) -> Table:
    """Return a table that rows without state meet, with its first version."""
    put_rates(tmp_path / "in", USD=2.0, EUR=1.0)
    table = store.folder("rates", tmp_path / "in", every=None)
    table.bind_stateless(rates())
    return table


def change(table: Table, tmp_path: Path) -> str:
    """Write one more version; return its name."""
    put_rates(tmp_path / "in", USD=2.0, EUR=time.monotonic())
    return table.refresh().version


def batch(number: int, query: str = "q", run: str = "r") -> MicroBatch:
    return MicroBatch(query=query, run=run, number=number)


def pinned(table: Table, number: int, query: str = "q", run: str = "again") -> str:
    """Return the version of a micro-batch, as a process sees it that has seen none."""
    pins._PIN_CACHE.clear()
    return pin_for(table.folder, batch(number, query, run)).version


def files(table: Table, query: str = "q") -> list[str]:
    """Return the files of the pins of a query."""
    return [path.name for path in (table.folder / PINS / query).iterdir() if path.name != SEEN_FILE]


def there(table: Table) -> list[int]:
    """Return the micro-batches of query q that are pinned."""
    return sorted(int(name) for name in files(table))


# -- which version ---------------------------------------------------------------------------


def test_a_micro_batch_has_the_newest_version_of_when_it_began_for_good(
    store: TableStore, tmp_path: Path
) -> None:
    table = bound(store, tmp_path)
    first = table.state().version
    assert pinned(table, 0) == first
    second = change(table, tmp_path)
    assert (pinned(table, 0), pinned(table, 1), pinned(table, 0)) == (first, second, first)
    assert pinned(table, 0, query="other") == second


def test_of_two_tasks_that_choose_at_once_the_later_one_takes_what_the_first_chose(
    store: TableStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = bound(store, tmp_path)
    first, newest, others = table.state().version, pins.newest_version, []

    def meanwhile(folder: Path) -> Any:
        monkeypatch.setattr(pins, "newest_version", newest)
        others.append(pin_for(folder, batch(0, run="other")).version)
        change(table, tmp_path)
        return newest(folder)

    monkeypatch.setattr(pins, "newest_version", meanwhile)
    assert (pin_for(table.folder, batch(0)).version, others) == (first, [first])


def test_tasks_that_race_with_changes_and_cleaning_see_one_version_that_is_there(
    store: TableStore, tmp_path: Path
) -> None:
    """Each thread stands for a process: it has a run of its own, and so knows no pin before."""
    table = bound(store, tmp_path)
    seen: list[set[str]] = [set() for _ in range(60)]
    begin, done = threading.Barrier(4), threading.Event()
    failed: list[BaseException] = []

    def task(run: str) -> None:
        try:
            for number, versions in enumerate(seen):
                begin.wait(20.0)
                pin = pin_for(table.folder, batch(number, run=run))
                assert read_version(table.folder, pin.version).num_rows == 2
                versions.add(pin.version)
        except BaseException as error:
            failed.append(error)
            begin.abort()

    def driver() -> None:
        while not done.is_set():
            change(table, tmp_path)
            store.clean()

    threads = [threading.Thread(target=task, args=(f"{n}",)) for n in range(4)]
    cleaner = threading.Thread(target=driver)
    for thread in (*threads, cleaner):
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    cleaner.join()
    assert failed == []
    assert {len(versions) for versions in seen} == {1}
    assert len(set.union(*seen)) > 1, "the table has changed meanwhile"


def test_no_version_goes_while_a_task_chooses_it(
    store: TableStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = bound(store, tmp_path)
    newest = pins.newest_version

    def meanwhile(folder: Path) -> Any:
        found = newest(folder)
        change(table, tmp_path)
        store.clean()
        return found

    monkeypatch.setattr(pins, "newest_version", meanwhile)
    version = pin_for(table.folder, batch(0)).version
    assert version != table.state().version
    store.clean()
    assert version_path(table.folder, version).exists()
    assert table.state().kept == (version, table.state().version)


def test_a_task_chooses_while_nothing_is_removed(store: TableStore, tmp_path: Path) -> None:
    """The lock is held alone until the versions are gone."""
    table = bound(store, tmp_path)
    clean, held = Versions.clean, []

    def look(self: Versions, *of: Any) -> list[str]:
        with (table.folder / PINS / LOCK).open("a+b") as file:
            with pytest.raises(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            held.append(True)
        return clean(self, *of)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Versions, "clean", look)
        store.clean()
    assert held == [True]


def test_a_task_reads_the_pin_once_for_a_micro_batch_and_again_for_another_run(
    store: TableStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = bound(store, tmp_path)
    read, count = pins._read_pin, []

    def counted(*of: Any) -> Any:
        count.append(of)
        return read(*of)

    pin_for(table.folder, batch(0))
    monkeypatch.setattr(pins, "_read_pin", counted)
    for _ in range(3):
        pin_for(table.folder, batch(0))
    assert count == []
    pin_for(table.folder, batch(0, run="next"))
    assert len(count) == 1


# -- what is kept ----------------------------------------------------------------------------


def test_versions_stay_while_the_micro_batch_that_has_them_may_run_again(
    store: TableStore, tmp_path: Path
) -> None:
    table = bound(store, tmp_path)
    names = [pinned(table, 0)]
    for number in (1, 2, 3):
        names.append(change(table, tmp_path))
        change(table, tmp_path)  # nobody has this one
        assert pinned(table, number) == table.state().version
        names[-1] = table.state().version
    change(table, tmp_path)
    store.clean()
    assert there(table) == [2, 3]
    assert table.state().kept == (names[2], names[3], table.state().version)
    assert sorted_path(table.folder, names[2], rates()).exists()


def test_each_query_keeps_its_own_and_one_that_is_not_heard_of_none(tmp_path: Path) -> None:
    with TableStore(tmp_path / "store", grace=60.0) as store:
        table = bound(store, tmp_path)
        first = pinned(table, 5, query="slow")
        second = change(table, tmp_path)
        pinned(table, 9)
        change(table, tmp_path)
        store.clean()
        assert table.state().kept == (first, second, table.state().version)
        old = table.folder / PINS / "slow" / "5"
        for path in old.parent.iterdir():
            os.utime(path, (0, time.time() - 61.0))
        store.clean()
        assert not old.parent.exists()
        assert table.state().kept == (second, table.state().version)


def test_a_query_with_state_and_one_without_keep_each_its_versions(
    store: TableStore, tmp_path: Path
) -> None:
    table = bound(store, tmp_path)
    table.bind(rates())
    reader = ControlReader(VersionOffsets(store.path / CONTROL_FILE))
    reader.latestOffset(reader.latestOffset(reader.initialOffset(), None), None)
    first, second = table.state().version, change(table, tmp_path)
    assert pinned(table, 0) == second
    third = change(table, tmp_path)
    store.clean()
    assert table.state().kept == (first, second, third)
    for number in (1, 2):
        pinned(table, number)
    store.clean()
    assert table.state().kept == (first, third)


def test_a_checkpoint_that_was_put_back_keeps_what_its_micro_batch_has(
    store: TableStore, tmp_path: Path
) -> None:
    """Its micro-batch is not among the last ones by number; a replay of it still sees the same."""
    table = bound(store, tmp_path)
    for number in (7, 8):
        pinned(table, number)
    version = change(table, tmp_path)
    assert pinned(table, 3) == version
    change(table, tmp_path)
    store.clean()
    assert there(table) == [3, 7, 8]
    assert pinned(table, 3) == version


def test_a_task_of_long_ago_takes_nothing_from_the_micro_batch_of_now(
    store: TableStore, tmp_path: Path
) -> None:
    table = bound(store, tmp_path)
    version = pinned(table, 8)
    change(table, tmp_path)
    for number in (2, 3, 4):
        pinned(table, number)
    store.clean()
    assert pinned(table, 8) == version


def test_pins_are_there_when_the_store_is_opened_again(tmp_path: Path) -> None:
    with TableStore(tmp_path / "store") as store:
        table = bound(store, tmp_path)
        first = pinned(table, 0)
    put_rates(tmp_path / "in", EUR=7.0)
    with TableStore(tmp_path / "store") as store:
        table = store.folder("rates", tmp_path / "in", every=None)
        assert table.state().version != first
        store.clean()
        assert pinned(table, 0) == first
        assert read_version(table.folder, first)["rate"].to_pylist() == [2.0, 1.0]


class Killed(BaseException):
    """Ends what is being done where it stands, as a kill does."""


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_task_that_is_killed_while_it_pins_leaves_a_whole_pin_or_none(
    store: TableStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    table = bound(store, tmp_path)
    link, first = os.link, table.state().version

    def kill(*of: Any) -> None:
        if after:
            link(*of)
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(os, "link", kill)
        patched.setattr(Path, "unlink", lambda *_, **__: None)  # nor does it clear up
        with pytest.raises(Killed):
            pinned(table, 0)
    second = change(table, tmp_path)
    assert pinned(table, 0) == (first if after else second)
    store.clean()
    assert files(table) == ["0"]


# -- before a version is taken ---------------------------------------------------------------


def test_a_version_is_listed_when_all_that_belongs_to_it_is_there(
    store: TableStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task takes what the list has; each worker would sort what has no copy in order of keys."""
    table = bound(store, tmp_path)
    write, listed = Versions._write_journal, []

    def look(self: Versions, kept: list[Any]) -> None:
        listed.append(sorted_path(table.folder, kept[-1].name, rates()).exists())
        write(self, kept)

    monkeypatch.setattr(Versions, "_write_journal", look)
    change(table, tmp_path)
    assert listed == [True]


def test_what_cannot_be_used_is_no_version_for_rows_without_state(
    store: TableStore, tmp_path: Path
) -> None:
    put_rates(tmp_path / "in", EUR=1.0)
    table = store.folder("rates", tmp_path / "in", every=None)
    table.bind_stateless(rates(max_entries=2))
    table.bind_stateless(rates())
    before = table.state().version
    put_rates(tmp_path / "in", EUR=1.0, USD=2.0, CHF=3.0)
    with pytest.raises(TableError, match=r"rows of a version: 3, the limit is 2.*[^.]\.$"):
        table.refresh()
    assert pinned(table, 0) == before
    with pytest.raises(SideError, match="rows of a version: 1, the limit is 0"):
        table.bind_stateless(rates(max_entries=0))
    assert not (store.path / "control").read_bytes().splitlines()[1:], "nothing is announced"


# -- where it cannot be told -----------------------------------------------------------------


def test_a_worker_that_does_not_see_the_store_says_so_and_makes_nothing(tmp_path: Path) -> None:
    away = tmp_path / "store" / "rates"
    with pytest.raises(
        PinError, match=r"pins/lock does not exist, or this worker does not see it; "
    ):
        pin_for(away, batch(0))
    assert list(tmp_path.iterdir()) == []


def test_a_worker_that_cannot_write_says_so(
    store: TableStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = bound(store, tmp_path)

    def refuse(*_: Any) -> None:
        raise PermissionError("read-only file system")

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(
        PinError, match="q/0 cannot be loaded here: read-only file system; let every"
    ):
        pinned(table, 0)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            '{"version',
            "q/0 is damaged: .*; stop the query and delete it, and the micro-batch uses",
        ),
        ('{"v": 2}', "q/0 has form 2, of a newer release; this reads 1; start that one"),
    ],
)
def test_a_pin_that_cannot_be_read_is_named_and_no_version_goes(
    store: TableStore, tmp_path: Path, text: str, why: str
) -> None:
    table = bound(store, tmp_path)
    first = pinned(table, 0)
    (table.folder / PINS / "q" / "0").write_text(text)
    with pytest.raises(PinError, match=why):
        pinned(table, 0)
    change(table, tmp_path)
    put_rates(tmp_path / "other", USD=1.0)
    other = store.folder("other", tmp_path / "other", every=None)
    put_rates(tmp_path / "other", USD=2.0)
    other.refresh()
    with pytest.raises(PinError, match=why):
        store.clean()
    assert table.state().kept == (first, table.state().version)
    assert other.state().kept == (other.state().version,)


def test_a_query_that_asks_for_a_pin_of_long_ago_keeps_it(
    store: TableStore, tmp_path: Path
) -> None:
    table = bound(store, tmp_path)
    first = pinned(table, 0)
    change(table, tmp_path)
    for path in (table.folder / PINS / "q").iterdir():
        os.utime(path, (0, 0))
    assert pinned(table, 0, run="restarted") == first
    store.clean()
    store.clean()
    assert pinned(table, 0, run="restarted") == first
    for path in (table.folder / PINS / "q").iterdir():
        os.utime(path, (0, 0))
    store.clean()
    assert pinned(table, 0, run="later") == table.state().version


def test_a_version_that_cannot_be_made_ready_leaves_nothing(
    store: TableStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = bound(store, tmp_path)
    before = sorted(table.folder.glob("*.arrow"))

    def fail(*_: Any) -> None:
        raise MemoryError("too many rows to sort")

    monkeypatch.setattr(table, "_prepare", fail)
    put_rates(tmp_path / "in", USD=3.0)
    with pytest.raises(TableError, match="too many rows to sort"):
        table.refresh()
    assert sorted(table.folder.glob("*.arrow")) == before


def test_a_task_of_no_query_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as rows of foreachBatch in another thread: each of its tasks would take the newest."""
    from pyspark import TaskContext

    reported = {"sql.streaming.queryId": "q", "spark.jobGroup.id": "r"}
    context = SimpleNamespace(getLocalProperty=reported.get)
    monkeypatch.setattr(TaskContext, "get", lambda: context)
    with pytest.raises(
        PinError, match="its task belongs to none; process the rows of foreachBatch in"
    ):
        current_batch()
    reported["streaming.sql.batchId"] = "4"
    assert current_batch() == batch(4)


# -- rows ------------------------------------------------------------------------------------


def meeting(table: Table, agent: Any = None) -> PartitionJoiner:
    join = SideJoin(schema=TRADES, inputs=(rates(),), stateless=True)

    def see(batch: pa.RecordBatch, views: Any) -> pa.RecordBatch:
        return batch.append_column("v", pa.array([views["rates"].version] * batch.num_rows))

    return PartitionJoiner(
        join=join, function=see, tables=cached_tables_for({"rates": table}), reporter=agent
    )


def at(monkeypatch: pytest.MonkeyPatch, number: int, run: str = "r") -> None:
    """Be a task of a micro-batch."""
    monkeypatch.setattr(
        "pe_agent.side.map_partitions.current_batch", lambda: batch(number, run=run)
    )


ROWS = pa.record_batch({"id": ["a"], "currency": ["EUR"]}, schema=TRADES)


def test_all_batches_of_a_micro_batch_see_its_version_and_those_of_the_next_another(
    store: TableStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, agent = bound(store, tmp_path), RecordingAgent()
    first, meet, task = table.state().version, meeting(table, agent), meeting(table, agent)
    seen = []
    for number, one in ((0, meet), (0, meet), (0, task), (1, meet)):
        at(monkeypatch, number)
        seen += [rows["v"][0].as_py() for rows in one(ROWS)]
        last = change(table, tmp_path)
    assert (seen[:3], seen[3] not in (first, last)) == ([first] * 3, True)
    assert [(bucket, window) for bucket, window, _ in agent.given] == [(0, 0), (0, 1)]
    ((side,), (later,)) = (sides for _, _, sides in agent.given)
    assert (side.operator, side.input, side.entries, side.version) == ("join", "rates", 2, first)
    assert (side.size > 0, later.version, side.windows) == (True, seen[3], 1)
    assert side.version_since is not None
    assert abs(side.version_since / 1e6 - time.time()) < 60.0


def test_a_task_without_rows_asks_for_no_version(
    store: TableStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = bound(store, tmp_path)
    at(monkeypatch, 0)
    assert list(meeting(table)(ROWS.slice(0, 0))) == []
    assert list((table.folder / PINS).iterdir()) == []


def test_a_pinned_version_that_is_gone_is_named_with_what_to_do(
    store: TableStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = bound(store, tmp_path)
    first = pinned(table, 0)
    change(table, tmp_path)
    version_path(table.folder, first).unlink()
    sorted_path(table.folder, first, rates()).unlink()
    at(monkeypatch, 0)
    with pytest.raises(SideVersionError) as failed:
        list(meeting(table)(ROWS))
    reported = str(failed.value)
    assert (
        f"version {first} cannot be read: {version_path(table.folder, first)} does not exist"
        in reported
    )
    pin = table.folder / PINS / "q" / "0"
    assert f"pinned it, see {pin}: stop the query and restore its file" in reported
    (table.folder / PINS / "q" / "0").unlink()
    at(monkeypatch, 0, run="next")
    (rows,) = meeting(table)(ROWS)
    assert rows["v"].to_pylist() == [table.state().version]


def test_outside_of_tasks_the_newest_version_is_seen(store: TableStore, tmp_path: Path) -> None:
    table = bound(store, tmp_path)
    (rows,) = meeting(table)(ROWS)
    assert rows["v"].to_pylist() == [table.state().version]
    assert (table.folder / JOURNAL).exists()
    assert list((table.folder / PINS).iterdir()) == []
