"""Shard coordination of an export: seals, counts and releases parts of epochs at shard agents.

Shard agents are called outside the export's lock. Releases are levels, so that the order in which
calls arrive does not matter.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import pyarrow as pa

from pe_agent.agent.exports.export_state import ExportState
from pe_agent.agent.exports.stream import retained_epochs as retained
from pe_agent.agent.exports.stream.export_stream import ExportStream
from pe_agent.agent.exports.stream.manifests import (
    Block,
    RemoteBlock,
    Stage,
    expected_shard_identity,
)
from streambroker_core.control.tuples.epoch_control import IndexedControl
from streambroker_core.ledger.publisher import Publisher
from streambroker_core.model import pe_of
from streambroker_core.wire.agent_rpc.publisher import AgentAddress
from streambroker_core.wire.agent_rpc.stages import SealedBlocks, StageSeal, StageVerify

log = logging.getLogger("pe_agent")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRequest:
    """Commit of a driver; see `ExportPublisher.publish`. ``rows`` is the total of the stages."""

    query: str
    run: str
    batch: int
    stages: Sequence[dict[str, Any]]
    ddl: str | None
    rows: int
    control: Sequence[IndexedControl]
    schema: pa.Schema | None

    def is_new(self, publisher: Publisher, now: float) -> bool:
        """Return whether the batch is to be published; raises like core's `Publisher.publish`."""
        return publisher.publish(
            query=self.query,
            run=self.run,
            batch=self.batch,
            rows=self.rows,
            schema=self.ddl,
            now=now,
            control=len(self.control),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedStage:
    """A stage that is durable in an epoch at a shard agent; blocks are (rows, bytes)."""

    agent: str
    bytes: int
    blocks: Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCount:
    """Rows of an acknowledged epoch at a shard agent that still has to count the passing rows."""

    reader: str
    stream: str
    epoch: int
    agent: str
    rows: int
    filter: str


class StageSealer(Protocol):
    """Calls of an export to shard agents."""

    def staging_agents(self) -> list[AgentAddress]:
        """Return PE, address and token of the agents that take stages now."""

    def seal(self, requests: Mapping[str, StageSeal]) -> dict[str, Sequence[SealedBlocks]]:
        """Seal at several shard agents; see `ShardAgents.seal`."""

    def find_broken(
        self, requests: Mapping[str, StageVerify]
    ) -> dict[str, Mapping[str, Mapping[str, str]]]:
        """Ask shard agents for missing or damaged parts; see `ShardAgents.find_broken`."""


class ShardCoordinator:
    """Shard handling of an export. Public methods are thread-safe."""

    def __init__(self, state: ExportState, agents: StageSealer | None) -> None:
        self._state = state
        self._ledger = state.ledger
        self.agents = agents
        self._last_seal_number = 0

    # -- publishing --------------------------------------------------------------------------

    def seal_remote_stages(self, request: CommitRequest) -> dict[str, SealedStage]:
        """Seal the stages of a batch at the shard agents that have them; return them by id.

        The caller holds `ExportState.publishing`, but not the lock.
        """
        home = pe_of(self._state.key)
        remote: dict[str, list[Mapping[str, Any]]] = {}
        for summary in request.stages:
            if summary["rows"] and summary.get("agent", home) != home:
                remote.setdefault(summary["agent"], []).append(summary)
        if not remote or self.agents is None:
            return {}
        with self._state.lock:
            now, stream = self._state.clock(), self._state.newest
            if not request.is_new(self._state.publisher, now) or stream is None:
                return {}
            command = StageSeal(
                export=self._state.key,
                stream=stream.id,
                epoch=self._ledger.streams[stream.id].next,
                query=request.query,
                run=request.run,
                batch=request.batch,
                published=now,
                turn=self._next_seal_number(),
                stages=(),
            )
        responses = self.agents.seal({pe: replace(command, stages=of) for pe, of in remote.items()})
        return {
            summary["stage"]: SealedStage(agent=pe, bytes=sealed.bytes, blocks=sealed.blocks)
            for pe, summaries in remote.items()
            for summary, sealed in zip(summaries, responses[pe], strict=True)
        }

    def _next_seal_number(self) -> int:
        """Return a number above all before, also over a restart, to detect late seals."""
        name = f"turn/{self._state.key}"
        previous = max(self._last_seal_number, int(self._state.store.get(name) or 0))
        self._last_seal_number = max(previous + 1, time.time_ns())
        self._state.store.set(name, str(self._last_seal_number))
        return self._last_seal_number

    # -- reading -----------------------------------------------------------------------------

    def find_broken(self, ranges: Mapping[str, tuple[int, int]]) -> dict[str, set[int]]:
        """Return the epochs with missing or damaged parts at shard agents, by stream.

        Raises:
            AgentUnreachableError: a shard agent does not report its parts.
        """
        with self._state.lock:
            parts = self._shards_in(ranges)
        if not parts or self.agents is None:
            return {}
        requests = {pe: StageVerify(export=self._state.key, streams=of) for pe, of in parts.items()}
        result: dict[str, set[int]] = {}
        for pe, streams in self.agents.find_broken(requests).items():
            for stream, epochs in streams.items():
                for epoch, why in epochs.items():
                    log.warning("agent %s lacks epoch %s of stream %s: %s", pe, epoch, stream, why)
                    result.setdefault(stream, set()).add(int(epoch))
        return result

    def _shards_in(
        self, ranges: Mapping[str, tuple[int, int]]
    ) -> dict[str, dict[str, dict[str, Any]]]:
        """Return the identities of parts, by shard agent, stream and epoch."""
        result: dict[str, dict[str, dict[str, Any]]] = {}
        for stream, (first, next_) in ranges.items():
            manifests = (
                self._state.streams[stream].manifests if stream in self._state.streams else {}
            )
            present = self._state.present_epochs(stream, first, next_)
            for manifest in (manifests[n] for n in present if n in manifests):
                for pe in manifest.agents:
                    parts = result.setdefault(pe, {}).setdefault(stream, {})
                    parts[str(manifest.epoch)] = expected_shard_identity(manifest, pe)
        return result

    # -- counting ----------------------------------------------------------------------------

    def pending_counts(self, agent: str) -> list[PendingCount]:
        """Return the pending counts of a shard agent."""
        with self._state.lock:
            return [
                PendingCount(reader=r, stream=s, epoch=n, agent=pe, rows=rows, filter=filter_)
                for r in self._ledger.readers
                for s, n, pe, rows, filter_ in self._state.deliveries.for_reader(r).owed
                if pe == agent
            ]

    def settle_count(self, pending: PendingCount, passed: int | None) -> None:
        """Settle a pending count; None (unreadable rows) counts as delivered."""
        entry = [pending.stream, pending.epoch, pending.agent, pending.rows, pending.filter]
        if passed is None:
            log.warning("rows of %s at %s are counted as delivered", pending.stream, pending.agent)
        with self._state.lock:
            delivery = self._state.deliveries.for_reader(pending.reader)
            if pending.reader not in self._ledger.readers or entry not in delivery.owed:
                return
            delivery.owed.remove(entry)
            passing = pending.rows if passed is None else passed
            delivery.delivered += passing
            delivery.filtered += pending.rows - passing
            self._state.save_reader(pending.reader)

    # -- releasing ---------------------------------------------------------------------------

    def retained_levels(self, agent: str, streams: Sequence[str]) -> dict[str, Any]:
        """Return what a shard agent must retain of streams; null for streams it may remove.

        The level is stored durably first: after a restart this agent's log may still have
        manifests of epochs whose parts are removed.
        """
        with self._state.lock:
            owed = {(o.stream, o.epoch) for o in self.pending_counts(agent)}
            levels = {id_: self._current_level(id_) for id_ in streams}
            publisher = self._state.publisher
            common = {
                "query": publisher.query,
                "batch": -1 if publisher.last is None else publisher.last.batch,
                "runs": list(publisher.runs)[:-1],
                "aborted": publisher.aborted,
            }
        for id_, level in levels.items():
            self._record_level(id_, level)
        result: dict[str, Any] = {}
        for id_, level in levels.items():
            pending = sorted(n for s, n in owed if s == id_)
            if level is None and not pending:
                result[id_] = None
                continue
            base = level or {"next": pending[-1] + 1, "kept": [], "sealed": True}
            ranges = base["kept"] + [
                [n, n + 1] for n in pending if not retained.is_in_ranges(n, base["kept"])
            ]
            result[id_] = {**base, **common, "kept": ranges}
        return result

    def _current_level(self, id_: str) -> retained.RetainedLevel | None:
        stream = self._ledger.streams.get(id_)
        return (
            None
            if stream is None or id_ not in self._state.streams
            else retained.current_level(stream)
        )

    def _record_level(self, id_: str, level: retained.RetainedLevel | None) -> None:
        if level is None:
            with self._state.store.transaction() as db:
                retained.forget(id_, db)
        else:
            retained.record(self._state.store, id_, level)

    def forget_released(self, stream: ExportStream) -> None:
        """Remove recovered epochs whose parts at shard agents may be removed already."""
        level = retained.read(self._state.store, stream.id)
        if level is not None:
            stream.remove(
                [
                    n
                    for n, manifest in stream.manifests.items()
                    if manifest.agents and not retained.is_retained(n, level)
                ]
            )


def join_blocks(
    stages: Sequence[Stage | SealedStage],
) -> tuple[tuple[Block | RemoteBlock, ...], tuple[str, ...]]:
    """Return an epoch's blocks in order, and the shard agents that have sealed some of them."""
    blocks: list[Block | RemoteBlock] = []
    agents: list[str] = []
    for stage in stages:
        if isinstance(stage, Stage):
            blocks += stage.blocks
            continue
        if stage.agent not in agents:
            agents.append(stage.agent)
        number = agents.index(stage.agent) + 1
        blocks += [RemoteBlock(number, size, rows) for rows, size in stage.blocks]
    return tuple(blocks), tuple(agents)
