"""The states of an operator, as Spark knows them by name.

Their columns are Spark types: each text would be sent to the JVM to be parsed, in each task.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import MapState, ValueState

_BLOB = StructType([StructField("blob", BinaryType())])
_NAME = StructType([StructField("name", StringType())])
_BUCKET_AND_NAME = StructType([StructField("bucket", IntegerType()), *_NAME.fields])


def open_states(handle: Any, *, slots: bool) -> tuple[ValueState, MapState]:
    """Open the states of an operator: of a group, its own value and the large blobs by name."""
    if slots:
        return (
            handle.getValueState("slot", _BLOB),
            handle.getMapState("blobs", _BUCKET_AND_NAME, _BLOB),
        )
    return handle.getValueState("own", _BLOB), handle.getMapState("blobs", _NAME, _BLOB)
