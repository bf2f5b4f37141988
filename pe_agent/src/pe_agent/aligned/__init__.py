"""Plans of streams with control tuples, and operators inside Spark queries.

Its public names are those of ``streambroker.operators``; the names here are deprecated.
"""

from __future__ import annotations

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
    "control_aware": "pe_agent.streams.old_names",
    "control_stream": "pe_agent.streams.stream",
    "handles": "streambroker_core.control.operators.typed_operator",
    "stream": "pe_agent.streams.stream",
}

__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    """Import an old name, with a warning."""
    from streambroker_core.deprecation import deprecated_name

    return deprecated_name(__name__, name, _MODULES, "streambroker.operators")
