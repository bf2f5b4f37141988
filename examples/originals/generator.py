"""Apex's generator and its receiver: a count that operators get at the end of a window or at once.

Covered of the documentation of user-defined control tuples:

- A field of an operator keeps its value from window to window: ``count`` is that of all windows.
- Any operator may send a control tuple, also at the end of a window, to which the tuple belongs.
- The tuple's type declares its delivery: at once between the rows, or after all rows of the window.
- An operator that knows nothing of control tuples passes them on.
- Behind, each partition receives each tuple once. Before, each partition sends its own.
- What a receiver does not handle itself goes on by itself: it answers False.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

sys.path.append(str(Path(__file__).parents[1] / "03-control-tuples"))
import feeding

import streambroker as sb

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEEN = "bucket int, count bigint, rows bigint"


@dataclass(frozen=True)
class Counted:
    """How many rows a generator has sent so far."""

    data: int
    immediate: bool

    def delivery(self) -> sb.Delivery:
        """Declare when it is delivered."""
        return sb.Delivery.IMMEDIATE if self.immediate else sb.Delivery.END_WINDOW


@dataclass
class Generator(sb.Operator):
    """Sends rows, and at the end of each window how many there have been."""

    immediate: Final[bool]
    count: int = 0

    def process(self, port: str, batch: pa.RecordBatch) -> None:
        """Send rows."""
        self.emit(batch)
        self.count += batch.num_rows

    def end_window(self) -> None:
        """Send the count."""
        self.emit_control(Counted(self.count, self.immediate))


class Unaware(sb.Operator):
    """Passes rows on, and knows nothing of control tuples."""

    def process(self, port: str, batch: pa.RecordBatch) -> None:
        """Pass rows on."""
        self.emit(batch)


@dataclass
class Receiver(sb.TypedOperator):
    """Hands out each count, and how many rows it has received before it."""

    rows: int = 0

    def process(self, port: str, batch: pa.RecordBatch) -> None:
        """Receive rows."""
        self.rows += batch.num_rows

    @sb.handles(Counted)
    def receive(self, port: str, payload: Counted, control: sb.ControlTuple) -> bool:
        """Receive a count."""
        seen = {"bucket": self.window.bucket, "count": payload.data, "rows": self.rows}
        self.emit(pa.RecordBatch.from_pylist([seen]))
        return False


def buckets(number: int) -> sb.OperatorOptions:
    """Return the options of an operator in this many partitions."""
    return sb.OperatorOptions(buckets=number)


def program(rows: sb.Stream, *, immediate: bool, before: int, behind: int) -> sb.Stream:
    """Return what receivers in ``behind`` partitions get of generators in ``before``."""
    generator = partial(Generator, immediate)
    sent = rows.key_by("v").apply(generator, name="generator", options=buckets(before))
    passed = sent.apply(Unaware, options=buckets(1))
    return passed.key_by("v").apply(Receiver, schema=SEEN, options=buckets(behind))


def run(spark: SparkSession, folder: Path, **settings: Any) -> dict[int, list[tuple[int, ...]]]:
    """Return bucket, count, and rows before it, of each count that is received, by window."""
    windows: list[dict[str, Any]] = [{"v": list(range(size))} for size in (4, 6, 4)]
    made = program(feeding.windows(spark, folder / "in", "v bigint", windows), **settings)
    found = feeding.collected(made, folder / "checkpoint")
    return {window: [tuple(row.values()) for row in rows] for window, rows in found.items()}


def main(spark: SparkSession, folder: Path) -> dict[int, list[tuple[int, ...]]]:
    """Run it with two generators and two receivers, for delivery at the end of the window."""
    return run(spark, folder, immediate=False, before=2, behind=2)


if __name__ == "__main__":
    feeding.main(main)
