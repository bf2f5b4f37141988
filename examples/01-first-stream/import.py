"""Import the trades that someone exports, and print them. Ctrl-C ends it."""

import os

import pe_agent
from pe_agent.local import session

BROKER = os.environ.get("STREAMBROKER_URL", "http://127.0.0.1:8470")

spark = session("alerts", cores=1)
pe = pe_agent.start(spark, job="alerts", broker=BROKER, data_dir="first-stream/alerts")

trades = pe.subscribe("trades", 'kind == "trade"', filter="price > 80")

query = (
    trades.writeStream.format("console")
    .option("checkpointLocation", "first-stream/alerts-checkpoint")
    .start()
)
try:
    query.awaitTermination()
except KeyboardInterrupt:
    query.stop()
finally:
    pe.stop(end_agent=True)
