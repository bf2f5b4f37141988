"""Jobs inside one Spark session, over a real broker process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from support.processes.jobs import Broker
from support.spark.session import Session


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path)
    yield broker
    broker.end()


@pytest.fixture
def jobs(spark: SparkSession, tmp_path: Path, broker: Broker) -> Iterator[Session]:
    """PEs and queries in the test's own Spark session; all are ended with the test."""
    session = Session(spark, tmp_path, broker.url)
    yield session
    session.end()
