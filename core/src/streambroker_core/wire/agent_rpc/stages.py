"""Actions of an export's home at the shard agents of its job.

Stages are summaries as a task received them: ``stage``, ``stream``, ``rows``, ``bytes``, ``crc``
and ``agent``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from streambroker_core.wire.agent_rpc.codec import Request
from streambroker_core.wire.agent_rpc.publisher import AgentAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class SetShardAgents(Request[None]):
    """Set the shard agents of a job."""

    action: ClassVar[str] = "fellows"
    agents: Sequence[AgentAddress]


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedBlocks:
    """Bytes of a sealed stage, and rows and bytes of its blocks."""

    bytes: int
    blocks: Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedStages:
    """The sealed stages, in the order of the request."""

    stages: Sequence[SealedBlocks]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSeal(Request[SealedStages]):
    """Make stages this agent's part of an epoch; ``turn`` rises with each call of the home."""

    action: ClassVar[str] = "stage.seal"
    export: str
    stream: str
    epoch: int
    query: str
    run: str
    batch: int
    published: float
    turn: int
    stages: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """What a shard agent keeps for a home.

    ``streams`` by export; ``sent``: rows, bytes and reading query since the previous call, by
    export and reader.
    """

    streams: Mapping[str, Sequence[str]]
    sent: Mapping[str, Mapping[str, tuple[int, int, str | None]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRelease(Request[Released]):
    """Free what the home does not need any more.

    ``exports`` has levels by stream, None for a removed stream. A level has ``next``, ``kept``
    (retained epochs ``[first, next)`` below it), ``sealed``, ``query``, ``batch`` (last published),
    ``runs`` (replaced runs) and ``aborted`` (run and batch). Unnamed streams stay.
    """

    action: ClassVar[str] = "stage.release"
    home: str
    exports: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PassingRows:
    """Rows that pass a filter by epoch, None for missing or unreadable parts."""

    rows: Mapping[str, int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCount(Request[PassingRows]):
    """Count the rows of parts of epochs that pass a filter."""

    action: ClassVar[str] = "stage.count"
    export: str
    stream: str
    filter: str
    epochs: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenParts:
    """Missing and damaged parts with reasons, by stream and epoch.

    ``done`` is false if the time limit was reached, so that the caller must call again.
    """

    broken: Mapping[str, Mapping[str, str]]
    done: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StageVerify(Request[BrokenParts]):
    """Verify parts of epochs; ``streams`` has the identity of each part by stream and epoch."""

    action: ClassVar[str] = "stage.verify"
    export: str
    streams: Mapping[str, Mapping[str, Any]]
