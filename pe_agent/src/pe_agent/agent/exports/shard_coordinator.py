"""What of an export lies at fellows: parts of epochs are sealed, counted and released there.

Fellows are called outside of the export's lock; what they are told are levels, so that the order
in which calls arrive does not matter.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pe_agent.agent.exports.export_state import ExportState
from pe_agent.agent.exports.stream import retained_epochs as retained
from pe_agent.agent.exports.stream.export_stream import ExportStream
from pe_agent.agent.exports.stream.manifests import Block, RemoteBlock, expected_shard_identity
from streambroker_core.model import pe_of

log = logging.getLogger("pe_agent")


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedStage:
    """A stage that is durably part of an epoch at a fellow; blocks are (rows, bytes)."""

    agent: str
    bytes: int
    blocks: Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCount:
    """Rows of an acknowledged epoch at a fellow, of which it is not counted yet how many passed."""

    reader: str
    stream: str
    epoch: int
    agent: str
    rows: int
    filter: str


class StageSealer(Protocol):
    """What an export asks of the fellows of its agent."""

    def staging_agents(self) -> list[dict[str, str]]:
        """Return PE, address and token of those that take stages now."""

    def seal(self, bodies: Mapping[str, dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
        """Seal at each of these fellows; return what they have by stage, in order.

        Raises:
            AgentUnreachableError: one does not answer; the caller tries again.
            AgentRefusedError: one says no.
        """

    def find_broken(
        self, bodies: Mapping[str, dict[str, Any]]
    ) -> dict[str, dict[str, dict[str, str]]]:
        """Ask each of these fellows which parts it cannot give; return why, by stream and epoch.

        Raises:
            AgentUnreachableError: one does not answer, or does not know yet.
        """


class ShardCoordinator(ExportState):
    """What an export has to do with fellows. All public calls are safe from any thread."""

    shard_agents: StageSealer | None = None
    _last_seal_number = 0

    # -- publishing --------------------------------------------------------------------------

    def _seal_remote_stages(
        self,
        *,
        query: str,
        run: str,
        batch: int,
        stages: Sequence[Mapping[str, Any]],
        ddl: str | None,
        control: int = 0,
    ) -> dict[str, SealedStage]:
        """Seal the stages that lie at fellows, if the batch is new; by stage."""
        home = pe_of(self.key)
        away: dict[str, list[Mapping[str, Any]]] = {}
        for summary in stages:
            if summary["rows"] and summary.get("agent", home) != home:
                away.setdefault(summary["agent"], []).append(summary)
        if not away or self.shard_agents is None:
            return {}
        rows = sum(s["rows"] for s in stages)
        with self._lock:
            now = self._clock()
            fresh = self.publisher.publish(
                query=query,
                run=run,
                batch=batch,
                rows=rows,
                schema=ddl,
                now=now,
                control=control,
            )
            stream = self.newest
            if not fresh or stream is None:
                return {}
            what = {
                "export": self.key,
                "stream": stream.id,
                "epoch": self.ledger.streams[stream.id].next,
                "query": query,
                "run": run,
                "batch": batch,
                "published": now,
                "turn": self._next_seal_number(),
            }
        answers = self.shard_agents.seal({pe: {**what, "stages": of} for pe, of in away.items()})
        return {
            summary["stage"]: SealedStage(
                agent=pe,
                bytes=told["bytes"],
                blocks=[(rows_, size) for rows_, size in told["blocks"]],
            )
            for pe, of in away.items()
            for summary, told in zip(of, answers[pe], strict=True)
        }

    def _next_seal_number(self) -> int:
        """Return a number above all before, also over a restart: a late seal must be told."""
        name = f"turn/{self.key}"
        before = max(self._last_seal_number, int(self._store.get(name) or 0))
        self._last_seal_number = max(before + 1, time.time_ns())
        self._store.set(name, str(self._last_seal_number))
        return self._last_seal_number

    # -- reading -----------------------------------------------------------------------------

    def _find_broken(self, ranges: Mapping[str, tuple[int, int]]) -> dict[str, set[int]]:
        """Return the epochs of which a fellow says that it cannot give its part, by stream.

        Raises:
            AgentUnreachableError: a fellow that has parts of them does not say.
        """
        with self._lock:
            bodies = self._shards_in(ranges)
        if not bodies or self.shard_agents is None:
            return {}
        result: dict[str, set[int]] = {}
        for pe, streams in self.shard_agents.find_broken(bodies).items():
            for stream, epochs in streams.items():
                for epoch, why in epochs.items():
                    log.warning("agent %s lacks epoch %s of stream %s: %s", pe, epoch, stream, why)
                    result.setdefault(stream, set()).add(int(epoch))
        return result

    def _shards_in(self, ranges: Mapping[str, tuple[int, int]]) -> dict[str, dict[str, Any]]:
        """Return what fellows have of epochs, as they are asked about it, by fellow."""
        bodies: dict[str, dict[str, Any]] = {}
        for stream, (first, next_) in ranges.items():
            manifests = self.streams[stream].manifests if stream in self.streams else {}
            there = self._present_epochs(stream, first, next_)
            for manifest in (manifests[n] for n in there if n in manifests):
                for pe in manifest.agents:
                    body = bodies.setdefault(pe, {"export": self.key, "streams": {}})
                    parts = body["streams"].setdefault(stream, {})
                    parts[str(manifest.epoch)] = expected_shard_identity(manifest, pe)
        return bodies

    # -- counting ----------------------------------------------------------------------------

    def pending_counts(self, agent: str) -> list[PendingCount]:
        """Return what this fellow has to count."""
        with self._lock:
            return [
                PendingCount(reader=r, stream=s, epoch=n, agent=pe, rows=rows, filter=filter_)
                for r in self.ledger.readers
                for s, n, pe, rows, filter_ in self.deliveries.for_reader(r).owed
                if pe == agent
            ]

    def settle_count(self, pending: PendingCount, passed: int | None) -> None:
        """Count rows at a fellow; as delivered if they cannot be evaluated any more (None)."""
        entry = [pending.stream, pending.epoch, pending.agent, pending.rows, pending.filter]
        if passed is None:
            log.warning("rows of %s at %s are counted as delivered", pending.stream, pending.agent)
        with self._lock:
            delivery = self.deliveries.for_reader(pending.reader)
            if pending.reader not in self.ledger.readers or entry not in delivery.owed:
                return
            delivery.owed.remove(entry)
            kept = pending.rows if passed is None else passed
            delivery.delivered += kept
            delivery.filtered += pending.rows - kept
            self._save_reader(pending.reader)

    # -- releasing ---------------------------------------------------------------------------

    def retained_levels(self, agent: str, streams: Sequence[str]) -> dict[str, Any]:
        """Return what a fellow has to keep of streams; null for those that it may remove.

        What it will remove is noted durably before: this agent's log may still have manifests
        of such epochs when it is opened again.
        """
        with self._lock:
            owed = {(o.stream, o.epoch) for o in self.pending_counts(agent)}
            had = {id_: self._current_level(id_) for id_ in streams}
            publisher = self.publisher
            common = {
                "query": publisher.query,
                "batch": -1 if publisher.last is None else publisher.last.batch,
                "runs": list(publisher.runs)[:-1],
                "aborted": publisher.aborted,
            }
        for id_, level in had.items():
            self._record_level(id_, level)
        result: dict[str, Any] = {}
        for id_, level in had.items():
            more = sorted(n for s, n in owed if s == id_)
            if level is None and not more:
                result[id_] = None
                continue
            told = level or {"next": more[-1] + 1, "kept": [], "sealed": True}
            kept = told["kept"] + [
                [n, n + 1] for n in more if not retained.is_in_ranges(n, told["kept"])
            ]
            result[id_] = {**told, **common, "kept": kept}
        return result

    def _current_level(self, id_: str) -> retained.RetainedLevel | None:
        """Return which epochs there are of a stream, None if there is no log of it any more."""
        stream = self.ledger.streams.get(id_)
        return None if stream is None or id_ not in self.streams else retained.current_level(stream)

    def _record_level(self, id_: str, level: retained.RetainedLevel | None) -> None:
        if level is None:
            with self._store.transaction() as db:
                retained.forget(id_, db)
        else:
            retained.record(self._store, id_, level)

    def _forget_released(self, stream: ExportStream) -> None:
        """Take out the epochs of which a fellow may have removed its part."""
        level = retained.read(self._store, stream.id)
        if level is not None:
            stream.remove(
                [
                    n
                    for n, manifest in stream.manifests.items()
                    if manifest.agents and not retained.is_retained(n, level)
                ]
            )


def join_blocks(
    stages: Sequence[tuple[Sequence[Block], SealedStage | None]],
) -> tuple[tuple[Block | RemoteBlock, ...], tuple[str, ...]]:
    """Return the blocks of an epoch in order, and the fellows that hold some of them.

    Args:
        stages: stage by stage, its blocks here or, if it lies at a fellow, what was sealed there.
    """
    blocks: list[Block | RemoteBlock] = []
    agents: list[str] = []
    for own, sealed in stages:
        blocks += own
        if sealed is None:
            continue
        if sealed.agent not in agents:
            agents.append(sealed.agent)
        number = agents.index(sealed.agent) + 1
        blocks += [RemoteBlock(number, size, rows) for rows, size in sealed.blocks]
    return tuple(blocks), tuple(agents)
