"""Plan requests to one exporter's agent that are sent together."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from pe_agent.agent.imports.peer_agents import PLAN_SECONDS
from pe_agent.transport.agent_client import AgentClient, send
from pe_agent.transport.flight_errors import AgentRefusedError, AgentUnreachableError
from streambroker_core.errors import StreambrokerError
from streambroker_core.wire.agent_rpc.codec import to_json
from streambroker_core.wire.agent_rpc.peer import (
    PeerPlan,
    PeerPlans,
    PlanGroup,
    Planned,
    PlanReader,
    PlansMade,
)

MAX_PLANS = 256
"""Maximum plans per request."""
MAX_BYTES = 192 << 10
"""Maximum bytes of a request, below the limit of an agent for requests of other agents."""
SINGLE_SECONDS = 60.0
"""Time for which an agent that refused a batch gets single requests."""

_REFUSED_BATCH = "BodyInvalid"
"""Code of an agent that does not know the action, or cannot read one of the requests."""


@dataclass(eq=False, slots=True)
class _Waiting:
    """A request and its outcome; with a ``batch`` its thread sends that, else it sends itself."""

    request: PeerPlan
    key: str
    bytes: int
    batch: list[_Waiting] | None = None
    outcome: Planned | StreambrokerError | None = None
    woken: threading.Event = field(default_factory=threading.Event)


class PlanBatches:
    """Sends plan requests: one at a time to each agent, with all that have come meanwhile."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queues: dict[str, list[_Waiting]] = {}
        self._single_until: dict[str, float] = {}

    def send(self, location: str, request: PeerPlan) -> Planned:
        """Send a request and return its response, as if it were sent by itself.

        Raises:
            AgentUnreachableError, AgentRefusedError: see `AgentClient.call`.
        """
        if time.monotonic() < self._single_until.get(location, 0.0):
            return _send_single(location, request)
        waiting = _prepare(request)
        with self._lock:
            queue = self._queues.get(location)
            if queue is None:
                self._queues[location] = []
                waiting.batch = [waiting]
            else:
                queue.append(waiting)
        if waiting.batch is None:
            waiting.woken.wait()
        if waiting.batch is not None:
            try:
                self._send_batch(location, waiting.batch)
            finally:
                self._pass_on(location, waiting)
        if waiting.outcome is None:
            return _send_single(location, request)
        if isinstance(waiting.outcome, StreambrokerError):
            raise waiting.outcome
        return waiting.outcome

    def _send_batch(self, location: str, batch: Sequence[_Waiting]) -> None:
        """Send a batch and note the outcomes; without one a request is to be sent by itself."""
        if len(batch) == 1:
            try:
                batch[0].outcome = _send_single(location, batch[0].request)
            except StreambrokerError as error:
                batch[0].outcome = error
            return
        groups: dict[str, list[_Waiting]] = {}
        for one in batch:
            groups.setdefault(one.key, []).append(one)
        request = PeerPlans(groups=[_group(members) for members in groups.values()])
        try:
            made = send(AgentClient(location), request, timeout=PLAN_SECONDS)
        except AgentUnreachableError as error:
            for one in batch:
                one.outcome = AgentUnreachableError(str(error))
        except AgentRefusedError as error:
            if error.code == _REFUSED_BATCH:
                self._single_until[location] = time.monotonic() + SINGLE_SECONDS
                return
            for one in batch:
                one.outcome = AgentRefusedError(error.code, str(error), error.facts)
        else:
            _note_outcomes([one for members in groups.values() for one in members], made)

    def _pass_on(self, location: str, sender: _Waiting) -> None:
        """Wake the requests of a batch, and have the first that waits send the next batch."""
        with self._lock:
            queue = self._queues[location]
            following = _take_batch(queue)
            if not following:
                del self._queues[location]
        if following:
            following[0].batch = following
            following[0].woken.set()
        for one in sender.batch or ():
            one.woken.set()


def _prepare(request: PeerPlan) -> _Waiting:
    body = to_json(request)
    size = len(json.dumps(body))
    for name in ("import", "reader", "call", "capability", "pass"):
        body.pop(name)
    return _Waiting(request, json.dumps(body), size)


def _take_batch(queue: list[_Waiting]) -> list[_Waiting]:
    """Remove the requests of the next batch from the queue; empty without any."""
    size = count = 0
    while count < min(len(queue), MAX_PLANS):
        size += queue[count].bytes
        if count and size > MAX_BYTES:
            break
        count += 1
    batch, queue[:] = queue[:count], queue[count:]
    return batch


def _group(members: Sequence[_Waiting]) -> PlanGroup:
    return PlanGroup(
        plan=members[0].request,
        others=[
            PlanReader(
                import_=one.request.import_,
                reader=one.request.reader,
                call=one.request.call,
                capability=one.request.capability,
                pass_=one.request.pass_,
            )
            for one in members[1:]
        ],
    )


def _note_outcomes(batch: Sequence[_Waiting], made: PlansMade) -> None:
    for one, result in zip(batch, made.results, strict=True):
        if result.code is not None:
            one.outcome = AgentRefusedError(result.code, result.error or "")
        else:
            one.outcome = replace(made.plans[result.plan], pass_=result.pass_)


def _send_single(location: str, request: PeerPlan) -> Planned:
    return send(AgentClient(location), request, timeout=PLAN_SECONDS)
