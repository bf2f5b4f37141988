"""The board: which Export feeds which Import, as a pure state machine."""

from streambroker_core.board.events import (
    Action,
    AgentRegistered,
    CaughtUp,
    Event,
    ExportApplied,
    ExportRemoved,
    FeedLost,
    Hint,
    ImportApplied,
    ImportRemoved,
    Moved,
    PeDeclared,
    PeWithdrawn,
    PointMoved,
    RoutesChanged,
    Status,
    StatusChanged,
    Synced,
    Unreadable,
)
from streambroker_core.board.shown import stream_of
from streambroker_core.board.state import Board

__all__ = [
    "Action",
    "AgentRegistered",
    "Board",
    "CaughtUp",
    "Event",
    "ExportApplied",
    "ExportRemoved",
    "FeedLost",
    "Hint",
    "ImportApplied",
    "ImportRemoved",
    "Moved",
    "PeDeclared",
    "PeWithdrawn",
    "PointMoved",
    "RoutesChanged",
    "Status",
    "StatusChanged",
    "Synced",
    "Unreadable",
    "stream_of",
]
