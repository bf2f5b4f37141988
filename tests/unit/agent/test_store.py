"""The agent's state file: what it holds, and what it refuses."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from pe_agent.agent.state.store import Store, StoreError


def test_a_value_outlives_the_process(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    store = Store(path)
    store.set("key", "aa")
    store.close()
    again = Store(path)
    assert again.get("key") == "aa"
    assert again.get("nothing") is None
    again.close()


def test_a_transaction_that_fails_changes_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path / "state.sqlite")

    def half(durable: bool) -> None:
        with store.transaction(durable=durable) as db:
            db.execute("INSERT INTO meta VALUES ('half', '1')")
            raise ValueError("no")

    for durable in (False, True):
        with pytest.raises(ValueError, match="no"):
            half(durable)
        assert store.get("half") is None
    with store.transaction(durable=True) as db:
        db.execute("INSERT INTO meta VALUES ('whole', '1')")
    assert store.get("whole") == "1"
    store.close()


@pytest.mark.parametrize("found", ["3", "newest"])
def test_another_format_is_refused_by_name_and_nothing_is_written(
    tmp_path: Path, found: str
) -> None:
    path = tmp_path / "state.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL)")
        db.execute("INSERT INTO meta VALUES ('format', ?)", (found,))
    db.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match=f"format {found}"):
        Store(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["state.sqlite"]


def test_what_is_no_database_is_refused_with_its_path(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    path.write_bytes(b"no database " * 1000)
    with pytest.raises(StoreError, match=r"state\.sqlite cannot be used"):
        Store(path)


def test_states_come_back_as_they_were(tmp_path: Path) -> None:
    store = Store(tmp_path / "state.sqlite")
    store.write("INSERT INTO own_readers VALUES (?, ?)", "r", '{"a": [1, null]}')
    assert store.states("own_readers", "id") == {"r": {"a": [1, None]}}
    store.close()
