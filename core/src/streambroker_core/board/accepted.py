"""Select the generation of a resource that runs: the latest valid one.

A rejected generation changes nothing: the last accepted one keeps running. The board knows that
one from before, or from the resource's status, which outlasts restarts. Only the resource, its
status and the board decide, so all replicas get the same result. If an earlier generation may
exist but is unknown, an Import is held: agents keep its existing routes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeAlias, cast

from streambroker_core.board.events import R, ResourceChanged, Unreadable
from streambroker_core.board.reader import BoardState
from streambroker_core.board.resource_cache import ResourceCache
from streambroker_core.board.rule_index import rule_problem
from streambroker_core.board.views import find_fault
from streambroker_core.errors import StreambrokerError
from streambroker_core.matching import NoMatch, import_filter_problem
from streambroker_core.model import Export, Import, RejectedGeneration, Rule

Entry: TypeAlias = "Export | Import | Rule | Unreadable"
FilterCheck: TypeAlias = "Callable[[Import], StreambrokerError | None]"
"""Returns what is wrong with an Import's filter for the existing Exports."""


class Generations:
    """Selects the running generation of each resource of a board."""

    def __init__(self, state: BoardState) -> None:
        self._state = state
        # Imports whose running generation depends on Exports.
        self._undecided: set[str] = set()

    def select(self, cache: ResourceCache[R], entry: R | Unreadable) -> R | Unreadable:
        """Return the generation that runs, of a resource that was seen."""
        if isinstance(entry, Export):
            return entry
        return select_running(entry, cache.get(entry.uid), self._check_filter)

    def _check_filter(self, import_: Import) -> StreambrokerError | None:
        """Return why the filter suits no Export that the Import would match without it."""
        if import_.filter is None or import_.schema is not None:
            return None
        outcomes = self._state.matcher.outcomes_for(replace(import_, filter=None))
        exports = [self._state.exports.cache.get(uid) for uid in sorted(outcomes)]
        return import_filter_problem(import_, [one for one in exports if one is not None])

    def update(self, uid: str) -> None:
        """Record whether the running generation of an Import depends on Exports."""
        one = self._state.imports.cache.get(uid)
        if one is not None and (
            one.last_accepted or one.earlier_unknown or (one.rejected and one.rejected.resource)
        ):
            self._undecided.add(uid)
        else:
            self._undecided.discard(uid)

    def recheck(self) -> Iterator[ResourceChanged[Import]]:
        """Select the running generation again for Imports where it depends on Exports."""
        cache = self._state.imports.cache
        for uid in sorted(self._undecided):
            current = cache.get(uid)
            if current is None or (
                current.rejected is None and not current.held and not self._has_invalid_filter(uid)
            ):
                continue
            latest = current if current.rejected is None else current.rejected.resource
            entry = self.select(cache, cast("Import", latest))
            if isinstance(entry, Import) and entry != current:
                yield from cache.replace_entry(entry)

    def _has_invalid_filter(self, uid: str) -> bool:
        outcomes = self._state.imports.outcomes_of(uid).values()
        return any(isinstance(one, NoMatch) and one.reason == "FilterInvalid" for one in outcomes)


def select_running(
    entry: R | Unreadable, current: R | None, check_filter: FilterCheck
) -> R | Unreadable:
    """Return the running generation: the resource itself, or the last accepted if it is rejected.

    `current` is the generation that runs so far.
    """
    earlier_unknown = isinstance(entry, Import | Unreadable) and entry.earlier_unknown
    if _find_last_accepted(entry, current) is None and not earlier_unknown:
        return entry
    problem = _find_problem(entry)
    if problem is None and isinstance(entry, Import) and not entry.was_accepted:
        found = check_filter(entry)
        problem = None if found is None else (found.code, str(found))
    if isinstance(current, Import) and check_filter(_strip_status(current)) is not None:
        # It has not taken part so far, unless its status marks it as accepted.
        current = None
    last = _find_last_accepted(entry, current)
    if problem is None or last is None:
        if isinstance(entry, Import | Unreadable):
            return replace(entry, held=earlier_unknown and problem is not None)
        return entry
    code, text = problem
    resource = None if isinstance(entry, Unreadable) else entry
    newer = RejectedGeneration(
        generation=entry.generation, code=code, problem=text, resource=resource
    )
    return replace(last, rejected=newer)


def _find_last_accepted(entry: R | Unreadable, current: R | None) -> R | None:
    """Return the newest valid generation before `entry`; None if none is known."""
    candidates = (
        None if isinstance(entry, Export) else cast("R | None", entry.last_accepted),
        current,
    )
    valid = [
        _strip_status(one)
        for one in candidates
        if one is not None and one.generation < entry.generation and _find_problem(one) is None
    ]
    return max(valid, key=lambda one: one.generation, default=None)


def _strip_status(resource: R) -> R:
    if isinstance(resource, Export):
        return replace(resource, rejected=None)
    if isinstance(resource, Rule):
        return replace(resource, rejected=None, last_accepted=None)
    return replace(
        resource,
        rejected=None,
        last_accepted=None,
        earlier_unknown=False,
        was_accepted=False,
        held=False,
    )


def _find_problem(entry: Entry) -> tuple[str, str] | None:
    """Return reason word and sentence if a resource is invalid regardless of other resources."""
    if isinstance(entry, Unreadable):
        return entry.code, entry.problem
    if isinstance(entry, Import):
        fault = find_fault(entry)
        return None if fault is None else (fault.reason, fault.message)
    if isinstance(entry, Rule):
        problem = rule_problem(entry)
        return None if problem is None else ("RuleInvalid", str(problem))
    return None
