"""Applies events to the board, and publishes what follows: hints, waiters, change log, observer."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, TypeAlias

from streambroker_core.board import (
    Action,
    AgentRegistered,
    Board,
    BoardEvent,
    CaughtUp,
    ExportApplied,
    ExportRemoved,
    HintAction,
    ImportApplied,
    ImportRemoved,
    PeWithdrawn,
    ResourceChanged,
    RoutesChanged,
    RuleApplied,
    RuleRemoved,
    StatusChanged,
    Synced,
    WriteReverted,
)
from streambroker_core.board.events import Difference
from streambroker_core.model import RULE, AnyKind, PeKey
from streambroker_core.wire.broker import hints
from streambroker_core.wire.broker.registration import derive_key
from streambroker_operator.agents.hint_sender import HintSender
from streambroker_operator.cooperative import freeze_gc
from streambroker_operator.runtime.change_log import ChangeLog
from streambroker_operator.storage.backend import StorageBackend

_log = logging.getLogger("streambroker.matching")

ResourceEvent: TypeAlias = (
    ExportApplied | ExportRemoved | ImportApplied | ImportRemoved | RuleApplied | RuleRemoved
)

_FALLBACK_EFFECTS: Mapping[Difference, str] = {
    "changed": "its older version applies again",
    "ghost": "it does not exist",
    "missing": "it was deleted, and exists again",
}


class Observer(Protocol):
    """Receives the effects of board events, on the runtime's event loop."""

    def on_actions(self, event: BoardEvent, actions: Sequence[Action]) -> None:
        """Handle the actions of an event; with several events at once, the last has all actions."""

    def on_acknowledged(self, pe: PeKey, version: str, ago_s: float) -> None:
        """Handle that an agent has been running a view for `ago_s` seconds."""


class Publisher:
    """Applies events to the board, then performs its actions.

    Attributes:
        observer: receives board actions and acknowledged views.
        fallen_back: number of writes that the store lost, by kind and difference.
    """

    def __init__(
        self,
        board: Board,
        change_log: ChangeLog,
        backing: StorageBackend,
        sender: HintSender,
        observer: Observer | None,
        sends_hints: Callable[[], bool],
    ) -> None:
        self._machine, self.board = board, board.reader
        self.change_log = change_log
        self._backing, self._sender = backing, sender
        self.observer, self._sends_hints = observer, sends_hints
        self._waiters: dict[PeKey, set[asyncio.Future[None]]] = {}
        self._closing = False
        self._warned = False
        self.fallen_back: Counter[tuple[AnyKind, Difference]] = Counter()

    def publish(self, *events: BoardEvent) -> None:
        """Apply events and publish their combined effect."""
        actions = list(self._machine.iter_actions(events))
        changes = [action for action in actions if isinstance(action, ResourceChanged)]
        if any(isinstance(event, Synced) for event in events):
            # What a list has precedes what it lacks.
            changes.sort(key=lambda change: change.new is None)
        for change in changes:
            self.change_log.note_resource(change)
        for action in actions:
            self._perform(action)
        if self.observer is not None:
            for event in events:
                self.observer.on_actions(event, actions if event is events[-1] else ())
        self.change_log.flush()
        if changes:
            self._warn()

    def publish_write(self, *events: ResourceEvent) -> None:
        """Publish own writes: final if this broker is the sole writer, else ahead of the feed."""
        if not self._backing.is_sole_writer:
            self.publish(*(replace(event, ahead_of_feed=True) for event in events))
        elif events:
            self.publish(*events, CaughtUp(version=events[-1].version))

    def publish_agent(self, event: AgentRegistered | PeWithdrawn) -> None:
        """Publish that a PE's agent registered or left."""
        current = self.board.registration(event.pe)
        if isinstance(event, AgentRegistered) and current != event.registration:
            self.change_log.note_pe(event.pe)
        last = [CaughtUp(version=event.version)] if self._backing.is_sole_writer else []
        self.publish(event, *last)

    def fill(self, event: BoardEvent) -> Iterator[None]:
        """Apply an event before the board is synced, in small steps.

        No readers or waiters exist yet, so only hints have an effect.
        """
        for action in self._machine.iter_steps((event,)):
            if isinstance(action, HintAction):
                self._hint(action)
            yield
        if self.observer is not None:
            self.observer.on_actions(event, ())

    def finish_filling(self) -> None:
        """Exempt the board's objects from garbage collection, after a large list."""
        stats = self.board.index_stats()
        freeze_gc(stats.exports + stats.imports)
        if self.board.synced:
            self._warn()

    def _warn(self) -> None:
        """Warn once if too many subscriptions cannot be indexed."""
        stats = self.board.index_stats()
        if stats.is_crowded and not self._warned:
            self._warned = True
            _log.warning(
                "%d of %d subscriptions cannot be indexed and are evaluated for every Export;"
                " give them an equality, `in`, or a range with both ends",
                stats.unindexed,
                stats.imports,
            )

    def _perform(self, action: Action) -> None:
        if isinstance(action, RoutesChanged):
            self.change_log.note_pe(
                action.pe, is_new=action.new, route_changes=action.route_changes
            )
            self._wake(action.pe)
        elif isinstance(action, StatusChanged) and action.kind != RULE:
            self.change_log.note_status(action.kind, action.uid)
        elif isinstance(action, HintAction):
            self._hint(action)
        elif isinstance(action, WriteReverted):
            self._report_fallback(action)

    def _report_fallback(self, order: WriteReverted) -> None:
        self.fallen_back[order.kind, order.difference] += 1
        effect = _FALLBACK_EFFECTS[order.difference]
        _log.warning(
            "%s with uid %s: the API server lost a change made by this broker, after a restore"
            " for instance; %s",
            *(order.kind, order.uid, effect),
        )

    def _wake(self, pe: PeKey) -> None:
        for future in self._waiters.pop(pe, set()):
            if not future.done():
                future.set_result(None)

    def hint(self, pes: Iterable[PeKey]) -> None:
        """Send agents a hint with the current version of their views."""
        for pe in pes:
            version = self.board.version(pe)
            if version is not None:
                self._hint(HintAction(pe=pe, version=version, point=self.board.point))

    def _hint(self, order: HintAction) -> None:
        registration = self.board.registration(order.pe)
        if registration is None or registration.hint is None or not self._sends_hints():
            return
        key = derive_key(self._backing.secret, order.pe, registration.instance)
        datagram = hints.encode(key, str(order.pe), order.version, order.point)
        self._sender.send(order.pe, registration.hint, datagram)

    async def wait_changed(self, pe: PeKey, timeout_s: float) -> None:
        """Wait until a PE's view changes, the time is up or the broker stops."""
        if self._closing:
            return
        future = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(pe, set()).add(future)
        try:
            await asyncio.wait([future], timeout=timeout_s)
        finally:
            waiting = self._waiters.get(pe, set())
            waiting.discard(future)
            if not waiting:
                self._waiters.pop(pe, None)

    @property
    def needs_acknowledgements(self) -> bool:
        """Whether an observer wants acknowledgements at once."""
        return self.observer is not None

    def acknowledge(self, pe: PeKey, version: str, ago_s: float = 0.0) -> None:
        """Record that an agent has been running a view for `ago_s` seconds, as its job reports."""
        if self.observer is not None:
            self.observer.on_acknowledged(pe, version, ago_s)

    def close(self) -> None:
        """Wake all waiters and close the change log."""
        self._closing = True
        self.change_log.close()
        for pe in list(self._waiters):
            self._wake(pe)
