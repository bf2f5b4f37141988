"""A damaged row of an agent's state file stops the start, and the message says which one it is."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from pe_agent.agent.actions import job_actions
from pe_agent.agent.agent import Agent
from pe_agent.agent.state.store import StoreError
from streambroker_core.ledger.plan import PlanRequest
from streambroker_core.model import PeKey
from support.agents.exports import DDL, plan_one, rows

PE = PeKey.parse("default/feed/0")
KEY = f"{PE}/trades"
IMPORT = "default/alerts/0/trades"


def started(home: Path) -> Agent:
    return Agent(PE, home, progress=lambda *_: None)


def closed(hosts: Agent) -> None:
    hosts.notifier.close()
    hosts.close()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A data directory with a row in each table that is read at a start."""
    home = tmp_path / "agent"
    home.mkdir()
    hosts = started(home)
    job_actions(hosts).handle("declare", {"kind": "export", "port": "trades", "spec": None})
    export = hosts.exports.get("trades")
    export.set_routes({IMPORT: "wait"})
    export.set_routes({})
    assert export.publisher.admit(query="q", run="r", batch=0, ddl=DDL, renewed=None)["admitted"]
    batch = rows(0, 3)
    reported: dict[str, Any] = {"query": "q", "run": "r", "batch": 0, "ddl": DDL}
    stage = export.publisher.stage(**reported, schema=batch.schema, batches=[batch])
    export.publisher.publish(**reported, stages=[stage])
    ask = PlanRequest(
        reader="reader", import_=IMPORT, policy="wait", start="earliest", positions={}
    )
    plan_one(export, ask, filter_=None, columns=None)
    hosts.store.set("key", "aa" * 32)
    hosts.store.write("INSERT INTO own_readers VALUES ('own', ?)", '{"import": "i", "homes": {}}')
    closed(hosts)
    return home


@pytest.mark.parametrize(
    ("table", "column", "row"),
    [
        ("streams", "arrow", ""),
        ("publishers", "state", KEY),
        ("readers", "state", f"{KEY} reader"),
        ("own_readers", "state", "own"),
        ("declarations", "state", "export/trades"),
        ("meta", "value", "key"),
        ("meta", "value", f"cut/{KEY}"),
    ],
)
@pytest.mark.parametrize("text", ["{", "[1]", "\x00junk"])
def test_a_damaged_row_is_named_by_file_table_and_row(
    home: Path, table: str, column: str, row: str, text: str
) -> None:
    db = sqlite3.connect(home / "state.sqlite")
    where = f" WHERE name = '{row}'" if table == "meta" else ""
    if not db.execute(f"SELECT 1 FROM {table}{where}").fetchall():
        pytest.fail(f"{table} has no row")
    value = text.encode() if column == "arrow" else text
    db.execute(f"UPDATE {table} SET {column} = ?{where}", (value,))
    db.commit()
    db.close()
    if text == "[1]" and row in ("export/trades", f"cut/{KEY}"):
        return  # it can be read, and is another thing
    with pytest.raises(StoreError) as caught:
        started(home)
    assert str(home / "state.sqlite") in str(caught.value)
    assert f"of its table {table}" in str(caught.value)
    assert row in str(caught.value)


def test_a_directory_that_is_whole_starts(home: Path) -> None:
    closed(started(home))
