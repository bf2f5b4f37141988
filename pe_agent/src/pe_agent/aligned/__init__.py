"""Operators with control tuples, state and event time, inside Spark queries.

>>> from pe_agent.aligned import Operator, stream  # doctest: +SKIP
>>> stream(frame).key_by("k").control_aware(MyOperator).to_df()  # doctest: +SKIP

A stream wraps a streaming DataFrame; operators are those of ``streambroker_core.control``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pe_agent.aligned.control_file import ControlFile, control_stream
    from pe_agent.aligned.errors import AlignedError
    from pe_agent.aligned.operators import OperatorStream, control_aware
    from pe_agent.aligned.streams import Stream, stream
    from streambroker_core.control.operator import Blobs, Changes, Input, Operator
    from streambroker_core.control.tuples import ControlTuple, Delivery, Limits, Target
    from streambroker_core.control.typed import TypedOperator, handles

_WHERE = {
    "AlignedError": "pe_agent.aligned.errors",
    "Blobs": "streambroker_core.control.operator",
    "Changes": "streambroker_core.control.operator",
    "ControlFile": "pe_agent.aligned.control_file",
    "ControlTuple": "streambroker_core.control.tuples",
    "Delivery": "streambroker_core.control.tuples",
    "Input": "streambroker_core.control.operator",
    "Limits": "streambroker_core.control.tuples",
    "Operator": "streambroker_core.control.operator",
    "OperatorStream": "pe_agent.aligned.operators",
    "Stream": "pe_agent.aligned.streams",
    "Target": "streambroker_core.control.tuples",
    "TypedOperator": "streambroker_core.control.typed",
    "control_aware": "pe_agent.aligned.operators",
    "control_stream": "pe_agent.aligned.control_file",
    "handles": "streambroker_core.control.typed",
    "stream": "pe_agent.aligned.streams",
}

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


def __getattr__(name: str) -> Any:
    """Import what is used: a process that Spark starts for each micro-batch waits for it."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)
