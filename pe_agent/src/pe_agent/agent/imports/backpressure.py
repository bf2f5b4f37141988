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

from pe_agent.agent.notifier import News
from streambroker_core.ledger.ledger import Holder
from streambroker_core.model import job_of

LEASE = 6.0
TOGETHER = 1.0
BESIDE_OTHERS = 0.02
STUCK_SECONDS = 60.0


@dataclass(slots=True)
class Query:
    """One running query.

    Attributes:
        exports: ports of the exports it publishes to; none for another sink.
        frames: of its imports, as ``subscribe`` names them.
        foreign: it reads other streams as well.
        asked: who was asked since one was asked for the second time: its import and the news seen
            then, None if it had an offset to give.
        readers: its readers, as far as they have asked.
        shut_for: what each holder of an export had to finish when that last changed.
        since: when that was.
        gated: the answer to its last call was that the gate is shut.
    """

    id: str
    run: str
    exports: tuple[str, ...]
    frames: frozenset[str]
    foreign: bool
    until: float
    asked: dict[str, tuple[str, int] | None] = field(default_factory=dict)
    readers: set[str] = field(default_factory=set)
    shut_for: dict[tuple[str, str], int] = field(default_factory=dict)
    since: float = 0.0
    gated: bool = False


class Queries:
    """All queries of one PE's job that were told of. Safe from any thread.

    Attributes:
        chain_of: returns for which exports a query waits at one of this PE, by port, query, and
            whether it reads nothing for that.
    """

    def __init__(
        self, pe: str, news: News, holders: Callable[[str], Sequence[Holder]] = lambda _: ()
    ) -> None:
        """Begin without any.

        Args:
            pe: key of the PE.
            news: counts what happens, by key of import or export.
            holders: returns who makes an export of this PE wait, by port.
        """
        self.chain_of: Callable[[str, str, bool], list[str]] = lambda *_: []
        self._pe = pe
        self._job = job_of(pe) + "/"
        self._news = news
        self._holders = holders
        self._lock = threading.Lock()
        self._known: dict[tuple[str, frozenset[str]], Query] = {}

    def begin(self, body: Mapping[str, Any]) -> Query:
        """A query runs, or is about to (``query`` null); forgotten when it is not told again.

        Args:
            body: ``query``, ``run``, ``exports``, ``frames``, ``foreign``.
        """
        frames, now = frozenset(body["frames"]), time.monotonic()
        id_ = str(body["query"] or "")
        with self._lock:
            self._known = {k: q for k, q in self._known.items() if q.until > now}
            known = self._known.get((id_, frames))
            if id_:
                known = known or self._known.pop(("", frames), None)
            if known is None:
                known = Query("", "", (), frames, False, now)
            known.id, known.run = id_, str(body["run"] or "")
            known.exports, known.foreign = tuple(body["exports"]), bool(body["foreign"])
            known.until = now + LEASE
            self._known[id_, frames] = known
            return known

    def end(self, body: Mapping[str, Any]) -> None:
        """A run of a query has ended: ``query``, ``run``."""
        with self._lock:
            told = (body["query"], body["run"])
            self._known = {k: q for k, q in self._known.items() if (q.id, q.run) != told}

    def turn(self, frame: str | None, import_: str, reader: str) -> Turn:
        """Return the turn of a reader that is asked for its next offset."""
        now = time.monotonic()
        with self._lock:
            of = [q for q in self._known.values() if frame in q.frames and q.until > now]
            turn = Turn(self, self._news, import_)
            if len(of) == 1:
                of[0].readers.add(reader)
                turn.take(of[0], str(frame))
            return turn

    def shut(self, query: Query) -> str | None:
        """Return the port of an export that the query would wait for, None for none.

        The gate does not hold a query up that waits for itself, or one whose job has stood still
        for a minute: its writer is refused by name.
        """
        holders = {port: list(self._holders(port)) for port in query.exports}
        bytes_ = {(port, h.reader): h.bytes for port, of in holders.items() for h in of}
        now = time.monotonic()
        if bytes_ != query.shut_for:
            query.shut_for, query.since = bytes_, now
        still = now - query.since > STUCK_SECONDS
        waits = (port for port, of in holders.items() if of and not self._own(query, of, still))
        shut = next(waits, None)
        query.gated = shut is not None
        return shut

    def _own(self, query: Query, holders: Sequence[Holder], still: bool) -> bool:
        """Whether it is the query itself that holds an export, or its job, which stands still.

        A query holds it itself, too, where others in between wait for each other.
        """
        itself = not query.readers.isdisjoint(h.reader for h in holders)
        itself = itself or any(h.ring is not None for h in holders)
        return itself or (still and all(h.import_.startswith(self._job) for h in holders))

    def chains(self, readers: Iterable[str]) -> dict[str, list[str]]:
        """Return for which exports the queries of some readers wait, of those that do."""
        now = time.monotonic()
        with self._lock:
            known = [q for q in self._known.values() if q.until > now and q.exports]
        of = {r: self._chain([q for q in known if r in q.readers]) for r in readers}
        return {reader: chain for reader, chain in of.items() if chain}

    def _chain(self, queries: Sequence[Query]) -> list[str]:
        found = (self.chain_of(port, q.id, q.gated) for q in queries for port in q.exports)
        return list(dict.fromkeys(key for chain in found for key in chain))

    def key(self, port: str) -> str:
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
                    "foreign": q.foreign,
                    "gated": q.gated,
                }
                for q in self._known.values()
                if q.until > now
            }


