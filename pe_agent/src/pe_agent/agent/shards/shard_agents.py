"""The other agents of a job, as the home of an export sees them: where they are, what they hold.

The driver tells each agent its fellows. What they were is kept over a restart: their blocks are to
be read, counted and released also while no driver runs. A fellow that the driver does not name any
more takes no new stages; it is known until it holds nothing.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pe_agent.agent.shards import read_grant as grants
from pe_agent.agent.shards.read_grant import Grant
from pe_agent.agent.state.store import Store
from pe_agent.transport.agent_client import AgentClient
from pe_agent.transport.flight_errors import AgentRefusedError, AgentUnreachableError
from streambroker_core.errors import StreambrokerError

if TYPE_CHECKING:
    from pe_agent.agent.exports.export import AgentExport

log = logging.getLogger("pe_agent")

ROUND_SECONDS = 1.0
SEAL_SECONDS = 5.0
CALL_SECONDS = 2.0
COUNT_SECONDS = 30.0
VERIFY_SECONDS = 1.0
"""An importer waits for the answer, and asks again for as long as it tries to read."""


@dataclass(slots=True)
class _ShardAgent:
    """One other agent of the job.

    Attributes:
        active: the driver names it: it takes stages.
        away: why it did not answer last time, empty if it did.
        last_seen: when it answered last, on the clock that never jumps.
        streams: what it said to keep for us, by export.
    """

    pe: str
    location: str
    token: str
    active: bool = True
    away: str = ""
    last_seen: float | None = None
    streams: dict[str, list[str]] = field(default_factory=dict)
    stopped: threading.Event = field(default_factory=threading.Event)

    def call(self, action: str, *, timeout: float, **body: Any) -> dict[str, Any]:
        """Perform an action.

        Raises:
            AgentUnreachableError: it does not answer, or another agent does at its address.
            AgentRefusedError: it says no.
        """
        client = AgentClient(self.location, self.token)
        try:
            return client.call(action, timeout=timeout, **body)
        except AgentUnreachableError as error:
            raise AgentUnreachableError(f"agent {self.pe}: {error}") from None
        except AgentRefusedError as error:
            if error.code == "TokenWrong":
                raise AgentUnreachableError(
                    f"agent {self.pe} is not at {self.location} any more: another one is."
                ) from None
            raise


class ShardAgents:
    """The fellows of one agent, each with a thread that settles and releases what it holds."""

    def __init__(
        self, pe: str, store: Store, exports: Callable[[], Mapping[str, AgentExport]]
    ) -> None:
        self._pe, self._store, self._exports = pe, store, exports
        self._lock = threading.Lock()
        self._agents: dict[str, _ShardAgent] = {}
        kept: list[tuple[str, str, str, bool]] = store.value("fellows", json.loads, [])
        for pe_, location, token, active in kept:
            self._agents[pe_] = _ShardAgent(pe_, location, token, active)

    def start(self) -> None:
        """Begin to settle and release; the exports are there now."""
        for fellow in list(self._agents.values()):
            self._start_thread(fellow)

    def _start_thread(self, shard_agent: _ShardAgent) -> None:
        threading.Thread(
            target=self._run, args=(shard_agent,), daemon=True, name=f"fellow {shard_agent.pe}"
        ).start()

    def set_agents(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Take the fellows that the driver names: ``{"agents": [{"pe", "location", "token"}]}``."""
        named = {a["pe"]: a for a in body["agents"] if a["pe"] != self._pe}
        with self._lock:
            for pe, known in self._agents.items():
                known.active = pe in named
            for pe, one in named.items():
                known_ = self._agents.get(pe)
                if known_ is None:
                    self._agents[pe] = _ShardAgent(pe, str(one["location"]), str(one["token"]))
                    self._start_thread(self._agents[pe])
                else:
                    known_.location, known_.token = str(one["location"]), str(one["token"])
            self._save()
        return {}

    def _save(self) -> None:
        known = [[f.pe, f.location, f.token, f.active] for f in self._agents.values()]
        self._store.set("fellows", json.dumps(known))

    # -- for exports -------------------------------------------------------------------------

    def staging_agents(self) -> list[dict[str, str]]:
        """Return PE, address and token of those that take stages now."""
        return [
            {"pe": f.pe, "location": f.location, "token": f.token}
            for f in sorted(self._agents.values(), key=lambda f: f.pe)
            if f.active and not f.away
        ]

    def seal(self, bodies: Mapping[str, dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
        """Seal at each of these fellows, at once; return what they have by stage, in order.

        Raises:
            AgentUnreachableError: one does not answer; the caller tries again.
            AgentRefusedError: one says no, and why.
        """

        def seal(pe: str) -> list[dict[str, Any]]:
            told = self._require_agent(pe).call("stage.seal", timeout=SEAL_SECONDS, **bodies[pe])
            found: list[dict[str, Any]] = told["stages"]
            return found

        with ThreadPoolExecutor(len(bodies), thread_name_prefix="seal") as threads:
            return dict(zip(bodies, threads.map(seal, bodies), strict=True))

    def find_broken(
        self, bodies: Mapping[str, dict[str, Any]]
    ) -> dict[str, dict[str, dict[str, str]]]:
        """Ask each of these fellows, at once, which parts it cannot give, and why.

        Raises:
            AgentUnreachableError: one does not answer, or has not read all of them yet; what it
                holds is not lost for that.
        """

        def ask(pe: str) -> dict[str, dict[str, str]]:
            told = self._require_agent(pe).call(
                "stage.verify", timeout=VERIFY_SECONDS, **bodies[pe]
            )
            if not told["done"]:
                raise AgentUnreachableError(f"agent {pe} has not verified all of its parts yet.")
            found: dict[str, dict[str, str]] = told["broken"]
            return found

        with ThreadPoolExecutor(len(bodies), thread_name_prefix="verify") as threads:
            return dict(zip(bodies, threads.map(ask, bodies), strict=True))

    def issue_tickets(self, pes: Sequence[str], grant: Grant) -> list[dict[str, str]]:
        """Return, for each of these fellows, what a reader needs to read there.

        Raises:
            AgentUnreachableError: one is not known here.
        """
        found = [self._require_agent(pe) for pe in pes]
        return [
            {"pe": f.pe, "location": f.location, "grant": grants.sign(f.token, grant)}
            for f in found
        ]

    def locate(self, pe: str) -> str:
        """Return the present address of a fellow.

        Raises:
            AgentUnreachableError: it is not known here.
        """
        return self._require_agent(pe).location

    def _require_agent(self, pe: str) -> _ShardAgent:
        found = self._agents.get(pe)
        if found is None:
            raise AgentUnreachableError(
                f"agent {pe}, which has rows of agent {self._pe}, is not known there: start the job"
                " with as many agents as before."
            )
        return found

    # -- settling and releasing --------------------------------------------------------------

    def _run(self, shard_agent: _ShardAgent) -> None:
        while not shard_agent.stopped.is_set():
            try:
                self.reconcile(shard_agent.pe)
                shard_agent.away, shard_agent.last_seen = "", time.monotonic()
            except Exception as error:
                if not isinstance(error, StreambrokerError):
                    log.exception("fellow not kept in order", extra={"fellow": shard_agent.pe})
                elif not shard_agent.away:
                    log.warning("fellow away: %s", error)
                shard_agent.away = str(error)
            shard_agent.stopped.wait(ROUND_SECONDS)

    def reconcile(self, pe: str) -> None:
        """Let one fellow count what it has to count, then remove what is of no use.

        Raises:
            AgentUnreachableError, AgentRefusedError: what was not done comes with the next round.
        """
        fellow, exports = self._require_agent(pe), self._exports()
        for export in exports.values():
            self._settle_counts(fellow, export)
        levels = {
            key: exports[key].retained_levels(pe, ids) if key in exports else dict.fromkeys(ids)
            for key, ids in fellow.streams.items()
        }
        body = {"home": self._pe, "exports": levels}
        told = fellow.call("stage.release", timeout=CALL_SECONDS, **body)
        fellow.streams = told["streams"]
        for key, readers in told["sent"].items():
            for reader, (rows, size, query) in readers.items() if key in exports else ():
                exports[key].count_sent(reader, rows, size, query)
        if not fellow.active and not fellow.streams:
            with self._lock:
                self._agents.pop(pe, None)
                self._save()
            fellow.stopped.set()

    def _settle_counts(self, shard_agent: _ShardAgent, export: AgentExport) -> None:
        owed = export.pending_counts(shard_agent.pe)
        for stream, filter_ in {(o.stream, o.filter): None for o in owed}:
            ours = [o for o in owed if (o.stream, o.filter) == (stream, filter_)]
            counted = shard_agent.call(
                "stage.count",
                timeout=COUNT_SECONDS,
                export=export.key,
                stream=stream,
                filter=filter_,
                epochs=sorted({o.epoch for o in ours}),
            )["rows"]
            for one in ours:
                export.settle_count(one, counted[str(one.epoch)])

    # -- seen from outside -------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Return figures for people: which fellows there are, and why one does not answer.

        ``seen`` is how many seconds ago it answered last.
        """
        now = time.monotonic()
        return {
            f.pe: {
                "location": f.location,
                "active": f.active,
                "away": f.away or None,
                "seen": None if f.last_seen is None else now - f.last_seen,
            }
            for f in list(self._agents.values())
        }

    def close(self) -> None:
        """End all rounds."""
        for fellow in list(self._agents.values()):
            fellow.stopped.set()
