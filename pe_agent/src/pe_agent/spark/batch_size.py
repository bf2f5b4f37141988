"""Size of the Arrow batches that Spark makes of a query's rows for its Python workers.

To keep a batch below ``spark.sql.execution.arrow.maxBytesPerBatch``, Spark adds up all columns
before each row. For seven columns that is nearly half of the exporting JVM's processor time
(benchmarks/README.md). At the maximum value Spark skips this, and only the number of rows limits a
batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StructType, VariantType

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BYTES_SETTING = "spark.sql.execution.arrow.maxBytesPerBatch"
ROWS_SETTING = "spark.sql.execution.arrow.maxRecordsPerBatch"
UNLIMITED = str(2**31 - 1)
BATCH_ROWS = "4096"
"""With rows of up to 256 KiB a batch stays below the 1 GiB of a frame."""

_LARGE_TYPES = (BinaryType, ArrayType, MapType, VariantType)


@contextmanager
def limit_batches_by_rows(spark: SparkSession, schema: DataType) -> Iterator[None]:
    """Let queries that start in this context cut batches by rows alone.

    Changes nothing if the user set one of the two limits, or if a column has a type for large
    values: binary, array, map and variant.
    """
    before = spark.conf.getAll
    if BYTES_SETTING in before or ROWS_SETTING in before or _may_be_large(schema):
        yield
        return
    spark.conf.set(BYTES_SETTING, UNLIMITED)
    spark.conf.set(ROWS_SETTING, BATCH_ROWS)
    try:
        yield
    finally:
        spark.conf.unset(BYTES_SETTING)
        spark.conf.unset(ROWS_SETTING)


def _may_be_large(type_: DataType) -> bool:
    if isinstance(type_, StructType):
        return any(_may_be_large(field.dataType) for field in type_.fields)
    return isinstance(type_, _LARGE_TYPES)
