"""Drivers of two jobs, killed in the middle of a window: control comes once all the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.driver import aligned_jobs
from support.driver.aligned_jobs import WINDOWS
from support.driver.process import run_driver
from support.processes.jobs import Broker, end_agent
from support.spark.session import Session

EXPORTER, IMPORTER = "exporter", "importer"


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[dict[str, Path]]:
    """Return the folder of each job; the agents in them are ended with the test."""
    found = {role: tmp_path / role for role in (EXPORTER, IMPORTER)}
    for folder in found.values():
        folder.mkdir()
    yield found
    for folder in found.values():
        end_agent(folder / "home")


def run(role: str, folder: Path, broker: str, kills: list[int | str]) -> None:
    """Run a job to the end of what there is, its driver killed once at each place.

    Args:
        role: which job.
        folder: its folder.
        broker: of both jobs.
        kills: values of rows, at which its operator kills the driver, or steps of the protocol.
    """
    (folder / "values").write_text(json.dumps([kill for kill in kills if isinstance(kill, int)]))
    cuts = folder.parent / "cuts" if any(isinstance(kill, str) for kill in kills) else None
    for kill in kills:
        step = kill if isinstance(kill, str) else None
        run_driver("aligned_jobs", folder, role, broker, killed=True, cuts=cuts, step=step)
    run_driver("aligned_jobs", folder, role, broker, cuts=cuts)


def imported(folder: Path) -> list[list[int]]:
    """Return what the importer has written, window by window."""
    files = sorted((folder / "out").glob("*.json"), key=lambda path: int(path.stem))
    found = [json.loads(path.read_text()) for path in files]
    return [values for values in found if values]


@pytest.mark.long
def test_a_kill_of_the_importer_changes_no_window(folders: dict[str, Path], jobs: Session) -> None:
    exporter = folders[EXPORTER]
    (exporter / "values").write_text("[]")
    aligned_jobs.export(jobs.spark, jobs.pe(EXPORTER), exporter)
    run(IMPORTER, folders[IMPORTER], str(jobs.broker), [4])
    assert imported(folders[IMPORTER]) == WINDOWS


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("exporter", "importer"),
    [
        pytest.param([5], [4], id="middle of a window"),
        pytest.param([1, 9], [70, 180], id="middle of windows"),
        pytest.param(
            ["all tasks ended, before the commit", "publish answered, before the commit log"],
            ["offset made, not answered", "before read"],
            id="commit of the exporter, plan of the importer",
        ),
        pytest.param(
            ["admission answered, before the rows", "published, not answered", 9],
            ["plan saved, not answered", "offset in the checkpoint, before partitions"],
            id="answers of agents, and what Spark has written",
        ),
    ],
)
def test_kills_on_both_sides_change_no_window(
    folders: dict[str, Path], broker: Broker, exporter: list[int | str], importer: list[int | str]
) -> None:
    run(EXPORTER, folders[EXPORTER], broker.url, exporter)
    run(IMPORTER, folders[IMPORTER], broker.url, importer)
    assert imported(folders[IMPORTER]) == WINDOWS
