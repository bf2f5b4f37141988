"""Add merchant and euros to each payment, from a table and a stream. Ctrl-C ends it."""

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

import streambroker as sb
from streambroker.side import TableStore, Views, side_map
from streambroker.testing import SMALL, session

for folder in ("payments", "rates"):
    Path(folder).mkdir(exist_ok=True)
spark = session("payments", cores=2, conf=SMALL)
columns = "id bigint, merchant string, currency string, amount double"
payments = spark.readStream.schema(columns).json("payments")
rates = spark.readStream.schema("currency string, rate double").json("rates")


def in_euros(batch: pa.RecordBatch, views: Views) -> pa.RecordBatch:
    """Convert the amounts of a batch."""
    euros = pc.round(pc.multiply(batch["amount"], batch["rate"]), 2)
    names = ["id", "name", "category", "currency", "rate"]
    return batch.select(names).append_column("euros", euros)


store = TableStore("store")
merchants = store.folder("merchants", "merchants", format="csv")
sides = (
    sb.stream(payments)
    .join_side(
        merchants=side_map(merchants, key="merchant"),
        rates=side_map(rates, key="currency", update="replace", timeout="30 seconds"),
    )
    .enrich("merchants", on="merchant")
    .enrich("rates", on="currency")
)
print(*sides.explain(), sep="\n", flush=True)
made = sides.map_batches(
    in_euros,
    "id bigint, name string, category string, currency string, rate double, euros double",
    own_keys=True,
)


def show(frames: dict[str, DataFrame], window: int) -> None:
    """Print the rows of a micro-batch, and those whose wait is over."""
    for output in ("out", "late"):
        for row in frames[output].orderBy("id").collect():
            print(output, *row, flush=True)


query = made.foreach_batch(show, checkpoint="checkpoints/with-rates")
try:
    query.awaitTermination()
except KeyboardInterrupt:
    query.stop()
finally:
    store.close()
