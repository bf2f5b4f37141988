"""Find fraud in a stream of payments, by the rules of a folder. Ctrl-C ends it."""

from collections.abc import Iterable
from typing import Any

from pyspark.sql import DataFrame

import streambroker as sb
from streambroker.patterns import DirectoryDiscoverer
from streambroker.testing import SMALL, session


def show_outcomes(outcomes: Iterable[Any]) -> None:
    """Print what became of each change of a rule."""
    for one in outcomes:
        print("rule", one.rule, one.version, one.change, one.reason, one.message, flush=True)


def show_matches(frames: dict[str, DataFrame], window: int) -> None:
    """Print the matches of a micro-batch."""
    for row in frames["matches"].orderBy("time").collect():
        amounts = {stage: [e["amount"] for e in taken] for stage, taken in row["events"].items()}
        print("match", row["rule"], row["version"], row["key"]["card"], amounts, flush=True)


spark = session("fraud", cores=2, conf=SMALL)
columns = "at timestamp, card string, amount double, country string"
payments = spark.readStream.schema(columns).json("payments")
found = (
    sb.stream(payments)
    .with_watermark("at", "2 seconds")
    .match_rules(
        DirectoryDiscoverer("rules", interval=1),
        key="card",
        control_file="checkpoints/fraud-rules",
        options=sb.OperatorOptions(buckets=4),
        on_outcomes=show_outcomes,
    )
)
query = found.foreach_batch(show_matches, checkpoint="checkpoints/fraud")
try:
    while not query.awaitTermination(15):
        print("waiting", found.rules.waiting().rows, "payments", flush=True)
except KeyboardInterrupt:
    query.stop()
