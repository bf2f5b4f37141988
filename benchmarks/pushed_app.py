"""A Spark application that runs a rule over an import, with push-down or with all rows.

Orders come as lines of JSON, ``{"port", "subscription", "rule": document, "push_down",
"buckets", "checkpoint", "control"}``; the answer is a list of micro-batches and the number of
matches.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

from processes import ANSWER, SECONDS, App
from spark_app import session, shortened

import streambroker as sb
from streambroker.operators import OperatorOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from streambroker import PE
    from streambroker.patterns import PatternProcessorManager

DDL = "t timestamp, key bigint, kind string, price double"


class PushedApp(App):
    """The application in a process of its own."""

    program = "pushed_app"


class Fixed:
    """Rules that stay as they are."""

    def __init__(self, rules: Sequence[Any]) -> None:
        self._rules = rules

    def initial_pattern_processors(self) -> Sequence[Any]:
        """Return them."""
        return self._rules

    def discover_pattern_processor_updates(self, manager: PatternProcessorManager) -> None:
        """Find nothing more."""

    def close(self) -> None:
        """Nothing is open."""


def run(spark: SparkSession, pe: PE, order: dict[str, Any]) -> dict[str, Any]:
    """Run a rule over all epochs; return its micro-batches and how many matches there were."""
    from pyspark.sql import functions

    stream = pe.subscribe_stream(
        order["port"],
        order["subscription"],
        start="earliest",
        schema=DDL,
        max_bytes_per_batch=1,
    )
    found = stream.with_watermark("t", "0 seconds").match_rules(
        Fixed([order["rule"]]),
        key="key",
        control_file=order["control"],
        push_down=order["push_down"],
        timeouts=False,
        options=OperatorOptions(buckets=order["buckets"]),
    )
    pushed = found.rules.relevance.filter is not None
    if pushed != order["push_down"]:
        raise RuntimeError(f"pushed down: {found.rules.relevance}")
    query = (
        found.to_df()
        .observe("found", functions.count(functions.lit(1)).alias("matches"))
        .writeStream.format("noop")
        .option("checkpointLocation", order["checkpoint"])
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(int(SECONDS))
    progress = query.recentProgress
    query.stop()
    observed = [p["observedMetrics"].get("found") for p in progress]
    return {
        "batches": [{**shortened(p), "next": next_epoch(p)} for p in progress],
        "matches": sum(one["matches"] for one in observed if one is not None),
    }


def next_epoch(progress: Any) -> int:
    """Return the epoch of the import's one stream behind which a micro-batch ended; 0 for none."""
    offsets = [json.loads(source["endOffset"]) for source in progress["sources"]]
    streams = [stream for offset in offsets for stream in offset.get("streams", {}).values()]
    return max((int(stream["next"]) for stream in streams), default=0)


def main() -> None:
    """Obey until the input ends."""
    plan = json.loads(sys.argv[1])
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: plan["cores"]])
    spark = session(plan)
    pe = sb.start(
        spark,
        job=plan["job"],
        broker=plan["broker"],
        data_dir=plan["home"],
        linger=20.0,
        application="bench",
    )
    sys.stdout.write(f"{ANSWER}{{}}\n")
    sys.stdout.flush()
    try:
        for line in sys.stdin:
            sys.stdout.write(f"{ANSWER}{json.dumps(run(spark, pe, json.loads(line)))}\n")
            sys.stdout.flush()
    finally:
        pe.stop(end_agent=True)
        spark.stop()


if __name__ == "__main__":
    main()
