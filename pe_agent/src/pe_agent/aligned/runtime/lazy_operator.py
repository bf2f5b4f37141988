"""The form of an operator in Spark's plan: unpickled by tasks, never in the driver.

Before each micro-batch Spark starts a Python process next to the driver to ask for the names of the
operator's states, and the batch waits for it. So this module imports only what Spark imports there
anyway: the operator, its parts and Arrow stay pickled.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.serializers import CPickleSerializer
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from pe_agent.aligned.runtime.state_names import open_states

if TYPE_CHECKING:
    import pandas as pd

    from pe_agent.aligned.runtime.processor import GroupProcessor, OperatorConfig


class LazyOperator(StatefulProcessor):
    """Becomes a ``GroupProcessor`` in a task."""

    def __init__(self, config: OperatorConfig, *following: OperatorConfig) -> None:
        spark: Any = CPickleSerializer()
        self._pickled: bytes = spark.dumps((config, *following))
        self._slots = config.slots
        self._processor: GroupProcessor | None = None

    def size(self) -> int:
        """Return the bytes of the operator with all that it refers to."""
        return len(self._pickled)

    def init(self, handle: Any) -> None:
        """Open the state; see ``GroupProcessor.init``. Outside of tasks only declare it."""
        if TaskContext.get() is None:
            open_states(handle, slots=self._slots)
            return
        from pe_agent.aligned.runtime.processor import GroupProcessor

        self._processor = GroupProcessor(*pickle.loads(self._pickled))  # noqa: S301 - ours, of the plan
        self._processor.init(handle)

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: Any,
        rows: Iterator[Any],
        timerValues: Any,  # noqa: N803 - Spark's name
    ) -> Iterator[pd.DataFrame]:
        """Run the windows of a group; see ``GroupProcessor``."""
        return self._require_processor().handleInputRows(key, rows, timerValues)

    def handleExpiredTimer(  # noqa: N802 - Spark's name
        self,
        key: Any,
        timerValues: Any,  # noqa: N803 - Spark's name
        expiredTimerInfo: Any,  # noqa: N803 - Spark's name
    ) -> Iterator[pd.DataFrame]:
        """Run the windows of a group whose timer is due; see ``GroupProcessor``."""
        return self._require_processor().handleExpiredTimer(key, timerValues, expiredTimerInfo)

    def close(self) -> None:
        """End the task's run."""
        if self._processor is not None:
            self._processor.close()

    def _require_processor(self) -> GroupProcessor:
        assert self._processor is not None, "Spark calls init first"  # noqa: S101
        return self._processor
