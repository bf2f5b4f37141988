"""Import the trades that someone exports, and print them, as a Spark job on Kubernetes."""

import os

from pyspark.sql import SparkSession

import streambroker as sb

HOME = "/var/lib/streambroker"

spark = SparkSession.builder.getOrCreate()
pe = sb.start(
    spark,
    job="alerts",
    namespace=os.environ["POD_NAMESPACE"],
    broker=os.environ["STREAMBROKER_URL"],
    data_dir=f"{HOME}/agent",
    auth=sb.BrokerAuth(token_file="/var/run/secrets/streambroker/token"),
    agent=sb.AgentOptions(host=os.environ["POD_IP"], port=8472),
)

# No settings: the Import is declared by streams.yaml.
trades = pe.subscribe("trades")
query = (
    trades.writeStream.format("console").option("checkpointLocation", f"{HOME}/checkpoint").start()
)
query.awaitTermination()
