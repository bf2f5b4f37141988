"""The originals' example of patterns, as it is, in the session of the tests."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
from originals import dummy_pattern_processor as example
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from streambroker.operators import OperatorOptions
from streambroker_core.cep.rules.rule_set import RuleUpdate


@pytest.mark.slow
def test_the_rows_of_the_originals_table_are_the_rules_of_its_statement(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A changed row is a new version, a restart keeps it, and a deleted row removes the rule."""
    database = sqlite3.connect(tmp_path / "rules.db", isolation_level=None)
    database.execute(example.TABLE)
    database.execute(example.INSERT, example.ROW)
    database.execute(example.INSERT, ("other", "java.lang.Runtime", "[]"))
    updates: Queue[Sequence[RuleUpdate]] = Queue()

    def start() -> StreamingQuery:
        my_table = spark.readStream.schema(example.DDL).parquet(str(tmp_path / "in"))
        frame = example.matches(
            my_table,
            tmp_path / "rules.db",
            tmp_path / "control",
            on_outcomes=updates.put,
            options=OperatorOptions(buckets=1),
        )
        assert frame.dtypes == [("aid", "bigint"), ("bid", "bigint"), ("cid", "bigint")]
        writer = frame.writeStream.foreachBatch(take)
        query: StreamingQuery = writer.start(checkpointLocation=str(tmp_path / "checkpoint"))
        return query

    def take(frame: Any, window: int) -> None:
        del window
        found.extend((row["aid"], row["bid"], row["cid"]) for row in frame.collect())

    found: list[tuple[int, int, int]] = []
    example.write(spark, tmp_path / "in")
    query = start()
    query.processAllAvailable()
    assert found == [(1, 2, 5)]
    first = {one.rule: one for one in updates.get(timeout=60)}
    assert first["a, b, c"].change == "added"
    assert first["other"].message == (
        "its row cannot be read: class java.lang.Runtime is not registered; the job has"
        " org.x.DummyPatternProcessor. Register it with TableDiscoverer(…,"
        " classes={'java.lang.Runtime': …})"
    )

    database.execute(
        "UPDATE processors SET constructorParams = replace(constructorParams, 'abc', 'bac')"
    )
    (second,) = (one for one in updates.get(timeout=60) if one.rule == "a, b, c")
    assert (second.change, second.version == first["a, b, c"].version) == ("replaced", False)
    example.write(spark, tmp_path / "in", 1)
    query.processAllAvailable()
    assert found == [(1, 2, 5), (12, 13, 15)]
    query.stop()

    query = start()
    (third,) = (one for one in updates.get(timeout=60) if one.rule == "a, b, c")
    assert (third.change, third.version) == ("kept", second.version)
    database.execute("DELETE FROM processors WHERE uid = 'a, b, c'")
    assert [one.change for one in updates.get(timeout=60) if one.rule == "a, b, c"] == ["removed"]
    example.write(spark, tmp_path / "in", 2)
    query.processAllAvailable()
    query.stop()
    assert found == [(1, 2, 5), (12, 13, 15)]
