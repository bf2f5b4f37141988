"""Team Delays: import flights that left late, and print a line for each day. Ctrl-C ends it."""

import argparse
from pathlib import Path

from pyspark.sql import DataFrame

import streambroker as sb
from streambroker.testing import SMALL, session

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--broker", default="http://127.0.0.1:8470")
options = parser.parse_args()

spark = session("delays", cores=1, conf=SMALL)
pe = sb.start(spark, job="delays", broker=options.broker, data_dir="agents/delays")
late = pe.subscribe("late", 'kind == "departures" && checked', filter="dep_delay > 60")


def keep(batch: DataFrame, number: int) -> None:
    """Write a micro-batch to a folder of its own, and print a line for each day."""
    batch.write.mode("overwrite").parquet(str(Path("received") / f"{number:05}"))
    days = batch.groupBy("date", "origin").agg({"line": "count", "dep_delay": "min"})
    for row in days.orderBy("date", "origin").collect():
        print(f"{row[0]} {row[1]}: {row[2]} flights, {row[3]} minutes late or more", flush=True)


query = late.writeStream.foreachBatch(keep).option("checkpointLocation", "checkpoints/delays")
started = query.start()
print("waiting for flights", flush=True)
try:
    started.awaitTermination()
except KeyboardInterrupt:
    started.stop()
finally:
    pe.stop(end_agent=True)
