"""The queries of a job: publisher leases, and the imports and exports of each query.

The agent needs to know which imports a query reads and to which exports it publishes. Then it knows
which call for new data waits, and which is blocked by a full export. Spark gives a source neither.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pe_agent.spark.query_failure import cause
from pe_agent.spark.query_sources import Sources, frame_sources, query_sources
from pe_agent.transport.agent_client import AgentClient, send
from pe_agent.transport.flight_errors import AgentUnreachableError
from streambroker_core.errors import StreambrokerError
from streambroker_core.wire.agent_rpc.job import GetStatus, QueryBegin, QueryEnd, SidesRunning
from streambroker_core.wire.agent_rpc.publisher import PublisherRenew, PublisherRenounce

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger("pe_agent")

REPORT_SECONDS = 2.0
QUERY_FAILED = "QueryFailed"
"""Reported code of an error that is not of streambroker."""
RELEASE_SECONDS = 5.0


@dataclass(slots=True)
class RunningQuery:
    """A running query, the exports it publishes to, and when it was reported to the agent."""

    query: StreamingQuery
    id: str
    run_id: str
    ports: tuple[str, ...] = ()
    sources: Sources = field(default_factory=Sources)
    reported_at: float = -REPORT_SECONDS

    def is_active(self) -> bool:
        """Return whether it runs; False if the session has ended, and its queries with it."""
        try:
            return bool(self.query.isActive)
        except Exception:
            return False

    def failure(self) -> tuple[str, str]:
        """Return code and message of its failure, empty texts if it has not failed.

        Text of exceptions of other code stays in the job: it may contain values of rows.
        """
        try:
            failed = cause(self.query)
        except Exception:  # as in `is_active`
            failed = None
        if failed is None:
            return "", ""
        if failed.code is not None and not failed.code.isupper():
            return failed.code, failed.message
        place = f" at {failed.place}" if failed.place else ""
        name = failed.code or failed.type
        return QUERY_FAILED, f"{name}{place}. The log of the job has the error. Correct the cause."


class QueryMonitor:
    """All queries of the session that concern one PE; optionally it reports which are running."""

    def __init__(self, spark: SparkSession, agent: Callable[[], AgentClient]) -> None:
        self._spark = spark
        self._agent = agent
        self._running: list[RunningQuery] = []
        self._foreign_runs: set[str] = set()
        self._beat_lock = threading.Lock()
        self.reports_running = False

    def sources(self, frame: DataFrame) -> Sources:
        """Return the sources of a frame."""
        return frame_sources(frame, self._agent().location)

    def announce(self, ports: tuple[str, ...], sources: Sources) -> None:
        """Report to the agent that a query is about to start, and the exports it publishes to."""
        self._report_begin(None, None, ports, sources)

    def add(self, ports: tuple[str, ...], query: StreamingQuery, sources: Sources) -> None:
        """Add a query that has been started, and report it."""
        running = RunningQuery(query, str(query.id), str(query.runId), ports, sources)
        with self._beat_lock:
            self._running = [r for r in self._running if r.run_id != running.run_id] + [running]
            try:
                self._report(running)
            except StreambrokerError as error:
                log.info(
                    "cannot report query %s to the agent, retrying with the next beat: %s",
                    running.id,
                    error,
                )

    def beat(self) -> None:
        """Renew running queries, end ended ones, and find those started without ``publish``.

        Called by a thread of the agent's process, and possibly at once by ``release``.
        """
        with self._beat_lock:
            active = self._list_active()
            for running in list(self._running):
                # A query of another session is not in the list. Each call costs on Spark Connect.
                if (active and running.run_id in active) or running.is_active():
                    self._renew(running)
                else:
                    self._end(running)
            try:
                if active is not None:
                    self._discover_queries(active)
            except Exception as error:  # the session has ended
                log.debug("cannot look for queries of the session: %s", error)

    def release(self) -> None:
        """Beat a last time, to release the leases of ended queries.

        A call to a Spark Connect server that is away is retried for minutes. It is left behind
        after some seconds, and the leases run out by themselves.
        """
        last = threading.Thread(target=self._last_beat, daemon=True)
        last.start()
        last.join(RELEASE_SECONDS)
        if last.is_alive():
            log.info("publisher leases not released: the Spark session does not answer")

    def _last_beat(self) -> None:
        try:
            self.beat()
        except StreambrokerError as error:
            log.info("publisher leases not released: %s", error)

    def _renew(self, running: RunningQuery) -> None:
        for port in running.ports:
            send(self._agent(), PublisherRenew(export=port, query=running.id))
        if time.monotonic() >= running.reported_at + REPORT_SECONDS:
            self._report(running)

    def _end(self, running: RunningQuery) -> None:
        """Report the end of a query; the next beat does it again if the agent does not answer."""
        self._running.remove(running)
        try:
            self._report_end(running)
        except AgentUnreachableError:
            self._running.append(running)
            raise

    def _report_end(self, running: RunningQuery) -> None:
        code, message = running.failure()
        end = QueryEnd(
            query=running.id,
            run=running.run_id,
            exports=list(running.ports),
            code=code,
            message=message,
        )
        send(self._agent(), end)
        for port in running.ports:
            send(self._agent(), PublisherRenounce(export=port, query=running.id))

    def _report(self, running: RunningQuery) -> None:
        ended = self._report_begin(running.id, running.run_id, running.ports, running.sources)
        running.reported_at = time.monotonic()
        if ended and running.sources.stops_at_end:
            log.info("stopping query %s: all streams that it reads have ended", running.id)
            threading.Thread(target=running.query.stop, daemon=True).start()

    def _report_begin(
        self, id_: str | None, run: str | None, ports: tuple[str, ...], sources: Sources
    ) -> bool:
        """Report to the agent; return whether all that the query reads has ended and is read."""
        if not sources.frames:
            return False
        begin = QueryBegin(
            query=id_,
            run=run,
            exports=list(ports),
            frames=list(sources.frames),
            foreign=sources.has_foreign,
        )
        return send(self._agent(), begin).ended

    def _fetch_readers(self) -> Mapping[str, Any]:
        readers: Mapping[str, Any] = send(self._agent(), GetStatus())["imports"]["readers"]
        return readers

    def _list_active(self) -> Mapping[str, StreamingQuery] | None:
        """Return the queries of the session by run; None if it has ended."""
        try:
            return {str(query.runId): query for query in self._spark.streams.active}
        except Exception as error:
            log.debug("cannot list the queries of the session: %s", error)
            return None

    def _discover_queries(self, active: Mapping[str, StreamingQuery]) -> None:
        """Add the queries of the session that read imports of this PE into other sinks."""
        known = {r.run_id for r in self._running}
        if self.reports_running:
            running = SidesRunning(queries=sorted(str(q.id) for q in active.values()))
            send(self._agent(), running)
        self._foreign_runs &= set(active)
        for run in active.keys() - known - self._foreign_runs:
            query = active[run]
            sources = query_sources(self._spark, query, self._agent().location, self._fetch_readers)
            if sources is None:
                continue
            if sources.frames:
                self._running.append(RunningQuery(query, str(query.id), run, (), sources))
                self._report(self._running[-1])
            else:
                self._foreign_runs.add(run)
