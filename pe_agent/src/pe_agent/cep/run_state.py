"""Explanation of missing matches: the states of a rule's runs, from a query's checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pe_agent.aligned.runtime.state_reader import read_states
from streambroker_core.cep.engine.trace import RunState
from streambroker_core.cep.operator import PatternOperator
from streambroker_core.cep.rules.document import Functions
from streambroker_core.control.operators.operator import Window

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def explain(
    spark: SparkSession,
    checkpoint: str | Path,
    rule: str,
    *,
    key: Sequence[Any] | None = None,
    operator: str = "patterns",
    functions: Functions | None = None,
) -> dict[tuple[Any, ...], list[RunState]]:
    """Return the state of the runs of a rule, by the values of their keys.

    It is the state after the last finished window; the query may be running. All of the operator's
    state is read into the driver.

    Args:
        spark: a session.
        checkpoint: directory of the query's checkpoint.
        rule: id of the rule; all its versions are included.
        key: values of one key; None for all keys.
        operator: name of the operator, as passed to `match_rules`.
        functions: Python functions that conditions name.

    Raises:
        AlignedError: the checkpoint has no state of that operator.
        StateError: the state is damaged.
    """
    states: dict[tuple[Any, ...], list[RunState]] = {}
    for bucket, blobs in read_states(spark, checkpoint, operator).items():
        if "rules" not in blobs:
            continue
        instance = PatternOperator(time="processing", functions=functions)
        window = Window(number=0, time=0, watermark=None, bucket=bucket, buckets=bucket + 1)
        instance.bind(window, None)
        instance.restore(instance.state_version, blobs)
        states |= instance.engine.run_states(rule)
    return {one: runs for one, runs in states.items() if key is None or one == tuple(key)}
