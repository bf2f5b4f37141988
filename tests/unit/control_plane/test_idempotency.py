"""Answers that are kept: how many, and what a failure to keep one leaves behind."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from streambroker_operator.storage import responses as idempotency
from streambroker_operator.storage.responses import RequestKey, ResponseStore, StoredResponse


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(tmp_path / "db", isolation_level=None, timeout=0.05)
    connection.execute("PRAGMA synchronous = FULL")
    yield connection
    connection.close()


def named(id_: str) -> RequestKey:
    return RequestKey(principal="p", id=id_, digest=id_)


def synchronous(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA synchronous").fetchone()[0])


def test_changes_are_flushed_as_before_after_an_answer_could_not_be_kept(
    db: sqlite3.Connection, tmp_path: Path
) -> None:
    kept = ResponseStore(db, lambda: 1000.0)
    other = sqlite3.connect(tmp_path / "db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            kept.store(named("one"), 200, {}, b"{}")
    finally:
        other.close()

    assert synchronous(db) == 2
    assert not db.in_transaction
    kept.store(named("two"), 200, {}, b"{}")
    found = kept.find(named("two"))
    assert found is not None
    assert found.body == b"{}"


def test_of_more_answers_than_there_is_room_for_only_that_they_were_done_is_kept(
    db: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idempotency, "MAX_BYTES", 250)
    missing = StoredResponse(digest="", version=None, status=0, headers={}, body=b"")
    now = [1000.0]
    kept = ResponseStore(db, lambda: now[0])
    for id_ in ("a", "b", "c"):
        kept.store(named(id_), 200, {}, b"x" * 100)
    statuses = {id_: (kept.find(named(id_)) or missing).status for id_ in ("a", "b", "c")}
    now[0] += idempotency.RETENTION_S
    kept.store(named("d"), 200, {}, b"x" * 100)

    assert statuses == {"a": 200, "b": 200, "c": None}
    assert (kept.find(named("d")) or missing).status == 200
