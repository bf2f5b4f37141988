"""Which generation of a resource runs: the latest one that is valid.

A generation that is refused changes nothing: the last accepted one goes on. It is known from
before, or from the resource's status, where it is kept over restarts. What decides is the
resource, its status and the board, so that all replicas come to the same result. If it is not
known, and there may be one, an Import is held: agents keep the routes that they have of it.
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
"""Returns what is wrong with an Import's filter for the Exports that there are."""


def select_running(
    entry: R | Unreadable, current: R | None, check_filter: FilterCheck
) -> R | Unreadable:
    """Return what runs of a resource: itself, or the last accepted generation if it is refused.

    Args:
        entry: the resource as it was seen.
        current: what runs of it so far.
        check_filter: as above.
    """
    unsure = isinstance(entry, Import | Unreadable) and entry.earlier_unknown
    if _find_last_accepted(entry, current) is None and not unsure:
        return entry
    problem = _find_problem(entry)
    if problem is None and isinstance(entry, Import) and not entry.was_accepted:
        found = check_filter(entry)
        problem = None if found is None else (found.code, str(found))
    if isinstance(current, Import) and check_filter(_strip_status(current)) is not None:
        # It has taken no part so far, unless its status says that it was accepted.
        current = None
    last = _find_last_accepted(entry, current)
    if problem is None or last is None:
        if isinstance(entry, Import | Unreadable):
            return replace(entry, held=unsure and problem is not None)
        return entry
    code, text = problem
    resource = None if isinstance(entry, Unreadable) else entry
    newer = RejectedGeneration(
        generation=entry.generation, code=code, problem=text, resource=resource
    )
    return replace(last, rejected=newer)


def _find_last_accepted(entry: R | Unreadable, current: R | None) -> R | None:
    """Return the last valid generation before what was seen; None where none is known."""
    known = (None if isinstance(entry, Export) else cast("R | None", entry.last_accepted), current)
    found = [
        _strip_status(one)
        for one in known
        if one is not None and one.generation < entry.generation and _find_problem(one) is None
    ]
    return max(found, key=lambda one: one.generation, default=None)


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
    """Return what is wrong with a resource whatever else there is: the reason and a sentence."""
    if isinstance(entry, Unreadable):
        return entry.code, entry.problem
    if isinstance(entry, Import):
        fault = find_fault(entry)
        return None if fault is None else (fault.reason, fault.message)
    if isinstance(entry, Rule):
        problem = rule_problem(entry)
        return None if problem is None else ("RuleInvalid", str(problem))
    return None
