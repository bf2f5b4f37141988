"""Long questions are asked one at a time, and no caller's wait for all of another's."""

from __future__ import annotations

import asyncio

import pytest

from streambroker_operator.errors import RequestError
from streambroker_operator.rest.guard.rate_limits import MAX_WAITING, FairQueue


class Desk:
    """Callers at one place of turns; who has the turn stays until told to go."""

    def __init__(self) -> None:
        self.turns = FairQueue()
        self.served: list[str] = []
        self.at_once = 0
        self._go = asyncio.Semaphore(0)

    async def ask(self, name: str) -> None:
        async with self.turns.turn(name[0]):
            self.at_once += 1
            assert self.at_once == 1
            self.served.append(name)
            try:
                await self._go.acquire()
            finally:
                self.at_once -= 1

    async def come(self, *names: str) -> list[asyncio.Task[None]]:
        """Let callers come in this order; the first letter says who it is."""
        tasks = [asyncio.create_task(self.ask(name)) for name in names]
        await settled()
        return tasks

    async def let_go(self) -> None:
        self._go.release()
        await settled()


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_callers_take_turns_however_many_requests_one_of_them_has() -> None:
    desk = Desk()
    tasks = await desk.come("a1", "a2", "a3", "b1", "a4", "c1", "b2")
    for _ in tasks:
        await desk.let_go()
    await asyncio.gather(*tasks)

    assert desk.served == ["a1", "a2", "b1", "c1", "a3", "b2", "a4"]


async def test_who_has_too_many_waiting_is_refused_and_others_are_not() -> None:
    desk = Desk()
    await desk.come("a0", *(f"a{n}" for n in range(MAX_WAITING)))
    (late,) = await desk.come("a-late")
    (other,) = await desk.come("b1")

    with pytest.raises(RequestError) as refused:
        await late
    assert (refused.value.status, refused.value.code) == (429, "TooManyRequests")
    assert not other.done()


async def test_a_request_that_is_given_up_keeps_nobody_waiting() -> None:
    desk = Desk()
    _, waiting, last = await desk.come("a1", "b1", "c1")
    waiting.cancel()
    await settled()
    await desk.let_go()
    assert desk.served == ["a1", "c1"]
    last.cancel()
    await desk.come("b2")
    assert desk.served == ["a1", "c1", "b2"]


async def test_a_turn_that_comes_as_its_request_is_given_up_goes_to_the_next() -> None:
    desk = Desk()
    first, waiting, _ = await desk.come("a1", "b1", "c1")
    first.cancel()
    await asyncio.sleep(0)
    waiting.cancel()
    await settled()

    assert desk.served == ["a1", "c1"]
