"""Backpressure on queries of the job that read imports: which calls wait, and closed gates.

Spark asks the sources of a query one after the other. So only the last one asked may wait, and it
waits for changes of all. A publishing query reads nothing new while its export would block it, so
that it occupies no task slot. Batches planned in its checkpoint are not blocked.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pe_agent.agent.notifier import Notifier
from streambroker_core.ledger.retention import BlockingReader
from streambroker_core.model import job_of
from streambroker_core.wire.agent_rpc.job import QueryBegin, QueryEnd

LEASE_SECONDS = 6.0
MAX_WAIT_SECONDS = 1.0
MAX_WAIT_WITH_OTHERS = 0.02
STUCK_SECONDS = 60.0


@dataclass(slots=True)
class GatedQuery:
    """One running query.

    Attributes:
        exports: ports of the exports it publishes to; empty for another sink.
        frames: its imports, as named by ``subscribe``.
        has_other_sources: it also reads other streams.
        round_calls: frames asked in this round (a repeated frame starts a new one): import and
            its change counter at the call, None if it returned an offset.
        readers: its known readers.
        blocking_bytes: unfinished bytes of each reader that blocks an export, at the last change.
        blocked_since: time of that change.
        gated: its gate was closed at the last call.
    """

    id: str
    run: str
    exports: tuple[str, ...]
    frames: frozenset[str]
    has_other_sources: bool
    expires: float
    round_calls: dict[str, tuple[str, int] | None] = field(default_factory=dict)
    readers: set[str] = field(default_factory=set)
    blocking_bytes: dict[tuple[str, str], int] = field(default_factory=dict)
    blocked_since: float = 0.0
    gated: bool = False


class QueryGates:
    """All known queries of one PE's job. Thread-safe.

    Attributes:
        find_wait_chain: returns the exports that a query waits for at an export of this PE, by
            port, query, and whether the query is gated.
    """

    def __init__(
        self,
        pe: str,
        notifier: Notifier,
        holders: Callable[[str], Sequence[BlockingReader]] = lambda _: (),
    ) -> None:
        """Create the registry without queries.

        ``notifier`` counts changes by key of import or export. ``holders`` returns the readers
        that block an export of this PE, by port.
        """
        self.find_wait_chain: Callable[[str, str, bool], list[str]] = lambda *_: []
        self._pe = pe
        self._job = job_of(pe) + "/"
        self._notifier = notifier
        self._holders = holders
        self._lock = threading.Lock()
        self._queries: dict[tuple[str, frozenset[str]], GatedQuery] = {}

    def begin(self, request: QueryBegin) -> GatedQuery:
        """Register or renew a query that runs or is about to (``query`` null).

        It is forgotten after `LEASE_SECONDS` without renewal.
        """
        frames, now = frozenset(request.frames), time.monotonic()
        id_ = request.query or ""
        with self._lock:
            self._queries = {k: q for k, q in self._queries.items() if q.expires > now}
            query = self._queries.get((id_, frames))
            if id_:
                query = query or self._queries.pop(("", frames), None)
            if query is None:
                query = GatedQuery("", "", (), frames, False, now)
            query.id, query.run = id_, request.run or ""
            query.exports, query.has_other_sources = tuple(request.exports), request.foreign
            query.expires = now + LEASE_SECONDS
            self._queries[id_, frames] = query
            return query

    def end(self, request: QueryEnd) -> None:
        """Remove a run of a query."""
        with self._lock:
            ended = (request.query, request.run)
            self._queries = {k: q for k, q in self._queries.items() if (q.id, q.run) != ended}

    def readers_of(self, query: str) -> set[str]:
        """Return the readers of a query, also if it has ended without `end`."""
        with self._lock:
            return {r for q in self._queries.values() if q.id == query for r in q.readers}

    def readers_for(self, query: str, export: str) -> set[str]:
        """Return the readers of a query that publishes, also while its id is not reported yet."""
        with self._lock:
            queries = self._queries.values()
            of = [q for q in queries if q.id == query or (not q.id and export in q.exports)]
            return {reader for q in of for reader in q.readers}

    def runs_of(self, readers: Collection[str]) -> set[str]:
        """Return the runs of the queries that have one of the readers."""
        with self._lock:
            queries = list(self._queries.values())
        return {q.run for q in queries if q.run and not q.readers.isdisjoint(readers)}

    def begin_call(self, frame: str | None, import_: str, reader: str) -> OffsetCall:
        """Register a reader's call for its next offset."""
        now = time.monotonic()
        with self._lock:
            matching = [q for q in self._queries.values() if frame in q.frames and q.expires > now]
            call = OffsetCall(self, self._notifier, import_)
            if len(matching) == 1:
                matching[0].readers.add(reader)
                call.attach(matching[0], str(frame))
            return call

    def blocking_export(self, query: GatedQuery) -> str | None:
        """Return the port of an export that the query would wait for, None if there is none.

        The gate does not block a query that waits for itself, nor one whose job has made no
        progress for `STUCK_SECONDS`: the writer of such a query gets an error with details.
        """
        holders = {port: list(self._holders(port)) for port in query.exports}
        bytes_ = {(port, h.reader): h.bytes for port, of in holders.items() for h in of}
        now = time.monotonic()
        if bytes_ != query.blocking_bytes:
            query.blocking_bytes, query.blocked_since = bytes_, now
        is_stuck = now - query.blocked_since > STUCK_SECONDS
        waits = (
            port
            for port, of in holders.items()
            if of and not self._is_self_blocked(query, of, is_stuck)
        )
        blocking = next(waits, None)
        query.gated = blocking is not None
        return blocking

    def _is_self_blocked(
        self, query: GatedQuery, holders: Sequence[BlockingReader], is_stuck: bool
    ) -> bool:
        """Return whether the query itself (also in a cycle) or its stuck job blocks an export."""
        blocks_itself = not query.readers.isdisjoint(h.reader for h in holders)
        blocks_itself = blocks_itself or any(h.ring is not None for h in holders)
        return blocks_itself or (is_stuck and all(h.import_.startswith(self._job) for h in holders))

    def wait_chains(self, readers: Iterable[str]) -> dict[str, list[str]]:
        """Return the exports that the readers' queries wait for, by reader; without idle ones."""
        now = time.monotonic()
        with self._lock:
            known = [q for q in self._queries.values() if q.expires > now and q.exports]
        chains = {r: self._wait_chain([q for q in known if r in q.readers]) for r in readers}
        return {reader: chain for reader, chain in chains.items() if chain}

    def _wait_chain(self, queries: Sequence[GatedQuery]) -> list[str]:
        chains = (self.find_wait_chain(port, q.id, q.gated) for q in queries for port in q.exports)
        return list(dict.fromkeys(key for chain in chains for key in chain))

    def port_key(self, port: str) -> str:
        """Return the key of a port of this PE."""
        return f"{self._pe}/{port}"

    def status(self) -> dict[str, Any]:
        """Return the status of the queries, by id."""
        now = time.monotonic()
        with self._lock:
            return {
                q.id: {
                    "exports": list(q.exports),
                    "imports": len(q.frames),
                    "foreign": q.has_other_sources,
                    "gated": q.gated,
                }
                for q in self._queries.values()
                if q.expires > now
            }


