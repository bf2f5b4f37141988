"""The suite of the data path: each test runs in a classic session and in one of Spark Connect."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

KINDS = {"classic": "spark", "connect": "remote"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test on both kinds of session; on Spark Connect it is slow, unless it is marked."""
    if "session" in metafunc.fixturenames:
        marked = metafunc.definition.get_closest_marker("both_kinds")
        connect = pytest.param("connect", marks=[] if marked else [pytest.mark.slow])
        metafunc.parametrize("session", ["classic", connect], indirect=True)


@pytest.fixture
def session(request: pytest.FixtureRequest) -> SparkSession:
    """The session of a test, of each kind."""
    chosen: SparkSession = request.getfixturevalue(KINDS[request.param])
    return chosen
