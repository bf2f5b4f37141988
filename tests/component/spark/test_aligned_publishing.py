"""Outputs of an operator as exports: several by one query, each batch once."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import DataFrame

from pe_agent.aligned.sinks import OutputsWriter
from streambroker import PE
from streambroker.operators import AlignedError, OperatorOptions
from support.aligned.operators import Totals
from support.processes.waiting import until
from support.spark.session import SECONDS, Session, exporter_status


def published(pe: PE, port: str) -> bool:
    """Whether an export's last batch is the first one."""
    return bool(exporter_status(pe, port)["publisher"]["batch"] == 0)


def take(found: list[int], batch: DataFrame, number: int) -> None:
    """Collect a column."""
    del number
    found += [row[0] for row in batch.collect()]


@pytest.mark.slow
def test_several_outputs_reach_several_exports_and_a_repeated_batch_reaches_none_twice(
    jobs: Session, tmp_path: Path
) -> None:
    folder = tmp_path / "in"
    jobs.spark.range(8).selectExpr("id % 4 AS k", "id AS v").coalesce(1).write.parquet(str(folder))
    frame = jobs.spark.readStream.schema("k bigint, v bigint").parquet(str(folder))
    pe, reader = jobs.pe("feed"), jobs.pe("alerts")

    def start() -> None:
        totals = (
            pe.stream(frame)
            .key_by("k")
            .apply(Totals, schemas=Totals.SCHEMAS, options=OperatorOptions(buckets=2))
        )
        jobs.queries.append(
            totals.publish_outputs(
                {"sums": "totals", "odd": "oddities"},
                checkpoint=tmp_path / "ck",
                properties={"sums": {"kind": "sum"}, "odd": {"kind": "odd"}},
            )
        )

    start()
    for port in ("totals", "oddities"):
        until(partial(published, pe, port), SECONDS, f"batch 0 of {port}")
    jobs.queries.pop().stop()
    commits = sorted((tmp_path / "ck" / "commits").glob("0*"))
    for commit in [*commits, *(tmp_path / "ck" / "commits").glob(".0*")]:
        commit.unlink()

    start()
    odd = reader.subscribe("odd", 'kind == "odd"', start="earliest", schema="k bigint, v bigint")
    sums = reader.subscribe("sums", 'kind == "sum"', start="earliest", schema="sum bigint")
    found: dict[str, list[int]] = {"v": [], "sum": []}
    for name, one in (("v", odd), ("sum", sums)):
        writer = one.select(name).writeStream.foreachBatch(partial(take, found[name]))
        jobs.queries.append(
            writer.option("checkpointLocation", str(tmp_path / f"ck-{name}")).start()
        )
    until(lambda: sum(found["sum"]) == 28, SECONDS, "the sums are read")
    until(lambda: sorted(found["v"]) == [1, 3, 5, 7], SECONDS, "the odd rows are read")
    assert all(published(pe, port) for port in ("totals", "oddities"))


def test_outputs_need_exports_of_their_own(jobs: Session) -> None:
    frame = jobs.spark.readStream.format("rate").load().selectExpr("value AS k", "value AS v")
    totals = jobs.pe("feed").stream(frame).apply(Totals, schemas=Totals.SCHEMAS)
    for ports, why in (
        ({"sums": "one", "odd": "one"}, "an export of its own"),
        ({}, "an export of its own"),
        ({"none": "one"}, "has no output none"),
    ):
        with pytest.raises(AlignedError, match=why):
            totals.publish_outputs(ports, checkpoint="ck")
    with pytest.raises(AlignedError, match="not published"):
        totals.publish_outputs({"sums": "one"}, checkpoint="ck", properties={"odd": {}})


def test_a_commit_names_each_exports_own_stages() -> None:
    reported: dict[str, list[object]] = {}

    class Writer:
        def __init__(self, name: str) -> None:
            self._name = name

        def commit(self, messages: list[object], batch: int) -> None:
            reported[f"{self._name}/{batch}"] = messages

    from pe_agent.aligned.sinks import OutputCommits

    writer = OutputsWriter({"a": Writer("a"), "b": Writer("b")}, {})  # type: ignore[dict-item]
    writer.commit([OutputCommits({"a": 1, "b": 2}), None, OutputCommits({"a": 3})], 7)  # type: ignore[dict-item]
    assert reported == {"a/7": [1, 3], "b/7": [2, None]}
