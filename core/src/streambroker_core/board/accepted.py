"""Select the generation of a resource that runs: the latest valid one.

A rejected generation changes nothing: the last accepted one keeps running. The board knows that
one from before, or from the resource's status, which outlasts restarts. Only the resource, its
status and the board decide, so all replicas get the same result. If an earlier generation may
exist but is unknown, an Import is held: agents keep its existing routes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias, TypeVar, cast

from streambroker_core.board.events import Unreadable
from streambroker_core.board.rule_index import rule_problem
from streambroker_core.board.views import find_fault
from streambroker_core.errors import StreambrokerError
from streambroker_core.model import Export, Import, RejectedGeneration, Rule

Entry: TypeAlias = "Export | Import | Rule | Unreadable"
R = TypeVar("R", Export, Import, Rule)
FilterCheck: TypeAlias = "Callable[[Import], StreambrokerError | None]"
"""Returns what is wrong with an Import's filter for the existing Exports."""


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
