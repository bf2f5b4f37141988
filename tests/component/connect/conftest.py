"""Jobs in sessions of Spark Connect only; the suite of the data path runs on both kinds."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession


@pytest.fixture
def session(remote: SparkSession) -> SparkSession:
    """The session of a test, of Spark Connect."""
    return remote
