"""A database file that is damaged, or that lost what was in it."""

from __future__ import annotations

import logging
import sqlite3
from pathlib import Path

import pytest

from streambroker_operator.broker import Broker
from streambroker_operator.errors import StoreError
from streambroker_operator.storage.sqlite_store import Store
from support.core.resources import export_of, import_of, pe, registration

EXPORT, IMPORT = "Export default/feed/0/trades", "Import default/alerts/0/in"


async def written(path: Path) -> Path:
    store = Store(path)
    store.ports.put(export_of())
    store.ports.put(import_of("alerts/in"))
    await store.register(pe("feed"), registration())
    store.close()
    return path


def execute(path: Path, *statements: str) -> None:
    db = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        db.execute(statement)
    db.close()


@pytest.mark.parametrize(
    ("statement", "table", "named"),
    [
        ("UPDATE resources SET spec = '{' WHERE kind = 'Export'", "resources", EXPORT),
        ("UPDATE resources SET spec = '[]' WHERE kind = 'Import'", "resources", IMPORT),
        ("UPDATE resources SET spec = x'00ff' WHERE kind = 'Import'", "resources", IMPORT),
        ("UPDATE resources SET generation = 'x' WHERE kind = 'Import'", "resources", IMPORT),
        ("UPDATE resources SET created = 'x' WHERE kind = 'Import'", "resources", IMPORT),
        (
            "UPDATE resources SET pe = 'x' WHERE kind = 'Import'",
            "resources",
            "Import default/alerts/x/in",
        ),
        (
            "UPDATE resources SET kind = 'Inport' WHERE kind = 'Import'",
            "resources",
            "Inport default/alerts/0/in",
        ),
        ("UPDATE pes SET location = 'x' WHERE job = 'feed'", "pes", "PE default/feed/0"),
        ("UPDATE pes SET pe = 'x' WHERE job = 'feed'", "pes", "PE default/feed/x"),
        ("UPDATE meta SET value = 5 WHERE name = 'secret'", "meta", "the secret"),
        ("UPDATE meta SET value = 'x' WHERE name = 'version'", "meta", "the version"),
        (
            "INSERT INTO rules VALUES ('default', 'alerts', 'r', 'u', 'n', 1, 1.0, 9, '{')",
            "rules",
            "rule default/alerts/r",
        ),
    ],
)
async def test_a_damaged_row_is_named_by_file_table_and_resource(
    tmp_path: Path, statement: str, table: str, named: str
) -> None:
    path = await written(tmp_path / "broker.db")
    execute(path, statement)
    with pytest.raises(StoreError) as refusal:
        await Broker(db=path, port=0).start()

    assert f"{path} is damaged: the row of {named} in the table {table}" in str(refusal.value)


async def test_a_damaged_page_is_reported_with_the_file(tmp_path: Path) -> None:
    path = await written(tmp_path / "broker.db")
    content = bytearray(path.read_bytes())
    content[4_096:] = b"\x7f" * (len(content) - 4_096)
    path.write_bytes(content)

    with pytest.raises(StoreError, match=str(path)):
        Store(path)


async def reported(path: Path, caplog: pytest.LogCaptureFixture) -> str:
    """Start a broker over a file; return what it warns of."""
    caplog.clear()
    broker = Broker(db=path, port=0)
    await broker.start()
    await broker.stop()
    return "\n".join(r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING)


@pytest.mark.parametrize("how", ["truncated", "deleted", "all tables"])
async def test_an_emptied_database_is_reported_once_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    path = await written(tmp_path / "broker.db")
    if how == "truncated":
        path.write_bytes(b"")
    elif how == "deleted":
        path.unlink()
    else:
        execute(path, *(f"DELETE FROM {table}" for table in ("meta", "resources", "pes")))

    first = await reported(path, caplog)
    assert f"{path} is another database than at the last start, with 0 exports and imports" in first
    assert await reported(path, caplog) == ""


async def test_resources_that_something_else_removed_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = await written(tmp_path / "broker.db")
    execute(path, "DELETE FROM resources")

    first = await reported(path, caplog)
    assert f"{path} has 0 exports and imports, and the broker left 2" in first
    assert await reported(path, caplog) == ""


async def test_a_file_as_it_was_left_is_not_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = await written(tmp_path / "broker.db")
    assert await reported(path, caplog) == ""
    store = Store(path)
    store.ports.delete("Export", export_of().key)
    store.close()
    assert await reported(path, caplog) == ""
    copy = path.rename(tmp_path / "elsewhere.db")
    assert await reported(copy, caplog) == ""
