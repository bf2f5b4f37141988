"""Spark sessions that start quickly and stay small, because three of them share one machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pe_agent.local import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONF = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
"""Without the second compiler a session of a minute takes half the processor time."""


def small_session(name: str, *, cores: int) -> SparkSession:
    """Return a local session; ``cores`` are task slots."""
    return session(name, cores=cores, conf=CONF)
