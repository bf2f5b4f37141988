"""Operators and control tuples."""

from __future__ import annotations

from streambroker._lazy import lazy_names

_MODULES = {
    "pe_agent.aligned.file_ends": ["PATH_COLUMN", "EndOfFile", "FileEnds"],
    "pe_agent.aligned.options": ["OperatorOptions"],
    "pe_agent.log.control_file": ["ControlFile"],
    "pe_agent.streams.stream": ["OperatorStream", "Stream", "apply", "control_stream", "stream"],
    "streambroker_core.control.operators.operator": ["Blobs", "Changes", "Input", "Operator"],
    "streambroker_core.control.operators.typed_operator": ["TypedOperator", "handles"],
    "streambroker_core.control.tuples": ["ControlTuple", "Delivery", "Limits", "Target"],
    "streambroker_core.control.tuples.payloads": ["Codec"],
    "streambroker_core.errors": ["AlignedError"],
}
__getattr__, __dir__, __all__ = lazy_names(__name__, _MODULES)
