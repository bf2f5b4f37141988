"""Add the merchant's name and category to each payment, from a table. Ctrl-C ends it."""

from pathlib import Path

import streambroker as sb
from streambroker.side import TableStore, side_map
from streambroker.testing import SMALL, session

Path("payments").mkdir(exist_ok=True)
spark = session("payments", cores=2, conf=SMALL)
columns = "id bigint, merchant string, currency string, amount double"
payments = spark.readStream.schema(columns).json("payments")

store = TableStore("store")
merchants = store.folder("merchants", "merchants", format="csv")
sides = (
    sb.stream(payments)
    .join_side(merchants=side_map(merchants, key="merchant"))
    .enrich("merchants", on="merchant", version="merchants_version")
)
print(*sides.explain(), sep="\n", flush=True)

query = (
    sides.to_df()
    .writeStream.format("console")
    .option("truncate", False)
    .option("checkpointLocation", "checkpoints/with-table")
    .start()
)
try:
    query.awaitTermination()
except KeyboardInterrupt:
    query.stop()
finally:
    store.close()
