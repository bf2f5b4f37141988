"""Fills the board from storage or from a feed, and applies later events in order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from streambroker_core.board import AgentRegistered, Board, BoardEvent, FeedLost, Synced
from streambroker_operator.cooperative import gc_paused, run_in_turns
from streambroker_operator.runtime.publisher import Publisher
from streambroker_operator.storage.backend import StorageBackend

_RESOURCES_PER_TURN = 50
"""Resources of a later list that are applied in one turn."""


class Feed:
    """Order of events and lists: a list is applied in turns, and later events wait if they must."""

    def __init__(self, board: Board, publisher: Publisher, backing: StorageBackend) -> None:
        self._machine, self._board = board, board.reader
        self._publisher, self._backing = publisher, backing
        self._loading: asyncio.Task[None] | None = None
        # Events that arrive while a list is loading and must follow it.
        self._deferred: list[BoardEvent] | None = None

    def start(self) -> None:
        """Load the stored resources into the board; no views exist before this or the feed."""
        with gc_paused():
            for event in self._backing.load():
                self._fill(event)
            if self._board.synced:
                self._publisher.finish_filling()

    def _fill(self, event: BoardEvent) -> None:
        for _ in self._publisher.fill(event):
            pass

    async def load(self, event: Synced) -> None:
        """Apply a list from the feed, and yield to other tasks meanwhile.

        Cancelling the caller does not stop it: a partly loaded board would never be completed.
        """
        earlier, self._deferred = self._deferred or [], []
        self._loading = asyncio.create_task(self._load(event, earlier, self._loading))
        await asyncio.shield(self._loading)

    async def _load(
        self, event: Synced, earlier: Sequence[BoardEvent], before: asyncio.Task[None] | None
    ) -> None:
        if before is not None:
            await before
        for deferred in earlier:
            self._on_event(deferred)
        with gc_paused():
            if self._board.synced:
                await run_in_turns(self._apply_ahead(event))
                self._publisher.publish(event)
            else:
                await run_in_turns(self._publisher.fill(event))
                self._publisher.finish_filling()
        if asyncio.current_task() is not self._loading:
            # Another list waits: events before it precede it, all others follow it.
            return
        deferred_events, self._deferred = self._deferred or (), None
        for later in deferred_events:
            self._on_event(later)

    def _apply_ahead(self, event: Synced) -> Iterator[None]:
        """Apply the differences of a later list in batches, so that the list itself is quick.

        The board answers queries meanwhile and must be consistent after each batch.
        """
        batch: list[BoardEvent] = []
        for change in self._machine.diff(event):
            if change is not None:
                batch.append(change)
            if len(batch) == _RESOURCES_PER_TURN:
                self._publisher.publish(*batch)
                batch.clear()
            yield
        if batch:
            self._publisher.publish(*batch)
            yield

    def deliver(self, event: BoardEvent) -> None:
        """Apply an event of the feed, or defer it until the list is loaded."""
        if self._deferred is not None and self._must_defer(event):
            self._deferred.append(event)
        else:
            self._on_event(event)

    def _on_event(self, event: BoardEvent) -> None:
        if not self._board.synced:
            self._fill(event)
            if self._board.synced:
                self._publisher.finish_filling()
        elif isinstance(event, AgentRegistered):
            self._publisher.publish_agent(event)
        else:
            self._publisher.publish(event)

    def _must_defer(self, event: BoardEvent) -> bool:
        """Return whether an event must wait for the list that is loading.

        A partly loaded board applies no events. A complete one applies all but `FeedLost`, which
        would make the old list equal to the next one.
        """
        return not self._board.synced or isinstance(event, FeedLost)
