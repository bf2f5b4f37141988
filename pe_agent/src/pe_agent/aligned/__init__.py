"""Operators with control tuples, state and event time, inside Spark queries.

>>> from pe_agent.aligned import Operator, stream  # doctest: +SKIP
>>> stream(frame).key_by("k").control_aware(MyOperator).to_df()  # doctest: +SKIP

A stream wraps a streaming DataFrame; operators are those of ``streambroker_core.control``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pe_agent.aligned.control_file import ControlFile, control_stream
from pe_agent.aligned.errors import AlignedError
from pe_agent.aligned.forms import numbered
from pe_agent.aligned.operators import OperatorStream, control_aware
from pe_agent.aligned.stream import Rows, Stream
from streambroker_core.control.operator import Blobs, Changes, Input, Operator
from streambroker_core.control.tuples import ControlTuple, Delivery, Limits, Target
from streambroker_core.control.typed import TypedOperator, handles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pe_agent.pe import PE


def stream(frame: DataFrame, *, pe: PE | None = None) -> Stream:
    """Take up a streaming DataFrame; its rows are in the order of tasks and of rows in them.

    Args:
        frame: a streaming DataFrame.
        pe: for publishing.

    Raises:
        AlignedError: it is not streaming, or a column has a reserved name.
    """
    if not frame.isStreaming:
        raise AlignedError("the DataFrame is not streaming: make it with readStream or subscribe.")
    return Stream(spark=frame.sparkSession, pe=pe, data=Rows(frame=numbered(frame)))


__all__ = [
    "AlignedError",
    "Blobs",
    "Changes",
    "ControlFile",
    "ControlTuple",
    "Delivery",
    "Input",
    "Limits",
    "Operator",
    "OperatorStream",
    "Stream",
    "Target",
    "TypedOperator",
    "control_aware",
    "control_stream",
    "handles",
    "stream",
]
