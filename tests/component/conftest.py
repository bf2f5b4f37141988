"""Jobs inside one Spark session, over a real broker process."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest
from pyspark.sql import SparkSession

from pe_agent.job.agent import agent_process
from support.processes.forks import Process, program
from support.processes.jobs import Broker
from support.processes.releases import NoHistoryError, Release, unpack
from support.spark.session import Session


@pytest.fixture(scope="session")
def released(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """Return the last release; a clone without its commit cannot run these tests."""
    try:
        return unpack(tmp_path_factory.mktemp("released"))
    except NoHistoryError as error:
        pytest.skip(f"this is no clone with its history: {error}")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path)
    yield broker
    broker.end()


def _popen(
    command: list[str],
    *,
    stdin: int,
    stdout: IO[Any],
    stderr: IO[Any],
    start_new_session: bool,
    env: dict[str, str] | None,
) -> Process:
    assert stdin == subprocess.DEVNULL
    return program(
        command[1:],
        stdout=stdout,
        stderr=stderr,
        environment=env,
        own_group=start_new_session,
    )


@pytest.fixture
def jobs(
    spark: SparkSession, tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Session]:
    """PEs and queries in the test's own Spark session; all are ended with the test.

    Their agents are forked. The tests of the launcher and of examples start them.
    """
    started = SimpleNamespace(**{**vars(subprocess), "Popen": _popen})
    monkeypatch.setattr(agent_process, "subprocess", started)
    session = Session(spark, tmp_path, broker.url)
    yield session
    session.end()
