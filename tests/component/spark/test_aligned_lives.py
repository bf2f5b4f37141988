"""What hears of the queries of an operator, without holding them up or falling behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pe_agent.aligned.queries.query_listener import watch_queries
from support.processes.waiting import until
from support.spark.feeds import DDL, Feed

BATCHES, FOLLOWERS = 40, 8


@pytest.mark.slow
def test_the_end_of_a_query_is_heard_of_at_once_however_many_batches_it_had(
    spark: SparkSession, tmp_path: Path
) -> None:
    feed = Feed(tmp_path / "feed")
    feed.release(BATCHES)
    frame = spark.readStream.schema(DDL).option("maxFilesPerTrigger", 1).parquet(str(feed.folder))
    progressed, ended = [0] * FOLLOWERS, [0] * FOLLOWERS

    def watch(one: int, mark: str) -> None:
        def progress() -> None:
            progressed[one] += 1

        def end() -> None:
            ended[one] += 1

        watch_queries(spark, mark, on_progress=progress, on_ended=end)

    for one in range(FOLLOWERS):
        watch(one, "marked" if one else "not to be found")

    writer = frame.alias("marked").writeStream.format("noop")
    query = writer.trigger(availableNow=True).option("checkpointLocation", str(tmp_path / "ck"))
    query.start().awaitTermination()

    until(lambda: sum(ended) == FOLLOWERS - 1, 5.0, "all who follow it have heard that it ended")
    assert progressed == [0] + [BATCHES] * (FOLLOWERS - 1)
    assert ended == [0] + [1] * (FOLLOWERS - 1)
