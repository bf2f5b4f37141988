"""Two jobs with operators, each run to the end of what there is.

``python -m support.driver aligned_jobs FOLDER exporter|importer BROKER``: the exporter publishes a
script, the importer writes what it reads of it to ``FOLDER/out``, window by window. Each kills
itself at the values that ``FOLDER/values`` names. Their agents live on.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

from new_factor import SetFactor
from pyspark.sql import DataFrame, SparkSession

import streambroker as sb
from pe_agent.spark.local_session import SMALL, session
from streambroker import PE
from streambroker.operators import OperatorOptions, OperatorStream, Stream
from support.aligned.operators import Killing, Multiply
from support.aligned.spark import drain, scripted
from support.driver.aligned import script

LINGER = 300.0
"""The exporter's agent serves the other job; the test that starts the jobs ends both agents."""
WINDOWS = [[2, 4, 6, 8, 10, 12], [700, 800], [3600]]
"""What the importer writes: its job's own factor holds first, then those of the exporter's."""


def main(folder: Path, role: str, broker: str) -> None:
    spark = session(role, conf=SMALL)
    pe = sb.start(spark, job=role, data_dir=folder / "home", broker=broker, linger=LINGER)
    (export if role == "exporter" else import_)(spark, pe, folder)
    pe.stop()


def export(spark: SparkSession, pe: PE, folder: Path) -> None:
    """Publish what an operator makes of a script, with the tuples that pass it."""
    source = Stream(replace(scripted(spark, folder, script()).plan, job=pe.context))
    query = _multiplied(source, folder).publish(
        "out", properties={"kind": "out"}, checkpoint=folder / "ck", trigger={"availableNow": True}
    )
    query.awaitTermination()


def import_(spark: SparkSession, pe: PE, folder: Path) -> None:
    del spark
    (folder / "out").mkdir(exist_ok=True)
    stream = pe.subscribe_stream("in", 'kind == "out"', start="earliest", schema=Multiply.SCHEMA)
    pe.operators.send(SetFactor(2), delivery="BEGIN", request="the first")

    def take(frame: DataFrame, window: int) -> None:
        found = sorted(row.v for row in frame.collect())
        (folder / "out" / f"{window}.json").write_text(json.dumps(found))

    drain(_multiplied(stream, folder).to_df().writeStream.foreachBatch(take), folder / "ck")


def _multiplied(stream: Stream, folder: Path) -> OperatorStream:
    make = partial(Killing, folder, values=json.loads((folder / "values").read_text()))
    return stream.key_by("k").apply(
        make, name="multiply", schema=Multiply.SCHEMA, options=OperatorOptions(buckets=3)
    )
