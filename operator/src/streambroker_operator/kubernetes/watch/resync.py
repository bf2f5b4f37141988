"""Resync: periodic comparison of the cached objects with the API server.

A watch can miss deletions silently. A resync lists metadata only, which is cheap: at least once
a minute, and promptly when a gap is suspected.
"""

from __future__ import annotations

import asyncio

from streambroker_operator.kubernetes.client.watch_client import ApiError, with_timeout
from streambroker_operator.kubernetes.watch.informer import KindFeed, jitter
from streambroker_operator.kubernetes.watch.lister import CrdMissingError

_QUIET_S = 1.0
_MAX_QUIET_S = 15.0


async def run_resync(feed: KindFeed) -> None:
    """Resync one kind until cancelled."""
    while True:
        await _wait_due(feed)
        try:
            await feed.resync()
        except CrdMissingError:
            feed.mark_lost("CrdMissing")
        except ApiError as error:
            feed.health.on_failed(error)


async def _wait_due(feed: KindFeed) -> None:
    """Return when a resync is due: after the period, or after a request once requests pause."""
    loop, timing = asyncio.get_running_loop(), feed.client.timing
    end = loop.time() + timing.resync_s * jitter.uniform(0.9, 1.1)
    while not feed.resync_due.is_set():
        remaining = end - loop.time()
        if remaining <= 0:
            return
        try:
            await with_timeout(min(remaining, timing.refused_s), feed.resync_due.wait())
        except TimeoutError:
            await feed.probe_refused()
    end = loop.time() + _MAX_QUIET_S
    while feed.resync_due.is_set() and loop.time() < end:
        feed.resync_due.clear()
        await asyncio.sleep(min(_QUIET_S, timing.settle_s))
    feed.resync_due.clear()
