"""Queries of the own job that read imports: which of their calls waits, and whose gate is shut.

Spark asks the sources of a query one after the other, so only the last one asked may wait, and it
waits for news of all. A query that publishes is given nothing to read while its export would make
it wait: it holds no task slot then. What is planned in its checkpoint is not held up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pe_agent.agent.notifier import Notifier
from streambroker_core.ledger.ledger import BlockingReader
from streambroker_core.model import job_of

LEASE_SECONDS = 6.0
MAX_WAIT_SECONDS = 1.0
MAX_WAIT_WITH_OTHERS = 0.02
STUCK_SECONDS = 60.0


@dataclass(slots=True)
class GatedQuery:
    """One running query.

    Attributes:
        exports: ports of the exports it publishes to; none for another sink.
        frames: of its imports, as ``subscribe`` names them.
        has_other_sources: it reads other streams as well.
        round_calls: who was asked since one was asked for the second time: its import and the news
            seen then, None if it had an offset to give.
        readers: its readers, as far as they have asked.
        blocking_bytes: what each holder of an export had to finish when that last changed.
        blocked_since: when that was.
        gated: the answer to its last call was that the gate is shut.
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
    """All queries of one PE's job that were told of. Safe from any thread.

    Attributes:
        find_wait_chain: returns for which exports a query waits at one of this PE, by port, query,
            and whether it reads nothing for that.
    """

    def __init__(
        self,
        pe: str,
        notifier: Notifier,
        holders: Callable[[str], Sequence[BlockingReader]] = lambda _: (),
    ) -> None:
        """Begin without any.

        Args:
            pe: key of the PE.
            notifier: counts what happens, by key of import or export.
            holders: returns who makes an export of this PE wait, by port.
        """
        self.find_wait_chain: Callable[[str, str, bool], list[str]] = lambda *_: []
        self._pe = pe
        self._job = job_of(pe) + "/"
        self._notifier = notifier
        self._holders = holders
        self._lock = threading.Lock()
        self._queries: dict[tuple[str, frozenset[str]], GatedQuery] = {}

    def begin(self, body: Mapping[str, Any]) -> GatedQuery:
        """A query runs, or is about to (``query`` null); forgotten when it is not told again.

        Args:
            body: ``query``, ``run``, ``exports``, ``frames``, ``foreign``.
        """
        frames, now = frozenset(body["frames"]), time.monotonic()
        id_ = str(body["query"] or "")
        with self._lock:
            self._queries = {k: q for k, q in self._queries.items() if q.expires > now}
            known = self._queries.get((id_, frames))
            if id_:
                known = known or self._queries.pop(("", frames), None)
            if known is None:
                known = GatedQuery("", "", (), frames, False, now)
            known.id, known.run = id_, str(body["run"] or "")
            known.exports, known.has_other_sources = tuple(body["exports"]), bool(body["foreign"])
            known.expires = now + LEASE_SECONDS
            self._queries[id_, frames] = known
            return known

    def end(self, body: Mapping[str, Any]) -> None:
        """A run of a query has ended: ``query``, ``run``."""
        with self._lock:
            told = (body["query"], body["run"])
            self._queries = {k: q for k, q in self._queries.items() if (q.id, q.run) != told}

    def begin_call(self, frame: str | None, import_: str, reader: str) -> OffsetCall:
        """Return the turn of a reader that is asked for its next offset."""
        now = time.monotonic()
        with self._lock:
            of = [q for q in self._queries.values() if frame in q.frames and q.expires > now]
            turn = OffsetCall(self, self._notifier, import_)
            if len(of) == 1:
                of[0].readers.add(reader)
                turn.attach(of[0], str(frame))
            return turn

    def blocking_export(self, query: GatedQuery) -> str | None:
        """Return the port of an export that the query would wait for, None for none.

        The gate does not hold a query up that waits for itself, or one whose job has stood still
        for a minute: its writer is refused by name.
        """
        holders = {port: list(self._holders(port)) for port in query.exports}
        bytes_ = {(port, h.reader): h.bytes for port, of in holders.items() for h in of}
        now = time.monotonic()
        if bytes_ != query.blocking_bytes:
            query.blocking_bytes, query.blocked_since = bytes_, now
        still = now - query.blocked_since > STUCK_SECONDS
        waits = (
            port
            for port, of in holders.items()
            if of and not self._is_self_blocked(query, of, still)
        )
        shut = next(waits, None)
        query.gated = shut is not None
        return shut

    def _is_self_blocked(
        self, query: GatedQuery, holders: Sequence[BlockingReader], is_stuck: bool
    ) -> bool:
        """Whether it is the query itself that holds an export, or its job, which stands still.

        A query holds it itself, too, where others in between wait for each other.
        """
        itself = not query.readers.isdisjoint(h.reader for h in holders)
        itself = itself or any(h.ring is not None for h in holders)
        return itself or (is_stuck and all(h.import_.startswith(self._job) for h in holders))

    def wait_chains(self, readers: Iterable[str]) -> dict[str, list[str]]:
        """Return for which exports the queries of some readers wait, of those that do."""
        now = time.monotonic()
        with self._lock:
            known = [q for q in self._queries.values() if q.expires > now and q.exports]
        of = {r: self._wait_chain([q for q in known if r in q.readers]) for r in readers}
        return {reader: chain for reader, chain in of.items() if chain}

    def _wait_chain(self, queries: Sequence[GatedQuery]) -> list[str]:
        found = (self.find_wait_chain(port, q.id, q.gated) for q in queries for port in q.exports)
        return list(dict.fromkeys(key for chain in found for key in chain))

    def port_key(self, port: str) -> str:
        """Return the key of a port of this PE."""
        return f"{self._pe}/{port}"

    def status(self) -> dict[str, Any]:
        """Return figures for people, by query."""
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
    """One call for the next offset of one reader.

    Attributes:
        query: whose it is, None if that is not known.
        keys: whose news it waits for.
    """

    def __init__(self, queries: QueryGates, notifier: Notifier, import_: str) -> None:
        self._queries = queries
        self._notifier = notifier
        self._import = import_
        self._frame = ""
        self.query: GatedQuery | None = None
        self.keys: tuple[str, ...] = (import_,)

    def attach(self, query: GatedQuery, frame: str) -> None:
        """It is the frame's turn; a new round begins if it was asked before in this one."""
        if frame in query.round_calls:
            query.round_calls.clear()
        self.query, self._frame = query, frame
        query.round_calls[frame] = (self._import, self._notifier.version((self._import,)))
        imports = dict.fromkeys(
            asked[0] for asked in query.round_calls.values() if asked is not None
        )
        self.keys = (*imports, *map(self._queries.port_key, query.exports))

    def blocking_export(self) -> str | None:
        """Return the export for which the query must not read anything now, None for none."""
        return None if self.query is None else self._queries.blocking_export(self.query)

    @property
    def may_wait(self) -> bool:
        """Whether it is known that a call may wait without holding up other streams."""
        return self.query is not None and not self.query.has_other_sources

    def wait_seconds(
        self, requested: float, *, limited: bool, gated: bool, in_background: bool
    ) -> float:
        """Return for how many seconds the call may wait.

        Args:
            requested: what the source asks for; it counts where nothing is known of its query.
            in_background: it is asked behind Spark's back, so it holds nobody up.
            limited: it reads up to a limit, and what it is not given ends its run.
            gated: the gate is shut.
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
        """The reader has an offset to give: nobody after it waits."""
        if self.query is not None:
            self.query.round_calls[self._frame] = None

    def others_changed(self) -> bool:
        """Whether there is news for a reader of the query that was asked before."""
        if self.query is None:
            return False
        before = [a for f, a in self.query.round_calls.items() if f != self._frame]
        return any(a is not None and self._notifier.version((a[0],)) > a[1] for a in before)