class Turn:
    """One call for the next offset of one reader.

    Attributes:
        query: whose it is, None if that is not known.
        keys: whose news it waits for.
    """

    def __init__(self, queries: Queries, news: News, import_: str) -> None:
        self._queries = queries
        self._news = news
        self._import = import_
        self._frame = ""
        self.query: Query | None = None
        self.keys: tuple[str, ...] = (import_,)

    def take(self, query: Query, frame: str) -> None:
        """It is the frame's turn; a new round begins if it was asked before in this one."""
        if frame in query.asked:
            query.asked.clear()
        self.query, self._frame = query, frame
        query.asked[frame] = (self._import, self._news.seen((self._import,)))
        imports = dict.fromkeys(asked[0] for asked in query.asked.values() if asked is not None)
        self.keys = (*imports, *map(self._queries.key, query.exports))

    def gate(self) -> str | None:
        """Return the export for which the query must not read anything now, None for none."""
        return None if self.query is None else self._queries.shut(self.query)

    @property
    def together(self) -> bool:
        """Whether it is known that a call may wait without holding up other streams."""
        return self.query is not None and not self.query.foreign

    def patience(self, asked: float, *, limited: bool, gated: bool, aside: bool) -> float:
        """Return for how many seconds the call may wait.

        Args:
            asked: what the source asks for; it counts where nothing is known of its query.
            aside: it is asked behind Spark's back, so it holds nobody up.
            limited: it reads up to a limit, and what it is not given ends its run.
            gated: the gate is shut.
        """
        query = self.query
        if limited and not gated:
            return 0.0
        if query is None or aside:
            return asked
        if len(query.asked) < len(query.frames) or None in query.asked.values():
            return 0.0
        return min(asked, BESIDE_OTHERS) if query.foreign else TOGETHER

    def gave(self) -> None:
        """The reader has an offset to give: nobody after it waits."""
        if self.query is not None:
            self.query.asked[self._frame] = None

    def others_have_news(self) -> bool:
        """Whether there is news for a reader of the query that was asked before."""
        if self.query is None:
            return False
        before = [a for f, a in self.query.asked.items() if f != self._frame]
        return any(a is not None and self._news.seen((a[0],)) > a[1] for a in before)
