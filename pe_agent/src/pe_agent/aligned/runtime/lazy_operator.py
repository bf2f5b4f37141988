"""An operator as Spark's plan has it: unpickled by tasks, and never at the driver.

Before each micro-batch Spark starts a Python process beside the driver, to ask for the names of the
operator's states, and the batch waits for it. So nothing is imported here but what Spark has
imported there by itself: the operator, what it is made of and Arrow stay pickled.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.serializers import CPickleSerializer
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

if TYPE_CHECKING:
    import pandas as pd

    from pe_agent.aligned.runtime.processor import BucketProcessor, Hosted
    from pe_agent.aligned.runtime.state_store import Value, Values


def states(handle: Any) -> tuple[Value, Values]:
    """Open the states of an operator: the runner's own blobs, and others by name."""
    return (
        handle.getValueState("own", "blob binary"),
        handle.getMapState("blobs", "name string", "blob binary"),
    )


class Deferred(StatefulProcessor):
    """Becomes a ``BucketProcessor`` in a task."""

    def __init__(self, hosted: Hosted) -> None:
        spark: Any = CPickleSerializer()
        self._pickled: bytes = spark.dumps(hosted)
        self._runs: BucketProcessor | None = None

    def size(self) -> int:
        """Return the bytes of the operator and of all that it refers to."""
        return len(self._pickled)

    def init(self, handle: Any) -> None:
        """Open the state; see ``BucketProcessor.init``."""
        if TaskContext.get() is None:
            states(handle)
            return
        from pe_agent.aligned.runtime.processor import BucketProcessor

        self._runs = BucketProcessor(pickle.loads(self._pickled))  # noqa: S301 - ours, of the plan
        self._runs.init(handle)

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: Any,
        rows: Iterator[Any],
        timerValues: Any,  # noqa: N803 - Spark's name
    ) -> Iterator[pd.DataFrame]:
        """Run the window of a bucket; see ``BucketProcessor``."""
        return self._running().handleInputRows(key, rows, timerValues)

    def handleExpiredTimer(  # noqa: N802 - Spark's name
        self,
        key: Any,
        timerValues: Any,  # noqa: N803 - Spark's name
        expiredTimerInfo: Any,  # noqa: N803 - Spark's name
    ) -> Iterator[pd.DataFrame]:
        """Run the window of a bucket in which something is due; see ``BucketProcessor``."""
        return self._running().handleExpiredTimer(key, timerValues, expiredTimerInfo)

    def close(self) -> None:
        """End the task's run."""
        if self._runs is not None:
            self._runs.close()

    def _running(self) -> BucketProcessor:
        assert self._runs is not None, "Spark calls init first"  # noqa: S101
        return self._runs
