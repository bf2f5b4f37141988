"""What every matcher does, and the one that does it by trying every pair."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from streambroker_core.matching.decide import MatchResult, is_near, match
from streambroker_core.model import Export, Import, Resource

MANY_UNINDEXED = 1000
"""Subscriptions that cannot be looked up; with more of them each new Export is felt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexStats:
    """How a `Matcher` is filled.

    Attributes:
        exports: how many there are.
        imports: how many there are.
        entries: entries under which subscriptions are filed.
        unindexed: subscriptions that every Export has to try, because nothing in
            them can be looked up: only ``!=``, one-sided ranges and the like.
        truncated: subscriptions of more than 64 alternatives, filed by a part of them.
    """

    exports: int
    imports: int
    entries: int
    unindexed: int
    truncated: int

    @property
    def is_crowded(self) -> bool:
        """Whether so many subscriptions cannot be looked up that somebody should know."""
        return self.unindexed > MANY_UNINDEXED


class Matcher(Protocol):
    """Both sides of the matching, changed one resource at a time.

    Resources go by uid; putting one again replaces it. The answers hold matches
    and `NEAR` refusals only.
    """

    def put_export(self, export: Export) -> None:
        """Add or replace an Export."""

    def remove_export(self, uid: str) -> None:
        """Take an Export away; an unknown one changes nothing."""

    def put_import(self, import_: Import) -> None:
        """Add or replace an Import."""

    def remove_import(self, uid: str) -> None:
        """Take an Import away; an unknown one changes nothing."""

    def matches_of_export(self, uid: str) -> Mapping[str, MatchResult]:
        """Return the outcome per Import's uid; empty for an unknown Export."""

    def matches_of_import(self, uid: str) -> Mapping[str, MatchResult]:
        """Return the outcome per Export's uid; empty for an unknown Import."""

    def outcomes_for(self, resource: Resource) -> Mapping[str, MatchResult]:
        """Return the outcomes that a resource would have, put or not; its uid does not count.

        Nothing is changed.
        """

    def stats(self) -> IndexStats:
        """Return how it is filled."""


class ScanMatcher:
    """The `Matcher` that tries every pair: linear in the other side per answer."""

    def __init__(self) -> None:
        self._exports: dict[str, Export] = {}
        self._imports: dict[str, Import] = {}

    def put_export(self, export: Export) -> None:
        """Add or replace an Export."""
        self._exports[export.uid] = export

    def remove_export(self, uid: str) -> None:
        """Take an Export away; an unknown one changes nothing."""
        self._exports.pop(uid, None)

    def put_import(self, import_: Import) -> None:
        """Add or replace an Import."""
        self._imports[import_.uid] = import_

    def remove_import(self, uid: str) -> None:
        """Take an Import away; an unknown one changes nothing."""
        self._imports.pop(uid, None)

    def matches_of_export(self, uid: str) -> Mapping[str, MatchResult]:
        """Return the outcome per Import's uid; empty for an unknown Export."""
        export = self._exports.get(uid)
        if export is None:
            return {}
        return self.outcomes_for(export)

    def matches_of_import(self, uid: str) -> Mapping[str, MatchResult]:
        """Return the outcome per Export's uid; empty for an unknown Import."""
        import_ = self._imports.get(uid)
        if import_ is None:
            return {}
        return self.outcomes_for(import_)

    def outcomes_for(self, resource: Resource) -> Mapping[str, MatchResult]:
        """Return the outcomes that a resource would have, put or not."""
        if isinstance(resource, Export):
            tried = [(uid, match(resource, other)) for uid, other in self._imports.items()]
        else:
            tried = [(uid, match(other, resource)) for uid, other in self._exports.items()]
        return {uid: outcome for uid, outcome in tried if is_near(outcome)}

    def stats(self) -> IndexStats:
        """Return how it is filled; every subscription is tried."""
        return IndexStats(
            exports=len(self._exports),
            imports=len(self._imports),
            entries=0,
            unindexed=len(self._imports),
            truncated=0,
        )
