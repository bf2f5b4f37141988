"""The small follower: one watch per kind and namespace, in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import aclosing

from streambroker_operator.kubernetes.client.watch_client import ApiError, GoneError
from streambroker_operator.kubernetes.watch.informer import (
    ApiFeeder,
    Backoff,
    CrdMissingError,
    KindFeed,
    run_until_first_ends,
)
from streambroker_operator.kubernetes.watch.resync import run_resync


class ReflectorFeeder(ApiFeeder):
    """Lists, then watches from the list's version on.

    Its own list is a comparison with the server already, so that nothing has to be swept
    after it; the sweep is there for what a watch should have told and did not.
    """

    name = "reflector"

    def parts(self) -> list[Awaitable[None]]:
        """Return what runs side by side."""
        feeds = self.feeds.values()
        return [*map(self.run_feed, feeds), *map(run_resync, feeds)]

    async def follow(self, feed: KindFeed, version: int) -> None:
        """Watch all namespaces until one of the watches, or a sweep, asks for a list."""
        session = feed.cache.session
        followed = [namespace for namespace in feed.paths if namespace not in feed.refused]
        watches = [_watch(feed, namespace, version, session) for namespace in followed]
        await run_until_first_ends(_wait_for(feed.relist_needed), *watches)


async def _wait_for(event: asyncio.Event) -> None:
    await event.wait()


async def _watch(feed: KindFeed, namespace: str, version: int, session: int) -> None:
    """Watch one namespace, and go on where a broken watch ended; return when that cannot be."""
    backoff, path = Backoff(*feed.client.timing.retry_s), feed.paths[namespace]
    refused = False
    while namespace not in feed.refused:
        asked = 0.0
        try:
            async with aclosing(feed.client.watch(path, version)) as events:
                async for changes in events:
                    await feed.apply_changes(changes, session)
                    if changes:
                        version = int(changes[-1][1]["metadata"]["resourceVersion"])
                        backoff.reset()
        except GoneError as error:
            feed.on_failed(error)
            return
        except ApiError as error:
            if error.status == 404:
                raise CrdMissingError from error
            asked = error.retry_after_s
            if error.status != 403:
                feed.on_failed(error)
            elif not refused:
                # A list shows whether the whole namespace is refused.
                refused = True
                feed.on_failed(error)
                feed.resync_due.set()
        await backoff.pause(asked)
    # The others go on. A list that can read this namespace again starts all of them.
    await feed.relist_needed.wait()
