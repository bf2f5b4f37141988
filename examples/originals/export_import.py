"""OSStreams' Export and Import, changed while both jobs run by the functions of IBM Streams.

Covered of the original:

- Export and Import are of the streams, not operators. Each job may be there first.
- A subscription is an expression over properties. Rows that no import matches go nowhere.
- A job changes its subscription, its filter and its properties. Each call returns a code.
- A filter is applied at the exporter, and does not change with the subscription.
- A getter returns what applies, and never ends the job.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.append(str(Path(__file__).parents[1] / "05-side-inputs"))
from both import Feed, main

import streambroker as sb
from streambroker.functions import (
    DONE,
    get_import_filter,
    set_export_properties,
    set_import_filter,
    set_import_subscription,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BROKER = os.environ.get("STREAMBROKER_URL", "http://127.0.0.1:8470")
PROGRAMMED: dict[str, Any] = {"wait": "programmed", "timeout": "60 seconds"}


def change(
    importer: sb.PE,
    exporter: sb.PE,
    send: Callable[[int], None],
    wait_until_read: Callable[[int], None],
) -> list[int]:
    """Send numbers between changes; return the codes of calls.

    A change holds from the importer's next batch on, also for numbers that it has not read yet.
    """
    send(1)  # the property is 0: no import matches
    codes = [set_import_subscription(importer, "in", "minimum >= 0", **PROGRAMMED)]
    send(2)
    wait_until_read(2)
    codes += [set_import_filter(importer, "in", "number > 3", **PROGRAMMED)]
    send(3)  # filtered
    send(4)
    wait_until_read(4)
    codes += [set_export_properties(exporter, "out", {"minimum": -1}, **PROGRAMMED)]
    send(5)  # no import matches any more
    codes += [set_import_subscription(importer, "in", "minimum < 0", **PROGRAMMED)]
    send(2)  # the filter has stayed
    send(6)
    wait_until_read(6)
    assert tuple(get_import_filter(importer, "in")) == ("number > 3", DONE)
    wrong = [set_import_filter(importer, "in", "number >"), set_import_filter(importer, "none", "")]
    return [int(each) for each in [*codes, *wrong]]


def run(spark: SparkSession, folder: Path, broker: str = BROKER) -> tuple[list[int], list[int]]:
    """Return the codes of the functions, and the numbers that were imported."""
    numbers = Feed(spark, folder / "numbers", "number bigint")
    found: list[int] = []
    arrived = threading.Condition()

    def take(batch: DataFrame, window: int) -> None:
        with arrived:
            found.extend(row.number for row in batch.collect())
            arrived.notify_all()

    def wait_until_read(number: int) -> None:
        with arrived:
            arrived.wait_for(lambda: number in found, timeout=60)

    with ExitStack() as stack:
        importer, exporter = (
            sb.start(spark, job=job, broker=broker, data_dir=folder / job)
            for job in ("importer", "exporter")
        )
        for pe in (importer, exporter):
            stack.callback(pe.stop, end_agent=True)
        imported = importer.subscribe("in", "minimum < 0", schema="number bigint")
        checkpoint = str(folder / "checkpoint-in")
        writer = imported.writeStream.foreachBatch(take).option("checkpointLocation", checkpoint)
        importing = writer.start()
        stack.callback(importing.stop)
        importing.processAllAvailable()  # a query gets what is sent after it has begun to read
        exporting = exporter.publish(
            numbers.frame, "out", properties={"minimum": 0}, checkpoint=folder / "checkpoint-out"
        )
        stack.callback(exporting.stop)

        def send(number: int) -> None:
            numbers.put(number=[number])
            exporting.processAllAvailable()

        codes = change(importer, exporter, send, wait_until_read)
    return codes, found


if __name__ == "__main__":
    main(run)
