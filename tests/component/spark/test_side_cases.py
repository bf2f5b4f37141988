"""Every scenario of side inputs on Spark: in several cuts, on 1 and on 4 partitions."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from streambroker_core.side.definition import DEFAULT_KEY_TIMEOUT
from streambroker_core.side.errors import SideDefinitionError
from support.sides.cases import Case, load
from support.sides.spark import BODY, Fed, made_of, marks, parts_of, run_on_spark

HOUR = 3600
"""A limit that no query of a test reaches, however slow the machine is."""


def limited(case: Case) -> bool:
    """Whether a case is about time by the clock, which tests of queries cannot move."""
    by_default = any("missing" not in one for one in case.get("enrich", ()))
    later = any(port == "clock" and what >= DEFAULT_KEY_TIMEOUT for port, what in case["feed"])
    limits = (side.get("timeout", HOUR) for side in case.get("sides", {}).values())
    return (by_default and later) or min(limits, default=HOUR) < HOUR


CASES = [case for case in load() if not limited(case)]
RUN = [case for case in CASES if not {"refused", "fails"} & set(case["expect"])]
FAIL = [case for case in CASES if "fails" in case["expect"]]
REFUSED = [case for case in CASES if "refused" in case["expect"]]
TOGETHER = 10
SAMPLE = {"C-1", "C-5", "C-61", "E-2", "E-6", "G-7", "W-1"}
BUCKETS = 4


def together(cases: list[Case]) -> Iterator[list[Case]]:
    """Give cases that can share a query, those with as many micro-batches together."""

    def alike(case: Case) -> tuple[bool, tuple[float, ...]]:
        return not case["id"].startswith("C-"), marks(case)

    def length(case: Case) -> int:
        return sum(map(len, parts_of(case, None)))

    for _, group in groupby(sorted(cases, key=alike), key=alike):
        found = sorted(group, key=length)
        for at in range(0, len(found), TOGETHER):
            yield found[at : at + TOGETHER]


def check(spark: SparkSession, folder: Path, cases: list[Case], **settings: int | None) -> None:
    found = run_on_spark(spark, folder, cases, **settings, buckets=BUCKETS)  # type: ignore[arg-type]
    reported = {case["id"]: found[case["id"]].differences(case, BUCKETS) for case in cases}
    assert {name: one for name, one in reported.items() if one} == {}


@pytest.mark.slow
@pytest.mark.parametrize("marked", [(), pytest.param((100,), marks=pytest.mark.long)])
def test_a_sample_of_the_scenarios(
    spark: SparkSession, tmp_path: Path, marked: tuple[float, ...]
) -> None:
    cases = [case for case in RUN if case["id"] in SAMPLE and marks(case) == marked]
    check(spark, tmp_path, cases, pieces=2, partitions=2)


@pytest.mark.long
@pytest.mark.parametrize(("pieces", "partitions"), [(1, 4), (2, 1), (None, 4)])
@pytest.mark.parametrize("cases", list(together(RUN)), ids=lambda cases: cases[0]["id"])
def test_scenarios_in_every_cut(
    spark: SparkSession, tmp_path: Path, cases: list[Case], pieces: int | None, partitions: int
) -> None:
    check(spark, tmp_path, cases, pieces=pieces, partitions=partitions)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=() if case["id"] in ("C-23",) else pytest.mark.long)
        for case in FAIL
    ],
    ids=lambda case: case["id"],
)
def test_what_stops_a_query_says_why(spark: SparkSession, tmp_path: Path, case: Case) -> None:
    with pytest.raises(StreamingQueryException) as raised:
        run_on_spark(spark, tmp_path, [case], pieces=2, partitions=1, buckets=1)
    says: str = case["expect"]["fails"]["says"]
    own = says.partition(": part-3")[0].removesuffix("}")  # files and the order column are ours
    assert own in str(raised.value)


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case["id"])
def test_a_definition_that_could_never_work_is_refused_where_it_is_said(
    spark: SparkSession, tmp_path: Path, case: Case
) -> None:
    frame = spark.readStream.schema(BODY).parquet(str(tmp_path))
    with pytest.raises(SideDefinitionError) as raised:
        made_of(case, Fed(frame, case, tmp_path), BUCKETS)
    assert case["expect"]["refused"] in str(raised.value)
