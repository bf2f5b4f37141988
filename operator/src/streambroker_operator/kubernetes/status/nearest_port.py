"""Messages for resources without matches: the nearest port of the other kind.

An explanation compares a resource with all resources of the other kind. So messages are computed
in a thread, for at most a quarter of the time, and again only after the board changed. None is
computed while many statuses wait: one takes as long as dozens of statuses.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from streambroker_core.board import BoardReader
from streambroker_core.diagnose import BoardSnapshot, explain_port, take_snapshot
from streambroker_core.matching import is_namespace_allowed
from streambroker_core.model import Import, Resource
from streambroker_core.wire.broker.hints import Point
from streambroker_operator.kubernetes.status.writer import Name

TICK_S = 1.0
"""Minimum seconds between two runs of the thread."""
WORK_S = 0.05
"""Seconds of computing per run; at least one message is computed."""
REST_FACTOR = 3.0
"""Pause after a run, as a multiple of its duration."""
MIN_AGE_S = 15.0
"""Minimum age in seconds before a message is recomputed."""
MAX_AGE_S = 960.0
"""The same for a message that changes every time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sentence:
    """Computed message of one resource.

    Attributes:
        point: version of the board at that time.
        at: time of the computation (monotonic).
        min_age_s: seconds before it may be recomputed.
    """

    generation: int
    text: str
    point: Point
    at: float
    min_age_s: float = MIN_AGE_S


class NearestSentences:
    """Cache of messages for resources without matches.

    All methods are called on the board's event loop.

    Args:
        offer: enqueues a resource with a changed message at the status writer.
    """

    def __init__(
        self,
        board: BoardReader,
        offer: Callable[[Name], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._board = board
        self._offer = offer
        self._clock = clock
        self._requested: dict[Name, None] = {}
        # Oldest first.
        self._sentences: dict[Name, _Sentence] = {}

    def get(self, name: Name, generation: int) -> str | None:
        """Return the message of a resource; if there is none yet, request it and return None."""
        cached = self._sentences.get(name)
        if cached is not None and cached.generation == generation:
            return cached.text
        self._requested[name] = None
        return None

    async def run(self, leads: Callable[[], bool], busy: Callable[[], bool]) -> None:
        """Compute messages until cancelled, while this process leads and few statuses wait."""
        duration = 0.0
        while True:
            await asyncio.sleep(max(TICK_S, REST_FACTOR * duration))
            started_at = self._clock()
            if leads() and not busy():
                await self.compute_due()
            duration = self._clock() - started_at

    async def compute_due(self) -> None:
        """Compute due messages in a thread for at most `WORK_S`; the rest waits."""
        due = [
            (name, unmatched)
            for name in self._due_names()
            if (unmatched := self._get_unmatched(name))
        ]
        if not due:
            return
        point, snapshot = self._board.point, take_snapshot(self._board)
        resources = [resource for _, resource in due]
        texts = await asyncio.to_thread(_compute_sentences, snapshot, resources, self._clock)
        for (name, resource), text in zip(due, texts, strict=False):
            self._store(name, resource.generation, text, point)

    def _due_names(self) -> list[Name]:
        """Return the resources without a message, then those whose message may be outdated."""
        now, point = self._clock(), self._board.point
        outdated = [
            name
            for name, sentence in self._sentences.items()
            if sentence.point != point
            and now - sentence.at >= sentence.min_age_s
            and name not in self._requested
        ]
        return [*self._requested, *outdated]

    def _get_unmatched(self, name: Name) -> Resource | None:
        """Return a resource without matches; drop the state of any other."""
        status = self._board.status(*name)
        resource = self._board.get(*name)
        if resource is None or status is None or not status.accepted or status.matches:
            self._requested.pop(name, None)
            self._sentences.pop(name, None)
            return None
        return resource

    def _store(self, name: Name, generation: int, text: str, point: Point) -> None:
        now, before = self._clock(), self._sentences.pop(name, None)
        min_age_s = MIN_AGE_S
        is_same = before is not None and (before.generation, before.text) == (generation, text)
        if before is not None and now - before.at < 2 * before.min_age_s:
            min_age_s = before.min_age_s if is_same else min(2 * before.min_age_s, MAX_AGE_S)
        self._requested.pop(name, None)
        self._sentences[name] = _Sentence(
            generation=generation, text=text, point=point, at=now, min_age_s=min_age_s
        )
        if not is_same:
            self._offer(name)


def _compute_sentences(
    candidates: BoardSnapshot, resources: Sequence[Resource], clock: Callable[[], float]
) -> list[str]:
    """Compute the messages of the resources in order until `WORK_S` is over; at least one."""
    end, snapshots, sentences = clock() + WORK_S, dict[str, BoardSnapshot](), list[str]()
    for resource in resources:
        namespace = resource.key.namespace
        if namespace not in snapshots:
            snapshots[namespace] = _visible_from(candidates, namespace)
        sentences.append(nearest_sentence(snapshots[namespace], resource))
        if clock() >= end:
            break
    return sentences


def _visible_from(candidates: BoardSnapshot, namespace: str) -> BoardSnapshot:
    """Return the resources that users of a namespace may see, so that statuses reveal no others."""
    return replace(
        candidates,
        exports=tuple(
            export for export in candidates.exports if is_namespace_allowed(export, namespace)
        ),
        imports=tuple(
            import_ for import_ in candidates.imports if import_.key.namespace == namespace
        ),
        is_complete=False,
    )


def nearest_sentence(candidates: BoardSnapshot, resource: Resource) -> str:
    """Return the message for a resource; `candidates` are what users of its namespace may see."""
    kind = "Export" if isinstance(resource, Import) else "Import"
    ranking = explain_port(candidates, resource, limit=1)
    if not ranking.pairs:
        return f"There is no {kind} in reach of its namespace."
    (pair,) = ranking.pairs
    nearest = pair.export if kind == "Export" else pair.import_
    changes = f"{pair.distance} change{'' if pair.distance == 1 else 's'}"
    reason = pair.message.rstrip(".")
    return f"No {kind} matches. The nearest is {nearest}, {changes} away: {reason}."
