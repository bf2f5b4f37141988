"""The durable log of one stream: segments of checksummed frames, group commit, recovery."""

from pe_agent.log.commit import Committer
from pe_agent.log.errors import (
    AddressGone,
    FrameTooLarge,
    LogClosed,
    LogCorrupt,
    LogError,
    LogFailed,
    LogFull,
    LogVersionUnknown,
)
from pe_agent.log.frames import Kind
from pe_agent.log.log import Address, StreamLog
from pe_agent.log.recovery import Recovery
from pe_agent.log.scrub import Scrub
from pe_agent.log.segments import SegmentInfo

__all__ = [
    "Address",
    "AddressGone",
    "Committer",
    "FrameTooLarge",
    "Kind",
    "LogClosed",
    "LogCorrupt",
    "LogError",
    "LogFailed",
    "LogFull",
    "LogVersionUnknown",
    "Recovery",
    "Scrub",
    "SegmentInfo",
    "StreamLog",
]
