"""The sweep: look again and again whether what is known is what the server holds.

A watch can lose deletions without a word: whoever lists anew after a gap and compares
nothing never hears of them. A sweep lists versions alone, which is cheap, at least once a
minute, and at once when a gap is suspected.
"""

from __future__ import annotations

import asyncio

from streambroker_operator.kubernetes.client.watch_client import ApiError, within
from streambroker_operator.kubernetes.watch.informer import CrdMissingError, KindFeed, jitter

_QUIET_S = 1.0
_LONGEST_S = 15.0


async def sweep_again_and_again(feed: KindFeed) -> None:
    """Sweep one kind until cancelled."""
    while True:
        await _due(feed)
        try:
            await feed.sweep()
        except CrdMissingError:
            feed.lose("CrdMissing")
        except ApiError as error:
            feed.failed(error)


async def _due(feed: KindFeed) -> None:
    """Return when a sweep is due: after a while, or when one is asked for and it is quiet."""
    loop, timing = asyncio.get_running_loop(), feed.client.timing
    end = loop.time() + timing.sweep_s * jitter.uniform(0.9, 1.1)
    while not feed.sweeping.is_set():
        left = end - loop.time()
        if left <= 0:
            return
        try:
            await within(min(left, timing.refused_s), feed.sweeping.wait())
        except asyncio.TimeoutError:
            await feed.ask_refused()
    end = loop.time() + _LONGEST_S
    while feed.sweeping.is_set() and loop.time() < end:
        feed.sweeping.clear()
        await asyncio.sleep(min(_QUIET_S, timing.settle_s))
    feed.sweeping.clear()
