"""Where hints may be sent: to addresses whose agents are known to listen there.

Otherwise an agent could have a broker send datagrams to others.
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
"""How long after a registration a challenge is sent: its agent has the key then, in seconds."""


def with_proven_hint(
    runtime: Runtime, pe: PeKey, agent: Registration, caller: str, proof: str | None
) -> Registration:
    """Return a registration, without the address for hints unless hints may be sent there.

    That is the caller's own address, one that the same agent has proven before, or one for which it
    shows what was sent there.

    Args:
        runtime: knows the agents.
        pe: whose agent it is.
        agent: what it says of itself.
        caller: address that it calls from.
        proof: what it shows; None for nothing.
    """
    if agent.hint is None:
        return agent
    host, _ = split_address(agent.hint)
    known = runtime.board.registration(pe)
    before = known is not None and (known.instance, known.hint) == (agent.instance, agent.hint)
    proven = before or is_same_host(host, caller) or _is_proof(runtime.secret, pe, agent, proof)
    return agent if proven and is_hint_target(host) else replace(agent, hint=None)


def challenge(runtime: Runtime, pe: PeKey, agent: Registration) -> None:
    """Send a proof to the address that an agent gives for hints, if it is one of a machine."""
    if agent.hint is None:
        return
    version = hints.PROOF + hint_proof(runtime.secret, pe, agent, _hour())
    datagram = hints.encode(runtime.agent_key(pe, agent), str(pe), version, runtime.board.point)
    loop = asyncio.get_running_loop()
    loop.call_later(DELAY_S, runtime.sender.challenge, agent.hint, datagram)


def _is_proof(secret: bytes, pe: PeKey, agent: Registration, proof: str | None) -> bool:
    """Say whether an agent shows what was sent to its address in this hour or the last."""
    shown = (proof or "").encode()
    good = [hint_proof(secret, pe, agent, _hour() - ago).encode() for ago in (0, 1)]
    return any(hmac.compare_digest(one, shown) for one in good)


def _hour() -> int:
    return int(time.time() // 3_600)
