"""The rows that are measured: 80 bytes each, as Arrow batches and as a Spark expression."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

ROW_BYTES = 80
KEPT = 3
"""Micro-batches that peers keep on the disk, about as many as :data:`BUFFER` lets an agent keep."""
BUFFER = "256Mi"
"""``maxBytes`` of exports: small, so that their logs are as large as they get when the measuring
begins. A log that still grows takes memory nobody used before, which costs a virtual machine
ten times as much as memory that was just given back."""
BATCH_ROWS = 10_000
DDL = "name string, a bigint, b bigint, c bigint, d bigint, x double, y double"
SCHEMA = pa.schema(
    [("name", pa.string()), *((n, pa.int64()) for n in "abcd"), *((n, pa.float64()) for n in "xy")]
)
FIRST = 10**18
"""Added to a row's number for its text, which so has 28 characters and costs little to make: what
makes the rows is a part of every path that is measured."""
FROM_VALUE = (
    f"concat('departure', cast(value + {FIRST} as string)) as name",
    "value as a",
    "value + 1 as b",
    "value * 2 as c",
    "value % 1000 as d",
    "value * 0.5D as x",
    "value * 0.25D as y",
)
"""Makes the same rows of the column ``value`` of Spark's rate sources."""


def batch(first: int, count: int) -> pa.RecordBatch:
    """Return the rows made of ``first``, ``first + 1`` and so on."""
    value = np.arange(first, first + count)
    columns = [
        pa.array(np.char.add("departure", (value + FIRST).astype("U19"))),
        *(pa.array(v) for v in (value, value + 1, value * 2, value % 1000)),
        *(pa.array(value * factor) for factor in (0.5, 0.25)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def batches(count: int) -> list[pa.RecordBatch]:
    """Return ``count`` rows in batches as Spark makes them."""
    return [batch(first, min(BATCH_ROWS, count - first)) for first in range(0, count, BATCH_ROWS)]


def megabytes(rows: float) -> float:
    """Return the payload of rows in MB."""
    return rows * ROW_BYTES / 1e6
