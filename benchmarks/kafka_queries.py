"""Spark's side of Kafka: the same rows as Avro or JSON values, out of a query and into one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

PARTITIONS = 2
PRODUCER = {"kafka.linger.ms": "10", "kafka.batch.size": str(256 << 10)}
CONSUMER = {
    "kafka.max.partition.fetch.bytes": str(8 << 20),
    "kafka.max.poll.records": "10000",
}
TOPIC = {"file.delete.delay.ms": "1000"}
_AVRO = {"string": "string", "bigint": "long", "double": "double"}


def avro(ddl: str) -> str:
    """Return columns as an Avro schema."""
    columns = (column.split() for column in ddl.split(", "))
    fields = [{"name": name, "type": _AVRO[kind]} for name, kind in columns]
    return json.dumps({"type": "record", "name": "row", "fields": fields})


def into(values: str, ddl: str) -> str:
    """Return the expression that makes a message's value of a row."""
    made = f"to_avro(struct(*), '{avro(ddl)}')" if values == "avro" else "to_json(struct(*))"
    return f"{made} as value"


def out_of(values: str, ddl: str) -> str:
    """Return the expression that makes a row of a message's value."""
    if values == "avro":
        return f"from_avro(value, '{avro(ddl)}') as row"
    return f"from_json(cast(value as string), '{ddl}') as row"


def admin_of(jvm: Any, servers: str) -> Any:
    """Return a client that changes Kafka, in a JVM that has Kafka's client."""
    settings = jvm.java.util.HashMap()
    settings.put("bootstrap.servers", servers)
    return jvm.org.apache.kafka.clients.admin.Admin.create(settings)


def topic(jvm: Any, servers: str, *, make: str | None, drop: str | None) -> None:
    """Make a topic of two partitions without a copy, delete one that is not needed any more."""
    admin = admin_of(jvm, servers)
    try:
        if make is not None:
            optional = jvm.java.util.Optional
            new = jvm.org.apache.kafka.clients.admin.NewTopic(
                make, optional.of(PARTITIONS), optional.empty()
            )
            admin.createTopics([new.configs(TOPIC)]).all().get()
        if drop is not None:
            admin.deleteTopics([drop]).all().get()
    finally:
        admin.close()


def read(spark: SparkSession, order: dict[str, Any]) -> DataFrame:
    """Return the rows of a topic, from its beginning."""
    reader = spark.readStream.format("kafka").options(
        **CONSUMER,
        **{
            "kafka.bootstrap.servers": order["servers"],
            "subscribe": order["topic"],
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": str(order["rows"]),
        },
    )
    frame = (
        reader.load()
        .selectExpr(out_of(order["values"], order.get("ddl", rows.DDL)))
        .select("row.*")
    )
    return frame.where(order["filter"]) if order.get("filter") else frame


def write(frame: DataFrame, order: dict[str, Any]) -> DataStreamWriter:
    """Return the writer of rows into a topic."""
    return (
        frame.selectExpr(into(order["values"], order.get("ddl", rows.DDL)))
        .writeStream.format("kafka")
        .options(**PRODUCER, topic=order["topic"])
        .option("kafka.bootstrap.servers", order["servers"])
    )
