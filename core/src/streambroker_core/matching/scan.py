"""The `Matcher` protocol, and a matcher that tries every pair."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from streambroker_core.matching.decide import MatchResult, is_near, match
from streambroker_core.model import Export, Import, Kind, Resource

MANY_UNINDEXED = 1000
"""Number of unindexed subscriptions above which each new Export is noticeably slow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexStats:
    """Size of a `Matcher`'s index.

    Attributes:
        entries: index entries of subscriptions.
        unindexed: subscriptions that every Export must test, because nothing in them can be
            looked up: only ``!=``, one-sided ranges and the like.
        truncated: subscriptions of more than 64 alternatives, indexed by a part of them.
    """

    exports: int
    imports: int
    entries: int
    unindexed: int
    truncated: int

    @property
    def is_crowded(self) -> bool:
        """Whether so many subscriptions are unindexed that operators should be warned."""
        return self.unindexed > MANY_UNINDEXED


class Matcher(Protocol):
    """Both sides of the matching, changed one resource at a time.

    Resources are identified by uid; another put replaces one. Results contain only matches and
    near misses (`NEAR`).
    """

    def put(self, resource: Resource) -> None:
        """Add or replace a resource."""

    def remove(self, kind: Kind, uid: str) -> None:
        """Remove a resource; an unknown one changes nothing."""

    def matches_of(self, kind: Kind, uid: str) -> Mapping[str, MatchResult]:
        """Return outcomes by the other side's uid; empty for an unknown resource."""

    def outcomes_for(self, resource: Resource) -> Mapping[str, MatchResult]:
        """Return the outcomes a resource has or would have; its uid is ignored.

        The matcher is not changed.
        """

    def stats(self) -> IndexStats:
        """Return the size of the index."""


class ScanMatcher:
    """The `Matcher` that tries every pair: each call is linear in the other side."""

    def __init__(self) -> None:
        self._exports: dict[str, Export] = {}
        self._imports: dict[str, Import] = {}

    def put(self, resource: Resource) -> None:
        """Add or replace a resource."""
        if isinstance(resource, Export):
            self._exports[resource.uid] = resource
        else:
            self._imports[resource.uid] = resource

    def remove(self, kind: Kind, uid: str) -> None:
        """Remove a resource; an unknown one changes nothing."""
        (self._exports if kind == "Export" else self._imports).pop(uid, None)

    def matches_of(self, kind: Kind, uid: str) -> Mapping[str, MatchResult]:
        """Return outcomes by the other side's uid; empty for an unknown resource."""
        resource = (self._exports if kind == "Export" else self._imports).get(uid)
        return {} if resource is None else self.outcomes_for(resource)

    def outcomes_for(self, resource: Resource) -> Mapping[str, MatchResult]:
        """Return the outcomes a resource has or would have."""
        if isinstance(resource, Export):
            outcomes = [(uid, match(resource, other)) for uid, other in self._imports.items()]
        else:
            outcomes = [(uid, match(other, resource)) for uid, other in self._exports.items()]
        return {uid: outcome for uid, outcome in outcomes if is_near(outcome)}

    def stats(self) -> IndexStats:
        """Return the size; every subscription counts as unindexed."""
        return IndexStats(
            exports=len(self._exports),
            imports=len(self._imports),
            entries=0,
            unindexed=len(self._imports),
            truncated=0,
        )
