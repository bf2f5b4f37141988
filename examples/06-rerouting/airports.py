"""Team Airports: export the departures of two airports. Ctrl-C ends it."""

import argparse
from pathlib import Path
from threading import Event, Thread

from days import DDL, write_days

import streambroker as sb
from streambroker.testing import SMALL, session

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--broker", default="http://127.0.0.1:8470")
parser.add_argument("--seconds", type=float, default=5.0, help="seconds that a day takes")
options = parser.parse_args()

folder, ended = Path("days"), Event()
airports = {"jfk": "JFK", "lga": "LGA"}
for port in airports:
    (folder / port).mkdir(parents=True, exist_ok=True)

spark = session("airports", cores=2, conf=SMALL)
pe = sb.start(spark, job="airports", broker=options.broker, data_dir="agents/airports")


def export(port: str, checked: bool) -> None:
    """Publish the days of one airport."""
    files = spark.readStream.schema(DDL).option("maxFilesPerTrigger", 1)
    pe.publish(
        files.parquet(str(folder / port)),
        port,
        properties={"kind": "departures", "airport": airports[port], "checked": checked},
        buffer={"maxBytes": "50k"},
        checkpoint=f"checkpoints/{port}",
    )


export("jfk", checked=True)
export("lga", checked=False)
arguments = (folder, airports, options.seconds, ended)
feeder = Thread(target=write_days, args=arguments, daemon=True)
feeder.start()
print(f"exporting a day every {options.seconds:g} seconds", flush=True)
try:
    spark.streams.awaitAnyTermination()
except KeyboardInterrupt:
    ended.set()
    for query in spark.streams.active:
        query.stop()
finally:
    pe.stop(end_agent=True)
