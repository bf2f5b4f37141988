"""Feeder with one watch per kind and namespace, in this process."""

from __future__ import annotations

from collections.abc import Awaitable
from contextlib import aclosing

from streambroker_operator.kubernetes.client.watch_client import ApiError, GoneError
from streambroker_operator.kubernetes.watch.informer import (
    ApiFeeder,
    Backoff,
    KindFeed,
    run_until_first_ends,
)
from streambroker_operator.kubernetes.watch.lister import CrdMissingError
from streambroker_operator.kubernetes.watch.resync import run_resync


class ReflectorFeeder(ApiFeeder):
    """Lists, then watches from the version of the list.

    Its lists already compare with the server, so they need no resync. Resyncs find what a watch
    missed.
    """

    def parts(self) -> list[Awaitable[None]]:
        """Return the coroutines to run concurrently."""
        feeds = self.feeds.values()
        return [*map(self.run_feed, feeds), *map(run_resync, feeds)]

    async def follow(self, feed: KindFeed, version: int) -> None:
        """Watch all namespaces until one of the watches, or a resync, requires a list."""
        session = feed.cache.session
        followed = [
            namespace for namespace in feed.lister.paths if namespace not in feed.lister.refused
        ]
        watches = [_watch(feed, namespace, version, session) for namespace in followed]
        await run_until_first_ends(feed.relist_needed.wait(), *watches)


async def _watch(feed: KindFeed, namespace: str, version: int, session: int) -> None:
    """Watch one namespace and resume broken watches; return when a list is needed."""
    backoff, path = Backoff(*feed.client.timing.retry_s), feed.lister.paths[namespace]
    refused = False
    while namespace not in feed.lister.refused:
        retry_after = 0.0
        try:
            async with aclosing(feed.client.watch(path, version)) as events:
                async for changes in events:
                    await feed.apply_changes(changes, session)
                    if changes:
                        version = int(changes[-1][1]["metadata"]["resourceVersion"])
                        backoff.reset()
        except GoneError as error:
            feed.health.on_failed(error)
            return
        except ApiError as error:
            if error.status == 404:
                raise CrdMissingError from error
            retry_after = error.retry_after_s
            if error.status != 403:
                feed.health.on_failed(error)
            elif not refused:
                # A resync shows whether the whole namespace is refused.
                refused = True
                feed.health.on_failed(error)
                feed.resync_due.set()
        await backoff.pause(retry_after)
    # The other watches go on. A list that can read this namespace again restarts all of them.
    await feed.relist_needed.wait()
