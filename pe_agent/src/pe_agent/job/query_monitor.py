"""The queries of a job: the leases of those that publish, and what the agent must know of all.

The agent has to know which imports one query reads, and where it publishes: which of the calls
for news waits, and whose hangs on an export that is full. Spark tells a source neither.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pe_agent.transport.agent_client import AgentClient
from streambroker_core.errors import StreambrokerError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger("pe_agent")

TELL_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Sources:
    """What a query reads: imports of this PE by their frames, and whether other streams, too.

    With ``stop`` it ends when all of them have.
    """

    frames: tuple[str, ...] = ()
    foreign: bool = False
    stop: bool = False


@dataclass(slots=True)
class Running:
    """A query that runs; ``ports`` are the exports it publishes to, ``told`` when the agent was."""

    query: StreamingQuery
    id: str
    run: str
    ports: tuple[str, ...] = ()
    sources: Sources = Sources()
    told: float = -TELL_SECONDS

    def is_active(self) -> bool:
        """Whether it runs; False if the session has ended, and its queries with it."""
        try:
            return bool(self.query.isActive)
        except Exception:
            return False


class Queries:
    """All queries of the session that concern one PE.

    Attributes:
        watched: the agent is told with each beat which queries of the session run.
    """

    def __init__(self, spark: SparkSession, agent: Callable[[], AgentClient]) -> None:
        self._spark = spark
        self._agent = agent
        self._running: list[Running] = []
        self._foreign: set[str] = set()
        self._beating = threading.Lock()
        self.watched = False

    def sources(self, frame: DataFrame) -> Sources:
        """Return what a frame reads."""
        return self._sources(frame._jdf.queryExecution().analyzed())

    def announce(self, ports: tuple[str, ...], sources: Sources) -> None:
        """Tell the agent of a query that is about to start, and to which exports it publishes."""
        self._begin(None, None, ports, sources)

    def add(self, ports: tuple[str, ...], query: StreamingQuery, sources: Sources) -> None:
        """A query has been started."""
        running = Running(query, str(query.id), str(query.runId), ports, sources)
        with self._beating:
            self._running = [r for r in self._running if r.run != running.run] + [running]
            try:
                self._tell(running)
            except StreambrokerError as error:
                log.info("the agent is told of query %s with the next beat: %s", running.id, error)

    def beat(self) -> None:
        """Renew what runs, end what has ended, find what was started without ``publish``.

        Told by the thread that keeps the agent, and by who stops the PE meanwhile.
        """
        with self._beating:
            for running in list(self._running):
                if running.is_active():
                    self._renew(running)
                else:
                    self._running.remove(running)
                    self._end(running)
            try:
                self._find()
            except Exception as error:  # the session has ended, or is none of this process
                log.debug("queries of the session are not known: %s", error)

    def _renew(self, running: Running) -> None:
        for port in running.ports:
            self._agent().call("publisher.renew", export=port, query=running.id)
        if time.monotonic() >= running.told + TELL_SECONDS:
            self._tell(running)

    def _end(self, running: Running) -> None:
        if running.sources.frames:
            self._agent().call("query.end", query=running.id, run=running.run)
        for port in running.ports:
            self._agent().call("publisher.renounce", export=port, query=running.id)

    def _tell(self, running: Running) -> None:
        ended = self._begin(running.id, running.run, running.ports, running.sources)
        running.told = time.monotonic()
        if ended and running.sources.stop:
            log.info("query %s ends: all that it reads has ended", running.id)
            threading.Thread(target=running.query.stop, daemon=True).start()

    def _begin(
        self, id_: str | None, run: str | None, ports: tuple[str, ...], sources: Sources
    ) -> bool:
        """Tell the agent; return whether all that the query reads has ended and is read."""
        answer: Mapping[str, Any] = {}
        if sources.frames:
            answer = self._agent().call(
                "query.begin",
                query=id_,
                run=run,
                exports=list(ports),
                frames=list(sources.frames),
                foreign=sources.foreign,
            )
        return bool(answer.get("ended"))

    def _find(self) -> None:
        """Take in the queries of the session that read imports of this PE into other sinks."""
        known = {r.run for r in self._running}
        active = {str(q.runId): q for q in self._spark.streams.active}
        if self.watched:
            self._agent().call("sides.running", queries=sorted(str(q.id) for q in active.values()))
        self._foreign &= set(active)
        for run in active.keys() - known - self._foreign:
            query: Any = active[run]
            sources = self._sources(query._jsq.streamingQuery().analyzedPlan())
            if sources.frames:
                self._running.append(Running(query, str(query.id), run, (), sources))
                self._tell(self._running[-1])
            else:
                self._foreign.add(run)

    def _sources(self, plan: Any) -> Sources:
        leaves = plan.collectLeaves()
        streaming = [s for s in map(leaves.apply, range(leaves.size())) if s.isStreaming()]
        own = {frame: leaf for leaf in streaming if (frame := self._frame(leaf)) is not None}
        stop = [leaf.extraOptions().get("stopAtEnd") == "true" for leaf in own.values()]
        foreign = any(self._frame(leaf) is None for leaf in streaming)
        return Sources(tuple(own), foreign, all(stop))

    def _frame(self, leaf: Any) -> str | None:
        """Return the name of an import of this PE that ``subscribe`` has opened, else None."""
        if leaf.getClass().getSimpleName() != "StreamingRelationV2":
            return None
        options = leaf.extraOptions()
        if leaf.sourceName() != "streambroker" or options.get("agent") != self._agent().location:
            return None
        frame = options.get("frame")
        return None if frame is None else str(frame)
