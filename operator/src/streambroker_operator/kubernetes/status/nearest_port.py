"""The sentence about a resource that matches nothing: which port of the other kind is nearest.

An explanation compares a resource with all of the other kind. So sentences are computed in a
thread, for a quarter of the time at most, and again only after the board has changed. While many
statuses wait, none is computed: one explanation takes as long as dozens of statuses.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from streambroker_core.board import Board
from streambroker_core.diagnose import (
    BoardSnapshot,
    Ranking,
    explain_export,
    explain_import,
    take_snapshot,
)
from streambroker_core.matching import is_namespace_allowed
from streambroker_core.model import Import, Resource
from streambroker_core.wire.broker.hints import Point
from streambroker_operator.kubernetes.status.writer import Name

TICK_S = 1.0
"""How often the thread may run, in seconds."""
WORK_S = 0.05
"""How long it may compute each time, in seconds; at least one sentence."""
REST_FACTOR = 3.0
"""How many times as long as it has computed the thread rests."""
MIN_AGE_S = 15.0
"""How old a sentence becomes before it is computed again, in seconds."""
MAX_AGE_S = 960.0
"""The same for a sentence that changes each time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sentence:
    """What was computed for one resource.

    Attributes:
        generation: of the resource.
        point: of the board then.
        at: when, by the monotonic clock.
        min_age_s: how many seconds it holds at least.
    """

    generation: int
    text: str
    point: Point
    at: float
    min_age_s: float = MIN_AGE_S


class NearestSentences:
    """Sentences about resources that match nothing.

    All methods are called on the board's event loop.

    Args:
        board: read, never changed.
        offer: asks the status writer to look at a resource whose sentence is another now.
        clock: a monotonic clock, in seconds.
    """

    def __init__(
        self,
        board: Board,
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
        """Return the sentence about a resource; None if it is not computed yet, but will be."""
        known = self._sentences.get(name)
        if known is not None and known.generation == generation:
            return known.text
        self._requested[name] = None
        return None

    async def run(self, leads: Callable[[], bool], busy: Callable[[], bool]) -> None:
        """Compute sentences until cancelled.

        Args:
            leads: whether this process writes statuses; without it nothing is computed.
            busy: whether many statuses wait, which go first.
        """
        took = 0.0
        while True:
            await asyncio.sleep(max(TICK_S, REST_FACTOR * took))
            began = self._clock()
            if leads() and not busy():
                await self.compute_due()
            took = self._clock() - began

    async def compute_due(self) -> None:
        """Compute what is due, in a thread and for `WORK_S` at most; the rest waits."""
        due = [(name, found) for name in self._due_names() if (found := self._get_unmatched(name))]
        if not due:
            return
        point, known = self._board.point, take_snapshot(self._board)
        resources = [resource for _, resource in due]
        texts = await asyncio.to_thread(_compute_sentences, known, resources, self._clock)
        for (name, resource), text in zip(due, texts, strict=False):
            self._store(name, resource.generation, text, point)

    def _due_names(self) -> list[Name]:
        """Return the resources without a sentence, then those with one that may be out of date."""
        now, point = self._clock(), self._board.point
        old = [
            name
            for name, known in self._sentences.items()
            if known.point != point
            and now - known.at >= known.min_age_s
            and name not in self._requested
        ]
        return [*self._requested, *old]

    def _get_unmatched(self, name: Name) -> Resource | None:
        """Return a resource that matches nothing; forget one that is gone or matches."""
        status = self._board.status(*name)
        resource = self._board.get(*name)
        if resource is None or status is None or not status.accepted or status.matches:
            self._requested.pop(name, None)
            self._sentences.pop(name, None)
            return None
        return resource

    def _store(self, name: Name, generation: int, text: str, point: Point) -> None:
        now, before = self._clock(), self._sentences.pop(name, None)
        pace = MIN_AGE_S
        same = before is not None and (before.generation, before.text) == (generation, text)
        if before is not None and now - before.at < 2 * before.min_age_s:
            pace = before.min_age_s if same else min(2 * before.min_age_s, MAX_AGE_S)
        self._requested.pop(name, None)
        self._sentences[name] = _Sentence(
            generation=generation, text=text, point=point, at=now, min_age_s=pace
        )
        if not same:
            self._offer(name)


def _compute_sentences(
    candidates: BoardSnapshot, resources: Sequence[Resource], clock: Callable[[], float]
) -> list[str]:
    """Return the sentences about the first of some resources, at least one."""
    return list(_compute_until(clock() + WORK_S, candidates, resources, clock))


def _compute_until(
    end: float, candidates: BoardSnapshot, resources: Sequence[Resource], clock: Callable[[], float]
) -> Iterator[str]:
    seen: dict[str, BoardSnapshot] = {}
    for resource in resources:
        namespace = resource.key.namespace
        if namespace not in seen:
            seen[namespace] = _visible_from(candidates, namespace)
        yield nearest_sentence(seen[namespace], resource)
        if clock() >= end:
            return


def _visible_from(candidates: BoardSnapshot, namespace: str) -> BoardSnapshot:
    """Return what users of a namespace may know of: a status must not show them more."""
    return replace(
        candidates,
        exports=tuple(
            export for export in candidates.exports if is_namespace_allowed(export, namespace)
        ),
        imports=tuple(one for one in candidates.imports if one.key.namespace == namespace),
        is_complete=False,
    )


def nearest_sentence(candidates: BoardSnapshot, resource: Resource) -> str:
    """Return the sentence about a resource that matches nothing.

    Args:
        candidates: the resources that users of its namespace may know of.
        resource: an Export or an Import.
    """
    if isinstance(resource, Import):
        ranking = explain_import(candidates, resource, limit=1)
        return _format_sentence(ranking, "Export", [str(pair.export) for pair in ranking.pairs])
    ranking = explain_export(candidates, resource, limit=1)
    return _format_sentence(ranking, "Import", [str(pair.import_) for pair in ranking.pairs])


def _format_sentence(ranking: Ranking, kind: str, nearest: Sequence[str]) -> str:
    if not ranking.pairs:
        return f"There is no {kind} in reach of its namespace."
    pair = ranking.pairs[0]
    changes = f"{pair.distance} change{'' if pair.distance == 1 else 's'}"
    why = pair.message.rstrip(".")
    return f"No {kind} matches. The nearest is {nearest[0]}, {changes} away: {why}."
