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
from support.spark.connect import ConnectServer
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


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    """The session of the jobs of a test: a classic one, where a folder has no other."""
    return spark


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    """One server of Spark Connect for all tests of a process."""
    server = ConnectServer(tmp_path_factory.mktemp("connect") / "server")
    yield server
    server.end()


@pytest.fixture
def remote(server: ConnectServer, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """A new session of Spark Connect, for whose columns PySpark takes Connect's functions."""
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")  # as `builder.remote` does
    return server.session()


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
    session: SparkSession, tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Session]:
    """PEs and queries in the session of a test; all are ended with the test.

    Their agents are forked. The tests of the launcher and of examples start them.
    """
    started = SimpleNamespace(**{**vars(subprocess), "Popen": _popen})
    monkeypatch.setattr(agent_process, "subprocess", started)
    made = Session(session, tmp_path, broker.url)
    yield made
    made.end()
