"""A pipeline of Spark that imports trades, and exports those with a high price."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

import streambroker as sb

spark = SparkSession.active()
broker = os.environ.get("STREAMBROKER_URL", "http://127.0.0.1:8470")
pe = sb.start(spark, job="alerts", broker=broker, data_dir="/tmp/streambroker-pipeline/agent")

columns = "line bigint, price double, name string"
options = pe.sink_options("alerts", schema=columns, properties={"kind": "alert"})
dp.create_sink("alerts", "streambroker", options)


@dp.temporary_view
def trades() -> DataFrame:
    """Import trades."""
    return pe.subscribe("trades", 'kind == "trade"', start="earliest", schema=columns)


@dp.append_flow(target="alerts")
def dear() -> DataFrame:
    """Export those with a high price."""
    return spark.readStream.table("trades").where("price > 40")
