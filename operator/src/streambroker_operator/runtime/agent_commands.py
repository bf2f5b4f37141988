"""What is asked of agents, which nobody can call: it waits here until they fetch and answer it.

Rule 1: nothing is kept on a disk. Whoever asks gets the agent's own answer, or is told that none
    came and asks again under the same name; the agent sees to it that this changes nothing more.
Rule 2: an errand is handed out with each fetch until it is answered: an agent may be killed
    between the two.
Rule 3: what is to be done waits on for a while when whoever asked has gone, so that an agent that
    comes by polls alone does it before it is asked for again. A question goes with who asked it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from streambroker_core.model import PeKey
from streambroker_core.wire.broker import hints
from streambroker_core.wire.broker.agent_commands import APPEND, EMIT, MOST, Done, Errand
from streambroker_operator.errors import RequestError
from streambroker_operator.runtime.runtime import Runtime

KEPT_S = 60.0
"""For how long an errand waits for the agent after it was last asked for: two polls."""
AGAIN_S = 1.0
"""After how many seconds an agent that has not answered is sent the next hint."""
MOST_IN_ALL = 5_000
MOST_BYTES = 32 << 20
_LASTING = (EMIT, APPEND)


class Asked(Protocol):
    """Who hands errands to agents, and their answers back."""

    async def ask(self, pe: PeKey, errand: Errand) -> Done:
        """Have an agent do something; return what it answers.

        Raises:
            RequestError: 503, it did not answer in time; 429, too much waits for agents.
        """
        ...

    async def fetch(self, pe: PeKey, done: Sequence[Done]) -> list[Errand]:
        """Take an agent's answers; return what waits for it.

        Raises:
            RequestError: 503, who would know cannot be reached.
        """
        ...

    def waits(self, pe: PeKey) -> bool:
        """Say whether something waits for an agent, as far as this process knows."""
        ...


@dataclass(slots=True)
class _Open:
    errand: Errand
    bytes: int
    until: float
    answered: asyncio.Future[Done] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class Errands:
    """The errands of this process, by PE.

    Args:
        tell: sends an agent a hint that something waits.
        wait_s: for how long a request waits for the agent.
    """

    def __init__(self, tell: Callable[[PeKey], None], wait_s: float) -> None:
        self._tell = tell
        self._wait_s = wait_s
        self._open: dict[PeKey, dict[str, _Open]] = {}
        self._count = self._bytes = 0

    async def ask(self, pe: PeKey, errand: Errand) -> Done:
        """As of `Asked`; one that waits already under that id is the same."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        one = self._opened(pe, errand, began)
        try:
            while not one.answered.done():
                left = began + self._wait_s - loop.time()
                if left <= 0:
                    raise away(f"The agent of {pe} has not answered for {self._wait_s:g} s.")
                self._tell(pe)
                await asyncio.wait([one.answered], timeout=min(AGAIN_S, left))
            return one.answered.result()
        finally:
            if errand.action not in _LASTING:
                self._close(pe, errand.id)

    def _opened(self, pe: PeKey, errand: Errand, now: float) -> _Open:
        self._forget(now)
        of_pe = self._open.get(pe, {})
        one = of_pe.get(errand.id)
        if one is None:
            size = len(errand.text)
            full = len(of_pe) >= MOST or self._count >= MOST_IN_ALL
            if full or self._bytes + size > MOST_BYTES:
                raise _too_many(pe)
            one = _Open(errand, size, now)
            self._open.setdefault(pe, {})[errand.id] = one
            self._count += 1
            self._bytes += size
        one.until = now + KEPT_S
        return one

    def _close(self, pe: PeKey, id_: str) -> _Open | None:
        of_pe = self._open.get(pe, {})
        one = of_pe.pop(id_, None)
        if one is not None:
            self._count -= 1
            self._bytes -= one.bytes
        if not of_pe:
            self._open.pop(pe, None)
        return one

    def _forget(self, now: float) -> None:
        late = [
            (pe, id_) for pe, of in self._open.items() for id_, o in of.items() if o.until < now
        ]
        for pe, id_ in late:
            self._close(pe, id_)

    async def fetch(self, pe: PeKey, done: Sequence[Done]) -> list[Errand]:
        """As of `Asked`."""
        for one in done:
            known = self._close(pe, one.id)
            if known is not None and not known.answered.done():
                known.answered.set_result(one)
        self._forget(asyncio.get_running_loop().time())
        return [one.errand for one in self._open.get(pe, {}).values()]

    def waits(self, pe: PeKey) -> bool:
        """As of `Asked`."""
        return pe in self._open


def hint_by(runtime: Runtime) -> Callable[[PeKey], None]:
    """Return what tells an agent of a broker that an errand waits for it."""

    def tell(pe: PeKey) -> None:
        registration = runtime.board.registration(pe)
        if registration is None or registration.hint is None:
            return
        key, point = runtime.key(pe, registration), runtime.board.point
        runtime.sender.send(pe, registration.hint, hints.encode(key, str(pe), hints.ERRANDS, point))

    return tell


def away(why: str) -> RequestError:
    """Return the refusal of what needs an agent that cannot be reached."""
    return RequestError(
        503,
        "AgentAway",
        f"{why} It is not known whether it has done it: send the same request with the same"
        " Request-Id once the job runs and its agent reaches the broker, and it is done once.",
        headers={"Retry-After": "2"},
    )


def _too_many(pe: PeKey) -> RequestError:
    return RequestError(
        429,
        "TooManyRequests",
        f"Too much waits for the agent of {pe}, or for all agents. Nothing was sent; try again"
        " after 5 s, and look whether the agent runs.",
        headers={"Retry-After": "5"},
    )
