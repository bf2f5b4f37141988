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
from pe_agent.agent.exports.stream.export_stream import HostedStream
from pe_agent.agent.exports.stream.manifests import Away, Block, part_wanted
from streambroker_core.model import pe_of

log = logging.getLogger("pe_agent")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """A stage that is durably part of an epoch at a fellow; blocks are (rows, bytes)."""

    agent: str
    bytes: int
    blocks: Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Owed:
    """Rows of an acknowledged epoch at a fellow, of which it is not counted yet how many passed."""

    reader: str
    stream: str
    epoch: int
    agent: str
    rows: int
    filter: str


class Sealing(Protocol):
    """What an export asks of the fellows of its agent."""

    def staging(self) -> list[dict[str, str]]:
        """Return PE, address and token of those that take stages now."""

    def seal(self, bodies: Mapping[str, dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
        """Seal at each of these fellows; return what they have by stage, in order.

        Raises:
            AgentUnreachableError: one does not answer; the caller tries again.
            AgentRefusedError: one says no.
        """

    def broken(self, bodies: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, dict[str, str]]]:
        """Ask each of these fellows which parts it cannot give; return why, by stream and epoch.

        Raises:
            AgentUnreachableError: one does not answer, or does not know yet.
        """


class SpreadSide(ExportState):
    """What an export has to do with fellows. All public calls are safe from any thread."""

    fellows: Sealing | None = None
    _turn = 0

    # -- publishing --------------------------------------------------------------------------

    def _seal(
        self,
        *,
        query: str,
        run: str,
        batch: int,
        stages: Sequence[Mapping[str, Any]],
        ddl: str | None,
        control: int = 0,
    ) -> dict[str, Sealed]:
        """Seal the stages that lie at fellows, if the batch is new; by stage."""
        home = pe_of(self.key)
        away: dict[str, list[Mapping[str, Any]]] = {}
        for summary in stages:
            if summary["rows"] and summary.get("agent", home) != home:
                away.setdefault(summary["agent"], []).append(summary)
        if not away or self.fellows is None:
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
                "turn": self._next_turn(),
            }
        answers = self.fellows.seal({pe: {**what, "stages": of} for pe, of in away.items()})
        return {
            summary["stage"]: Sealed(
                agent=pe,
                bytes=told["bytes"],
                blocks=[(rows_, size) for rows_, size in told["blocks"]],
            )
            for pe, of in away.items()
            for summary, told in zip(of, answers[pe], strict=True)
        }

    def _next_turn(self) -> int:
        """Return a number above all before, also over a restart: a late seal must be told."""
        name = f"turn/{self.key}"
        before = max(self._turn, int(self._store.get(name) or 0))
        self._turn = max(before + 1, time.time_ns())
        self._store.set(name, str(self._turn))
        return self._turn

    # -- reading -----------------------------------------------------------------------------

    def _broken(self, ranges: Mapping[str, tuple[int, int]]) -> dict[str, set[int]]:
        """Return the epochs of which a fellow says that it cannot give its part, by stream.

        Raises:
            AgentUnreachableError: a fellow that has parts of them does not say.
        """
        with self._lock:
            bodies = self._parts_in(ranges)
        if not bodies or self.fellows is None:
            return {}
        result: dict[str, set[int]] = {}
        for pe, streams in self.fellows.broken(bodies).items():
            for stream, epochs in streams.items():
                for epoch, why in epochs.items():
                    log.warning("agent %s lacks epoch %s of stream %s: %s", pe, epoch, stream, why)
                    result.setdefault(stream, set()).add(int(epoch))
        return result

    def _parts_in(self, ranges: Mapping[str, tuple[int, int]]) -> dict[str, dict[str, Any]]:
        """Return what fellows have of epochs, as they are asked about it, by fellow."""
        bodies: dict[str, dict[str, Any]] = {}
        for stream, (first, next_) in ranges.items():
            manifests = self.streams[stream].manifests if stream in self.streams else {}
            there = self._present(stream, first, next_)
            for manifest in (manifests[n] for n in there if n in manifests):
                for pe in manifest.agents:
                    body = bodies.setdefault(pe, {"export": self.key, "streams": {}})
                    parts = body["streams"].setdefault(stream, {})
                    parts[str(manifest.epoch)] = part_wanted(manifest, pe)
        return bodies

    # -- counting ----------------------------------------------------------------------------

    def owed(self, agent: str) -> list[Owed]:
        """Return what this fellow has to count."""
        with self._lock:
            return [
                Owed(reader=r, stream=s, epoch=n, agent=pe, rows=rows, filter=filter_)
                for r in self.ledger.readers
                for s, n, pe, rows, filter_ in self.deliveries.of(r).owed
                if pe == agent
            ]

    def settle(self, owed: Owed, passed: int | None) -> None:
        """Count rows at a fellow; as delivered if they cannot be evaluated any more (None)."""
        entry = [owed.stream, owed.epoch, owed.agent, owed.rows, owed.filter]
        if passed is None:
            log.warning("rows of %s at %s are counted as delivered", owed.stream, owed.agent)
        with self._lock:
            delivery = self.deliveries.of(owed.reader)
            if owed.reader not in self.ledger.readers or entry not in delivery.owed:
                return
            delivery.owed.remove(entry)
            kept = owed.rows if passed is None else passed
            delivery.delivered += kept
            delivery.filtered += owed.rows - kept
            self._save_reader(owed.reader)

    # -- releasing ---------------------------------------------------------------------------

    def levels(self, agent: str, streams: Sequence[str]) -> dict[str, Any]:
        """Return what a fellow has to keep of streams; null for those that it may remove.

        What it will remove is noted durably before: this agent's log may still have manifests
        of such epochs when it is opened again.
        """
        with self._lock:
            owed = {(o.stream, o.epoch) for o in self.owed(agent)}
            had = {id_: self._had(id_) for id_ in streams}
            publisher = self.publisher
            common = {
                "query": publisher.query,
                "batch": -1 if publisher.last is None else publisher.last.batch,
                "runs": list(publisher.runs)[:-1],
                "aborted": publisher.aborted,
            }
        for id_, level in had.items():
            self._note_level(id_, level)
        result: dict[str, Any] = {}
        for id_, level in had.items():
            more = sorted(n for s, n in owed if s == id_)
            if level is None and not more:
                result[id_] = None
                continue
            told = level or {"next": more[-1] + 1, "kept": [], "sealed": True}
            kept = told["kept"] + [
                [n, n + 1] for n in more if not retained.in_ranges(n, told["kept"])
            ]
            result[id_] = {**told, **common, "kept": kept}
        return result

    def _had(self, id_: str) -> retained.Level | None:
        """Return which epochs there are of a stream, None if there is no log of it any more."""
        stream = self.ledger.streams.get(id_)
        return None if stream is None or id_ not in self.streams else retained.level_of(stream)

    def _note_level(self, id_: str, level: retained.Level | None) -> None:
        if level is None:
            with self._store.transaction() as db:
                retained.forget(id_, db)
        else:
            retained.note(self._store, id_, level)

    def _forget_released(self, hosted: HostedStream) -> None:
        """Take out the epochs of which a fellow may have removed its part."""
        level = retained.read(self._store, hosted.id)
        if level is not None:
            hosted.remove(
                [
                    n
                    for n, manifest in hosted.manifests.items()
                    if manifest.agents and not retained.is_kept(n, level)
                ]
            )


def joined(
    parts: Sequence[tuple[Sequence[Block], Sealed | None]],
) -> tuple[tuple[Block | Away, ...], tuple[str, ...]]:
    """Return the blocks of an epoch in order, and the fellows that hold some of them.

    Args:
        parts: stage by stage, its blocks here or, if it lies at a fellow, what was sealed there.
    """
    blocks: list[Block | Away] = []
    agents: list[str] = []
    for own, sealed in parts:
        blocks += own
        if sealed is None:
            continue
        if sealed.agent not in agents:
            agents.append(sealed.agent)
        number = agents.index(sealed.agent) + 1
        blocks += [Away(number, size, rows) for rows, size in sealed.blocks]
    return tuple(blocks), tuple(agents)
