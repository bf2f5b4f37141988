"""Operators with control tuples, state and event time, inside Spark queries.

>>> from pe_agent.aligned import Operator, stream  # doctest: +SKIP
>>> stream(frame).key_by("k").control_aware(MyOperator).to_df()  # doctest: +SKIP

A stream wraps a streaming DataFrame; operators are those of ``streambroker_core.control``.
"""

from __future__ import annotations

import importlib
from typing import Any

_MODULES = {
    "AlignedError": "streambroker_core.errors",
    "Blobs": "streambroker_core.control.operators.operator",
    "Changes": "streambroker_core.control.operators.operator",
    "ControlFile": "pe_agent.log.control_file",
    "ControlTuple": "streambroker_core.control.tuples",
    "Delivery": "streambroker_core.control.tuples",
    "Input": "streambroker_core.control.operators.operator",
    "Limits": "streambroker_core.control.tuples",
    "Operator": "streambroker_core.control.operators.operator",
    "OperatorStream": "pe_agent.streams.stream",
    "Stream": "pe_agent.streams.stream",
    "Target": "streambroker_core.control.tuples",
    "TypedOperator": "streambroker_core.control.operators.typed_operator",
    "control_aware": "pe_agent.streams.stream",
    "control_stream": "pe_agent.streams.stream",
    "handles": "streambroker_core.control.operators.typed_operator",
    "stream": "pe_agent.streams.stream",
}

__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    """Import on first use: Spark starts a process for each micro-batch that waits for imports."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
