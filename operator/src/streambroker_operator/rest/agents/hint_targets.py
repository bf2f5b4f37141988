"""Verify that an agent listens at the address it registers for hints.

Otherwise an agent could make a broker send datagrams to third parties.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from dataclasses import replace

from streambroker_core.model import PeKey
from streambroker_core.wire.broker import hints
from streambroker_core.wire.broker.registration import (
    Registration,
    hint_proof,
    is_hint_target,
    is_same_host,
    split_address,
)
from streambroker_operator.runtime.runtime import Runtime

DELAY_S = 0.5
"""Delay of a challenge after the registration, in seconds: the agent then has its key."""


def with_proven_hint(
    runtime: Runtime, pe: PeKey, agent: Registration, caller: str, proof: str | None
) -> Registration:
    """Return a registration, without the hint address unless hints may be sent there.

    The address is accepted if its host is the caller's own, if the same agent has proven it before,
    or if the agent returns the proof that was sent there.
    """
    if agent.hint is None:
        return agent
    host, _ = split_address(agent.hint)
    current = runtime.board.registration(pe)
    proven_before = current is not None and (current.instance, current.hint) == (
        agent.instance,
        agent.hint,
    )
    proven = (
        proven_before
        or is_same_host(host, caller)
        or _is_proof(runtime.store.secret, pe, agent, proof)
    )
    return agent if proven and is_hint_target(host) else replace(agent, hint=None)


def challenge(runtime: Runtime, pe: PeKey, agent: Registration) -> None:
    """Send a proof to the hint address of an agent; nothing without a hint address."""
    if agent.hint is None:
        return
    version = hints.PROOF + hint_proof(runtime.store.secret, pe, agent, _hour())
    datagram = hints.encode(runtime.agent_key(pe, agent), str(pe), version, runtime.board.point)
    loop = asyncio.get_running_loop()
    loop.call_later(DELAY_S, runtime.sender.challenge, agent.hint, datagram)


def _is_proof(secret: bytes, pe: PeKey, agent: Registration, proof: str | None) -> bool:
    """Return whether a proof is valid: that of this hour or of the last."""
    proof_bytes = (proof or "").encode()
    valid = [hint_proof(secret, pe, agent, _hour() - ago).encode() for ago in (0, 1)]
    return any(hmac.compare_digest(expected, proof_bytes) for expected in valid)


def _hour() -> int:
    return int(time.time() // 3_600)
