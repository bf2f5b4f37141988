"""The groups of an operator's buckets in Spark's state: one for each partition, fixed in number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from pe_agent.aligned.runtime.hosting import SHUFFLE_PARTITIONS
from pe_agent.aligned.runtime.state_reader import read_states
from pe_agent.datasource.slots import slot_keys, spark_hash
from streambroker import cause
from streambroker.operators import OperatorOptions
from support.aligned.graphs import Turn
from support.aligned.operators import Totals
from support.aligned.spark import collected, scripted

KEYS = 200
WINDOWS = [
    Turn(number=number, rows=(tuple((key, key, 0) for key in range(KEYS)),), control=())
    for number in range(3)
]


def sums(
    spark: SparkSession, folder: Path, until: int, *, partitions: int, groups: str = "slots"
) -> dict[int, list[tuple[Any, ...]]]:
    """Run the first windows with 64 buckets, while the session has a number of partitions."""
    source = scripted(spark, folder / "source", WINDOWS[:until]).key_by("k")
    options = OperatorOptions(groups=groups)
    made = source.apply(Totals, name="totals", schemas=Totals.SCHEMAS, options=options)
    before = str(spark.conf.get(SHUFFLE_PARTITIONS))
    spark.conf.set(SHUFFLE_PARTITIONS, str(partitions))
    try:
        return collected(made.outputs["sums"].to_df(), folder / "ck")
    finally:
        spark.conf.set(SHUFFLE_PARTITIONS, before)


def test_the_hash_of_slots_is_that_of_spark(spark: SparkSession) -> None:
    rows = spark.range(5_000).selectExpr("hash(cast(id AS int)) AS hash").collect()
    assert [row.hash for row in rows] == [spark_hash(key) for key in range(5_000)]
    for partitions in (1, 2, 7, 200):
        keys = slot_keys(partitions)
        assert [spark_hash(key) % partitions for key in keys] == list(range(partitions))


@pytest.mark.slow
def test_each_partition_has_one_group_and_a_checkpoint_keeps_their_number(
    spark: SparkSession, tmp_path: Path
) -> None:
    first = sums(spark, tmp_path, 2, partitions=3)
    again = sums(spark, tmp_path, 3, partitions=5)
    reader = spark.read.format("statestore").option("stateVarName", "slot")
    groups = reader.load(str(tmp_path / "ck")).collect()
    assert sorted(row.partition_id for row in groups) == [0, 1, 2]
    total = sum(range(KEYS))
    assert [sum(value for _, value in first[window]) for window in (0, 1)] == [total, 2 * total]
    assert sum(value for _, value in again[2]) == 3 * total
    assert len(again[2]) == len(read_states(spark, tmp_path / "ck", "totals")) > 50


@pytest.mark.slow
@pytest.mark.parametrize("began", [pytest.param("slots", marks=pytest.mark.long), "buckets"])
def test_a_checkpoint_keeps_the_groups_it_began_with(
    spark: SparkSession, tmp_path: Path, began: str
) -> None:
    sums(spark, tmp_path, 1, partitions=2, groups=began)
    (other,) = {"slots", "buckets"} - {began}
    with pytest.raises(StreamingQueryException) as refused:
        sums(spark, tmp_path, 2, partitions=2, groups=other)
    assert f'pass OperatorOptions(groups="{began}")' in str(cause(refused.value))
    found = sums(spark, tmp_path, 2, partitions=2, groups=began)
    assert sum(value for _, value in found[1]) == 2 * sum(range(KEYS))
