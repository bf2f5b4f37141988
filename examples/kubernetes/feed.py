"""Export a stream of made-up trades, as a Spark job on Kubernetes."""

import os

from pyspark.sql import SparkSession

import streambroker as sb

HOME = "/var/lib/streambroker"
CHECKPOINT = os.environ.get("CHECKPOINT", f"{HOME}/checkpoint")
SYMBOL = "element_at(array('IBM', 'GOOG', 'AAPL'), int(value % 3) + 1)"

spark = SparkSession.builder.getOrCreate()
pe = sb.start(
    spark,
    job="feed",
    namespace=os.environ["POD_NAMESPACE"],
    broker=os.environ["STREAMBROKER_URL"],
    data_dir=f"{HOME}/agent",
    auth=sb.BrokerAuth(token_file="/var/run/secrets/streambroker/token"),
    agent=sb.AgentOptions(host=os.environ["POD_IP"], port=8472),
)

ticks = spark.readStream.format("rate").option("rowsPerSecond", 10).load()
trades = ticks.selectExpr("value AS number", f"{SYMBOL} AS symbol", "value * 37 % 100 AS price")

# No settings: the Export is declared by streams.yaml.
query = pe.publish(trades, "trades", checkpoint=CHECKPOINT)
query.awaitTermination()
