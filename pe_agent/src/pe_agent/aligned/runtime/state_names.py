"""The states of an operator, as Spark knows them by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import MapState, ValueState


def open_states(handle: Any, *, slots: bool) -> tuple[ValueState, MapState]:
    """Open the states of an operator: of a group, its own value and the large blobs by name."""
    if slots:
        return (
            handle.getValueState("slot", "blob binary"),
            handle.getMapState("blobs", "bucket int, name string", "blob binary"),
        )
    return (
        handle.getValueState("own", "blob binary"),
        handle.getMapState("blobs", "name string", "blob binary"),
    )
