"""Settings of all tests: how many examples property tests try, and the one Spark session."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

settings.register_profile(
    "short", max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "long", max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
# A shell that starts the tests in the background lets them ignore Ctrl-C, and what they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "short"))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One local Spark session for all tests that run queries in this process."""
    from pyspark import SparkContext

    from pe_agent.spark.local_session import SMALL, session
    from support.cuts.points import search_path
    from support.spark.connect import EACH_BATCH

    # Spark's workers import operators and sources from here: the JVM has to know when it starts.
    assert SparkContext._gateway is None, "a JVM runs already; use this fixture"
    before = os.environ.get("PYTHONPATH")
    here = search_path(held=False)
    os.environ["PYTHONPATH"] = os.pathsep.join([here, *([before] if before else [])])
    spark = session("tests", conf={**SMALL, **EACH_BATCH, "spark.driver.memory": "2g"})
    yield spark
    spark.stop()
