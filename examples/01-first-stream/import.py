"""Import the trades that another job exports, and print them. Ctrl-C ends it."""

import os

import streambroker as sb
from streambroker.testing import session

BROKER = os.environ.get("STREAMBROKER_URL", "http://127.0.0.1:8470")

spark = session("printer", cores=1)
pe = sb.start(spark, job="printer", broker=BROKER, data_dir="first-stream/printer")

trades = pe.subscribe("trades", 'kind == "trade"', filter="price > 80")

query = (
    trades.writeStream.format("console")
    .option("checkpointLocation", "first-stream/printer-checkpoint")
    .start()
)
try:
    query.awaitTermination()
except KeyboardInterrupt:
    query.stop()
finally:
    pe.stop(end_agent=True)
