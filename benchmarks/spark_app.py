"""A Spark application that runs the queries it is told to, one order after the other.

Orders come as lines of JSON: ``{"source": {"kind": …}, "sink": {"kind": …}, "checkpoint": …,
"batches": n | "rows": n | "seconds": s}``. The answer is the list of the query's progress reports,
shortened. Lines with answers begin with ``@@``, since the JVM writes to the same place.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any

import rows
import sources
from processes import ANSWER

import pe_agent
from pe_agent.local import CONF, ensure_java

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from pe_agent import PE

QUIET = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "5000",
    "spark.driver.memory": "1g",
}


def session(plan: dict[str, Any]) -> SparkSession:
    """Return a session, with the settings of ``pe_agent.local`` or with Spark's own."""
    ensure_java()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(f"local[{plan['cores']}]").appName(plan["job"])
    for key, value in {**(CONF if plan.get("tuned", True) else {}), **QUIET}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    for source in sources.ALL:
        spark.dataSource.register(source)
    return spark


class Application:
    """One session and its PE."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.spark = session(plan)
        self.pe: PE | None = None
        if plan.get("broker"):
            self.pe = pe_agent.start(
                self.spark,
                job=plan["job"],
                broker=plan["broker"],
                data_dir=plan["home"],
                linger=20.0,
                application="bench",
            )

    def frame(self, kind: str, **more: Any) -> DataFrame:
        """Return a streaming DataFrame of one of the kinds of sources."""
        if kind == "rate":
            reader = (
                self.spark.readStream.format("rate-micro-batch")
                .option("rowsPerBatch", more["rows"])
                .option("numPartitions", 2)
            )
            return reader.load().selectExpr(*rows.FROM_VALUE)
        if kind == "import":
            assert self.pe is not None
            return self.pe.subscribe(start="earliest", **more)
        reader = self.spark.readStream.format(kind)
        for name, value in more.items():
            reader = reader.option(name, value)
        return reader.load()

    def query(
        self, source: dict[str, Any], sink: dict[str, Any], checkpoint: str
    ) -> StreamingQuery:
        """Start a query into one of the kinds of sinks."""
        frame, kind = self.frame(**source), sink.pop("kind")
        if kind == "export":
            assert self.pe is not None
            return self.pe.publish(frame, checkpoint=checkpoint, **sink)
        writer = frame.writeStream.format(kind).option("checkpointLocation", checkpoint)
        for name, value in sink.items():
            writer = writer.option(name, value)
        return writer.start()

    def run(self, order: dict[str, Any]) -> list[dict[str, Any]]:
        """Run a query until it has done enough; return its batches."""
        query = self.query(order["source"], order["sink"], order["checkpoint"])
        deadline = time.monotonic() + order.get("seconds", 170.0)
        try:
            while time.monotonic() < deadline and not _enough(query, order):
                if not query.isActive:
                    raise RuntimeError(f"the query ended: {query.exception()}")
                time.sleep(0.1)
        finally:
            query.stop()
        return [_short(p) for p in query.recentProgress if p["numInputRows"] or p["durationMs"]]

    def end(self) -> None:
        """End agent and session."""
        if self.pe is not None:
            self.pe.stop(end_agent=True)
        self.spark.stop()


def _enough(query: StreamingQuery, order: dict[str, Any]) -> bool:
    if "rows" in order:
        return bool(sum(p["numInputRows"] for p in query.recentProgress) >= order["rows"])
    if "batches" in order:
        return sum(1 for p in query.recentProgress if p["numInputRows"]) >= int(order["batches"])
    return False


def _short(progress: Any) -> dict[str, Any]:
    began = datetime.fromisoformat(progress["timestamp"].replace("Z", "+00:00")).timestamp()
    return {
        "batch": progress["batchId"],
        "rows": progress["numInputRows"],
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
            answer = application.run(json.loads(line))
            sys.stdout.write(f"{ANSWER}{json.dumps(answer)}\n")
            sys.stdout.flush()
    finally:
        application.end()


if __name__ == "__main__":
    main()
