"""A Spark job for tests: exports file streams, writes imports to files, runs until killed.

The plan is a JSON file: ``{"job", "home", "broker", "start": {…}, "attempts", "exports":
[{"port", "feed", "checkpoint", …publish settings}], "imports": [{"port", "out", "checkpoint",
…subscribe settings}]}``; ``start`` and ``attempts`` may be left out.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pe_agent
from pe_agent.local import SMALL, session
from support.feeds import DDL


def main(path: str) -> None:
    """Run the plan until a query fails or the process is killed."""
    plan: dict[str, Any] = json.loads(Path(path).read_text())
    conf = {
        "spark.driver.memory": "700m",
        "spark.master": f"local[1,{plan.get('attempts', 1)}]",
        # A long run is checked by its checkpoints, from the first batch on.
        "spark.sql.streaming.minBatchesToRetain": "100000",
    }
    spark = session(plan["job"], conf={**SMALL, **conf})
    pe = pe_agent.start(
        spark,
        job=plan["job"],
        data_dir=plan["home"],
        broker=plan["broker"],
        linger=20,
        **plan.get("start", {}),
    )
    for export in plan.get("exports", []):
        folder = export.pop("feed")
        frame = (
            spark.readStream.schema(DDL)
            .option("maxFilesPerTrigger", 1)
            .option("latestFirst", "false")
            .parquet(folder)
        )
        pe.publish(frame, **export)
    for import_ in plan.get("imports", []):
        out, checkpoint = import_.pop("out"), import_.pop("checkpoint")
        (
            pe.subscribe(**import_)
            .writeStream.format("parquet")
            .option("path", out)
            .option("checkpointLocation", checkpoint)
            .start()
        )
    sys.stdout.write("job ready\n")
    sys.stdout.flush()
    spark.streams.awaitAnyTermination()
    failed = [q.exception() for q in spark.streams.active if q.exception()]
    sys.stdout.write(f"job ended {failed}\n")


if __name__ == "__main__":
    main(sys.argv[1])
