"""One Spark Connect server for the tests of this folder, and sessions of both kinds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from support.processes.jobs import Broker
from support.spark.connect import ConnectServer
from support.spark.session import Session


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    server = ConnectServer(tmp_path_factory.mktemp("connect") / "server")
    yield server
    server.end()


@pytest.fixture
def remote(server: ConnectServer, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """A new session of Spark Connect, for whose columns PySpark takes Connect's functions."""
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")  # as `builder.remote` does
    return server.session()


@pytest.fixture(params=["classic", "Spark Connect"])
def session(request: pytest.FixtureRequest) -> SparkSession:
    name = "spark" if request.param == "classic" else "remote"
    chosen: SparkSession = request.getfixturevalue(name)
    return chosen


@pytest.fixture
def jobs(session: SparkSession, tmp_path: Path, broker: Broker) -> Iterator[Session]:
    made = Session(session, tmp_path, broker.url)
    yield made
    made.end()


@pytest.fixture
def connected(remote: SparkSession, tmp_path: Path, broker: Broker) -> Iterator[Session]:
    """PEs and queries in a session of Spark Connect; all are ended with the test."""
    made = Session(remote, tmp_path, broker.url)
    yield made
    made.end()
