"""The program of how-to/postgresql.md publishes the changes of a real table, over kills."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import streambroker as sb
from pe_agent.agent.process import read_address
from support.brokers.brokers import BrokerProcess
from support.processes.ports import free_port
from support.processes.waiting import until
from support.storage.postgresql import PostgresServer

PAGE = (Path(__file__).parents[2] / "docs/how-to/postgresql.md").read_text()
PROGRAM = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0].replace("sleep(1)", "sleep(0.1)")
SECONDS = 90.0
ROWS = 40
COUNT = "SELECT number + 1 FROM trade_batch"
MOVED = "SELECT confirmed_flush_lsn >= upto FROM pg_replication_slots, trade_batch"
HELD = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
Change = tuple[str, int, str | None, float | None]


class Publisher:
    """The program of the page in a process that is killed and started again."""

    def __init__(self, database: PostgresServer, folder: Path) -> None:
        self._database, self._folder = database, folder
        self._errors = folder / "errors.txt"
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "changes.py").write_text(PROGRAM)

    def replace(self, old: str, new: str) -> None:
        """Replace a part of the program."""
        assert PROGRAM.count(old) == 1
        (self._folder / "changes.py").write_text(PROGRAM.replace(old, new))

    def start(self) -> None:
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "changes.py", self._database.dsn],
                cwd=self._folder,
                stderr=errors,
            )

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def send_to_agent(self, number: int) -> None:
        address = read_address(self._folder / "home/trades-table/0")
        assert address is not None
        os.kill(address["pid"], number)

    def end(self) -> str:
        """Wait until the program ends by itself; return its errors."""
        assert self._process is not None
        assert self._process.wait(SECONDS) != 0
        self._process = None
        return self._errors.read_text()


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    found = PostgresServer()
    yield found
    found.close()


@pytest.fixture
def database(server: PostgresServer) -> Iterator[PostgresServer]:
    """A server with the table of the page, prepared by its statements."""
    try:
        server.start_empty()
        for block in re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL):
            for statement in filter(str.strip, block.split(";")):
                server.sql(statement)
        # Tests replace functions of the server by their own.
        server.sql("ALTER ROLE postgres SET search_path = public, pg_catalog")
        yield server
    finally:
        server.crash()


@pytest.fixture
def publisher(
    database: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Publisher]:
    broker = BrokerProcess(tmp_path / "broker.db", "--port", str(free_port()))
    monkeypatch.setenv("STREAMBROKER_URL", broker.url())
    monkeypatch.setenv("STREAMBROKER_HOME", str(tmp_path / "home"))
    program = Publisher(database, tmp_path)
    yield program
    program.kill()
    with suppress(ProcessLookupError):
        program.send_to_agent(signal.SIGKILL)
    broker.kill()


def wait_for_batch(database: PostgresServer, count: int) -> None:
    """Wait until the program wrote down that many batches."""
    until(lambda: database.sql(COUNT)[0][0] >= count, SECONDS, f"{count} batches")


def insert(database: PostgresServer, first: int, settings: str = "") -> None:
    """Insert rows, each in its own transaction."""
    database.sql(f"""
        DO $$ BEGIN FOR id IN {first}..{first + ROWS - 1} LOOP
            {settings} INSERT INTO trades VALUES (id); COMMIT;
        END LOOP; END $$
    """)


def read_until_marker(reader: sb.Reader) -> list[dict[str, Any]]:
    """Return all changes before the insert of the id -1."""
    found: list[dict[str, Any]] = []
    for batch in reader:
        found += batch.to_pylist()
        if found and found[-1]["id"] == -1:
            break
    return found[:-1]


def in_short(change: dict[str, Any]) -> Change:
    return change["op"], change["id"], change["symbol"], change["price"]


def test_each_change_comes_once_although_program_and_server_are_killed(
    database: PostgresServer, publisher: Publisher
) -> None:
    # A slot that moved may go back when the server crashes. Here it never moves, and the
    # program stops at the move after the batch of this number.
    database.sql("""
        CREATE FUNCTION public.pg_replication_slot_advance(slot name, moved pg_lsn)
        RETURNS text LANGUAGE plpgsql AS $$ BEGIN
            IF moved = (SELECT upto FROM trade_batch WHERE number = 2) THEN
                PERFORM pg_sleep(3600);
            END IF;
            RETURN NULL;
        END $$
    """)
    with sb.read('table == "trades"', job="copy", position={}) as reader:
        publisher.start()
        database.sql("INSERT INTO trades VALUES (1, 'A', 1.5), (2, 'B', NULL), (3, 'É', -2)")
        wait_for_batch(database, 1)
        database.sql("UPDATE trades SET price = 2.5 WHERE id = 1")
        wait_for_batch(database, 2)
        database.sql("DELETE FROM trades WHERE id = 2; UPDATE trades SET id = 4 WHERE id = 3")
        until(lambda: database.sql(HELD), SECONDS, "the program has published and moves the slot")
        publisher.kill()
        database.crash()
        database.start()
        database.sql("DROP FUNCTION public.pg_replication_slot_advance")
        database.sql("INSERT INTO trades VALUES (5, '', 0)")
        publisher.start()
        wait_for_batch(database, 4)
        database.crash()
        assert "psycopg2" in publisher.end()
        database.start()
        database.sql("TRUNCATE trades")
        publisher.start()
        wait_for_batch(database, 5)
        until(lambda: database.sql(MOVED)[0][0], SECONDS, "the program has moved the slot")
        publisher.send_to_agent(signal.SIGSTOP)
        database.sql("INSERT INTO trades VALUES (6)")
        wait_for_batch(database, 6)  # written down, but the agent publishes nothing
        publisher.kill()
        publisher.send_to_agent(signal.SIGCONT)
        publisher.start()
        database.sql("INSERT INTO trades VALUES (-1)")
        found = read_until_marker(reader)
    assert [in_short(change) for change in found] == [
        ("insert", 1, "A", 1.5),
        ("insert", 2, "B", None),
        ("insert", 3, "É", -2.0),
        ("update", 1, "A", 2.5),
        ("delete", 2, None, None),
        ("delete", 3, None, None),
        ("insert", 4, "É", -2.0),
        ("insert", 5, "", 0.0),
        ("truncate", None, None, None),
        ("insert", 6, None, None),
    ]
    assert [change["ordinal"] for change in found] == [0, 1, 2, 0, 0, 1, 2, 0, 0, 0]
    ends = [change["lsn"] for change in found]
    assert ends == sorted(ends)
    assert len(set(ends)) == 6


def test_a_commit_behind_the_changes_that_were_read_is_in_the_next_batch(
    database: PostgresServer, publisher: Publisher
) -> None:
    # When the program reads no change, a row is committed before its next statement.
    database.sql("""
        CREATE FUNCTION public.pg_logical_slot_peek_binary_changes(
            slot name, upto pg_lsn, most int, VARIADIC options text[]
        ) RETURNS TABLE (lsn pg_lsn, xid xid, data bytea) LANGUAGE plpgsql AS $$ BEGIN
            RETURN QUERY SELECT * FROM pg_catalog.pg_logical_slot_peek_binary_changes(
                slot, upto, most, VARIADIC options);
            IF NOT FOUND THEN
                INSERT INTO trades SELECT count(*) FROM trades HAVING count(*) < 2;
            END IF;
        END $$
    """)
    with sb.read('table == "trades"', job="copy", position={}) as reader:
        publisher.start()
        until(lambda: len(database.sql("TABLE trades")) == 2, SECONDS, "two rows")
        database.sql("INSERT INTO trades VALUES (-1)")
        found = read_until_marker(reader)
    assert [change["id"] for change in found] == [0, 1]


def test_a_commit_of_which_only_the_beginning_is_on_disk_is_published(
    database: PostgresServer, publisher: Publisher
) -> None:
    # PostgreSQL flushes its log to the end of a page, and the rest only some seconds later.
    database.sql("ALTER SYSTEM SET wal_writer_delay = '3s'")
    database.sql("SELECT pg_reload_conf()")
    with sb.read('table == "trades"', job="copy", position={}) as reader:
        publisher.start()
        database.sql("INSERT INTO trades VALUES (1)")
        wait_for_batch(database, 1)
        database.sql("""
            DO $$ BEGIN
                SET LOCAL synchronous_commit = off;
                INSERT INTO trades VALUES (2);
                -- Fill the page up, but for less than the record of a commit has.
                WHILE (pg_logical_emit_message(false, '', '') - '0/0') % 8192 < 8160 LOOP
                END LOOP;
            END $$
        """)
        ((end,),) = database.sql("SELECT pg_current_wal_insert_lsn()")
        flushed = f"SELECT pg_current_wal_flush_lsn() >= '{end}'"
        until(lambda: database.sql(flushed)[0][0], SECONDS, "the commit is on disk")
        database.sql("INSERT INTO trades VALUES (-1)")
        found = read_until_marker(reader)
    assert [change["id"] for change in found] == [1, 2]


def test_the_slot_moves_while_only_other_databases_change(
    database: PostgresServer, publisher: Publisher
) -> None:
    publisher.start()
    database.sql("CREATE TABLE other AS SELECT generate_series(1, 1000)", "template1")
    ((written,),) = database.sql("SELECT pg_current_wal_insert_lsn()")

    def moved() -> bool:
        database.sql("CHECKPOINT")  # the server does so in intervals
        kept = f"SELECT restart_lsn > '{written}' FROM pg_replication_slots"
        return bool(database.sql(kept)[0][0])

    until(moved, SECONDS, "PostgreSQL may delete what the other database has written")


@pytest.mark.slow
def test_each_row_comes_once_over_kills_at_any_time(
    database: PostgresServer, publisher: Publisher
) -> None:
    publisher.replace("10_000", "7")  # changes in a batch, about
    with sb.read('table == "trades"', job="copy", position={}) as reader:
        publisher.start()
        insert(database, 0)
        wait_for_batch(database, 1)
        # The server may lose these commits, and nothing of them may be published then.
        insert(database, ROWS, "SET LOCAL synchronous_commit = off;")
        database.crash()
        publisher.end()
        database.start()
        publisher.start()
        insert(database, 2 * ROWS)
        wait_for_batch(database, 10)
        publisher.kill()
        publisher.start()
        kept = [one for (one,) in database.sql("SELECT id FROM trades ORDER BY id")]
        database.sql("INSERT INTO trades VALUES (-1)")
        found = [change["id"] for change in read_until_marker(reader)]
    assert found == kept
    assert {*range(ROWS), *range(2 * ROWS, 3 * ROWS)} <= set(found)


def test_a_long_value_that_an_update_left_needs_the_full_identity(
    database: PostgresServer, publisher: Publisher
) -> None:
    value = random.Random(7).randbytes(8_000).hex()
    update = "UPDATE trades SET price = price + 1"
    with sb.read('table == "trades"', job="copy", position={}) as reader:
        database.sql("ALTER TABLE trades REPLICA IDENTITY FULL")
        database.sql(f"INSERT INTO trades VALUES (1, '{value}', 1)")
        database.sql(update)
        database.sql("INSERT INTO trades VALUES (-1)")
        publisher.start()
        found = read_until_marker(reader)
    assert [in_short(change) for change in found] == [
        ("insert", 1, value, 1.0),
        ("update", 1, value, 2.0),
    ]
    database.sql("ALTER TABLE trades REPLICA IDENTITY DEFAULT")
    database.sql(update)
    assert "REPLICA IDENTITY FULL" in publisher.end()
