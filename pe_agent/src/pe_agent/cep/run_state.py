"""Why nothing has matched: where the runs of a rule stand, in a query that runs or has ended."""

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
    """Return where the runs of a rule stand, by the values of their keys.

    It is what the last window left that has ended; the query may run meanwhile. All of the
    operator's state is read into the driver.

    Args:
        spark: a session.
        checkpoint: directory of the query's checkpoint.
        rule: id of the rule; all its versions are looked at.
        key: values of one key; None for all keys.
        operator: name of the operator, as `pattern_processors` was given it.
        functions: Python functions that conditions name.

    Raises:
        AlignedError: the checkpoint has no state of that operator.
        StateError: the state is damaged.
    """
    found: dict[tuple[Any, ...], list[RunState]] = {}
    for bucket, blobs in read_states(spark, checkpoint, operator).items():
        if "rules" not in blobs:
            continue
        made = PatternOperator(time="processing", functions=functions)
        window = Window(number=0, time=0, watermark=None, bucket=bucket, buckets=bucket + 1)
        made.bind(window, None)
        made.restore(made.state_version, blobs)
        found |= made.engine.run_states(rule)
    return {one: runs for one, runs in found.items() if key is None or one == tuple(key)}
