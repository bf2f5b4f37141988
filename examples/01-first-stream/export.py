"""Export a stream of made-up trades. Ctrl-C ends it."""

import os

import streambroker as sb
from streambroker.testing import session

BROKER = os.environ.get("STREAMBROKER_URL", "http://127.0.0.1:8470")
SYMBOL = "element_at(array('IBM', 'GOOG', 'AAPL'), int(value % 3) + 1)"

spark = session("exchange", cores=1)
pe = sb.start(spark, job="exchange", broker=BROKER, data_dir="first-stream/exchange")

ticks = spark.readStream.format("rate").option("rowsPerSecond", 10).load()
trades = ticks.selectExpr("value AS number", f"{SYMBOL} AS symbol", "value * 37 % 100 AS price")

query = pe.publish(
    trades,
    "trades",
    properties={"kind": "trade", "exchange": "example"},
    checkpoint="first-stream/exchange-checkpoint",
    trigger={"processingTime": "1 second"},
)
print("exporting trades", flush=True)
try:
    query.awaitTermination()
except KeyboardInterrupt:
    query.stop()
finally:
    pe.stop(end_agent=True)
