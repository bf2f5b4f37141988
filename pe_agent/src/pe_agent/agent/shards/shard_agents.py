"""Shard agents: the other agents of a job, as the home of an export sees them.

The driver names the shard agents. They are stored over a restart, because their blocks must be
read, counted and released also without a driver. A shard agent that the driver no longer names
takes no new stages and is forgotten once it stores nothing.
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
from pe_agent.transport.agent_client import AgentClient, send
from pe_agent.transport.flight_errors import AgentRefusedError, AgentUnreachableError
from streambroker_core.errors import StreambrokerError
from streambroker_core.wire.agent_rpc.codec import R, Request
from streambroker_core.wire.agent_rpc.peer import GrantedAgent
from streambroker_core.wire.agent_rpc.publisher import AgentAddress
from streambroker_core.wire.agent_rpc.stages import (
    SealedBlocks,
    StageCount,
    StageRelease,
    StageSeal,
    StageVerify,
)

if TYPE_CHECKING:
    from pe_agent.agent.exports.export import AgentExport

log = logging.getLogger("pe_agent")

ROUND_SECONDS = 1.0
SEAL_SECONDS = 5.0
CALL_SECONDS = 2.0
COUNT_SECONDS = 30.0
VERIFY_SECONDS = 1.0
"""Short: an importer waits for the response, and retries for as long as it tries to read."""


@dataclass(slots=True)
class _ShardAgent:
    """One other agent of the job.

    Attributes:
        active: the driver names it, so it takes stages.
        away: why the last call failed, empty if it succeeded.
        last_seen: time of its last response (monotonic seconds).
        streams: streams it keeps for us, by export.
    """

    pe: str
    location: str
    token: str
    active: bool = True
    away: str = ""
    last_seen: float | None = None
    streams: Mapping[str, Sequence[str]] = field(default_factory=dict)
    stopped: threading.Event = field(default_factory=threading.Event)

    def send(self, request: Request[R], *, timeout: float) -> R:
        """Perform an action.

        Raises:
            AgentUnreachableError: no response, or another agent has its address.
            AgentRefusedError: the agent refuses the action.
        """
        try:
            return send(AgentClient(self.location, self.token), request, timeout=timeout)
        except AgentUnreachableError as error:
            raise AgentUnreachableError(f"agent {self.pe}: {error}") from None
        except AgentRefusedError as error:
            if error.code == "TokenWrong":
                raise AgentUnreachableError(
                    f"agent {self.pe} is no longer at {self.location}: the address belongs to"
                    " another agent."
                ) from None
            raise


class ShardAgents:
    """Shard agents of one agent, each with a thread that settles counts and releases data."""

    def __init__(
        self, pe: str, store: Store, exports: Callable[[], Mapping[str, AgentExport]]
    ) -> None:
        self._pe, self._store, self._exports = pe, store, exports
        self._lock = threading.Lock()
        self._agents: dict[str, _ShardAgent] = {}
        stored: list[tuple[str, str, str, bool]] = store.value("fellows", json.loads, [])
        for pe_, location, token, active in stored:
            self._agents[pe_] = _ShardAgent(pe_, location, token, active)

    def start(self) -> None:
        """Start the threads; call this once the exports are recovered."""
        for shard_agent in list(self._agents.values()):
            self._start_thread(shard_agent)

    def _start_thread(self, shard_agent: _ShardAgent) -> None:
        threading.Thread(
            target=self._run, args=(shard_agent,), daemon=True, name=f"shard agent {shard_agent.pe}"
        ).start()

    def set_agents(self, agents: Sequence[AgentAddress]) -> None:
        """Set the shard agents; this agent itself is ignored."""
        named = {a.pe: a for a in agents if a.pe != self._pe}
        with self._lock:
            for pe, known in self._agents.items():
                known.active = pe in named
            for pe, one in named.items():
                existing = self._agents.get(pe)
                if existing is None:
                    self._agents[pe] = _ShardAgent(pe, one.location, one.token)
                    self._start_thread(self._agents[pe])
                else:
                    existing.location, existing.token = one.location, one.token
            self._save()

    def _save(self) -> None:
        known = [[f.pe, f.location, f.token, f.active] for f in self._agents.values()]
        self._store.set("fellows", json.dumps(known))

    # -- for exports -------------------------------------------------------------------------

    def staging_agents(self) -> list[AgentAddress]:
        """Return PE, address and token of the agents that take stages now."""
        return [
            AgentAddress(pe=f.pe, location=f.location, token=f.token)
            for f in sorted(self._agents.values(), key=lambda f: f.pe)
            if f.active and not f.away
        ]

    def seal(self, requests: Mapping[str, StageSeal]) -> dict[str, Sequence[SealedBlocks]]:
        """Seal at several shard agents in parallel; return their stages, in order.

        Raises:
            AgentUnreachableError: one does not respond; the caller retries.
            AgentRefusedError: one refuses.
        """
        responses = self._send_all(requests, timeout=SEAL_SECONDS)
        return {pe: response.stages for pe, response in responses.items()}

    def find_broken(
        self, requests: Mapping[str, StageVerify]
    ) -> dict[str, Mapping[str, Mapping[str, str]]]:
        """Ask several shard agents in parallel for missing or damaged parts, with reasons.

        Raises:
            AgentUnreachableError: one does not respond, or has not verified all parts yet; its
                parts are not lost for that.
        """
        responses = self._send_all(requests, timeout=VERIFY_SECONDS)
        for pe, response in responses.items():
            if not response.done:
                raise AgentUnreachableError(f"agent {pe} has not verified all of its parts yet.")
        return {pe: response.broken for pe, response in responses.items()}

    def _send_all(self, requests: Mapping[str, Request[R]], *, timeout: float) -> dict[str, R]:
        """Send a request to each of several shard agents, in parallel."""

        def send_one(pe: str) -> R:
            return self._require_agent(pe).send(requests[pe], timeout=timeout)

        with ThreadPoolExecutor(len(requests), thread_name_prefix="shard agents") as threads:
            return dict(zip(requests, threads.map(send_one, requests), strict=True))

    def issue_tickets(self, pes: Sequence[str], grant: Grant) -> list[GrantedAgent]:
        """Return address and signed grant for reads at each of these shard agents.

        Raises:
            AgentUnreachableError: one is unknown here.
        """
        agents = [self._require_agent(pe) for pe in pes]
        return [
            GrantedAgent(pe=f.pe, location=f.location, grant=grants.sign(f.token, grant))
            for f in agents
        ]

    def locate(self, pe: str) -> str:
        """Return the current address of a shard agent.

        Raises:
            AgentUnreachableError: it is unknown here.
        """
        return self._require_agent(pe).location

    def _require_agent(self, pe: str) -> _ShardAgent:
        shard_agent = self._agents.get(pe)
        if shard_agent is None:
            raise AgentUnreachableError(
                f"agent {pe}, which has rows of agent {self._pe}, is not registered there: start"
                " the job with as many agents as before."
            )
        return shard_agent

    # -- background rounds -------------------------------------------------------------------

    def _run(self, shard_agent: _ShardAgent) -> None:
        while not shard_agent.stopped.is_set():
            try:
                self.reconcile(shard_agent.pe)
                shard_agent.away, shard_agent.last_seen = "", time.monotonic()
            except Exception as error:
                if not isinstance(error, StreambrokerError):
                    log.exception(
                        "cannot reconcile a shard agent", extra={"fellow": shard_agent.pe}
                    )
                elif not shard_agent.away:
                    log.warning("shard agent is unreachable: %s", error)
                shard_agent.away = str(error)
            shard_agent.stopped.wait(ROUND_SECONDS)

    def reconcile(self, pe: str) -> None:
        """Settle pending counts of one shard agent, then release obsolete data there.

        Raises:
            AgentUnreachableError, AgentRefusedError: the next round does the rest.
        """
        shard_agent, exports = self._require_agent(pe), self._exports()
        for export in exports.values():
            self._settle_counts(shard_agent, export)
        levels = {
            key: exports[key].shards.retained_levels(pe, ids)
            if key in exports
            else dict.fromkeys(ids)
            for key, ids in shard_agent.streams.items()
        }
        request = StageRelease(home=self._pe, exports=levels)
        response = shard_agent.send(request, timeout=CALL_SECONDS)
        shard_agent.streams = response.streams
        for key, readers in response.sent.items():
            for reader, (rows, size, query) in readers.items() if key in exports else ():
                exports[key].plans.count_sent(reader, rows, size, query)
        if not shard_agent.active and not shard_agent.streams:
            with self._lock:
                self._agents.pop(pe, None)
                self._save()
            shard_agent.stopped.set()

    def _settle_counts(self, shard_agent: _ShardAgent, export: AgentExport) -> None:
        owed = export.shards.pending_counts(shard_agent.pe)
        for stream, filter_ in {(o.stream, o.filter): None for o in owed}:
            ours = [o for o in owed if (o.stream, o.filter) == (stream, filter_)]
            epochs = sorted({o.epoch for o in ours})
            request = StageCount(export=export.key, stream=stream, filter=filter_, epochs=epochs)
            counted = shard_agent.send(request, timeout=COUNT_SECONDS).rows
            for one in ours:
                export.shards.settle_count(one, counted[str(one.epoch)])

    # -- status ------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Return the shard agents with errors; ``seen`` is the seconds since the last response."""
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
        """Stop all threads after their current round."""
        for shard_agent in list(self._agents.values()):
            shard_agent.stopped.set()