class OffsetCall:
    """One call for a reader's next offset; ``query`` is None if unknown, ``keys`` wake it."""

    def __init__(self, queries: QueryGates, notifier: Notifier, import_: str) -> None:
        self._queries = queries
        self._notifier = notifier
        self._import = import_
        self._frame = ""
        self.query: GatedQuery | None = None
        self.keys: tuple[str, ...] = (import_,)

    def attach(self, query: GatedQuery, frame: str) -> None:
        """Attach the call to its query; a repeated frame starts a new round."""
        if frame in query.round_calls:
            query.round_calls.clear()
        self.query, self._frame = query, frame
        query.round_calls[frame] = (self._import, self._notifier.version((self._import,)))
        imports = dict.fromkeys(call[0] for call in query.round_calls.values() if call is not None)
        self.keys = (*imports, *map(self._queries.port_key, query.exports))

    def blocking_export(self) -> str | None:
        """Return the export whose backpressure closes the query's gate, None if open."""
        return None if self.query is None else self._queries.blocking_export(self.query)

    @property
    def may_wait(self) -> bool:
        """Return whether a call may wait without blocking other streams of its query."""
        return self.query is not None and not self.query.has_other_sources

    def wait_seconds(
        self, requested: float, *, limited: bool, gated: bool, in_background: bool
    ) -> float:
        """Return for how many seconds the call may wait.

        Args:
            requested: the source's own limit; used while its query is unknown.
            limited: its run ends at a limit.
            gated: the gate is closed.
            in_background: not called by Spark, so it blocks no other source.
        """
        query = self.query
        if limited and not gated:
            return 0.0
        if query is None or in_background:
            return requested
        if len(query.round_calls) < len(query.frames) or None in query.round_calls.values():
            return 0.0
        return min(requested, MAX_WAIT_WITH_OTHERS) if query.has_other_sources else MAX_WAIT_SECONDS

    def note_offset(self) -> None:
        """Record that the reader returns an offset: later calls of the round do not wait."""
        if self.query is not None:
            self.query.round_calls[self._frame] = None

    def others_changed(self) -> bool:
        """Return whether an import asked earlier in the round has changed."""
        if self.query is None:
            return False
        earlier = [a for f, a in self.query.round_calls.items() if f != self._frame]
        return any(a is not None and self._notifier.version((a[0],)) > a[1] for a in earlier)
