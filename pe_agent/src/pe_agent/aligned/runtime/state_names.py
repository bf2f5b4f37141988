"""The states of an operator, as Spark knows them by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import MapState, ValueState


def open_states(handle: Any) -> tuple[ValueState, MapState]:
    """Open the states of an operator: the runner's own blobs, and the operator's blobs by name."""
    return (
        handle.getValueState("own", "blob binary"),
        handle.getMapState("blobs", "name string", "blob binary"),
    )
