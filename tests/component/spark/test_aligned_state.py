"""State in Spark's store that an earlier version of an operator has written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from streambroker.operators import OperatorOptions
from streambroker_core.control.runtime.buckets import Layout, bucket_for_key
from support.aligned.graphs import Turn
from support.aligned.operators import NewerTotals, Totals
from support.aligned.spark import collected, scripted

KEYED = Layout(port="in", buckets=4, key=(("k", pa.int64()),))
KEYS = [next(k for k in range(99) if bucket_for_key((k,), KEYED) == at) for at in range(4)]
"""A key of each bucket."""


def script(*windows: dict[int, list[int]]) -> list[Turn]:
    """Return windows with values by bucket."""
    return [
        Turn(
            number=number,
            rows=(tuple((KEYS[at], v, 0) for at, of in values.items() for v in of),),
            control=(),
        )
        for number, values in enumerate(windows)
    ]


@pytest.mark.long
def test_state_of_an_older_version_is_read_bucket_by_bucket_and_written_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    windows = script(
        {0: [1, 2], 1: [10], 2: [100]},
        {0: [3], 3: [1000]},
        {0: [4], 1: [20], 3: [2000]},
        {0: [5], 1: [30], 2: [200]},
    )

    def sums(operator: type[Totals], until: int) -> dict[int, list[tuple[Any, ...]]]:
        source = scripted(spark, tmp_path / "source", windows[:until]).key_by("k")
        made = source.apply(
            operator, name="totals", schemas=operator.SCHEMAS, options=OperatorOptions(buckets=4)
        )
        return collected(made.outputs["sums"].to_df(), tmp_path / "ck")

    assert sorted(sums(Totals, 1)[0]) == [(0, 3), (1, 10), (2, 100)]
    newer = sums(NewerTotals, 3)
    assert sorted(newer[1]) == [(0, 6, 1, 1), (3, 1000, 1, 0)]
    assert sorted(newer[2]) == [(0, 10, 2, 2), (1, 30, 1, 1), (3, 3000, 2, 2)]
    assert sorted(sums(NewerTotals, 4)[3]) == [(0, 15, 3, 2), (1, 60, 2, 2), (2, 300, 1, 1)]
    windows += script({0: [1]})
    with pytest.raises(StreamingQueryException, match="has version 2 and the operator reads up to"):
        sums(Totals, 5)
