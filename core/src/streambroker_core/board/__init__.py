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
    RoutesChanged,
    Status,
    StatusChanged,
    Synced,
)
from streambroker_core.board.state import Board, stream_of

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
    "RoutesChanged",
    "Status",
    "StatusChanged",
    "Synced",
    "stream_of",
]
