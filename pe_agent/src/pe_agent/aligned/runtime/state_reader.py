"""Reading of an operator's state from a checkpoint, to inspect a query."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pe_agent.aligned.runtime.state_store import read_bucket_state
from streambroker_core.control.runtime import runner_state
from streambroker_core.errors import AlignedError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SPARK_OPERATOR = "transformWithStateInPandasExec"


def read_states(
    spark: SparkSession, checkpoint: str | Path, operator: str
) -> dict[int, dict[str, bytes]]:
    """Return the blobs of an operator by bucket, as of the last finished window.

    The query may be running. All of the state is read into the driver.

    Raises:
        AlignedError: the checkpoint has no state of that operator.
    """
    known = set()
    for number in _operator_ids(spark, checkpoint):
        owns = {
            row.key.bucket: read_bucket_state(bytes(row.value.blob), operator)
            for row in _read_variable(spark, checkpoint, number, "own").collect()
        }
        names = {runner_state.operator_name(own.blobs) for own in owns.values()} - {None}
        if names != {operator}:
            known |= names
            continue
        by_bucket: dict[int, dict[str, bytes]] = {}
        for row in _read_variable(spark, checkpoint, number, "blobs").collect():
            blobs = by_bucket.setdefault(row.key.bucket, {})
            blobs[row.user_map_key.name] = bytes(row.user_map_value.blob)
        return by_bucket
    listed = ", ".join(sorted(map(str, known))) or "none"
    raise AlignedError(
        f"checkpoint {checkpoint} has no state of operator {operator}; it has that of {listed}."
    )


def _operator_ids(spark: SparkSession, checkpoint: str | Path) -> list[int]:
    from pyspark.errors import PySparkException

    try:
        rows = spark.read.format("state-metadata").load(str(checkpoint)).collect()
    except PySparkException as error:
        raise AlignedError(
            f"checkpoint {checkpoint} has no state that can be read: {error}"
        ) from error
    return sorted({row.operatorId for row in rows if row.operatorName == _SPARK_OPERATOR})


def _read_variable(
    spark: SparkSession, checkpoint: str | Path, number: int, variable: str
) -> DataFrame:
    reader = spark.read.format("statestore").option("operatorId", number)
    return reader.option("stateVarName", variable).load(str(checkpoint))
