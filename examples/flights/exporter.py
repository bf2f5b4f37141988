"""The exporting job: a stream for each airport's departures, and one for the weather.

Each stream follows a directory into which Parquet files are moved, one file per micro-batch, so
one file is one epoch.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import streambroker as sb
from flights.orders import answer, obey, phase
from flights.tables import FLIGHTS, WEATHER, ddl
from streambroker.testing import SMALL, session

JOB = "airports"
PROPERTIES: dict[str, dict[str, Any]] = {
    "ewr": {"kind": "departures", "airport": "EWR", "year": 2013},
    "jfk": {"kind": "departures", "airport": "JFK", "year": 2013},
    "lga": {"kind": "departures", "airport": "LGA", "year": 2013},
    "weather": {"kind": "weather", "airports": ["EWR", "JFK", "LGA"], "quality": "raw"},
}


def main() -> None:
    """Publish all streams, then obey orders until told to stop."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--broker", required=True)
    parser.add_argument("--work", required=True, type=Path)
    options = parser.parse_args()
    spark = session(JOB, cores=2, conf=SMALL)
    phase("Spark started")
    pe = sb.start(
        spark, job=JOB, broker=options.broker, data_dir=options.work / "agents" / JOB, linger=5
    )
    phase("agent started")
    queries = {}
    for port, properties in PROPERTIES.items():
        columns = ddl(WEATHER if port == "weather" else FLIGHTS)
        files = spark.readStream.schema(columns).option("maxFilesPerTrigger", 1)
        queries[port] = pe.publish(
            files.parquet(str(options.work / "released" / port)),
            port,
            properties=properties,
            checkpoint=options.work / "checkpoints" / f"{JOB}-{port}",
            trigger={"processingTime": "200 milliseconds"},
        )
    phase(f"{len(queries)} queries started")
    answer(ready=JOB)

    def status() -> dict[str, Any]:
        failed = {port: str(q.exception()) for port, q in queries.items() if q.exception()}
        return {"failed": failed, "exports": pe.status()["exports"]}

    obey({"status": status})
    for query in queries.values():
        query.stop()
    pe.stop(end_agent=True)
    spark.stop()


if __name__ == "__main__":
    main()
