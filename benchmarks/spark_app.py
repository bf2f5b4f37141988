"""A Spark application that runs the queries it is told to, one order after the other.

Orders come as lines of JSON: ``{"source": {"kind": …}, "way": {"kind": …}, "sink": {"kind": …},
"checkpoint": …, "batches": n | "rows": n | "seconds": s | "until": file}``; a way is one of
:mod:`ways`, and without it rows go as they come. The answer is the list of the query's progress
reports, shortened. ``{"queries": [order, …]}`` runs several at once and answers with as many lists;
``{"servers": …, "make": topic, "drop": topic}`` is about Kafka's topics. Lines with answers begin
with ``@@``, since the JVM writes to the same place; ``@started`` comes before them.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import kafka_queries
import rows
import sources
import ways
from processes import ANSWER, STARTED
from timed_source import NOTES, TimedSource

import streambroker as sb
from pe_agent.job import publish
from pe_agent.spark.local_session import CONF, ensure_java
from pe_agent.streams import subscribe

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from streambroker import PE

QUIET = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "5000",
    "spark.driver.memory": "1g",
}


def session(plan: dict[str, Any]) -> SparkSession:
    """Return a session with the settings of ``pe_agent.spark.local_session``, or Spark's own."""
    ensure_java()
    from pyspark.sql import SparkSession

    master = f"local[{plan['cores']}]"
    builder = SparkSession.builder.appName(plan["job"])
    builder = builder.remote(master) if plan.get("connect") else builder.master(master)
    settings = {**(CONF if plan.get("tuned", True) else {}), **QUIET, **plan.get("conf", {})}
    for key, value in settings.items():
        builder = builder.config(key, value)
    if plan.get("jars"):
        builder = builder.config("spark.jars", ",".join(plan["jars"]))
    spark = builder.getOrCreate()
    if not plan.get("connect"):
        spark.sparkContext.setLogLevel("ERROR")
    for source in sources.ALL:
        spark.dataSource.register(source)
    return spark


class Application:
    """One session and its PE."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        if plan.get("notes"):
            os.environ[NOTES] = plan["notes"]  # for the workers of the session
        self.spark = session(plan)
        self.pe: PE | None = None
        if plan.get("broker"):
            self.pe = sb.start(
                self.spark,
                job=plan["job"],
                broker=plan["broker"],
                data_dir=plan["home"],
                linger=20.0,
                application="bench",
            )
        if plan.get("notes"):
            self.spark.dataSource.register(TimedSource)

    def frame(self, kind: str, **more: Any) -> DataFrame:
        """Return a streaming DataFrame of one of the kinds of sources."""
        if kind == "steady":
            return self.spark.readStream.format("rate").load().selectExpr(*rows.FROM_VALUE)
        if kind == "rate":
            reader = (
                self.spark.readStream.format("rate-micro-batch")
                .option("rowsPerBatch", more["rows"])
                .option("numPartitions", 2)
            )
            return reader.load().selectExpr(*rows.FROM_VALUE)
        if kind == "import":
            assert self.pe is not None
            frame: DataFrame = self.pe.subscribe(start="earliest", **more)
            return frame
        if kind == "kafka":
            return kafka_queries.read(self.spark, more)
        reader = self.spark.readStream.format(kind)
        for name, value in more.items():
            reader = reader.option(name, value)
        return reader.load()

    def query(self, order: dict[str, Any]) -> StreamingQuery:
        """Start a query into one of the kinds of sinks; ``observed`` is false for no metric."""
        with ExitStack() as patches:
            for module in () if order.get("observed", True) else (subscribe, publish):
                same = patch.object(module, "observe_rows", lambda frame, *_: frame)
                patches.enter_context(same)
            return self._query(order)

    def _query(self, order: dict[str, Any]) -> StreamingQuery:
        frame, sink = self.frame(**order["source"]), dict(order["sink"])
        checkpoint, kind = order["checkpoint"], sink.pop("kind")
        if "way" in order:
            way = dict(order["way"])
            frame = ways.WAYS[way.pop("kind")](frame, **way)
        if kind == "export":
            assert self.pe is not None
            return self.pe.publish(frame, checkpoint=checkpoint, **sink)
        if kind == "kafka":
            writer = kafka_queries.write(frame, sink)
        else:
            writer = frame.writeStream.format(kind)
            for name, value in sink.items():
                writer = writer.option(name, value)
        return writer.option("checkpointLocation", checkpoint).start()

    def obey(self, order: dict[str, Any]) -> Any:
        """Do what an order says; return the answer."""
        if "servers" in order:
            return kafka_queries.topic(self.spark._jvm, **order)
        if "queries" in order:
            return self.run(order["queries"])
        return self.run([order])[0]

    def run(self, orders: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
        """Run queries until each has done enough; return the batches of each."""
        queries: list[StreamingQuery] = []
        deadline = time.monotonic() + max(o.get("seconds", 170.0) for o in orders)
        try:
            queries += map(self.query, orders)
            pairs = list(zip(queries, orders, strict=True))
            _say_started(queries, deadline)
            while pairs and time.monotonic() < deadline:
                began = time.monotonic()
                for query, _ in pairs:
                    if not query.isActive:
                        raise RuntimeError(f"the query ended: {query.exception()}")
                pairs = [(query, order) for query, order in pairs if not _enough(query, order)]
                # Looking takes a hundredth of the time: more over Spark Connect, which is slower.
                time.sleep(max(0.1, 100 * (time.monotonic() - began)) if pairs else 0)
        finally:
            for query in queries:
                query.stop()
        return [
            [shortened(p) for p in query.recentProgress if input_rows(p) or p["durationMs"]]
            for query in queries
        ]

    def end(self) -> None:
        """End agent and session."""
        if self.pe is not None:
            self.pe.stop(end_agent=True)
        self.spark.stop()


def _say_started(queries: list[StreamingQuery], deadline: float) -> None:
    """Write :data:`STARTED` once all queries ask their sources for rows."""
    while time.monotonic() < deadline and any(
        "Initializing" in q.status["message"] for q in queries
    ):
        time.sleep(0.05)
    sys.stdout.write(f"{STARTED}\n")
    sys.stdout.flush()


def _enough(query: StreamingQuery, order: dict[str, Any]) -> bool:
    if "until" in order:
        return Path(order["until"]).exists()
    if "rows" in order:
        return bool(sum(map(input_rows, query.recentProgress)) >= order["rows"])
    if "batches" in order:
        return sum(1 for p in query.recentProgress if input_rows(p)) >= int(order["batches"])
    return False


def input_rows(progress: Any) -> int:
    """Return the rows of a batch; a progress over Spark Connect has them for each source alone."""
    return sum(source["numInputRows"] for source in progress["sources"])


def shortened(progress: Any) -> dict[str, Any]:
    """Return what is told of a progress report."""
    began = datetime.fromisoformat(progress["timestamp"].replace("Z", "+00:00")).timestamp()
    return {
        "batch": progress["batchId"],
        "rows": input_rows(progress),
        "began": began,
        "ms": dict(progress["durationMs"]),
    }


def main() -> None:
    """Obey until the input ends."""
    application = Application(json.loads(sys.argv[1]))
    sys.stdout.write(f"{ANSWER}{{}}\n")
    sys.stdout.flush()
    try:
        for line in sys.stdin:
            answer = application.obey(json.loads(line))
            sys.stdout.write(f"{ANSWER}{json.dumps(answer)}\n")
            sys.stdout.flush()
    finally:
        application.end()


if __name__ == "__main__":
    main()
