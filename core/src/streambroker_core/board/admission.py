"""Admission rules: which changes are refused, and why a route ends.

Admission checks one change against a `BoardOverlay` without changes; a forecast uses an overlay
with the changes before it. So both return the same result.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from streambroker_core.board.overlay import BoardOverlay
from streambroker_core.errors import StreambrokerError, TakenError
from streambroker_core.matching import Match, expression_problem, import_filter_problem, match
from streambroker_core.model import Export, Import, Kind, Resource, Route, kind_of
from streambroker_core.wire.manifests.ports import size_problem


@dataclass(frozen=True, slots=True, kw_only=True)
class CutRoute:
    """A route that a change ends, and the reason word."""

    route: Route
    reason: str


def find_put_problem(overlay: BoardOverlay, resource: Resource) -> StreambrokerError | None:
    """Return why a resource cannot be put on a board; None if it can.

    If the resource has a uid, quota and conflicts of port and name are not checked.
    """
    problem = None if resource.uid else _find_name_conflict(overlay, resource)
    problem = problem or (None if resource.uid else _find_quota_problem(overlay, resource))
    problem = problem or size_problem(resource)
    if problem is None and isinstance(resource, Import):
        problem = expression_problem(resource.subscription, "subscription")
        if problem is None and resource.filter is not None:
            problem = import_filter_problem(resource, _candidates(overlay, resource))
    return problem


def _find_name_conflict(overlay: BoardOverlay, resource: Resource) -> StreambrokerError | None:
    kind, key, name = kind_of(resource), resource.key, resource.name
    existing = overlay.resource_by_name(resource)
    if existing is not None and existing.name == name and existing.key != key:
        return TakenError(
            "NameTaken",
            f"The name {name!r} is that of the {kind} {existing.key}. Give {key} another one, or"
            " delete that one first.",
        )
    holder = overlay.holder(kind, key)
    if holder is not None and name and holder.name not in ("", name):
        return TakenError(
            "PortTaken",
            f"{kind} {key} belongs to {holder.name!r}, which is older. Delete that one first,"
            f" give {name!r} another port, or apply it under the same name.",
        )
    return None


def _find_quota_problem(overlay: BoardOverlay, resource: Resource) -> StreambrokerError | None:
    quota = overlay.board.quotas.find(resource.key.namespace)
    if not quota.limits_ports:
        return None
    old = overlay.holder(kind_of(resource), resource.key)
    return quota.find_problem(overlay.usage(resource.key.namespace), old, resource)


def _candidates(overlay: BoardOverlay, import_: Import) -> list[Export]:
    """Return accepted Exports: at least those the Import could match without its filter."""
    outcomes = overlay.board.outcomes_for(replace(import_, filter=None))
    resources = (
        overlay.get("Export", uid) for uid in outcomes.keys() | overlay.concerned_uids("Export")
    )
    exports = [x for x in resources if isinstance(x, Export) and overlay.find_rival(x) is None]
    return sorted(exports, key=lambda export: (export.key, export.uid))


def cut_reason(overlay: BoardOverlay, route: Route) -> str:
    """Return the reason word for a route that has ended."""
    sides: tuple[tuple[Kind, str], ...] = (
        ("Export", route.export_uid),
        ("Import", route.import_uid),
    )
    resources = [overlay.get(kind, uid) for kind, uid in sides]
    for (kind, _), resource in zip(sides, resources, strict=True):
        if resource is None:
            return f"{kind}Removed"
        rival = overlay.find_rival(resource)
        if rival is not None:
            return rival[0]
    export, import_ = resources
    if not isinstance(export, Export) or not isinstance(import_, Import):
        raise TypeError("the board keeps kinds apart")
    outcome = match(export, import_)
    return "Replaced" if isinstance(outcome, Match) else outcome.reason
