"""Figures of side inputs of a query: they reach the agent of the job by themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import streambroker as sb
from pe_agent.pe import PE
from streambroker.operators import OperatorOptions
from streambroker.side import side_map
from support.processes.waiting import until

SECONDS = 240.0


def put(folder: Path, **columns: list[Any]) -> None:
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.table(columns), folder / ".one")
    (folder / ".one").rename(folder / f"{len(list(folder.iterdir()))}.parquet")


def reported(pe: PE) -> dict[str, dict[str, Any]]:
    sides = pe.agent.call("status", timeout=10.0)["sides"]
    return {one["input"]: one for one in sides}


@pytest.mark.slow
def test_a_stall_and_its_end_reach_the_agent(spark: SparkSession, tmp_path: Path) -> None:
    """What waits, for what, and later what is there."""
    trades, rates = tmp_path / "trades", tmp_path / "rates"
    put(trades, id=["a", "b"], currency=["EUR", "USD"])
    rates.mkdir()
    pe = sb.start(spark, job="sides", data_dir=tmp_path / "home", linger=5.0)
    try:
        files = spark.readStream.schema("id string, currency string").parquet(str(trades))
        values = spark.readStream.schema("currency string, rate double").parquet(str(rates))
        sides = pe.stream(files).join_side(rates=side_map(pe.stream(values), key="currency"))
        made = sides.enrich("rates", on="currency").to_stream(
            name="rated", options=OperatorOptions(buckets=2)
        )
        writer = made.to_df().writeStream.format("noop")
        query = writer.option("checkpointLocation", str(tmp_path / "ck")).start()
        try:
            until(lambda: reported(pe).get("rates", {}).get("waitingRows") == 2, SECONDS, "a stall")
            found = reported(pe)["rates"]
            assert (found["operator"], found["query"]) == ("rated", str(query.id))
            (stall,) = found["stalls"]
            assert stall["cause"] == "for their keys in side input `rates`"
            assert (stall["rows"], found["waitingSeconds"] >= 0) == (2, True)
            put(rates, currency=["EUR", "USD"], rate=[1.5, 1.0])
            until(lambda: reported(pe)["rates"]["waitingRows"] == 0, SECONDS, "its end")
            assert (reported(pe)["rates"]["entries"], reported(pe)["rates"]["rows"]) == (2, 2)
        finally:
            query.stop()
    finally:
        pe.stop(end_agent=True)
