"""Reading of an operator's state from a checkpoint, to inspect a query."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pe_agent.aligned.runtime.state_store import (
    BucketState,
    GroupState,
    read_bucket_state,
    split_hop,
)
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
        buckets, slots, sharing = _read_buckets(spark, checkpoint, number, operator)
        names = {runner_state.operator_name(own.blobs) for own in buckets.values()} - {None}
        if operator not in names:
            known |= names | sharing
            continue
        prefix = f"{operator}/" if sharing else ""
        by_bucket: dict[int, dict[str, bytes]] = {
            bucket: {
                name: blob
                for name, blob in own.blobs.items()
                if not name.startswith(runner_state.RUNNER_PREFIX)
            }
            for bucket, own in buckets.items()
        }
        for row in _read_variable(spark, checkpoint, number, "blobs").collect():
            bucket = row.user_map_key.bucket if slots else row.key.bucket
            name = row.user_map_key.name
            if name.startswith(prefix):
                by_bucket[bucket][name.removeprefix(prefix)] = bytes(row.user_map_value.blob)
        return {bucket: blobs for bucket, blobs in by_bucket.items() if blobs}
    listed = ", ".join(sorted(map(str, known))) or "none"
    raise AlignedError(
        f"checkpoint {checkpoint} has no state of operator {operator}; it has that of {listed}."
    )


def _read_buckets(
    spark: SparkSession, checkpoint: str | Path, number: int, operator: str
) -> tuple[dict[int, BucketState], bool, set[str]]:
    """Return the states of an operator's buckets, and whether they are grouped in slots.

    The last value has the names of the operators that share a hop; it is empty for one alone.
    """
    from pyspark.errors import PySparkException

    try:
        values = _read_variable(spark, checkpoint, number, "slot").collect()
    except PySparkException:  # a checkpoint with a group for each bucket
        rows = _read_variable(spark, checkpoint, number, "own").collect()
        owns = ((row.key.bucket, bytes(row.value.blob)) for row in rows)
        return {bucket: read_bucket_state(data, operator) for bucket, data in owns}, False, set()
    groups, sharing = [], set[str]()
    for row in values:
        data = bytes(row.value.blob)
        parts = split_hop(data, operator)
        sharing |= parts.keys()
        if not parts or operator in parts:
            groups.append(GroupState(parts.get(operator, data), operator, None))
    states = {bucket: one.bucket(bucket) for one in groups for bucket in one.buckets()}
    return states, True, sharing


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
