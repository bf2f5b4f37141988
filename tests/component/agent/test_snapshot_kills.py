"""An agent is killed at each step of a snapshot, and of its first start on a restored one."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Any

import pytest

from pe_agent.transport.flight_errors import AgentUnreachableError
from streambroker_core.wire.broker.snapshot import SnapshotInvalidError
from streambroker_operator.storage.snapshot import check, restore
from support.agents.agents import Pair, Publishing, pair, rows
from support.agents.sources import Run
from support.cuts.points import (
    RESTORED,
    SAVING,
    SEGMENTS,
    VARIABLE,
    Cut,
    search_path,
)
from support.processes.waiting import until
from support.storage.drill import ROWS, Load

SECONDS = 100.0
connected = contextlib.contextmanager(pair)


def how(place: Path) -> dict[str, Any]:
    environment = {
        VARIABLE: str(place / "cuts"),
        "PYTHONPATH": search_path(held=True),
        SEGMENTS: "4000",
    }
    return {"environment": environment, "max_bytes": 1 << 20}


def ask(agents: Pair) -> dict[str, Any] | None:
    """Ask for the snapshot; return its answer once it is complete."""
    with contextlib.suppress(AgentUnreachableError, OSError):
        found = agents.exporter.client.call("agent.snapshot", name="one")
        return found if found["state"] == "complete" else None
    return None


def opened(run: Run) -> bool:
    run.at = run.plan()
    return bool(run.at["last"])


def read_all(run: Run, wanted: int) -> list[int]:
    """Read until ``wanted`` rows have come."""
    found: list[int] = []

    def enough() -> bool:
        with contextlib.suppress(AgentUnreachableError):
            end = run.plan()
            if end != run.at:
                found.extend(run.read(end))
        return len(found) >= wanted

    until(enough, SECONDS, f"{wanted} rows")
    return found


@pytest.mark.parametrize("step", SAVING)
def test_a_kill_during_a_snapshot_leaves_the_agent_whole_and_the_snapshot_complete_or_refused(
    tmp_path: Path, step: str
) -> None:
    with connected(tmp_path, **how(tmp_path)) as agents:
        run = Run(agents.importer)
        until(lambda: opened(run), SECONDS, "a route")
        load = Load(agents)
        folder = agents.exporter.home / "snapshots/one"
        try:
            load.await_more(8)
            cut = Cut(tmp_path / "cuts", step)
            with contextlib.suppress(AgentUnreachableError):
                agents.exporter.client.call("agent.snapshot", name="one", timeout=2.0)
            until(cut.reached, SECONDS, f"a process at {step}")
            agents.exporter.kill()
            cut.disarm()
            if step == "manifest written":
                check(folder)
            else:
                with pytest.raises(SnapshotInvalidError):
                    check(folder)
            agents.exporter.start()
            load.await_more(4)
            until(lambda: ask(agents), SECONDS, "the snapshot is complete")
        finally:
            load.stop()
        assert read_all(run, load.published * ROWS) == list(range(load.published * ROWS))
        run.stop()
        check(folder)
        assert not agents.exporter.export_status()["damaged"]


@pytest.mark.parametrize("step", RESTORED)
def test_a_kill_at_the_first_start_after_a_restore_leaves_one_successor(
    tmp_path: Path, step: str
) -> None:
    with connected(tmp_path, **how(tmp_path)) as agents:
        run = Run(agents.importer)
        until(lambda: opened(run), SECONDS, "a route")
        publisher = Publishing(agents.exporter)
        for batch in range(6):
            publisher.publish(batch, rows(batch * ROWS, ROWS))
        read = read_all(run, 6 * ROWS)
        run.at = run.plan()
        until(lambda: ask(agents), SECONDS, "the snapshot is complete")
        agents.exporter.kill()
        home = agents.exporter.home
        shutil.move(home, tmp_path / "old")
        restore(tmp_path / "old/snapshots/one", home)
        # Capabilities of this importer are signed with the key, which no snapshot has.
        agents.exporter.prepare()
        cut = Cut(tmp_path / "cuts", step)
        agents.exporter.spawn()
        until(cut.reached, SECONDS, f"a process at {step}")
        agents.exporter.kill()
        cut.disarm()
        agents.exporter.start()
        for batch in (6, 7):
            publisher.publish(batch, rows(batch * ROWS, ROWS))
        read += read_all(run, 2 * ROWS)
        run.stop()
        streams = agents.exporter.export_status()["streams"].values()
        assert [(one["next"], one["sealed"]) for one in streams] == [(6, True), (2, False)]
        assert read == list(range(8 * ROWS))
